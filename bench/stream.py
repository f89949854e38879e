"""What does a large table cost? Seconds and peak memory of `rvi impute` on a table of 20 columns, a third of it missing, as text and as Parquet.

    python bench/stream.py [--rows 100000] [--jobs 2] [--out bench/stream.csv]

The command runs in a process of its own, at its defaults; `peak_mib` is the largest resident set of any of its processes, so all together need at most jobs + 1 times as much.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import pandas as pd

from rvi_nb.base.files import write_atomically

PART = 100_000  # rows that are made at a time


def made(rows: int, first: int) -> pd.DataFrame:
    "Sixteen numbers, two whole numbers and two categories that depend on four hidden numbers."
    rng = np.random.default_rng([0, first])
    loadings = np.random.default_rng(1).standard_normal((4, 20))
    x = np.sin(rng.standard_normal((rows, 4)) @ loadings) * 3 + 0.3 * rng.standard_normal((rows, 20))
    frame = pd.DataFrame(x.round(4), columns=[f"c{j}" for j in range(20)])
    frame["c16"], frame["c17"] = np.rint(10 * x[:, 16]), np.rint(x[:, 17])
    frame["c18"], frame["c19"] = np.where(x[:, 18] > 0, "yes", "no"), np.array(["red", "green", "blue"])[np.digitize(x[:, 19], [-1, 1])]
    return frame.mask(rng.random(frame.shape) < 1 / 3)


def write(path: Path, rows: int) -> None:
    "A table of so many rows, never all of them in memory."
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = (made(min(PART, rows - first), first) for first in range(0, rows, PART))
    if path.suffix == ".csv":
        for k, part in enumerate(parts):
            part.to_csv(path, mode="a", header=not k, index=False)
        return
    tables = (pa.Table.from_pandas(part, preserve_index=False) for part in parts)
    first = next(tables)
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in (first, *tables):
            writer.write_table(table)


@click.command()
@click.option("--rows", multiple=True, type=int, default=(100_000,))
@click.option("--form", "forms", multiple=True, type=click.Choice(["csv", "parquet"]), default=("csv", "parquet"))
@click.option("--jobs", default=2, show_default=True)
@click.option("--out", default=Path(__file__).with_name("stream.csv"), type=click.Path(path_type=Path))
def main(rows: tuple[int, ...], forms: tuple[str, ...], jobs: int, out: Path) -> None:
    "Measure every size and form, and put them beside those measured before."
    spent = 0.0
    measured = pd.read_csv(out).to_dict("records") if out.exists() else []
    for n in rows:
        for form in forms:
            with tempfile.TemporaryDirectory() as folder:
                source, target = (Path(folder, f"{name}.{form}") for name in ("in", "out"))
                write(source, n)
                code = "import sys; from rvi_nb.cli.command import main; main(sys.argv[1:], standalone_mode=False)"
                start = time.perf_counter()
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                subprocess.run([sys.executable, "-c", code, "impute", str(source), str(target), "--jobs", str(jobs)], check=True, env=environment)
                seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
                processor, spent, peak = used.ru_utime + used.ru_stime - spent, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
                record = {"rows": n, "form": form, "jobs": jobs, "seconds": round(seconds), "processor_seconds": round(processor), "peak_mib": round(peak)}
                measured = [m for m in measured if (m["rows"], m["form"], m["jobs"]) != (n, form, jobs)] + [record]
                click.echo(record)
                write_atomically(out, pd.DataFrame(measured).sort_values(["rows", "form"]).to_csv(index=False).encode())


if __name__ == "__main__":
    main()
