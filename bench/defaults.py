"""What do the defaults of RelayImputer rest on? One row of defaults.csv per table, rate and variant.

The tables are none of those that imputation.py reports on: iris, two made ones, and some rows of MNIST at 8 x 8 pixels.
Every variant changes one default. What the file has already is not computed again.

    python bench/defaults.py [--out bench/defaults.csv]
"""

import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
from sklearn.datasets import load_iris
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from table import extend

from rvi_nb import RelayImputer
from rvi_nb.data.datasets import load
from rvi_nb.data.sources import DataError

FIELDS = ("table", "rate", "variant", "mse", "seconds")
CELLS = (("iris", 0.3), ("factors", 0.5), ("curved", 0.5), ("mnist", 0.5))
VARIANTS = {
    "defaults": {},
    "n_models=1": {"n_models": 1},
    **{f"variance={v}": {"variance": v} for v in (0.01, 0.1, 1.0)},
    "posterior_lr=0.003": {"posterior_lr": 0.003},
    "groups=(25, 50, 100)": {"groups": (25, 50, 100)},
    **{f"posterior={p}": {"posterior": p} for p in ("meanfield", "amortised")},
    "latent=8": {"latent": 8},
    "hidden=(128, 128)": {"hidden": (128, 128)},
    "patience=10": {"patience": 10},
}


def table(name: str) -> np.ndarray:
    "Standardised values."
    rng = np.random.default_rng(5)
    if name == "iris":
        x = load_iris().data
    if name == "factors":
        x = rng.standard_normal((200, 4)) @ rng.standard_normal((4, 10)) + rng.standard_normal((200, 10))
    if name == "curved":
        z = rng.standard_normal((300, 3))
        x = np.tanh(z @ rng.standard_normal((3, 12))) + 0.15 * (z @ rng.standard_normal((3, 12))) ** 2 + 0.3 * rng.standard_normal((300, 12))
    if name == "mnist":
        x = load("mnist").train[:300].reshape(-1, 28, 28)[:, 2:26, 2:26].reshape(-1, 8, 3, 8, 3).mean((2, 4)).reshape(-1, 64).numpy()
    x = x[:, x.std(0) > 0].astype(np.float64)
    return (x - x.mean(0)) / x.std(0)


def measure(name: str, rate: float, variant: str) -> dict:
    "One row of the table."
    x = table(name)
    hidden = np.random.default_rng(77).random(x.shape) < rate
    others = {"KNNImputer": KNNImputer(keep_empty_features=True), "IterativeImputer": IterativeImputer(keep_empty_features=True, random_state=0)}
    imputer = others[variant] if variant in others else RelayImputer(**VARIANTS[variant])
    start = time.process_time()
    filled = imputer.fit_transform(np.where(hidden, np.nan, x))
    seconds = time.process_time() - start
    return dict(zip(FIELDS, (name, rate, variant, f"{np.square(filled - x)[hidden].mean():.5f}", f"{seconds:.3f}"), strict=True))


@click.command()
@click.option("--out", default=Path(__file__).with_name("defaults.csv"), type=click.Path(path_type=Path))
def main(out: Path) -> None:
    "Measure what is not in the table yet."
    cells = [(name, rate, variant) for name, rate in CELLS for variant in ("KNNImputer", "IterativeImputer", *VARIANTS)]
    extend(out, FIELDS, cells, measure, DataError)


if __name__ == "__main__":
    main()
