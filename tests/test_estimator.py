"""RelayImputer and RelayEncoder: scikit-learn's manners, every row for itself, files that hold only numbers."""

import json
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn.impute.tests.test_common as common
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from rvi_nb import RelayEncoder, RelayImputer
from rvi_nb.impute.ensemble import BLOCK, POSTERIORS
from rvi_nb.impute.stopping import Watch
from rvi_nb.model.compiled import Epochs, Settling

QUICK = {"max_epochs": 3, "inference_steps": 5, "latent": 3, "groups": (2, 4), "hidden": (8,)}


pytestmark = pytest.mark.usefixtures("one_thread")


def imputer(**options):
    return RelayImputer(**{**QUICK, "n_models": 2, **options})


def encoder(**options):
    return RelayEncoder(**{**QUICK, **options})


def incomplete_iris(rate=0.3, dtype=np.float64):
    x = load_iris().data.astype(dtype)
    return np.where(np.random.default_rng(0).random(x.shape) < rate, np.nan, x).astype(dtype)


# scikit-learn's own checks


@parametrize_with_checks([make(posterior=p) for make in (imputer, encoder) for p in POSTERIORS])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("marker", [np.nan, -1, 0])
def test_common_add_indicator(marker):
    common.test_imputers_add_indicator(marker, imputer())


def test_common_missing_value_in_test_array():
    common.test_imputation_missing_value_in_test_array(imputer())


@pytest.mark.parametrize("add_indicator", [True, False])
def test_common_pandas_na_integer_array_support(add_indicator):
    common.test_imputers_pandas_na_integer_array_support(imputer(columns="number"), add_indicator)


@pytest.mark.parametrize("add_indicator", [True, False])
def test_common_feature_names_out_pandas(add_indicator):
    common.test_imputers_feature_names_out_pandas(imputer(), add_indicator)


@pytest.mark.parametrize("keep", [True, False])
def test_common_keep_empty_features(keep):
    common.test_keep_empty_features(imputer(), keep)


@pytest.mark.parametrize("value", [np.nan, 1])
def test_common_adds_missing_indicator(value):
    common.test_imputation_adds_missing_indicator_if_add_indicator_is_true(imputer(), value)


# in scikit-learn's company


def test_pipeline_grid_search_and_cross_validation():
    x, y = incomplete_iris(), load_iris().target
    pipeline = make_pipeline(imputer(), LogisticRegression(max_iter=500))
    search = GridSearchCV(pipeline, {"relayimputer__posterior": ["relay", "amortised"]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.5
    assert cross_val_score(make_pipeline(encoder(), LogisticRegression()), x, y, cv=2).shape == (2,)
    assert np.isfinite(cross_val_score(imputer(), x, cv=2)).all()  # by its own score


@pytest.mark.parametrize("make", [imputer, encoder])
def test_clone_and_joblib(make, tmp_path):
    x = incomplete_iris()
    fitted = make(latent=4, random_state=3).fit(x)
    assert not hasattr(clone(fitted), "units_") and not hasattr(clone(fitted), "ensemble_")
    joblib.dump(fitted, tmp_path / "m.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "m.joblib").transform(x), fitted.transform(x))
    np.testing.assert_array_equal(clone(fitted).fit(x).transform(x), fitted.transform(x))


def test_data_frames_in_and_out():
    x = pd.DataFrame(incomplete_iris() * [1, 1e6, 1e-6, 1], columns=list("abcd"))
    fitted = imputer(add_indicator=True).set_output(transform="pandas")
    out = fitted.fit_transform(x)
    pd.testing.assert_frame_equal(fitted.transform(x), out)
    assert list(out.columns) == [*"abcd", *(f"missingindicator_{c}" for c in "abcd")]
    assert out.notna().all().all() and (out.index == x.index).all()
    pd.testing.assert_frame_equal(out[list("abcd")].where(x.notna()), x)
    codes = encoder().set_output(transform="pandas").fit_transform(x)
    assert list(codes.columns) == ["relayencoder0", "relayencoder1", "relayencoder2"]


def test_text_is_refused_by_name():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}, index=["first", "second"])
    with pytest.raises(ValueError, match="column 'b' holds 'x' in row 'first': it is no number"):
        imputer(columns="number").fit(frame)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("posterior", "full"),
        ("columns", "some"),
        ("latent", 0),
        ("latent", True),
        ("latent", 10**9),
        ("ratio", 2),
        ("n_models", 1.5),
        ("max_epochs", 0),
        ("held_out", 1),
        ("variance", -1),
        ("variance", "small"),
        ("variance", np.nan),
        ("groups", (0,)),
        ("groups", (2, True)),
        ("hidden", (10**9,)),
        ("hidden", (8,) * 101),
        ("hidden", 64),
        ("missing_values", "?"),
        ("missing_values", np.inf),
        ("keep_empty_features", "yes"),
        ("inference_steps", 10**9),
        ("device", 0),
        ("callbacks", print),
        ("lr", 0),
        ("batch_size", 0),
    ],
)
def test_wrong_parameters_are_named(name, value):
    with pytest.raises(ValueError, match=rf"^The '{name}' parameter of RelayImputer must be .*\. Got {re.escape(repr(value))} instead\.$"):
        imputer(**{name: value}).fit([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("make", [imputer, encoder])
def test_every_parameter_has_a_constraint(make):
    assert make()._parameter_constraints.keys() == make().get_params().keys()


def test_what_was_learned_follows_no_later_parameter():
    x = incomplete_iris()
    fitted = encoder().fit(x)
    codes = fitted.transform(x)
    np.testing.assert_array_equal(fitted.set_params(latent=5, variance=3.0).transform(x), codes)
    assert list(fitted.get_feature_names_out()) == ["relayencoder0", "relayencoder1", "relayencoder2"]
    assert (fitted.set_params(inference_steps=9).transform(x) != codes).any()  # how hard to look is asked anew each time


def test_a_table_without_values_leaves_nothing_of_the_one_before():
    fitted = imputer(variance=0.1).fit(incomplete_iris()).fit([[np.nan, np.nan]])
    assert fitted.transform([[np.nan, 1.0]]).shape == (1, 0) and fitted.ensemble_.weights == {} and len(fitted.held_out_curve_) == 0


# every row for itself


@pytest.mark.parametrize("widths", [{}, {"latent": 6, "hidden": (7, 6)}], ids=["usual", "narrow"])  # some processors treat narrow matrices differently
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("make", [imputer, encoder])
def test_a_row_does_not_depend_on_its_company(make, posterior, widths):
    x = incomplete_iris()
    fitted = make(posterior=posterior, inference_steps=40, **widths).fit(x)
    everyone, order = fitted.transform(x), np.random.default_rng(1).permutation(len(x))
    np.testing.assert_array_equal(fitted.transform(x[order]), everyone[order])
    np.testing.assert_array_equal(fitted.transform(x[7:8]), everyone[7:8])
    np.testing.assert_array_equal(fitted.transform(np.tile(x, (4, 1))), np.tile(everyone, (4, 1)))


def test_numbers_are_learned_and_placed_by_compiled_loops(monkeypatch):
    calls = []
    for kind, name in ((Epochs, "run"), (Settling, "advance")):
        monkeypatch.setattr(kind, name, lambda self, *args, do=getattr(kind, name), name=name: calls.append(name) or do(self, *args))
    fitted = imputer(variance=0.1).fit(incomplete_iris())
    assert calls.count("run") == len(fitted.held_out_curve_)
    calls.clear()
    fitted.transform(incomplete_iris())
    assert calls == ["advance"] * -(-int(np.isnan(incomplete_iris()).any(1).sum()) // BLOCK)


def test_fit_transform_is_fit_then_transform_and_seeds_matter():
    x = incomplete_iris()
    a = imputer().fit_transform(x)
    np.testing.assert_array_equal(a, imputer().fit(x).transform(x))
    assert (imputer(random_state=1).fit_transform(x) != a).any()
    assert (imputer(random_state=None).fit_transform(x) != imputer(random_state=None).fit_transform(x)).any()


def test_the_global_seed_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    imputer().fit_transform(incomplete_iris())
    assert torch.equal(before, torch.get_rng_state())


# holes and scales


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_finite_and_observed_untouched(data):
    n, d = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from([np.float64, np.float32, np.int64]))
    scale = 10.0 ** np.array(data.draw(st.lists(st.integers(-12, 12), min_size=d, max_size=d)))
    values = data.draw(hnp.arrays(np.float64, (n, d), elements=st.floats(-1, 1, allow_subnormal=False))) * scale
    constant = data.draw(hnp.arrays(bool, d))
    values[:, constant] = values[0, constant]
    x = values.astype(dtype)
    if dtype is not np.int64:
        x[data.draw(hnp.arrays(bool, (n, d)))] = np.nan
        x[data.draw(hnp.arrays(bool, n))] = np.nan
        x[:, data.draw(hnp.arrays(bool, d))] = np.nan
    posterior = data.draw(st.sampled_from(sorted(POSTERIORS)))
    fitted = imputer(posterior=posterior, keep_empty_features=True, variance=0.1).fit(x)
    for out in (fitted.transform(x), *fitted.impute(x, n_draws=3)):
        assert np.isfinite(out).all()
        assert out.dtype == (np.float64 if dtype is np.int64 else dtype)
        seen = ~np.isnan(x.astype(float))
        assert out[seen].tobytes() == x.astype(out.dtype)[seen].tobytes()


def test_extreme_values_and_new_outliers():
    x = np.array([[1e300, 1e-300, 1.0], [-1e300, 2e-300, 1.0], [np.nan, np.nan, np.nan], [5e299, 1e-300, 1.0]])
    fitted = imputer().fit(x)
    assert np.isfinite(fitted.transform(x)).all() and fitted.transform(x)[2, 2] == 1
    new = np.array([[1e308, np.nan, -1e12], [np.nan, 1e300, np.nan]])
    assert np.isfinite(fitted.transform(new)).all()


def test_no_holes_one_row_and_nothing_at_all():
    x = load_iris().data
    np.testing.assert_array_equal(imputer().fit_transform(x), x)
    np.testing.assert_array_equal(imputer().fit_transform([[1.0, np.nan]]), [[1.0]])
    np.testing.assert_array_equal(imputer(keep_empty_features=True).fit_transform([[1.0, np.nan]]), [[1.0, 0.0]])
    assert imputer().fit_transform([[np.nan], [np.nan]]).shape == (2, 0)
    with pytest.raises(ValueError, match="infinity"):
        imputer().fit([[np.inf, 1.0], [2.0, 3.0]])


def test_imputed_values_stay_in_the_observed_range():
    x = incomplete_iris()
    for out in imputer().fit(x).impute(x, n_draws=4):
        assert (out >= np.nanmin(x, 0)).all() and (out <= np.nanmax(x, 0)).all()


# draws, samples, scores


def test_shapes_of_everything():
    x = incomplete_iris()
    fitted = imputer(n_models=3).fit(x)
    draws = fitted.impute(x, n_draws=7)
    assert draws.shape == (7, 150, 4)
    np.testing.assert_array_equal(draws, fitted.impute(x, n_draws=7))
    assert (draws != fitted.impute(x, n_draws=7, random_state=1)).any()
    assert (draws.std(0) > 0)[np.isnan(x)].mean() > 0.9 and (draws == draws[0])[:, ~np.isnan(x)].all()
    assert fitted.sample(11).shape == (11, 4) and fitted.reconstruct(x).shape == x.shape
    assert isinstance(fitted.score(x), float)
    codes = encoder().fit(x)
    np.testing.assert_allclose(codes.inverse_transform(codes.transform(x)), codes.reconstruct(x))


def test_learning_improves_the_score_and_the_guesses():
    x = load_iris().data
    holes = np.random.default_rng(2).random(x.shape) < 0.2
    seen = np.where(holes, np.nan, x)
    options = {"latent": 4, "groups": (4, 8), "hidden": (32,), "variance": 0.1, "inference_steps": 100, "n_models": 2}
    little, much = (RelayImputer(max_epochs=e, **options).fit(seen) for e in (1, 80))
    error = lambda filled: np.square((filled - x) / x.std(0))[holes].mean()
    assert much.score(seen) > little.score(seen) and error(much.reconstruct(seen)) < 0.5 < error(little.reconstruct(seen))
    assert error(little.transform(seen)) < 0.5  # what models of one epoch do not know, a second look finds


def test_callbacks_and_early_stopping():
    calls = []
    stop = lambda epoch, error: calls.append((epoch.number, error)) or epoch.number == 4
    imputer(max_epochs=50, callbacks=[stop], variance=0.1).fit(incomplete_iris())
    assert [number for number, _ in calls] == [1, 2, 3, 4] and all(error > 0 for _, error in calls)
    early = imputer(max_epochs=400, patience=2, variance=0.1, lr=0.3).fit(incomplete_iris())
    assert len(early.held_out_curve_) == early.n_epochs_ + 3 < 400


def test_verbose_shows_progress(capfd):
    imputer(verbose=True).fit_transform(incomplete_iris())
    shown = capfd.readouterr().err
    assert all(phase in shown for phase in ("choose variance", "learn", "infer"))
    imputer().fit_transform(incomplete_iris())
    assert capfd.readouterr().err == ""


# files


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("make", [imputer, encoder])
def test_saved_and_loaded_is_the_same(make, posterior, tmp_path):
    x = pd.DataFrame(incomplete_iris(), columns=list("abcd"))
    fitted = make(posterior=posterior, hidden=(8, 4)).fit(x)
    fitted.save(tmp_path / "model")
    loaded = type(fitted).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(x), fitted.transform(x))
    np.testing.assert_array_equal(loaded.sample(3), fitted.sample(3))
    assert loaded.score(x) == fitted.score(x)
    assert list(loaded.feature_names_in_) == list("abcd") and loaded.get_params()["hidden"] == (8, 4)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_indicator_and_marker_survive_the_file(tmp_path):
    x = np.nan_to_num(incomplete_iris(), nan=-1)
    fitted = imputer(missing_values=-1, add_indicator=True).fit(x)
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(RelayImputer.load(tmp_path / "model").transform(x), fitted.transform(x))


def test_damaged_foreign_and_newer_files(tmp_path):
    path = tmp_path / "model"
    imputer().fit(incomplete_iris()).save(path)
    good = path.read_bytes()
    with pytest.raises(FileNotFoundError):
        RelayImputer.load(tmp_path / "none")
    with pytest.raises(ValueError, match="it holds a RelayImputer, not a RelayEncoder"):
        RelayEncoder.load(path)
    for bad in (b"", good[:10], good[:-5], good + b"x", b"\x80\x04K\x01.", b"[1, 2]" * 9):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="is damaged"):
            RelayImputer.load(path)
    save_file({"a": np.zeros(3)}, path)
    with pytest.raises(ValueError, match="not a model file"):
        RelayImputer.load(path)


def rewrite(path, change_about=None, change_arrays=None):
    "A model file with another description or other arrays."
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as f:
        about = json.loads(f.metadata()["rvi_nb"])
    arrays = load_file(path)
    if change_about:
        change_about(about)
    if change_arrays:
        change_arrays(arrays)
    save_file(arrays, path, {"rvi_nb": json.dumps(about)})


def of_type(name, dtype):
    "Change the type of one array."
    return lambda arrays: arrays.update({name: arrays[name].astype(dtype)})


def with_value(name, value):
    "Change the first number of one array."

    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name].flat[0] = value

    return change


WEIGHTS = "decoder.weights.0"


@pytest.mark.parametrize(
    ("about", "arrays", "message"),
    [
        (lambda a: a.update(version=2), None, "format version 2; this rvi_nb reads version 4"),
        (lambda a: a.update(format="else"), None, "not a model file"),
        (lambda a: a["params"].update(latent=5), None, "do not fit the parameters"),
        (lambda a: a["params"].update(latent="five"), None, "The 'latent' parameter of RelayImputer must be"),
        (lambda a: a["params"].update(colour=5), None, "colour"),
        (lambda a: a.update(fit=5), None, "entry 'fit' is unknown"),
        (lambda a: a.pop("params"), None, "entry 'params' is missing"),
        (lambda a: a.update(variance=float("nan")), None, "variance must be positive and finite, got nan"),
        (lambda a: a.update(variance="0.1"), None, "variance is '0.1'"),
        (lambda a: a.update(n_features=-1), None, "n_features must be from 0 to n_columns = 4, got -1"),
        (lambda a: a.update(feature_names=["a"]), None, "feature_names must be 4 texts, got 1"),
        (lambda a: a.update(n_near=-1), None, r"n_near must be from 0 to 2\*\*31, got -1"),
        (lambda a: a.update(n_near=10**9), None, "array 'coefficients' is F64 .*, not F64"),
        (lambda a: a.update(counts=[0, 0, 0, 5]), None, "counts must be those of the columns, got"),
        (lambda a: a.update(columns=[{"kind": "number"}] * 4), None, "columns cannot contain"),
        (lambda a: a.update(columns=[]), None, "columns must be 4 entries, got 0"),
        (None, with_value("near", 4), "array 'near' must name columns, but is at 0"),
        (None, with_value("spread", -1), "array 'spread' must not be negative, but is at 0"),
        (None, lambda a: a.pop("mean"), "array 'mean' is missing"),
        (None, lambda a: a.pop(WEIGHTS), f"array '{WEIGHTS}' is missing"),
        (None, lambda a: a.update(more=np.ones(1)), "array 'more' is unknown"),
        (None, lambda a: a.update(scale=np.ones(9)), r"array 'scale' is F64 \(9,\), not F64 \(4,\)"),
        (None, of_type(WEIGHTS, np.float64), f"array '{WEIGHTS}' is F64 .*, not F32"),
        (None, of_type(WEIGHTS, np.float16), f"array '{WEIGHTS}' is F16 .*, not F32"),
        (None, of_type(WEIGHTS, np.int32), f"array '{WEIGHTS}' is I32 .*, not F32"),
        (None, of_type("mean", np.float32), "array 'mean' is F32 .*, not F64"),
        (None, of_type("empty", np.uint8), "array 'empty' is U8 .*, not BOOL"),
        (None, of_type("seeds", np.float64), "array 'seeds' is F64 .*, not I64"),
        (None, with_value(WEIGHTS, np.nan), f"array '{WEIGHTS}' must be finite, got nan"),
        (None, with_value("posterior.relays", -np.inf), "array 'posterior.relays' must be finite, got -inf"),
        (None, with_value("mean", np.inf), "array 'mean' must be finite, got inf"),
        (None, with_value("scale", 0), "array 'scale' must be positive, but is at 0"),
        (None, with_value("noise", -1), "array 'noise' must not be negative, but is at 0"),
        (None, with_value("low", 1e9), "array 'low' must not be above 'high', but is at 0"),
        (None, with_value("seeds", -1), "array 'seeds' must not be negative, but is at 0"),
        (None, with_value("empty", True), "array 'empty' must have 4 columns with values, got 3"),
    ],
)
def test_changed_files(about, arrays, message, stored):
    path, good = stored
    path.write_bytes(good)
    rewrite(path, about, arrays)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} cannot be used: .*{message}") as raised:
        RelayImputer.load(path)
    assert "\n" not in str(raised.value)


def test_a_truncated_file_is_refused_wherever_it_ends(stored):
    path, good = stored
    for end in [*range(0, len(good) - 1, len(good) // 40), len(good) - 1]:
        path.write_bytes(good[:end])
        with pytest.raises(ValueError, match="cannot be used: it is damaged"):
            RelayImputer.load(path)


def declare(good, name, shape, grow):
    "A file whose header declares another shape of an array, and the space for it if it is to grow."
    size = int.from_bytes(good[:8], "little")
    header, body = json.loads(good[8 : 8 + size]), good[8 + size :]
    header[name]["shape"] = shape
    if grow:
        start = header[name]["data_offsets"][0]
        header[name]["data_offsets"] = [start, start + 4 * int(np.prod(shape, dtype=object))]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


HUGE = {  # a name: what changes the bytes of a small file, and what the error says
    "parameters of 30 GB": (lambda a: a["params"].update(latent=90_000, hidden=[90_000], groups=[90_000]), "do not fit the parameters"),
    "relays of 30 GB": (lambda a: a["params"].update(groups=[90_000] * 99), "do not fit the parameters"),
    "models": (lambda a: a["params"].update(n_models=100_000), "is F64 (8, 4, 5), not F64 (400000, 4, 5)"),
    "more models than there may be": (lambda a: a["params"].update(n_models=10**12), "The 'n_models' parameter"),
    "a latent space": (lambda a: a["params"].update(latent=10**12), "The 'latent' parameter"),
    "layers": (lambda a: a["params"].update(hidden=[8] * 1_000), "The 'hidden' parameter"),
    "steps of inference": (lambda a: a["params"].update(inference_steps=10**12), "The 'inference_steps' parameter"),
    "columns": (lambda a: a.update(n_columns=2 * 10**9, n_features=2 * 10**9), "counts must be 2000000000 whole numbers, got 4"),
    "more columns than there may be": (lambda a: a.update(n_columns=10**40, n_features=10**40), "n_columns must be from 0 to 2**31"),
    "empty columns": (lambda a: a.update(n_columns=10**9), "column_errors must be 1000000000 numbers, got 4"),
}
DECLARED = {"a declared shape": ([40_000, 10_000], False), "a declared shape with its space": ([40_000, 10_000], True), "an overflow": ([2**62, 2**62], True)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_small_files_that_declare_much_are_refused_without_memory(stored):
    path, good = stored
    expected = {}
    for number, (name, (change, message)) in enumerate(HUGE.items()):
        file = path.with_name(f"huge{number}")
        file.write_bytes(good)
        rewrite(file, change)
        expected[file] = name, message
    for number, (name, (shape, grow)) in enumerate(DECLARED.items()):
        file = path.with_name(f"declared{number}")
        file.write_bytes(declare(good, "posterior.relays", shape, grow))
        expected[file] = name, "it is damaged"
    file = path.with_name("header")
    file.write_bytes((2**60).to_bytes(8, "little") + good[8:])
    expected[file] = "a header", "it is damaged"
    path.write_bytes(good)
    program = textwrap.dedent("""
        import re, resource, sys
        from rvi_nb import RelayImputer
        status = lambda name: int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])
        peak = lambda: status("VmHWM")
        RelayImputer.load(sys.argv[1])
        before = peak()
        resource.setrlimit(resource.RLIMIT_AS, (1024 * status("VmSize") + 2**30, resource.RLIM_INFINITY))  # whatever happens, no more than a gigabyte
        for path in sys.argv[2:]:
            try: RelayImputer.load(path)
            except ValueError as e: print(f"{peak() - before}\\t{e}")
            else: print("0\\tloaded")
    """)
    done = subprocess.run([sys.executable, "-c", program, str(path), *map(str, expected)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected)
    for line, (file, (name, message)) in zip(lines, expected.items(), strict=True):
        kilobytes, text = line.split("\t")
        assert file.stat().st_size < 20_000
        assert text.startswith(f"{file} cannot be used: ") and message in text, (name, text)
        assert int(kilobytes) < 20_000, (name, kilobytes)


def test_a_diverged_model_is_not_stored(tmp_path):
    fitted = imputer().fit(incomplete_iris())
    fitted.ensemble_.weights[WEIGHTS][0] = np.nan
    with pytest.raises(ValueError, match=f"array '{WEIGHTS}' must be finite"):
        fitted.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_survive_the_file(tmp_path):
    fitted = imputer(latent=np.int64(3), ratio=np.float32(0.5), groups=(np.int32(2), 4), random_state=np.int64(4)).fit(incomplete_iris())
    fitted.save(tmp_path / "model")
    params = RelayImputer.load(tmp_path / "model").get_params()
    assert (params["latent"], params["ratio"], params["groups"], params["random_state"]) == (3, 0.5, (2, 4), 4)


def test_a_table_without_values_survives_the_file(tmp_path):
    for fitted in (imputer().fit([[np.nan, np.nan]]), encoder().fit([[np.nan, np.nan]])):
        fitted.save(tmp_path / "model")
        loaded = type(fitted).load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.transform([[1.0, np.nan]]), fitted.transform([[1.0, np.nan]]))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_changed_byte_never_does_worse_than_an_error(place, value, stored):
    path, good = stored
    bad = bytearray(good)
    bad[int(place * min(len(bad), 3000))] = value
    path.write_bytes(bad)
    try:
        RelayImputer.load(path)
    except ValueError:
        pass


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "model"
    imputer().fit(incomplete_iris()).save(path)
    return path, path.read_bytes()


def heed_interrupts():
    "A process started in the background ignores SIGINT, and so would its children."
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_fit_leaves_no_file(tmp_path):
    program = textwrap.dedent("""
        import sys, numpy as np
        from rvi_nb import RelayImputer
        x = np.random.default_rng(0).normal(size=(2000, 10))
        print("ready", flush=True)
        say = lambda epoch, error: print("epoch", flush=True)
        RelayImputer(max_epochs=100000, patience=100000, variance=0.1, callbacks=[say]).fit(x).save(sys.argv[1])
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "model")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    assert process.stdout.readline() == "ready\n" and process.stdout.readline() == "epoch\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.write_text("old")
    fitted = imputer().fit(incomplete_iris())
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        fitted.save(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_import_is_lazy():
    program = "import sys, rvi_nb.cli.command; assert 'torch' not in sys.modules; from rvi_nb import RelayImputer; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_learning_does_not_wait_for_a_compiler():
    program = "import sys, numpy as np; from rvi_nb import RelayImputer; RelayImputer(n_models=1, max_epochs=1).fit(np.arange(60.0).reshape(20, 3)); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


# does it mean anything?


def test_coverage_on_breast_cancer():
    x = load_breast_cancer().data
    x = (x - x.mean(0)) / x.std(0)
    holes = np.random.default_rng(11).random(x.shape) < 0.3
    seen = np.where(holes, np.nan, x)
    low, high = np.quantile(RelayImputer().fit(seen).impute(seen, n_draws=100), [0.05, 0.95], axis=0)
    assert 0.80 <= ((low <= x) & (x <= high))[holes].mean() <= 0.97


def test_an_epoch_that_diverged_is_never_kept():
    watch = Watch(torch.arange(2), torch.ones(1, 2, 3, dtype=torch.bool))
    for number, (error, value) in enumerate([(1.0, 0.0), (0.5, 1.0), (np.nan, np.nan)], 1):
        watch.curve.append(np.array([error]))
        watch.keep([torch.full((1, 4), value)], number)
    assert watch.best_epoch == 2 and torch.equal(watch.kept[0], torch.ones(1, 4))
