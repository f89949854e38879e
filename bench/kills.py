"""Kill a reproduction at random, resume it, and see that nothing was lost and nothing was computed twice.

    python bench/kills.py [KILLS] [--seed SEED] [--folder FOLDER]

Driver, a worker or notebook, or the process that these are copies of get SIGKILL at random moments of `rvi reproduce` with two figures. Whenever a reproduction was finished in spite of it, its tables must be those of an
undisturbed one, bit for bit, every run must have been finished once, no temporary file may be left, and another begins.
Needs Linux.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIGURES = ("fig02", "figA1")


def command(out: Path) -> list[str]:
    return [str(Path(sys.executable).with_name("rvi")), "reproduce", *FIGURES, "--profile", "smoke", "--out", str(out), "--jobs", "2"]


def start(out: Path) -> subprocess.Popen:
    out.mkdir(parents=True, exist_ok=True)
    with open(out.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(command(out), stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def family(driver: int) -> dict[str, list[int]]:
    "The processes of a reproduction, by what they are."
    parents, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            lines[int(folder.name)] = (folder / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
    found, below = {"driver": [driver], "copy": [], "original": []}, {driver}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    for pid in below - {driver}:
        if b"forkserver" in lines[pid]:
            found["copy" if b"forkserver" in lines.get(parents[pid], b"") else "original"].append(pid)
    return {kind: pids for kind, pids in found.items() if pids}


def tables(out: Path) -> dict[str, bytes]:
    "Of the two figures."
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*.csv")) if p.name.startswith(FIGURES)}


def finished(out: Path) -> dict[str, tuple]:
    "Every finished run of the store, as it stands there."
    if not (out / "runs.sqlite").exists():
        return {}
    with sqlite3.connect(out / "runs.sqlite", timeout=60) as db:
        return {key: rest for key, *rest in db.execute("select key, checksum, times, record from runs where status = 'done'")}


def complete(out: Path) -> bool:
    "Whether the report has all runs that its figures ask for."
    progress = json.loads((out / "manifest.json").read_text())["progress"]
    states = [state for name, state in progress.items() if name.startswith(FIGURES)]
    return len(states) == len(FIGURES) and all(done == asked for done, asked in states)


def temporary(out: Path) -> list[str]:
    return [str(p) for p in out.rglob("*") if p.name.endswith((".part", "-journal", ".tmp"))]


def kill_and_resume(folder: Path, kills: int, reference: Path | None = None, took: float = 0, seed: int = 0, say=print) -> dict[str, int]:
    "Do what this script is about; how often which kind of process was killed, and in how many reproductions."
    moments, counts, rounds = random.Random(seed), dict.fromkeys(("driver", "copy", "original"), 0), 0
    if reference is None:  # an undisturbed reproduction, and how long it took
        began, reference = time.time(), folder / "undisturbed"
        if start(reference).wait():
            raise RuntimeError(f"the undisturbed reproduction failed: {reference.with_suffix('.log').read_text()[-2000:]}")
        took = time.time() - began
    while sum(counts.values()) < kills:
        rounds += 1
        out, code = folder / f"round{rounds}", None
        while code != 0:
            before, disturbed = finished(out), False
            process = start(out)
            while sum(counts.values()) < kills and process.poll() is None:
                try:
                    process.wait(timeout=moments.uniform(0.05, 0.7) * took)
                except subprocess.TimeoutExpired:
                    people = family(process.pid)
                    kind = moments.choice(sorted(people))
                    try:
                        os.kill(moments.choice(people[kind]), signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    counts[kind], disturbed = counts[kind] + 1, True
            code = process.wait()
            lost = [key for key, row in before.items() if finished(out).get(key) != row]
            assert not lost, f"finished runs were lost or changed: {lost}"
            assert code == 0 or disturbed, f"failed although nobody disturbed it: {out.with_suffix('.log').read_text()[-2000:]}"
        assert tables(out) == tables(reference), f"tables of {out} differ from those of {reference}"
        assert {times for _, times, _ in finished(out).values()} == {1}, f"a run of {out} was computed twice"
        assert finished(out).keys() <= finished(reference).keys() and complete(out), f"not all runs of {out} are there"
        assert not temporary(out), f"left behind: {temporary(out)}"
        say(f"reproduction {rounds}: the same after {sum(counts.values())} kills {counts}")
    return counts | {"reproductions": rounds}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to do it; a temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(kill_and_resume(args.folder or Path(scratch), args.kills, seed=args.seed))
