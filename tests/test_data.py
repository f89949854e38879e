"""Data arrives verified or not at all, and says why."""

import gzip
import hashlib
import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path

import pytest
import requests
import torch

from rvi_nb import data

GOOD = b"the right bytes"
OWN = {name: os.environ.get(name) for name in ("RVI_DATA", "RVI_CACHE")}  # before a test changes them


class Fake:
    "A remote source that hands over given bytes, or fails, and counts how often it was asked."

    def __init__(self, content, label="fake source"):
        self.content, self.label, self.asked = content, label, 0

    def __str__(self):
        return self.label

    def get(self, file, work, progress):
        self.asked += 1
        if isinstance(self.content, Exception):
            raise self.content
        out = work / Path(file).name
        out.write_bytes(self.content)
        return out


def made_up(*remote, names=("a.bin",)):
    return data.Files("made_up", {n: hashlib.sha256(GOOD).hexdigest() for n in names}, remote)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    "An empty cache, an empty $RVI_DATA, a temporary folder of our own, and nothing remembered."
    for folder in ("cache", "data", "tmp"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("RVI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RVI_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    data._down.clear()
    data._arrays.cache_clear()
    yield tmp_path
    assert not list((tmp_path / "tmp").iterdir()), "temporary folders are removed, also on failure"
    data._down.clear()
    data._arrays.cache_clear()


@pytest.fixture
def offline(monkeypatch):
    "No package manager, no network."

    def refuse(*args, **kwargs):
        raise requests.ConnectionError("no network")

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(requests, "get", refuse)


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def put(folder, name, content):
    path = folder / "data" / "made_up" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# --- random streams


def test_streams_are_reproducible_in_another_process():
    code = "from rvi_nb.data import generator; import torch; print(torch.rand(1, generator=generator(3, 'mask', 1)).item())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(other) == torch.rand(1, generator=data.generator(3, "mask", 1)).item()


def test_streams_differ_by_seed_and_name():
    names = [(s, *k) for s in range(20) for k in ((), ("a",), ("b",), ("a", 0), ("a", "0"), ("ab",), ("a", "b"), (0,))]
    assert len({data.generator(*n).initial_seed() for n in names}) == len(names)


@pytest.mark.parametrize("seed", [-1, 0.0, "0", None, True])
def test_bad_seed_is_named(seed):
    with pytest.raises(ValueError, match="seed must be"):
        data.generator(seed)


# --- sources


def test_tampered_file_is_reported_and_next_source_used(place):
    put(place, "a.bin", b"the wrong bytes")
    with pytest.warns(UserWarning, match=r"made_up: \$RVI_DATA/made_up: a.bin has SHA-256"):
        contents, used = data._contents(made_up(Fake(GOOD)))
    assert (contents, used) == ({"a.bin": GOOD}, ["fake source"])
    assert files_below(place / "cache") == ["made_up/a.bin"]


def test_truncated_gzip_is_reported_and_next_source_used(place):
    put(place, "a.bin.gz", gzip.compress(GOOD)[:-5])
    with pytest.warns(UserWarning, match="truncated"):
        assert data._contents(made_up(Fake(GOOD)))[0] == {"a.bin": GOOD}


@pytest.mark.parametrize("name", ["a.bin", "a.bin.gz", "data/a.bin", "data/a.bin.gz"])
def test_own_folder_is_used_in_place(place, name):
    put(place, name, gzip.compress(GOOD) if name.endswith("gz") else GOOD)
    source = Fake(GOOD)
    assert data._contents(made_up(source)) == ({"a.bin": GOOD}, ["$RVI_DATA/made_up"])
    assert not source.asked and not files_below(place / "cache")


def test_cache_is_checked_each_time_and_repaired(place):
    source = Fake(GOOD)
    assert data._contents(made_up(source))[1] == ["fake source"]
    assert data._contents(made_up(source))[1] == ["cache"]
    (place / "cache/made_up/a.bin").write_bytes(GOOD[:-1])
    with pytest.warns(UserWarning, match="cache: a.bin has SHA-256"):
        assert data._contents(made_up(source))[1] == ["fake source"]
    assert data._contents(made_up(source))[1] == ["cache"]
    assert source.asked == 2


def test_wrong_bytes_from_a_source_never_reach_the_cache(place):
    with pytest.warns(UserWarning, match=r"first: a\.bin has SHA-256"), pytest.raises(data.DataError, match=r"first: a\.bin has SHA-256") as error:
        data._contents(made_up(Fake(b"bad", "first"), Fake(OSError("404"), "second")))
    assert "second: 404" in str(error.value)
    assert not list((place / "cache").iterdir())


def test_unreachable_source_is_asked_once_until_the_next_fetch(place, monkeypatch):
    down, up = Fake(data._Down("unreachable"), "down"), Fake(GOOD, "up")
    files = made_up(down, up, names=("a.bin", "b.bin", "c.bin"))
    monkeypatch.setitem(data.FILES, "made_up", files)
    monkeypatch.setattr(data, "DATASETS", (*data.DATASETS, "made_up"))
    assert data.fetch("made_up", progress=False) == "up"
    assert (down.asked, up.asked) == (1, 3)
    for name in files.sha256:
        (place / "cache/made_up" / name).unlink()
    data.fetch("made_up", progress=False)
    assert down.asked == 2


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "mosi"])
def test_no_source_reachable_names_them_all(place, offline, monkeypatch, name):
    if name == "fashion_mnist":
        monkeypatch.setitem(data.FILES, name, data.Files(name, data.FASHION.sha256, data.FASHION.remote, system=str(place / "nowhere")))
    with pytest.raises(data.DataError) as error:
        data.load(name)
    message = str(error.value)
    for source in (f"$RVI_DATA/{name}", "cache", *data.FILES[name].remote):
        assert f"- {source}: " in message
    for file in data.FILES[name].sha256:
        assert file in message
    assert "set RVI_DATA" in message and f"folder named {name}" in message
    assert not list((place / "cache").iterdir())


def test_http_is_given_up_at_once_for_an_unreachable_host(place, monkeypatch):
    asked = []

    def refuse(url, **kwargs):
        asked.append((url, kwargs["timeout"]))
        raise requests.ConnectTimeout("no route")

    monkeypatch.setattr(requests, "get", refuse)
    for _ in range(3):
        with pytest.raises(data.DataError, match="cannot be reached"):
            data.load("mosi")
    assert len(asked) == 1 and asked[0][1][0] <= 10


def test_missing_page_is_not_an_unreachable_host(place, monkeypatch):
    def not_found(url, **kwargs):
        response = requests.Response()
        response.status_code, response.url, response.reason = 404, url, "Not Found"
        return response

    monkeypatch.setattr(requests, "get", not_found)
    with pytest.raises(data.DataError, match="404"):
        data.load("mosi")
    assert not data._down


def test_failing_package_manager_is_quoted(place, monkeypatch):
    (place / "bin").mkdir()
    for tool in ("npm", "apt-get"):
        (place / "bin" / tool).write_text("#!/bin/sh\necho 'half a file' > rest.tmp\necho 'E: nobody home' >&2\nexit 7\n")
        (place / "bin" / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:/usr/bin:/bin")
    files = made_up(data.Npm("some-package@1", "data"), data.Apt("some-package", "usr/share"))
    with pytest.raises(data.DataError) as error:
        data._contents(files)
    assert "npm failed: E: nobody home" in str(error.value)
    assert "apt-get failed: E: nobody home" in str(error.value)
    assert not list((place / "cache").iterdir())


def tar_with(path, *infos):
    with tarfile.open(path, "w:gz") as tar:
        for info in infos:
            info.size = len(GOOD) if info.isfile() else 0
            tar.addfile(info, io.BytesIO(GOOD) if info.isfile() else None)
    return path


def member(name, link=None):
    info = tarfile.TarInfo(name)
    if link:
        info.type, info.linkname = tarfile.SYMTYPE, link
    return info


def test_tar_gives_the_one_file_asked_for(tmp_path):
    archive = tar_with(tmp_path / "a.tgz", member("package/data/x"), member("package/other"))
    (tmp_path / "out").mkdir()
    assert data._untar(archive, "package/data/x", tmp_path / "out").read_bytes() == GOOD
    assert files_below(tmp_path / "out") == ["package/data/x"]


@pytest.mark.parametrize("evil", [member("../evil"), member("package/../../evil"), member("package/data", "/etc"), member("package/data", "../../..")])
def test_tar_with_a_path_outside_is_refused(tmp_path, evil):
    archive = tar_with(tmp_path / "a.tgz", evil, member("package/data/x"))
    (tmp_path / "out").mkdir()
    with pytest.raises(data._Damaged, match="refused"):
        data._untar(archive, "package/data/x", tmp_path / "out")
    assert files_below(tmp_path) == ["a.tgz"]


def test_tar_member_that_is_a_link_or_absent_is_refused(tmp_path):
    archive = tar_with(tmp_path / "a.tgz", member("package/y"), member("package/x", "y"))
    for name in ("package/x", "package/z"):
        with pytest.raises(data._Damaged):
            data._untar(archive, name, tmp_path)


def test_truncated_tar_is_refused(tmp_path):
    archive = tar_with(tmp_path / "a.tgz", member("package/x"))
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(data._Damaged):
        data._untar(archive, "package/x", tmp_path)


def _fetch_slowly(barrier, queue):
    class Slow(Fake):
        def get(self, file, work, progress):
            barrier.wait(30)
            return super().get(file, work, progress)

    contents, _ = data._contents(made_up(Slow(GOOD)))
    queue.put(contents)


def test_two_processes_may_fetch_at_once(place):
    fork = multiprocessing.get_context("fork")
    barrier, queue = fork.Barrier(2), fork.Queue()
    processes = [fork.Process(target=_fetch_slowly, args=(barrier, queue)) for _ in range(2)]
    for p in processes:
        p.start()
    assert [queue.get(timeout=30) for _ in processes] == [{"a.bin": GOOD}] * 2
    for p in processes:
        p.join(30)
    assert files_below(place / "cache") == ["made_up/a.bin"]


def test_status_looks_and_does_not_ask(place, monkeypatch):
    source = Fake(GOOD)
    monkeypatch.setattr(data, "FILES", {"made_up": made_up(source)})
    monkeypatch.setattr(data, "DATASETS", ("made_up", "toy"))
    first, toy = data.status()
    assert (first.found, toy.found, source.asked) == (False, True, 0)
    assert "$RVI_DATA/made_up: no a.bin there" in first.detail and "fake source" in first.detail
    put(place, "a.bin", b"wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "has SHA-256" in data.status()[0].detail
    put(place, "a.bin", GOOD)
    assert data.status()[0] == data.Status("made_up", True, "$RVI_DATA/made_up")


# --- the datasets themselves


@pytest.mark.parametrize("name, mean", [("mnist", 0.1307), ("fashion_mnist", 0.2860)])
def test_images_arrive_with_an_empty_cache(place, name, mean):
    d = data.load(name, n_train=500)
    files = [f for f in files_below(place / "cache") if f.startswith(name)]
    assert files in (sorted(f"{name}/{f}" for f in data.IDX), [])  # none if the operating system has them
    assert d.train.shape == (500, 784) and d.test.shape == (10_000, 784) and d.image_shape == (28, 28)
    assert d.train.dtype == torch.float32 and (d.train.min(), d.train.max()) == (0, 1)
    assert d.train_labels.shape == (500,) and d.test_labels.dtype == torch.int64
    full = data.load(name)
    assert full.train.shape == (60_000, 784) and abs(full.train.mean() - mean) < 1e-4
    assert full.digest == d.digest == data.digest(name) and d.valid is None
    index = (full.train == d.train[0]).all(1).nonzero()[0, 0]
    assert full.train_labels[index] == d.train_labels[0]
    assert next(s for s in data.status() if s.name == name).found


def write_mosi(folder, videos):
    "Three features of one utterance per video; the rows of train and test are not in the transcripts' order."
    n = len(videos)
    order = list(range(n))[::-1]
    parts = {"train": order[: n // 2], "test": order[n // 2 :]}
    contents = {"transcripts.csv": "".join(f'"{v}_{i}","A, CAF\xc9","93","1"\n' for i, v in enumerate(videos)).encode("latin-1")}
    for part, rows in parts.items():
        contents[f"text_{part}.csv"] = "".join(f'"{r}","0.5"\n' for r in rows).encode()
        for k, kind in enumerate(("text", "audio", "video")):
            values = [7.0 if kind == "video" else r + 100 * k for r in rows]
            contents[f"{kind}/{kind}_{part}0.csv"] = "".join(f'"{v}","1.0"\n' for v in values).encode()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


@pytest.mark.parametrize("layout", ["mosi", "mosi/data"])
def test_mosi_rows_follow_the_official_folds(place, monkeypatch, layout):
    folds = data.MOSI_FOLDS
    videos = [v for group in zip(folds["train"], folds["test"], folds["valid"], strict=False) for v in group]
    hashes = write_mosi(place / "data" / layout, videos)
    monkeypatch.setitem(data.FILES, "mosi", data.Files("mosi", hashes, ()))
    d = data.load("mosi")
    assert [tuple(x.shape) for x in (d.train, d.valid, d.test)] == [(10, 3)] * 3
    rows = torch.arange(0, 30, 3).double()
    mean, std = rows.mean(), rows.std(correction=0)
    for x, shift in ((d.train, 0), (d.test, 1), (d.valid, 2)):
        expected = ((rows + shift - mean) / std).float()
        torch.testing.assert_close(x[:, 0], expected)
        torch.testing.assert_close(x[:, 1], expected)
        assert (x[:, 2] == 0).all()
    assert d.train_labels is None and d.image_shape is None


def test_mosi_rows_that_do_not_match_are_refused(place):
    write_mosi(place / "m", ["a", "b", "c", "d"])
    contents = {f: (place / "m" / f).read_bytes() for f in files_below(place / "m")}
    contents["transcripts.csv"] += b'"e_1","ONE TOO MANY","93","1"\n'
    with pytest.raises(data.DataError, match="one to one"):
        data._mosi_table(contents)


def test_mosi_folds_are_disjoint():
    ids = [v for fold in data.MOSI_FOLDS.values() for v in fold]
    assert len(ids) == len(set(ids)) == 93


def test_mosi_itself(monkeypatch):
    for name, value in OWN.items():
        monkeypatch.setenv(name, value or "")
    if not data._status(data.MOSI).found:
        pytest.skip("CMU-MOSI is neither in $RVI_DATA nor in the cache")
    d = data.load("mosi")
    assert [tuple(x.shape) for x in (d.train, d.valid, d.test)] == [(1284, 273), (229, 273), (686, 273)]
    assert d.train.mean(0).abs().max() < 1e-4
    std = d.train.std(0, correction=0)
    assert ((std - 1).abs() < 1e-3).logical_or(std == 0).all()
    assert data.load("mosi", n_train=100).train.shape == (100, 273)


def test_toy_is_the_same_in_each_process_and_of_rank_ten():
    d = data.load("toy")
    assert d.train.shape == (10_000, 300) and d.test.shape == (2_000, 300)
    torch.testing.assert_close(d.train[0, :4], torch.tensor([-1.5968, -1.8321, 0.8469, -1.6266]), atol=1e-3, rtol=0)
    assert d.train.mean(0).abs().max() < 1e-4 and (d.train.std(0) - 1).abs().max() < 1e-3
    assert torch.linalg.matrix_rank(d.train[:500].double(), rtol=1e-5) == len(data.TOY) == 10


def test_rows_depend_on_the_seed_alone_and_are_nested():
    small, large, other = data.load("toy", 50), data.load("toy", 500), data.load("toy", 50, seed=1)
    assert torch.equal(small.train, large.train[:50]) and not torch.equal(small.train, other.train)
    assert len(data.load("toy", 10_000).train.unique(dim=0)) == 10_000
    assert small.digest == other.digest == data.load("toy").digest
    assert len({data.digest(name) for name in data.DATASETS}) == 4


def test_changing_a_loaded_tensor_changes_nobody_elses():
    for n_train in (None, 10):
        first = data.load("toy", n_train)
        first.train.zero_()
        first.test.zero_()
        again = data.load("toy", n_train)
        assert again.train.abs().sum() > 0 and again.test.abs().sum() > 0


@pytest.mark.parametrize("n_train", [0, -1, 10_001, 10.0, "10", True])
def test_bad_n_train_is_named(n_train):
    with pytest.raises(ValueError, match="n_train must be an integer from 1 to 10000"):
        data.load("toy", n_train=n_train)


def test_unknown_name_lists_the_known_ones():
    for function in (data.load, data.fetch, data.digest):
        with pytest.raises(ValueError, match="mnist, fashion_mnist, mosi, toy, got 'cifar'"):
            function("cifar")


def test_repr_is_short():
    assert repr(data.load("toy", 10)) == f"Dataset(toy: 10+2,000 x 300, no labels, {data.digest('toy')[:8]})"
