"""The archive: shards that lose nothing, parts that fit together, figures from what is there, and runs that are what they claim to be."""

import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from rvi_nb.cli.command import main
from rvi_nb.model.models import PAPER
from rvi_nb.report import reproduce as module
from rvi_nb.report.figures import find_figures, read_figure
from rvi_nb.report.page import write_page
from rvi_nb.report.places import notebooks
from rvi_nb.report.profiles import get_profile
from rvi_nb.report.reproduce import part_of, reproduce, stages
from rvi_nb.runs.archive import ArchiveError, decode, encode, export_runs, import_runs, keys_of, read_shard, shards, write_shard
from rvi_nb.runs.check import check_runs
from rvi_nb.runs.groups import work
from rvi_nb.runs.rows import checksum, processor
from rvi_nb.runs.run import ALGORITHM, Run, product
from rvi_nb.runs.schedule import ensure
from rvi_nb.runs.store import Store, put, results, rows_of

ROOT = Path(__file__).parent.parent
BASE = Run(dataset="toy", n_train=128, n_test=32, epochs=2)
GRID = product(BASE, model=PAPER, rate=(0.1, 0.5), seed=range(2))
NUMBERS = ["train_loss", "test_loss", "imputation_loss", "train_curve", "test_curve"]


def rvi(*args):
    result = CliRunner().invoke(main, [str(a) for a in args])
    return result.exit_code, result.output.strip()


def frame_bytes(frame):
    return [[v.tobytes() if isinstance(v, np.ndarray) else v for v in frame[name]] for name in NUMBERS]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    "A store with a small grid."
    store = Store(tmp_path_factory.mktemp("computed") / "runs.sqlite")
    ensure(GRID, store, jobs=0, progress=False)
    return store


def execute(paths, out, parameters, jobs):
    "As run_notebooks, in this process: kernels take their time, and other tests have them."
    for path in paths:
        names = {}
        with contextlib.chdir(out):
            for cell in nbformat.read(path, 4).cells:
                exec(cell.source, names)
                if "parameters" in cell.metadata.get("tags", []):
                    names |= parameters | {"figure": path.stem}
        for ending in ("html", "ipynb"):
            (out / path.stem / f"{path.stem}.{ending}").touch()
        yield path.stem, ""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    "A folder of figure notebooks: a figure of the paper, Figure 1 and one of the supplement, all tiny and of the toy data."
    monkeypatch.setattr(module, "run_notebooks", execute)
    monkeypatch.setattr(module, "ensure", lambda grid, store, jobs, scheduler, keep, stages: ensure(grid, store, 0, keep=keep, progress=False, stages=stages))
    folder = tmp_path / "figures"
    folder.mkdir()
    head = 'profile = "quick"\nout = None\nstore = None\njobs = None\nfigure = ""'
    start = "from rvi_nb.runs.run import Run, product\nbase = Run(dataset='toy', n_train=128, n_test=32, epochs=2)\n"
    grids = {
        "fig01_tiny": "grid = product(base, lr=(1e-3, 1e-2), epochs=(3, 20), seed=range(3))",
        "fig02_tiny": "grid = product(base, model=('rvi', 'vad'), seed=range(3))",
        "figS1_tiny": "grid = product(base, model=('rvi', 'vad'), rate=(0.5, 0.9), seed=range(3))",
    }
    body = """
from matplotlib.figure import Figure
from rvi_nb.report.figures import Page
page = Page(profile, out, store, jobs, figure)
frame = page.ensure(grid)
page.save(Figure(), frame, [])
"""
    for name, grid in grids.items():
        cells = [nbformat.v4.new_code_cell(text, metadata={"tags": [tag]}) for tag, text in (("parameters", head), ("grid", start + grid))]
        nbformat.write(nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(body)]), folder / f"{name}.ipynb")
    return folder


def csvs(out):
    return {p.name: p.read_bytes() for p in sorted(out.rglob("fig*.csv"))}


# --- shards ---------------------------------------------------------------------------------------------------------------


def test_there_and_back(computed, tmp_path):
    [path] = export_runs(computed, tmp_path / "shards")
    other = Store(tmp_path / "other.sqlite")
    assert import_runs([path], other) == len(GRID) == len(keys_of(path))
    assert frame_bytes(results(GRID, other)) == frame_bytes(results(GRID, computed))
    assert {row["key"]: row for row in rows_of(other)} == {row["key"]: row for row in rows_of(computed)}
    assert export_runs(other, tmp_path / "again")[0].read_bytes() == path.read_bytes()  # whatever the order in the store


DAMAGE = """
import random, sys
from pathlib import Path
from rvi_nb.runs.archive import decode
from rvi_nb.runs.rows import problem
whole, chance, unnoticed = Path(sys.argv[1]).read_bytes(), random.Random(0), 0
before = {row["key"]: row for row in decode(whole)}
for _ in range(600):
    damaged = bytearray(whole)
    damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
    try: rows = decode(bytes(damaged))
    except ValueError: continue
    unnoticed += sum(not problem(row) and row != before.get(row["key"]) for row in rows)
print("unnoticed", unnoticed)
"""


def test_every_damaged_byte_is_noticed(computed, tmp_path):
    "By the name; and where the name was made to fit, by Parquet or by the checksum of a row, never by a crash."
    path = write_shard(tmp_path, rows_of(computed))
    whole = path.read_bytes()
    process = subprocess.run([sys.executable, "-c", DAMAGE, path], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout.strip()) == (0, "unnoticed 0"), process.stderr[-2000:]
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ArchiveError, match="does not match its name"):
            keys_of(path)


def test_a_shard_cannot_ask_for_more_memory_than_it_may(computed, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"declares 12,000 runs, at most 10,000 are read"):
        decode(encode(rows_of(computed) * 1000))
    large = tmp_path / "runs-0123456789abcdef.parquet"
    with large.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ArchiveError, match="1,073,741,824 bytes"):
        read_shard(large)
    monkeypatch.setattr("rvi_nb.runs.archive.LARGEST", 10_000)
    with pytest.raises(ValueError, match=r"it declares [0-9,]+ bytes, at most 80,000 are read"):
        decode(encode([row | {"train_curve": np.random.default_rng(0).random(2_000, "f4").tobytes()} for row in rows_of(computed)]))


def test_a_shard_that_unpacks_to_more_than_it_declares_is_refused(computed, monkeypatch):
    "A number that is repeated takes no space in a file."
    table = parquet.read_table(pa.BufferReader(encode(rows_of(computed))))
    place, zeros = table.schema.get_field_index("train_curve"), [np.zeros(10_000, "f4")] * len(table)
    table = table.set_column(place, table.schema.field(place), pa.array(zeros, pa.list_(pa.float32())))
    parquet.write_table(table, sink := pa.BufferOutputStream(), store_schema=False)
    monkeypatch.setattr("rvi_nb.runs.archive.LARGEST", 10_000)
    with pytest.raises(ValueError, match=r"it has more than 80,000 bytes"):
        decode(sink.getvalue().to_pybytes())


def test_the_same_run_with_other_numbers_is_an_error_that_names_both_places(computed, tmp_path):
    export_runs(computed, tmp_path / "ours")
    theirs = Store(tmp_path / "theirs.sqlite")
    put(theirs, [GRID[0], replace(BASE, seed=77)], [{"train_loss": 0.5, "seconds": 1.0}] * 2)
    [path] = export_runs(theirs, tmp_path / "theirs")
    shutil.copy(path, tmp_path / "ours")
    store = tmp_path / "both.sqlite"
    code, output = rvi("runs", "import", tmp_path / "ours", store)
    assert code == 1 and "\n" not in output and all(p.name in output for p in shards(tmp_path / "ours"))
    assert not rows_of(Store(store))
    before = {row["key"]: row for row in rows_of(computed)}
    code, output = rvi("runs", "import", tmp_path / "theirs", computed.path)
    assert code == 1 and path.name in output and computed.path.name in output
    assert {row["key"]: row for row in rows_of(computed)} == before


def test_a_run_computed_twice_with_the_same_numbers_is_one_run(computed, tmp_path):
    again = Store(tmp_path / "again.sqlite")
    ensure(GRID[:3], again, jobs=0, progress=False)
    export_runs(computed, tmp_path / "shards")
    shutil.copy(export_runs(again, tmp_path / "theirs")[0], tmp_path / "shards")
    both = Store(tmp_path / "both.sqlite")
    assert len(shards(tmp_path / "shards")) == 2 and import_runs(shards(tmp_path / "shards"), both) == len(GRID)


def test_runs_of_another_algorithm_are_neither_exported_nor_imported(computed, tmp_path, monkeypatch):
    [path] = export_runs(computed, tmp_path / "shards")
    copy = Store(shutil.copy(computed.path, tmp_path / "copy.sqlite"))
    copy.db.execute("update runs set algorithm = 1")
    assert not rows_of(copy) and not export_runs(copy, tmp_path / "old")
    monkeypatch.setattr("rvi_nb.runs.archive.ALGORITHM", 99)
    code, output = rvi("runs", "import", tmp_path / "shards", tmp_path / "new.sqlite")
    assert code == 1 and path.name in output and f"version {ALGORITHM} of the algorithm, and this is version 99" in output


def test_what_failed_is_not_archived_and_is_replaced_by_what_succeeded_elsewhere(computed, tmp_path):
    store = Store(shutil.copy(computed.path, tmp_path / "runs.sqlite"))
    store.db.execute("update runs set status = 'failed' where key = ?", (GRID[0].key,))
    [path] = export_runs(store, tmp_path / "shards")
    assert GRID[0].key not in keys_of(path)
    assert import_runs(export_runs(computed, tmp_path / "whole"), store) == 1 and len(store.done(GRID)) == len(GRID)


# --- the committed archive --------------------------------------------------------------------------------------------------

COMMITTED = sorted(ROOT.glob("reports/*/shards/runs-*.parquet"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.name)
def test_committed_shards_are_sound_and_small(path):
    rows = read_shard(path)
    assert path.stat().st_size < min(6_000_000, 2_300 * len(rows) + 20_000)


def test_no_run_is_committed_twice():
    keys = [key for path in COMMITTED for key in keys_of(path)]
    assert len(keys) == len(set(keys))


# --- the order of computation -----------------------------------------------------------------------------------------------


def test_order_of_the_paper():
    "Other figures first, all of their seeds; then Figure 1, each seed with everything; then the supplement."
    figures = [read_figure(p, {"profile": "paper"}) for p in find_figures((), notebooks())]
    first, *seeds, last = stages(figures)
    assert {r.key for r in first} == {r.key for f in figures if f.name[3] != "S" and not f.name.startswith("fig01") for r in f.grid}
    assert len(seeds) == 10 and all({r.seed for r in stage} == {i} and len(stage) == 108 * 4 * 3 for i, stage in enumerate(seeds))
    assert {r.key for r in last} == {r.key for f in figures if f.name[3] == "S" for r in f.grid}
    parts = [part_of(figures, f"{i}/8") for i in range(1, 9)]
    keys = [r.key for part in parts for r in part]
    assert len(keys) == len(set(keys)) and set(keys) == {r.key for f in figures for r in f.grid}
    loads = [sum(map(work, part)) for part in parts]
    assert max(loads) < 1.05 * min(loads)
    early = {r.key for r in first}
    loads = [sum(work(r) for r in part if r.key in early) for part in parts]
    assert max(loads) < 1.2 * min(loads)  # nobody waits for another's share of what comes first
    standard = [read_figure(p, {"profile": "standard"}) for p in find_figures((), notebooks())]
    assert {r.key for f in standard for r in f.grid} < set(keys)  # whoever has the paper's runs has those of the standard profile


def test_a_reproduction_computes_in_that_order(tiny, tmp_path):
    assert reproduce((), "smoke", tmp_path / "out", jobs=1, folder=tiny)
    figures = [read_figure(p, {"profile": "smoke"}) for p in find_figures((), tiny)]
    place = {r.key: i for i, stage in reversed(list(enumerate(stages(figures)))) for r in stage}
    order = [place[key] for (key,) in Store(tmp_path / "out" / "runs.sqlite").db.execute("select key from runs order by rowid")]
    assert order == sorted(order) and set(order) == {0, 1, 2, 3, 4}


# --- parts, and figures from what is there ----------------------------------------------------------------------------------


def test_parts_come_together_as_if_one_machine_had_computed_everything(tiny, tmp_path):
    assert reproduce((), "smoke", tmp_path / "one", jobs=1, folder=tiny)
    archive = tmp_path / "all" / "shards"
    for i in (1, 2, 3):
        out, said = tmp_path / f"part{i}", []
        assert reproduce((), "smoke", out, jobs=1, folder=tiny, part=f"{i}/3", say=said.append)
        assert not list(out.glob("fig*")) and not (out / "index.html").exists() and f"part {i}/3" in said[-1]
        assert rvi("runs", "export", out / "runs.sqlite", archive)[0] == 0
    assert len(shards(archive)) == 3 and sum(len(keys_of(p)) for p in shards(archive)) == len(set().union(*map(keys_of, shards(archive))))
    said = []
    assert reproduce((), "smoke", tmp_path / "all", jobs=1, folder=tiny, say=said.append)
    assert "in the archive, 0 to compute" in said[0] and "taken from the archive (3 shards)" in said[1]
    assert csvs(tmp_path / "all") == csvs(tmp_path / "one") and len(csvs(tmp_path / "all")) == 3


def test_a_report_is_drawn_from_the_shards_of_another_profile(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "reports", lambda: tmp_path / "reports")
    assert reproduce((), "smoke", jobs=1, folder=tiny, shards=True)
    assert len(shards(tmp_path / "reports" / "smoke" / "shards")) == 1
    said = []
    assert reproduce((), "quick", jobs=1, folder=tiny, say=said.append)  # these figures ask for the same runs at every profile
    assert "0 to compute" in said[0] and csvs(tmp_path / "reports" / "quick") == csvs(tmp_path / "reports" / "smoke")
    assert reproduce((), "quick", jobs=1, folder=tiny, say=said.append, shards=True) and "0 runs added" in said[-2]
    assert reproduce(["fig02_tiny"], "standard", jobs=1, folder=tiny, say=said.append)  # one figure: what the archive has of the others counts too
    whole, one = (json.loads((tmp_path / "reports" / name / "manifest.json").read_text()) for name in ("smoke", "standard"))
    assert one["progress"] == whole["progress"] and 0 < one["spent"]["seconds"] < whole["spent"]["seconds"]


def test_models_are_learned_again_and_results_stay_those_of_the_archive(tiny, tmp_path):
    "A figure that looks into models asks for the runs of another one: the archive has their results, not their models."
    out, said = tmp_path / "out", []
    notebook = nbformat.read(tiny / "fig02_tiny.ipynb", 4)
    notebook.cells[1].source += "\nkeep = True"
    nbformat.write(notebook, tiny / "fig03_tiny.ipynb")
    grid = read_figure(tiny / "fig02_tiny.ipynb", {"profile": "smoke"}).grid
    ensure(grid, tmp_path / "elsewhere.sqlite", jobs=0, progress=False)
    elsewhere = [
        row | {"seconds": 77.0, "train_loss": row["train_loss"] + 1e-9} for row in rows_of(Store(tmp_path / "elsewhere.sqlite"))
    ]  # another machine's last bits
    write_shard(out / "shards", [row | {"checksum": checksum(row)} for row in elsewhere])
    names = ["fig02_tiny", "fig03_tiny"]
    assert reproduce(names, "smoke", out, jobs=1, folder=tiny, stored=True, say=said.append)
    assert "6 in the archive, 0 to compute" in said[0] and "(1 to be run)" in said[0]
    assert list(csvs(out)) == ["fig02_tiny.csv"] and len(csvs(out)["fig02_tiny.csv"].splitlines()) == 1 + 6
    shutil.rmtree(out / "fig02_tiny")
    (out / "runs.sqlite").unlink()
    assert reproduce(names, "smoke", out, jobs=1, folder=tiny, say=said.append) and "6 to compute" in said[-3]
    store = Store(out / "runs.sqlite")
    assert store.done(grid, keep=True) == {r.key for r in grid}
    assert {r["key"]: (r["seconds"], r["train_loss"]) for r in rows_of(store)} == {r["key"]: (77.0, r["train_loss"]) for r in elsewhere}


def test_what_is_there_is_drawn_and_the_page_says_how_much_that_is(tiny, tmp_path):
    out, said = tmp_path / "out", []
    grid = read_figure(tiny / "fig01_tiny.ipynb", {"profile": "smoke"}).grid
    ensure([r for r in grid if r.seed < 2 or r.epochs == 3], out / "runs.sqlite", jobs=0, progress=False)
    assert reproduce((), "smoke", out, jobs=1, folder=tiny, stored=True, say=said.append)
    assert "0 to compute" in said[0] and "(1 to be run)" in said[0] and list(csvs(out)) == ["fig01_tiny.csv"]
    table = (out / "fig01_tiny" / "fig01_tiny.csv").read_text().splitlines()
    assert len(table) == 1 + 8  # two seeds
    page, manifest = (out / "index.html").read_text(), json.loads((out / "manifest.json").read_text())
    assert manifest["progress"] == {"fig01_tiny": [10, 12], "fig02_tiny": [0, 6], "figS1_tiny": [0, 12]}
    assert "fig01 10 of 12 runs (83%)" in page and "fig02_tiny (0 of 6 runs (0%))" in page and "Drawn when 10 of 12 runs (83%) were there" in page
    assert reproduce((), "smoke", out, jobs=1, folder=tiny, stored=True, say=said.append) and "(0 to be run)" in said[-2]
    ensure(grid, out / "runs.sqlite", jobs=0, progress=False)
    assert reproduce((), "smoke", out, jobs=1, folder=tiny, stored=True, say=said.append) and "(1 to be run)" in said[-2]
    assert len((out / "fig01_tiny" / "fig01_tiny.csv").read_text().splitlines()) == 1 + 12
    manifest = json.loads((out / "manifest.json").read_text())
    assert "earlier version" not in (out / "index.html").read_text()
    manifest["figures"]["fig01_tiny"]["algorithm"] -= 1
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert "From runs of an earlier version of the algorithm, not computed again yet: fig01." in write_page(out, get_profile("smoke"), tiny).read_text()


def test_mistakes_cost_one_line(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "notebooks", lambda: tiny)
    for words, said in ((["--part", "3/2"], "K from 1 to N"), (["--part", "1/2", "--stored"], "give one of them")):
        code, output = rvi("reproduce", "--profile", "smoke", "--out", tmp_path / "out", *words)
        assert code == 2 and "\n" not in output and said in output
    (tmp_path / "out" / "shards").mkdir(parents=True)
    (tmp_path / "out" / "shards" / "runs-0123456789abcdef.parquet").write_bytes(b"PAR1")
    code, output = rvi("reproduce", "--profile", "smoke", "--out", tmp_path / "out")
    assert code == 1 and "\n" not in output and "is damaged" in output


# --- spot checks ------------------------------------------------------------------------------------------------------------


def test_runs_computed_again_are_the_same_and_a_forged_one_is_found(computed, tmp_path):
    rows = rows_of(computed)
    write_shard(tmp_path / "honest" / "shards", rows)
    code, output = rvi("runs", "check", tmp_path / "honest" / "shards", "--sample", 4, "--jobs", 1)
    assert code == 0 and output.splitlines()[-1] == "4 of 12 runs computed again: 4 identical, 0 close, 0 different"
    result = json.loads((tmp_path / "honest" / "spot_check.json").read_text())
    assert {r["model"] for r in result["runs"]} == set(PAPER) and result["processor"] == processor()  # each model has its turn
    forged = rows[5] | {"test_loss": rows[5]["test_loss"] * 0.99}
    write_shard(tmp_path / "forged" / "shards", [*rows[:5], forged | {"checksum": checksum(forged)}, *rows[6:]])
    assert import_runs(shards(tmp_path / "forged" / "shards"), Store(tmp_path / "s.sqlite")) == 12  # nothing else would tell
    code, output = rvi("runs", "check", tmp_path / "forged" / "shards", "--sample", 12, "--jobs", 1)
    assert code == 1 and "11 identical, 0 close, 1 different" in output
    [odd] = [r for r in json.loads((tmp_path / "forged" / "spot_check.json").read_text())["runs"] if r["outcome"] == "different"]
    assert odd["key"] == forged["key"]


def test_other_processors_have_some_room(computed):
    "Within the spread over seeds, but not more."
    rows = [row | {"record": row["record"].replace(processor(), "abacus")} for row in rows_of(computed)]
    near = [row | {"train_loss": row["train_loss"] * (1 + 1e-6)} for row in rows]
    far = [row | {"train_loss": row["train_loss"] * 2} for row in rows]
    outcomes = lambda given: {v.outcome for v in check_runs(given, 12, jobs=0, progress=False)}
    assert outcomes(rows) == {"identical"} and outcomes(near) == {"close"} and outcomes(far) == {"different"}
