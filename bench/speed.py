"""How fast training is: ours, a straightforward loop, and the matrix products alone, interleaved in one run.

    python bench/speed.py            writes bench/results.json and prints the table
    python bench/speed.py --quick    fewer cases and repeats, for a first look

Each measurement is the shortest epoch seen over several interleaved repeats: the machine's noise only ever adds.
"""

import argparse
import json
import math
import multiprocessing as mp
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from rvi_nb.base.files import write_atomically
from rvi_nb.base.random import generator
from rvi_nb.data.datasets import load
from rvi_nb.model.decoder import decoder
from rvi_nb.model.fit import fit, sample_size
from rvi_nb.model.infer import infer
from rvi_nb.model.likelihood import VARIANCE
from rvi_nb.model.missing import Incomplete, incomplete, mcar
from rvi_nb.model.objective import elastic_sums
from rvi_nb.model.posterior import Amortised, MeanField, Relay

HERE = Path(__file__).parent
GROUPS, LATENT, BATCH = (25, 50, 100), 64, 256
MAKE = {"rvi": lambda d, s: Relay(seeds=s), "vad": lambda d, s: MeanField(seeds=s), "vae": lambda d, s: Amortised(d, seeds=s)}


def rows_of(dims: int, n: int) -> torch.Tensor:
    "Real data of the size asked for: MNIST, the toy table or the breast cancer table."
    if dims == 784:
        return load("mnist", n).train
    if dims == 300:
        return load("toy", n).train
    from sklearn.datasets import load_breast_cancer

    x = torch.tensor(load_breast_cancer().data, dtype=torch.float32)[:n]
    return (x - x.mean(0)) / x.std(0)


def holes(dims: int, n: int, runs: int) -> Incomplete:
    x = rows_of(dims, n)
    return incomplete(x, torch.stack([mcar(x.shape, 0.5, generator(s, "mask")) for s in range(runs)]))


# --- three ways to train -------------------------------------------------------------------------------------------


def straightforward(model: str, data: Incomplete, epochs: int) -> tuple[list[float], float]:
    "One run as one would first write it: autograd, and Adam over all rows' parameters. Seconds of each epoch, final loss."
    x, mask, (n, d) = data.x, data.mask[0], data.x.shape
    start = MAKE[model](d, (0,))
    ours = decoder(d)
    net = nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, d))
    copy_weights(net, ours)
    parameters = list(net.parameters())
    if model == "vae":
        encoder = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * LATENT))
        copy_weights(encoder, start.encoder)
        parameters += encoder.parameters()
        zero_filled = torch.where(mask, x, 0)
    else:
        local = start.start(n)[0]
        own = [nn.Parameter(t.clone()) for t in (start.split(local) if model == "rvi" else local.chunk(2, -1))]
        parameters += own
    if model == "rvi":
        relays = [nn.Parameter(r.clone()) for r in start.relays.data[0].split(GROUPS)]
        parameters += relays

    def posterior(rows):
        if model == "vae":
            return encoder(zero_filled[rows]).chunk(2, -1)
        if model == "vad":
            return own[0][rows], own[1][rows]
        a, mean = own[0][rows], own[1][rows]
        for part, r, k in zip(a.split(GROUPS, -1), relays, start.n_kept, strict=True):
            keep = torch.zeros_like(part).scatter(-1, part.abs().topk(k, dim=-1).indices, 1.0)
            mean = mean + (part * keep) @ r
        return mean, own[2][rows]

    adam = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    shuffle, noise = generator(0, "shuffle"), generator(0, "noise")
    watched = torch.randperm(n, generator=generator(0, "sample"))[: sample_size(n)]
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        order, draws = torch.randperm(n, generator=shuffle), torch.randn(n, LATENT, generator=noise)
        for rows, draw in zip(order.split(BATCH), draws.split(BATCH), strict=True):
            mean, log_var = posterior(rows)
            z = mean + (0.5 * log_var).exp() * draw
            error = (net(z) - x[rows]) * mask[rows]
            loss = (error.square() / (2 * VARIANCE)).sum() + 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
        with torch.no_grad():
            total, count = elastic_sums(net(posterior(watched)[0])[None], Incomplete(x, data.mask[:1], data.index[:1]), watched[None])
        seconds.append(time.perf_counter() - began)
    return seconds, (total / count).item()


def copy_weights(net: nn.Sequential, ours) -> None:
    linear = [m for m in net if isinstance(m, nn.Linear)]
    for layer, w, b in zip(linear, ours.weights, ours.biases, strict=True):
        layer.weight.data, layer.bias.data = w.data[0].T.contiguous(), b.data[0, 0].clone()


def ours(model: str, data: Incomplete, epochs: int) -> tuple[list[float], float]:
    "All runs of `data` side by side. Seconds of each epoch (all runs together), final loss of the first run."
    seeds, stamps = range(data.n_runs), [time.perf_counter()]
    f = fit(MAKE[model](data.n_features, seeds), decoder(data.n_features, seeds=seeds), data, epochs, on_epoch=lambda e: stamps.append(time.perf_counter()))
    return [b - a for a, b in pairwise(stamps)], f.curve[0, -1].item()


def products(model: str, data: Incomplete, epochs: int) -> tuple[list[float], float]:
    "Only the matrix products that an epoch of training cannot do without."
    r, d, g = data.n_runs, data.n_features, generator(0)
    rand = lambda *shape: torch.randn(r, *shape, generator=g)
    layers = [(LATENT, 64), (64, 64), (64, d)]
    if model == "vae":
        layers += [(d, 64), (64, 64), (64, 2 * LATENT)]
    if model == "rvi":
        layers += [(sum(GROUPS), LATENT)]
    sizes = [BATCH] * (data.n_rows // BATCH) + [data.n_rows % BATCH] * (data.n_rows % BATCH > 0)
    tensors = {b: [(rand(b, i), rand(i, o), rand(b, o)) for i, o in layers] for b in set(sizes)}
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        for b in sizes:
            for h, w, grad in tensors[b]:
                torch.bmm(h, w)
                torch.bmm(h.mT, grad)
                if not (model == "vae" and h.shape[-1] == d):  # nothing flows back into the data
                    torch.bmm(grad, w.mT)
        seconds.append(time.perf_counter() - began)
    return seconds, math.nan


WAYS = {"straightforward": straightforward, "ours": ours, "products": products}


# --- measuring -----------------------------------------------------------------------------------------------------


def _worker(barrier, results, way, model, dims, n, runs, epochs):
    torch.set_num_threads(1)
    data = holes(dims, n, runs)
    WAYS[way](model, data, 1)  # compiled kernels are loaded
    barrier.wait()
    seconds, loss = WAYS[way](model, data, epochs)
    results.put((min(seconds), loss))


def in_processes(way: str, model: str, dims: int, n: int, runs: int, epochs: int, processes: int = 2) -> tuple[float, float]:
    "Seconds per run and epoch when `processes` single-threaded processes train `runs` runs each, and the loss."
    context = mp.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=_worker, args=(barrier, results, way, model, dims, n, runs, epochs)) for _ in range(processes)]
    for w in workers:
        w.start()
    got = [results.get() for _ in workers]
    for w in workers:
        w.join()
    return 1 / sum(runs / seconds for seconds, _ in got), got[0][1]


def peak_rss(model: str, dims: int, n: int, runs: int) -> float:
    "MiB of resident memory that training takes at its peak, in a process of its own."
    call = [sys.executable, __file__, "--memory", model, str(dims), str(n), str(runs)]
    return float(subprocess.run(call, check=True, capture_output=True, text=True).stdout)


def record(variant, model, dims, rows, runs, processes=1, seconds_per_run_epoch=None, loss=math.nan, rss_mib=None) -> dict:
    "One entry of results.json."
    return locals() | dict(loss=None if math.isnan(loss) else loss)


def measure(case: tuple[str, int, int], runs: list[int], repeats: int, epochs: int) -> list[dict]:
    "One case, all ways, interleaved."
    model, dims, n = case
    data = {r: holes(dims, n, r) for r in {1, *runs}}
    best: dict[tuple, float] = {}
    losses: dict[tuple, float] = {}

    def note(key, seconds, loss):
        best[key] = min(best.get(key, math.inf), seconds)
        losses[key] = loss

    ours(model, data[1], 1)
    for _ in range(repeats):
        seconds, loss = straightforward(model, data[1], epochs)
        note(("straightforward", 1, 1), min(seconds), loss)
        for r in dict.fromkeys((1, *runs)):
            for way in ("ours", "products"):
                seconds, loss = WAYS[way](model, data[r], epochs)
                note((way, r, 1), min(seconds) / r, loss)
        for r in dict.fromkeys((1, *runs)) if runs else ():
            for way in ("ours", "products"):
                note((way, 2 * r, 2), *in_processes(way, model, dims, n, r, epochs))
    return [record(way, model, dims, n, r, p, s, losses[way, r, p]) for (way, r, p), s in best.items()]


def inference(n: int = 10_000, epochs: int = 250) -> dict:
    "Posteriors of new rows: the paper's size."
    data = holes(784, n, 1)
    f = fit(Relay(), decoder(784), data, 1)
    infer(f.posterior, f.decoder, holes(784, 256, 1), f.steps_per_epoch, 1)  # compiled kernels are loaded
    began = time.perf_counter()
    found = infer(f.posterior, f.decoder, data, f.steps_per_epoch, epochs)
    took = time.perf_counter() - began
    return record("ours", "rvi inference", 784, n, 1, 1, took / epochs, float(found.loss[0])) | dict(seconds_per_row=took / n)


# --- the table -----------------------------------------------------------------------------------------------------


def table(records: list[dict]) -> str:
    "Ratios, one line per case."
    lines = [f"{'case':<26}{'straightforward':>16}{'ours R=1':>10}{'ours best':>11}{'products':>10}   {'R=1':>6}{'best':>7}  {'x products':>10}"]
    cases = dict.fromkeys((r["model"], r["dims"], r["rows"]) for r in records if r["variant"] == "straightforward")
    for model, dims, n in cases:
        mine = [r for r in records if (r["model"], r["dims"], r["rows"]) == (model, dims, n) and r["seconds_per_run_epoch"]]
        get = lambda way, only=None, mine=mine: min(
            (r["seconds_per_run_epoch"] for r in mine if r["variant"] == way and only in (None, r["runs"])), default=math.nan
        )
        s, one, best, limit = get("straightforward"), get("ours", 1), get("ours"), get("products")
        lines.append(
            f"{f'{model} {dims} x {n:,}':<26}{1e3 * s:>13.1f} ms{1e3 * one:>7.1f} ms{1e3 * best:>8.1f} ms{1e3 * limit:>7.1f} ms   {s / one:>5.1f}x{s / best:>6.1f}x  {best / limit:>9.1f}x"
        )
    return "\n".join(lines)


def remarks(records: list[dict]) -> str:
    "Growth with the rows, memory, and the time of inference."
    alone = [r for r in records if r["variant"] == "ours" and r["model"] == "rvi" and r["runs"] == 1 and r["seconds_per_run_epoch"]]
    growing = {r["rows"]: r["seconds_per_run_epoch"] for r in alone if r["dims"] == 784}
    lines = [f"{b:,} rows against {a:,}: {growing[b] / growing[a]:.2f}x the time per epoch" for a, b in pairwise(sorted(growing))]
    for r in records:
        if r["rss_mib"]:
            lines.append(f"peak memory, rvi 784 x {r['rows']:,}, R = {r['runs']}: {r['rss_mib']:.0f} MiB")
        if r["model"] == "rvi inference":
            lines.append(f"inference: {1e3 * r['seconds_per_row']:.2f} ms per row for {r['rows']:,} new rows")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cases, one repeat")
    parser.add_argument("--memory", nargs=4, metavar=("MODEL", "DIMS", "ROWS", "RUNS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        model, dims, n, runs = args.memory[0], *map(int, args.memory[1:])
        ours(model, holes(dims, n, runs), 1)
        print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024)  # not ru_maxrss: it starts at the parent's
        return
    cases = [((m, 784, 10_000), [4], 6) for m in MAKE] + [((m, 300, 10_000), [4], 6) for m in MAKE] + [((m, 30, 569), [8], 40) for m in MAKE]
    growth = [(("rvi", 784, n), [], 3) for n in (2_500, 40_000)]
    chosen, repeats = (cases[:1] + cases[6:7], 1) if args.quick else (cases + growth, 3)
    print(f"measuring {len(chosen)} cases, {repeats} interleaved repeats each, on {torch.get_num_threads()} threads", flush=True)
    records = []
    for case, runs, epochs in chosen:
        records += measure(case, runs, repeats, epochs)
        print(table(records).splitlines()[-1], flush=True)
    records.append(inference(*((1000, 25) if args.quick else ())))
    if not args.quick:
        for n, r in ((10_000, 8), (60_000, 1)):
            records.append(record("ours", "rvi", 784, n, r, rss_mib=peak_rss("rvi", 784, n, r)))
    write_atomically(HERE / ("quick.json" if args.quick else "results.json"), json.dumps(records, indent=1).encode())
    print(f"\n{table(records)}\n\n{remarks(records)}")


if __name__ == "__main__":
    main()
