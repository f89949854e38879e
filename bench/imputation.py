"""How well do imputers fill holes whose content is known? One row of imputation.csv per data set, rate, mask and method.

Four data sets of scikit-learn, values hidden completely at random at four rates, five masks each. Every column is brought
to mean 0 and standard deviation 1 before anything is hidden; the error is the mean square over the hidden cells.
All methods see the same holes and fill the table they were fitted on. Time is that of the processor, on one thread: it does
not depend on what else the machine is doing.

    python bench/imputation.py [--method NAME]... [--data NAME]... [--out bench/imputation.csv]

What the file has already is not computed again, so an interrupted run goes on where it was. Methods whose packages are
not installed (the HyperImpute plug-ins) are left out.
"""

import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from table import extend

DATA = {"wine": load_wine, "diabetes": load_diabetes, "breast_cancer": load_breast_cancer, "digits": load_digits}
RATES = (0.1, 0.3, 0.5, 0.7)
MASKS = range(1, 6)  # mask 0 was looked at while the defaults were chosen
FIELDS = ("data", "rate", "mask", "method", "mse", "coverage", "seconds")


def table(name: str) -> np.ndarray:
    "A data set with standardised columns."
    x = DATA[name]().data.astype(np.float64)
    std = x.std(0)
    return (x - x.mean(0)) / np.where(std > 0, std, 1)


def holes(x: np.ndarray, rate: float, mask: int) -> np.ndarray:
    "True where a value is hidden."
    return np.random.default_rng([mask, int(100 * rate), *x.shape]).random(x.shape) < rate


def relay(posterior: str):
    "One of the three models, with the defaults of the library."

    def make(mask: int):
        from rvi_nb import RelayImputer

        return RelayImputer(posterior=posterior, random_state=mask)

    return make


def plugin(name: str):
    "A HyperImpute plug-in behind scikit-learn's interface."

    def make(mask: int):
        from hyperimpute.plugins.imputers import Imputers

        return Imputers().get(name, random_state=mask)

    return make


def forest(mask: int) -> IterativeImputer:
    "MissForest's idea in scikit-learn's words."
    trees = RandomForestRegressor(n_estimators=20, max_features=0.33, min_samples_leaf=2, random_state=mask)
    return IterativeImputer(trees, max_iter=5, keep_empty_features=True, random_state=mask)


METHODS = {
    "mean": lambda mask: SimpleImputer(keep_empty_features=True),
    "KNN": lambda mask: KNNImputer(keep_empty_features=True),
    "Iterative": lambda mask: IterativeImputer(keep_empty_features=True, random_state=mask),
    "VAE": relay("amortised"),
    "VAD": relay("meanfield"),
    "RVI": relay("relay"),
    "MIWAE": plugin("miwae"),
    "GAIN": plugin("gain"),
    "Forest": forest,
}


def measure(name: str, rate: float, mask: int, method: str) -> dict:
    "One row of the table."
    x = table(name)
    hidden = holes(x, rate, mask)
    seen = np.where(hidden, np.nan, x)
    imputer = METHODS[method](mask)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        filled = np.asarray(imputer.fit_transform(seen))
    seconds = time.process_time() - start
    coverage = ""
    if method == "RVI":
        low, high = np.quantile(imputer.impute(seen, n_draws=100), [0.05, 0.95], axis=0)
        coverage = f"{((low <= x) & (x <= high))[hidden].mean():.4f}"
    mse = np.square(filled - x)[hidden].mean()
    return dict(zip(FIELDS, (name, rate, mask, method, f"{mse:.5f}", coverage, f"{seconds:.3f}"), strict=True))


@click.command()
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)), help="Only these methods.")
@click.option("--data", "names", multiple=True, type=click.Choice(list(DATA)), help="Only these data sets.")
@click.option("--out", default=Path(__file__).with_name("imputation.csv"), type=click.Path(path_type=Path))
def main(methods: tuple[str, ...], names: tuple[str, ...], out: Path) -> None:
    "Measure what is not in the table yet."
    cells = [(name, rate, mask, method) for method in methods or METHODS for mask in MASKS for name in names or DATA for rate in RATES]
    extend(out, FIELDS, cells, measure, ImportError)


if __name__ == "__main__":
    main()
