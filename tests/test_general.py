"""What figure S9 computes: exact distances, paired seeds, results that are kept, datasets that are not there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rvi_nb.base.random import generator
from rvi_nb.base.tensors import save_tensors
from rvi_nb.data.sources import DataError
from rvi_nb.report.profiles import get_profile
from rvi_nb.studies import general
from rvi_nb.studies.general import TASKS, Task, general_results, matrix, outlines, shapes, solve

SIZE = get_profile("smoke").smaller


def counting(monkeypatch) -> list:
    "A task that counts how often it is solved."
    calls = []

    def once(model, n_train, n_test, epochs, seeds):
        calls.extend((model, s) for s in seeds)
        return {
            k: np.full((len(seeds), epochs) if k.endswith("curve") else len(seeds), 0.1 + 0.2)
            for k in ("train_curve", "test_curve", "train_loss", "test_loss", "hidden_loss")
        }

    monkeypatch.setitem(TASKS, "counting", Task("counting", once, models=("rvi",)))
    return calls


def test_results_are_kept_and_exact(tmp_path, monkeypatch):
    calls = counting(monkeypatch)
    first, second = (solve("counting", "rvi", 0, SIZE, tmp_path) for _ in range(2))
    assert calls == [("rvi", 0)] and first["train_loss"] == second["train_loss"] == 0.1 + 0.2
    assert first["train_curve"].tolist() == second["train_curve"].tolist() == [0.1 + 0.2] * SIZE.epochs


def test_a_kill_loses_the_part_it_hits(tmp_path, monkeypatch):
    calls = counting(monkeypatch)
    monkeypatch.setitem(TASKS, "counting", replace(TASKS["counting"], models=("rvi", "vad")))
    with monkeypatch.context() as patch:
        patch.setattr(general, "save_tensors", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt) if len(calls) == 3 else save_tensors(*args))
        with pytest.raises(KeyboardInterrupt):
            general_results(SIZE, tmp_path, ["counting"])
    assert calls == [("rvi", 0), ("rvi", 1), ("vad", 0)]
    frame = general_results(SIZE, tmp_path, ["counting"])
    assert calls[3:] == [("vad", 0), ("vad", 1)] and len(frame) == 4


def test_another_size_and_another_algorithm_are_computed_again(tmp_path, monkeypatch):
    calls = counting(monkeypatch)
    solve("counting", "rvi", 0, SIZE, tmp_path)
    solve("counting", "rvi", 0, get_profile("quick").smaller, tmp_path)
    monkeypatch.setattr(general, "ALGORITHM", general.ALGORITHM + 1)
    solve("counting", "rvi", 0, SIZE, tmp_path)
    assert len(calls) == 3


def test_a_damaged_file_is_computed_again(tmp_path, monkeypatch):
    calls = counting(monkeypatch)
    solve("counting", "rvi", 0, SIZE, tmp_path)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:50])
    assert solve("counting", "rvi", 0, SIZE, tmp_path)["train_loss"] == 0.1 + 0.2 and len(calls) == 2


def test_what_is_not_available_is_said_and_the_rest_runs(tmp_path, monkeypatch):
    def none(*_):
        raise DataError("no images")

    monkeypatch.setattr(general, "load", none)
    frame = general_results(SIZE, tmp_path)
    assert frame.attrs["unavailable"] == {"mnist": "no images"} and set(frame.task) == {"shapes", "matrix"}
    assert frame.groupby("task").model.unique().map(list).to_dict() == {"matrix": ["rvi", "vad", "vae"], "shapes": ["rvi", "vad"]}
    assert all(len(c) == SIZE.epochs and (c > 0).all() for c in [*frame.train_curve, *frame.test_curve]) and frame.seed.nunique() == SIZE.n_seeds


def test_no_images_at_all_is_an_empty_frame(tmp_path, monkeypatch):
    monkeypatch.setattr(general, "load", lambda *_: (_ for _ in ()).throw(DataError("no images")))
    frame = general_results(SIZE, tmp_path, ["conv_mnist"])
    assert frame.empty and "hidden_loss" in frame


def test_a_seed_has_the_same_result_in_any_company():
    alone, together = (outlines("rvi", 30, 5, 3, seeds) for seeds in ((1,), (0, 1)))
    for name, value in alone.items():
        np.testing.assert_array_equal(value[0], together[name][1])
    alone, together = (TASKS["matrix"].solve("rvi", 40, 20, 3, seeds) for seeds in ((1,), (0, 1)))
    for name, value in alone.items():
        np.testing.assert_array_equal(value[0], together[name][1])
    (a, _), (b, _) = matrix(20, 5, (1,)), matrix(20, 5, (0, 1))
    assert torch.equal(a.x[a.index[0]], b.x[b.index[1]]) and torch.equal(a.mask[0], b.mask[1])


def test_distances_are_negative_inside_and_grow_by_no_more_than_the_way():
    side = torch.linspace(-1, 1, 41)
    plane = torch.cartesian_prod(side, side)
    _, d = shapes(200, 0, generator(0), plane)
    inside = (d < 0).float().mean(1)
    assert (inside > 0.01).all() and (inside < 0.8).all()
    steps = d.view(200, 41, 41).diff(dim=1).abs()
    assert (steps.median() / 0.05).item() < 1.01


@pytest.mark.parametrize("task", TASKS)
def test_free_vectors_stand_in_every_task(task):
    assert TASKS[task].models[:2] == ("rvi", "vad") and TASKS[task].label
