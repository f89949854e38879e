"""Any decoder, any likelihood, any posterior: what a user brings is learned right, or refused in one clear line."""

import math
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import FactorAnalysis
from torch import Tensor, nn
from torch.distributions import Laplace, Normal, Poisson
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rvi_nb
from rvi_nb.base.paths import plain_torch
from rvi_nb.base.random import generator
from rvi_nb.data.datasets import load
from rvi_nb.model.adam import Adam
from rvi_nb.model.decoder import as_decoder, decoder, stack
from rvi_nb.model.fit import fit
from rvi_nb.model.infer import infer
from rvi_nb.model.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Mixed
from rvi_nb.model.missing import incomplete, mcar
from rvi_nb.model.objective import elbo
from rvi_nb.model.optim import RowAdam, RowTable
from rvi_nb.model.posterior import Amortised, MeanField, Posterior, Relay
from rvi_nb.model.step import evaluate, gradients

both_paths = pytest.mark.usefixtures("path")


def conv(latent=8, channels=1, width=6):
    "Codes to images of 28 x 28, as anybody would write it."
    return nn.Sequential(
        nn.Linear(latent, width * 49),
        nn.ReLU(),
        nn.Unflatten(1, (width, 7, 7)),
        nn.ConvTranspose2d(width, width, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, channels, 4, 2, 1),
        nn.Flatten(),
    )


def linear(d, t=4):
    return nn.Sequential(nn.Linear(t, 16), nn.ReLU(), nn.Linear(16, d))


def table(n=60, d=12, runs=1, rate=0.3):
    "Values in (0, 1) with holes."
    return incomplete(torch.rand(n, d, generator=generator(0)), mcar((runs, n, d), rate, generator(1)))


def negative_elbo(model, data, local, draws=8):
    "Per row, averaged over rows and draws."
    rows, gen = torch.arange(data.n_rows).repeat(data.n_runs, 1), generator(0, "draws")
    with torch.no_grad():
        noise = [torch.randn(data.n_runs, data.n_rows, model.posterior.latent, generator=gen) for _ in range(draws)]
        return -torch.stack([elbo(model.posterior, model.decoder.eval(), data, rows, local, e, model.likelihood) for e in noise]).mean().item()


# 1. Learning


@pytest.fixture(scope="module")
def digits():
    images = load("mnist", 300)
    return (images.train > 0.5).float(), (images.test[:100] > 0.5).float()


@both_paths
def test_a_convolutional_decoder_learns_binary_digits(digits):
    train, test = (incomplete(x, mcar(x.shape, 0.3, generator(i, "mask"))) for i, x in enumerate(digits))
    losses = {}
    for posterior in (Relay(8, (10, 20)), MeanField(8)):
        f = fit(posterior, conv(), train, 12, Bernoulli(), 3e-3, batch_size=50)
        assert np.isfinite(f.curve).all() and f.curve[0, -1] < 0.8 * f.curve[0, 0]
        found = infer(f.posterior, f.decoder, test, f.steps_per_epoch, 12, f.likelihood, 3e-3)
        assert found.local.shape == (1, 100, posterior.n_local) and np.isfinite(found.curve).all()
        losses[type(posterior)] = negative_elbo(f, train, f.local), negative_elbo(f, test, found.local)
    assert losses[Relay][0] < losses[MeanField][0] and losses[Relay][1] < losses[MeanField][1]
    assert losses[Relay][1] < 0.7 * 784 * 0.7 * math.log(2)  # far below that of a decoder that knows nothing


@both_paths
def test_pixels_in_levels_are_categories():
    coarse = nn.functional.avg_pool2d(load("mnist", 300).train.view(-1, 1, 28, 28), 4).flatten(1)
    data = incomplete((3 * coarse).round(), mcar(coarse.shape, 0.2, generator(0, "mask")))
    levels = Categorical(4)
    f = fit(Relay(4, (10, 20)), decoder(levels.n_outputs(49), (32,), 4), data, 60, levels, 1e-2, batch_size=50)
    counts = torch.nn.functional.one_hot(data.x.long(), 4).float().mean(0).clamp_min(1e-6).log()  # the frequencies of each pixel
    alone = -(counts.expand(300, 49, 4).gather(2, data.x.long()[..., None])[..., 0] * data.mask[0]).sum(1).mean().item()
    assert negative_elbo(f, data, f.local) < 0.9 * alone  # codes know more than that
    assert f.loss[0] < f.curve[0, 0] and infer(f.posterior, f.decoder, data, 6, 20, levels).loss.shape == (1,)


@both_paths
def test_a_learned_variance_is_that_of_the_noise():
    gen, n, spread = generator(0), 1000, torch.linspace(0.5, 1.2, 6)
    x = torch.randn(n, 1, generator=gen) * torch.tensor([1.0, -1, 1, -1, 1, -1]) + spread * torch.randn(n, 6, generator=gen)
    learned = Gaussian.learned(6)
    fit(MeanField(1), decoder(6, (), 1), incomplete(x, all_seen(n, 6)), 300, learned, 2e-2, 2e-2, batch_size=250)
    variance = learned.variance[0, 0].detach()
    likeliest = torch.tensor(FactorAnalysis(1, tol=1e-6, max_iter=5000).fit(x.numpy()).noise_variance_).float()  # the same model, exactly
    assert (variance / likeliest - 1).abs().max() < 0.1 and (variance / spread.square()).log().abs().max() < 0.2


@both_paths
@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_two_stacked_runs_are_two_single_runs(kind):
    likelihood, data = {"gaussian": Gaussian, "bernoulli": Bernoulli}[kind](), table(runs=2)
    module = lambda: nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.ReLU(), nn.Linear(12, 12))
    learn = lambda seeds, data: fit(Relay(4, (5, 7), seeds=seeds), stack(module, seeds), data, 3, likelihood, batch_size=20)
    together = learn((0, 1), data)
    found = infer(together.posterior, together.decoder, data, 3, 3, likelihood)
    for r in range(2):
        one = incomplete(data.x, data.mask[r])
        alone = learn((r,), one)
        assert np.array_equal(alone.curve[0], together.curve[r]) and torch.equal(alone.local[0], together.local[r])
        for a, b in zip(alone.decoder.each[0].state_dict().values(), together.decoder.each[r].state_dict().values(), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(infer(alone.posterior, alone.decoder, one, 3, 3, likelihood).local[0], found.local[r])


# 2. Against the exact evidence


def on_a_grid(net, likelihood, data, q, points=161, reach=6.0):
    "log p(x) and the ELBO of q for each row, both by summing over a grid of codes; and the mass of q that the grid holds."
    line = torch.linspace(-reach, reach, points)
    t = q.loc.shape[-1]
    z = torch.cartesian_prod(*[line] * t).view(-1, t)  # (G, t)
    cell = t * math.log(2 * reach / (points - 1))
    x, mask = data.batch(torch.arange(data.n_rows)[None])
    with torch.no_grad():
        outputs = net(z[None])[0]  # (G, outputs)
        joint = [likelihood.log_prob(outputs[None], x[:, i].expand(1, len(z), -1), mask[:, i].expand(1, len(z), -1))[0] for i in range(data.n_rows)]
    joint = torch.stack(joint) + Normal(0.0, 1.0).log_prob(z).sum(-1) + cell  # (n, G)
    log_q = Normal(q.loc[0, :, None], q.scale[0, :, None]).log_prob(z).sum(-1) + cell
    return joint.logsumexp(1), (log_q.exp() * (joint - log_q)).sum(1), log_q.logsumexp(1).exp()


@both_paths
@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "mixed", "gaussian"])
def test_inference_approaches_the_evidence(kind, t):
    gen = generator(0, "small model")
    likelihood, d = {
        "bernoulli": (Bernoulli(), 6),
        "categorical": (Categorical([2, 3, 4, 3]), 4),
        "mixed": (Mixed([(Bernoulli(), [0, 3]), (Gaussian(0.5), [1]), (Categorical(3), [2, 4])]), 5),
        "gaussian": (Gaussian(0.5), 5),
    }[kind]
    net = decoder(likelihood.n_outputs(d), (8,), t)
    for w in net.weights:
        w.data.mul_(2)
    with torch.no_grad():
        x = likelihood.sample(net(torch.randn(1, 20, t, generator=gen)), gen)[0]
    data = incomplete(x, mcar((20, d), 0.25, gen))
    posterior = MeanField(t)
    found = infer(posterior, net, data, 1, 500, likelihood, 15e-3)
    log_p, bound, mass = on_a_grid(net, likelihood, data, posterior(found.local))
    assert (mass - 1).abs().max() < 1e-3  # the grid is fine and wide enough
    assert (bound <= log_p + 1e-3).all()
    assert (log_p - bound).mean() < (0.03 if t == 1 else 0.08) * log_p.abs().mean()  # in two dimensions the exact posterior leans, and q cannot
    prior, start = Normal(torch.zeros(1, 20, t), torch.ones(1, 20, t)), posterior(posterior.start(20))
    for worse in (prior, start):  # what inference is for
        assert bound.mean() > on_a_grid(net, likelihood, data, worse, 641 if worse is start and t == 1 else 161)[1].mean()


# 3. What new users tried


@both_paths
def test_a_convolutional_decoder_is_learned_without_a_word_about_runs():
    images = torch.rand(40, 784, generator=generator(0))
    f = fit(Relay(4, (5, 5)), conv(4, width=3), incomplete(images, torch.ones(40, 784, dtype=torch.bool)), 3, batch_size=10)
    assert np.isfinite(f.curve).all() and f.curve[0, -1] < f.curve[0, 0]


@both_paths
def test_one_rate_moves_every_row_of_a_parameter():
    p = nn.Parameter(torch.zeros(4, 3))
    adam, p.grad = Adam([p], [torch.tensor([0.1])]), torch.ones(4, 3)
    adam.step()
    torch.testing.assert_close(p.detach(), torch.full((4, 3), -0.1))


class Exp(nn.Module):
    def forward(self, x):
        return x.exp()


@both_paths
@pytest.mark.parametrize("last", [nn.Sigmoid, nn.Tanh, Exp, partial(nn.Softmax, -1), nn.ReLU])
def test_a_decoder_may_end_in_any_function(last):
    data, net = table(), nn.Sequential(linear(12), last())
    rows, posterior, noise = torch.arange(60)[None], MeanField(4), torch.randn(1, 60, 4, generator=generator(2))
    local, wrapped = posterior.start(60).requires_grad_(), as_decoder(net)
    gradients(posterior, wrapped, data, rows, local, noise, Gaussian(0.1))
    mean, log_var = local.chunk(2, -1)  # the objective once more, by hand
    q = Normal(mean, (0.5 * log_var).exp())
    x, mask = data.batch(rows)
    log_p = torch.where(mask, Normal(net(q.mean[0] + q.stddev[0] * noise[0])[None], 0.1**0.5).log_prob(x), 0).sum()
    loss = torch.distributions.kl_divergence(q, Normal(0.0, 1.0)).sum() - log_p
    learned = [local, *net.parameters()]
    torch.testing.assert_close([p.grad for p in learned], list(torch.autograd.grad(loss, learned)), rtol=1e-4, atol=1e-3)
    for p in net.parameters():
        p.grad = None
    f = fit(MeanField(4), net, data, 40, Gaussian(0.1), 1e-2, batch_size=20)
    assert f.curve[0, -1] < f.curve[0, 0]


def all_seen(*shape):
    return torch.ones(shape, dtype=torch.bool)


REFUSED = {
    "decoder narrower": (lambda: fit(Relay(), decoder(50), incomplete(torch.rand(9, 100), all_seen(9, 100)), 1), "decoder"),
    "decoder wider": (lambda: fit(Relay(), decoder(150), incomplete(torch.rand(9, 100), all_seen(9, 100)), 1), "decoder"),
    "runs": (lambda: fit(Relay(4, seeds=(0, 1)), decoder(12, (), 4, (0, 1)), table(), 1), "runs"),
    "runs of infer": (lambda: infer(Relay(4, seeds=(0, 1)), decoder(12, (), 4, (0, 1)), table(), 1, 1), "runs"),
    "index beyond x": (lambda: incomplete(torch.rand(4, 3), all_seen(1, 1, 3), torch.tensor([[4]])), "index"),
    "index below": (lambda: incomplete(torch.rand(4, 3), all_seen(1, 1, 3), torch.tensor([[-1]])), "index"),
    "row that is not there": (lambda: RowTable(torch.zeros(4, 3)).read(torch.tensor([4])), "rows"),
    "row before the first": (lambda: RowTable(torch.zeros(4, 3))(torch.tensor([-1])), "rows"),
    "visit that is not there": (lambda: visit(torch.tensor([4]), torch.zeros(1, 3)), "places"),
    "visit of another width": (lambda: visit(torch.tensor([0]), torch.zeros(1, 2)), "grad"),
    "weight decay": (lambda: RowAdam(RowTable(torch.zeros(4, 3)), weight_decay=0.1), "weight_decay"),
    "state of another table": (lambda: RowTable(torch.zeros(4, 3)).load_state_dict(late_state()), "last"),
    "module for two runs": (lambda: fit(Relay(4, seeds=(0, 1)), linear(12), table(runs=2), 1), "runs"),
    "codes of another size": (lambda: fit(Relay(5), linear(12), table(), 1), "decoder"),
    "encoder for other data": (lambda: fit(Amortised(11, 4), linear(12), table(), 1), "posterior"),
    "variances": (lambda: fit(Relay(4), linear(12), table(), 1, Gaussian([0.1, 0.2, 0.3])), "likelihood"),
    "learned variances of one run": (lambda: fit(Relay(4, seeds=(0, 1)), decoder(12, (), 4, (0, 1)), table(runs=2), 1, Gaussian.learned(12)), "run axis"),
    "no such values": (lambda: fit(Relay(4), linear(12), incomplete(2 * table().x, table().mask), 1, Bernoulli()), "x holds"),
    "not numbers": (lambda: fit(Relay(4), linear(12), incomplete(table().x * math.nan, table().mask), 1), "x holds"),
    "not a likelihood": (lambda: fit(Relay(4), linear(12), table(), 1, "bernoulli"), "likelihood"),
    "not a posterior": (lambda: fit(linear(12), linear(12), table(), 1), "posterior"),
    "not a decoder": (lambda: fit(Relay(4), lambda z: z, table(), 1), "decoder"),
    "not data": (lambda: fit(Relay(4), linear(12), torch.rand(9, 12), 1), "data"),
    "doubles": (lambda: fit(Relay(4), linear(12), incomplete(table().x.double(), table().mask), 1), "x must be float32"),
    "doubles in a decoder": (lambda: fit(Relay(4), linear(12).double(), table(), 1), "decoder"),
    "one distribution per row": (lambda: fit(Joint(4), linear(12), table(), 1), "posterior"),
    "epochs": (lambda: fit(Relay(4), linear(12), table(), -1), "epochs"),
    "rate": (lambda: infer(Relay(4), linear(12), table(), 1, 1, lr="fast"), "lr"),
}


def visit(places, grad):
    rows = RowTable(torch.zeros(4, 3))
    RowAdam(rows).visit(rows, places, grad)


def late_state():
    state = RowTable(torch.zeros(4, 3)).state_dict()
    return {**state, "last": state["last"] + 10**9}  # compiled loops would look that far


class Joint(MeanField):
    def forward(self, local, x=None, mask=None, noise=None):
        return torch.distributions.Independent(super().forward(local), 1)


@both_paths
@pytest.mark.parametrize("what", REFUSED)
def test_a_mistake_costs_one_clear_line(what):
    call, name = REFUSED[what]
    with pytest.raises((ValueError, TypeError), match=name):
        call()


@both_paths
def test_more_steps_than_anybody_announced():
    rows, dense = RowTable(torch.zeros(5, 2)), nn.Parameter(torch.zeros(5, 2))
    ours, theirs, gen = RowAdam(rows, 1e-3), torch.optim.Adam([dense], 1e-3), generator(0)
    for _ in range(2100):  # beyond the room there is at first, and beyond the first enlargement
        i, grad = torch.randint(5, (1,), generator=gen), torch.randn(1, 2, generator=gen)
        ours.visit(rows, i, grad)
        dense.grad = torch.zeros(5, 2).index_add_(0, i, grad)
        theirs.step()
    assert rows.weight.isfinite().all()
    torch.testing.assert_close(rows.weight, dense.detach(), rtol=0, atol=1e-4 * dense.abs().max().item())


@both_paths
def test_what_was_frozen_stays_frozen_and_nothing_else_is():
    net = linear(12)
    net[0].requires_grad_(False)
    before = deepcopy(net.state_dict())
    f = fit(Relay(4, (5, 5)), net, table(), 2)
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True]
    assert torch.equal(net[0].weight, before["0.weight"]) and not torch.equal(net[2].weight, before["2.weight"])
    assert all(p.requires_grad for p in f.posterior.parameters())
    infer(f.posterior, net, table(), 1, 2)
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True] and f.posterior.relays.requires_grad


@both_paths
def test_nothing_is_dropped_in_evaluation():
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 12))
    f, everyone = fit(Relay(4, (5, 5)), net, table(), 2), torch.arange(60)[None]
    assert net.training  # as it was
    look = lambda: evaluate(f.posterior, net, table(), lambda rows: f.local[:, rows[0]], everyone, f.likelihood)
    assert torch.equal(look(), look()) and look().item() == f.loss[0]
    once, twice = (infer(f.posterior, net, table(), 1, 3).local for _ in range(2))
    assert torch.equal(once, twice) and net.training


@both_paths
def test_no_epochs_are_no_error():
    f = fit(Relay(4), linear(12), table(), 0)
    assert f.curve.shape == (1, 0) and np.isfinite(f.loss).all() and f.local.shape == (1, 60, f.posterior.n_local)
    found = infer(f.posterior, f.decoder, table(), 1, 0)
    assert found.curve.shape == (1, 0) and found.local.shape == f.local.shape


def test_a_parameter_shared_between_layers_is_learned_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 12)
            self.b.weight = self.a.weight

        def forward(self, z):
            return self.out(self.b(self.a(z).relu()).relu())

    f = fit(MeanField(4), Tied(), table(), 3)
    assert f.decoder.each[0].a.weight is f.decoder.each[0].b.weight and np.isfinite(f.curve).all()


@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli, partial(Gaussian.learned, 12, n_runs=2)])
@pytest.mark.parametrize("kind", [Relay, MeanField, Amortised])
def test_the_two_paths_agree(kind, likelihood):
    outcomes = []
    for path in (nullcontext, plain_torch):
        posterior = kind(*([12] if kind is Amortised else []), latent=4, seeds=(0, 1))
        with path():
            f = fit(posterior, decoder(12, (16,), 4, (0, 1)), table(runs=2), 4, likelihood(), batch_size=20)
            found = infer(f.posterior, f.decoder, table(runs=2), 3, 4, f.likelihood)
        outcomes.append((f.local, *(torch.as_tensor(t) for t in (f.curve, f.loss, found.curve, found.loss)), found.local, *f.decoder.parameters()))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# 4. RowAdam against PyTorch's


SCHEDULES = {
    "constant": lambda adam: None,
    "StepLR": lambda adam: torch.optim.lr_scheduler.StepLR(adam, 40, 0.3),
    "cosine": lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, 200),
}


def walk(rows_of, adam, schedule=None, steps=200, begin=0, n=40, repeats=False):
    "Steps with random batches, towards targets that jump about."
    for step in range(begin, begin + steps):
        gen = generator(step, "walk")
        rows = torch.randint(n, (6,), generator=gen) if repeats else torch.randperm(n, generator=gen)[:6]
        target = torch.randn(6, 3, generator=gen)
        adam.zero_grad()
        sum((weight(rows) - target).square().sum() for weight in rows_of).backward()
        adam.step()
        if schedule:
            schedule.step()


def embedding(start, sparse=False):
    return nn.Embedding.from_pretrained(start.clone(), freeze=False, sparse=sparse)


@pytest.fixture
def start():
    return torch.randn(40, 3, generator=generator(0))


@both_paths
@pytest.mark.parametrize("repeats", [False, True], ids=["rows once", "rows repeated"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_row_adam_is_adam(start, schedule, repeats):
    rows, dense = RowTable(start), embedding(start)
    ours, theirs = RowAdam(rows, 1e-2), torch.optim.Adam(dense.parameters(), 1e-2)
    assert isinstance(ours, torch.optim.Optimizer)
    walk([rows], ours, SCHEDULES[schedule](ours), repeats=repeats)
    walk([dense], theirs, SCHEDULES[schedule](theirs), repeats=repeats)
    torch.testing.assert_close(rows.weight, dense.weight.detach(), rtol=0, atol=1e-4)
    assert (rows.weight - start).abs().max() > 0.1  # they went somewhere
    other = embedding(start)
    walk([other], torch.optim.Adam(other.parameters(), 1e-2, betas=(0.8, 0.999)), repeats=repeats)
    assert (rows.weight - other.weight.detach()).abs().max() > 1e-2  # and another optimiser would have been noticed


@both_paths
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_row_adam_resumes_bit_for_bit(start, schedule):
    make = lambda: (rows := RowTable(start), adam := RowAdam(rows, 1e-2), SCHEDULES[schedule](adam))
    rows, adam, change = make()
    walk([rows], adam, change, 120)
    state = deepcopy([part.state_dict() for part in (rows, adam, change) if part])
    walk([rows], adam, change, 80, begin=120)
    again = make()
    for part, saved in zip([p for p in again if p], state, strict=True):
        part.load_state_dict(saved)
    walk([again[0]], again[1], again[2], 80, begin=120)
    assert torch.equal(again[0].weight, rows.weight)
    for name, value in rows.state_dict().items():
        assert torch.equal(again[0].state_dict()[name], value)


@both_paths
def test_tables_and_groups_have_options_of_their_own(start):
    ours, theirs = [RowTable(start), RowTable(-start)], [embedding(start), embedding(-start)]
    options = [dict(lr=3e-2), dict(betas=(0.8, 0.99), eps=1e-7)]
    adam = RowAdam([dict(params=t, **o) for t, o in zip(ours, options, strict=True)], 1e-2)
    other = torch.optim.Adam([dict(params=t.parameters(), **o) for t, o in zip(theirs, options, strict=True)], 1e-2)
    assert [group["lr"] for group in adam.param_groups] == [3e-2, 1e-2]
    for tables, optimiser in ((ours, adam), (theirs, other)):
        walk(tables, optimiser, SCHEDULES["StepLR"](optimiser))
    for table_, dense in zip(ours, theirs, strict=True):
        torch.testing.assert_close(table_.weight, dense.weight.detach(), rtol=0, atol=1e-4)


@both_paths
def test_tables_of_one_group(start):
    ours, theirs = [RowTable(start), RowTable(-start)], [embedding(start), embedding(-start)]
    walk(ours, RowAdam(ours, 1e-2))
    walk(theirs, torch.optim.Adam([t.weight for t in theirs], 1e-2))
    for rows, dense in zip(ours, theirs, strict=True):
        torch.testing.assert_close(rows.weight, dense.weight.detach(), rtol=0, atol=1e-4)


@both_paths
def test_rows_that_must_not_coast_are_moved_as_by_sparse_adam(start):
    rows, sparse = RowTable(start), embedding(start, sparse=True)
    walk([rows], RowAdam(rows, 1e-2, coast=False))
    walk([sparse], torch.optim.SparseAdam(sparse.parameters(), 1e-2))
    torch.testing.assert_close(rows.weight, sparse.weight.detach(), rtol=0, atol=1e-4)
    before, seen = rows.weight.clone(), torch.tensor([0, 1])
    adam = RowAdam(rows, 1e-2, coast=False)
    adam.zero_grad()
    rows(seen).sum().backward()
    adam.step()
    assert torch.equal(rows.weight[2:], before[2:]) and not torch.equal(rows.weight[:2], before[:2])


@both_paths
@pytest.mark.parametrize("size, documented", [(1e-2, 7e-6), (1e-4, 7e-4), (1e-6, 7e-2)])
def test_what_leaving_eps_out_costs_is_what_is_documented(size, documented):
    rows, p = RowTable(torch.zeros(1, 1)), torch.zeros(1, requires_grad=True, dtype=torch.float64)
    ours, theirs = RowAdam(rows, 1e-3), torch.optim.Adam([p], 1e-3)
    for step in range(1000):  # one coordinate that gets a gradient every 40 steps
        visited = int(step % 40 == 0)
        ours.visit(rows, torch.zeros(visited, dtype=torch.int64), torch.full((visited, 1), size))
        p.grad = torch.full((1,), size * visited, dtype=torch.float64)
        theirs.step()
    assert abs(rows.weight.item() / p.item() - 1) == pytest.approx(documented, rel=0.3, abs=1e-5)  # float32 alone makes some 1e-5


# 6. Parts of one's own, as the recipes say


def recipe(base):
    "The numbered steps of a docstring, each with the names it puts in backticks."
    steps = re.findall(r"^ +(\d)\. (.*?)(?=^ +\d\. |^ +Where |^ +What )", base.__doc__, re.MULTILINE | re.DOTALL)
    assert [int(n) for n, _ in steps] == list(range(1, len(steps) + 1))
    return [re.findall(r"`(\w+)(?:\([^`]*)?`", text) for _, text in steps]


def own_names(cls):
    return {name for name in vars(cls) if not name.startswith("_")}


class Counts(Likelihood):
    accepts = "counts, 0 and up"

    def n_outputs(self, n_features):
        return n_features

    def log_prob(self, outputs, x, mask):
        return torch.where(mask, Poisson(outputs.exp()).log_prob(x), 0).sum(-1)

    def mean(self, outputs):
        return outputs.exp()

    def sample(self, outputs, generator):
        return torch.poisson(outputs.exp(), generator)

    def invalid(self, x):
        return ~((x >= 0) & (x == x.round()))


class HeavyTailed(Posterior):
    def __init__(self, latent, seeds=(0,)):
        super().__init__()
        self.latent, self.seeds, self.n_local = latent, tuple(seeds), 2 * latent

    def start(self, n, key="start"):
        mean = torch.stack([0.001 * torch.randn(n, self.latent, generator=generator(s, key)) for s in self.seeds])
        return torch.cat([mean, torch.full_like(mean, -2.0)], -1)

    def forward(self, local, x=None, mask=None, noise=None):
        mean, log_scale = local.chunk(2, -1)
        return Laplace(mean, log_scale.exp())


def test_the_recipe_of_a_likelihood_names_all_that_has_to_be_defined():
    steps = recipe(Likelihood)
    required = {names[0] for names in steps}
    assert required == Likelihood.__abstractmethods__ == {"n_outputs", "log_prob", "mean", "sample"}
    rest = Likelihood.__doc__.split("Where values are restricted")[1]
    optional = set(re.findall(r"`(\w+)", rest))
    assert required <= own_names(Counts) <= required | optional and optional <= own_names(Likelihood)
    for name in required:  # and nothing that it names can be left out
        less = type("Less", (Likelihood,), {k: v for k, v in vars(Counts).items() if k != name and not k.startswith("_")})
        with pytest.raises(TypeError, match=name):
            less()


def test_the_recipe_of_a_posterior_names_all_that_has_to_be_defined():
    attributes, *methods = recipe(Posterior)
    assert attributes == ["latent", "seeds", "n_local"] and {names[0] for names in methods} == Posterior.__abstractmethods__ == {"start", "forward"}
    assert own_names(HeavyTailed) == {"start", "forward"} and {"latent", "seeds", "n_local"} <= vars(HeavyTailed(2)).keys()
    assert {"draw", "divergence", "reads_data"} <= own_names(Posterior)  # what is there to be replaced
    for name in ("start", "forward"):
        less = type("Less", (Posterior,), {k: v for k, v in vars(HeavyTailed).items() if k != name})
        with pytest.raises(TypeError, match=name):
            less(2)


@both_paths
def test_a_likelihood_of_ones_own_is_learned():
    gen = generator(0)
    counts = torch.poisson((torch.randn(200, 2, generator=gen) @ torch.randn(2, 8, generator=gen)).exp().clamp_max(50), gen)
    data = incomplete(counts, mcar((200, 8), 0.2, gen))
    f = fit(Relay(2, (5, 5)), decoder(8, (16,), 2), data, 60, Counts(), 1e-2, batch_size=50)
    seen = data.mask[0]
    rate = (counts * seen).sum(0) / seen.sum(0)  # one rate for each feature, as without codes
    alone = -(Poisson(rate).log_prob(counts) * seen).sum(1).mean().item()
    assert negative_elbo(f, data, f.local) < 0.8 * alone
    found = infer(f.posterior, f.decoder, data, f.steps_per_epoch, 60, f.likelihood, 1e-2)
    assert negative_elbo(f, data, found.local) < 0.9 * alone
    with pytest.raises(ValueError, match="Counts takes counts, 0 and up"):
        fit(Relay(2), decoder(8, (), 2), incomplete(counts + 0.5, data.mask), 1, Counts())


@both_paths
def test_a_posterior_of_ones_own_is_learned_as_what_it_is():
    data, net, posterior = table(), decoder(12, (16,), 4), HeavyTailed(4)
    rows, noise, local = torch.arange(60)[None], torch.randn(1, 60, 4, generator=generator(2)), posterior.start(60).requires_grad_()
    gradients(posterior, net, data, rows, local, noise, Gaussian(0.1))
    mean, log_scale = local.chunk(2, -1)
    u = torch.special.ndtr(noise) - 0.5  # a Laplace draw by hand, and its divergence from the prior
    z = mean - log_scale.exp() * u.sign() * torch.log1p(-2 * u.abs())
    divergence = torch.distributions.kl_divergence(Laplace(mean, log_scale.exp()), Normal(0.0, 1.0)).sum()
    x, mask = data.batch(rows)
    loss = divergence - torch.where(mask, Normal(net(z), 0.1**0.5).log_prob(x), 0).sum()
    torch.testing.assert_close(local.grad, torch.autograd.grad(loss, local)[0], rtol=1e-3, atol=1e-3)
    f = fit(HeavyTailed(4), decoder(12, (16,), 4), data, 30, Gaussian(0.1), 1e-2, batch_size=20)
    fresh = f.posterior.start(60)
    assert negative_elbo(f, data, f.local) < negative_elbo(f, data, fresh)
    found = infer(f.posterior, f.decoder, data, f.steps_per_epoch, 30, f.likelihood, 1e-2)
    assert negative_elbo(f, data, found.local) < negative_elbo(f, data, fresh)


# Trainings that are put down, and what must not happen on a device


TRAINING = """
import os, signal, sys
import torch
from torch import nn
from rvi_nb import fit, incomplete, mcar, stack, Relay, Gaussian
from rvi_nb.base.random import generator
from rvi_nb.base.tensors import save_tensors
from rvi_nb.model.fit import one_thread

@one_thread()  # the order of sums depends on the number of threads, and this process may have another one
def train(checkpoint=None, resume=False, on_epoch=None):
    data = incomplete(torch.rand(90, 12, generator=generator(0)), mcar((2, 90, 12), 0.3, generator(1)))
    net = stack(lambda: nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 12)), (0, 1))
    return fit(Relay(4, (5, 5), seeds=(0, 1)), net, data, 12, Gaussian.learned(12, n_runs=2), [1e-3, 1e-2],
               batch_size=20, checkpoint=checkpoint, every=3, resume=resume, on_epoch=on_epoch)

def outcome(f):
    parts = {"posterior": f.posterior, "decoder": f.decoder, "likelihood": f.likelihood}
    learned = {f"{name}.{k}": v for name, part in parts.items() for k, v in part.state_dict().items()}
    return learned | {"local": f.local, "curve": torch.as_tensor(f.curve.copy()), "loss": torch.as_tensor(f.loss.copy())}

if __name__ == "__main__":
    if sys.argv[1] == "killed":  # after epoch 8, the newest checkpoint being that of epoch 6
        train("checkpoint", on_epoch=lambda e: os.kill(os.getpid(), signal.SIGKILL) if e.number == 8 else None)
    else:
        first = []
        f = train("checkpoint", resume=True, on_epoch=lambda e: first.append(e.number))
        save_tensors("resumed", outcome(f), {"first": first[0]})
"""


def python(*args, cwd=None):
    return subprocess.run(
        [sys.executable, *args],
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(rvi_nb.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_killed_training_is_resumed_bit_for_bit(tmp_path):
    (tmp_path / "training.py").write_text(TRAINING)
    killed = python("training.py", "killed", cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "checkpoint").exists(), killed.stderr
    resumed = python("training.py", "resumed", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    here: dict = {"__name__": "training"}
    exec(TRAINING, here)
    whole = here["outcome"](here["train"]())
    from rvi_nb.base.tensors import load_tensors

    other, note = load_tensors(tmp_path / "resumed")
    assert note["first"] == 7 and whole.keys() == other.keys()
    for name, value in whole.items():
        assert torch.equal(value, other[name]), name


class OnADevice(TorchDispatchMode):
    """Follows what would be on a device without float64: the data, the parameters, and all that is computed from them until `cpu()` takes it home.

    It covers every operation that torch carries out for them, backward passes and optimisers included; a tensor made from numbers alone counts as the
    processor's, until it meets one of those.
    """

    def __init__(self):
        super().__init__()
        self.memory, self.seen = {}, 0  # the storages, kept alive so that no address is used twice

    def put(self, *tensors):
        for t in tensors:
            self.memory[t.untyped_storage()._cdata] = t.untyped_storage()

    def __contains__(self, t):
        return t.layout is torch.strided and t.untyped_storage()._cdata in self.memory

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = lambda tree: [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.layout is torch.strided]
        if any(t in self for t in tensors((args, kwargs))):
            self.seen += 1
            for t in tensors(out):
                assert t.dtype != torch.float64, f"{func} makes a float64 tensor of what is on the device"
                self.put(t)
        return out


@pytest.mark.parametrize("likelihood", [partial(Gaussian, [0.1, 0.2]), Bernoulli, partial(Categorical, 2), partial(Gaussian.learned, 12, n_runs=2)])
@pytest.mark.parametrize("kind", [Relay, MeanField, Amortised, HeavyTailed])
def test_nothing_on_a_device_is_float64(monkeypatch, kind, likelihood):
    device = OnADevice()
    home, array, away = Tensor.cpu, Tensor.numpy, Tensor.to

    def numpy(t, *, force=False):
        assert force or t not in device, "numpy of what is on the device"
        return array(t, force=force)

    def cpu(t, *args, **options):
        return torch.from_numpy(array(t.detach(), force=True).copy()) if t in device else home(t, *args, **options)

    def to(t, *args, **options):
        moved = away(t, *args, **options)
        if args and isinstance(args[0], Tensor) and args[0] in device:
            moved = moved.clone()
            device.put(moved)
        return moved

    data, likelihood = table(runs=2), likelihood()
    data = incomplete(data.x.round(), data.mask)
    posterior = kind(*([12] if kind is Amortised else []), latent=4, seeds=(0, 1))
    net = decoder(likelihood.n_outputs(12), (16,), 4, (0, 1))
    device.put(data.x, data.mask, data.index, *(t for part in (posterior, net, likelihood) for t in (*part.parameters(), *part.buffers())))
    monkeypatch.setattr(Tensor, "numpy", numpy)
    monkeypatch.setattr(Tensor, "cpu", cpu)
    monkeypatch.setattr(Tensor, "to", to)
    with plain_torch(), device:
        f = fit(posterior, net, data, 2, likelihood, batch_size=20)
        infer(f.posterior, f.decoder, data, 3, 2, f.likelihood)
    assert device.seen > 500 and f.local in device  # it did follow


def test_the_device_test_notices_float64():
    x = torch.ones(3)
    device = OnADevice()
    device.put(x)
    with device, pytest.raises(AssertionError, match="float64"):
        (2 * x).double()


# Names from the top


NAMES = """fit infer evaluate Relay MeanField Amortised Gaussian Bernoulli Categorical Mixed stack decoder incomplete mcar load RowAdam RowTable
RelayImputer RelayEncoder""".split()


def test_importing_the_package_loads_nothing_heavy():
    script = "import sys, rvi_nb; print([m for m in ('torch', 'numba', 'numpy', 'pandas', 'sklearn') if m in sys.modules])"
    assert python("-c", script).stdout.strip() == "[]"
    script = "import sys; from rvi_nb import mcar; print(mcar.__module__, 'sklearn' in sys.modules)"
    assert python("-c", script).stdout.split() == ["rvi_nb.model.missing", "False"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there_at_the_top(name):
    assert name in rvi_nb.__all__ and name in dir(rvi_nb) and callable(getattr(rvi_nb, name))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        rvi_nb.nonsense  # noqa: B018
