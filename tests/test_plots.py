"""Figures: the right colours, nothing left behind, the same bytes every time."""

import subprocess
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from rvi_nb.report import pictures, plots, saving, style


def runs(models=("rvi", "vae", "vad"), rates=(0.1, 0.5), seeds=3, epochs=8):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            dict(
                model=m,
                dataset="toy",
                rate=r,
                groups=(25, 50),
                seed=s,
                test_loss=rng.random(),
                train_curve=rng.random(epochs).astype("float32") + 0.1,
                test_curve=None,
            )
            for m in models
            for r in rates
            for s in range(seeds)
        ]
    )


@pytest.fixture(autouse=True)
def nothing_left_behind():
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    plt.close("all")


def drawn(ax):
    return [line for line in ax.lines if len(line.get_xdata())]


def texts(fig):
    return [t.get_text() for t in fig.legends[0].get_texts()]


@given(st.permutations(["rvi", "vae", "vad", "another", "rvi_cluster"]), st.integers(1, 5))
def test_a_model_always_looks_the_same(names, n):
    look = style.looks("model", names[:n])
    for name in {"rvi", "vae", "vad"} & set(names[:n]):
        assert look[name] == {**style.model_looks()[name], "label": name.upper()}
    assert len({to_hex(v["color"]) for v in look.values()}) == n
    order = [m for m in style.model_looks() if m in names[:n]]
    assert list(look)[: len(order)] == order


def test_ordered_settings_get_ordered_colours():
    look = style.looks("posterior_lr", [1e-5, 1e-2, 1e-3])
    assert list(look) == [1e-5, 1e-3, 1e-2] and [v["label"] for v in look.values()] == ["1e-5", "0.001", "0.01"]
    brightness = [sum(v["color"][:3]) for v in style.looks("ratio", np.linspace(0.1, 0.9, 9)).values()]
    assert brightness == sorted(brightness, reverse=True)
    assert [v["label"] for v in style.looks("groups", [(25, 50), [25]]).values()] == ["25", "25+50"]


@given(st.lists(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6), min_size=1, max_size=5))
@settings(deadline=None)
def test_spread_matches_numpy(curves):
    table = plots.spread([np.array(c, "float32") for c in curves])
    for e, row in table.iterrows():
        here = [c[e] for c in curves if len(c) > e]
        assert row.n == row.runs == len(here)
        np.testing.assert_allclose([row["mean"], row["median"]], [np.mean(here), np.median(here)], atol=1e-6)
        np.testing.assert_allclose(row["std"], np.std(here, ddof=1) if len(here) > 1 else 0, atol=1e-6)


def test_spread_of_nothing_and_of_diverged_runs():
    assert len(plots.spread([])) == len(plots.spread([None, None, np.nan])) == 0
    table = plots.spread([np.array([1.0, np.nan]), np.array([3.0, np.inf]), None])
    assert table.n.tolist() == [2, 0] and table.runs.tolist() == [2, 2] and np.isnan(table["mean"][1])


def test_curves_draw_means_and_bands():
    fig, axes = style.grid()
    ax, frame = axes[0, 0], runs()
    plots.curves(ax, frame, median=True)
    lines = drawn(ax)
    assert len(lines) == 6 and len(ax.collections) == 3
    assert [to_hex(line.get_color()) for line in lines[::2]] == [style.model_looks()[m]["color"] for m in ("rvi", "vad", "vae")]
    mean = np.mean(np.stack(frame[frame.model == "rvi"].train_curve), axis=0)
    np.testing.assert_allclose(lines[0].get_ydata(), mean, rtol=1e-6)
    style.legend(fig)
    assert texts(fig) == ["RVI", "VAE", "VAD", "median"]


@pytest.mark.parametrize("log", [False, True])
def test_curves_of_every_state(log):
    frame = runs()
    frame["train_curve"] = [c[:4] if i % 3 == 0 else None if i % 3 == 1 else np.full(8, np.nan, "float32") for i, c in enumerate(frame.train_curve)]
    fig, axes = style.grid(1, 3)
    plots.curves(axes[0, 0], frame, log=log)
    plots.curves(axes[0, 1], frame, "test_curve", log=log)
    plots.curves(axes[0, 2], frame.iloc[:0], log=log)
    assert any("diverged" in t.get_text() for t in axes[0, 0].texts) and not axes[0, 1].texts
    style.legend(fig)
    fig.canvas.draw()


def test_zoom_and_dashes():
    frame = pd.concat([runs(["rvi", "vad"]).assign(posterior_lr=lr) for lr in (1e-2, 1e-3)])
    fig, axes = style.grid()
    plots.curves(axes[0, 0], frame, hue="posterior_lr", dashes="model", first=5, log=True)
    lines = drawn(axes[0, 0])
    assert [line.get_linestyle() for line in lines] == ["-", ":", "-", ":"] and min(lines[0].get_xdata()) == 5
    style.legend(fig)
    assert texts(fig) == ["posterior learning rate", "0.001", "0.01", "model", "RVI", "VAD"]


def test_against():
    frame = runs()
    frame.loc[0, "test_loss"] = np.nan
    fig, axes = style.grid(1, 2)
    plots.against(axes[0, 0], frame)
    plots.against(axes[0, 1], frame, x="groups")
    assert [t.get_text() for t in axes[0, 0].texts] == ["RVI: 1 of 6 diverged"]
    assert axes[0, 0].get_xlabel() == "missing rate" and len(axes[0, 0].containers) == 3
    fig.canvas.draw()
    assert [t.get_text() for t in axes[0, 1].get_xticklabels()] == ["25+50"]
    with pytest.raises(ValueError, match="no column 'size'"):
        plots.against(axes[0, 0], frame, x="size")


def test_empty_panels_keep_the_ticks_of_others():
    fig, axes = style.grid(2, 2, ["a", "b"], ["mnist", "mosi"], sharex=True, sharey=True)
    for ax in axes[:, 0]:
        plots.curves(ax, runs())
    for ax in axes[:, 1]:
        style.unavailable(ax, "CMU-MOSI not available here")
    style.outer(axes)
    style.legend(fig)
    fig.canvas.draw()
    assert any(t.get_text() for t in axes[1, 0].get_xticklabels()) and axes[0, 1].get_title() == "CMU-MOSI"
    assert [ax.get_xlabel() for ax in axes[:, 0]] == ["", "epoch"]


def test_text_lies_inside_and_the_legend_outside():
    fig, axes = style.grid(2, 3, ["rate 0.1", "rate 0.5"], ["mnist", "fashion_mnist", "toy"])
    for ax in axes.flat:
        plots.curves(ax, runs())
    style.outer(axes)
    style.legend(fig)
    fig.canvas.draw()
    box = fig.legends[0].get_window_extent()
    assert not any(box.overlaps(ax.get_window_extent()) for ax in axes.flat)
    for ax in axes.flat:
        inside = ax.get_tightbbox()
        assert inside.x0 >= -1 and inside.y0 >= -1 and inside.x1 <= fig.bbox.x1 + 1 and inside.y1 <= fig.bbox.y1 + 1


def test_a_long_legend_stands_at_the_right_in_the_saved_picture(tmp_path):
    frame = pd.concat([runs(["rvi", "vad"]).assign(posterior_lr=lr) for lr in (1e-2, 5e-3, 1e-3, 1e-4)])
    fig, axes = style.grid(1, 2)
    for ax in axes.flat:
        plots.curves(ax, frame, hue="posterior_lr", dashes="model")
    style.legend(fig)
    saving.save(fig, tmp_path, "a")
    fig.set_dpi(saving.DPI)
    fig.canvas.draw()
    box = fig.legends[0].get_window_extent()
    assert box.x0 > axes[0, 1].get_window_extent().x1 and box.x1 <= fig.bbox.x1


def test_images_and_holes():
    x = np.random.default_rng(0).random((2, 12))
    mask = x > 0.5
    picture = pictures.with_holes(x[0], (3, 4), mask[0])
    hole = np.array([int(pictures.HOLE[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert np.allclose(picture[~mask[0].reshape(3, 4)], hole) and np.allclose(picture[mask[0].reshape(3, 4)][:, 0], x[0][mask[0]])
    fig = pictures.images([x, x, x * 3 - 1], ["a", "b", "c"], (3, 4), errors=[0.1234, None, 0], masks=[mask, None, None])
    labels = [ax.get_xlabel() for ax in fig.axes if ax.get_xlabel()]
    assert labels == ["(a)\n0.123", "(b)", "(c)\n0.000"]
    with pytest.raises(ValueError, match=r"lengths \[2, 1\]"):
        pictures.images([x, x[:1]], ["a", "b"], (3, 4))


MAKE = """
import hashlib, sys, matplotlib
matplotlib.use("Agg")
sys.path.insert(0, sys.argv[2])
from test_plots import plots, runs, saving, style
fig, axes = style.grid(1, 2, ["row"], ["mnist", "toy"])
plots.curves(axes[0, 0], runs(), median=True); plots.against(axes[0, 1], runs()); style.legend(fig)
for p in saving.save(fig, sys.argv[1], "a"): print(hashlib.sha256(p.read_bytes()).hexdigest())
"""


def test_the_same_bytes_in_another_process(tmp_path):
    here = str(__import__("pathlib").Path(__file__).parent)
    made = [subprocess.run([sys.executable, "-c", MAKE, str(tmp_path / str(i)), here], capture_output=True, text=True, check=True).stdout for i in range(2)]
    assert made[0] == made[1] and len(made[0].split()) == 2


def test_save_closes_and_leaves_no_scraps(tmp_path):
    fig, axes = style.grid()
    plots.curves(axes[0, 0], runs())
    paths = saving.save(fig, tmp_path / "new", "fig")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["fig.png", "fig.svg"] == sorted(p.name for p in paths)
    assert not plt.fignum_exists(fig.number) and b"<dc:date>" not in paths[1].read_bytes()
    assert saving.save(fig, tmp_path, "again")[0].read_bytes() == paths[0].read_bytes()


def test_numbers(tmp_path):
    frame = runs()
    frame.loc[2, "test_loss"] = np.nan
    once = saving.save_numbers(frame, tmp_path, "n").read_bytes()
    assert once == saving.save_numbers(frame.sample(frac=1, random_state=1), tmp_path, "n").read_bytes()
    back = pd.read_csv(tmp_path / "n.csv")
    assert list(back) == ["model", "dataset", "rate", "groups", "seed", "test_loss"] and back.groups[0] == "25+50"
    assert back.test_loss.isna().sum() == 1 and b"\r" not in once
    np.testing.assert_allclose(np.sort(back.test_loss), np.sort(frame.test_loss), rtol=1e-7)
    long = pd.read_csv(saving.save_numbers(frame, tmp_path, "long", curves="long"))
    assert len(long) == len(frame) * 8 and list(long)[-3:] == ["epoch", "train_curve", "test_curve"]
    saving.save_numbers(plots.summary(frame, "train_curve", ["model"]), tmp_path, "s")
    assert len(pd.read_csv(tmp_path / "s.csv")) == 24
    with pytest.raises(ValueError, match="got 'wide'"):
        saving.save_numbers(frame, tmp_path, "n", curves="wide")
    assert saving.save_numbers(frame.iloc[:0], tmp_path, "empty").read_text().startswith("model,")


def test_import_changes_no_settings():
    code = "import matplotlib as m; m.use('Agg'); a = dict(m.rcParams); import rvi_nb.report.pictures, matplotlib.pyplot as p; assert dict(m.rcParams) == a and not p.get_fignums()"
    subprocess.run([sys.executable, "-c", code], check=True)
