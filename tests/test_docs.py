"""The book: every notebook is in it, every link leads somewhere, and it needs no network."""

import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from test_page import visit

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted([*ROOT.glob("nbs/**/*.ipynb"), *ROOT.glob("bench/*.ipynb")])


@pytest.fixture(scope="session")
def book(once) -> Path:
    "The folder of the book."

    def build(out: Path) -> bool:
        return subprocess.run([sys.executable, ROOT / "docs/build.py", out / "site", out / "pages"], check=False).returncode == 0

    return once("book", build) / "site"


class Links(HTMLParser):
    "The links, the assets and the anchors of a page."

    def __init__(self, text: str):
        super().__init__()
        self.links, self.assets, self.anchors = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[k] for k in ("id", "name") if attrs.get(k)}
        if tag in ("a", "area") and attrs.get("href"):
            self.links.add(attrs["href"])
        loads = tag == "link" and attrs.get("rel") not in ("canonical", "prev", "next", "alternate")
        self.assets |= {attrs[k] for k in ("src", "data", "poster") if attrs.get(k)} | ({attrs["href"]} if loads else set())


@cache
def links(path: Path) -> Links:
    return Links(path.read_text())


def pages(book: Path) -> list[Path]:
    return [p for p in sorted(book.rglob("*.html")) if p.name != "404.html"]  # its links are those of a site at a root


def test_every_notebook_is_in_the_book(book):
    linked = links(book / "index.html").links
    missing = [p.name for p in NOTEBOOKS if not (book / f"{p.stem}.html").exists() or (p.stem != "index" and f"{p.stem}.html" not in linked)]
    assert not missing, missing


def test_no_link_is_broken(book):
    broken = []
    for page in pages(book):
        for link in links(page).links | links(page).assets:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "data", "mailto"):
                continue
            target = (page.parent / unquote(parts.path)) if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in links(target).anchors):
                broken.append(f"{page.relative_to(book)}: {link}")
    assert not broken, broken


def test_nothing_is_loaded_from_the_network(book):
    remote = [f"{p.name}: {a}" for p in pages(book) for a in links(p).assets if a.startswith(("http:", "https:", "//"))]
    remote += [p.name for p in book.rglob("*.css") if "url(http" in p.read_text() or "url(//" in p.read_text()]
    assert not remote, remote


@pytest.mark.parametrize("name", ["index", "03_posterior", "05_estimators", "07_fit", "map", "api", "fig02_convergence"])
def test_pages_in_a_browser(browser, book, name):
    page, problems = visit(browser, (book / f"{name}.html").as_uri())
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"sticks out sideways at a width of {width}"
        assert all(page.eval_on_selector_all("article img", "images => images.map(i => i.naturalWidth > 0)"))
    assert not problems
    page.close()


def test_mathematics_is_drawn(browser, book):
    page, _ = visit(browser, (book / "03_posterior.html").as_uri())
    assert "$" not in page.locator("article p").first.inner_text()
    heights = page.eval_on_selector_all("math", "all => all.map(m => m.getBoundingClientRect().height)")
    assert len(heights) > 10 and all(h > 5 for h in heights)
    under, over = (page.locator("munder").first.bounding_box(), page.locator("munder mo").first.bounding_box())
    assert under["height"] > 1.5 * over["height"]  # the relay's brace has something above it: it is laid out, not merely written


def test_search_finds_the_relay(browser, book):
    page, problems = visit(browser, (book / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.locator(".md-search-result__meta", has_text="Type to start").wait_for()  # the index is there
    page.locator("input.md-search__input").press_sequentially("relay")
    page.locator(".md-search-result__item").first.wait_for()
    assert page.locator(".md-search-result__item").count() > 3 and not problems
    page.locator(".md-search-result__item a").first.click()
    page.wait_for_load_state()
    assert "relay" in page.locator("article").inner_text().lower()
