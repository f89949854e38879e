"""An engine that loses nothing: whatever fails, is killed or is damaged, what was finished stays, and the message names the cause."""

import errno
import json
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from rvi_nb.base import files, process
from rvi_nb.base.files import sweep, temporary, write_atomically
from rvi_nb.cli.command import main
from rvi_nb.model.models import PAPER
from rvi_nb.runs import leases, schedule, workers
from rvi_nb.runs import store as store_module
from rvi_nb.runs.compute import compute
from rvi_nb.runs.rows import record
from rvi_nb.runs.run import Run, product
from rvi_nb.runs.schedule import ensure, kept
from rvi_nb.runs.store import Store, StoreError, everything, lease, put, put_failure, results, rows_of
from rvi_nb.runs.workers import Cluster, Inline, Workers, WorkersGone

ROOT = Path(__file__).parent.parent
BASE = Run(dataset="toy", n_train=128, n_test=32, epochs=2)
GRID = product(BASE, model=PAPER, rate=(0.1, 0.5), seed=range(2))
FATAL = GRID[5]  # kills whoever computes it


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "runs.sqlite")


def rows(store: Store) -> dict[str, tuple]:
    return {key: rest for key, *rest in store.db.execute("select key, status, times, checksum from runs order by key")}


def answer(loss: float) -> dict:
    return dict(train_loss=loss, seconds=1.0, train_curve=np.full(3, loss))


def fatal(runs, keep=False, records=()):
    "As compute, but a worker that gets a certain run is killed, as by a system without memory."
    if FATAL in runs:
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(runs, keep)


class Crowd(Workers):
    "Workers that all finish when the driver waits for one of them; one that is killed takes the others with it."

    def __init__(self):
        self.running = []

    def submit(self, fn, runs, keep, records):
        self.running.append((future := Future(), runs))
        return future

    def wait(self, futures, **options):
        killed = any(FATAL in runs for _, runs in self.running)
        for future, runs in self.running:
            future.set_exception(BrokenExecutor("killed")) if killed else future.set_result([answer(0.1) | {"model": b"model"}] * len(runs))
        self.running = []
        return wait(futures, **options)

    def killed(self, error):
        return isinstance(error, BrokenExecutor)


@pytest.fixture
def crowd(monkeypatch) -> Crowd:
    crowd = Crowd()
    monkeypatch.setattr(schedule, "executor", lambda jobs, scheduler: nullcontext((crowd, 3)))
    monkeypatch.setattr(schedule, "wait", crowd.wait)
    return crowd


# --- 1. done stays done --------------------------------------------------------------------------------------------


def test_a_failure_never_overwrites_a_finished_run(store):
    put(store, GRID[:2], [answer(0.1), answer(0.2)])
    before = rows(store)
    put_failure(store, GRID[:3], "on purpose")
    assert {k: v for k, v in rows(store).items() if k in before} == before
    frame = results(GRID[:3], store)
    assert frame.train_loss.tolist() == [0.1, 0.2] and list(frame.attrs["failed"]) == [GRID[2].key]


def test_a_worker_killed_while_a_model_is_wanted_leaves_the_numbers(store, monkeypatch):
    grid = [FATAL, GRID[0]]
    ensure(grid, store, jobs=0, progress=False)
    before = rows(store)
    monkeypatch.setattr(schedule, "compute", fatal)
    frame = ensure(grid, store, jobs=1, keep=True, progress=False)
    assert len(frame) == 2 and rows(store)[FATAL.key] == before[FATAL.key]
    assert store.done(grid, keep=True) == {GRID[0].key}


def test_a_model_that_cannot_be_written_is_an_error_and_the_numbers_are_stored(store, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(store_module, "write_atomically", full)
    with pytest.raises(StoreError, match=r"models.*No space left.*free some space.*is stored"):
        ensure(GRID[:1], store, jobs=0, keep=True, progress=False)
    assert store.done(GRID) == {GRID[0].key} and store.done(GRID, keep=True) == set()


def test_all_that_finished_is_stored_before_an_error_ends_the_call(store, crowd, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(store_module, "write_atomically", full)
    grid = product(BASE, model=PAPER)
    with pytest.raises(StoreError, match="No space left"):
        ensure(grid, store, keep=True, progress=False)
    assert len(grid) == 3 and store.done(grid) == {r.key for r in grid}


def test_a_driver_that_lost_its_lease_does_not_write(store):
    other = Store(store.path)
    assert lease(store, GRID[:2]) == GRID[:2]
    store.db.execute("update leases set expires = ?", (time.time() - 1,))  # it was stopped for a while
    assert lease(other, GRID[:2]) == GRID[:2]
    put(store, GRID[:1], [answer(0.1)])
    put_failure(store, GRID[1:2], "on purpose")
    assert rows(store) == {}
    put(other, GRID[:2], [answer(0.2), answer(0.3)])
    put(store, GRID[:2], [answer(0.4), answer(0.4)])
    put_failure(store, GRID[:2], "on purpose")
    assert results(GRID[:2], store).train_loss.tolist() == [0.2, 0.3] and {times for _, times, _ in rows(store).values()} == {1}


SLOW = """
import sys, time
from pathlib import Path
from rvi_nb.runs import leases, schedule
from rvi_nb.runs.run import Run
leases.LEASE, compute = 2.0, schedule.compute
def slow(runs, keep, records):
    Path(sys.argv[2]).touch()
    time.sleep(float(sys.argv[3]))
    return compute(runs, keep)
schedule.compute = slow
run = Run(dataset="toy", n_train=128, n_test=32, epochs=2)
print(len(schedule.ensure([run], sys.argv[1], jobs=0, progress=False)))
"""


def slow_driver(store, sign, seconds):
    return subprocess.Popen([sys.executable, "-c", SLOW, store, sign, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds=120):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "waited in vain"
        time.sleep(0.05)


def test_a_stopped_driver_wakes_up_after_another_did_its_work(tmp_path):
    path = tmp_path / "runs.sqlite"
    first = slow_driver(path, tmp_path / "first", 1)
    wait_for((tmp_path / "first").exists)
    first.send_signal(signal.SIGSTOP)
    assert slow_driver(path, tmp_path / "second", 0).communicate(timeout=120)[0] == "1\n"
    before = rows(Store(path))
    first.send_signal(signal.SIGCONT)
    assert first.communicate(timeout=120)[0] == "1\n"
    assert rows(Store(path)) == before and [times for _, times, _ in before.values()] == [1]


# --- 2. workers that are killed ------------------------------------------------------------------------------------


def test_a_killed_worker_costs_only_the_run_that_kills_it(store, monkeypatch):
    monkeypatch.setattr(schedule, "compute", fatal)
    frame = ensure(GRID, store, jobs=2, progress=False)
    assert len(frame) == len(GRID) - 1 and list(frame.attrs["failed"]) == [FATAL.key]
    assert "BrokenProcessPool" in frame.attrs["failed"][FATAL.key]
    assert {times for _, times, _ in rows(store).values()} == {1}
    monkeypatch.setattr(schedule, "compute", compute)
    assert len(ensure(GRID, store, jobs=2, progress=False)) == len(GRID)


def test_runs_beside_the_one_that_kills_are_not_blamed(store, crowd):
    frame = ensure(GRID, store, progress=False)
    assert len(frame) == len(GRID) - 1 and list(frame.attrs["failed"]) == [FATAL.key]


def test_a_group_without_memory_is_tried_run_by_run(store, monkeypatch):
    def hungry(runs, keep=False, records=()):
        if len(runs) > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return compute(runs, keep)

    monkeypatch.setattr(schedule, "compute", hungry)
    assert len(ensure(GRID, store, jobs=0, progress=False)) == len(GRID)


def test_workers_that_never_start_are_an_error(store, monkeypatch):
    monkeypatch.setattr(workers, "follow_driver", os._exit)
    with pytest.raises(WorkersGone, match="as soon as they start"):
        ensure(GRID[:2], store, jobs=1, progress=False)
    assert not store.db.execute("select * from leases").fetchall()


def test_a_scheduler_without_workers_is_waited_for(store, capfd):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        late = threading.Timer(3, cluster.scale, (1,))
        late.start()
        assert len(ensure(GRID[:2], store, scheduler=cluster.scheduler_address, progress=False)) == 2
        late.join()
    assert capfd.readouterr().err.count("has no workers: waiting for one") == 1


class Client:
    "A scheduler with one worker, which is this process."

    status = "running"

    def get_executor(self):
        return Inline()

    def ncores(self):
        return {"here": 1}


def test_a_worker_that_the_scheduler_lost_costs_only_the_run_that_kills_it(store, monkeypatch):
    class KilledWorker(Exception):
        "As Dask's, which is known by its name: Dask need not be installed."

    def lost(runs, keep=False, records=()):
        if FATAL in runs:
            raise KilledWorker
        return [answer(0.1)] * len(runs)

    monkeypatch.setattr(schedule, "executor", lambda jobs, scheduler: nullcontext((Cluster(Client(), scheduler, print), 1)))
    monkeypatch.setattr(schedule, "compute", lost)
    frame = ensure(GRID, store, scheduler="tcp://there", progress=False)
    assert len(frame) == len(GRID) - 1 and list(frame.attrs["failed"]) == [FATAL.key]


def test_groups_that_were_taken_back_are_tried_again_unless_the_scheduler_is_gone():
    cluster = Cluster(Client(), "tcp://there", print)
    assert cluster.killed(CancelledError())
    cluster.client.status = "closed"
    with pytest.raises(WorkersGone, match="tcp://there is gone"):
        cluster.killed(CancelledError())


def dask(name, *options):
    return subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{name}", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_scheduler_that_is_gone_costs_one_line(store, tmp_path):
    pytest.importorskip("distributed")
    from dask import config

    note = tmp_path / "scheduler.json"
    scheduler = dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(note))
    try:
        wait_for(note.exists)
        address = json.loads(note.read_text())["address"]
        worker = dask("worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "5")

        long = product(Run(dataset="toy", n_train=500, epochs=20), model=PAPER, seed=range(60))

        def kill_after_the_first():
            while not Store(store.path).done(long):
                time.sleep(0.1)
            scheduler.kill()

        threading.Thread(target=kill_after_the_first, daemon=True).start()
        with pytest.raises(WorkersGone, match=f"{address} is gone; what was finished is stored") as error:
            ensure(long, store, scheduler=address, progress=False)
        assert "\n" not in str(error.value) and store.done(long)
        worker.kill()
    finally:
        scheduler.kill()
    with config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(WorkersGone, match=f"{address} cannot be reached"):
        ensure(long, store, scheduler=address, progress=False)


# --- 3. no git -----------------------------------------------------------------------------------------------------


def test_results_are_stored_where_there_is_no_git(store, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert json.loads(record())["git"] is None
    assert len(ensure(GRID[:1], store, jobs=0, progress=False)) == 1


# --- 6. models that were cut short ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_model_that_was_cut_short_is_computed_again(store, length):
    ensure(GRID[:1], store, jobs=0, keep=True, progress=False)
    path = store.model_path(GRID[0])
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    with pytest.raises(StoreError, match=f"{path} is damaged"):
        kept(GRID[0], store)
    assert store.done(GRID, keep=True) == set()
    ensure(GRID[:1], store, jobs=0, keep=True, progress=False)
    assert path.read_bytes() == whole


def test_a_model_with_changed_header_is_no_model(store):
    ensure(GRID[:1], store, jobs=0, keep=True, progress=False)
    path = store.model_path(GRID[0])
    whole = path.read_bytes()
    for content in (b"\xff" * 8 + whole[8:], whole[:8] + b"[" + whole[9:], whole + b"more", b"\0" * 100):
        path.write_bytes(content)
        assert store.done(GRID, keep=True) == set()


@pytest.mark.parametrize("change, message", [(lambda t: t.double(), "is F64"), (lambda t: t[:, 1:].contiguous(), r"is F32 \(1, 127, "), (None, "is missing")])
def test_a_model_with_other_arrays_is_refused(store, change, message):
    ensure(GRID[:1], store, jobs=0, keep=True, progress=False)
    path = store.model_path(GRID[0])
    tensors = load_file(path)
    local = tensors.pop("local")
    save_file(tensors | ({"local": change(local)} if change else {}), path)
    with pytest.raises(StoreError, match=f"{path} is damaged.*array 'local' {message}"):
        kept(GRID[0], store)


# --- 7. files ------------------------------------------------------------------------------------------------------


def test_threads_write_one_file(tmp_path):
    path = tmp_path / "file"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: write_atomically(path, b"%d" % i * 1000), range(200)))
    assert len(path.read_bytes()) % 1000 == 0 and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_no_planted_link_is_followed(tmp_path, monkeypatch):
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    (tmp_path / f".file.{os.getpid()}.part").symlink_to(victim)
    write_atomically(path, b"new")
    assert victim.read_text() == "precious"
    monkeypatch.setattr(files, "temporary", lambda path: Path(path).with_name(".guessed.part"))
    (tmp_path / ".guessed.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"newer")
    assert victim.read_text() == "precious" and path.read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_are_kept(tmp_path, mode):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    for data in (b"new", lambda part: part.write_bytes(b"new")):
        seen = stat.S_IMODE(write_atomically(path, data).stat().st_mode)
        assert seen == mode and path.read_bytes() == b"new"


def test_a_private_file_is_private_while_it_is_written(tmp_path):
    path, modes = tmp_path / "file", []
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, lambda part: modes.append(stat.S_IMODE(part.stat().st_mode)))
    assert modes == [0o600]


def test_long_names_can_be_written(tmp_path):
    assert write_atomically(tmp_path / ("é" * 120), b"whole").read_bytes() == b"whole"


def test_sweeping_spares_the_living_even_where_they_cannot_be_seen(tmp_path, monkeypatch):
    code = "import sys; from rvi_nb.base.files import temporary; p = temporary(sys.argv[1]); p.touch(); print(p, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "file"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    part = Path(child.stdout.readline().strip())
    folder = temporary(tmp_path / "folder")
    (folder / "inside").mkdir(parents=True)
    assert sweep(tmp_path) == [] and part.exists()
    child.kill()
    child.wait()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(process, "place", lambda: "12345678")  # another namespace of ids, where the child's id means nothing
        assert sweep(tmp_path) == [] and part.exists()
        elsewhere.setattr(process, "place", lambda: "0" * 8)  # no /proc
        assert sweep(tmp_path) == [] and part.exists()
    assert sweep(tmp_path) == [part] and folder.exists()
    old = time.time() - files.DAY - 1
    os.utime(folder, (old, old))
    monkeypatch.setattr(process, "place", lambda: "12345678")
    assert sweep(tmp_path) == [folder] and not folder.exists()


def test_nobody_is_known_to_have_ended_where_the_system_does_not_say(tmp_path, monkeypatch):
    nobody = process.this_process()._replace(pid=999_999_999)
    assert nobody.gone()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(process, "place", lambda: "0" * 8)
        assert not nobody._replace(place="0" * 8).gone()
    monkeypatch.setattr(process, "Path", lambda path: tmp_path / path.lstrip("/"))  # no /proc
    assert process.started(nobody.pid) == process.UNKNOWN and process.place.__wrapped__() == "0" * 8
    assert not nobody.gone()


# --- 8. leases -----------------------------------------------------------------------------------------------------


def test_leases_are_renewed_while_this_process_computes(store, monkeypatch):
    seen = []

    def slow(runs, keep, records):
        for _ in range(2):
            time.sleep(0.8)
            seen.append(Store(store.path).db.execute("select max(expires) from leases").fetchone()[0] - time.time())
        return compute(runs, keep)

    monkeypatch.setattr(leases, "LEASE", 1.0)
    monkeypatch.setattr(schedule, "compute", slow)
    ensure(GRID[:1], store, jobs=0, progress=False)
    assert len(seen) == 2 and min(seen) > 0


def test_who_is_waited_for_is_said_once(store, capsys):
    other = Store(store.path)
    lease(other, GRID[:2])

    def give_up_later():
        time.sleep(3.5)
        with sqlite3.connect(store.path, timeout=60) as db:
            db.execute("delete from leases where owner = ?", (other.owner,))

    thread = threading.Thread(target=give_up_later)
    thread.start()
    assert len(ensure(GRID[:3], store, jobs=0, progress=False)) == 3
    thread.join()
    lines = [line for line in capsys.readouterr().err.splitlines() if "waiting" in line]
    assert len(lines) == 1 and f"process {os.getpid()} on {process.this_process().host} since 2" in lines[0]


# --- 9. damage -----------------------------------------------------------------------------------------------------


def test_no_changed_bit_goes_unnoticed(store, tmp_path, capsys):
    ensure(GRID, store, jobs=0, progress=False)
    whole, frame, moments = store.path.read_bytes(), results(GRID, store), random.Random(0)
    reported = 0
    for _ in range(150):
        place, bit = moments.randrange(len(whole)), 1 << moments.randrange(8)
        path = tmp_path / "flipped.sqlite"
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            found = results(GRID, Store(path))
        except StoreError:
            continue
        lines = capsys.readouterr().err.splitlines()
        assert len(found) >= len(frame) - 1 and (len(found) == len(frame) or len(lines) <= 1)
        reported += len(lines)
        same = frame.set_index(["model", "rate", "seed"]).loc[list(zip(found.model, found.rate, found.seed, strict=True))]
        for name in ("train_loss", "test_loss", "imputation_loss", "seconds"):
            assert found[name].tolist() == same[name].tolist()
        for name in ("train_curve", "test_curve"):
            assert [c.tobytes() for c in found[name]] == [c.tobytes() for c in same[name]]
    assert reported > 5


def test_a_damaged_row_is_reported_and_computed_again(store, capsys):
    frame = ensure(GRID, store, jobs=0, progress=False)
    store.db.execute("update runs set train_loss = train_loss + 1e-9 where key = ?", (GRID[3].key,))
    again = Store(store.path)
    (line,) = capsys.readouterr().err.splitlines()
    assert GRID[3].key in line and "checksum" in line and again.done(GRID) == {r.key for r in GRID} - {GRID[3].key}
    assert ensure(GRID, again, jobs=0, progress=False).train_loss.tolist() == frame.train_loss.tolist()
    Store(store.path)
    assert capsys.readouterr().err == ""


def command_line(*args):
    found = CliRunner().invoke(main, [str(a) for a in args])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.output


def test_a_run_of_a_newer_version_costs_one_line(store, tmp_path):
    put(store, GRID[:1], [answer(0.1)])
    row = store_module.make_row(GRID[1], answer(0.2), record())
    row["config"] = json.dumps(json.loads(row["config"]) | {"colour": "red"})
    row["checksum"] = store_module.checksum(row)
    store_module._write(store, [row | dict(status="done", error=None)])
    with pytest.raises(StoreError, match=r"colour.*update rvi_nb"):
        everything(Store(store.path))
    code, output = command_line("runs", "--profile", "smoke", "--store", store.path, "table", tmp_path / "runs.csv")
    assert code == 1 and len(output.strip().splitlines()) == 1 and "colour" in output


def test_a_run_without_time_counts_as_missing(store, capsys):
    put(store, GRID[:2], [answer(0.1), answer(0.2)])
    store.db.execute("update runs set seconds = null where key = ?", (GRID[0].key,))
    again = Store(store.path)
    assert again.done(GRID) == {GRID[1].key} and len(capsys.readouterr().err.splitlines()) == 1
    assert [row["seconds"] for row in rows_of(again)] == [1.0]


def test_a_damaged_letter_costs_one_run(store, capsys):
    put(store, GRID[:2], [answer(0.1), answer(0.2)])
    whole, text = store.path.read_bytes(), json.dumps(asdict(GRID[0])).encode()
    store.path.write_bytes(whole.replace(text, b"\xff" + text[1:]))  # no letter at all
    assert whole.count(text) == 1 and Store(store.path).done(GRID) == {GRID[1].key}
    (line,) = capsys.readouterr().err.splitlines()
    assert GRID[0].key in line and "checksum" in line


def test_a_run_stored_without_time_counts_as_missing(store, capsys):
    "Its checksum is right: there never was a time."
    put(store, GRID[:2], [dict(train_loss=0.1), answer(0.2)])
    again = Store(store.path)
    (line,) = capsys.readouterr().err.splitlines()
    assert again.done(GRID) == {GRID[1].key} and "has no time" in line


@pytest.mark.parametrize("owner, expires", [("nobody", 9e9), ("", 9e9), ("host pid 1 2 3", 9e9), (None, "soon")])
def test_a_malformed_lease_costs_one_line(store, owner, expires):
    store.db.execute("insert into leases (key, owner, expires) values (?, ?, ?)", (GRID[0].key, store.owner if owner is None else owner, expires))
    with pytest.raises(StoreError, match=f"lease of run {GRID[0].key}.*malformed.*empty its table") as error:
        ensure(GRID[:1], Store(store.path), jobs=0, progress=False)
    assert "\n" not in str(error.value)


def test_a_store_of_a_later_format_costs_one_line(store):
    store.db.execute("pragma user_version = 4")
    with pytest.raises(StoreError, match=r"its format is 4, this version of rvi_nb reads formats 1 to 3"):
        Store(store.path)


def test_a_store_of_format_2_is_read_as_it_is_and_becomes_3_when_written(store, capsys):
    put(store, GRID[:1], [answer(0.1)])
    store.db.execute("alter table runs drop column held_out_loss")
    store.db.execute("pragma user_version = 2")
    old = Store(store.path)
    assert results(GRID[:1], old).train_loss.tolist() == [0.1] and results(GRID[:1], old).held_out_loss.isna().all()
    put(old, GRID[1:2], [answer(0.2) | {"held_out_loss": 0.3}])
    new = Store(store.path)
    assert new.db.execute("pragma user_version").fetchone()[0] == 3 and capsys.readouterr().err == ""
    assert results(GRID[:2], new).held_out_loss.tolist()[1] == 0.3
    new.db.execute("update runs set held_out_loss = 0.2 where key = ?", (GRID[1].key,))
    assert Store(store.path).done(GRID) == {GRID[0].key} and "checksum" in capsys.readouterr().err


# --- format 1 ------------------------------------------------------------------------------------------------------


FORMAT_1 = """
create table runs (key text primary key, config text not null, status text not null, times integer not null default 1, train_loss real, test_loss real,
                   imputation_loss real, probe_accuracy real, seconds real, train_curve blob, test_curve blob, probe_curve blob, error text, record text);
create table leases (key text primary key, owner text not null, expires real not null);
pragma user_version = 1;
"""


def test_a_store_of_format_1_is_read_as_it_is_and_becomes_3_when_written(tmp_path, capsys):
    path, curve = tmp_path / "runs.sqlite", np.ones(3, "<f4").tobytes()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(FORMAT_1)
        for i, run in enumerate(product(BASE, seed=range(10, 19))):  # the first was called something else by an older algorithm
            values = (run.key if i else "0" * 64, json.dumps(asdict(run)), "done", 0.1 * i, 1.0, curve, record())
            db.execute("insert into runs (key, config, status, train_loss, seconds, train_curve, record) values (?, ?, ?, ?, ?, ?, ?)", values)
        db.commit()
    before, old = path.read_bytes(), Store(path)
    frame = everything(old)
    assert frame.seed.tolist() == list(range(10, 19)) and path.read_bytes() == before
    assert len(ensure(GRID[:1], old, jobs=0, progress=False)) == 1
    new = Store(path)
    assert new.db.execute("pragma user_version").fetchone()[0] == 3 and capsys.readouterr().err == ""
    assert everything(new)[: len(frame)].equals(frame) and len(rows_of(new)) == len(frame)  # all but the first, and the new one
    new.db.execute("update runs set seconds = seconds + 1 where rowid = 7")
    assert len(everything(Store(path))) == len(frame)  # one is damaged, one is new
    assert "checksum" in capsys.readouterr().err


# --- 12. the message names the cause -------------------------------------------------------------------------------


def test_a_store_that_cannot_be_written_says_so(store):
    put(store, GRID[:1], [answer(0.1)])
    store.db.execute("pragma query_only = 1")
    with pytest.raises(StoreError, match=r"readonly.*make it and its folder writable"):
        ensure(GRID[:2], store, jobs=0, progress=False)
    assert len(results(GRID[:2], store)) == 1


def test_a_full_disk_says_so(store):
    put(store, GRID[:1], [answer(0.1)])
    before, (pages,) = rows(store), store.db.execute("pragma page_count").fetchone()
    store.db.execute(f"pragma max_page_count = {pages}")  # as many as there are
    with pytest.raises(StoreError, match=r"disk is full; free some space"):
        put(store, GRID, [answer(0.2) | {"test_curve": np.zeros(10_000)}] * len(GRID))
    assert rows(store) == before


def test_a_folder_in_place_of_a_store_says_so(tmp_path):
    with pytest.raises(StoreError, match="Is a directory"):
        Store(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        Store(tmp_path / "file" / "runs.sqlite")


def test_a_store_without_permission_says_so(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises(StoreError, match=r"Permission denied.*writable"):
        Store(folder / "runs.sqlite")
