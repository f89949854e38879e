"""Draws that obey Rubin's rules: a short version of bench/rubin.py, and the rules themselves."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rvi_nb import RelayImputer, pool
from rvi_nb.impute.stopping import hold_out

sys.path.append(str(Path(__file__).parent.parent / "bench"))
from rubin import ROWS, analyse, tables


def test_a_regression_on_draws_finds_the_coefficient():
    torch.set_num_threads(1)
    estimates, inside = [], []
    for repeat in range(3):
        full, seen = tables("MAR", repeat)
        draws = RelayImputer(variance=0.1, n_models=4, max_epochs=80, random_state=repeat).fit(seen).impute(seen, n_draws=8)
        assert (draws == draws[0])[:, ~np.isnan(seen)].all()
        pooled = pool(*zip(*map(analyse, draws), strict=True), degrees=ROWS - 4)
        low, high = pooled.interval(0.9)
        estimates.append(pooled.estimate - analyse(full)[0])  # what the holes have changed
        inside.append((low <= [1, 0]) & (high >= [1, 0]))
    coefficient, mean = np.mean(estimates, 0)
    assert abs(coefficient) < 0.15 and abs(mean) < 0.15  # noise added to each cell by itself: -0.26, and -0.2 more
    assert np.mean(inside) >= 0.5


def test_two_columns_that_are_missing_together_keep_their_correlation():
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(3), [[1, 0.5, 0.5], [0.5, 1, 0.9], [0.5, 0.9, 1]], 400)
    seen = x.copy()
    seen[:150, 1:] = np.nan  # both at once
    draws = RelayImputer(variance=0.1, n_models=4, max_epochs=60).fit(seen).impute(seen, n_draws=10)
    assert np.mean([np.corrcoef(d[:150, 1], d[:150, 2])[0, 1] for d in draws]) > 0.75


def test_draws_have_the_exact_means_variances_and_covariance():
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    covariance = np.array([[1, 0.7, 0.5, 0.3], [0.7, 1, 0.8, 0.3], [0.5, 0.8, 1, 0.2], [0.3, 0.3, 0.2, 1]])
    x = rng.multivariate_normal(np.zeros(4), covariance, 600)
    holes = rng.random(x.shape) < 0.1
    holes[:200, 1:3], holes[:200, [0, 3]] = True, False  # two holes, given two cells
    draws = RelayImputer(variance=0.1, max_epochs=60).fit(np.where(holes, np.nan, x)).impute(np.where(holes, np.nan, x), n_draws=32)
    gone, kept = [1, 2], [0, 3]
    slopes = np.linalg.solve(covariance[np.ix_(kept, kept)], covariance[np.ix_(kept, gone)])  # (2, 2)
    exact = covariance[np.ix_(gone, gone)] - covariance[np.ix_(gone, kept)] @ slopes
    cells, mean = draws[:, :200][..., gone], x[:200][:, kept] @ slopes  # (32, 200, 2), (200, 2)
    np.testing.assert_allclose(np.linalg.lstsq(x[:200][:, kept], cells.mean(0))[0], slopes, atol=0.12)
    np.testing.assert_allclose(np.cov((cells - cells.mean(0)).reshape(-1, 2).T), exact, atol=0.12)
    np.testing.assert_allclose(np.cov((cells - mean).reshape(-1, 2).T), exact, atol=0.12)


def test_models_hide_different_cells():
    seen = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) < 0.7
    _, held = hold_out(seen, 0.1, range(8))
    assert held.sum(0).max() == 1 and held.any(0).sum() > 0.75 * seen.sum()  # by lot: 57% of the cells, some of them four times


@pytest.mark.parametrize(
    ("estimates", "variances", "words"),
    [([1.0], [1.0], "at least two"), ([1.0, 2.0], [1.0], "of one shape"), ([1.0, 2.0], [1.0, -1.0], "must not be negative")],
)
def test_pool_explains_what_is_wrong(estimates, variances, words):
    with pytest.raises(ValueError, match=words):
        pool(estimates, variances)


def test_pool_by_barnard_and_rubin():
    q, u, m, degrees = np.array([0.9, 1.2, 1.05, 1.3]), np.array([0.04, 0.05, 0.045, 0.041]), 4, 46
    total = u.mean() + (1 + 1 / m) * q.var(ddof=1)
    share = (1 + 1 / m) * q.var(ddof=1) / total
    old, observed = (m - 1) / share**2, (degrees + 1) / (degrees + 3) * degrees * (1 - share)
    pooled = pool(q, u, degrees=degrees)
    np.testing.assert_allclose([pooled.estimate, pooled.variance, pooled.degrees], [q.mean(), total, 1 / (1 / old + 1 / observed)])
