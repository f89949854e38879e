"""Tables too large to be learned from or held at once: the same result however they are cut."""

import numpy as np
import pandas as pd
import pytest

from rvi_nb import RelayEncoder, RelayImputer
from rvi_nb.impute.columns import Content, kind_of
from rvi_nb.impute.rows import Reservoir, chosen_rows
from rvi_nb.impute.streams import fill_dask, fill_parts, learn_dask, learn_parts

QUICK = {"max_epochs": 3, "latent": 2, "groups": (2,), "hidden": (4,), "variance": 0.1, "inference_steps": 3}


pytestmark = pytest.mark.usefixtures("one_thread")


def imputer(**options):
    return RelayImputer(**{**QUICK, "n_models": 2, **options})


def mixed(n=600, rate=0.3):
    "A table of every kind with holes."
    rng = np.random.default_rng(0)
    z = rng.normal(size=n)
    frame = pd.DataFrame(
        {
            "id": np.arange(n) + 5,
            "length": (z + 0.3 * rng.normal(size=n)).astype(np.float32),
            "age": pd.array(np.rint(10 * z + 50).astype(int), dtype="Int64"),
            "member": pd.array(z > 0, dtype="boolean"),
            "size": pd.Categorical(np.select([z > 0.5, z > -0.5], ["large", "medium"], "small"), ["small", "medium", "large"], ordered=True),
            "town": np.where(z > 0, "NA", "01234"),
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.rint(10 * z), unit="D"),
            "note": [f"remark {i}" for i in range(n)],
        },
        index=[f"i{k}" for k in range(n)],
    )
    return frame.mask((rng.random(frame.shape) < rate) & ~frame.columns.isin(["id"])).astype(frame.dtypes.to_dict())


# learning from some of the rows


def test_learning_from_some_rows_is_learning_from_a_table_of_these():
    x = np.random.default_rng(0).normal(size=(300, 3))
    x[::3, 1] = np.nan
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    rows = chosen_rows(300, 80, seed)
    fewer, alone = imputer(max_rows=80).fit(x), imputer(max_rows=None).fit(x[rows])
    np.testing.assert_array_equal(fewer.transform(x), alone.transform(x))
    assert np.isfinite(fewer.transform(x)).all() and len(fewer.transform(x)) == 300
    assert (fewer.transform(x) != imputer(max_rows=None).fit(x).transform(x)).any()
    np.testing.assert_array_equal(fewer.transform(x), imputer(max_rows=80).fit_transform(x))


@pytest.mark.parametrize("make", [imputer, lambda **o: RelayEncoder(**{**QUICK, **o})])
def test_max_rows_for_both_and_every_seed_its_rows(make):
    x = np.random.default_rng(0).normal(size=(300, 3))
    results = [make(max_rows=40, random_state=s).fit(x).units_.columns.mean for s in (0, 0, 1)]
    np.testing.assert_array_equal(results[0], results[1])
    assert (results[0] != results[2]).all()
    with pytest.raises(ValueError, match="'max_rows' parameter"):
        make(max_rows=0).fit(x)


@pytest.mark.filterwarnings("ignore:column 'note'")
def test_kinds_are_those_of_the_whole_frame():
    frame = mixed()
    frame["rare"] = np.where(np.arange(600) == 599, 0.5, np.nan)  # one cell in one row
    frame["late"] = np.where(np.arange(600) < 590, 2.0, 2.5)
    model = imputer(max_rows=30).fit(frame)
    assert model.columns_["id"] == "ignore" and model.columns_["rare"] == "number" and model.columns_["late"] == "number"
    out = model.transform(frame)
    assert list(out.dtypes) == list(frame.dtypes) and out.index.equals(frame.index) and out["rare"].notna().all()
    assert not out.drop(columns="note").isna().any().any()


def test_rows_not_learned_from_are_checked_as_well():
    with pytest.raises(ValueError, match="column 'a' holds inf in row 199"):
        imputer(max_rows=5).fit(pd.DataFrame({"a": [*np.arange(199) / 7, np.inf]}))


def test_a_file_keeps_max_rows(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 3))
    imputer(max_rows=20).fit(x).save(tmp_path / "m")
    assert RelayImputer.load(tmp_path / "m").max_rows == 20


@pytest.mark.parametrize("size", [13, 600])
def test_kinds_and_chosen_rows_do_not_depend_on_the_cut(size):
    frame, reservoir = mixed(), Reservoir(50, seed=4)
    contents = None
    for start in range(0, 600, size):
        part = frame.iloc[start : start + size]
        reservoir.add(part)
        new = [Content.of(part[name]) for name in frame]
        contents = new if contents is None else [a + b for a, b in zip(contents, new, strict=True)]
    assert [c.kind for c in contents] == [kind_of(frame[name]) for name in frame]
    pd.testing.assert_frame_equal(reservoir.rows(), frame.iloc[chosen_rows(600, 50, seed=4)])


# tables in parts


def parts(frame, size):
    return (frame.iloc[start : start + size] for start in range(0, len(frame), size))


@pytest.mark.filterwarnings("ignore:column 'note'")
@pytest.mark.parametrize("size", [37, 600])
def test_learning_and_filling_in_parts_is_as_in_memory(size):
    frame = mixed()
    frame["rare"] = np.where(np.arange(600) == 599, 0.5, np.nan)
    whole = imputer(max_rows=60).fit(frame)
    model = learn_parts(imputer(max_rows=60), parts(frame, size))
    assert model.columns_ == whole.columns_ and model.columns == "auto" and model.max_rows == 60
    np.testing.assert_array_equal(model.units_.holes, whole.units_.holes)
    filled = pd.concat(fill_parts(model, parts(frame, size)))
    pd.testing.assert_frame_equal(filled, whole.transform(frame), check_exact=True)


def test_marked_holes_in_parts():
    x = np.random.default_rng(0).integers(0, 9, (200, 3))
    frame = pd.DataFrame(np.where(np.random.default_rng(1).random(x.shape) < 0.3, -1, x), columns=list("abc"))
    whole = imputer(max_rows=50, missing_values=-1).fit(frame)
    model = learn_parts(imputer(max_rows=50, missing_values=-1), parts(frame, 30))
    pd.testing.assert_frame_equal(model.transform(frame), whole.transform(frame), check_exact=True)
    assert (model.transform(frame) >= 0).all().all()


@pytest.mark.parametrize(
    ("columns", "cells", "words"),
    [
        ("auto", [1.5] * 19 + [np.inf], "column 'a' holds inf in row 19"),
        ({"a": "number"}, [1.5] * 19 + ["x"], "column 'a' holds 'x' in row 19: it is no number"),
        ({"a": "boolean"}, ["x", "y"] * 9 + ["z", "x"], "column 'a' cannot be boolean: it has 3 values"),
        ({"b": "number"}, [1.5] * 20, "columns names 'b', which is not a column of the table: a"),
    ],
)
def test_mistakes_in_any_part_are_found_before_learning(columns, cells, words, monkeypatch):
    monkeypatch.setattr(RelayImputer, "fit", lambda *_: pytest.fail("learned"))
    with pytest.raises(ValueError, match=words):
        learn_parts(imputer(columns=columns), parts(pd.DataFrame({"a": pd.Series(cells, dtype=object if isinstance(cells[-1], str) else float)}), 4))


def test_holes_that_stay_are_said_for_the_whole_table():
    frame = mixed()
    with pytest.warns(UserWarning, match=f"column 'note' .* its {frame['note'].isna().sum()} holes stay"):
        learn_parts(imputer(max_rows=60), parts(frame, 50))


@pytest.mark.filterwarnings("ignore:column 'note'")
@pytest.mark.parametrize("columns", ["auto", {"town": "ignore", "age": "number"}])
def test_dask_on_a_local_cluster(columns):
    pytest.importorskip("dask.dataframe")
    from dask import dataframe
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster, Client(cluster):
        lazy = dataframe.from_pandas(mixed(), npartitions=5, sort=False)
        filled = fill_dask(learn_dask(imputer(max_rows=60, columns=columns), lazy), lazy)
        assert filled.npartitions == 5 and list(filled.dtypes) == list(lazy.dtypes)
        before, after = lazy.compute(), filled.compute()
    pd.testing.assert_frame_equal(after, imputer(max_rows=60, columns=columns).fit(before).transform(before), check_exact=True)
    for name in before:
        assert after[name][before[name].notna()].tolist() == before[name].dropna().tolist(), name
    assert after.isna().sum().sum() == before[["note", "town"] if columns != "auto" else ["note"]].isna().sum().sum()


def test_draws_in_parts_are_as_in_memory():
    frame = mixed().drop(columns="note")
    model = imputer().fit(frame)
    whole = model.impute(frame, n_draws=3, random_state=4)
    drawn = [model.impute(frame.iloc[start : start + 256], n_draws=3, random_state=4, first_row=start) for start in (0, 256, 512)]
    for i, table in enumerate(whole):
        pd.testing.assert_frame_equal(pd.concat([part[i] for part in drawn]), table, check_exact=True)
    again = model.impute(frame.iloc[256:512], n_draws=3, random_state=4)
    assert not again[0].equals(drawn[1][0])  # other rows of a table have other draws
    with pytest.raises(ValueError, match="first_row must be a multiple of 128, got 100"):
        model.impute(frame, first_row=100)


def test_the_encoder_learns_from_parts_too():
    frame = mixed().drop(columns="note")
    whole = RelayEncoder(**QUICK, max_rows=60).fit(frame)
    np.testing.assert_array_equal(learn_parts(RelayEncoder(**QUICK, max_rows=60), parts(frame, 100)).transform(frame), whole.transform(frame))
