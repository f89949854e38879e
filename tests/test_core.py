"""What crosses the core's modules: an exact oracle, no influence of hidden entries, independence of neighbours.

Every test runs twice: with compiled loops, and with plain torch as on a device that has none.
"""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributions import Normal

from rvi_nb.base.paths import compiled
from rvi_nb.base.random import generator
from rvi_nb.data.datasets import load
from rvi_nb.model.alternatives import Ladder, LadderDecoder, MixtureRelay, Refined, SemiAmortised
from rvi_nb.model.decoder import decoder
from rvi_nb.model.fit import fit
from rvi_nb.model.infer import infer
from rvi_nb.model.likelihood import VARIANCE, Gaussian
from rvi_nb.model.missing import incomplete, mcar
from rvi_nb.model.models import MODELS
from rvi_nb.model.posterior import Amortised, MeanField, Relay, keep_top, keep_top_mask, kl
from rvi_nb.model.step import evaluate, gradients
from rvi_nb.runs.compute import compute
from rvi_nb.runs.run import Run, product, shape_of

pytestmark = pytest.mark.usefixtures("path")
given_path = [HealthCheck.function_scoped_fixture]  # the path is the same for all examples of a test


def test_the_path_is_the_one_that_was_asked_for(path):
    assert compiled(torch.zeros(3)) == (path == "compiled")


POSTERIORS = {
    "relay": lambda net, d, t, likelihood, seeds: Relay(t, (5, 10), 0.5, seeds),
    "meanfield": lambda net, d, t, likelihood, seeds: MeanField(t, seeds),
    "amortised": lambda net, d, t, likelihood, seeds: Amortised(d, t, net.sizes[1:-1], seeds),
    "mixture": lambda net, d, t, likelihood, seeds: MixtureRelay(t, (5, 10), seeds),
    "refined": lambda net, d, t, likelihood, seeds: Refined(net, likelihood, seeds=seeds),
    "semi": lambda net, d, t, likelihood, seeds: SemiAmortised(net, likelihood, seeds=seeds),
    "ladder": lambda net, d, t, likelihood, seeds: Ladder(net, seeds),
}


def make(name, d, t, seeds=(0,), hidden=(16,), variance=VARIANCE):
    "A posterior and its decoder."
    net = (LadderDecoder if name == "ladder" else decoder)(d, hidden, t, seeds)
    return POSTERIORS[name](net, d, t, Gaussian(variance), seeds), net


class Oracle:
    """A linear decoder whose columns have disjoint support: whatever is missing, they stay orthogonal, so the posterior is
    normal with a diagonal covariance and log p(x) is known."""

    def __init__(self, n=40, t=4, per=5, rate=0.4, variance=0.2, seed=0):
        g = generator(seed, "oracle")
        self.variance, self.d = variance, t * per
        self.net = decoder(self.d, (), t)
        weight = torch.zeros(t, self.d)
        for k in range(t):
            weight[k, k * per : (k + 1) * per] = torch.randn(per, generator=g)
        self.net.weights[0].data[0] = weight
        self.net.biases[0].data[0] = 0.3 * torch.randn(1, self.d, generator=g)
        self.weight, self.bias = weight, self.net.biases[0].data[0, 0]
        x = torch.randn(n, t, generator=g) @ weight + self.bias + math.sqrt(variance) * torch.randn(n, self.d, generator=g)
        self.data = incomplete(x, mcar((n, self.d), rate, g))
        self.x, self.mask = self.data.x, self.data.mask[0]
        residual = torch.where(self.mask, x - self.bias, 0)
        self.precision = 1 + self.mask.float() @ weight.square().T / variance  # (n, t)
        self.mean = residual @ weight.T / variance / self.precision
        # log p(x): marginally normal; by the matrix determinant lemma and Woodbury, with orthogonal columns
        quadratic = residual.square().sum(1) / variance - (self.precision * self.mean.square()).sum(1)
        self.log_p = -0.5 * (quadratic + self.precision.log().sum(1) + self.mask.sum(1) * math.log(2 * math.pi * variance))

    def elbo(self, q):  # exact: for a linear decoder the expectation has a closed form
        residual = torch.where(self.mask, self.x - (q.loc[0] @ self.weight + self.bias), 0)
        spread = q.scale[0].square() @ self.weight.square()
        square = residual.square().sum(1) + (spread * self.mask).sum(1)
        return -0.5 * (square / self.variance + self.mask.sum(1) * math.log(2 * math.pi * self.variance)) - kl(q)[0]


def test_oracle_is_the_marginal_density():
    o = Oracle(n=5)
    for i in range(5):
        seen = o.mask[i]
        w = o.weight[:, seen]
        cov = w.T @ w + o.variance * torch.eye(int(seen.sum()))
        exact = torch.distributions.MultivariateNormal(o.bias[seen], cov).log_prob(o.x[i, seen])
        assert o.log_p[i].item() == pytest.approx(exact.item(), abs=1e-3)


@given(st.integers(0, 2**16), st.floats(0.05, 3))
@settings(max_examples=30, deadline=None, suppress_health_check=given_path)
def test_elbo_never_exceeds_the_evidence(seed, spread):
    o = Oracle(n=10)
    g = generator(seed, "q")
    q = Normal(o.mean + spread * torch.randn(1, 10, 4, generator=g), spread * torch.rand(1, 10, 4, generator=g) + 0.01)
    assert (o.elbo(q) <= o.log_p + 1e-3).all()


@pytest.mark.parametrize("name", ["relay", "meanfield", "mixture"])
def test_inference_finds_the_exact_posterior(name):
    o = Oracle()
    posterior, _ = make(name, o.d, 4)
    found = infer(posterior, o.net, o.data, 1, 2000, Gaussian(o.variance), lr=3e-3)
    q = posterior(found.local)
    gap = (o.log_p - o.elbo(q)).mean() / o.log_p.mean().abs()
    assert -1e-5 < gap < 0.01
    exact = o.precision.rsqrt()
    assert ((q.loc[0] - o.mean) / exact).abs().mean() < 0.1  # in units of the exact standard deviation
    assert (q.scale[0] / exact - 1).abs().mean() < 0.1


def log_density(mean, x, mask, variance):  # (R, B)
    "log p(x|z) over what is observed, in PyTorch's own words."
    return torch.where(mask, Normal(mean, torch.as_tensor(variance).sqrt()).log_prob(x), 0).sum(-1)


def learn(posterior, net, data, variance, steps):
    "Learn a posterior for a decoder that is given."
    net.requires_grad_(False)
    adam, g = torch.optim.Adam(posterior.parameters(), 3e-3), generator(0, "learn")
    rows, noise = torch.arange(data.n_rows)[None], lambda: torch.randn(1, data.n_rows, posterior.latent, generator=g)
    for _ in range(steps):
        adam.zero_grad()
        gradients(posterior, net, data, rows, posterior.start(data.n_rows), noise(), Gaussian(variance))
        adam.step()
    return noise


@pytest.mark.parametrize("kind", [Refined, SemiAmortised])
def test_an_encoder_with_steps_approaches_the_exact_posterior(kind):
    o = Oracle()  # its encoder is linear, too: alone it has to treat all patterns of holes alike
    gaps = []
    for steps in (0, 4, 16):
        posterior = kind(o.net, Gaussian(o.variance), steps)
        noise = learn(posterior, o.net, o.data, o.variance, 100)
        with torch.no_grad():
            elbo = o.elbo(posterior(None, *o.data.batch(torch.arange(40)[None]), noise()))
        assert (elbo <= o.log_p + 1e-3).all()
        gaps.append((o.log_p - elbo).mean() / o.log_p.mean().abs())
    assert gaps[2] < gaps[1] < gaps[0] and gaps[2] < 0.02


@pytest.mark.parametrize("kind", [Refined, SemiAmortised])
def test_steps_alone_approach_the_exact_posterior(kind):
    o = Oracle()
    batch, noise = o.data.batch(torch.arange(40)[None]), torch.randn(1, 40, 4, generator=generator(0))
    gaps = []
    for steps in (0, 1, 4, 16, 64):
        with torch.no_grad():
            gaps.append((o.log_p - o.elbo(kind(o.net, Gaussian(o.variance), steps)(None, *batch, noise))).mean())
    assert all(more < less for less, more in pairwise(gaps)) and gaps[-1] > 0
    assert gaps[-1] / o.log_p.mean().abs() < 0.02


def test_the_ladder_approaches_the_evidence():
    """Pairs (z_1, z_2) that are independent of each other given x: the exact posterior has the ladder's form, and log p(x) is known."""
    g, variance, n = generator(0, "ladder"), 0.2, 40
    net = LadderDecoder(20, (), 8)
    for p in net.parameters():
        p.data.zero_()
    for k in range(4):
        net.weights[0].data[0, k, 5 * k : 5 * k + 5] = torch.randn(5, generator=g)
    net.top_down.weights[0].data[0, :, :4] = torch.diag(torch.tensor([1.0, -0.5, 0.8, 0.3]))
    net.top_down.biases[0].data[0, 0, 4:] = 2 * math.log(0.7)
    x = (net(torch.randn(1, n, 8, generator=g)) + math.sqrt(variance) * torch.randn(1, n, 20, generator=g))[0].detach()
    data = incomplete(x, torch.ones(n, 20, dtype=torch.bool))  # then a linear encoder can be exact
    linear = net(torch.eye(8)[None])[0].detach()  # the decoder is linear in u
    log_p = torch.distributions.MultivariateNormal(torch.zeros(20), linear.T @ linear + variance * torch.eye(20)).log_prob(x)
    posterior = Ladder(net)
    noise, batch = learn(posterior, net, data, variance, 1500), data.batch(torch.arange(n)[None])
    draws = []
    with torch.no_grad():
        for _ in range(400):
            draw = noise()
            q = posterior(None, *batch, draw)
            draws.append((log_density(net(q.loc + q.scale * draw), *batch, variance) - kl(q))[0])
    elbo = torch.stack(draws)
    assert (elbo.mean(0) <= log_p + 4 * elbo.std(0) / 20).all()
    assert (log_p - elbo.mean(0)).mean() / log_p.mean().abs() < 0.02


@pytest.mark.parametrize("name", ["amortised", "mixture", "semi", "ladder"])
def test_gradients_are_those_of_the_whole_objective(name):
    variance = [0.1, 1.0]
    posterior, net = make(name, 12, 4, (0, 1), variance=variance)
    data = incomplete(torch.randn(9, 12, generator=generator(0)), mcar((2, 9, 12), 0.4, generator(1)))
    rows, noise = torch.arange(9).repeat(2, 1), torch.randn(2, 9, 4, generator=generator(2))
    local, batch = posterior.start(9).requires_grad_(), data.batch(rows)
    gradients(posterior, net, data, rows, local, noise, Gaussian(variance))
    q = posterior(local, *batch, noise)
    loss = kl(q) - log_density(net(q.loc + q.scale * noise), *batch, torch.tensor(variance)[:, None, None])
    learned = [*posterior.parameters(), *net.parameters(), *([local] if posterior.n_local else [])]
    wanted = torch.autograd.grad(loss.sum(), learned)
    torch.testing.assert_close([p.grad for p in learned], list(wanted), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [Refined, SemiAmortised])
def test_no_steps_are_the_vae(kind):
    data = incomplete(torch.randn(60, 12, generator=generator(0)), mcar((2, 60, 12), 0.5, generator(1)))
    outcomes = []
    for choose in (lambda net: Amortised(12, 4, (16,), (0, 1)), lambda net: kind(net, Gaussian(), 0, seeds=(0, 1))):
        net = decoder(12, (16,), 4, (0, 1))
        outcomes.append(fit(choose(net), net, data, 4, batch_size=32).curve)
    np.testing.assert_allclose(*outcomes, rtol=1e-5)  # the VAE is computed by compiled loops


def test_a_row_with_nothing_observed_has_the_prior_as_its_posterior():
    o = Oracle()
    nothing = incomplete(o.x, torch.zeros_like(o.mask))
    posterior = MeanField(4)
    q = posterior(infer(posterior, o.net, nothing, 1, 1500, Gaussian(o.variance), 1e-2).local)
    assert q.loc.abs().max() < 0.1 and (q.scale - 1).abs().max() < 0.1


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("poison", [math.inf, -1e30, math.nan])
def test_hidden_entries_have_no_influence(name, poison):
    x, mask = torch.randn(60, 12, generator=generator(0)), mcar((2, 60, 12), 0.5, generator(1))
    mask[1] = mask[0]  # both runs hide the same, so the shared values can be poisoned
    outcomes = []
    for values in (x, torch.where(mask[0], x, poison)):
        data = incomplete(values, mask)
        f = fit(*make(name, 12, 4, (0, 1)), data, 3, batch_size=32)
        found = infer(f.posterior, f.decoder, data, 2, 3)
        outcomes.append((f.local, f.curve, found.local, found.curve, found.loss, *(p.detach() for p in f.decoder.parameters())))
    for one, other in zip(*outcomes, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("name", POSTERIORS)
def test_a_run_does_not_depend_on_its_neighbours_and_repeats(name):
    x, rates, lrs, variances = torch.randn(300, 30, generator=generator(0)), (0.1, 0.5, 0.9), (1e-3, 1e-2, 3e-3), (0.1, 1.0, 0.03)
    masks = torch.stack([mcar((300, 30), r, generator(s, "mask")) for s, r in enumerate(rates)])

    def train(runs):
        data = incomplete(x, masks[runs])
        variance = [variances[r] for r in runs]
        return fit(*make(name, 30, 8, runs, variance=variance), data, 5, Gaussian(variance), [lrs[r] for r in runs])

    together, again = train([0, 1, 2]), train([0, 1, 2])
    assert np.array_equal(together.curve, again.curve) and torch.equal(together.local, again.local)
    for r in range(3):
        alone = train([r])
        np.testing.assert_allclose(alone.curve[0], together.curve[r], rtol=1e-5)
        torch.testing.assert_close(alone.local[0], together.local[r], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", POSTERIORS)
def test_inference_of_a_row_does_not_depend_on_the_others(name):
    x, mask = torch.randn(300, 30, generator=generator(0)), mcar((1, 300, 30), 0.5, generator(1))
    posterior, net = make(name, 30, 8)
    whole = infer(posterior, net, incomplete(x, mask), 5, 10).local
    some = torch.tensor([250, 3, 77])
    part = infer(posterior, net, incomplete(x[some], mask[:, some]), 5, 10).local
    torch.testing.assert_close(part[0], whole[0, some], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_has_the_same_bits_in_any_group(model, path):
    runs = product(Run(model, "toy", n_train=300, n_test=70, epochs=2), rate=(0.2, 0.8), test_rate=(None, 0.5), seed=range(2))
    assert len({shape_of(r) for r in runs}) == 1
    together = compute(runs)
    # bits are promised where compiled loops do the work; plain torch sums in an order of its own, and promises no more than closeness
    same = np.testing.assert_array_equal if path == "compiled" else partial(np.testing.assert_allclose, rtol=1e-4)
    for i in (0, 3, 6):
        alone = compute(runs[i : i + 1])[0]
        for name in ("train_loss", "test_loss", "imputation_loss"):
            same(alone[name], together[i][name])
        same(alone["train_curve"], together[i]["train_curve"])
    same_training = together[0], together[2]  # they differ in what is hidden of the test rows
    same(same_training[0]["train_loss"], same_training[1]["train_loss"])
    assert same_training[0]["test_loss"] != same_training[1]["test_loss"]


@pytest.mark.parametrize("model", ["rvi", "vad"])
def test_a_rate_at_test_is_used_at_test_only(model):
    run = Run(model, "toy", n_train=300, n_test=70, epochs=3)
    usual, other = compute([run, replace(run, test_lr=1e-2)])
    assert usual["train_loss"] == other["train_loss"] and usual["test_loss"] > other["test_loss"]


def test_global_random_state_is_left_alone():
    state = torch.get_rng_state()
    np_state = np.random.get_state()[1].copy()  # noqa: NPY002
    data = incomplete(torch.randn(50, 6, generator=generator(0)), mcar((50, 6), 0.3, generator(1)))
    f = fit(Relay(4, (3, 5)), decoder(6, (8,), 4), data, 2)
    infer(f.posterior, f.decoder, data, 1, 2)
    assert torch.equal(state, torch.get_rng_state()) and (np_state == np.random.get_state()[1]).all()  # noqa: NPY002


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(0, 2**16),
    st.sampled_from(["normal", "ties", "zeros", "tiny", "huge"]),
    st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=given_path)
def test_keep_top_keeps_exactly_the_largest(groups, seed, kind, data):
    n_kept = [data.draw(st.integers(1, k)) for k in groups]
    a = torch.randn(7, sum(groups), generator=generator(seed))
    a = {"normal": a, "ties": a.round(), "zeros": a * 0, "tiny": a * 1e-38, "huge": a * 1e37}[kind].requires_grad_()
    kept = keep_top(a, groups, n_kept)
    (grad,) = torch.autograd.grad(kept.sum(), a)
    start = 0
    for k, b in zip(groups, n_kept, strict=True):
        g, size = grad[:, start : start + k] != 0, a.detach()[:, start : start + k].abs()
        assert (g.sum(1) == b).all()  # exactly B get gradient
        smallest_kept = torch.where(g, size, math.inf).amin(1)
        largest_left = torch.where(g, -1, size).amax(1)
        assert (smallest_kept >= largest_left).all()
        start += k
    assert torch.equal(kept != 0, (a != 0) & (grad != 0))
    if kind == "normal":
        assert torch.equal(kept, a * keep_top_mask(a, groups, n_kept))


def test_bad_arguments_are_named():
    data = incomplete(torch.zeros(4, 3), torch.ones(4, 3, dtype=torch.bool))
    for options, message in [(dict(lr=-1.0), "lr"), (dict(lr=[1e-3, 1e-3]), "lr")]:
        with pytest.raises(ValueError, match=message):
            fit(MeanField(2), decoder(3, (), 2), data, 1, **options)
    with pytest.raises(ValueError, match="likelihood"):
        fit(MeanField(2), decoder(3, (), 2), data, 1, Gaussian([0.1, 0.1]))
    with pytest.raises(ValueError, match="variance"):
        Gaussian(0.0)
    with pytest.raises(ValueError, match="ratio"):
        Relay(ratio=0)
    with pytest.raises(ValueError, match="n_train"):
        load("toy", n_train=0)


def test_a_diverged_run_is_visible_and_alone():
    x, mask = torch.randn(100, 10, generator=generator(0)), mcar((2, 100, 10), 0.5, generator(1))
    f = fit(MeanField(4, (0, 1)), decoder(10, (8,), 4, (0, 1)), incomplete(x, mask), 3, lr=[1e-3, 1e30])
    assert np.isfinite(f.curve[0]).all() and not np.isfinite(f.curve[1, -1])
    everyone = torch.arange(100).repeat(2, 1)
    assert np.isfinite(evaluate(f.posterior, f.decoder, incomplete(x, mask), lambda rows: f.local[:, rows[0]], everyone, Gaussian())[0])
