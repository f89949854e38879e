"""The same run has the same bits in a process that compiles its loops and in one that finds them compiled, and on any number of threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest
import torch
from conftest import ORIGINAL
from loops import noted

from rvi_nb.base.random import generator
from rvi_nb.model import compiled
from rvi_nb.model.decoder import decoder
from rvi_nb.model.fit import fit
from rvi_nb.model.infer import infer
from rvi_nb.model.missing import incomplete, mcar
from rvi_nb.model.models import PAPER
from rvi_nb.model.posterior import Amortised, MeanField, Relay


def test_first_and_second_process_agree(tmp_path):
    env, command = dict(os.environ), [sys.executable, Path(__file__).with_name("loops.py"), *PAPER]
    first = [noted(model) for model in PAPER]  # of processes that compiled, on a new machine
    if None in first:
        env["NUMBA_CACHE_DIR"] = str(tmp_path)
        first = learned(command, env)
        assert any(tmp_path.rglob("*.nbi"))
    assert all(first) and learned(command, env) == first


@pytest.mark.skipif(not llvm.get_host_cpu_features().get("avx512f"), reason="there is no older kind of processor to pretend to have")
def test_loops_for_an_older_processor_learn_the_same(tmp_path):
    env = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, Path(__file__).with_name("loops.py"), "vad"]
    assert learned(command, env) == learned(command, dict(os.environ)) != []


KEEP = """
import numpy as np
from rvi_nb.model.posterior import _keep_top_cpu
kept, mask = np.zeros((1, 3), np.float32), np.zeros((1, 3), bool)
_keep_top_cpu(np.float32([[1, 3, 2]]), np.array([3]), np.array([1]), np.zeros((1, 1), np.float32), np.array([0]), kept, mask)
print(*kept[0].tolist())
"""


def test_a_loop_is_compiled_again_when_what_it_calls_has_changed(tmp_path):
    package = shutil.copytree(ORIGINAL, tmp_path / "rvi_nb", ignore=shutil.ignore_patterns("__pycache__"))
    env = os.environ | {"PYTHONPATH": str(tmp_path)}

    def keep():
        return subprocess.run([sys.executable, "-c", KEEP], cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout.split()

    assert keep() == ["0.0", "3.0", "0.0"]
    (kept,) = package.rglob("posterior._keep_top_cpu*.nbi")
    called = package / "model" / "lanes.py"
    called.write_text(called.read_text().replace("a.dtype.type(0)", "a.dtype.type(7)"))
    assert keep() == ["7.0", "3.0", "7.0"]
    age = kept.stat().st_mtime_ns
    assert keep() == ["7.0", "3.0", "7.0"] and kept.stat().st_mtime_ns == age  # and then it is kept


def learned(command: list, env: dict[str, str]) -> list[str]:
    "What a process of its own says."
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()


POSTERIORS = pytest.mark.parametrize(
    "make", [lambda s: Relay(4, (3, 5), seeds=s), lambda s: MeanField(4, s), lambda s: Amortised(7, 4, (6, 5), s)], ids=["rvi", "vad", "vae"]
)


def learn(make, seeds: tuple[int, ...], threads: int, **kwargs) -> tuple[list, list]:
    "Numbers and tensors of a training and an inference on so many threads."
    x = torch.randn(900, 7, generator=generator(0))
    data = incomplete(x, torch.stack([mcar(x.shape, 0.5, generator(s)) for s in seeds]))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        f = fit(make(seeds), decoder(7, (6, 5), 4, seeds), data, 3, **kwargs)
        found = infer(f.posterior, f.decoder, data, f.steps_per_epoch, 5)
    finally:
        torch.set_num_threads(before)
    return [f.curve, f.loss, found.curve, found.loss], [f.local, found.local, *(p.detach() for p in f.decoder.parameters())]


def assert_same(a: tuple[list, list], b: tuple[list, list]) -> None:
    assert all((x == y).all() for x, y in zip(a[0], b[0], strict=True)) and all(x.equal(y) for x, y in zip(a[1], b[1], strict=True))


@POSTERIORS
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)], ids=["blocks side by side", "runs side by side"])
def test_threads_change_no_bit(make, seeds):
    assert_same(learn(make, seeds, 1), learn(make, seeds, 3))


@POSTERIORS
def test_rows_carried_by_another_thread_change_no_bit(make, monkeypatch):
    carried, batches = [], compiled.Porter.batches
    monkeypatch.setattr(compiled.Porter, "batches", lambda self, *args: carried.append(len(args[1])) or batches(self, *args))
    alone = learn(make, (0,), 2)
    assert not carried  # few rows are near enough
    monkeypatch.setattr(compiled, "LARGE", 0)
    assert_same(learn(make, (0,), 2), alone)
    assert carried == [900] * 3
    carried.clear()
    learn(make, (0,), 1)
    assert not carried  # by whom?
    learn(make, (0,), 2, batch_size=450)
    assert not carried  # two trays would be all rows once more


def test_a_block_that_fails_ends_the_inference(monkeypatch):
    "And does not leave the other threads waiting for its memory."

    def fail(*args):
        raise MemoryError("no room")

    x = torch.randn(3000, 7, generator=generator(0))
    data, posterior, network = incomplete(x, mcar(x.shape, 0.5, generator(0))), Relay(4, (3, 5)), decoder(7, (6, 5), 4)
    monkeypatch.setattr("rvi_nb.model.compiled.Settling.advance", fail)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(MemoryError, match="no room"):
            infer(posterior, network, data, 4, 5)
    finally:
        torch.set_num_threads(before)
