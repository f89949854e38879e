"""How many runs of one shape are best computed side by side? Milliseconds per run, with everything that a group costs, from 1 to 16 runs.

    python bench/groups.py           extends bench/groups.csv by what it does not have yet

One process on one thread, as a worker is. Sizes are interleaved, and the shorter of two repeats counts. Runs are short, so what is paid once per group weighs
more here than in a figure: groups may look better than they are, never worse.
"""

import time
from pathlib import Path

import torch
from table import extend

from rvi_nb.data.sources import DataError
from rvi_nb.model.models import MODELS, PAPER
from rvi_nb.runs.compute import compute
from rvi_nb.runs.run import Run

SIZES, REPEATS = (1, 2, 4, 8, 16), 2
FIELDS = ("model", "dataset", *(f"ms_per_run_{size}" for size in SIZES))
SHORT = {"mnist": dict(n_train=2000, n_test=300, epochs=10), "toy": dict(n_train=1000, n_test=100, epochs=20)}


def milliseconds(model: str, dataset: str, size: int) -> float:
    "Of each of `size` runs."
    settings = SHORT[dataset] | ({} if model in PAPER else {"epochs": 2})
    runs = [Run(model=model, dataset=dataset, seed=s, **settings) for s in range(size)]
    began = time.perf_counter()
    compute(runs)
    return 1e3 * (time.perf_counter() - began) / size


def measure(model: str, dataset: str) -> dict:
    "A row of the table."
    milliseconds(model, dataset, 1)  # its loops are compiled and its data read
    seen = [[milliseconds(model, dataset, size) for size in SIZES] for _ in range(REPEATS)]
    return dict(zip(FIELDS, [model, dataset, *(round(min(times)) for times in zip(*seen, strict=True))], strict=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    extend(Path(__file__).with_suffix(".csv"), FIELDS, [(model, dataset) for model in MODELS for dataset in SHORT], measure, DataError)
