"""What crosses the core's modules: an exact oracle, no influence of hidden entries, independence of neighbours."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal

from rvi_nb.data import generator, load
from rvi_nb.decoder import decoder
from rvi_nb.fit import evaluate, fit, infer
from rvi_nb.missing import incomplete, mcar
from rvi_nb.objective import kl
from rvi_nb.posterior import Amortised, MeanField, Relay, keep_top, keep_top_mask

POSTERIORS = {
    "relay": lambda d, t, seeds: Relay(t, (5, 10), 0.5, seeds),
    "meanfield": lambda d, t, seeds: MeanField(t, seeds),
    "amortised": lambda d, t, seeds: Amortised(d, t, (16,), seeds),
}


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
@settings(max_examples=30, deadline=None)
def test_elbo_never_exceeds_the_evidence(seed, spread):
    o = Oracle(n=10)
    g = generator(seed, "q")
    q = Normal(o.mean + spread * torch.randn(1, 10, 4, generator=g), spread * torch.rand(1, 10, 4, generator=g) + 0.01)
    assert (o.elbo(q) <= o.log_p + 1e-3).all()


@pytest.mark.parametrize("name", ["relay", "meanfield"])
def test_inference_finds_the_exact_posterior(name):
    o = Oracle()
    posterior = POSTERIORS[name](o.d, 4, (0,))
    found = infer(posterior, o.net, o.data, 1, epochs=6000, lr=1e-3, variance=o.variance)
    q = posterior(found.local)
    gap = (o.log_p - o.elbo(q)).mean() / o.log_p.mean().abs()
    assert -1e-5 < gap < 0.01
    exact = o.precision.rsqrt()
    assert ((q.loc[0] - o.mean) / exact).abs().mean() < 0.1  # in units of the exact standard deviation
    assert (q.scale[0] / exact - 1).abs().mean() < 0.1


def test_a_row_with_nothing_observed_has_the_prior_as_its_posterior():
    o = Oracle()
    nothing = incomplete(o.x, torch.zeros_like(o.mask))
    posterior = MeanField(4)
    q = posterior(infer(posterior, o.net, nothing, 1, epochs=3000, lr=5e-3, variance=o.variance).local)
    assert q.loc.abs().max() < 0.1 and (q.scale - 1).abs().max() < 0.1


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("poison", [math.inf, -1e30, math.nan])
def test_hidden_entries_have_no_influence(name, poison):
    x, mask = torch.randn(60, 12, generator=generator(0)), mcar((2, 60, 12), 0.5, generator(1))
    mask[1] = mask[0]  # both runs hide the same, so the shared values can be poisoned
    outcomes = []
    for values in (x, torch.where(mask[0], x, poison)):
        data = incomplete(values, mask)
        f = fit(POSTERIORS[name](12, 4, (0, 1)), decoder(12, (16,), 4, (0, 1)), data, 3, batch_size=32)
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
        return fit(POSTERIORS[name](30, 8, runs), decoder(30, (16,), 8, runs), data, 5, [lrs[r] for r in runs], variance=[variances[r] for r in runs])

    together, again = train([0, 1, 2]), train([0, 1, 2])
    assert np.array_equal(together.curve, again.curve) and torch.equal(together.local, again.local)
    for r in range(3):
        alone = train([r])
        np.testing.assert_allclose(alone.curve[0], together.curve[r], rtol=1e-5)
        torch.testing.assert_close(alone.local[0], together.local[r], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", POSTERIORS)
def test_inference_of_a_row_does_not_depend_on_the_others(name):
    x, mask = torch.randn(300, 30, generator=generator(0)), mcar((1, 300, 30), 0.5, generator(1))
    posterior, net = POSTERIORS[name](30, 8, (0,)), decoder(30, (16,), 8)
    whole = infer(posterior, net, incomplete(x, mask), 5, 10).local
    some = torch.tensor([250, 3, 77])
    part = infer(posterior, net, incomplete(x[some], mask[:, some]), 5, 10).local
    torch.testing.assert_close(part[0], whole[0, some], rtol=1e-4, atol=1e-5)


def test_global_random_state_is_left_alone():
    state = torch.get_rng_state()
    np_state = np.random.get_state()[1].copy()
    data = incomplete(torch.randn(50, 6, generator=generator(0)), mcar((50, 6), 0.3, generator(1)))
    f = fit(Relay(4, (3, 5)), decoder(6, (8,), 4), data, 2)
    infer(f.posterior, f.decoder, data, 1, 2)
    assert torch.equal(state, torch.get_rng_state()) and (np_state == np.random.get_state()[1]).all()


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(0, 2**16),
    st.sampled_from(["normal", "ties", "zeros", "tiny", "huge"]),
    st.data(),
)
@settings(max_examples=60, deadline=None)
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
    for options, message in [(dict(lr=-1.0), "lr"), (dict(variance=0.0), "variance"), (dict(lr=[1e-3, 1e-3]), "lr")]:
        with pytest.raises(ValueError, match=message):
            fit(MeanField(2), decoder(3, (), 2), data, 1, **options)
    with pytest.raises(ValueError, match="ratio"):
        Relay(ratio=0)
    with pytest.raises(ValueError, match="n_train"):
        load("toy", n_train=0)


def test_a_diverged_run_is_visible_and_alone():
    x, mask = torch.randn(100, 10, generator=generator(0)), mcar((2, 100, 10), 0.5, generator(1))
    f = fit(MeanField(4, (0, 1)), decoder(10, (8,), 4, (0, 1)), incomplete(x, mask), 3, lr=[1e-3, 1e30])
    assert np.isfinite(f.curve[0]).all() and not np.isfinite(f.curve[1, -1])
    everyone = torch.arange(100).repeat(2, 1)
    assert np.isfinite(evaluate(f.posterior, f.decoder, incomplete(x, mask), lambda rows: f.local[:, rows[0]], everyone)[0])
