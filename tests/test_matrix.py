"""The matrix of verdicts says what the claims say, field by field, and draws it so that it can be read."""

import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import pyplot as plt

from rvi_nb.report.claims import Cell, Claim, save_claims
from rvi_nb.report.matrix import ALL, LOOK, draw_outcomes, outcomes
from rvi_nb.report.page import read_manifest
from rvi_nb.report.sortable import cell_rows

STANDARD = Path(__file__).parent.parent / "reports" / "standard"
LOW = {"holds": -2, "contradicted": 1, "inconclusive": -0.5}


def claim_of(figure, text="RVI is lower.", missing=(), **found):
    "A claim with, for each dataset, cells of these outcomes."
    cells = [
        Cell((("dataset", d), ("rate", r / 10)), "rvi", "vad", -1, 3, low=LOW[o], high=LOW[o] + 1) for d, each in found.items() for r, o in enumerate(each)
    ]
    return Claim(figure, text, "lower", "loss", tuple(cells), tuple(missing))


@pytest.fixture
def report(tmp_path):
    h, c, i = "holds", "contradicted", "inconclusive"
    claims = [
        claim_of("fig02_a", toy=[h, h], mnist=[h, c], fashion_mnist=[c, i], missing=["CMU-MOSI: not available here"]),
        claim_of("fig02_a", "A very long claim (with an aside) " + "that goes on and on " * 6, mnist=[i, i]),
    ]
    save_claims(tmp_path / "fig02_a" / "claims.json", claims)
    save_claims(tmp_path / "figS1_b" / "claims.json", [claim_of("figS1_b", toy=[h])])
    return tmp_path


def test_outcomes_are_those_of_the_cells(report):
    data = outcomes(report)
    found = {(r.id, r.dataset): (r.outcome, r.holds, r.n) for r in data.itertuples()}
    assert found == {
        ("fig02_a-1", "toy"): ("reproduced", 2, 2),
        ("fig02_a-1", "mnist"): ("partly", 1, 2),
        ("fig02_a-1", "fashion_mnist"): ("contradicted", 0, 2),
        ("fig02_a-1", "mosi"): ("not available", 0, 0),
        ("fig02_a-1", ALL): ("partly", 3, 6),
        ("fig02_a-2", "mnist"): ("inconclusive", 0, 2),
        ("fig02_a-2", ALL): ("inconclusive", 0, 2),
    }
    assert set(outcomes(report, "fig*").figure) == {"fig02_a", "figS1_b"}


def fields(fig):
    "Colours and texts of the fields that lead somewhere."
    ax = fig.axes[0]
    colors = {p.get_url(): p.get_facecolor() for p in ax.patches if p.get_url()}
    return colors, {t.get_url(): t.get_text() for t in ax.texts if t.get_url()}


def test_every_field_has_its_colour_its_symbol_and_its_link(report):
    data = outcomes(report)
    colors, texts = fields(draw_outcomes(data, lambda claim, dataset: f"#{claim}-{dataset}"))
    for row in data.itertuples():
        color, _, symbol = LOOK[row.outcome]
        address = f"#{row.id}-{row.dataset}"
        assert colors[address][:3] == pytest.approx([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        assert symbol in texts[address]
    assert texts["#fig02_a-1-mnist"] == "\u25d0 1/2 \u27171" and texts["#fig02_a-1-toy"] == "\u2713 2/2" and texts["#fig02_a-1-fashion_mnist"] == "0/2 \u27171"


def test_links_are_in_the_svg(report, tmp_path):
    draw_outcomes(outcomes(report), lambda claim, dataset: f"#{claim}-{dataset}").savefig(tmp_path / "matrix.svg")
    links = {e.get("{http://www.w3.org/1999/xlink}href") for e in ElementTree.parse(tmp_path / "matrix.svg").iter("{http://www.w3.org/2000/svg}a")}
    assert "#fig02_a-1-toy" in links and len(links) == 7


def inside(fig):
    "Whether every text lies in the picture, and no claim runs into its fields."
    fig.canvas.draw()
    page, ax = fig.bbox, fig.axes[0]
    boxes = [t.get_window_extent() for t in ax.texts]
    claims = [t.get_window_extent().x1 for t in ax.texts if t.get_position()[0] == 0.78 and t.get_fontsize() == 8.5]
    return all(page.x0 <= b.x0 and b.x1 <= page.x1 and page.y0 <= b.y0 and b.y1 <= page.y1 for b in boxes) and max(claims) < min(
        p.get_window_extent().x0 for p in ax.patches if p.get_url()
    )


@pytest.mark.parametrize("pattern", ["fig[!S]*", "figS*"])
def test_the_committed_report_fits_the_picture(pattern):
    data = outcomes(STANDARD, pattern)
    assert set(data.figure) <= set(read_manifest(STANDARD)["figures"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks is a warning
        fig = draw_outcomes(data, lambda claim, dataset: "#")
        assert inside(fig)
    assert fig.get_facecolor() == (1, 1, 1, 1)
    plt.close(fig)


def test_links_lead_to_rows_of_the_table(report):
    claims = [
        (f"fig02_a-{i}", c)
        for i, c in enumerate(
            [claim_of("fig02_a", toy=["holds"], mnist=["holds", "holds"]), Claim("fig02_a", "x", "lower", "loss", (Cell((), "a", "b", -1, 2),))], 1
        )
    ]
    rows = cell_rows(claims)
    assert list(rows.index) == ["fig02_a-1-toy", "fig02_a-1-mnist", "fig02_a-1-mnist", "fig02_a-2-all"]
