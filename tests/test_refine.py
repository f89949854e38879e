"""The second look: what regressions make of the models' guesses, in the estimator."""

import numpy as np
import pandas as pd
import pytest
import torch

from rvi_nb import RelayImputer

QUICK = {"variance": 0.1, "n_models": 4, "max_epochs": 30}


def survey(seed: int, n: int = 300) -> pd.DataFrame:
    "Answers on scales from 1 to 7 that have little to do with one another, and a vote that one of them decides with some chance."
    rng = np.random.default_rng(seed)
    scales = np.rint(4 + 1.5 * rng.multivariate_normal(np.zeros(9), 0.15 + 0.85 * np.eye(9), n)).clip(1, 7)
    vote = rng.random(n) < 1 / (1 + np.exp(-1.5 * (scales[:, 0] - 4.5)))
    return pd.DataFrame(scales, columns=list("abcdefghi")).assign(vote=pd.array(vote, "boolean"))


def noise(seed: int, n: int = 200) -> pd.DataFrame:
    "Columns that say nothing about one another."
    rng = np.random.default_rng(seed)
    return pd.DataFrame(rng.normal(size=(n, 5)), columns=list("abcde")).assign(yes=pd.array(rng.random(n) < 0.35, "boolean"))


def holes(table: pd.DataFrame, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 1]).random(table.shape) < 0.3


def errors(filled: pd.DataFrame, table: pd.DataFrame, hidden: np.ndarray) -> tuple[float, float]:
    "Root mean square error of hidden numbers in standard deviations, and the share of wrong categories."
    numbers = (table.dtypes == np.float64).to_numpy()
    squares = np.square((filled.loc[:, numbers] - table.loc[:, numbers]) / table.loc[:, numbers].std()).to_numpy()[hidden[:, numbers]]
    wrong = (filled.astype(str) != table.astype(str)).to_numpy()[:, ~numbers][hidden[:, ~numbers]]
    return float(np.sqrt(squares.mean())), float(wrong.mean())


def plain(seen: pd.DataFrame) -> pd.DataFrame:
    "Filled with means and with the most common category."
    return seen.fillna({c: seen[c].mean() if seen[c].dtype == np.float64 else seen[c].mode()[0] for c in seen})


@pytest.fixture(scope="module")
def fitted():
    torch.set_num_threads(1)
    table = survey(0)
    hidden = holes(table, 0)
    seen = table.mask(hidden)
    return table, hidden, seen, RelayImputer(**QUICK).fit(seen)


def test_a_vote_follows_a_whole_number(fitted):
    table, hidden, seen, imputer = fitted
    (rmse, wrong), (usual_rmse, usual_wrong) = errors(imputer.transform(seen), table, hidden), errors(plain(seen), table, hidden)
    assert wrong < 0.75 * usual_wrong and rmse < usual_rmse


def test_errors_of_columns_are_those_of_what_is_filled_in(fitted):
    table, hidden, seen, imputer = fitted
    filled = imputer.transform(seen)
    wrong = (filled["vote"] != table["vote"]).to_numpy(bool)[hidden[:, -1]].mean()
    assert abs(imputer.column_errors_[-1] - wrong) < 0.1
    off = np.sqrt(np.square(filled["a"] - table["a"])[hidden[:, 0]].mean())
    assert abs(imputer.column_errors_[0] - off) < 0.3


def test_drawn_categories_go_with_what_is_seen_and_with_each_other():
    table = survey(0)
    table["region"] = pd.Categorical(np.where(np.random.default_rng(9).random(len(table)) < 0.8, np.where(table["vote"], "north", "south"), "east"))
    imputer = RelayImputer(**QUICK).fit(table.mask(holes(table, 0)))
    row = table.iloc[:2].reset_index(drop=True).mask(np.ones((2, table.shape[1]), bool))
    draws = imputer.impute(row.assign(a=[1.0, 7.0]), n_draws=200)
    votes = np.array([d["vote"].to_numpy(bool) for d in draws])
    assert votes[:, 0].mean() < 0.3 and votes[:, 1].mean() > 0.7
    nothing = [d.iloc[0] for d in imputer.impute(row, n_draws=300)]
    north = [np.mean([r["region"] == "north" for r in nothing if bool(r["vote"]) == vote]) for vote in (False, True)]
    assert north[1] > north[0] + 0.4  # two cells that are missing together


def test_a_single_draw(fitted):
    _, hidden, seen, imputer = fitted
    (one,) = imputer.impute(seen, n_draws=1)
    assert one.notna().all(axis=None) and one.mask(hidden).equals(seen)


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_costs_next_to_nothing(seed):
    torch.set_num_threads(1)
    table = noise(seed)
    hidden = holes(table, seed)
    seen = table.mask(hidden)
    (rmse, wrong), (usual_rmse, usual_wrong) = errors(RelayImputer(**QUICK).fit_transform(seen), table, hidden), errors(plain(seen), table, hidden)
    assert rmse < 1.02 * usual_rmse and wrong <= 1.02 * usual_wrong


def test_an_encoder_has_no_second_look():
    from rvi_nb import RelayEncoder

    encoder = RelayEncoder(latent=2, variance=1.0, max_epochs=3).fit(noise(0))
    assert len(encoder.ensemble_.regressions.coefficients) == 0
