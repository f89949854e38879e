"""Whatever is put into the core: a result of the right shape, or an error that names the argument; the process never dies.

The examples run in a process of their own, so that a crash is seen: `python test_fuzz.py` is that process.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rvi_nb
from rvi_nb.base.paths import plain_torch
from rvi_nb.base.random import generator
from rvi_nb.model.adam import PacedAdam
from rvi_nb.model.decoder import as_decoder, decoder, stack
from rvi_nb.model.fit import fit
from rvi_nb.model.infer import infer
from rvi_nb.model.likelihood import Bernoulli, Categorical, Gaussian, Mixed
from rvi_nb.model.missing import Incomplete, boxes, incomplete, mcar
from rvi_nb.model.objective import elastic_sums
from rvi_nb.model.optim import RowAdam, RowTable, read_places
from rvi_nb.model.posterior import Amortised, MeanField, Relay, keep_top
from rvi_nb.model.step import evaluate, gradients

FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.float16)
OTHERS = (torch.int64, torch.int32, torch.bool)
NOT_TENSORS = (None, 3, 1.5, "text", [], [[1.0, 2.0]], {})
NOT_NUMBERS = (None, "text", [], -1, 0, float("nan"), float("inf"), 1e300, [1e-3, 1e-3, 1e-3], {}, -3.5)
counts: Counter = Counter()
level = [0]  # trouble in the example under way, in percent


def trouble(draw):
    "Whether something shall be wrong here: of a hundred times as often as this example is troubled."
    return 40 <= draw(st.integers(0, 99)) < 40 + level[0]


@st.composite
def mostly(draw, usual, *unusual):
    return draw(st.one_of(*unusual)) if trouble(draw) else draw(usual)


@st.composite
def tensors(draw, shape, dtypes=FLOATS):
    "A tensor of about that shape: sometimes of another one, of another type, not contiguous, or of strange values."
    shape = list(shape)
    if trouble(draw) and shape:
        i = draw(st.integers(0, len(shape) - 1))
        shape[i] = draw(st.integers(0, 6))
    if trouble(draw):
        shape = draw(st.sampled_from([shape[1:], [1, *shape], [], shape[:-1]]))
    dtype = draw(mostly(st.just(dtypes[0]), st.sampled_from((*dtypes, *OTHERS))))
    t = torch.randn(*shape, generator=generator(draw(st.integers(0, 50))))
    kind = draw(mostly(st.just("normal"), st.sampled_from(["zeros", "huge", "tiny", "nan", "inf", "unit", "ties"])))
    t = {"normal": t, "zeros": t * 0, "huge": t * 1e37, "tiny": t * 1e-40, "unit": t.abs() % 1, "ties": t.round()}.get(kind, t)
    if kind in ("nan", "inf") and t.numel():
        t.view(-1)[0] = float(kind)
    t = t.to(dtype)
    layout = draw(mostly(st.just("plain"), st.sampled_from(["mT", "step", "grad", "expand"])))
    if layout == "mT" and t.ndim >= 2:
        t = t.mT.contiguous().mT
    if layout == "step" and t.ndim:
        t = t.repeat_interleave(2, 0)[::2]
    if layout == "expand" and t.ndim and len(t):
        t = t[:1].expand_as(t)
    if layout == "grad" and t.is_floating_point():
        t = t.requires_grad_()
    return t


@st.composite
def indices(draw, shape, n):
    "Rows of a table of n, sometimes beyond it."
    t = draw(tensors(shape, (torch.int64,)))
    if t.dtype != torch.int64:
        return t
    low, high = draw(mostly(st.just((0, max(n, 1))), st.sampled_from([(0, n + 2), (-2, n), (10**12, 10**12 + 5), (-(2**62), -(2**62) + 5)])))
    return torch.randint(low, high, t.shape, generator=generator(draw(st.integers(0, 50))))


def something(strategy):
    "Sometimes not a tensor at all."
    return mostly(strategy, st.sampled_from(NOT_TENSORS))


SIZES = st.integers(1, 4)
SEEDS = mostly(st.sampled_from([(0,), (0, 1)]), st.sampled_from([(), (3, 4, 5), (0.5,), ("a",), (-1,), None]))


@st.composite
def datasets(draw, n_runs=1, n=5, d=3):
    values = draw(something(tensors((n, d))))
    if isinstance(values, torch.Tensor) and values.is_floating_point() and not trouble(draw):
        values = values.detach().abs() % 1  # what a Bernoulli likelihood takes
        values = values.round() if draw(st.booleans()) else values  # and a categorical one
    mask = draw(something(tensors((n_runs, n, d) if n_runs > 1 or draw(st.booleans()) else (n, d), (torch.bool,))))
    index = draw(mostly(st.none(), something(indices((n_runs, n), n))))
    return incomplete(values, mask, index) if draw(st.booleans()) or index is None else Incomplete(values, mask, index)


@st.composite
def likelihoods(draw, d=3, n_runs=1):
    d = draw(mostly(st.just(d), st.integers(0, 5)))
    number = mostly(st.just(0.1), st.sampled_from(NOT_NUMBERS))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return Gaussian(draw(mostly(st.just([0.1] * n_runs), number)))
    if kind == 1:
        return Gaussian.learned(d, draw(number), draw(mostly(st.just(n_runs), st.integers(-1, 3))))
    if kind == 2:
        return Bernoulli()
    if kind == 3:
        return Categorical(draw(mostly(st.sampled_from([2, 3, [2] * d]), st.sampled_from([[3, 2, 2], [], 0, -1, 1.5, "two", None]))))
    if kind == 4:
        return Mixed(
            draw(
                mostly(
                    st.just([(Bernoulli(), [0]), (Gaussian(), list(range(1, d)))]),
                    st.sampled_from([[], [(Bernoulli(), [0, 2])], [(Bernoulli(), [-1, 0])], None]),
                )
            )
        )
    return draw(mostly(st.sampled_from([Gaussian(), None]), st.sampled_from(["gaussian", 3])))


@st.composite
def posteriors(draw, t, d, seeds):
    t = draw(mostly(st.just(t), st.integers(-1, 4)))
    kind = draw(st.integers(0, 5))
    if kind < 2:
        return Relay(
            t,
            draw(mostly(st.just((3, 4)), st.sampled_from([(), (0,), (1,), (2.5,), ("a",)]))),
            draw(mostly(st.just(0.5), st.sampled_from([0, 1, 2, -1]))),
            seeds,
        )
    if kind < 4:
        return MeanField(t, seeds)
    if kind == 4:
        return Amortised(draw(mostly(st.just(d), st.integers(-1, 4))), t, draw(mostly(st.just((4,)), st.sampled_from([(), (0,)]))), seeds)
    return draw(mostly(st.just(MeanField(t, seeds)), st.sampled_from([None, "relay", torch.nn.Linear(2, 2)])))


@st.composite
def decoders(draw, outputs, t, seeds):
    outputs = draw(mostly(st.just(outputs), st.integers(-1, 6)))
    t, kind = draw(mostly(st.just(t), st.integers(-1, 4))), draw(st.integers(0, 7))
    if kind < 4:
        return decoder(outputs, draw(st.sampled_from([(), (4,)])), t, seeds)
    if kind == 4:
        return stack(partial(torch.nn.Linear, max(t, 1), max(outputs, 1)), seeds if isinstance(seeds, tuple) else (0,))
    if kind == 5:
        return torch.nn.Sequential(torch.nn.Linear(max(t, 1), max(outputs, 1)), torch.nn.Sigmoid())
    return draw(mostly(st.just(decoder(outputs, (), t, seeds)), st.sampled_from([torch.nn.Linear(2, 3).double(), torch.nn.Flatten(), None, len])))


def models(draw):
    "Parts that often fit together."
    seeds, d, t = draw(SEEDS), 3, draw(SIZES)
    n_runs = len(seeds) if isinstance(seeds, tuple) and seeds else 1
    data = draw(datasets(draw(mostly(st.just(n_runs), st.integers(1, 3))), d=d))
    likelihood = draw(likelihoods(d, n_runs))
    wanted = likelihood.n_outputs(d) if hasattr(likelihood, "n_outputs") else d
    return draw(posteriors(t, d, seeds)), draw(decoders(wanted, t, seeds)), data, likelihood


def try_fit(draw):
    posterior, net, data, likelihood = models(draw)
    epochs = draw(mostly(st.just(1), st.sampled_from([0, 2, -1, 1.5, None, True])))
    number = mostly(st.just(1e-3), st.sampled_from(NOT_NUMBERS))
    options = dict(
        lr=draw(number), posterior_lr=draw(st.one_of(st.none(), number)), batch_size=draw(mostly(st.just(3), st.sampled_from([0, 1, 100, 2.0, None, -1])))
    )
    options["sample"] = draw(mostly(st.none(), st.sampled_from([1, 0, -1, 100, 1.5, "all"])))
    f = fit(posterior, net, data, epochs, likelihood, **options)
    assert f.local.shape == (data.n_runs, data.n_rows, posterior.n_local) and f.curve.shape == (data.n_runs, epochs) and f.loss.shape == (data.n_runs,)


def try_infer(draw):
    posterior, net, data, likelihood = models(draw)
    epochs, steps = (draw(mostly(st.just(2), st.sampled_from([0, 1, -1, 1.5, None, 40]))) for _ in range(2))
    found = infer(posterior, net, data, steps, epochs, likelihood, draw(mostly(st.just(1e-3), st.sampled_from(NOT_NUMBERS))))
    assert (
        found.local.shape == (data.n_runs, data.n_rows, posterior.n_local) and found.curve.shape == (data.n_runs, epochs) and found.loss.shape == (data.n_runs,)
    )


def try_evaluate(draw):
    posterior, net, data, likelihood = models(draw)
    rows = draw(something(indices((data.n_runs, 4), data.n_rows)))
    local = draw(mostly(st.just("fits"), tensors((data.n_runs, 4, getattr(posterior, "n_local", 2)))))
    read = (lambda rows: posterior.start(rows.shape[1])) if isinstance(local, str) else (lambda rows: local)
    assert evaluate(posterior, net, data, read, rows, likelihood, draw(st.booleans())).shape == (data.n_runs,)


def try_gradients(draw):
    t = draw(SIZES)
    posterior, net, data = draw(st.sampled_from([Relay(t, (3, 4)), MeanField(t), Amortised(3, t, (4,))])), as_decoder(torch.nn.Linear(t, 3)), draw(datasets())
    net = draw(st.sampled_from([net, decoder(3, (4,), t), draw(mostly(st.just(net), st.just(decoder(5, (), t))))]))
    rows = draw(something(indices((1, 4), data.n_rows)))
    n = rows.shape[1] if isinstance(rows, torch.Tensor) and rows.ndim == 2 else 4
    local, noise = draw(something(tensors((1, n, posterior.n_local)))), draw(something(tensors((1, draw(st.sampled_from([n, 1])), t))))
    if isinstance(local, torch.Tensor) and local.is_floating_point():
        local = local.detach().requires_grad_()
    gradients(posterior, net, data, rows, local, noise, draw(mostly(st.sampled_from([Gaussian(), Bernoulli()]), st.just(Categorical(2)))))
    assert not posterior.n_local or local.grad.shape == local.shape
    assert all(p.grad is None or p.grad.shape == p.shape for p in net.parameters())


def try_table(draw):
    n_runs, n, w = draw(st.sampled_from([None, 1, 2])), draw(SIZES), draw(SIZES)
    table = RowTable(draw(something(tensors((n, w) if n_runs is None else (n_runs, n, w)))))
    number = mostly(st.just(1e-3), st.sampled_from(NOT_NUMBERS))
    betas = draw(mostly(st.just((0.9, 0.999)), st.sampled_from([(0.9, 0.1), (1.0, 1.0), (0, 0), (0.9,), "ab", None])))
    adam = RowAdam(
        draw(mostly(st.just(table), st.sampled_from([[table], [], None, table.anchors]))),
        draw(number),
        betas,
        draw(mostly(st.just(1e-8), number)),
        draw(st.booleans()),
    )
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(something(indices((3,) if n_runs is None else (n_runs, 3), table.n_rows)))
        values = table(rows)
        assert values.shape == (*rows.shape, table.anchors.shape[-1])
        adam.zero_grad()
        values.sum().backward()
        adam.step()
    assert table.weight.shape == table.anchors.shape


def try_visit(draw):
    n_runs, n, w = draw(st.sampled_from([1, 2])), draw(SIZES), draw(SIZES)
    table = RowTable(torch.zeros(n_runs, n, w))
    adam, places = RowAdam(table), draw(something(indices((2,), n_runs * n)))
    m = len(places) if isinstance(places, torch.Tensor) and places.ndim else 1
    adam.visit(table, places, draw(something(tensors((m, w)))))
    assert read_places(table, draw(something(indices((2,), n_runs * n)))).shape[1:] == (w,)


def try_state(draw):
    table = RowTable(torch.zeros(3, 2))
    state = table.state_dict()
    name = draw(st.sampled_from(list(state)))
    state[name] = draw(mostly(st.just(state[name]), indices((3,), 3), tensors(state[name].shape)))
    if trouble(draw):
        state.pop("_extra_state")
    try:
        table.load_state_dict(state, strict=draw(st.booleans()))
    except RuntimeError as e:  # as PyTorch says it of any module: "Error(s) in loading state_dict for RowTable: size mismatch for last: ..."
        raise ValueError(str(e)) from e
    assert table.weight.shape == (3, 2)


def try_paced(draw):
    shape = (draw(SIZES), draw(SIZES), draw(SIZES))
    lr = draw(tensors(shape[:1])).detach().double().numpy()
    visits = draw(st.integers(0, 3))
    own = PacedAdam(draw(tensors(shape)).detach(), lr, visits, draw(st.integers(1, 4)))
    for _ in range(draw(mostly(st.just(visits), st.just(visits + 1)))):
        assert own.step(draw(tensors(shape)).detach()).shape == own.values.shape


def try_batch(draw):
    data = draw(datasets(draw(st.integers(1, 2)), draw(st.integers(0, 5)), draw(st.integers(0, 4))))
    rows = draw(something(indices((data.n_runs, 4), data.n_rows)))
    x, mask = data.batch(rows)
    assert x.shape == mask.shape == (*rows.shape, data.n_features) and mask.dtype == torch.bool and (x[~mask] == 0).all()
    xhat = draw(tensors(x.shape))
    total, count = elastic_sums(xhat, data, rows, draw(st.booleans()))
    assert total.shape == count.shape == (data.n_runs,)


def try_masks(draw):
    shape = draw(st.one_of(st.just((4, 3)), st.sampled_from([(), (0, 2), (2, 3, 4)])))
    assert mcar(shape, draw(st.one_of(st.just(0.5), st.sampled_from([0, 1, 2.0, -1.0, float("nan")]))), generator(0)).shape == shape
    n, size = draw(st.integers(0, 3)), draw(st.one_of(st.integers(1, 4), st.integers(-1, 6)))
    assert boxes(n, (5, 4), draw(st.one_of(st.integers(0, 3), st.just(-1))), generator(0), size).shape == (n, 20)


def try_keep_top(draw):
    groups = draw(mostly(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.sampled_from([(), (0,), (-1, 3), (2.0,), ("a",), (3, None)])))
    n_kept = draw(mostly(st.just([1] * len(groups)), st.just(groups), st.lists(st.integers(-1, 6), max_size=3)))
    width = sum(k for k in groups if isinstance(k, int))
    a = draw(something(tensors((draw(st.integers(0, 3)), max(width, 0)))))
    kept = keep_top(a, groups, n_kept)
    assert kept.shape == a.shape
    if a.isfinite().all() and a.numel():
        assert ((kept != 0).sum(-1) <= sum(n_kept)).all() and ((kept == a) | (kept == 0)).all()


def try_likelihood(draw):
    d = draw(SIZES)
    likelihood, data = draw(likelihoods(d)), draw(datasets(1, 5, d))
    if not isinstance(likelihood, torch.nn.Module):
        return
    rows = draw(indices((1, 4), data.n_rows))
    outputs = draw(tensors((1, 4, likelihood.n_outputs(d))))
    slope = likelihood.row_slope(outputs, data, rows)
    assert slope.shape == outputs.shape


TRIALS = [try_fit, try_fit, try_infer, try_infer, try_evaluate, try_gradients, try_gradients, try_table, try_table, try_visit, try_state, try_paced]
TRIALS += [try_batch, try_batch, try_masks, try_keep_top, try_keep_top, try_likelihood]
ARGUMENTS = """x mask index rows places local noise values grad lr posterior_lr seeds sizes latent groups ratio n_kept variance start floor n_categories parts
n_features n_runs likelihood posterior decoder data epochs batch_size sample steps_per_epoch a outputs betas eps tables state last xhat rate count size
modules read visits anchors seed key""".split()


def names_an_argument(message):
    return any(re.search(rf"(?<![a-z]){name}\b", message) for name in ARGUMENTS)


@given(st.data())
@settings(max_examples=1000, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False)
def fuzz(data):
    trial, level[0] = data.draw(st.sampled_from(TRIALS)), data.draw(st.sampled_from([0, 4, 15]))
    with plain_torch() if data.draw(st.integers(0, 3)) == 0 else nullcontext():
        try:
            trial(data.draw)
        except (ValueError, TypeError) as e:
            if not names_an_argument(str(e)):
                raise AssertionError(f"{trial.__name__}: {type(e).__name__} names no argument: {e}") from e
            counts[trial.__name__, "refused"] += 1
        else:
            counts[trial.__name__, "done"] += 1


def test_no_input_ends_the_process_or_gives_a_wrong_shape():
    environment = {**os.environ, "PYTHONPATH": str(Path(rvi_nb.__file__).parents[1]), "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], check=False, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    numbers = {tuple(line.split()[:2]): int(line.split()[2]) for line in done.stdout.splitlines()}
    assert sum(numbers.values()) >= 900
    for trial in {t.__name__ for t in TRIALS}:  # both ends are reached by each of them
        assert numbers.get((trial, "done"), 0) >= 5 and numbers.get((trial, "refused"), 0) >= 5, numbers


if __name__ == "__main__":
    fuzz()
    for (trial, end), n in sorted(counts.items()):
        print(trial, end, n)
