"""What a step of an optimiser over a large table takes: dense, fused and sparse Adam of PyTorch, and `RowAdam`, interleaved.

    python bench/row_adam.py            writes bench/row_adam.csv and prints it
    python bench/row_adam.py --quick    fewer repeats, up to 100,000 rows

A step looks up 256 rows of 64 numbers, computes a gradient and moves the table. Each measurement is the best of several repeats: the machine's noise only ever adds.
"""

import argparse
import time
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from rvi_nb import RowAdam, RowTable
from rvi_nb.base.files import write_atomically
from rvi_nb.base.random import generator

HERE = Path(__file__).parent
SIZES, WIDTH, BATCH = (10_000, 100_000, 1_000_000), 64, 256


def embedding(n: int, sparse: bool) -> nn.Embedding:
    return nn.Embedding(n, WIDTH, sparse=sparse, _weight=torch.zeros(n, WIDTH))


def contenders(n: int) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
    "Tables with their optimisers."
    dense, fused, sparse, rows = embedding(n, False), embedding(n, False), embedding(n, True), RowTable(torch.zeros(n, WIDTH))
    return {
        "Adam": (dense, torch.optim.Adam(dense.parameters())),
        "Adam, fused": (fused, torch.optim.Adam(fused.parameters(), fused=True)),
        "SparseAdam": (sparse, torch.optim.SparseAdam(sparse.parameters())),
        "RowAdam": (rows, RowAdam(rows)),
    }


def seconds(table: nn.Module, adam: torch.optim.Optimizer, steps: int, n: int, seed: int) -> tuple[float, float]:
    "Of looking up, gradient and step together, and of the step alone, in the mean over so many."
    batches = torch.randint(n, (steps, BATCH), generator=generator(seed, "batches"))
    start, alone = time.perf_counter(), 0.0
    for rows in batches:
        (table(rows) - 1).square().sum().backward()
        began = time.perf_counter()
        adam.step()
        alone += time.perf_counter() - began
        adam.zero_grad()
    return (time.perf_counter() - start) / steps, alone / steps


def measure(n: int, repeats: int) -> list[dict]:
    "The best mean over some steps, all optimisers taking turns."
    sides = contenders(n)
    steps = {name: 200 if name in ("SparseAdam", "RowAdam") else max(1, 200_000 // n) for name in sides}
    best = dict.fromkeys(sides, (float("inf"), float("inf")))
    for repeat in range(repeats):
        for name, (table, adam) in sides.items():
            whole, alone = seconds(table, adam, steps[name], n, repeat)
            best[name] = min(best[name][0], whole), min(best[name][1], alone)
    return [dict(rows=n, optimiser=name, microseconds=1e6 * whole, step_microseconds=1e6 * alone) for name, (whole, alone) in best.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats, up to 100,000 rows")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    table = pd.DataFrame([row for n in (SIZES[:2] if quick else SIZES) for row in measure(n, 3 if quick else 5)])
    write_atomically(HERE / "row_adam.csv", table.to_csv(index=False, float_format="%.4g").encode())
    for title, column in (("look up, gradient and step", "microseconds"), ("the step alone", "step_microseconds")):
        print(f"{title}, microseconds\n{table.pivot(index='rows', columns='optimiser', values=column).round(0).to_string()}")


if __name__ == "__main__":
    main()
