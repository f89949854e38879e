"""Relays in a loop of one's own: the plain lines, `fit`, resuming, densities, compilers, precision, and rows in a file."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import rvi_nb
from rvi_nb import Bernoulli, Categorical, Gaussian, MeanField, Relay, RelayEmbedding, RelayVI, RowAdam, fit, incomplete, mcar, stack
from rvi_nb.base.paths import plain_torch
from rvi_nb.base.random import generator
from rvi_nb.model.own import row_batches

N, D, LATENT, GROUPS, BATCH, LR = 130, 12, 5, (6, 10), 40, 1e-2
X, MASK = torch.rand(N, D, generator=generator(0, "x")), mcar((N, D), 0.3, generator(0, "mask"))


def network(dropout: float = 0.0) -> nn.Module:
    return stack(lambda: nn.Sequential(nn.Linear(LATENT, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, D)))


def model(dropout: float = 0.0, likelihood=None, posterior=None) -> RelayVI:
    return RelayVI(network(dropout), likelihood or Gaussian(0.1), N, posterior or Relay(LATENT, GROUPS))


def step(vi: RelayVI, optimizers, i, x, m) -> float:
    loss = -vi.elbo(i, x, m).sum()
    loss.backward()
    for opt in optimizers:
        opt.step()
        opt.zero_grad()
    return loss.item()


def plain_lines(epochs: int) -> list[float]:
    "RVI without this package: autograd, topk, and Adam over all rows; the numbers it starts from are given."
    start, net = Relay(LATENT, GROUPS), network()
    relays = nn.Parameter(start.relays.detach()[0].clone())
    a, deviation, log_var = (nn.Parameter(t.clone()) for t in start.split(start.start(N)[0]))
    adam = torch.optim.Adam([relays, a, deviation, log_var, *net.parameters()], LR)
    shuffle, noise, losses = generator(0, "shuffle"), generator(0, "noise"), []
    for _ in range(epochs):
        for rows in torch.randperm(N, generator=shuffle).split(BATCH):
            keep = torch.cat(
                [torch.zeros_like(g).scatter(-1, g.abs().topk(k).indices, 1.0) for g, k in zip(a[rows].split(GROUPS, -1), (3, 5), strict=True)], -1
            )
            mean, scale = (a[rows] * keep) @ relays + deviation[rows], (log_var[rows] / 2).exp()
            z = mean + scale * torch.randn(len(rows), LATENT, generator=noise)
            cells = (net(z[None])[0] - X[rows]).square() / 0.1 + math.log(2 * math.pi * 0.1)
            loss = (cells * MASK[rows]).sum() / 2 + (mean.square() + scale.square() - 1 - log_var[rows]).sum() / 2
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
    return losses


def own_loop(epochs: int, vi: RelayVI | None = None) -> tuple[RelayVI, list[float]]:
    vi, order = vi or model(), generator(0, "shuffle")
    optimizers = vi.optimizers(LR)
    return vi, [step(vi, optimizers, *batch) for _ in range(epochs) for batch in row_batches(X, order, BATCH, MASK)]


def test_names_come_with_the_package():
    assert {"RelayVI", "RelayEmbedding", "RowAdam", "RowTable"} <= set(rvi_nb.__all__)


def test_the_plain_lines_and_the_package_have_the_same_losses():
    _, losses = own_loop(6)
    np.testing.assert_allclose(losses, plain_lines(6), rtol=2e-4)


@pytest.mark.parametrize("posterior", [lambda: Relay(LATENT, GROUPS), lambda: MeanField(LATENT)], ids=["relay", "free"])
@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Bernoulli()], ids=["gaussian", "bernoulli"])
def test_a_loop_of_ones_own_learns_what_fit_learns(posterior, likelihood):
    "Up to rounding, given the noise of fit, which draws that of many rows in one go: from the same seed, a loop that draws it batch by batch gets other numbers."
    vi, order, stream = model(likelihood=likelihood, posterior=posterior()), generator(0, "shuffle"), generator(0, "noise")
    optimizers = vi.optimizers(LR)
    for _ in range(4):
        parts = torch.randperm(N, generator=order).split(BATCH), torch.randn(N, LATENT, generator=stream).split(BATCH)
        for i, noise in zip(*parts, strict=True):
            (-vi.elbo(i, X[i], MASK[i], noise)).sum().backward()
            for opt in optimizers:
                opt.step()
                opt.zero_grad()
    net = network()
    learned = fit(posterior(), net, incomplete(X, MASK), 4, likelihood, LR, batch_size=BATCH)
    torch.testing.assert_close(vi.rows.weight, learned.local[0], rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(vi.decoder.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


class Order:
    "Rows in the order of `fit` and `row_batches`; torch's RandomSampler draws twice in every epoch."

    def __init__(self):
        self.generator = generator(0, "shuffle")

    def __iter__(self):
        return iter(torch.randperm(N, generator=self.generator).tolist())

    def __len__(self):
        return N


class Module(lightning.LightningModule):
    "As in the chapter."

    def __init__(self):
        super().__init__()
        self.vi, self.automatic_optimization = model(), False

    def configure_optimizers(self):
        return list(self.vi.optimizers(LR))

    def training_step(self, batch):
        for opt in self.optimizers():
            opt.zero_grad()
        self.manual_backward(-self.vi.elbo(*batch).sum())
        for opt in self.optimizers():
            opt.step()


def train(module, batches, epochs, folder, resume=None):
    "What Lightning makes of a module."
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", enable_checkpointing=False)
    trainer = lightning.Trainer(max_epochs=epochs, default_root_dir=folder, **quiet)
    trainer.fit(module, batches, ckpt_path=resume)
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_lightning_gets_the_same_as_the_loop(tmp_path):
    module = Module()
    train(module, DataLoader(TensorDataset(torch.arange(N), X, MASK), BATCH, sampler=Order()), 3, tmp_path)
    expected = own_loop(3)[0].state_dict()
    for name, value in module.vi.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.filterwarnings("ignore")
def test_lightning_learns_what_fit_learns(tmp_path):
    "Given the order and the noise of fit, up to rounding."

    class Batches(IterableDataset):
        def __init__(self):
            self.order, self.stream = generator(0, "shuffle"), generator(0, "noise")

        def __iter__(self):
            parts = torch.randperm(N, generator=self.order).split(BATCH), torch.randn(N, LATENT, generator=self.stream).split(BATCH)
            return ((i, X[i], MASK[i], noise) for i, noise in zip(*parts, strict=True))

    module, net = Module(), network()
    train(module, DataLoader(Batches(), batch_size=None), 4, tmp_path)
    learned = fit(Relay(LATENT, GROUPS), net, incomplete(X, MASK), 4, Gaussian(0.1), LR, batch_size=BATCH)
    torch.testing.assert_close(module.vi.rows.weight, learned.local[0], rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(module.vi.decoder.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_lightning_resumes_bit_for_bit(tmp_path):
    batches = DataLoader(TensorDataset(torch.arange(N), X, MASK), BATCH)
    through, first, resumed = Module(), Module(), Module()
    train(through, batches, 4, tmp_path)
    train(first, batches, 2, tmp_path).save_checkpoint(tmp_path / "half.ckpt")
    train(resumed, batches, 4, tmp_path, tmp_path / "half.ckpt")
    assert not torch.equal(first.vi.rows.weight, through.vi.rows.weight)
    for name, value in through.vi.state_dict().items():
        assert torch.equal(value, resumed.vi.state_dict()[name]), name


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_resuming_in_mid_training_is_bit_for_bit(dropout, tmp_path):
    batches = [batch for k in range(3) for batch in row_batches(X, generator(k), BATCH, MASK)]
    through, resumed = model(dropout), model(dropout)
    optimizers = through.optimizers(LR)
    for batch in batches[:5]:
        step(through, optimizers, *batch)
    torch.save([through.state_dict(), *(opt.state_dict() for opt in optimizers)], tmp_path / "state.pt")
    losses = [step(through, optimizers, *batch) for batch in batches[5:]]

    fresh = resumed.optimizers(LR)
    for part, state in zip((resumed, *fresh), torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    assert losses == [step(resumed, fresh, *batch) for batch in batches[5:]]
    for name, value in through.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_log_prob_is_close_to_the_exact_one():
    g = generator(0, "oracle")
    weight, bias, variance = torch.randn(4, 20, generator=g), torch.randn(20, generator=g), 0.2
    linear = nn.Linear(4, 20)
    linear.weight.data, linear.bias.data = weight.T.clone(), bias
    x = torch.randn(60, 4, generator=g) @ weight + bias + math.sqrt(variance) * torch.randn(60, 20, generator=g)
    seen = mcar(x.shape, 0.3, g)
    cov = weight.T @ weight + variance * torch.eye(20)
    exact = torch.stack([torch.distributions.MultivariateNormal(bias[s], cov[s][:, s]).log_prob(row[s]) for row, s in zip(x, seen, strict=True)])
    vi = RelayVI(linear, Gaussian(variance), 100, Relay(4, (10,)))
    assert abs(vi.log_prob(x, seen, k=500).mean() / exact.mean() - 1) < 0.005  # as it is, without any advice
    q = vi.infer(x, seen)
    off = [abs((vi.log_prob(x, seen, k=500, q=q, seed=s).mean() / exact.mean() - 1).item()) for s in range(10)]
    assert max(off) < 0.005, "the draws of every seed must do, not those of a lucky one"
    assert vi.log_prob(x, seen, k=5, q=q).mean() < exact.mean()
    assert torch.equal(vi.log_prob(x, seen, k=20, q=q), vi.log_prob(torch.where(seen, x, math.nan), k=20, q=q))  # hidden values do not count


def test_inference_leaves_the_model_as_it_was():
    vi, _ = own_loop(1)
    before = {k: v.clone() for k, v in vi.state_dict().items()}
    vi.infer(X[:7], MASK[:7], epochs=5), vi.log_prob(X[:7], k=3, q=vi(torch.arange(7))), vi.sample(3), vi.draw(vi(torch.arange(7)), 2)
    assert all(torch.equal(v, before[k]) for k, v in vi.state_dict().items())
    assert all(p.requires_grad for p in vi.parameters()) and vi.training


def test_inference_finds_the_rows_it_has_learned():
    vi, _ = own_loop(60)
    again = vi.decode(vi.infer(X, MASK, epochs=200, lr=LR, gap=4).mean)
    learned = vi.decode(vi(torch.arange(N)).mean)
    error = lambda values: (values - X)[MASK].square().mean().item()
    assert error(again) < 1.5 * error(learned) < 0.6 * X[MASK].var().item()


def test_samples_are_what_the_likelihood_can_give():
    codes = RelayVI(nn.Linear(LATENT, 3 * D), Categorical(3), N, Relay(LATENT, GROUPS)).sample(50)
    assert codes.shape == (50, D) and set(codes.unique().tolist()) == {0.0, 1.0, 2.0}


def test_another_prior_is_refused_where_the_normal_one_is_needed():
    class Elsewhere(MeanField):
        def divergence(self, q, z):
            return q.mean.square().sum(-1)

    vi = model(posterior=Elsewhere(LATENT))
    assert vi.elbo(torch.arange(4), X[:4]).shape == (4,)
    for ask in (lambda: vi.log_prob(X[:4], k=2), lambda: vi.sample(2)):
        with pytest.raises(TypeError, match="Elsewhere defines a divergence of its own"):
            ask()


def test_values_are_checked_in_every_batch():
    vi = model(likelihood=Bernoulli())
    vi.elbo(torch.arange(4), X[:4])
    with pytest.raises(ValueError, match=r"x holds 1\.5 in row 2, column 3; Bernoulli takes values from 0 to 1"):
        vi.elbo(torch.arange(4), X[:4].index_put((torch.tensor(2), torch.tensor(3)), torch.tensor(1.5)))


@pytest.mark.filterwarnings("ignore")
def test_compiled_parts_give_the_same():
    i = torch.arange(6)
    expected = model().elbo(i, X[:6])
    whole = model()
    torch.testing.assert_close(torch.compile(whole.elbo, backend="eager")(i, X[:6]), expected, rtol=0, atol=0)
    net = torch.compile(network().each[0], backend="eager")
    torch.testing.assert_close(RelayVI(net, Gaussian(0.1), N, Relay(LATENT, GROUPS)).elbo(i, X[:6]), expected)


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_decoder_that_is_really_compiled_learns_the_same():
    plain, compiled = (nn.Sequential(nn.Linear(LATENT, 16), nn.Tanh(), nn.Linear(16, D)) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    losses = []
    for net in (plain, torch.compile(compiled)):
        vi = RelayVI(net, Gaussian(0.1), N, Relay(LATENT, GROUPS))
        losses.append(own_loop(2, vi)[1])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert not torch.equal(compiled[0].weight, network().each[0][0].weight), "the module that was given has learned"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_less_than_float32_is_refused_before_anything_is_multiplied():
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError, match=r"autocast must be off here, got torch\.bfloat16"):
            model().elbo(torch.arange(4), X[:4])
        with pytest.raises(RuntimeError, match="autocast must be off"):
            RelayEmbedding(5, 3, (4,))(torch.arange(2))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        with pytest.raises(ValueError, match=f"parameters must be float32, got {dtype}"):
            model().to(dtype).elbo(torch.arange(4), X[:4])


def test_a_decoder_may_turn_autocast_on_for_itself():
    class Inside(nn.Linear):
        def forward(self, z):
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.is_autocast_enabled("cpu")
            return super().forward(z)

    assert RelayVI(Inside(LATENT, D), Gaussian(), N, Relay(LATENT, GROUPS)).elbo(torch.arange(4), X[:4]).dtype == torch.float32


@pytest.mark.parametrize("device", ["meta", pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no such device"))])
def test_devices_that_were_never_tried_are_refused(device):
    with pytest.raises(ValueError, match=f"device must be one of cpu, cuda, got {device}"):
        model().to(device).elbo(torch.arange(4), X[:4])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no such device")
def test_a_gpu_gives_the_same():
    here, there = model(), model().to("cuda")
    i = torch.arange(6)
    torch.testing.assert_close(there.elbo(i.cuda(), X[:6].cuda()).cpu(), here.elbo(i, X[:6]), rtol=1e-4, atol=1e-3)


def test_the_path_without_compiled_loops_gives_the_same():
    with plain_torch():
        vi, losses = own_loop(3)
    other, expected = own_loop(3)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    torch.testing.assert_close(vi.rows.weight, other.rows.weight, rtol=1e-3, atol=1e-4)


def test_rows_in_a_file_give_the_same(tmp_path):
    file = np.memmap(tmp_path / "rows.f32", np.float32, "w+", shape=(N, D))
    file[:] = torch.where(MASK, X, math.nan)
    file.flush()
    opened, order, vi = np.memmap(tmp_path / "rows.f32", np.float32, "r", shape=(N, D)), generator(0, "shuffle"), model()
    optimizers = vi.optimizers(LR)
    for _ in range(2):
        for batch in row_batches(opened, order, BATCH):
            step(vi, optimizers, *batch)
    assert torch.equal(vi.rows.weight, own_loop(2)[0].rows.weight)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory cannot be read here")
def test_an_epoch_takes_no_memory_that_grows_with_the_rows():
    "A small version of bench/rows.py, which has the numbers for a million rows."
    sys.path.append(str(Path(__file__).parent.parent / "bench"))
    from rows import measure

    small, large = measure(20_000), measure(80_000)
    assert large["rows_mb"] > 3.9 * small["rows_mb"] and large["epoch_mb"] < small["epoch_mb"] + 0.2 * large["rows_mb"]


def test_an_embedding_is_what_its_parts_say():
    e = RelayEmbedding(20, 4, (6, 8), seed=3)
    a, deviation = e.rows.weight.split([14, 4], -1)
    keep = torch.cat([torch.zeros_like(g).scatter(-1, g.abs().topk(k).indices, 1.0) for g, k in zip(a.split((6, 8), -1), (3, 4), strict=True)], -1)
    torch.testing.assert_close(e.weight, (a * keep) @ e.relay.relays.detach()[0] + deviation)
    assert e.num_embeddings == 20 and e.embedding_dim == 4 and not torch.equal(e.weight, RelayEmbedding(20, 4, (6, 8)).weight)
    assert e.weight.requires_grad is False and e(torch.tensor([1])).requires_grad


def test_an_embedding_takes_the_path_of_dense_adam():
    "Rows repeated in a batch, rows left out for a while, two indices at once."
    e = RelayEmbedding(15, 3, (5,))
    table, relays = nn.Parameter(e.rows.weight.clone()), nn.Parameter(e.relay.relays.detach()[0].clone())
    adam, ours = torch.optim.Adam([table, relays], LR), (RowAdam(e.rows, LR), torch.optim.Adam(e.shared(), LR))
    for k in range(30):
        i, target = torch.randint(15 if k % 2 else 7, (4, 2), generator=generator(k, "i")), torch.randn(4, 2, 3, generator=generator(k, "target"))
        (e(i) - target).square().sum().backward()
        a, deviation = table[i].split([5, 3], -1)
        kept = a * torch.zeros_like(a).scatter(-1, a.abs().topk(2).indices, 1.0)
        adam.zero_grad()
        (kept @ relays + deviation - target).square().sum().backward()
        adam.step()
        for opt in ours:
            opt.step()
            opt.zero_grad()
    torch.testing.assert_close(e.rows.weight, table.detach(), rtol=1e-3, atol=1e-4)


def test_new_rows_of_an_embedding_leave_the_relays_alone():
    e = RelayEmbedding(15, 3, (5, 6), 0.4)
    new, before = e.for_new_rows(4), e.relay.relays.detach().clone()
    assert new.relay.n_kept == e.relay.n_kept and new.num_embeddings == 4
    adam = RowAdam(new.rows, LR)
    for _ in range(5):
        (new(torch.arange(4)) - 1).square().sum().backward()
        adam.step()
        adam.zero_grad()
    assert torch.equal(e.relay.relays, before) and torch.equal(new.relay.relays, before) and (new.weight - 1).square().sum() < (e.weight[:4] - 1).square().sum()


def test_importing_does_not_wait_for_the_compiler():
    code = "import sys; from rvi_nb import RelayVI; sys.exit('torch._inductor' in sys.modules and 'torch._dynamo.convert_frame' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_llms_txt_names_what_exists():
    root = Path(__file__).parent.parent
    text = (root / "llms.txt").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all((root / link).is_file() for link in links)
    imported = {name for line in re.findall(r"(?m)^from rvi_nb import (.+)$", text) for name in line.split(", ")}
    assert imported and imported <= set(rvi_nb.__all__)
