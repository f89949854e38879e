"""Chooses the likelihood variance of every model, dataset, pattern and missing rate by held-out cells of training rows.

    python bench/variances.py [--store FILE] [--table FILE] [--models rvi,vad,vae] [--jobs N]

Goes on where it was stopped: what the table has is not computed again. The table is part of the package and is written after every few settings, which are
computed together; the store keeps the runs of those that are not finished.
"""

import argparse
import csv
import io
import sys
from collections import Counter
from pathlib import Path

import pandas as pd

from rvi_nb.base.files import write_atomically
from rvi_nb.model.choices import CANDIDATES, LOSSES, Cell
from rvi_nb.model.models import MODELS, PAPER
from rvi_nb.runs.run import Run, product
from rvi_nb.runs.schedule import ensure
from rvi_nb.runs.store import Store

ROOT = Path(__file__).parent.parent
SEEDS = (1000,)  # apart from those of the figures, 0 to 9
RATES = (0.5, 0.9, 0.1, 0.0, 0.3, 0.7, 0.2, 0.4, 0.6, 0.8)  # those that decide most come first
TOGETHER = 6  # settings that are computed at a time: runs of one shape are then trained side by side, and no core waits for another
COLUMNS = ("model", "dataset", "pattern", "rate", "variance", "seed", "held_out_loss", "train_loss")


def cells() -> list[Cell]:
    "What is to be chosen for, in the order of computing: the paper's models first, then those of Figures S4 and S1."
    images, tables = ("mnist", "fashion_mnist"), ("toy", "mosi")
    order = [Cell(m, d, "mcar", r) for r in RATES[:4] for d in (*tables, *images) for m in PAPER]
    order += [Cell(m, d, "boxes", k) for k in (10, 20) for d in images for m in PAPER]
    order += [Cell(m, "toy_tanh", "mcar", r) for r in RATES[:3] for m in PAPER]
    order += [Cell(m, d, "mcar", r) for r in RATES[4:] for d in (*tables, *images) for m in PAPER]
    order += [Cell("mixture", d, "mcar", 0.5) for d in (*images, *tables)]
    return order + [Cell(m, d, "mcar", r) for r in (0.5, 0.9) for m in ("ladder", "dgd", "refined", "semi") for d in images]


def runs(cell: Cell) -> list[Run]:
    "The candidates of one cell."
    base = Run(**cell._asdict(), n_train=5000, epochs=250, held_out=0.1)
    return product(base, variance=CANDIDATES, seed=SEEDS)


def name(cell: Cell) -> tuple[str, ...]:
    "As a line of the table begins."
    return cell.model, cell.dataset, cell.pattern, f"{cell.rate:.6g}"


def read(path: Path) -> list[list[str]]:
    "The lines of a table that is there already."
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [[row[c] for c in COLUMNS] for row in csv.DictReader(file)]


def lines(frame: pd.DataFrame) -> list[list[str]]:
    "Results as lines of the table."
    text = lambda value: f"{value:.6g}" if isinstance(value, float) else str(value)
    return [[text(row[c]) for c in COLUMNS] for row in frame.dropna(subset=["held_out_loss"]).to_dict("records")]


def write(rows: list[list[str]], path: Path) -> None:
    "The table, whole or not at all."
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    write_atomically(path, text.getvalue().encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=ROOT / "reports" / "variances" / "runs.sqlite")
    parser.add_argument("--table", type=Path, default=LOSSES)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--jobs", type=int, default=0, help="worker processes; 0: none but this one")
    given = parser.parse_args()
    wanted = [c for c in cells() if c.model in given.models.split(",")]
    given.store.parent.mkdir(parents=True, exist_ok=True)
    store = Store(given.store)
    there = Counter(tuple(row[:4]) for row in read(given.table))
    left = [c for c in wanted if there[name(c)] < len(CANDIDATES) * len(SEEDS)]
    print(
        f"{len(wanted)} settings, {len(wanted) - len(left)} of them in {given.table}; {len(left) * len(CANDIDATES) * len(SEEDS)} runs to go",
        file=sys.stderr,
        flush=True,
    )
    for first in range(0, len(left), TOGETHER):
        some = left[first : first + TOGETHER]
        frame = ensure([run for cell in some for run in runs(cell)], store, given.jobs)
        others = [row for row in read(given.table) if tuple(row[:4]) not in map(name, some)]
        write(others + lines(frame), given.table)
        print(f"{first + len(some)} of {len(left)}: {some[-1]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
