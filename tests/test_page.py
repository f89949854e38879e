"""The report page in a real browser: everything loads, nothing complains, every claim has its row, every verdict its numbers."""

import json
import re
from pathlib import Path

import pytest

from rvi_nb.report.best import COMMITTED
from rvi_nb.report.claims import load_claims
from rvi_nb.report.matrix import ALL, LOOK, outcomes
from rvi_nb.report.page import write_page
from rvi_nb.report.profiles import PROFILES

REPORTS = Path(__file__).parent.parent / "reports"


def visit(browser, url, width=1280, height=900):
    page = browser.new_page(viewport={"width": width, "height": height})
    problems = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("requestfailed", lambda r: problems.append(r.url))
    page.on("request", lambda r: problems.append(f"asks the network: {r.url}") if r.url.startswith("http") else None)
    page.goto(url)  # returns when the page and all its pictures and scripts are there
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
        words = [claim["text"], claim["verdict"], f"holds in {claim['counts']['holds']} of {claim['counts']['n']} cells"]
        assert any(all(word in row for word in words) for row in shown), claim["text"]
        assert ("CONTRADICTED" in next(row for row in shown if all(word in row for word in words))) == (claim["counts"]["contradicted"] > 0)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # nothing sticks out sideways


def test_links_lead_somewhere(browser, smoke):
    page, _ = visit(browser, (smoke / "index.html").as_uri())
    for href in page.eval_on_selector_all("a", "links => links.map(a => a.getAttribute('href'))"):
        assert page.locator(f"[id='{href[1:]}']").count() == 1 if href.startswith("#") else (smoke / href).exists(), href


def test_every_field_of_the_matrix_leads_to_its_numbers(browser, smoke):
    page, _ = visit(browser, (smoke / "index.html").as_uri())
    there = set(page.eval_on_selector_all("#verdicts a", "links => links.map(a => a.getAttribute('href'))"))
    rows = outcomes(smoke)
    assert len(rows) == page.locator("#verdicts a").count() / 2 > 40  # each has a box and a text
    for row in rows.itertuples():
        [address] = there & {f"#{row.id}-{row.dataset}", f"#{row.id}"} if row.dataset == ALL else [f"#{row.id}-{row.dataset}" if row.n else f"#{row.id}"]
        assert address in there and row.claim in page.locator(f"[id='{address[1:]}']").inner_text(), address
    page.locator("#verdicts a").first.click(position={"x": 3, "y": 3})
    assert page.locator("tr:target").count() == 1


def test_numbers_are_those_of_the_claims_and_can_be_sorted_and_filtered(browser, smoke):
    page, problems = visit(browser, (smoke / "index.html").as_uri())
    cells = [c for path in smoke.glob("fig*/claims.json") for claim in load_claims(path) for c in claim.cells]
    table = page.locator("#numbers ~ .sortable")
    assert table.locator("tbody tr").count() == len(cells) > 100
    table.locator("th", has_text="difference").locator("button").click()
    column = table.locator("tbody tr td:nth-child(6)")
    values = [v for v in column.evaluate_all("all => all.map(td => td.dataset.value)") if v]
    assert [float(v) for v in values] == sorted(c.mean for c in cells if c.mean is not None)
    page.get_by_role("searchbox", name="filter: Every cell").fill("contradicted toy")
    left = table.locator("tbody tr:not([hidden])").all_inner_texts()
    assert all("contradicted" in row and "Toy" in row for row in left)
    assert len(left) == sum(c.outcome == "contradicted" and ("dataset", "toy") in c.where for c in cells) and not problems


def test_the_page_can_be_read_without_scripts(browser, smoke):
    page = browser.new_page(java_script_enabled=False)
    page.goto((smoke / "index.html").as_uri())
    assert page.locator("#claims tbody tr").count() > 20 and page.locator("#numbers ~ .sortable tbody tr").count() > 100
    assert page.locator("#verdicts svg").count() == 1 and page.locator("button, input").count() == 0


def test_badges_have_the_colours_of_the_matrix(browser, smoke):
    page, _ = visit(browser, (smoke / "index.html").as_uri())
    for verdict in {claim.verdict for path in smoke.glob("fig*/claims.json") for claim in load_claims(path)}:
        color = page.locator(f".verdict.{verdict}").first.evaluate("e => getComputedStyle(e).backgroundColor")
        assert [int(v) for v in re.findall(r"\d+", color)] == [int(LOOK[verdict][0][i : i + 2], 16) for i in (1, 3, 5)]


@pytest.mark.parametrize("profile", COMMITTED)
def test_the_committed_page_is_up_to_date(profile, tmp_path):
    "Its parts that depend on the claims are what the code makes of them now."
    report = REPORTS / profile
    for path in [report / "manifest.json", *report.glob("fig*/claims.json")]:
        (tmp_path / path.relative_to(report)).parent.mkdir(exist_ok=True)
        (tmp_path / path.relative_to(report)).write_bytes(path.read_bytes())
    made, committed = (
        re.search(r'<div class="wide".*?<h2 id="figures">', p.read_text(), re.DOTALL)[0]
        for p in (write_page(tmp_path, PROFILES[profile]), report / "index.html")
    )
    assert made == committed and (tmp_path / "verdicts.svg").read_bytes() == (report / "verdicts.svg").read_bytes(), "write_page anew and commit"


def test_notebook_pages_need_no_network(browser, smoke):
    for path in sorted(smoke.glob("fig*/fig*.html"))[:3]:
        page, problems = visit(browser, path.as_uri(), 390)
        assert not problems, (path.name, problems)
        assert page.locator("h1").count() == 1 and page.locator("img").count() >= 1
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path.name
