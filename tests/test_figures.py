"""The figures at the smoke profile: what is drawn, in which colours, from which numbers, and what is written beside it."""

import csv
import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from rvi_nb.data.datasets import fetch
from rvi_nb.data.sources import DataError
from rvi_nb.model.choices import CANDIDATES, choose_variance
from rvi_nb.model.models import PAPER
from rvi_nb.report import figures, names, pictures, saving, style
from rvi_nb.report.claims import load_claims
from rvi_nb.report.figures import find_figures, read_figure
from rvi_nb.report.names import plain
from rvi_nb.report.profiles import NINE, PROFILES
from rvi_nb.report.speed import epochs_at_levels
from rvi_nb.runs.store import Store, results
from rvi_nb.studies.design import hyperparameter_runs
from rvi_nb.studies.readings import READINGS, reading_claims

FOLDER = Path(__file__).parent.parent / "nbs" / "figures"
NAMES = [p.stem for p in find_figures([], FOLDER) if not p.stem.startswith("figS")]
SUPPLEMENT = [p.stem for p in find_figures([], FOLDER) if p.stem.startswith("figS")]
DERIVED = ["figS3_latent_space", "figS6_acceleration", "figS9_general"]  # their numbers are not those of runs
GRIDS = {p.stem: read_figure(p, dict(profile="smoke")).grid for p in find_figures([], FOLDER)}
OF_IMAGES = [name for name, grid in GRIDS.items() if grid and "toy" not in {r.dataset for r in grid}]
SIZE = PROFILES["smoke"]
COLOUR = {m: to_hex(look["color"]) for m, look in style.model_looks().items()}
BASE = {"rvi", "vad", "vae"}


def have_mnist() -> bool:
    try:
        return bool(fetch("mnist"))
    except DataError:
        return False


pytestmark = pytest.mark.skipif(not have_mnist(), reason="MNIST is not available here")


def execute(name: str, found: dict, **parameters) -> dict:
    "Run a figure notebook in this process; `found` gets the names it leaves behind."
    for cell in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, name, "exec"), found)
            if "parameters" in cell.metadata.get("tags", []):
                found.update(profile="smoke", jobs=0, figure=name, **parameters)
    return found


@pytest.fixture(scope="module")
def drawn(smoke):
    "The names that each figure notebook leaves behind, run against the finished store."
    cache: dict[str, dict] = {}

    def names(name: str) -> dict:
        if name not in cache:
            written = (smoke / name / f"{name}.csv").read_bytes()
            cache[name] = execute(name, {"written": written}, out=str(smoke), store=str(smoke / "runs.sqlite"))
        return cache[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FOLDER)
        patch.setattr(figures, "save", lambda fig, *where: saving._settle(fig))  # pictures are there already: laid out, not drawn again
        yield names
    matplotlib.pyplot.close("all")


def lines(ax, dotted=True):
    "The lines of a panel that show something: not legend entries, stars or the ends of error bars."
    return [ln for ln in ax.lines if len(ln.get_xdata()) > 1 and ln.get_linestyle() != "None" and (dotted or ln.get_linestyle() != ":")]


def by_colour(ax, dotted=True):
    return {to_hex(ln.get_color()): ln for ln in lines(ax, dotted)}


def same(line, values):
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), np.asarray(values, dtype=float), rtol=1e-6)


def mean_curve(frame, column="train_curve"):
    return np.mean(np.stack(frame[column]).astype(float), axis=0)


def stored(smoke, runs):
    return results(runs, Store(smoke / "runs.sqlite"))


# --- every figure -----------------------------------------------------------------------------------------------------


def test_the_paper_has_eleven():
    assert [n.split("_")[0] for n in NAMES] == [*(f"fig0{i}" for i in range(1, 8)), *(f"figA{i}" for i in range(1, 5))]


@pytest.mark.parametrize("name", [*NAMES, *SUPPLEMENT])
def test_notebooks_are_kept_without_outputs(name):
    cells = [c for c in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells if c.cell_type == "code"]
    assert not any(c.outputs or c.execution_count for c in cells)


@pytest.mark.parametrize("name", [*NAMES, *SUPPLEMENT])
def test_no_figure_names_a_colour_or_builds_a_model(name):
    source = "\n".join(c.source for c in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells if c.cell_type == "code")
    assert not re.search(r"color=|#[0-9a-fA-F]{6}|import torch|Relay|MLP", source)


@pytest.mark.parametrize("name", [n for n in (*NAMES, *SUPPLEMENT) if n not in DERIVED])
def test_csv_has_a_row_for_each_cell_of_the_grid(name, smoke):
    grid = read_figure(FOLDER / f"{name}.ipynb", dict(profile="smoke")).grid
    with open(smoke / name / f"{name}.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    stages = 5 if name == "fig07_progression" else 1
    assert len(set(grid)) == len(grid) and len(rows) == len(grid) * stages
    key = lambda r: (r["dataset"], float(r["rate"]), int(r["seed"]), float(r["ratio"]), r["groups"], float(r["lr"]), float(r["posterior_lr"]), r["hidden"])
    show = "+".join
    want = {(r.dataset, r.rate, r.seed, r.ratio, show(map(str, r.groups)), r.lr, r.posterior_lr, show(map(str, r.hidden))) for r in grid}
    assert {key(r) for r in rows} == want
    loss = stored(smoke, grid)
    if stages == 1:
        column = lambda v: sorted(f"{x:.8g}" for x in v)
        assert column(float(r["train_loss"]) for r in rows) == column(loss.train_loss)


@pytest.mark.parametrize("name", [*NAMES, *SUPPLEMENT])
def test_verdicts_are_written_and_shown(name, smoke, drawn):
    claims = load_claims(smoke / name / "claims.json")
    assert claims and claims == drawn(name)["claims"]
    page = (smoke / name / f"{name}.html").read_text()
    for claim in claims:
        assert claim.figure == name and claim.cells and claim.text and not claim.missing
        assert claim.verdict in page
    assert all(c["verdict"] for c in json.loads((smoke / name / "claims.json").read_text()))


@pytest.mark.parametrize("name", [*NAMES, *SUPPLEMENT])
def test_the_notebook_says_how_small_it_is_and_where_larger_runs_are(name, smoke):
    outputs = [o for c in nbformat.read(smoke / name / f"{name}.ipynb", 4).cells if c.cell_type == "code" for o in c.outputs]
    said = "\n".join(o["data"].get("text/markdown", "") for o in outputs if "data" in o)
    n = GRIDS[name][0].n_train if GRIDS[name] else SIZE.smaller.n_train
    assert f"The smoke profile has {n:,} training rows instead of 10,000" in said and "standard" in said and "nan" not in said


@pytest.mark.parametrize("name", [*NAMES, *SUPPLEMENT])
def test_running_again_gives_the_same_numbers(name, smoke, drawn):
    assert (smoke / name / f"{name}.csv").read_bytes() == drawn(name)["written"]


@pytest.mark.parametrize("name", [*NAMES, *SUPPLEMENT])
def test_executed_notebooks_hold_nothing_of_their_execution(name, smoke):
    executed, source = (nbformat.read(folder / f"{name}.ipynb", 4) for folder in (smoke / name, FOLDER))
    assert "papermill" not in executed.metadata and not any({"papermill", "execution"} & set(c.metadata) for c in executed.cells)
    assert {c.id for c in executed.cells} - {c.id for c in source.cells} == {"injected-parameters"}


@pytest.mark.parametrize("name", [*NAMES, *SUPPLEMENT])
def test_a_discussion_shows_its_text_and_not_its_source(name, smoke):
    cells = [c for c in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells if c.cell_type == "code"]
    prose = [c for c in cells if re.search(r"(?m)^Markdown\(", c.source)]
    assert prose and all("hide-input" in c.metadata.get("tags", []) for c in prose)
    page = re.sub(r"<[^>]+>", "", (smoke / name / f"{name}.html").read_text())
    assert "training rows instead of" in page and "larger(page" not in page and "differs(size" not in page and "page.save(" in page


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_figure_of_images_without_images_says_so(name, tmp_path, monkeypatch):
    def none(dataset):
        raise DataError(f"no {dataset}")

    monkeypatch.setattr("rvi_nb.runs.schedule.fetch", none)
    monkeypatch.chdir(FOLDER)
    found = execute(name, {}, out=str(tmp_path), store=str(tmp_path / "runs.sqlite"))
    assert {c.verdict for c in found["claims"]} == {"inconclusive"} and all(c.missing for c in found["claims"])
    assert all(any("not available here" in " ".join(t.get_text().split()) for t in ax.texts) for ax in found["fig"].axes)


# --- one by one -------------------------------------------------------------------------------------------------------


def panels(fig, n):
    assert len(fig.axes) == n
    return fig.axes


def test_fig01(smoke, drawn):
    found = drawn("fig01_hyperparameters")
    frame = stored(smoke, hyperparameter_runs(SIZE))
    for ax, dataset in zip(panels(found["fig"], len(SIZE.datasets)), SIZE.datasets, strict=True):
        assert ax.get_yscale() == "log" and len(lines(ax)) == 6 and len(ax.collections) == 3
        for model in BASE:
            part = np.stack(frame[(frame.dataset == dataset) & (frame.model == model)].train_curve).astype(float)
            mean, median = [ln for ln in lines(ax) if to_hex(ln.get_color()) == COLOUR[model]]
            same(mean, part.mean(0))
            same(median, np.median(part, 0))
            assert median.get_linestyle() == ":"
    factors = frame[["lr", "hidden", "rate"]].map(plain).drop_duplicates()
    assert [factors[c].nunique() for c in factors] == [4, 3, 9]
    assert (frame.lr == frame.posterior_lr).all()


def test_fig02(smoke, drawn):
    found = drawn("fig02_convergence")
    frame, axes = stored(smoke, found["main"]), panels(found["fig"], 3 * len(SIZE.datasets))
    for i, (rate, dataset) in enumerate((r, d) for r in (0.0, 0.5, 0.9) for d in SIZE.datasets):
        shown = by_colour(axes[i])
        assert shown.keys() == {COLOUR[m] for m in BASE} and len(lines(axes[i])) == 3
        for m in BASE:
            same(shown[COLOUR[m]], mean_curve(frame[(frame.dataset == dataset) & (frame.rate == rate) & (frame.model == m)]))


@pytest.mark.parametrize("name, metric", [("fig03_test_loss", "test_loss"), ("fig04_imputation", "imputation_loss")])
def test_fig03_and_fig04(name, metric, smoke, drawn):
    found = drawn(name)
    frame = stored(smoke, found["grid"])
    for ax, dataset in zip(panels(found["fig"], len(SIZE.datasets)), SIZE.datasets, strict=True):
        shown = by_colour(ax)
        assert shown.keys() == {COLOUR[m] for m in BASE} and len(ax.containers) == 3
        for m in BASE:
            part = frame[(frame.dataset == dataset) & (frame.model == m)].groupby("rate")[metric]
            same(shown[COLOUR[m]], part.mean())
            assert tuple(shown[COLOUR[m]].get_xdata()) == SIZE.rates
            bar = next(c for c in ax.containers if to_hex(c.lines[0].get_color()) == COLOUR[m]).lines[2][0].get_segments()
            np.testing.assert_allclose([np.ptp(b[:, 1]) / 2 for b in bar], part.std(), rtol=1e-5)


def test_fig05(smoke, drawn):
    found = drawn("fig05_representation")
    frame, (above, below) = stored(smoke, found["grid"]), panels(found["fig"], 2)  # MNIST is the only labelled one at smoke
    assert (above.get_ylabel(), below.get_ylabel()) == ("classifier loss", "test accuracy")
    for m in BASE:
        part = frame[frame.model == m]
        same(by_colour(above)[COLOUR[m]], mean_curve(part, "probe_curve"))
        same(by_colour(below)[COLOUR[m]], part.groupby("rate").probe_accuracy.mean())
    assert tuple(by_colour(below)[COLOUR["rvi"]].get_xdata()) == (0.0, *SIZE.rates)
    assert frame.probe_accuracy.between(0, 1).all()


def test_fig06(smoke, drawn):
    found = drawn("fig06_posterior_lr")
    frame = stored(smoke, found["grid"])
    high = frame[frame.posterior_lr == 1e-2]
    tested = high.assign(posterior_lr=high.test_lr.astype(float).fillna(1e-2))  # trained at the highest rate, tested at each
    frame = frame[frame.test_lr.isna()]
    look = style.looks("posterior_lr", frame.posterior_lr)
    assert len(look) == 7
    for ax, runs, kind in zip(panels(found["fig"], 3), (frame, frame, tested), ("train", "test", "test"), strict=True):
        assert len(lines(ax)) == 14
        for (model, lr), part in runs.groupby(["model", "posterior_lr"]):
            dash = {"rvi": "-", "vad": ":"}[model]
            [line] = [ln for ln in lines(ax) if ln.get_linestyle() == dash and to_hex(ln.get_color()) == to_hex(look[plain(lr)]["color"])]
            same(line, mean_curve(part, f"{kind}_curve"))
        stars = [ln for ln in ax.lines if ln.get_marker() == "*"]
        lowest = runs.assign(end=[c[-1] for c in runs[f"{kind}_curve"]]).groupby(["model", "posterior_lr"]).end.mean().groupby("model").min()
        np.testing.assert_allclose(sorted(s.get_ydata()[0] for s in stars), sorted(lowest), rtol=1e-6)
    assert tested.groupby(["model", "seed"]).train_loss.nunique().eq(1).all() and tested.groupby(["model", "seed"]).test_loss.nunique().eq(7).all()


def test_fig07(smoke, drawn):
    found = drawn("fig07_progression")
    axes, errors = panels(found["fig"], 5 * found["n_digits"]), found["errors"]
    below = [ax.get_xlabel() for ax in axes[-5:]]
    mean = errors.groupby("stage", sort=False).error.mean()
    assert [b[:3] for b in below] == ["(a)", "(b)", "(c)", "(d)", "(e)"]
    assert [b.split("\n")[1] for b in below[:4]] == [f"{e:.3f}" for e in mean[1:]]
    whole = errors[errors.stage == "deviation"].set_index("seed").error
    np.testing.assert_allclose(whole, stored(smoke, found["grid"]).set_index("seed").train_loss, rtol=1e-5)
    hole = np.array(matplotlib.colors.to_rgb(pictures.HOLE))
    share = [np.isclose(ax.images[0].get_array(), hole).all(-1).mean() for ax in axes]
    assert all(0.4 < s < 0.6 for s in share[4::5]) and not any(s for i, s in enumerate(share) if i % 5 != 4)


def test_figA1(smoke, drawn):
    found = drawn("figA1_relay_form")
    frame = stored(smoke, found["grid"])
    for ax, dataset in zip(panels(found["fig"], len(SIZE.datasets)), SIZE.datasets, strict=True):
        shown = by_colour(ax)
        assert shown.keys() == {COLOUR[m] for m in (*BASE, "rvi_cluster")} and len(lines(ax)) == 4
        part = frame[(frame.dataset == dataset) & (frame.model == "rvi")]
        same(shown[COLOUR["rvi"]], mean_curve(part[part.ratio == 0.5]))
        same(shown[COLOUR["rvi_cluster"]], mean_curve(part[part.ratio != 0.5]))
    groups, ratio = found["clustering"][0].groups, found["clustering"][0].ratio
    assert [max(1, round(ratio * k)) for k in groups] == [1, 1, 1]


def test_figA2(smoke, drawn):
    found = drawn("figA2_ratio")
    frame = stored(smoke, found["grid"])
    look, rvi = style.looks("ratio", NINE), frame[frame.model == "rvi"]
    for ax, first in zip(panels(found["fig"], 2), (0, SIZE.epochs // 2), strict=True):
        shown = by_colour(ax)
        assert len(lines(ax)) == 11
        for ratio in NINE:
            same(shown[to_hex(look[ratio]["color"])], mean_curve(rvi[np.isclose(rvi.ratio, ratio)])[first:])
        for m in ("vad", "vae"):
            same(shown[COLOUR[m]], mean_curve(frame[frame.model == m])[first:])


def test_figA3(smoke, drawn):
    found = drawn("figA3_groups")
    axes = panels(found["fig"], 4 * found["n_digits"])
    frame = stored(smoke, found["grid"])
    loss = [frame[frame.groups == g].train_loss.mean() for g in ((25,), (25, 50), (25, 50, 100))]
    assert [ax.get_xlabel() for ax in axes[-4:]] == [*(f"({c})\n{e:.3f}" for c, e in zip("abc", loss, strict=True)), "(d)"]
    assert [ax.get_title() for ax in axes[:4]] == ["25", "25+50", "25+50+100", "input"]
    np.testing.assert_allclose(found["seen"][0].errors[-1], frame[(frame.groups == (25,)) & (frame.seed == 0)].train_loss.item(), rtol=1e-5)


def test_figA4(smoke, drawn):
    found = drawn("figA4_boxes")
    frame, axes = stored(smoke, found["grid"]), panels(found["fig"], 5)
    hole = np.array(matplotlib.colors.to_rgb(pictures.HOLE))
    hidden = [np.isclose(axes[i].images[0].get_array(), hole).all(-1).sum() / found["n_images"] for i in (0, 2)]
    assert 100 < hidden[0] <= 160 < hidden[1] <= 320  # boxes of 16 pixels, some of which overlap
    for ax, n in ((axes[1], 10), (axes[3], 20)):
        for m in BASE:
            same(by_colour(ax)[COLOUR[m]], mean_curve(frame[(frame.rate == n) & (frame.model == m)]))
    for m in BASE:
        same(by_colour(axes[4])[COLOUR[m]], frame[frame.model == m].groupby("rate").imputation_loss.mean())


# --- the supplement ---------------------------------------------------------------------------------------------------


def test_figS1(smoke, drawn):
    found = drawn("figS1_baselines")
    frame, models = stored(smoke, found["tuned"]), (*BASE, "refined", "semi", "ladder", "dgd")
    columns = ("train_loss", "test_loss", "imputation_loss", "seconds")
    assert set(frame.model) == set(models) and set(frame.dataset) == {"mnist"}  # no Fashion-MNIST at smoke
    axes = panels(found["fig"], 6)
    for ax, column in zip(axes, columns, strict=False):
        shown, rates = by_colour(ax), (0.5, 0.9)
        assert shown.keys() == {COLOUR[m] for m in models} and ax.get_title() == names.label(column)
        assert ax.get_yscale() == ("log" if column == "seconds" else "linear")
        for m in models:
            same(shown[COLOUR[m]], frame[frame.model == m].groupby("rate")[column].mean())
            assert tuple(shown[COLOUR[m]].get_xdata()) == rates
    for ax, rate in zip(axes[4:], (0.5, 0.9), strict=True):
        filled = {to_hex(c.get_facecolor()[0]): c.get_offsets()[0] for c in ax.collections if to_hex(c.get_facecolor()[0]) != "#ffffff"}
        hollow = {to_hex(c.get_edgecolor()[0]): c.get_offsets()[0] for c in ax.collections if to_hex(c.get_facecolor()[0]) == "#ffffff"}
        for part, marks in ((frame, filled), (stored(smoke, found["untuned"]), hollow)):
            means = part[part.rate == rate].groupby("model")[["seconds", "imputation_loss"]].mean()
            assert marks.keys() == {COLOUR[m] for m in models}
            for m in models:
                np.testing.assert_allclose(marks[COLOUR[m]], means.loc[m], rtol=1e-6)
    assert len(found["claims"]) == 12 and "NaN" not in found["cost"].to_string()


def test_figS4(smoke, drawn):
    found = drawn("figS4_relay_forms")
    frame, axes = stored(smoke, found["grid"]), panels(found["fig"], 3 * len(SIZE.datasets))
    frame["model"] = frame.model.mask(frame.ratio < 0.5, "rvi_cluster")
    forms, n = ("rvi", "rvi_cluster", "mixture"), len(SIZE.datasets)
    shared = {r.key for r in read_figure(FOLDER / "figA1_relay_form.ipynb", dict(profile="smoke")).grid}
    assert {r.key for r in found["clustering"]} <= shared
    for i, dataset in enumerate(SIZE.datasets):
        cell = frame[frame.dataset == dataset]
        shown = by_colour(axes[i])
        assert shown.keys() == {COLOUR[m] for m in forms} and len(lines(axes[i])) == 3
        for m in forms:
            same(shown[COLOUR[m]], mean_curve(cell[cell.model == m]))
        for ax, column in ((axes[n + i], "train_loss"), (axes[2 * n + i], "seconds")):
            dots = {to_hex(c.lines[0].get_color()): c.lines[0].get_xdata()[0] for c in ax.containers}
            assert dots.keys() == {COLOUR[m] for m in forms} and ax.get_xlabel() == names.label(column)
            for m in forms:
                assert dots[COLOUR[m]] == pytest.approx(cell[cell.model == m][column].mean(), rel=1e-6)
    assert [t.get_text() for t in axes[n].get_yticklabels()] == [names.label(m) for m in forms]


def swept(smoke, found, x, levels, metric, ax, **where):
    "A panel of a value against a swept setting shows the store's means, and under them what was decided at each level."
    frame, shown = stored(smoke, found["grid"]), by_colour(ax)
    frame = frame[[all(plain(row[k]) == v for k, v in where.items()) for row in frame.to_dict("records")]]
    assert len(ax.containers) == 3 and ax.get_xscale() == "log"
    for m in BASE:
        same(shown[COLOUR[m]], frame[frame.model == m].groupby(x)[metric].mean())
        assert tuple(shown[COLOUR[m]].get_xdata()) == levels
    marks = [ln for ln in ax.lines if len(ln.get_xdata()) == 1]
    assert sorted((to_hex(ln.get_color()), ln.get_xdata()[0]) for ln in marks) == sorted((COLOUR[m], v) for m in ("vad", "vae") for v in levels)


def test_figS2(smoke, drawn):
    found = drawn("figS2_latent_size")
    axes = iter(panels(found["fig"], 9))
    for metric in ("train_loss", "test_loss", "imputation_loss"):
        for hidden in ((64,), (64, 64), (64, 64, 64)):
            swept(smoke, found, "latent", (8, 16, 32, 64, 128), metric, next(axes), hidden=hidden)
    assert {r.n_train for r in found["grid"]} == {SIZE.smaller.n_train}


def test_figS3(smoke, drawn):
    found = drawn("figS3_latent_space")
    axes = np.reshape(panels(found["fig"], 12), (4, 3))
    numbers, grid = found["numbers"], found["grid"]
    assert len(numbers) == 5 * len(grid) and numbers[["confidence", "balance", "same_neighbour"]].apply(lambda c: c.between(0, 1)).all(axis=None)
    for j, model in enumerate(("rvi", "vae", "vad")):
        assert axes[0, j].get_title() == names.label(model)
        n_relays = sum(grid[0].groups) if model == "rvi" else 0
        assert sum(len(c.get_offsets()) for c in axes[0, j].collections) == min(found["n_points"], SIZE.n_train) + n_relays
        for i, source in ((1, "half way"), (2, "prior"), (3, "ten Gaussians")):
            mean = numbers[(numbers.model == model) & (numbers.source == source)].confidence.mean()
            assert f"confidence {mean:.2f}," in axes[i, j].get_xlabel() and len(axes[i, j].images) == 1
    written = pd.read_csv(smoke / "figS3_latent_space" / "figS3_latent_space.csv")
    assert set(zip(written.model, written.seed, written.source, strict=True)) == {(r.model, r.seed, s) for r in grid for s in set(numbers.source)}


def test_figS5(smoke, drawn):
    found, rates = drawn("figS5_missing_shift"), (0.1, 0.5, 0.9)
    axes, frame = iter(panels(found["fig"], 6)), stored(smoke, found["grid"])
    at_test = frame.test_rate.astype(float).fillna(frame.rate)
    for metric in ("test_loss", "imputation_loss"):
        for model in ("rvi", "vae", "vad"):
            ax, part = next(axes), frame[frame.model == model]
            mean = part.groupby([part.rate, at_test])[metric].mean()
            assert [float(t.get_text().split("\n")[0]) for t in ax.texts[-9:]] == [round(mean[a, b], 3) for a in rates for b in rates]
            np.testing.assert_allclose(ax.images[0].get_array().ravel(), [mean[a, b] for a in rates for b in rates], rtol=1e-6)
            assert to_hex(ax.images[0].cmap(1.0)) == COLOUR[model]
    rise = found["rises"]["test_rise"]["vae"][(0.9, 0.1)]
    vae = frame[frame.model == "vae"].assign(at=at_test).pivot_table(index="seed", columns=["rate", "at"], values="test_loss")
    np.testing.assert_allclose(rise, 100 * (vae[0.9, 0.1] / vae[0.1, 0.1] - 1).mean(), rtol=1e-6)


def test_figS6(smoke, drawn):
    found = drawn("figS6_acceleration")
    n = len(SIZE.datasets)
    axes, frame = panels(found["fig"], 4 * n), stored(smoke, found["grid"])  # at equal losses, then to the final loss; epochs, then seconds
    first = lambda curve, value: next((i + 1 for i, v in enumerate(curve) if v <= value), None)
    for equal, ax, dataset in zip(axes[:n], axes[2 * n : 3 * n], SIZE.datasets, strict=True):
        points = {to_hex(c.lines[0].get_color()): c.lines[0].get_ydata() for c in ax.containers}
        for rival in ("vad", "vae"):
            for place, rate in enumerate((0.0, 0.5, 0.9)):
                part = frame[(frame.dataset == dataset) & (frame.rate == rate)].set_index(["model", "seed"]).train_curve
                pairs = [(first(part["rvi", s], part[rival, s][-1]), first(part[rival, s], part[rival, s][-1])) for s in SIZE.seeds]
                shown = points[COLOUR[rival]][place]
                if any(ours is None for ours, _ in pairs):
                    assert np.isnan(shown)
                else:
                    np.testing.assert_allclose(shown, np.exp(np.mean([np.log(b / a) for a, b in pairs])), rtol=1e-6)
                levels = [epochs_at_levels(part["rvi", s], part[rival, s]) for s in SIZE.seeds]
                at_levels = {to_hex(c.lines[0].get_color()): c.lines[0].get_ydata() for c in equal.containers}[COLOUR[rival]][place]
                np.testing.assert_allclose(at_levels, np.exp(np.mean([np.log(b / a) for a, b in levels])), rtol=1e-6)
    rows = pd.read_csv(smoke / "figS6_acceleration" / "figS6_acceleration.csv")
    assert len(rows) == 4 * len(found["grid"]) // 3
    assert set(found["grid"]) < set(read_figure(FOLDER / "fig02_convergence.ipynb", dict(profile="smoke")).grid)


def test_figS7(smoke, drawn):
    found = drawn("figS7_likelihood")
    axes = iter(panels(found["fig"], 9))  # MNIST is the only one at smoke
    for metric in ("train_loss", "test_loss", "imputation_loss"):
        for rate in (0.1, 0.5, 0.9):
            ax = next(axes)
            swept(smoke, found, "variance", CANDIDATES, metric, ax, rate=rate)
            marks = [(to_hex(c.get_facecolor()[0]), c.get_offsets()[0][0]) for c in ax.collections if c.get_offset_transform() == ax.get_xaxis_transform()]
            assert [m for m in marks if len(m)][:3] == [(COLOUR[m], choose_variance(m, "mnist", "mcar", rate)) for m in PAPER]
    assert found["region"].shape == (6 * 3, 6) and set(found["region"].to_numpy().ravel()) <= {"holds", "contradicted", "inconclusive"}


def test_figS8(smoke, drawn):
    found = drawn("figS8_readings")
    (ax,) = panels(found["fig"], 1)
    counts = found["counts"]
    assert set(found["asked"]) == set(counts.reading) == {r.name for r in READINGS} and counts.claim.nunique() == 12
    assert [t.get_text() for t in ax.get_yticklabels()] == list(dict.fromkeys(counts.claim))
    for reading, rows in counts.groupby("reading"):
        tested = reading_claims(stored(smoke, found["asked"][reading]))
        for row in rows.itertuples():
            outcomes = [c.outcome for c in tested[row.claim].cells]
            assert (row.holds, row.contradicted, row.n) == (outcomes.count("holds"), outcomes.count("contradicted"), len(outcomes)) and row.n
    texts = [t.get_text() for t in ax.texts]
    assert len(texts) == len(counts) and all(text.startswith(f"{row.holds}/{row.n}") for text, row in zip(texts, counts.itertuples(), strict=True))
    assert {dict(c.where)["reading"] for claim in found["claims"] for c in claim.cells} == set(counts.reading)


@pytest.mark.parametrize("name", ["figS2_latent_size", "figS5_missing_shift", "figS7_likelihood"])
def test_csv_of_a_sweep_has_a_row_for_each_run(name, smoke):
    grid = read_figure(FOLDER / f"{name}.ipynb", dict(profile="smoke")).grid
    rows = pd.read_csv(smoke / name / f"{name}.csv", keep_default_na=False)
    key = lambda r, hidden: (r.model, hidden, int(r.latent), float(r.variance), float(r.rate), float(r.test_rate or r.rate), int(r.seed))
    want = {key(r, "+".join(map(str, r.hidden))) for r in grid}
    assert len(rows) == len(grid) == len(want) and {key(r, str(r.hidden)) for r in rows.itertuples()} == want
    column = lambda v: sorted(f"{float(x):.8g}" for x in v)
    assert column(rows.imputation_loss) == column(stored(smoke, grid).imputation_loss)


# --- what two figures share is computed once --------------------------------------------------------------------------


def test_no_run_is_computed_twice(smoke):
    times = pd.read_sql("select times from runs", Store(smoke / "runs.sqlite").db).times
    assert len(times) and (times == 1).all()


def test_figS9(drawn):
    found = drawn("figS9_general")
    frame, tasks = found["frame"], found["tasks"]
    assert list(tasks) == ["conv_mnist", "levels", "shapes", "matrix"]  # smoke has no Fashion-MNIST
    for ax, (curve, task) in zip(panels(found["fig"], 8), [(c, t) for c in ("train_curve", "test_curve") for t in tasks], strict=True):
        shown = by_colour(ax)
        assert ax.get_yscale() == "log" and shown.keys() == {COLOUR[m] for m in tasks[task].models}
        for m in tasks[task].models:
            same(shown[COLOUR[m]], mean_curve(frame[(frame.task == task) & (frame.model == m)], curve))
    assert [len(c.cells) for c in found["claims"]] == [4, 4, 3, 3, 4]
