"""RelayEncoder with parts that are objects; standard deviations and draws of codes; how likely a row is."""

import copy
import json
import math

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.distributions import Laplace, MultivariateNormal

from rvi_nb import Amortised, Bernoulli, Categorical, Gaussian, Likelihood, MeanField, Mixed, Posterior, Relay, RelayEncoder, RelayImputer, decoder
from rvi_nb.base.random import generator
from rvi_nb.impute.parts import ARGUMENTS
from rvi_nb.model.alternatives import MixtureRelay, Refined
from rvi_nb.model.dgd import Point

QUICK = {"max_epochs": 3, "inference_steps": 5, "hidden": (8,)}


class Wide(Posterior):
    "A posterior of somebody else's: Laplace instead of normal, one width for all directions."

    def __init__(self, latent=3, seeds=(0,)):
        super().__init__()
        self.latent, self.seeds, self.n_local = latent, tuple(seeds), latent + 1

    def start(self, n, key="start"):
        means = 0.001 * torch.stack([torch.randn(n, self.latent, generator=generator(s, key)) for s in self.seeds])
        return torch.cat([means, torch.full((*means.shape[:-1], 1), -4.0)], -1)

    def forward(self, local, x=None, mask=None, noise=None):
        mean, log_scale = local.split([self.latent, 1], -1)
        return Laplace(mean, (0.5 * log_scale).exp().expand_as(mean), validate_args=False)


class Poisson(Likelihood):
    accepts = "counts"

    def n_outputs(self, n_features):
        return n_features

    def log_prob(self, outputs, x, mask):
        return torch.where(mask, x * outputs - outputs.exp() - torch.lgamma(x + 1), 0).sum(-1)

    def mean(self, outputs):
        return outputs.exp()

    def sample(self, outputs, generator):
        return torch.poisson(outputs.exp().cpu(), generator=generator).to(outputs)

    def invalid(self, x):
        return ~((x >= 0) & (x == x.round()))


pytestmark = pytest.mark.usefixtures("one_thread")


def encoder(**options):
    return RelayEncoder(**{**QUICK, **options})


def incomplete_iris(rate=0.3):
    x = load_iris().data
    return np.where(np.random.default_rng(0).random(x.shape) < rate, np.nan, x)


def shares(rate=0.3):
    "Iris between 0 and 1."
    x = incomplete_iris(rate)
    return (x - np.nanmin(x, 0)) / (np.nanmax(x, 0) - np.nanmin(x, 0))


def content_hash(value, of=joblib.hash):
    "joblib's hash, in which equal tensors are equal: a tensor's pickle has its address in memory, so joblib takes every copy for another value."
    if isinstance(value, torch.nn.Module):
        plain = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        value = type(value).__name__, plain, {k: v.numpy() for k, v in value.state_dict().items()}
    return of(value)


@parametrize_with_checks(
    [
        encoder(posterior=Relay(3, (2, 4))),
        encoder(posterior=Wide()),
        encoder(posterior=MeanField(3), likelihood=Gaussian(0.1)),
        encoder(likelihood=Gaussian(0.2)),
    ]
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    monkeypatch.setattr(joblib, "hash", content_hash)
    check(estimator)


def test_the_hash_of_the_checks_sees_what_changes():
    one, other = Relay(3, (4,)), Relay(3, (4,))
    assert content_hash(one) == content_hash(other) == content_hash(copy.deepcopy(one)) != content_hash(Relay(3, (4,), seeds=(1,)))
    other.relays.data[0, 0, 0] += 1
    assert content_hash(one) != content_hash(other)


@pytest.mark.parametrize(
    "posterior", [Relay(3, (2, 4)), MixtureRelay(3, (2, 4)), MeanField(3), Amortised(4, 3, (8,)), Wide(), Point(3, 4)], ids=lambda p: type(p).__name__
)
def test_any_posterior_is_learned_and_left_as_it_was(posterior):
    x, before = incomplete_iris(), copy.deepcopy(posterior.state_dict())
    fitted = encoder(posterior=posterior, variance=0.1, latent=99).fit(x)  # the posterior's own latent counts
    assert fitted.posterior is posterior and all(torch.equal(v, before[k]) for k, v in posterior.state_dict().items())
    codes = fitted.transform(x)
    assert codes.shape == (150, 3) and np.isfinite(codes).all() and list(fitted.get_feature_names_out()) == [f"relayencoder{k}" for k in range(3)]
    assert np.isfinite(fitted.score(x)) and fitted.reconstruct(x).shape == x.shape and (fitted.posterior_std(x) > 0).all()
    order = np.random.default_rng(1).permutation(150)
    np.testing.assert_array_equal(fitted.transform(x[order]), codes[order])
    np.testing.assert_array_equal(clone(fitted).fit(x).transform(x), codes)
    assert clone(fitted).posterior is not posterior and type(clone(fitted).posterior) is type(posterior)


def test_an_object_learns_what_its_name_learns():
    "A relay by name gets its seed from random_state, an object has its own; everything else is the same."
    x = incomplete_iris()
    named = RelayEncoder("relay", latent=3, groups=(2, 4), ratio=0.5, variance=0.1, **QUICK).fit(x)
    same = encoder(posterior=Relay(3, (2, 4), 0.5, named.ensemble_.seeds), variance=0.1).fit(x)
    np.testing.assert_array_equal(same.transform(x), named.transform(x))
    given = encoder(posterior=Relay(3, (2, 4), 0.5, named.ensemble_.seeds), likelihood=Gaussian(0.1)).fit(x)
    np.testing.assert_array_equal(given.transform(x), named.transform(x))
    assert named.variance_ == 0.1 and math.isnan(given.variance_) and given.score(x) == named.score(x)
    other = encoder(posterior=Relay(3, (2, 4), 0.5, (7,)), variance=0.1).fit(x)
    assert (other.transform(x) != named.transform(x)).any()


def test_the_variance_is_chosen_for_an_object_too():
    assert encoder(posterior=Wide()).fit(incomplete_iris()).variance_ in (0.01, 0.03, 0.1, 0.3, 1.0)


@pytest.mark.parametrize(
    ("likelihood", "table"),
    [(Bernoulli(), shares()), (Gaussian.learned(4, 0.5), incomplete_iris()), (Categorical(8), np.floor(incomplete_iris()))],
    ids=["bernoulli", "learned", "categorical"],
)
def test_any_likelihood_is_learned_and_left_as_it_was(likelihood, table):
    before = copy.deepcopy(likelihood.state_dict())
    fitted = encoder(likelihood=likelihood, latent=3, max_epochs=100, inference_steps=30, hidden=(32,)).fit(table)
    assert all(torch.equal(v, before[k]) for k, v in likelihood.state_dict().items())
    known = ~np.isnan(table)
    guess, mean = fitted.reconstruct(table), np.nanmean(table, 0)
    assert np.abs(guess - table)[known].mean() < 0.75 * np.abs(mean - table)[known].mean()
    assert np.isfinite(fitted.score(table)) and np.isfinite(fitted.score_samples(table, 20)).all()


def test_what_a_likelihood_learns_is_used_and_stored(tmp_path):
    x = incomplete_iris()
    fitted = encoder(likelihood=Gaussian.learned(4, 0.5), latent=3, max_epochs=60).fit(x)
    learned = fitted.ensemble_.likelihood.variance
    assert (abs(learned - 0.5) > 0.01).all() and len(learned.unique()) == 4 and not learned.requires_grad
    fitted.save(tmp_path / "model")
    loaded = RelayEncoder.load(tmp_path / "model")
    assert torch.equal(loaded.ensemble_.likelihood.variance, learned) and loaded.score(x) == fitted.score(x)


def test_columns_are_standardised_unless_the_likelihood_is_choosy():
    x = incomplete_iris() * [1, 100, 1, 1]
    free, counts = encoder(likelihood=Gaussian(0.1)).fit(x), encoder(likelihood=Poisson()).fit(np.floor(x))
    assert not free.units_.plain.any() and counts.units_.plain.all()
    np.testing.assert_array_equal(counts.units_.standardise(np.full((1, 4), 440.0), np.ones((1, 4), bool))[0], np.full((1, 4), 440.0))
    assert (counts.sample(20) % 1 == 0).all() and (counts.column_errors_ > 0).all()
    mixed = encoder(likelihood=Mixed([(Poisson(), [1]), (Gaussian(0.1), [0, 2, 3])])).fit(np.floor(x))
    np.testing.assert_array_equal(mixed.units_.plain, [False, True, False, False])


def test_large_counts_are_not_taken_for_divergence():
    rng = np.random.default_rng(0)
    x = rng.poisson(np.exp(rng.normal(size=(200, 1)) + 6), (200, 5)).astype(float)
    assert encoder(likelihood=Poisson(), latent=2, max_epochs=1).fit(x).held_out_error_ > 30**2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"posterior": Relay}, ValueError, "The 'posterior' parameter of RelayEncoder must be .* or an instance of 'rvi_nb.model.posterior.Posterior'. Got"),
        ({"posterior": "exact"}, ValueError, "The 'posterior' parameter of RelayEncoder must be"),
        (
            {"likelihood": "bernoulli"},
            ValueError,
            "The 'likelihood' parameter of RelayEncoder must be an instance of 'rvi_nb.model.likelihood.Likelihood' or None. Got 'bernoulli'",
        ),
        ({"posterior": Relay(3, (4,), seeds=(0, 1))}, ValueError, "posterior must be for a single run, got one for 2"),
        ({"posterior": Refined(decoder(4, (4,), 2))}, TypeError, "posterior must work with any decoder, got Refined"),
        ({"posterior": Amortised(9, 3, (8,)), "variance": 0.1}, ValueError, "posterior cannot take rows of 4 features"),
        ({"likelihood": Gaussian(0.1), "variance": 0.1}, ValueError, "variance must be 'auto' where a likelihood is given, got 0.1"),
        ({"likelihood": Bernoulli()}, ValueError, "x holds .* in row .*; Bernoulli takes values from 0 to 1"),
        ({"likelihood": Gaussian.learned(3)}, ValueError, "n_features must be 3, got 4"),
    ],
)
def test_what_does_not_fit_is_named(options, error, message):
    with pytest.raises(error, match=message):
        encoder(**options).fit(incomplete_iris())


def test_categories_and_a_likelihood_are_refused_together():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0] * 5, "b": ["x", "y", "x"] * 5})
    with pytest.raises(ValueError, match=r"likelihood must be None for a table with categories, got Bernoulli\(\)"):
        encoder(likelihood=Bernoulli()).fit(frame)


def test_the_imputer_takes_names():
    with pytest.raises(ValueError, match="The 'posterior' parameter of RelayImputer must be a str among"):
        RelayImputer(posterior=MeanField(3)).fit(incomplete_iris())


def test_a_prior_of_its_own_is_respected():
    x = incomplete_iris()
    fitted = encoder(posterior=Point(3, 4), variance=0.1).fit(x)
    assert np.isfinite(fitted.score(x))
    for ask in (lambda: fitted.score_samples(x, 3), lambda: fitted.sample(2)):
        with pytest.raises(TypeError, match="Point defines a divergence of its own"):
            ask()


def test_objects_can_be_searched_over():
    search = GridSearchCV(encoder(variance=0.1), {"posterior": [MeanField(2), Relay(2, (4,))]}, cv=2).fit(incomplete_iris())
    assert type(search.best_params_["posterior"]) in (MeanField, Relay)


# standard deviations, draws, densities


@pytest.mark.parametrize("posterior", ["relay", "meanfield", "amortised", Wide()], ids=str)
def test_draws_are_from_the_posterior(posterior):
    x = incomplete_iris()[:20]
    fitted = encoder(posterior=posterior, variance=0.1, max_epochs=20, inference_steps=40, latent=3, groups=(2, 4)).fit(incomplete_iris())
    draws, mean, std = fitted.posterior_draws(x, 4000), fitted.transform(x), fitted.posterior_std(x)
    assert draws.shape == (4000, 20, 3) and draws.dtype == x.dtype
    assert np.abs((draws.mean(0) - mean) / std).max() < 6 / math.sqrt(4000)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.2)
    tails = (np.abs(draws - mean) > 3 * std).mean()  # 0.0027 of a normal distribution, 0.0144 of Laplace's
    assert 0.01 < tails < 0.02 if isinstance(posterior, Wide) else tails < 0.005
    assert abs(np.corrcoef(((draws - mean) / std)[:, :, 0].T)[np.triu_indices(20, 1)]).max() < 0.1, "rows have draws of their own"
    np.testing.assert_array_equal(fitted.posterior_draws(x, 4000), draws)
    assert (fitted.posterior_draws(x, 4000, random_state=1) != draws).any()


def test_wrong_numbers_of_draws_are_named():
    fitted = encoder(variance=0.1).fit(incomplete_iris())
    for ask in (fitted.score_samples, fitted.posterior_draws):
        for bad in (0, -1, 1.5, True):
            with pytest.raises((ValueError, TypeError), match="n_draws"):
                ask(incomplete_iris(), n_draws=bad)


def linear_encoder(variance=0.3, d=8, t=2):
    "A table of which log p is known, and an encoder that has learned the right thing."
    g = generator(0, "linear")
    weight = torch.randn(t, d, generator=g)
    x = (torch.randn(300, t, generator=g) @ weight + math.sqrt(variance) * torch.randn(300, d, generator=g)).double().numpy()
    x = np.where(np.random.default_rng(0).random(x.shape) < 0.3, np.nan, x)
    fitted = RelayEncoder(latent=t, hidden=(), variance=variance, max_epochs=1, inference_steps=200).fit(x)
    units = fitted.units_
    units.columns.mean[:], units.columns.scale[:] = 0, 1
    fitted.ensemble_.weights["decoder.weights.0"][:], fitted.ensemble_.weights["decoder.biases.0"][:] = weight.numpy(), 0
    cov = (weight.T @ weight + variance * torch.eye(d)).double()
    exact = [
        MultivariateNormal(torch.zeros(s.sum()).double(), cov[s][:, s]).log_prob(torch.from_numpy(row[s])).item()
        for row, s in zip(x, ~np.isnan(x), strict=True)
    ]
    return fitted, x, np.array(exact)


def test_score_samples_is_close_to_the_exact_log_density():
    fitted, x, exact = linear_encoder()
    for seed in range(5):
        assert abs(fitted.score_samples(x, random_state=seed).mean() / exact.mean() - 1) < 0.01
    found = fitted.score_samples(x)
    assert np.corrcoef(found, exact)[0, 1] > 0.99, "row by row, not only in the mean"
    assert fitted.score(x) < fitted.score_samples(x, 5).mean() < found.mean()


def test_score_samples_of_a_row_does_not_depend_on_its_company():
    x = np.tile(incomplete_iris(), (3, 1))
    fitted = encoder(variance=0.1).fit(incomplete_iris())
    everyone, order = fitted.score_samples(x, 30), np.random.default_rng(1).permutation(len(x))
    np.testing.assert_array_equal(fitted.score_samples(x[order], 30), everyone[order])
    np.testing.assert_array_equal(fitted.score_samples(x[7:8], 30), everyone[7:8])


def test_a_table_without_values_has_codes_of_nothing():
    fitted = encoder().fit([[np.nan, np.nan]])
    x = [[1.0, np.nan]]
    assert fitted.score_samples(x, 3) == 0 and fitted.posterior_draws(x, 2).shape == (2, 1, 16) and fitted.posterior_std(x).shape == (1, 16)


# files

OWN = {
    "Relay": dict(posterior=Relay(3, (2, 4), 0.25, (5,))),
    "MixtureRelay": dict(posterior=MixtureRelay(3, (2, 4))),
    "MeanField": dict(posterior=MeanField(3)),
    "Amortised": dict(posterior=Amortised(4, 3, (8, 5))),
    "Gaussian": dict(likelihood=Gaussian(0.07)),
    "LearnedGaussian": dict(likelihood=Gaussian.learned(4)),
    "Bernoulli": dict(likelihood=Bernoulli()),
    "Categorical": dict(likelihood=Categorical(9)),
}


def fitting(name):
    return {"Bernoulli": shares, "Categorical": lambda: np.floor(incomplete_iris())}.get(name, incomplete_iris)()


def test_all_own_classes_are_tried():
    assert {kind.__name__ for kind in ARGUMENTS} == set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_own_objects_are_stored_and_come_back(name, tmp_path):
    x = fitting(name)
    fitted = encoder(**OWN[name]).fit(x)
    fitted.save(tmp_path / "model")
    loaded = RelayEncoder.load(tmp_path / "model")
    for ask in ("transform", "posterior_std", "posterior_draws", "reconstruct", "score"):
        np.testing.assert_array_equal(getattr(loaded, ask)(x), getattr(fitted, ask)(x))
    np.testing.assert_array_equal(loaded.score_samples(x, 7), fitted.score_samples(x, 7))
    np.testing.assert_array_equal(loaded.sample(3), fitted.sample(3))
    assert all(p.device.type == "cpu" for part in (loaded.posterior, loaded.likelihood) if isinstance(part, torch.nn.Module) for p in part.parameters())
    np.testing.assert_array_equal(clone(loaded).fit(x).transform(x), fitted.transform(x))


@pytest.mark.parametrize("options", [{"posterior": Wide()}, {"likelihood": Poisson()}], ids=["posterior", "likelihood"])
def test_objects_of_others_are_not_stored_but_pickled(options, tmp_path):
    x = np.floor(incomplete_iris())
    fitted = encoder(**options, variance="auto").fit(x)
    with pytest.raises(ValueError, match=f"{next(iter(options))} cannot be stored: .* is none of Relay, MixtureRelay, MeanField, Amortised, Gaussian"):
        fitted.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    joblib.dump(fitted, tmp_path / "model.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").transform(x), fitted.transform(x))


def test_relays_learned_elsewhere_are_not_stored_as_fresh_ones(tmp_path):
    posterior = Relay(3, (2, 4))
    with torch.no_grad():
        posterior.relays += 1
    with pytest.raises(ValueError, match="this Relay is not as its arguments make it"):
        encoder(posterior=posterior, variance=0.1).fit(incomplete_iris()).save(tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update({"class": "Popen"}), "a part must be one of Relay, "),
        (lambda p: p["arguments"].update(latent=5), "do not fit the parameters"),
        (lambda p: p["arguments"].update(colour=5), "colour"),
        (lambda p: p["arguments"].update(latent=90_000, groups=[90_000] * 9), "do not fit the parameters"),
        (lambda p: p["arguments"].update(latent=10**15), "cannot be used"),
        (lambda p: p["arguments"].update(seeds=[0, 1]), "posterior must be for a single run, got one for 2"),
        (lambda p: p.update({"class": "LearnedGaussian", "arguments": {"n_features": 10**12}}), "n_features of LearnedGaussian must be 4"),
        (lambda p: p.update({"class": "Bernoulli", "arguments": {}}), "The 'posterior' parameter of RelayEncoder"),
        (lambda p: p.update({"class": "Relay", "arguments": 5}), "a part must be one of Relay, "),
        (lambda p: p.pop("arguments"), "The 'posterior' parameter of RelayEncoder"),
    ],
)
def test_changed_objects_in_files(change, message, stored):
    path, about, arrays = stored
    about = json.loads(about)
    change(about["params"]["posterior"])
    save_file(arrays, path, {"rvi_nb": json.dumps(about)})
    with pytest.raises(ValueError, match=rf"cannot be used: .*{message}|{message}"):
        RelayEncoder.load(path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "model"
    encoder(posterior=Relay(3, (2, 4)), variance=0.1).fit(incomplete_iris()).save(path)
    with safe_open(path, framework="numpy") as f:
        about = f.metadata()["rvi_nb"]
    return path, about, load_file(path)


def test_a_frame_with_columns_called_class_and_arguments_survives_the_file(tmp_path):
    frame = pd.DataFrame({"class": ["x", "y", None] * 8, "arguments": [1.0, None, 3.0] * 8})
    fitted = encoder(columns={"class": "category", "arguments": "number"}, variance=0.1).fit(frame)
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(RelayEncoder.load(tmp_path / "model").transform(frame), fitted.transform(frame))
