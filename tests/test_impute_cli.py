"""`rvi impute`: files in, files out, nothing changed but the holes, and one line for what goes wrong."""

import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from rvi_nb import RelayImputer
from rvi_nb.cli import command, filling
from rvi_nb.cli.command import main
from rvi_nb.impute import estimators

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
    monkeypatch.setattr(estimators, "RelayImputer", Quick)


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
    for notice in ("id: passed through, 0 of 0", "empty: passed through, 0 of 5", "9 holes in 5 rows and 5 columns", "length: number, 1 of 1 holes filled"):
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
    assert result.exit_code == 0, result.output
    assert "column 'other' is not one of the model's" in result.output
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
        ("a,b\n1,2\n3,many\n5,6\n", ("'b'", "'many'", "--missing", "--columns b=category")),
        ("a,b\n1,2\ninf,4\n", ("'a'", "row 2", "infinite")),
        ("a,b\n1,2\n3\n", ("row 2", "1 cells")),
        ("a,a\n1,2\n", ("'a' occurs twice",)),
        ("a\nx\ny\nz\n", ("no column to learn from",)),
        ("a,b\n", ("header",)),
        ("", ("header",)),
        ("a\n\x00\xff\n1\n", ("--encoding",)),
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
        (("in.csv", "out.parquet.gz"), ("out.parquet.gz", ".csv.gz")),
        (("in.csv", "out.csv", "--columns", "length"), ("--columns", "NAME=KIND", "'length'")),
        (("in.csv", "out.csv", "--columns", "length=colour"), ("--columns", "category", "'length=colour'")),
        (("in.csv", "out.csv", "--sep", "ab"), ("--sep", "'ab'")),
        (("in.csv", "out.csv", "--encoding", "klingon"), ("--encoding", "klingon")),
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


def countries(n=40):
    "A table in which text looks like numbers and holes look like text."
    rows = [
        f"{9007199254740993 + i},{'NA' if i % 2 else 'DE'},{'01234' if i % 2 else '98765'},{i % 2 or ''},2024-03-{1 + i % 9:02d},{i % 5}.50" for i in range(n)
    ]
    rows[3], rows[6] = "9007199254740996,,,?,NULL,N/A", "9007199254740999,DE,98765,,,-999"
    return "id,land,zip,member,day,size\n" + "\n".join(rows) + "\n"


def test_text_stays_text(folder):
    (folder / "c.csv").write_text(countries())
    result = run(folder / "c.csv", folder / "out.csv", "--missing", "-999")
    assert result.exit_code == 0, result.output
    before, after = cells(folder / "c.csv"), cells(folder / "out.csv")
    holes = before.isin(["", "?", "NULL", "N/A", "-999"])
    pd.testing.assert_frame_equal(after.where(~holes), before.where(~holes))  # NA is Namibia, 01234 a postcode, every digit of the identifiers is there
    assert after["land"].isin(["NA", "DE"]).all() and after["zip"].isin(["01234", "98765"]).all() and after["member"].isin(["0", "1"]).all()
    assert after["day"].str.fullmatch(r"2024-03-\d\d").all() and 0.5 <= float(after["size"][6]) <= 4.5
    for line in ("id: passed through", "land: category, 1 of 1 holes filled, expected error", "zip: category", "day: date, 2 of 2", "size: number, 2 of 2"):
        assert line in result.output


def test_minus_999_is_data_unless_it_is_said(folder):
    (folder / "c.csv").write_text(countries())
    assert run(folder / "c.csv", folder / "out.csv").exit_code == 0
    assert cells(folder / "out.csv")["size"][6] == "-999"


@pytest.mark.parametrize("mark", ["?", "NULL", "N/A", ".", "null", "NaN", "-"])
def test_usual_marks_are_holes_among_numbers(mark, folder):
    (folder / "m.csv").write_text("a,b\n" + "".join(f"{mark if i % 4 == 0 else i / 3},{i % 7}\n" for i in range(30)))
    result = run(folder / "m.csv", folder / "out.csv")
    assert result.exit_code == 0 and "a: number, 8 of 8 holes filled" in result.output
    assert cells(folder / "out.csv")["a"].astype(float).between(1 / 3, 29 / 3).all()


def test_whole_numbers_and_booleans_of_a_text_file(folder):
    (folder / "w.csv").write_text(
        "year,yes,flag\n" + "".join(f"{1990 + i % 20 if i % 4 else ''},{('yes', 'no')[i % 2] if i % 3 else ''},{i % 2 if i % 5 else ''}\n" for i in range(60))
    )
    for options in ((), ("--draws", 1)):
        assert run(folder / "w.csv", folder / "out.csv", "--force", *options).exit_code == 0
        out = cells(folder / ("out-1.csv" if options else "out.csv"))
        assert out["year"].str.fullmatch(r"(19|20)\d\d").all() and out["yes"].isin(["yes", "no"]).all() and out["flag"].isin(["0", "1"]).all()


def test_other_dialects(folder):
    (folder / "c.csv").write_bytes(countries().replace(",", ";").replace("DE", "\xd6").encode("latin-1"))
    assert run(folder / "c.csv", folder / "out.tsv.gz", "--sep", ";", "--encoding", "latin-1", "--exclude", "land", "--columns", "zip=ignore").exit_code == 0
    after = pd.read_csv(folder / "out.tsv.gz", sep=";", encoding="latin-1", dtype=str, keep_default_na=False)
    assert after["land"][0] == "\xd6" and after["land"][3] == "" and after["zip"][3] == "" and after["member"][3] in ("0", "1")
    (folder / "plain.tsv").write_text(countries().replace(",", "\t"))
    assert run(folder / "plain.tsv", folder / "out.csv.gz").exit_code == 0
    assert list(cells(folder / "out.csv.gz").columns) == ["id", "land", "zip", "member", "day", "size"]


def test_seed_and_jobs(folder):
    (folder / "c.csv").write_text(countries(300))
    outputs = {}
    for name, options in {"a": (), "b": ("--jobs", 2), "other": ("--seed", 5)}.items():
        assert run(folder / "c.csv", folder / f"{name}.csv", *options).exit_code == 0
        outputs[name] = (folder / f"{name}.csv").read_bytes()
    assert outputs["a"] == outputs["b"] != outputs["other"]


def test_a_blank_line_of_one_column_is_a_hole(folder):
    (folder / "one.csv").write_text("a\n1.5\n\n3.5\n")
    assert run(folder / "one.csv", folder / "out.csv").exit_code == 0
    after = cells(folder / "out.csv")["a"]
    assert len(after) == 3 and 1.5 <= float(after[1]) <= 3.5


def test_parquet_keeps_index_and_dtypes(folder):
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "t": ["x", None, "z"] * 10,
            "a": rng.normal(size=30).astype(np.float32),
            "n": pd.array(rng.integers(0, 9, 30), dtype="Int64"),
            "flag": pd.array(rng.random(30) < 0.5, dtype="boolean"),
            "size": pd.Categorical(["s", "m", "l"] * 10, ["s", "m", "l"], ordered=True),
            "id": 9007199254740993 + np.arange(30),
        },
        index=pd.Index([f"i{k}" for k in range(30)], name="row"),
    )
    frame.loc[frame.index[::4], ["a", "n", "flag", "size"]] = None
    frame.to_parquet(folder / "in.parquet")
    assert run(folder / "in.parquet", folder / "out.parquet").exit_code == 0
    before, out = pd.read_parquet(folder / "in.parquet"), pd.read_parquet(folder / "out.parquet")
    assert list(out.dtypes) == list(before.dtypes) and out.index.equals(before.index) and not out.isna().any().any()
    for name in before:
        assert out[name][before[name].notna()].tolist() == before[name].dropna().tolist(), name
    (folder / "c.csv").write_text(countries())
    assert run(folder / "c.csv", folder / "c.parquet").exit_code == 0
    converted = pd.read_parquet(folder / "c.parquet")
    assert (
        converted["id"].tolist() == [9007199254740993 + i for i in range(40)]
        and converted["zip"][1] == "01234"
        and str(converted["day"].dtype).startswith("datetime64")
    )
    assert run(folder / "in.parquet", folder / "mixed.csv").exit_code == 0
    assert cells(folder / "mixed.csv")["id"][29] == "9007199254741022"
    (folder / "bad.parquet").write_text("no")
    failed(run(folder / "bad.parquet", folder / "o.parquet"), 1)


def test_parquet_of_other_programs(folder):
    "Integers, booleans and days with holes, as Arrow has them, and -999 as a number."
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    days = pa.array([19000 + i % 9 if i % 4 else None for i in range(40)], pa.date32())
    table = pa.table(
        {
            "big": pa.array([9007199254740993 + i if i % 5 else None for i in range(40)]),
            "small": pa.array([i % 7 if i % 4 else None for i in range(40)], pa.uint8()),
            "yes": pa.array([bool(i % 2) if i % 3 else None for i in range(40)]),
            "day": days,
            "size": pa.array([-999.0 if i % 6 == 0 else i / 7 for i in range(40)], pa.float32()),
            "tags": pa.array([[i] if i % 2 else None for i in range(40)]),
        }
    ).replace_schema_metadata({"origin": "elsewhere"})
    pq.write_table(table, folder / "in.parquet", row_group_size=7)
    result = run(folder / "in.parquet", folder / "out.parquet", "--missing", "-999")
    assert result.exit_code == 0, result.output
    out = pq.read_table(folder / "out.parquet")
    assert out.schema.equals(table.schema) and out.schema.metadata[b"origin"] == b"elsewhere"
    for name in table.column_names:
        was, now = table[name].to_pylist(), out[name].to_pylist()
        holes = [v is None or v == -999 for v in was]
        assert [v for v, hole in zip(now, holes, strict=True) if not hole] == [v for v, hole in zip(was, holes, strict=True) if not hole], name
        assert all((v is None) == (name in ("big", "tags")) for v, hole in zip(now, holes, strict=True) if hole), name
    assert min(out["size"].to_pylist()) >= 0 and "size: number, 7 of 7 holes filled" in result.output


def test_spreadsheets(folder):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["land", "zip", "x", "n"])
    for i in range(20):
        book.active.append([("NA", "DE")[i % 2], ("01234", "98765")[i % 2], None if i == 3 else "n/a" if i == 5 else i / 4, None if i % 4 == 0 else i % 3])
    book.active["A2"].font = openpyxl.styles.Font(bold=True)
    book.create_sheet("notes")["B2"] = "=1+1"
    book.save(folder / "in.xlsx")
    assert run(folder / "in.xlsx", folder / "out.xlsx").exit_code == 0
    out = openpyxl.load_workbook(folder / "out.xlsx")
    assert out["notes"]["B2"].value == "=1+1" and out.worksheets[0]["A2"].font.bold
    was, now = (list(b.worksheets[0].iter_rows(min_row=2, values_only=True)) for b in (book, out))
    for before, after in zip(was, now, strict=True):
        assert before[:2] == after[:2]
        assert all(a == b or (b in (None, "n/a") and isinstance(a, int | float)) for a, b in zip(after, before, strict=True))
    assert all(isinstance(row[3], int) for row in now) and sum(row[3] is None for row in was) == 5
    assert run(folder / "in.xlsx", folder / "out.csv").exit_code == 0
    assert cells(folder / "out.csv")["zip"][0] == "01234"
    assert run(folder / "in.csv", folder / "new.xlsx").exit_code == 0
    assert pd.read_excel(folder / "new.xlsx")["width"].notna().all()
    (folder / "bad.xlsx").write_text("no")
    failed(run(folder / "bad.xlsx", folder / "o.csv"), 1, "bad.xlsx")


def test_a_library_that_is_missing_is_named(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    failed(run(folder / "in.csv", folder / "out.xlsx"), 1, "openpyxl", "pip install")
    failed(run(folder / "in.csv", folder / "out.parquet"), 1, "pyarrow", "pip install")


# larger than memory


@pytest.fixture
def rows_of_a_part(monkeypatch):
    "Sets how many rows a part has, and remembers how many the parts that were filled had."
    seen, call = [], filling.Filler.__call__

    def counted(self, item):
        result = call(self, item)
        seen.append(result[1])
        return result

    def set_size(n):
        seen.clear()
        for module in (filling, command):
            monkeypatch.setattr(module, "SIZE", n)
        return seen

    monkeypatch.setattr(filling.Filler, "__call__", counted)
    return set_size


@pytest.mark.parametrize("options", [(), ("--draws", 2)])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_the_result_does_not_depend_on_the_parts(folder, suffix, options, rows_of_a_part):
    (folder / "in.csv").write_text(countries(700))
    assert run(folder / "in.csv", folder / f"in.{suffix}", "--exclude", "land", "--force").exit_code == 0
    results = []
    for size in (256, 512, 2**14):
        seen = rows_of_a_part(size)
        assert run(folder / f"in.{suffix}", folder / f"out.{suffix}", "--max-rows", 150, "--force", *options).exit_code == 0
        assert seen == [min(size, 700 - start) for start in range(0, 700, size)]
        outputs = [folder / f"out-{i}.{suffix}" for i in (1, 2)] if options else [folder / f"out.{suffix}"]
        results.append([pd.read_parquet(o) if suffix == "parquet" else cells(o) for o in outputs])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            pd.testing.assert_frame_equal(a, b, check_exact=True)


@pytest.mark.parametrize("draws", [None, 2])
def test_a_file_is_filled_as_its_table_in_memory(folder, draws, rows_of_a_part):
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    z = rng.normal(size=600)
    frame = pd.DataFrame(
        {"id": range(600), "x": z + rng.normal(size=600), "n": np.rint(z * 3), "c": np.where(z > 0, "a", "b"), "note": [f"no. {i}" for i in range(600)]}
    )
    frame = frame.mask((rng.random(frame.shape) < 0.3) & frame.columns.isin(["x", "n", "c"])).astype({"id": "int64"})
    frame.to_parquet(folder / "in.parquet", row_group_size=100)
    rows_of_a_part(256)
    assert run(folder / "in.parquet", folder / "out.parquet", "--max-rows", 200, *(("--draws", draws) if draws else ())).exit_code == 0
    model = estimators.RelayImputer(max_rows=200).fit(frame := pd.read_parquet(folder / "in.parquet"))
    expected = model.impute(frame, draws) if draws else [model.transform(frame)]
    for i, table in enumerate(expected, 1):
        pd.testing.assert_frame_equal(pd.read_parquet(folder / (f"out-{i}.parquet" if draws else "out.parquet")), table, check_exact=True)


def test_categories_that_differ_between_groups_of_rows(folder):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parts = [
        pa.table({"c": pa.array(v, pa.string()).dictionary_encode(), "x": [i / 3 for i in range(len(v))]}) for v in (["p", "q", None] * 9, ["r", None, "p"] * 9)
    ]
    with pq.ParquetWriter(folder / "in.parquet", parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)
    assert run(folder / "in.parquet", folder / "out.parquet").exit_code == 0
    was, now = (pq.read_table(folder / name)["c"].to_pylist() for name in ("in.parquet", "out.parquet"))
    assert all(b == a or a is None for a, b in zip(was, now, strict=True)) and set(now) == {"p", "q", "r"}


@pytest.mark.parametrize(
    ("last", "options", "words"),
    [
        ("inf,x", (), ("'a'", "row 700", "infinite")),
        ("many,x", (), ("'a'", "'many'", "--missing")),
        ("5", (), ("row 700 has 1 cells",)),
        ("5,z", ("--columns", "b=boolean"), ("'b' cannot be boolean", "3 values")),
        ("5,x", ("--columns", "b=number"), ("'b'", "row 1", "'y'")),
        ("5,x", ("--columns", "b=date"), ("'b' cannot be a date",)),
        ("5,x", ("--columns", "c=number"), ("'c'", "not a column")),
        ("5,x", ("--exclude", "c"), ("'c'", "not a column")),
    ],
)
def test_what_cannot_be_done_fails_before_learning(last, options, words, folder, monkeypatch):
    (folder / "long.csv").write_text("a,b\n" + "\n".join([f"{i / 7},{'xy'[i % 2]}" if i % 5 else ",x" for i in range(1, 700)] + [last]) + "\n")
    monkeypatch.setattr(estimators.RelayImputer, "_learn", lambda *_: pytest.fail("learned"))
    failed(run(folder / "long.csv", folder / "out.csv", "--max-rows", 20, "--save-model", folder / "m", *options), 1, *words)
    assert sorted(p.name for p in folder.iterdir()) == ["in.csv", "long.csv"]


def test_infinity_in_a_parquet_file_fails_before_learning(folder, monkeypatch):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": [*np.arange(699) / 7, np.inf], "b": [1.5, None] * 350}).to_parquet(folder / "in.parquet")
    monkeypatch.setattr(estimators.RelayImputer, "_learn", lambda *_: pytest.fail("learned"))
    failed(run(folder / "in.parquet", folder / "out.parquet", "--max-rows", 20), 1, "'a' holds inf in row 699")


def test_a_failure_while_filling_leaves_nothing(folder, monkeypatch, rows_of_a_part):
    (folder / "c.csv").write_text(countries(700))
    rows_of_a_part(256)
    transform, calls = estimators.RelayImputer.transform, []

    def fails_later(self, X):
        calls.append(len(X))
        if len(calls) == 3:
            raise OSError("disk full")
        return transform(self, X)

    monkeypatch.setattr(estimators.RelayImputer, "transform", fails_later)
    failed(run(folder / "c.csv", folder / "out.csv"), 1, "out.csv", "disk full")
    assert len(calls) == 3
    assert sorted(p.name for p in folder.iterdir()) == ["c.csv", "in.csv"]


def test_bars_have_an_end(folder, monkeypatch):
    import tqdm

    ends, init = {}, tqdm.tqdm.__init__
    monkeypatch.setattr(tqdm.tqdm, "__init__", lambda self, *a, **k: (ends.__setitem__(k.get("desc"), k.get("total")), init(self, *a, **k))[1])
    (folder / "c.csv").write_text(countries(300))
    assert run(folder / "c.csv", folder / "out.csv").exit_code == 0
    assert ends["read"] == (folder / "c.csv").stat().st_size and ends["fill"] == 300


def heed_interrupts():
    "A process started in the background ignores SIGINT, and so would its children."
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_leaves_nothing(folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(3000, 8))).mask(rng.random((3000, 8)) < 0.3)
    frame.to_csv(folder / "large.csv", index=False)
    command = [sys.executable, "-c", "from rvi_nb.cli.command import main; main()", "impute", "large.csv", "out.csv", "--save-model", "m"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
    assert "holes" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert sorted(p.name for p in folder.iterdir()) == ["in.csv", "large.csv"]
