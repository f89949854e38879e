"""Runs that survive anything: kill and resume, executors, two drivers at once, full disks, bad arguments."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from rvi_nb.base.process import started
from rvi_nb.cli.command import main
from rvi_nb.model.models import PAPER
from rvi_nb.runs import schedule
from rvi_nb.runs.run import Run, product
from rvi_nb.runs.schedule import ensure
from rvi_nb.runs.store import Store, StoreError, results

sys.path.append(str(Path(__file__).parent.parent / "bench"))
from kills import FIGURES, family, kill_and_resume, start

ROOT = Path(__file__).parent.parent
BASE = Run(dataset="toy", n_train=128, n_test=32, epochs=2)
GRID = product(BASE, model=PAPER, rate=(0.1, 0.5), seed=range(2))
NUMBERS = ["train_loss", "test_loss", "imputation_loss"]


def rvi(*args, **options):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = Path(sys.executable).with_name("rvi")
    return subprocess.Popen([command, *map(str, args)], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def here(*args):
    "The same in this process."
    result = CliRunner().invoke(main, [str(a) for a in args])
    return result.exit_code, result.output


def finish(process):
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


# --- kill and resume -----------------------------------------------------------------------------------------------


def csvs(out):
    return {p.relative_to(out): p.read_bytes() for p in sorted(out.rglob("*.csv"))}


def test_killed_at_random_and_resumed(smoke, tmp_path):
    counts = kill_and_resume(tmp_path, 3, smoke, 25)
    assert sum(counts[kind] for kind in ("driver", "copy", "original")) == 3
    for out in tmp_path.glob("round*/"):
        with sqlite3.connect(out / "runs.sqlite") as db:
            assert db.execute("select count(*) from leases").fetchone()[0] == 0


def test_nobody_outlives_a_killed_driver(tmp_path):
    process, deadline = start(tmp_path / "out"), time.time() + 120
    while "copy" not in family(process.pid) and time.time() < deadline:
        time.sleep(0.2)
    others = [pid for kind, pids in family(process.pid).items() if kind != "driver" for pid in pids]
    process.kill()
    process.wait()
    while any(map(started, others)) and time.time() < deadline:
        time.sleep(0.2)
    assert len(others) >= 2 and not any(map(started, others))


def test_a_second_call_computes_nothing(smoke, tmp_path):
    out = shutil.copytree(smoke, tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("fig*/*")}
    code, output = here("reproduce", *FIGURES, "--profile", "smoke", "--out", out)  # which were made beside figures with other datasets
    assert code == 0 and "(0 to be run)" in output and " 0 to compute" in output
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("fig*/*")}


def test_two_drivers_on_one_store(smoke, tmp_path):
    [name, *_] = FIGURES
    both = [rvi("reproduce", name, "--profile", "smoke", "--out", tmp_path / str(i), "--store", tmp_path / "runs.sqlite") for i in range(2)]
    for process in both:
        code, output = finish(process)
        assert code == 0, output
    for i in range(2):
        assert csvs(tmp_path / str(i)) == {path: data for path, data in csvs(smoke).items() if path.name.startswith(name)} != {}
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        assert db.execute("select max(times) from runs").fetchone()[0] == 1


def test_a_failing_figure_does_not_stop_the_others(smoke, tmp_path):
    import nbformat

    from rvi_nb.report import reproduce as module

    folder = tmp_path / "figures"
    folder.mkdir()
    for name in ("fig02_convergence", "figA1_relay_form"):
        nb = nbformat.read(ROOT / "nbs" / "figures" / f"{name}.ipynb", 4)
        if name == "figA1_relay_form":
            nb.cells.append(nbformat.v4.new_code_cell("raise RuntimeError('on purpose')"))
        nbformat.write(nb, folder / f"{name}.ipynb")
    said = []
    out = tmp_path / "out"
    fine = module.reproduce((), "smoke", out, smoke / "runs.sqlite", jobs=2, say=said.append, folder=folder)
    assert not fine and any("on purpose" in line for line in said)
    manifest = json.loads((out / "manifest.json").read_text())
    assert {name: f["status"] for name, f in manifest["figures"].items()} == {"fig02_convergence": "ok", "figA1_relay_form": "failed"}
    assert "on purpose" in (out / "index.html").read_text()


# --- the store -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["empty", "noise", "truncated", "overwritten"])
def test_a_damaged_store_is_reported_and_left_alone(tmp_path, damage):
    path = tmp_path / "runs.sqlite"
    ensure(GRID[:2], path, jobs=0, progress=False)
    whole = path.read_bytes()
    noise = random.Random(0).randbytes(len(whole) // 2)
    content = {"empty": b"", "noise": noise, "truncated": whole[: len(whole) // 2], "overwritten": whole[:200] + noise + whole[200 + len(noise) :]}[damage]
    path.write_bytes(content)
    with pytest.raises(StoreError, match="move it away"):
        ensure(GRID[:2], path, jobs=0, progress=False)
    assert path.read_bytes() == content
    code, output = here("reproduce", "fig02", "--profile", "smoke", "--out", tmp_path)
    assert code == 1 and "move it away" in output and "Traceback" not in output


def test_failed_groups_are_recorded_and_tried_again(tmp_path, monkeypatch):
    path = tmp_path / "runs.sqlite"
    whole = schedule.compute

    def broken(runs, keep=False, records=()):
        if runs[0].model == "vae":
            raise ZeroDivisionError("on purpose")
        return whole(runs, keep)

    monkeypatch.setattr(schedule, "compute", broken)
    frame = ensure(GRID, path, jobs=0, progress=False)
    assert set(frame.model) == {"rvi", "vad"} and len(frame.attrs["failed"]) == 4
    assert all("on purpose" in error for error in frame.attrs["failed"].values())
    monkeypatch.setattr(schedule, "compute", whole)
    assert len(ensure(GRID, path, jobs=0, progress=False)) == len(GRID)


def test_a_diverged_run_is_a_result(tmp_path):
    frame = ensure([replace(BASE, model="vad", lr=1e30, posterior_lr=1e30)], tmp_path / "runs.sqlite", jobs=0, progress=False)
    assert len(frame) == 1 and not np.isfinite(frame.train_loss[0])


def test_leases_of_the_dead_do_not_count(tmp_path):
    store = Store(tmp_path / "runs.sqlite")
    owner = store.owner.split(" ")
    owner[1] = "999999999"
    store.db.execute("insert into leases (key, owner, expires) values (?, ?, ?)", (GRID[0].key, " ".join(owner), time.time() + 1000))
    assert len(ensure(GRID[:1], store, jobs=0, progress=False)) == 1


def test_a_full_disk_is_reported_and_the_store_stays_whole(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        store = Store(small / "runs.sqlite")
        ensure(GRID[:2], store, jobs=0, progress=False)
        try:
            (small / "filler").write_bytes(b"x" * 400_000)
        except OSError:
            pass
        with pytest.raises(StoreError, match="free some space"):
            ensure(product(BASE, model=PAPER, rate=(0.1, 0.2, 0.3), seed=range(4)), store, jobs=0, progress=False)
        (small / "filler").unlink()
        assert len(results(GRID[:2], Store(small / "runs.sqlite"))) == 2
        assert len(ensure(GRID, Store(small / "runs.sqlite"), jobs=0, progress=False)) == len(GRID)
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    code, output = here("reproduce", "fig02", "--profile", "smoke", "--out", tmp_path / "file" / "out")
    assert code == 1 and "Traceback" not in output and len(output.strip().splitlines()) == 1


# --- executors -----------------------------------------------------------------------------------------------------


def test_every_executor_gives_the_same_numbers(tmp_path):
    distributed = pytest.importorskip("distributed")
    inline = ensure(GRID, tmp_path / "inline.sqlite", jobs=0, progress=False)
    pool = ensure(GRID, tmp_path / "pool.sqlite", jobs=2, progress=False)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1") as cluster:
        dask = ensure(GRID, tmp_path / "dask.sqlite", scheduler=cluster.scheduler_address, progress=False)
    for other in (pool, dask):
        np.testing.assert_allclose(other[NUMBERS], inline[NUMBERS], rtol=1e-6)
        assert all(np.array_equal(a, b) for a, b in zip(other.train_curve, inline.train_curve, strict=True))


# --- the command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["fig99"], ["--profile", "huge"], ["--jobs", "0"], ["--jobs", "many"]])
def test_mistakes_cost_one_line(args):
    code, output = finish(rvi("reproduce", *args)) if args == ["fig99"] else here("reproduce", *args)
    assert code == 2 and len(output.strip().splitlines()) == 1 and "Traceback" not in output


def test_bad_runs_are_refused():
    for change in (dict(rate=1.5), dict(seed=-1), dict(dataset="cifar"), dict(model="gan"), dict(epochs=0), dict(variance=-1.0)):
        with pytest.raises(ValueError, match=next(iter(change))):
            Run(**change)


def test_dry_run_of_the_paper_counts_its_runs(tmp_path):
    code, output = here("reproduce", "fig01", "--profile", "paper", "--out", tmp_path, "--dry-run")
    assert code == 0 and "12,960 asked for" in output, output
    assert not list(tmp_path.glob("fig*"))


def test_runs_and_their_table(smoke, tmp_path):
    code, output = here("runs", "--profile", "smoke", "--store", smoke / "runs.sqlite")
    assert code == 0 and "fig02_convergence" in output
    code, output = here("runs", "--profile", "smoke", "--store", smoke / "runs.sqlite", "table", tmp_path / "runs.csv")
    assert code == 0, output
    frame = pd.read_csv(tmp_path / "runs.csv")
    assert len(frame) and {"model", "rate", "train_loss"} <= set(frame.columns)


def test_a_notebook_parameter_that_does_not_exist_is_an_error():
    from rvi_nb.report.figures import read_figure

    with pytest.raises(ValueError, match="has no parameter speed"):
        read_figure(ROOT / "nbs" / "figures" / "fig02_convergence.ipynb", {"profile": "smoke", "speed": 3})
