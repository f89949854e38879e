"""Do the draws of RelayImputer obey Rubin's rules? One row of rubin.csv per mechanism, repeat and method.

Three normal columns with correlation 0.5 and a fourth, y = x1 + x2 + x3 + noise, 300 rows. Holes completely at random (MCAR, three cells in ten), or
in x2 and y where x1 is large (MAR, about two in five). Ten draws complete the table; the coefficient of x2 in the regression of y on all others (truth: 1), and
the mean of y (truth: 0), are pooled by Rubin's rules. Noted are the estimates, and whether the intervals of level 0.9 contain the truth.

    python bench/rubin.py [--method NAME]... [--repeats N] [--out bench/rubin.csv]

What the file has already is not computed again, so an interrupted run goes on where it was.
"""

import os
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer
from table import extend

from rvi_nb import RelayImputer, pool

MECHANISMS, DRAWS, ROWS = ("MAR", "MCAR"), 10, 300
TRUTH = np.array([1.0, 0.0])
FIELDS = ("mechanism", "repeat", "method", "coefficient", "coefficient_inside", "coefficient_half", "mean", "mean_inside", "mean_half")


def tables(mechanism: str, repeat: int, n: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    "x1, x2, x3 and y, complete and with holes."
    rng = np.random.default_rng([repeat, 18])
    x = rng.multivariate_normal(np.zeros(3), 0.5 + 0.5 * np.eye(3), n)
    full = np.column_stack([x, x.sum(1) + rng.normal(size=n)])
    if mechanism == "MCAR":
        return full, np.where(rng.random(full.shape) < 0.3, np.nan, full)
    chance = 1 / (1 + np.exp(0.6 - 1.2 * x[:, :1]))
    return full, np.where((rng.random(full.shape) < chance) & [False, True, False, True], np.nan, full)


def analyse(complete: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    "Coefficient of x2 and mean of y, and their squared standard errors."
    y, terms = complete[:, 3], np.column_stack([np.ones(len(complete)), complete[:, :3]])
    beta = np.linalg.lstsq(terms, y)[0]
    variance = np.square(y - terms @ beta).sum() / (len(y) - 4) * np.linalg.inv(terms.T @ terms)[2, 2]
    return np.array([beta[2], y.mean()]), np.array([variance, y.var(ddof=1) / len(y)])


def relay(seen: np.ndarray, repeat: int) -> np.ndarray:
    "Draws of RelayImputer, with the defaults of the library."
    return RelayImputer(random_state=repeat).fit(seen).impute(seen, n_draws=DRAWS)


def chained(seen: np.ndarray, repeat: int) -> list[np.ndarray]:
    "Draws of scikit-learn's IterativeImputer."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return [IterativeImputer(sample_posterior=True, random_state=1000 * repeat + i).fit_transform(seen) for i in range(DRAWS)]


METHODS = {"RVI": relay, "Iterative": chained}


def measure(mechanism: str, repeat: int, method: str) -> dict:
    "One row of the table."
    _, seen = tables(mechanism, repeat)
    pooled = pool(*zip(*map(analyse, METHODS[method](seen, repeat)), strict=True), degrees=ROWS - 4)
    low, high = pooled.interval(0.9)
    inside, half = (low <= TRUTH) & (high >= TRUTH), (high - low) / 2
    cells = [f(v) for j in range(2) for f, v in ((lambda e: f"{e:.4f}", pooled.estimate[j]), (int, inside[j]), (lambda h: f"{h:.4f}", half[j]))]
    return dict(zip(FIELDS, (mechanism, repeat, method, *cells), strict=True))


@click.command()
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)), help="Only these methods.")
@click.option("--repeats", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--first", default=0, show_default=True, help="Number of the first repeat.")
@click.option("--out", default=Path(__file__).with_name("rubin.csv"), type=click.Path(path_type=Path))
def main(methods: tuple[str, ...], repeats: int, first: int, out: Path) -> None:
    "Measure what is not in the table yet."
    cells = [(mechanism, repeat, method) for repeat in range(first, repeats) for method in methods or METHODS for mechanism in MECHANISMS]
    extend(out, FIELDS, cells, measure, ImportError)


if __name__ == "__main__":
    main()
