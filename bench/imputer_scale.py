"""Does RelayImputer scale? Seconds per row and epoch of learning, per row of filling, and peak memory, against the number of rows.

    python bench/imputer_scale.py [--rows 100000] [--out bench/imputer_scale.csv]

Each size is run in a process of its own, with 50 columns, 30% holes and a few epochs; everything else is at its default.
"""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click

FIELDS = ("rows", "columns", "epochs", "fit_us_per_row_epoch", "transform_us_per_row", "peak_mib")
COLUMNS, EPOCHS = 50, 2


def measure(rows: int) -> None:
    "Print one row of the table."
    import resource

    import numpy as np

    from rvi_nb import RelayImputer

    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 5)) @ rng.standard_normal((5, COLUMNS)) + rng.standard_normal((rows, COLUMNS))
    x[rng.random(x.shape) < 0.3] = np.nan
    RelayImputer(max_epochs=1, variance=0.1, inference_steps=1).fit_transform(x[:300])  # compiles
    ends = []
    start = time.process_time()
    imputer = RelayImputer(max_rows=None, max_epochs=EPOCHS, variance=0.3, batch_size=256, callbacks=[lambda *_: ends.append(time.process_time())]).fit(x)
    begin = time.process_time()
    filled = imputer.transform(x)
    end = time.process_time()
    assert np.isfinite(filled).all() and (filled == x)[~np.isnan(x)].all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(rows, COLUMNS, EPOCHS, f"{1e6 * (ends[-1] - start) / EPOCHS / rows:.1f}", f"{1e6 * (end - begin) / rows:.0f}", f"{peak:.0f}", sep=",")


@click.command()
@click.option("--rows", multiple=True, type=int, default=(5_000, 20_000, 100_000))
@click.option("--one", type=int, hidden=True)
@click.option("--out", default=Path(__file__).with_name("imputer_scale.csv"), type=click.Path(path_type=Path))
def main(rows: tuple[int, ...], one: int | None, out: Path) -> None:
    "Measure every size."
    if one:
        measure(one)
        return
    lines = [FIELDS]
    for n in rows:
        text = subprocess.run([sys.executable, __file__, "--one", str(n)], check=True, capture_output=True, text=True).stdout
        lines.append(text.strip().split(","))
        click.echo(text.strip())
    with out.open("w", newline="") as f:
        csv.writer(f, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
