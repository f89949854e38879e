"""The report page in a real browser: everything loads, nothing complains, every claim has its row."""

import json

import pytest


def visit(browser, url, width=1280, height=900):
    page = browser.new_page(viewport={"width": width, "height": height})
    problems = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("requestfailed", lambda r: problems.append(r.url))
    page.on("request", lambda r: problems.append(f"asks the network: {r.url}") if r.url.startswith("http") else None)
    page.goto(url)
    page.wait_for_load_state("networkidle")
    return page, problems


@pytest.mark.parametrize("width", [1280, 390])
def test_page(browser, smoke, width):
    page, problems = visit(browser, (smoke / "index.html").as_uri(), width)
    assert not problems
    pictures = page.eval_on_selector_all("img", "images => images.map(i => i.naturalWidth)")
    figures = [p.parent for p in smoke.glob("fig*/claims.json")]
    assert len(pictures) == len(figures) and all(w > 400 for w in pictures)
    claims = [c for folder in figures for c in json.loads((folder / "claims.json").read_text())]
    rows = page.locator("#claims tbody tr")
    assert rows.count() == len(claims) > 0
    shown = rows.all_inner_texts()
    for claim in claims:
        assert any(claim["text"] in row and claim["verdict"] in row.lower() for row in shown), claim["text"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # nothing sticks out sideways


def test_links_lead_somewhere(browser, smoke):
    page, _ = visit(browser, (smoke / "index.html").as_uri())
    for href in page.eval_on_selector_all("a", "links => links.map(a => a.getAttribute('href'))"):
        assert page.locator(href).count() == 1 if href.startswith("#") else (smoke / href).exists(), href


def test_notebook_pages_need_no_network(browser, smoke):
    for path in sorted(smoke.glob("fig*/fig*.html"))[:3]:
        page, problems = visit(browser, path.as_uri(), 390)
        assert not problems, (path.name, problems)
        assert page.locator("h1").count() == 1 and page.locator("img").count() >= 1
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path.name
