"""Running figure notebooks: whose results they are, when they are stale, what a kill, a Ctrl-C, a link or a damaged file costs."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from rvi_nb.base.process import follow_driver
from rvi_nb.cli.command import main
from rvi_nb.data.sources import DataError
from rvi_nb.report import execution
from rvi_nb.report import reproduce as module
from rvi_nb.report.figures import find_figures, read_figure
from rvi_nb.report.page import ReportError
from rvi_nb.report.reproduce import fingerprint, make_plan, reproduce
from rvi_nb.runs import workers
from rvi_nb.runs.store import Store

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "nbs" / "figures"
HEAD = {"parameters": 'profile = "quick"\nout = None\nstore = None\njobs = None\nfigure = ""', "grid": "grid = []"}
TAIL = """
from pathlib import Path
Path(figure).mkdir(exist_ok=True)
for ending in ("csv", "png", "svg"): Path(figure, f"{figure}.{ending}").touch()
Path(figure, "claims.json").write_text("[]")
"""
ONCE = "import os, signal\nfrom pathlib import Path\nif not Path({0!r}).exists():\n    Path({0!r}).touch()\n    os.kill({1}, signal.SIGKILL)"

INTERRUPTIBLE = """
import signal, sys
from pathlib import Path
from rvi_nb.report.reproduce import reproduce
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore Ctrl-C
reproduce((), "smoke", sys.argv[1], jobs=2, folder=Path(sys.argv[2]))
"""


def write(folder: Path, name: str, source: str = "") -> Path:
    "A figure notebook that needs no runs, draws nothing, and does something before that."
    folder.mkdir(exist_ok=True)
    cells = [nbformat.v4.new_code_cell(text, metadata={"tags": [tag]}) for tag, text in HEAD.items()]
    cells += [nbformat.v4.new_code_cell(text) for text in (source, TAIL)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def statuses(out: Path) -> dict[str, str]:
    return {name: entry["status"] for name, entry in json.loads((out / "manifest.json").read_text())["figures"].items()}


def python(code: str, *args, path: Path = ROOT, **options) -> subprocess.Popen:
    env = os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def running(pid: str) -> bool:
    "Whether a process is there and has not ended; an ended one stays in the list until somebody asks for it."
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, out = tmp_path_factory.mktemp("figures"), tmp_path_factory.mktemp("finished")
    write(folder, "figQ1")
    assert reproduce((), "smoke", out, jobs=1, folder=folder)
    return folder, out


# --- whose results, and which notebooks ---------------------------------------------------------------------------------


def test_a_copied_notebook_has_results_of_its_own(tmp_path):
    folder, out = tmp_path / "figures", tmp_path / "out"
    folder.mkdir()
    for name in ("fig07_progression", "figX1_mine"):
        shutil.copy(FIGURES / "fig07_progression.ipynb", folder / f"{name}.ipynb")
    assert reproduce(["figX1"], "smoke", out, jobs=1, folder=folder)
    assert {p.name for p in out.glob("fig*")} == {"figX1_mine"}
    assert {p.name for p in (out / "figX1_mine").iterdir()} == {"claims.json", *(f"figX1_mine.{e}" for e in ("csv", "html", "ipynb", "png", "svg"))}
    assert {c["figure"] for c in json.loads((out / "figX1_mine" / "claims.json").read_text())} == {"figX1_mine"}


@pytest.mark.parametrize("path", sorted(FIGURES.glob("*.ipynb")), ids=lambda p: p.stem)
def test_no_notebook_has_its_name_written_into_it(path):
    assert path.stem not in "".join(c.source for c in nbformat.read(path, 4).cells)


def test_notebooks_above_the_current_folder_are_not_executed(tmp_path, monkeypatch):
    trap = tmp_path / "nbs" / "figures"
    trap.mkdir(parents=True)
    path = write(trap, "fig02_trap")
    nb = nbformat.read(path, 4)
    nb.cells[1].source = f"open({str(tmp_path / 'executed')!r}, 'w')\n" + nb.cells[1].source
    nbformat.write(nb, path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = CliRunner().invoke(main, ["reproduce", "fig02", "--profile", "smoke", "--dry-run", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0 and "40 asked for" in result.output
    assert CliRunner().invoke(main, ["reproduce", "fig02_trap", "--out", str(tmp_path / "out")]).exit_code == 2
    assert not (tmp_path / "executed").exists()


def test_a_linked_checkout_called_from_elsewhere(tmp_path):
    link, elsewhere = tmp_path / "a" / "link", tmp_path / "elsewhere"
    elsewhere.mkdir()
    link.parent.mkdir()
    link.symlink_to(ROOT)
    (tmp_path / "linked").symlink_to(elsewhere)
    command = "from rvi_nb.cli.command import main; main()"
    process = python(command, "reproduce", "fig07", "--profile", "smoke", "--jobs", "1", "--out", "../linked/out", path=link, cwd=elsewhere)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("runs.sqlite")] == ["elsewhere/out/runs.sqlite"]
    assert (elsewhere / "out" / "fig07_progression" / "fig07_progression.png").exists() and "2 to compute" in output
    assert str(Store(elsewhere / "out" / "runs.sqlite").db.execute("select count(*), max(times) from runs").fetchone()) == "(2, 1)"


def test_notebooks_open_the_store_that_was_named_though_their_folder_is_a_link(tmp_path, monkeypatch):
    opened = []

    def note(paths, out, parameters, jobs):
        opened.append((out.resolve() / parameters["store"]).resolve())  # as a process whose folder is `out` finds it
        yield "figQ1", ""

    monkeypatch.setattr(module, "run_notebooks", note)
    write(tmp_path / "figures", "figQ1")
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "deeper")
    store = tmp_path / "store" / "runs.sqlite"
    assert reproduce((), "smoke", tmp_path / "link" / "out", store, jobs=1, folder=tmp_path / "figures")
    assert opened == [store.resolve()]


def test_a_linked_package_finds_the_notebooks_of_its_clone(tmp_path):
    (tmp_path / "rvi_nb").symlink_to(ROOT / "rvi_nb")
    output, _ = python("from rvi_nb.report.places import notebooks; print(notebooks())", path=tmp_path, cwd=tmp_path).communicate(timeout=60)
    assert output.strip() == str(FIGURES.resolve())


# --- stale or not -------------------------------------------------------------------------------------------------------


def test_a_figure_depends_on_what_it_uses(tmp_path):
    package = shutil.copytree(ROOT / "rvi_nb", tmp_path / "rvi_nb")
    figures = {p.stem: read_figure(p, {"profile": "smoke"}) for p in find_figures((), FIGURES)}
    marks = lambda: {name: fingerprint(f, {"profile": "smoke"}, {}, package) for name, f in figures.items()}
    uninvolved = ["cli/command.py", "report/reproduce.py", *(f"impute/{p.name}" for p in (package / "impute").glob("[!_]*.py"))]

    def changed(*files):
        before = marks()
        for file in files:
            (package / file).write_text((package / file).read_text() + "\n# changed\n")
        return {name for name, mark in marks().items() if mark != before[name]}

    assert not changed(*uninvolved)
    assert changed("studies/design.py") == {"fig01_hyperparameters", "figS2_latent_size"} and changed("report/style.py") == set(figures)


def test_where_results_lie_and_how_many_processes_make_them_does_not_matter(tmp_path):
    figure = read_figure(write(tmp_path, "figQ1"), {"profile": "smoke"})
    one, two = dict(profile="smoke", out="a", store="b", jobs=1), dict(profile="smoke", out="c", store="d", jobs=8)
    assert fingerprint(figure, one, {}) == fingerprint(figure, two, {}) != fingerprint(figure, one | {"profile": "quick"}, {})


@pytest.mark.parametrize("file", [None, "figQ1.svg", "claims.json"])
def test_a_figure_without_one_of_its_files_is_run_again(file, finished, tmp_path):
    folder, out = finished
    shutil.copytree(out, tmp_path / "out")
    if file:
        (tmp_path / "out" / "figQ1" / file).unlink()
    said = []
    assert reproduce((), "smoke", tmp_path / "out", jobs=1, folder=folder, say=said.append, dry_run=True)
    assert f"({int(file is not None)} to be run)" in said[0]


def test_runs_of_unavailable_datasets_are_not_stored(tmp_path, monkeypatch):
    def fetch(name):
        if name == "mnist":
            raise DataError("no mnist")
        return "there"

    monkeypatch.setattr(module, "fetch", fetch)
    plan = make_plan(find_figures(["fig02"], FIGURES), {"profile": "smoke"}, tmp_path, Store(tmp_path / "runs.sqlite"), 2)
    assert "40 asked for, 0 stored, 22 to compute" in str(plan) and str(plan).endswith("18 of datasets that are not available here")


# --- kills --------------------------------------------------------------------------------------------------------------


def test_a_killed_notebook_gets_a_second_chance_and_costs_the_others_nothing(tmp_path):
    folder, out, said = tmp_path / "figures", tmp_path / "out", []
    write(folder, "figA1_once", ONCE.format("once", "os.getpid()"))
    write(folder, "figA2_parent", ONCE.format("parent", "os.getppid()"))  # what the processes of notebooks are copies of
    write(folder, "figA3_always", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    write(folder, "figA4_fine")
    assert not reproduce((), "smoke", out, jobs=2, folder=folder, say=said.append)
    assert statuses(out) == {"figA1_once": "ok", "figA2_parent": "ok", "figA3_always": "failed", "figA4_fine": "ok"}
    assert [line for line in said if "failed" in line] == ["figA3_always failed: killed twice, the second time while it ran alone: is there too little memory?"]
    assert "killed twice" in (out / "index.html").read_text() and not list(out.rglob("*.part"))


@pytest.mark.parametrize("error", [EOFError, ConnectionRefusedError])
def test_a_process_that_cannot_be_copied_is_tried_again_after_a_while(error, monkeypatch):
    "The end of a killed process takes a moment to be seen: until then it refuses, however often it is asked."
    pauses = []

    class Process:
        def __init__(self, **how):
            pass

        def start(self):
            attempts.append(1)
            if sum(pauses) < 1 or never:
                raise error

    class Copies:
        Pipe = staticmethod(multiprocessing.Pipe)

    Copies.Process = Process
    monkeypatch.setattr(execution, "copies", lambda *modules: Copies())
    monkeypatch.setattr(execution.time, "sleep", pauses.append)
    attempts, never = [], False
    assert isinstance(execution._start()[1], Process) and len(attempts) == 3
    attempts, never = [], True
    with pytest.raises(error):
        execution._start()
    assert len(attempts) == 4


def test_workers_are_asked_for_again_after_a_while(monkeypatch):
    "As above, for the processes that compute."
    pauses, pools = [], []

    class Pool:
        def __init__(self, *how):
            pools.append(1)

        def submit(self, call):
            if len(pools) == 1 or sum(pauses) < 1 or never:
                raise ConnectionRefusedError
            return workers.Inline().submit(call)

        def shutdown(self):
            pass

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(workers.time, "sleep", pauses.append)
    never = False
    assert workers.Processes(1).submit(os.getpid).result() == os.getpid() and len(pools) == 4
    pauses, pools, never = [], [], True
    with pytest.raises(workers.WorkersGone, match="end as soon as they start"):
        workers.Processes(1).submit(os.getpid)
    assert len(pools) == 5


def _follow(answer):
    follow_driver(dict(os.environ))
    answer.send(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)


def test_ctrl_c_is_left_to_the_driver():
    fork = multiprocessing.get_context("fork")
    answer, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_follow, args=(theirs,))
    child.start()
    assert answer.poll(30) and answer.recv()
    child.join(30)


def test_ctrl_c_while_notebooks_run(tmp_path):
    folder, out = tmp_path / "figures", tmp_path / "out"
    write(folder, "figA1_quick")
    write(
        folder, "figA2_slow", "import os, time\nfrom pathlib import Path\nPath('pid').write_text(str(os.getpid()))\nif not Path('go').exists(): time.sleep(300)"
    )
    process = python(INTERRUPTIBLE, out, folder, start_new_session=True)
    finished = [out / "figA1_quick" / "figA1_quick.html", out / "pid"]
    deadline = time.time() + 120
    while not all(path.exists() for path in finished) and time.time() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    pressed = time.time()
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.time() - pressed < 10 and "KeyboardInterrupt" in output, output
    assert statuses(out) == {"figA1_quick": "ok"}
    assert "Not computed at this profile: figA2_slow" in (out / "index.html").read_text()
    while running((out / "pid").read_text()) and time.time() < pressed + 20:
        time.sleep(0.1)
    assert not running((out / "pid").read_text())
    (out / "go").touch()
    said = []
    assert reproduce((), "smoke", out, jobs=2, folder=folder, say=said.append) and "(1 to be run)" in said[0]
    assert statuses(out) == {"figA1_quick": "ok", "figA2_slow": "ok"}


def test_an_interrupted_command_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "reproduce", interrupted)
    result = CliRunner().invoke(main, ["reproduce", "--profile", "smoke", "--out", str(tmp_path)])
    assert result.exit_code == 1 and result.output.startswith("Error: interrupted") and result.output.count("\n") == 1


# --- damaged files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"<<<<<<< ours", b"[]", b'{"figures": 3}', b'{"figures": {"fig02_convergence": {}}}', b"\xff\xfe"])
def test_a_damaged_manifest_costs_one_line(tmp_path, damage):
    (tmp_path / "manifest.json").write_bytes(damage)
    result = CliRunner().invoke(main, ["reproduce", "fig02", "--profile", "smoke", "--out", str(tmp_path)])
    assert result.exit_code == 1 and result.output.count("\n") == 1, result.output
    assert "manifest.json" in result.output and "move it away" in result.output
    assert (tmp_path / "manifest.json").read_bytes() == damage


@pytest.mark.parametrize("damage", ["", "{", "[{}]", '[{"figure": 1, "cells": [{"n": 1}]}]', "null"])
def test_a_damaged_file_of_claims_costs_one_line(tmp_path, monkeypatch, damage, finished):
    folder, out = finished
    shutil.copytree(out, tmp_path / "out")
    claims = tmp_path / "out" / "figQ1" / "claims.json"
    claims.write_text(damage)
    monkeypatch.setattr(module, "notebooks", lambda: folder)
    result = CliRunner().invoke(main, ["reproduce", "--profile", "smoke", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.output
    last = result.output.splitlines()[-1]
    assert last.startswith("Error: cannot read") and str(claims) in last and "delete it" in last
    with pytest.raises(ReportError, match="delete it"):
        module.write_page(tmp_path / "out", module.get_profile("smoke"))
