"""Rows in a file that is mapped into memory: what an epoch of `RelayVI` takes in time and memory, from 10,000 rows to a million.

    python bench/rows.py             writes bench/rows.csv and prints it
    python bench/rows.py --quick     up to 100,000 rows

Each size is measured in a process of its own. `rows_mb` is what the rows' own numbers and their momentum need, which is proportional to the rows;
`epoch_mb` is what an epoch takes beyond that, file pages not counted: the system gives those back when it needs them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from rvi_nb import Gaussian, Relay, RelayVI, stack
from rvi_nb.base.files import write_atomically
from rvi_nb.base.random import generator
from rvi_nb.model.own import row_batches

HERE = Path(__file__).parent
D, LATENT, GROUPS, BATCH = 50, 8, (8, 16), 1024
SIZES = 10_000, 100_000, 300_000, 1_000_000


def private_mb() -> float:
    "Memory of this process that is not a file's."
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def write_rows(path: Path, n: int) -> np.memmap:
    "A table of rank 5 with noise, a third of it NaN, written in parts."
    file, weight = np.memmap(path, np.float32, "w+", shape=(n, D)), torch.randn(5, D, generator=generator(0, "weight"))
    for k, part in enumerate(np.array_split(np.arange(n), max(1, n // 50_000))):
        g = generator(k, "rows")
        x = torch.randn(len(part), 5, generator=g) @ weight + 0.3 * torch.randn(len(part), D, generator=g)
        file[part[0] : part[-1] + 1] = torch.where(torch.rand(x.shape, generator=g) < 1 / 3, torch.nan, x)
    file.flush()
    return np.memmap(path, np.float32, "r", shape=(n, D))


def epoch(vi: RelayVI, optimizers, file: np.memmap, order: torch.Generator) -> tuple[float, float]:
    "The loss per row of an epoch, and the most memory seen in it."
    total, most = 0.0, 0.0
    for step, batch in enumerate(row_batches(file, order, BATCH)):
        loss = -vi.elbo(*batch).sum()
        loss.backward()
        for opt in optimizers:
            opt.step()
            opt.zero_grad()
        total += loss.item()
        most = max(most, private_mb()) if step % 20 == 0 else most
    return total / len(file), most


def measure(n: int) -> dict[str, float]:
    "Time and memory of an epoch over n rows, after a first one over few that compiles and allocates what every size needs."
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = write_rows(Path(folder) / "rows.f32", n)
        make = lambda n: RelayVI(stack(lambda: nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, D))), Gaussian(0.1), n, Relay(LATENT, GROUPS))
        few = make(5 * BATCH)
        epoch(few, few.optimizers(), file[: 5 * BATCH], generator(0))
        vi = make(n)
        optimizers, order = vi.optimizers(), generator(0, "shuffle")
        before, start = private_mb(), time.perf_counter()
        loss, most = epoch(vi, optimizers, file, order)
        seconds = time.perf_counter() - start
    table = vi.rows
    rows_mb = sum(t.numel() * t.element_size() for t in (table.anchors, table.directions, table.widths, table.last)) / 2**20
    return dict(rows=n, file_mb=n * D * 4 / 2**20, rows_mb=rows_mb, epoch_mb=most - before, seconds=seconds, microseconds_per_row=1e6 * seconds / n, loss=loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 100,000 rows")
    parser.add_argument("--only", type=int, help="one size, as JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only)))
        return
    found = []
    for n in SIZES[:2] if options.quick else SIZES:
        done = subprocess.run([sys.executable, __file__, "--only", str(n)], capture_output=True, text=True, check=True, env=os.environ)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    table = pd.DataFrame(found)
    write_atomically(HERE / "rows.csv", table.to_csv(index=False, float_format="%.4g").encode())
    print(table.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
