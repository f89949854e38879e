"""How long does RelayImputer take, and how far off is it, beside its own past and its peers? One row of imputer_times.csv per table, mask and method.

The tables are the numbers of the 28 that tables.py reports on (at most 300 rows of each), those of imputation.py, and one of 5,000 x 20. Wine and diabetes were looked at when defaults were chosen, the others were not. Times are of the processor, on one thread, with
everything compiled beforehand, and the methods take turns on every table, so that what else the machine does meets all of them alike. The error is
the mean square over the hidden cells, in standard deviations.

    python bench/imputer_times.py [--before PATH] [--method NAME]... [--out bench/imputer_times.csv]

The 28 need the packages of requirements-peers.txt; without these they are left out. `--before` is a checkout of an earlier version, that before kinds of columns for example: `git worktree add PATH e2a81c7`. Without it that method is left
out. What the file has already is not computed again. In the end, ratios to the version before: geometric means over tables.
"""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
import pandas as pd
from imputation import DATA, holes
from imputation import table as real
from table import extend
from tables import REPORTED, load

FIELDS = ("table", "rate", "mask", "method", "mse", "fit_seconds", "transform_ms_per_row")
TABLES = (
    ("wine", 0.3),
    ("diabetes", 0.3),
    ("breast_cancer", 0.3),
    ("curved", 0.3),
    ("breast_cancer", 0.5),
    ("digits", 0.5),
    *((name, 0.3) for name in REPORTED),
)
METHODS = ("before", "now", "KNN", "BayesianRidge", "ExtraTrees")
MASKS = (1,)


def table(name: str, n: int = 5000, d: int = 20) -> np.ndarray:
    "A data set with standardised columns."
    if name in DATA:
        return real(name)
    if name in REPORTED:
        x = load(name).select_dtypes("float64").to_numpy()
        return (x - x.mean(0)) / x.std(0)
    rng = np.random.default_rng(5)
    z = rng.standard_normal((n, 5))
    x = np.tanh(z @ rng.standard_normal((5, d))) + 0.15 * (z @ rng.standard_normal((5, d))) ** 2 + 0.3 * rng.standard_normal((n, d))
    return (x - x.mean(0)) / x.std(0)


def imputer(method: str, mask: int):
    "One of the methods with its defaults."
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, KNNImputer

    if method in ("before", "now"):
        from rvi_nb import RelayImputer

        RelayImputer(max_epochs=1, variance=0.1, inference_steps=1).fit_transform(np.random.default_rng(0).standard_normal((300, 5)))  # compiles
        return RelayImputer(random_state=mask)
    if method == "KNN":
        return KNNImputer(keep_empty_features=True)
    model = ExtraTreesRegressor(n_estimators=20, min_samples_leaf=2, random_state=mask) if method == "ExtraTrees" else None
    return IterativeImputer(model, max_iter=10 if model is None else 5, keep_empty_features=True, random_state=mask)


def one(name: str, rate: float, mask: int, method: str) -> str:
    "Error and times, measured in this process."
    x = table(name)
    hidden = holes(x, rate, mask)
    seen, model = np.where(hidden, np.nan, x), imputer(method, mask)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(seen)
        middle = time.process_time()
        filled = model.transform(seen)
    end = time.process_time()
    return f"{np.square(filled - x)[hidden].mean():.5f} {middle - start:.2f} {1000 * (end - middle) / len(x):.3f}"


def available(name: str) -> bool:
    "Whether the package that carries a table is installed."
    try:
        return len(table(name)) > 0
    except ImportError:
        return False


def ratios(out: Path, names: set[str]) -> pd.Series:
    "What now is of what was before: geometric means over tables and masks."
    both = (
        pd.read_csv(out).query("table in @names").assign(total=lambda t: t.fit_seconds + t.transform_ms_per_row * t.table.map(lambda n: len(table(n))) / 1000)
    )
    wide = both[both.method.isin(("before", "now"))].pivot(index=["table", "rate", "mask"], columns="method")
    ratio = {k: wide[k]["now"] / wide[k]["before"] for k in ("mse", "total", "transform_ms_per_row")}
    return np.exp(np.log(pd.DataFrame(ratio).dropna()).mean()).round(3)


@click.command()
@click.option("--before", type=click.Path(path_type=Path, exists=True, file_okay=False), help="A checkout of an earlier version.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), help="Only these methods.")
@click.option("--only", "cell", nargs=4, hidden=True)
@click.option("--out", default=Path(__file__).with_name("imputer_times.csv"), type=click.Path(path_type=Path))
def main(before: Path | None, methods: tuple[str, ...], cell: tuple | None, out: Path) -> None:
    "Measure what is not in the table yet."
    if cell:
        click.echo(one(cell[0], float(cell[1]), int(cell[2]), cell[3]))
        return

    def measure(*cell: object) -> dict:
        "One row of the table, from a process of its own."
        root = before if cell[-1] == "before" else Path(__file__).parent.parent
        command = [sys.executable, __file__, "--only", *map(str, cell)]
        text = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)}).stdout
        return dict(zip(FIELDS, (*cell, *text.split()), strict=True))

    wanted = [m for m in methods or METHODS if before or m != "before"]
    names = {name for name, _ in TABLES if available(name)}
    if absent := sorted({name for name, _ in TABLES} - names):
        click.echo(f"left out, as their packages are not installed: {', '.join(absent)}")
    extend(out, FIELDS, [(name, rate, mask, method) for mask in MASKS for name, rate in TABLES if name in names for method in wanted], measure, ImportError)
    click.echo(f"now, of what was before: {ratios(out, names).to_dict()}")


if __name__ == "__main__":
    main()
