"""A table of measurements that grows by a row at a time, so that an interrupted run goes on where it was."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

import click


def extend(
    out: Path,  # the CSV file
    fields: tuple[str, ...],  # its columns; the first ones say what was measured
    cells: Iterable[tuple],  # the values of these first columns, a tuple for each row that is wanted
    measure: Callable[..., dict],  # from a cell to its row
    unavailable: type[Exception],  # what `measure` raises when data or a package are not to be had: the cell is left out
) -> None:
    "Measure what the table does not have yet."
    if not out.exists():
        out.write_text(",".join(fields) + "\n")
    with out.open(newline="") as f:
        done = [tuple(row.values()) for row in csv.DictReader(f)]
    reasons = set()
    for cell in cells:
        if any(row[: len(cell)] == tuple(map(str, cell)) for row in done):
            continue
        try:
            row = measure(*cell)
        except unavailable as e:
            if str(e) not in reasons:
                click.echo(f"{cell}, and what is like it, left out: {e}")
            reasons.add(str(e))
            continue
        with out.open("a", newline="") as f:
            csv.DictWriter(f, fields, lineterminator="\n").writerow(row)
        click.echo(" ".join(map(str, row.values())))
