"""The likelihood variance that nobody asked for is the one that held-out cells chose."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rvi_nb.model.choices import CANDIDATES, LOSSES, choose_variance, held_out_losses, least_mean, least_regret, winners
from rvi_nb.model.likelihood import VARIANCE
from rvi_nb.model.models import PAPER
from rvi_nb.report.figures import find_figures, read_figure
from rvi_nb.report.profiles import PROFILES, main_runs
from rvi_nb.runs.compute import compute, group_data
from rvi_nb.runs.run import Run
from rvi_nb.runs.schedule import ensure

sys.path.append(str(Path(__file__).parent.parent / "bench"))
import variances

FIGURES = Path(__file__).parent.parent / "nbs" / "figures"
SMALL = Run(dataset="toy", n_train=200, epochs=2, held_out=0.2)


def lowest() -> dict:
    "The winner of each whole cell, straight from the file."
    cells: dict = {}
    with LOSSES.open(newline="") as file:
        for row in csv.DictReader(file):
            cell = (row["model"], row["dataset"], row["pattern"], float(row["rate"]))
            cells.setdefault(cell, {}).setdefault(float(row["variance"]), []).append(float(row["held_out_loss"]))
    mean = lambda values: sum(values) / len(values)
    return {cell: min(at, key=lambda v: mean(at[v])) for cell, at in cells.items() if len(at) == len(CANDIDATES)}


def test_every_run_has_its_cells_winner():
    assert lowest() and dict(winners()) == lowest()
    for (model, dataset, pattern, rate), best in lowest().items():
        assert Run(model, dataset, rate, pattern=pattern).variance == best
        assert replace(Run(), model=model, dataset=dataset, pattern=pattern, rate=rate).variance == best  # replaced one after the other or at once


def test_every_run_of_the_figures_has_the_winner_of_the_nearest_rate():
    best_of = lowest()
    for run in main_runs(PROFILES["paper"], (0.0, 0.33, 0.5, 0.9)):
        near = {rate: best for (*cell, rate), best in best_of.items() if tuple(cell) == (run.model, run.dataset, "mcar")}
        want = near[min(near, key=lambda r: (round(abs(r - run.rate), 9), r))] if near else VARIANCE
        assert run.variance == want


def test_a_variance_that_was_asked_for_stays():
    assert replace(Run(variance=0.3), dataset="toy", rate=0.9).variance == 0.3


def test_unknown_models_and_datasets_take_the_usual_value(tmp_path):
    empty = tmp_path / "variances.csv"
    empty.write_text(LOSSES.read_text().splitlines()[0] + "\n")
    assert choose_variance("rvi", "mnist", path=empty) == least_mean("mnist", PAPER, empty) == least_regret(["mnist"], PAPER, empty) == VARIANCE
    assert choose_variance("no such model", "mnist") == choose_variance("rvi", "no such data", "boxes", 10) == VARIANCE


def test_the_file_has_known_candidates_and_seeds_apart_from_the_figures():
    with LOSSES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {float(r["variance"]) for r in rows} <= set(CANDIDATES) and not {int(r["seed"]) for r in rows} & set(range(100))
    assert len({tuple(list(r.values())[:6]) for r in rows}) == len(rows)
    known = {(*c[:3], float(c.rate)) for c in variances.cells()}
    assert {tuple(c) for c in held_out_losses()} <= known


@pytest.mark.parametrize("path", find_figures([], FIGURES), ids=lambda p: p.stem)
def test_every_run_of_a_figure_has_a_cell_of_its_own(path):
    asked = {(r.model, r.dataset, r.pattern, r.rate) for r in read_figure(path, {"profile": "paper"}).grid}
    assert asked <= {tuple(c) for c in held_out_losses()}


def test_the_cells_to_compute_are_all_rates_and_boxes_of_the_papers_models():
    cells = variances.cells()
    assert len(set(cells)) == len(cells)
    for model in PAPER:
        for dataset in ("toy", "mosi", "mnist", "fashion_mnist"):
            assert {c.rate for c in cells if c[:3] == (model, dataset, "mcar")} == {round(r / 10, 1) for r in range(10)}
        assert {(c.dataset, c.rate) for c in cells if c.model == model and c.pattern == "boxes"} == {
            (d, k) for d in ("mnist", "fashion_mnist") for k in (10, 20)
        }
    assert {(r.n_train, r.epochs, r.held_out, r.lr, r.hidden) for r in variances.runs(cells[0])} == {(5000, 250, 0.1, 1e-3, (64, 64))}


def test_the_table_is_written_from_the_store_and_gone_on_with(tmp_path, monkeypatch):
    cell = variances.Cell("vae", "toy", "mcar", 0.5)
    monkeypatch.setattr(variances, "cells", lambda: [cell])
    monkeypatch.setattr(variances, "runs", lambda c: [replace(SMALL, model=c.model, variance=v, seed=1000) for v in CANDIDATES])
    monkeypatch.setattr(sys, "argv", ["variances", "--store", str(tmp_path / "a" / "runs.sqlite"), "--table", str(tmp_path / "table.csv")])
    variances.main()
    first = (tmp_path / "table.csv").read_bytes()
    losses = ensure(variances.runs(cell), tmp_path / "a" / "runs.sqlite", 0, progress=False).held_out_loss
    assert choose_variance(*cell, path=tmp_path / "table.csv") == CANDIDATES[int(losses.argmin())]
    monkeypatch.setattr("rvi_nb.runs.schedule.compute", None)  # nothing is computed again
    variances.main()
    (tmp_path / "a" / "runs.sqlite").unlink()  # nor is the store needed for it
    variances.main()
    assert (tmp_path / "table.csv").read_bytes() == first
    other = variances.Cell("vad", "toy", "mcar", 0.5)
    monkeypatch.undo()
    monkeypatch.setattr(variances, "cells", lambda: [other, cell])
    monkeypatch.setattr(variances, "runs", lambda c: [replace(SMALL, model=c.model, variance=v, seed=1000) for v in CANDIDATES])
    monkeypatch.setattr(sys, "argv", ["variances", "--store", str(tmp_path / "b.sqlite"), "--table", str(tmp_path / "table.csv")])
    variances.main()
    table = (tmp_path / "table.csv").read_bytes()
    assert table.startswith(first) and table.count(b"\n") == 13  # what was there stays


@pytest.mark.parametrize("model", PAPER)
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_held_out_cells_have_no_influence_on_training(model, rate, monkeypatch):
    run = replace(SMALL, model=model, rate=rate)
    data = group_data([run])
    held = data.held_out.mask
    assert not (held & data.train.mask).any() and 0.15 < held.sum() / (held | data.train.mask).sum() < 0.25
    before = compute([run])[0]

    def spoilt(runs):
        x = data.train.x.clone()
        x[held[0]] += 5.0
        return replace(data, train=replace(data.train, x=x), held_out=replace(data.held_out, x=x))

    monkeypatch.setattr("rvi_nb.runs.compute.group_data", spoilt)
    after = compute([run])[0]
    assert after["train_loss"] == before["train_loss"] and after["held_out_loss"] > before["held_out_loss"] + 10
    assert torch.equal(torch.tensor(after["train_curve"]), torch.tensor(before["train_curve"]))


def test_a_run_without_has_no_held_out_loss():
    assert "held_out_loss" not in compute([replace(SMALL, held_out=0.0)])[0]
