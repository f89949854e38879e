"""Other readings of the paper: each changes what it says, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rvi_nb.base.random import generator
from rvi_nb.model.decoder import decoder
from rvi_nb.model.fit import fit
from rvi_nb.model.likelihood import Gaussian
from rvi_nb.model.missing import incomplete, mcar
from rvi_nb.model.models import PAPER
from rvi_nb.model.posterior import MeanField
from rvi_nb.model.variants import Loose
from rvi_nb.report.profiles import PROFILES
from rvi_nb.runs.compute import build, compute, group_data
from rvi_nb.runs.run import Run
from rvi_nb.studies.readings import READINGS, reading_runs

SMALL = Run(dataset="toy", n_train=300, n_test=40, epochs=3)
BY_NAME = {r.name: r for r in READINGS}


@pytest.mark.parametrize("model", PAPER)
@pytest.mark.parametrize("name", [r.name for r in READINGS[1:]])
def test_a_reading_changes_the_numbers_of_the_runs_it_concerns(name, model):
    run = replace(SMALL, model=model, variance=0.05)
    other = BY_NAME[name].change(run)
    spared = (model == "vae" and name in ("coefficients from 0.1", "row-sparse Adam", "lower rate at test")) or (model, name) == (
        "vad",
        "coefficients from 0.1",
    )
    assert (other.key == run.key) == spared
    if not spared:
        a, b = compute([run])[0], compute([other])[0]
        column = "test_loss" if name == "lower rate at test" else "train_loss"
        assert a[column] != b[column] and np.isfinite(b["test_loss"])
        if name == "lower rate at test":
            assert a["train_loss"] == b["train_loss"]


def test_scale_is_that_of_the_data():
    assert group_data([SMALL]).train.x.min() >= 0
    standard = group_data([replace(SMALL, scale="standard")])
    assert standard.train.x.min() < -1 and standard.test.x.min() < -1 and standard.train.x.mean().abs() < 0.1


def test_the_start_is_that_of_the_coefficients_alone():
    small, large = (build([replace(SMALL, start=s)], 300)[0][0].start(50) for s in (0.01, 0.1))
    torch.testing.assert_close(large[..., :175], 10 * small[..., :175])
    assert torch.equal(large[..., 175:], small[..., 175:])


def test_no_kl_and_fixed_variance_reach_the_posterior():
    posterior = build([replace(SMALL, kl=False, log_variance=-4.0)], 300)[0][0]
    assert isinstance(posterior, Loose) and not isinstance(build([SMALL], 300)[0][0], Loose)
    q = posterior(posterior.start(5))
    assert torch.allclose(q.scale, torch.tensor(-2.0).exp()) and (posterior.divergence(q, q.mean) == 0).all()


def test_rows_that_do_not_coast_stay_until_they_are_visited():
    gen = generator(0)
    data = incomplete(torch.rand(64, 6, generator=gen), mcar((64, 6), 0.2, gen))
    learned = {coast: fit(MeanField(3), decoder(6, (8,), 3), data, 4, Gaussian(0.1), lr=1e-2, batch_size=8, coast=coast).local for coast in (True, False)}
    moved = {coast: (local - MeanField(3).start(64)).abs().sum() for coast, local in learned.items()}
    assert moved[False] < 0.5 * moved[True]  # a visit in eight steps, and no way in between


def test_the_main_reading_is_the_main_figures_own():
    asked = reading_runs(PROFILES["paper"])
    assert all(a.key == b.key for a, b in zip(asked["standardised tables"], asked["main"], strict=True) if a.dataset in ("mnist", "fashion_mnist"))
    assert {r.rate for r in asked["main"]} == {0.5, 0.9} and {r.dataset for r in asked["toy through tanh"]} == {
        "toy_tanh",
        "mnist",
        "fashion_mnist",
        "mosi",
    }
    assert {r.variance for r in asked["unit variance"]} == {1.0} and len({r.variance for r in asked["one variance for all"]}) == 1
    assert all(len({r.variance for r in asked["one variance per dataset"] if r.dataset == d}) == 1 for d in PROFILES["paper"].datasets)
