"""The table of numbers in a real browser: it sorts, it filters, and it can be read with scripts turned off."""

import numpy as np
import pandas as pd
import pytest

from rvi_nb.report.sortable import SORTABLE_SCRIPT, SORTABLE_STYLE, sortable

FRAME = pd.DataFrame(
    {
        "model": ["RVI", "VAD", "a <b>bold</b> one", "VAE"],
        "test_loss": [10.0, 9.0, np.nan, -np.inf],
        "outcome": ["holds", "contradicted", "holds", "inconclusive"],
    },
    index=["first", "second", "third", "first"],
)
PHONE = "@media (max-width: 640px) { thead { display: none } tr, td { display: block } }"  # as the report's own style has it


@pytest.fixture
def page_of(browser, tmp_path):
    def page_of(scripts=True, width=1000, fragment=""):
        text = f"<!doctype html><meta charset=utf-8><style>{PHONE}{SORTABLE_STYLE}</style>{sortable(FRAME, 'Numbers')}<script>{SORTABLE_SCRIPT}</script>"
        (tmp_path / "index.html").write_text(text)
        page = browser.new_page(java_script_enabled=scripts, viewport={"width": width, "height": 800})
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto((tmp_path / "index.html").as_uri() + fragment)
        return page

    return page_of


def column(page, number):
    return page.locator(f"tbody tr:not([hidden]) td:nth-child({number})").all_inner_texts()


def test_numbers_are_sorted_as_numbers_and_the_empty_come_last(page_of):
    page = page_of()
    assert column(page, 2) == ["10", "9", "", "-inf"]
    head = page.locator("th", has_text="test loss")
    head.locator("button").click()
    assert column(page, 2) == ["-inf", "9", "10", ""] and head.get_attribute("aria-sort") == "ascending"
    assert column(page, 1) == ["VAE", "VAD", "RVI", "a <b>bold</b> one"]  # rows stay whole
    head.locator("button").press("Enter")
    assert column(page, 2) == ["10", "9", "-inf", ""] and head.get_attribute("aria-sort") == "descending"
    page.locator("th", has_text="outcome").locator("button").click()
    assert column(page, 3) == ["contradicted", "holds", "holds", "inconclusive"] and head.get_attribute("aria-sort") is None


@pytest.mark.parametrize("width", [1000, 390])
def test_the_filter_keeps_rows_with_every_word(page_of, width):
    page = page_of(width=width)
    count = page.get_by_role("status")
    assert count.inner_text() == "4 of 4 rows"
    page.get_by_role("searchbox", name="filter: Numbers").fill("HOLDS rvi")
    assert column(page, 1) == ["RVI"] and count.inner_text() == "1 of 4 rows"
    assert [row.is_visible() for row in page.locator("tbody tr").all()] == [True, False, False, False]
    page.get_by_role("searchbox").fill("nothing like it")
    assert column(page, 1) == [] and count.inner_text() == "0 of 4 rows"
    page.get_by_role("searchbox").fill("")
    assert len(column(page, 1)) == 4


def test_a_filtered_table_stays_filtered_when_sorted(page_of):
    page = page_of()
    page.get_by_role("searchbox").fill("holds")
    page.locator("th", has_text="model").locator("button").click()
    assert column(page, 1) == ["a <b>bold</b> one", "RVI"]


def test_without_scripts_it_is_a_plain_table(page_of):
    page = page_of(scripts=False)
    assert page.locator("tbody tr").count() == 4 and page.locator("td").first.inner_text() == "RVI"
    assert page.locator("button, input").count() == 0 and page.locator("caption").inner_text() == "Numbers"
    assert page.locator("td b").count() == 0  # text is never markup


def test_a_link_leads_to_the_first_row_of_its_name(page_of):
    page = page_of(fragment="#first")
    assert page.locator("#first").count() == 1 and page.locator("tr:target td").first.inner_text() == "RVI"
