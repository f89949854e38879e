"""RelayImputer on data frames as people have them: every kind of column, the same dtypes out, and nothing observed ever changed."""

import warnings

import numpy as np
import pandas as pd
import pytest

from rvi_nb import RelayEncoder, RelayImputer

QUICK = {"max_epochs": 40, "latent": 3, "groups": (2, 4), "hidden": (16,), "variance": 0.1}


pytestmark = pytest.mark.usefixtures("one_thread")


def imputer(**options):
    return RelayImputer(**{**QUICK, "n_models": 2, **options})


def people(n=100, rate=0.3):
    "A table of every kind, all about one hidden number, and the same with holes."
    rng = np.random.default_rng(0)
    z = rng.normal(size=n)
    full = pd.DataFrame(
        {
            "id": [f"r{i}" for i in range(n)],
            "length": (z + 0.3 * rng.normal(size=n)).astype(np.float32),
            "age": pd.array(np.rint(10 * z + 50).astype(int), dtype="Int64"),
            "member": pd.array(z > 0, dtype="boolean"),
            "size": pd.Categorical(np.select([z > 0.5, z > -0.5], ["large", "medium"], "small"), ["small", "medium", "large"], ordered=True),
            "level": pd.Categorical(np.where(z > 0, 3, 7)),
            "town": np.where(z > 0, "NA", "01234"),
            "old": np.where(z > 0, "p", "q").astype(object),
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.rint(10 * z), unit="D"),
            "year": np.rint(2000 + 5 * z),
            "flag": (z > 0).astype(float),
        },
        index=[f"i{k}" for k in range(n)],
    )
    holed = full.copy()
    for name in full.columns[1:]:
        holed.loc[rng.random(n) < rate, name] = None
    return full, holed


@pytest.fixture(scope="module")
def fitted():
    full, holed = people()
    return imputer().fit(holed), full, holed


def same_where_observed(before, after):
    assert list(after.columns) == list(before.columns) and after.index.equals(before.index)
    assert list(after.dtypes) == list(before.dtypes)
    for name in before:
        seen = before[name].notna().to_numpy()
        assert after[name][seen].tolist() == before[name][seen].tolist(), name


def test_kinds_are_inferred(fitted):
    kinds = {"id": "ignore", "length": "number", "age": "whole", "member": "boolean", "size": "category", "level": "category", "town": "category"}
    assert fitted[0].columns_ == {**kinds, "old": "category", "seen": "date", "year": "whole", "flag": "boolean"}


def test_dtypes_index_and_observed_cells_survive(fitted):
    model, _, holed = fitted
    before = holed.copy(deep=True)
    for out in (model.transform(holed), *model.impute(holed, n_draws=3)):
        same_where_observed(holed, out)
        assert not out.isna().any().any()
        assert (out["year"] == out["year"].round()).all() and out["flag"].isin([0.0, 1.0]).all()
        assert set(out["town"]) == {"NA", "01234"} and out["level"].isin([3, 7]).all()
        assert out["age"].between(holed["age"].min(), holed["age"].max()).all()
        assert (out["seen"] == out["seen"].dt.normalize()).all()
    pd.testing.assert_frame_equal(holed, before)


def test_guesses_know_more_than_the_most_frequent_value(fitted):
    model, full, holed = fitted
    out = model.transform(holed)
    for name in ("member", "size", "town", "flag"):
        holes = holed[name].isna()
        assert (out[name][holes] == full[name][holes]).mean() > full[name].value_counts(normalize=True).max(), name
    errors = dict(zip(holed.columns, model.column_errors_, strict=True))
    assert np.isnan(errors["id"]) and errors["town"] < 0.5 and errors["age"] < full["age"].std()


def test_draws_of_categories_vary_as_they_should(fitted):
    model, _, holed = fitted
    draws = model.impute(holed, n_draws=20)
    shares = pd.concat([d["size"][holed["size"].isna()] for d in draws], axis=1).nunique(axis=1)
    assert (shares > 1).mean() > 0.3  # not always the most probable one


def test_told_kinds():
    _, holed = people()
    told = imputer(columns={"town": "ignore", "year": "number", "age": "category"}).fit(holed)
    assert [told.columns_[name] for name in ("town", "year", "age", "size")] == ["ignore", "number", "category", "category"]
    out = told.transform(holed)
    assert out["town"].isna().sum() == holed["town"].isna().sum() and (out["year"] != out["year"].round()).any()
    assert set(out["age"]) <= set(holed["age"].dropna())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"zip": "category"}, "columns names 'zip', which is not a column of the table"),
        ({"town": "colour"}, "columns must give one of number, whole, .* for 'town', got 'colour'"),
        ({"town": "number"}, "column 'town' holds 'NA' in row 'i0': it is no number"),
        ({"size": "boolean"}, "column 'size' cannot be boolean: it has 3 values"),
        ({"town": "date"}, "column 'town' cannot be a date"),
        ("numbers", "The 'columns' parameter of RelayImputer must be"),
    ],
)
def test_wrong_kinds_are_explained(columns, words):
    full, _ = people(20)
    with pytest.raises(ValueError, match=words):
        imputer(columns=columns).fit(full)


def test_kinds_by_name_need_a_frame():
    with pytest.raises(ValueError, match="columns gives kinds by name, which needs a data frame, got ndarray"):
        imputer(columns={"a": "category"}).fit(np.eye(3))


def test_free_text_with_holes_is_said():
    frame = pd.DataFrame({"note": [f"remark {i}" for i in range(29)] + [None], "x": np.arange(30) / 7})
    with pytest.warns(UserWarning, match="column 'note' .* passed through, and its 1 holes stay"):
        out = imputer(max_epochs=2).fit(frame).transform(frame)
    assert out["note"].isna().sum() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imputer(max_epochs=2, columns={"note": "ignore"}).fit(frame)


def test_verbose_names_the_kinds(capfd):
    _, holed = people(30)
    imputer(max_epochs=2, verbose=True).fit(holed)
    assert "columns: id (ignore), length (number), age (whole)" in capfd.readouterr().err


def test_identifiers_pass_through_exactly():
    frame = pd.DataFrame({"id": [9007199254740993 + i for i in range(30)], "x": np.where(np.arange(30) % 4, np.arange(30) / 7, np.nan)})
    model = imputer(max_epochs=2).fit(frame)
    assert model.columns_ == {"id": "ignore", "x": "number"} and model.transform(frame)["id"].equals(frame["id"])


def test_unknown_categories_stay_and_say_nothing(fitted):
    model, _, holed = fitted
    new = holed.head(3).assign(town=["Oslo", None, "NA"])
    out = model.transform(new)
    assert list(out["town"])[::2] == ["Oslo", "NA"] and out["town"].iloc[1] in ("NA", "01234")


def test_a_file_keeps_the_kinds(fitted, tmp_path):
    model, _, holed = fitted
    model.save(tmp_path / "model")
    loaded = RelayImputer.load(tmp_path / "model")
    assert loaded.columns_ == model.columns_
    np.testing.assert_array_equal(loaded.column_errors_, model.column_errors_)
    pd.testing.assert_frame_equal(loaded.transform(holed), model.transform(holed))
    pd.testing.assert_frame_equal(loaded.impute(holed, 2)[1], model.impute(holed, 2)[1])


def test_a_row_of_a_frame_does_not_depend_on_its_company(fitted):
    model, _, holed = fitted
    pd.testing.assert_frame_equal(model.transform(holed.iloc[[7, 3]]), model.transform(holed).iloc[[7, 3]])


def test_numbers_on_request_are_as_in_an_array():
    _, holed = people()
    numbers = holed[["length", "year", "flag"]].astype(float)
    as_array, as_frame = imputer().fit_transform(numbers.to_numpy()), imputer(columns="number").fit_transform(numbers)
    assert isinstance(as_frame, np.ndarray)
    np.testing.assert_array_equal(as_frame, as_array)


def test_integer_categories_with_holes_as_numbers():
    frame = pd.DataFrame({"level": pd.Categorical([1, 2, None, 2, 1] * 6), "x": np.arange(30.0)})
    out = imputer(columns="number", max_epochs=3).fit_transform(frame)
    assert (out[:, 0] >= 1).all() and (out[:, 0] <= 2).all()


def test_encoder_takes_every_kind():
    _, holed = people()
    encoder = RelayEncoder(**QUICK).fit(holed)
    codes = encoder.transform(holed)
    assert codes.shape == (100, 3) and np.isfinite(codes).all() and np.isfinite(encoder.score(holed))
    for made in (encoder.inverse_transform(codes), encoder.reconstruct(holed), encoder.sample(100)):
        assert list(made.columns) == list(holed.columns) and made["id"].isna().all() and made["town"].isin(["NA", "01234"]).all()


# what goes wrong is said


def test_diverged_learning_is_an_error():
    x = np.random.default_rng(0).normal(size=(60, 4))
    x[::3, 1] = np.nan
    with pytest.raises(ValueError, match=r"learning diverged: lr must be smaller than 1e\+06"):
        imputer(lr=1e6).fit(x)


@pytest.mark.parametrize("frame", [False, True])
def test_an_empty_column_is_said(frame):
    x = np.column_stack([np.arange(20.0) / 3, np.full(20, np.nan)])
    table = pd.DataFrame(x, columns=["a", "b"]) if frame else x
    with pytest.warns(UserWarning, match=f"there is no value in column {chr(39) + 'b' + chr(39) if frame else chr(39) + 'x1' + chr(39)}: left out"):
        assert imputer(max_epochs=2).fit(table).transform(table).shape == (20, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = imputer(max_epochs=2, keep_empty_features=True).fit(table).transform(table)
    assert kept.shape == (20, 2) and (np.asarray(kept)[:, 1] == 0).all()


def test_impute_follows_set_output():
    x = np.where(np.random.default_rng(0).random((30, 3)) < 0.3, np.nan, 1.5)
    model = imputer(max_epochs=2).set_output(transform="pandas").fit(x)
    draws = model.impute(x, n_draws=2)
    assert len(draws) == 2 and all(isinstance(d, pd.DataFrame) for d in draws) and list(draws[0].columns) == list(model.get_feature_names_out())
    assert imputer(max_epochs=2).fit(x).impute(x, n_draws=2).shape == (2, 30, 3)


def test_infinity_is_refused_by_name():
    with pytest.raises(ValueError, match="column 'a' holds inf in row 1: infinity"):
        imputer().fit(pd.DataFrame({"a": [1.5, np.inf]}))


def test_indicator_of_a_frame():
    _, holed = people(30)
    out = imputer(max_epochs=2, add_indicator=True).fit_transform(holed)
    assert list(out.columns[: holed.shape[1]]) == list(holed.columns)
    np.testing.assert_array_equal(out["missingindicator_town"], holed["town"].isna())
