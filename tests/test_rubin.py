"""Draws that obey Rubin's rules: a short version of bench/rubin.py, and the rules themselves."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rvi_nb import RelayImputer, pool

sys.path.append(str(Path(__file__).parent.parent / "bench"))
from rubin import ROWS, analyse, table


def test_a_regression_on_draws_finds_the_coefficient():
    torch.set_num_threads(1)
    estimates, inside = [], []
    for repeat in range(3):
        seen = table("MAR", repeat)
        draws = RelayImputer(variance=0.1, n_models=4, max_epochs=80, random_state=repeat).fit(seen).impute(seen, n_draws=8)
        assert (draws == draws[0])[:, ~np.isnan(seen)].all()
        pooled = pool(*zip(*map(analyse, draws), strict=True), degrees=ROWS - 4)
        low, high = pooled.interval(0.9)
        estimates.append(pooled.estimate)
        inside.append((low <= [1, 0]) & (high >= [1, 0]))
    coefficient, mean = np.mean(estimates, 0)
    assert abs(coefficient - 1) < 0.15 and abs(mean) < 0.25  # noise added to each cell by itself: 0.74, and -0.2 more
    assert np.mean(inside) >= 0.5


def test_two_columns_that_are_missing_together_keep_their_correlation():
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(3), [[1, 0.5, 0.5], [0.5, 1, 0.9], [0.5, 0.9, 1]], 400)
    seen = x.copy()
    seen[:150, 1:] = np.nan  # both at once
    draws = RelayImputer(variance=0.1, n_models=4, max_epochs=60).fit(seen).impute(seen, n_draws=10)
    assert np.mean([np.corrcoef(d[:150, 1], d[:150, 2])[0, 1] for d in draws]) > 0.75


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
