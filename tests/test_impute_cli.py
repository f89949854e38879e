"""`rvi impute`: files in, files out, nothing changed but the holes, and one line for what goes wrong."""

import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from rvi_nb import RelayImputer, estimator
from rvi_nb.cli import main

TABLE = 'id,length,note,width,empty\nr1,1.50,fine,2e0,\nr2,,"a, b",4,\nr3,3.25,,NA,\nr4,+4,x,NaN,\nr5, 5.5,y,10,\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    "Little learning: these tests are about files."
    init = RelayImputer.__init__

    class Quick(RelayImputer):
        def fit(self, X, y=None):
            self.set_params(max_epochs=2, inference_steps=3, n_models=2, latent=2, groups=(2,), hidden=(4,), variance=0.1)
            return super().fit(X, y)

    Quick.__init__, Quick.__name__ = init, "RelayImputer"
    monkeypatch.setattr(estimator, "RelayImputer", Quick)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in.csv").write_text(TABLE)
    return tmp_path


def run(*args):
    return CliRunner().invoke(main, ["impute", *map(str, args)])


def failed(result, status, *words):
    "One line that says what is wrong."
    assert result.exit_code == status
    lines = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1 and result.output.endswith(lines[0] + "\n")
    assert all(str(word) in lines[0] for word in words), lines[0]


def cells(path):
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def test_only_holes_change(folder):
    result = run(folder / "in.csv", folder / "out.csv")
    assert result.exit_code == 0, result.output
    for notice in ("column 'id' is text", "column 'note' is text", "column 'empty' has no values", "3 holes in 5 rows and 2 numeric columns"):
        assert notice in result.output
    before, after = cells(folder / "in.csv"), cells(folder / "out.csv")
    assert list(before.columns) == list(after.columns)
    hole = before.isin(["", "NA", "NaN"]) & before.columns.isin(["length", "width"])
    pd.testing.assert_frame_equal(after.where(~hole), before.where(~hole))
    assert np.isfinite(after.to_numpy()[hole.to_numpy()].astype(float)).all() and hole.sum().sum() == 3


def test_output_is_deterministic_and_not_overwritten(folder):
    run(folder / "in.csv", folder / "a.csv")
    run(folder / "in.csv", folder / "b.csv")
    first = (folder / "a.csv").read_bytes()
    assert first == (folder / "b.csv").read_bytes()
    failed(run(folder / "in.csv", folder / "a.csv"), 2, "a.csv", "--force")
    assert run(folder / "in.csv", folder / "a.csv", "--force").exit_code == 0
    assert (folder / "a.csv").read_bytes() == first


def test_draws(folder):
    assert run(folder / "in.csv", folder / "out.csv", "--draws", 3).exit_code == 0
    tables = [cells(folder / f"out-{i}.csv") for i in (1, 2, 3)]
    assert not (folder / "out.csv").exists() and len({t["length"][1] for t in tables}) == 3
    failed(run(folder / "in.csv", folder / "out.csv", "--draws", 2), 2, "out-1.csv")
    failed(run(folder / "in.csv", folder / "new.csv", "--draws", 0), 2, "draws")


def test_stored_model(folder):
    assert run(folder / "in.csv", folder / "a.csv", "--save-model", folder / "m").exit_code == 0
    assert run(folder / "in.csv", folder / "b.csv", "--model", folder / "m").exit_code == 0
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    (folder / "new.csv").write_text("width,other,length\n,7,\n3,,1\n")
    result = run(folder / "new.csv", folder / "c.csv", "--model", folder / "m")
    assert result.exit_code == 0 and "column 'other' is not one of the model's" in result.output
    after = cells(folder / "c.csv")
    assert list(after.columns) == ["width", "other", "length"] and list(after["other"]) == ["7", ""] and float(after["width"][0]) > 0
    (folder / "less.csv").write_text("width\n3\n")
    failed(run(folder / "less.csv", folder / "d.csv", "--model", folder / "m"), 1, "'length'", "needed by the model")
    (folder / "text.csv").write_text("width,length\na,3\nb,4\n")
    failed(run(folder / "text.csv", folder / "d.csv", "--model", folder / "m"), 1, "'width'", "row 1", "'a'")
    failed(run(folder / "in.csv", folder / "d.csv", "--model", folder / "m", "--save-model", folder / "n"), 2, "--save-model")
    (folder / "m").write_bytes(b"nonsense")
    failed(run(folder / "in.csv", folder / "d.csv", "--model", folder / "m"), 1, "damaged")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n3,many\n5,6\n", ("'b'", "row 2", "'many'")),
        ("a,b\n1,2\ninf,4\n", ("'a'", "row 2", "infinite")),
        ("a,b\n1,2\n3\n", ("row 2", "1 cells")),
        ("a,a\n1,2\n", ("'a' occurs twice",)),
        ("a,b\nx,y\n", ("no numeric column",)),
        ("a,b\n", ("header",)),
        ("", ("header",)),
        ("a\n\x00\xff\n1\n", ()),
    ],
)
def test_bad_tables(text, words, folder):
    (folder / "bad.csv").write_bytes(text.encode("latin-1"))
    failed(run(folder / "bad.csv", folder / "out.csv"), 1, *words)
    assert not (folder / "out.csv").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("none.csv", "out.csv"), ("none.csv",)),
        (("in.csv", "out.txt"), ("out.txt", ".parquet")),
        (("in.csv", "no/out.csv"), ("no folder",)),
        (("in.csv",), ("OUT",)),
    ],
)
def test_mistakes(args, words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    failed(run(*args), 2, *words)


def test_nothing_to_fill_and_one_row(folder):
    (folder / "full.csv").write_text("a,b\n1.0,2\n3,4\n")
    assert run(folder / "full.csv", folder / "out.csv").exit_code == 0
    assert (folder / "out.csv").read_text() == "a,b\n1.0,2\n3,4\n"
    (folder / "one.csv").write_text("a,b\n1,\n")
    assert run(folder / "one.csv", folder / "one-out.csv").exit_code == 0
    assert (folder / "one-out.csv").read_text() == "a,b\n1,\n"


def test_parquet(folder):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"t": ["x", None, "z"], "a": [1.5, np.nan, 3.0], "b": [1, 2, 3]})
    frame.to_parquet(folder / "in.parquet")
    assert run(folder / "in.parquet", folder / "out.parquet").exit_code == 0
    out = pd.read_parquet(folder / "out.parquet")
    assert list(out.columns) == list(frame.columns) and (out["b"] == frame["b"]).all() and out["a"].notna().all()
    assert out["a"].dtype == np.float64 and out["b"].dtype == np.int64 and list(out["t"].isna()) == [False, True, False]
    assert run(folder / "in.csv", folder / "mixed.parquet").exit_code == 0
    assert pd.read_parquet(folder / "mixed.parquet")["length"].dtype == np.float64
    assert run(folder / "in.parquet", folder / "mixed.csv").exit_code == 0
    (folder / "bad.parquet").write_text("no")
    failed(run(folder / "bad.parquet", folder / "o.parquet"), 1)


def heed_interrupts():
    "A process started in the background ignores SIGINT, and so would its children."
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_leaves_nothing(folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(3000, 8))).mask(rng.random((3000, 8)) < 0.3)
    frame.to_csv(folder / "large.csv", index=False)
    command = [sys.executable, "-c", "from rvi_nb.cli import main; main()", "impute", "large.csv", "out.csv", "--save-model", "m"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
    assert "holes" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert sorted(p.name for p in folder.iterdir()) == ["in.csv", "large.csv"]
