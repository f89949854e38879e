"""Data arrives verified or not at all, and says why."""

import errno
import gzip
import hashlib
import io
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
import requests
import torch

from rvi_nb.base import random
from rvi_nb.data import datasets, record, sources
from rvi_nb.data.datasets import DATASETS, load
from rvi_nb.data.record import Dataset, register_dataset

GOOD = b"the right bytes"
OWN = {name: os.environ.get(name) for name in ("RVI_DATA", "RVI_CACHE")}  # before a test changes them


class Fake:
    "A remote source that hands over given bytes, or fails, and counts how often it was asked."

    def __init__(self, content, label="fake source"):
        self.content, self.label, self.asked = content, label, 0

    def __str__(self):
        return self.label

    def get(self, file, work, progress, limit):
        self.asked += 1
        if isinstance(self.content, Exception):
            raise self.content
        out = work / Path(file).name
        out.write_bytes(self.content)
        return out


def made_up(*remote, names=("a.bin",), **options):
    return sources.Files("made_up", {n: hashlib.sha256(GOOD).hexdigest() for n in names}, remote, **options)


def made_up_record(files):
    return Dataset("made_up", make=lambda contents: SMALL, files=files, n_features=2, n_train=3, n_test=1)


SMALL = {"train": np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]), "test": np.array([[9.0, 3.0]])}  # 3 + 1 rows; the second feature is constant


def forget():
    "What is remembered from one call to the next."
    sources._down.clear()
    record._arrays.cache_clear()
    record._scaling.cache_clear()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    "An empty cache, an empty $RVI_DATA, a temporary folder of our own, and nothing remembered."
    for folder in ("cache", "data", "tmp"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("RVI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RVI_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    known = dict(DATASETS)
    forget()
    yield tmp_path
    assert not list((tmp_path / "tmp").iterdir()), "temporary folders are removed, also on failure"
    record._records.clear()
    record._records.update(known)
    forget()


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
    code = "from rvi_nb.base.random import generator; import torch; print(torch.rand(1, generator=generator(3, 'mask', 1)).item())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(other) == torch.rand(1, generator=random.generator(3, "mask", 1)).item()


def test_streams_differ_by_seed_and_name():
    names = [(s, *k) for s in range(20) for k in ((), ("a",), ("b",), ("a", 0), ("a", "0"), ("ab",), ("a", "b"), (0,))]
    assert len({random.generator(*n).initial_seed() for n in names}) == len(names)


@pytest.mark.parametrize("seed", [-1, 0.0, "0", None, True])
def test_bad_seed_is_named(seed):
    with pytest.raises(ValueError, match="seed must be"):
        random.generator(seed)


# --- sources


def test_tampered_file_is_reported_and_next_source_used(place):
    put(place, "a.bin", b"the wrong bytes")
    with pytest.warns(UserWarning, match=r"made_up: \$RVI_DATA/made_up: a.bin has SHA-256"):
        contents, used = sources._contents(made_up(Fake(GOOD)))
    assert (contents, used) == ({"a.bin": GOOD}, ["fake source"])
    assert files_below(place / "cache") == ["made_up/a.bin"]


def test_truncated_gzip_is_reported_and_next_source_used(place):
    put(place, "a.bin.gz", gzip.compress(GOOD)[:-5])
    with pytest.warns(UserWarning, match="truncated"):
        assert sources._contents(made_up(Fake(GOOD)))[0] == {"a.bin": GOOD}


@pytest.mark.parametrize("name", ["a.bin", "a.bin.gz", "data/a.bin", "data/a.bin.gz"])
def test_own_folder_is_used_in_place(place, name):
    put(place, name, gzip.compress(GOOD) if name.endswith("gz") else GOOD)
    source = Fake(GOOD)
    assert sources._contents(made_up(source)) == ({"a.bin": GOOD}, ["$RVI_DATA/made_up"])
    assert not source.asked and not files_below(place / "cache")


def test_cache_is_checked_each_time_and_repaired(place):
    source = Fake(GOOD)
    assert sources._contents(made_up(source))[1] == ["fake source"]
    assert sources._contents(made_up(source))[1] == ["cache"]
    (place / "cache/made_up/a.bin").write_bytes(GOOD[:-1])
    with pytest.warns(UserWarning, match="cache: a.bin has SHA-256"):
        assert sources._contents(made_up(source))[1] == ["fake source"]
    assert sources._contents(made_up(source))[1] == ["cache"]
    assert source.asked == 2


def test_wrong_bytes_from_a_source_never_reach_the_cache(place):
    with pytest.warns(UserWarning, match=r"first: a\.bin has SHA-256"), pytest.raises(sources.DataError, match=r"first: a\.bin has SHA-256") as error:
        sources._contents(made_up(Fake(b"bad", "first"), Fake(OSError("404"), "second")))
    assert "second: 404" in str(error.value)
    assert not list((place / "cache").iterdir())


def test_unreachable_source_is_asked_once_until_the_next_fetch(place):
    down, up = Fake(sources._Down("unreachable"), "down"), Fake(GOOD, "up")
    files = made_up(down, up, names=("a.bin", "b.bin", "c.bin"))
    register_dataset(made_up_record(files))
    assert datasets.fetch("made_up", progress=False) == "up"
    assert (down.asked, up.asked) == (1, 3)
    for name in files.sha256:
        (place / "cache/made_up" / name).unlink()
    datasets.fetch("made_up", progress=False)
    assert down.asked == 2


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "mosi"])
def test_no_source_reachable_names_them_all(place, offline, name):
    if name == "fashion_mnist":
        files = replace(DATASETS[name].files, system=str(place / "nowhere"))
        register_dataset(replace(DATASETS[name], files=files))
    with pytest.raises(sources.DataError) as error:
        datasets.load(name)
    message = str(error.value)
    for source in (f"$RVI_DATA/{name}", "cache", *DATASETS[name].files.remote):
        assert f"- {source}: " in message
    for file in DATASETS[name].files.sha256:
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
        with pytest.raises(sources.DataError, match="cannot be reached"):
            datasets.load("mosi")
    assert len(asked) == 1 and asked[0][1][0] <= 10


def test_missing_page_is_not_an_unreachable_host(place, monkeypatch):
    def not_found(url, **kwargs):
        response = requests.Response()
        response.status_code, response.url, response.reason = 404, url, "Not Found"
        return response

    monkeypatch.setattr(requests, "get", not_found)
    with pytest.raises(sources.DataError, match="404"):
        datasets.load("mosi")
    assert not sources._down


def test_failing_package_manager_is_quoted(place, monkeypatch):
    (place / "bin").mkdir()
    for tool in ("npm", "apt-get"):
        (place / "bin" / tool).write_text("#!/bin/sh\necho 'half a file' > rest.tmp\necho 'E: nobody home' >&2\nexit 7\n")
        (place / "bin" / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:/usr/bin:/bin")
    files = made_up(sources.Npm("some-package@1", "data"), sources.Apt("some-package", "usr/share"))
    with pytest.raises(sources.DataError) as error:
        sources._contents(files)
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
    assert sources._untar(archive, ("package/data/x",), tmp_path / "out").read_bytes() == GOOD
    assert files_below(tmp_path / "out") == ["x"]


@pytest.mark.parametrize("evil", [member("../evil"), member("package/../../evil"), member("package/data", "/etc"), member("package/data", "../../..")])
@pytest.mark.parametrize("last", [False, True])
def test_tar_with_a_path_outside_is_refused(tmp_path, evil, last):
    members = [evil, member("package/data/x")]
    archive = tar_with(tmp_path / "a.tgz", *(members[::-1] if last else members))
    (tmp_path / "out").mkdir()
    with pytest.raises(sources._Damaged, match="refused"):
        sources._untar(archive, ("package/data/x",), tmp_path / "out")
    assert files_below(tmp_path) == ["a.tgz"]


def test_tar_member_that_is_a_link_or_absent_is_refused(tmp_path):
    archive = tar_with(tmp_path / "a.tgz", member("package/y"), member("package/x", "y"))
    for name in ("package/x", "package/z"):
        with pytest.raises(sources._Damaged):
            sources._untar(archive, (name,), tmp_path)


def test_truncated_tar_is_refused(tmp_path):
    archive = tar_with(tmp_path / "a.tgz", member("package/x"))
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(sources._Damaged):
        sources._untar(archive, ("package/x",), tmp_path)


# --- nothing grows without a limit


def responses(monkeypatch, content, headers=None):
    "Every web address gives `content`, an iterator of chunks or bytes."

    def respond(url, **kwargs):
        response = requests.Response()
        response.status_code, response.url = 200, url
        response.headers.update(headers or {})
        response.iter_content = lambda chunk_size: iter([content] if isinstance(content, bytes) else content())
        return response

    monkeypatch.setattr(requests, "get", respond)


def test_http_gives_the_file(place, monkeypatch):
    responses(monkeypatch, GOOD)
    assert sources._contents(made_up(sources.Http("http://example.org/")))[0] == {"a.bin": GOOD}


def test_download_stops_at_the_limit_before_it_is_written(place, monkeypatch):
    sent, largest = [], []

    def endless():
        while len(sent) < 1000:
            sent.append(1)
            largest.append(max((p.stat().st_size for p in (place / "tmp").rglob("*") if p.is_file()), default=0))
            yield bytes(2**10)

    responses(monkeypatch, endless)
    with pytest.warns(UserWarning, match="more than 10,000 bytes"), pytest.raises(sources.DataError, match="more than 10,000 bytes, the most"):
        sources._contents(made_up(sources.Http("http://example.org/"), limit=10_000))
    assert len(sent) == 10 and max(largest) <= 10_000
    assert not files_below(place)


def test_one_huge_chunk_is_not_written(place, monkeypatch):
    "A server that compresses what it sends can make a small chunk of the line a large one here."
    responses(monkeypatch, bytes(2**20))
    target = place / "work"
    target.mkdir()
    with pytest.raises(sources._Damaged):
        sources.Http("http://example.org/").get("a.bin", target, False, 2**16)
    assert (target / "a.bin").stat().st_size == 0


def test_gzip_bomb_is_refused(place):
    bomb = gzip.compress(bytes(2**24))
    assert len(bomb) < 2**15
    put(place, "a.bin.gz", bomb)
    with pytest.warns(UserWarning, match=r"a\.bin\.gz holds more than 65,536 bytes"):
        assert sources._contents(made_up(Fake(GOOD), limit=2**16))[0] == {"a.bin": GOOD}
    with pytest.warns(UserWarning, match="more than"), pytest.raises(sources.DataError, match=r"fake source: b\.bin holds more than"):
        sources._contents(made_up(Fake(bomb), limit=2**16, names=("b.bin",)))


def test_gzip_is_read_no_further_than_the_limit(tmp_path, monkeypatch):
    class Endless(io.RawIOBase):
        def read(self, size=-1):
            assert 0 <= size <= 2**16 + 1, "no more is asked for than is accepted"
            return bytes(size)

    monkeypatch.setattr(sources, "_open", lambda path: Endless())
    with pytest.raises(sources._Damaged, match="more than"):
        sources._checked(tmp_path / "a", "0" * 64, 2**16)


def test_zip_in_place_of_a_file_is_refused(place):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("a.bin", bytes(2**20))
    with pytest.warns(UserWarning, match="has SHA-256"), pytest.raises(sources.DataError):
        sources._contents(made_up(Fake(out.getvalue())))


def big(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info


@pytest.mark.parametrize("suffix", ["tgz", "tar"])
@pytest.mark.parametrize("name, size", [("package/x", 2**17), ("package/other", 2**20)], ids=["the file itself", "another file"])
def test_tar_bomb_is_refused(tmp_path, suffix, name, size):
    with tarfile.open(tmp_path / f"a.{suffix}", "w:gz" if suffix == "tgz" else "w") as tar:
        tar.addfile(big(name, size), io.BytesIO(bytes(size)))
        if name != "package/x":
            tar.addfile(big("package/x", 1), io.BytesIO(b"1"))
    (tmp_path / "out").mkdir()
    with pytest.raises(sources._Damaged, match="refused: more than"):
        sources._untar(tmp_path / f"a.{suffix}", ("package/x",), tmp_path / "out", 2**16)
    assert not files_below(tmp_path / "out")


def test_tar_that_only_declares_a_huge_size_is_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(big("package/x", 2**40).tobuf() + bytes(2**18 + 512))
    with pytest.raises(sources._Damaged, match="refused: more than"):
        sources._untar(tmp_path / "a.tar", ("package/x",), tmp_path, 2**16)
    assert files_below(tmp_path) == ["a.tar"]


def test_tar_with_a_huge_header_is_refused(tmp_path):
    "The headers of a tar file can be files of any size themselves, which are read into memory."
    with tarfile.open(tmp_path / "a.tgz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = big("package/x", 1)
        info.pax_headers = {"comment": "x" * 2**20}
        tar.addfile(info, io.BytesIO(b"1"))
    with pytest.raises(sources._Damaged, match="refused: more than"):
        sources._untar(tmp_path / "a.tgz", ("package/x",), tmp_path, 2**16)


def tool(place, monkeypatch, name, script):
    (place / "bin").mkdir(exist_ok=True)
    (place / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:/usr/bin:/bin")


def test_package_manager_may_not_write_more_than_the_limit(place, monkeypatch):
    tool(place, monkeypatch, "npm", "exec head -c 100000000 /dev/zero > huge.tgz")
    (place / "work").mkdir()
    with pytest.raises(sources._Down, match="npm wrote more than 262,144 bytes"):
        sources.Npm("some-package@1", "data").get("a.bin", place / "work", False, 2**16)
    assert (place / "work/huge.tgz").stat().st_size <= 2**18


def test_npm_package_gives_its_file(place, monkeypatch):
    tar_with(place / "p.tgz", member("package/data/a.bin"))
    tool(place, monkeypatch, "npm", f"cp {place}/p.tgz .")
    assert sources._contents(made_up(sources.Npm("some-package@1", "data")))[0] == {"a.bin": GOOD}


def debian_package(place, content, name="a.bin.gz"):
    "A Debian package with one file."
    root = place / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text("Package: some-package\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: none\n")
    (root / "usr/share/some").mkdir(parents=True)
    (root / "usr/share/some" / name).write_bytes(content)
    subprocess.run(["dpkg-deb", "-b", "--root-owner-group", root, place / "p.deb"], check=True, capture_output=True)


needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb here")


@needs_dpkg
@pytest.mark.parametrize("name, content", [("a.bin.gz", gzip.compress(GOOD, mtime=0)), ("a.bin", GOOD)])  # the same in every worker, whenever it collects
def test_debian_package_gives_its_file(place, monkeypatch, name, content):
    debian_package(place, content, name)
    tool(place, monkeypatch, "apt-get", f"cp {place}/p.deb .")
    assert sources._contents(made_up(sources.Apt("some-package", "usr/share/some")))[0] == {"a.bin": GOOD}


@needs_dpkg
def test_debian_bomb_is_refused(place, monkeypatch):
    debian_package(place, bytes(2**24))
    assert (place / "p.deb").stat().st_size < 2**16
    tool(place, monkeypatch, "apt-get", f"cp {place}/p.deb .")
    (place / "work").mkdir()
    with pytest.raises(sources._Down, match=r"dpkg-deb (wrote more than|failed)"):
        sources.Apt("some-package", "usr/share/some").get("a.bin", place / "work", False, 2**16)
    assert sum(p.stat().st_size for p in (place / "work").rglob("*")) < 2**20


# --- the cache


def test_cache_that_is_a_file_is_named(place, monkeypatch):
    (place / "blocked").write_text("")
    monkeypatch.setenv("RVI_CACHE", str(place / "blocked"))
    second = Fake(GOOD, "second")
    with pytest.raises(sources.DataError) as error:
        sources._contents(made_up(Fake(GOOD, "first"), second))
    message = str(error.value)
    assert "a.bin arrived, but the cache cannot be written" in message and str(place / "blocked") in message and "Set RVI_CACHE" in message
    assert "no source" not in message and not second.asked


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_real_cause_of_a_cache_that_cannot_be_written(place, monkeypatch, number):
    def fail(path, data):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(sources, "write_atomically", fail)
    with pytest.raises(sources.DataError, match=os.strerror(number)) as error:
        sources._contents(made_up(Fake(GOOD)))
    assert f"({place}/cache/made_up/a.bin)" in str(error.value)


def test_full_disk_while_downloading_is_named(place):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(sources.DataError, match=r"fake source: .*No space left on device"):
        sources._contents(made_up(Fake(full)))


def test_without_a_temporary_folder_what_is_here_is_used(place, monkeypatch):
    def fail(**kwargs):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", fail)
    with pytest.raises(sources.DataError, match="no temporary folder to download into: No usable"):
        sources._contents(made_up(Fake(GOOD)))
    put(place, "a.bin", GOOD)
    assert sources._contents(made_up(Fake(GOOD)))[0] == {"a.bin": GOOD}


def test_others_may_read_the_cache(place):
    sources._contents(made_up(Fake(GOOD)))
    assert stat.S_IMODE((place / "cache/made_up/a.bin").stat().st_mode) & 0o044 == 0o044


@pytest.mark.parametrize("module", ["rvi_nb.model.decoder", "rvi_nb.data.datasets"])
def test_importing_loads_nothing_that_fetches(module):
    code = f"import sys, {module}; print([m for m in ('requests', 'pooch', 'urllib3') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def _fetch_slowly(barrier, queue):
    class Slow(Fake):
        def get(self, file, work, progress, limit):
            barrier.wait(30)
            return super().get(file, work, progress, limit)

    contents, _ = sources._contents(made_up(Slow(GOOD)))
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
    monkeypatch.setattr(datasets, "DATASETS", {"made_up": made_up_record(made_up(source)), "toy": DATASETS["toy"]})
    first, toy = datasets.status()
    assert (first.found, toy.found, source.asked) == (False, True, 0)
    assert "$RVI_DATA/made_up: no a.bin there" in first.detail and "fake source" in first.detail
    put(place, "a.bin", b"wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "has SHA-256" in datasets.status()[0].detail
    put(place, "a.bin", GOOD)
    assert datasets.status()[0] == datasets.Status("made_up", True, "$RVI_DATA/made_up")


# --- records


def small(name="mine", **changes):
    return Dataset(name, **{"label": "My table", "make": dict(SMALL)} | changes)


def test_own_dataset_of_arrays_or_of_a_function():
    for make in (SMALL, lambda: SMALL, {k: torch.tensor(v) for k, v in SMALL.items()}):
        mine = register_dataset(small(make=make))
        assert (mine.n_features, mine.n_train, mine.n_test, mine.n_classes, mine.label) == (2, 3, 1, None, "My table")
        assert load("mine").train.tolist() == [[0, 0], [0.5, 0], [1, 0]] and load("mine").test.tolist() == [[1.5, 0]]
        assert load("mine", 2, seed=1).train.shape == (2, 2) and load("mine").name == "mine"
    assert "mine" in DATASETS and ", ".join(DATASETS).endswith("toy_tanh, mine") and datasets.n_rows("mine") == 3
    assert datasets.fetch("mine") == "generated" and datasets.status()[-1] == datasets.Status("mine", True, "generated")
    assert small(label="").label == "mine"


def test_labels_stay_with_their_rows():
    x = np.arange(20.0)[:, None]
    mine = small(make={"train": x, "test": x, "train_labels": np.arange(20), "test_labels": np.arange(20, dtype=np.uint8)}, scale="none")
    rows = mine.load(7, seed=2)
    assert mine.n_classes == 20 and rows.train[:, 0].tolist() == rows.train_labels.tolist() and rows.test_labels.dtype == torch.int64


@pytest.mark.parametrize(
    "scale, train, test",
    [
        ("none", [[0, 1], [2, 1], [4, 1]], [[9, 3]]),
        ("unit", [[0, 0], [0.5, 0], [1, 0]], [[1.5, 0]]),
        ("standard", [[-(1.5**0.5), 0], [0, 0], [1.5**0.5, 0]], [[7 / (8 / 3) ** 0.5, 2]]),
    ],
)
def test_each_scale_by_record_and_by_load(scale, train, test):
    register_dataset(small(scale=scale))
    register_dataset(small("other"))
    for rows in (load("mine"), load("other", scale=scale)):
        torch.testing.assert_close(rows.train, torch.tensor(train, dtype=torch.float32))
        torch.testing.assert_close(rows.test, torch.tensor(test, dtype=torch.float32))


def test_unit_scale_clips_below_too_and_asks_all_training_rows():
    mine = small(make={"train": [[0.0], [1.0], [10.0]], "test": [[-99.0], [-4.0]], "valid": [[99.0]]})
    rows = mine.load(1, seed=0)
    assert rows.test.flatten().tolist() == pytest.approx([-0.5, -0.4]) and rows.valid.item() == 1.5
    assert {round(mine.load(1, seed=s).train.item(), 6) for s in range(20)} == {0, 0.1, 1}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float32, bool])
def test_types_of_numbers_do_not_wrap_around(dtype):
    values = [0, 1] if dtype is bool else [-128, 127] if dtype is np.int8 else [0, 200]
    x = np.array(values, dtype)[:, None]
    assert small(make={"train": x, "test": x}).load().train.flatten().tolist() == [0, 1]
    assert small(make={"train": x, "test": x}).load(scale="standard").train.flatten().tolist() == [-1, 1]
    expected = [0, float(np.float32(200) / np.float32(255))] if dtype is np.uint8 else [float(v) for v in values]
    assert small(make={"train": x, "test": x}).load(scale="none").train.flatten().tolist() == expected


@pytest.mark.parametrize("name", ["toy", "toy_tanh"])
def test_generated_data_in_unit_scale(name):
    own, unit = load(name, scale="standard"), load(name)
    assert (unit.train.min(0).values == 0).all() and (unit.train.max(0).values == 1).all()
    assert unit.test.min() >= -0.5 and unit.test.max() <= 1.5 and unit.digest != own.digest
    correlation = torch.corrcoef(torch.stack([own.train[:, 7], unit.train[:, 7]]))[0, 1]
    assert correlation > 0.9999 and own.train.min() < 0


@pytest.mark.parametrize("scale", ["minmax", "", 1, True, ["unit"]])
def test_unknown_scale_is_named(scale):
    with pytest.raises(ValueError, match="scale must be one of none, unit, standard, got"):
        load("toy", 10, scale=scale)
    with pytest.raises(ValueError, match="scale must be one of"):
        small(scale=scale)


def test_tanh_form_is_the_toy_through_tanh():
    linear, curved = load("toy", scale="standard"), load("toy_tanh", scale="none")
    assert curved.train.shape == linear.train.shape and curved.train.abs().max() <= 1
    torch.testing.assert_close(curved.train, linear.train.tanh(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(curved.test, linear.test.tanh(), atol=1e-6, rtol=1e-5)
    assert torch.linalg.matrix_rank(curved.train[:500].double(), rtol=1e-5) == 300
    assert load("toy_tanh", scale="standard").train.mean(0).abs().max() < 1e-4


def test_records_tell_what_others_need():
    facts = {r.id: (r.label, r.n_features, r.n_train, r.n_test, r.image_shape, r.n_classes, r.scale) for r in DATASETS.values()}
    assert facts == {
        "mnist": ("MNIST", 784, 60_000, 10_000, (28, 28), 10, "none"),
        "fashion_mnist": ("Fashion-MNIST", 784, 60_000, 10_000, (28, 28), 10, "none"),
        "mosi": ("CMU-MOSI", 273, 1284, 686, None, None, "unit"),
        "toy": ("Toy", 300, 10_000, 2_000, None, None, "unit"),
        "toy_tanh": ("Toy through tanh", 300, 10_000, 2_000, None, None, "unit"),
    }
    assert list(DATASETS) == list(facts)
    with pytest.raises(FrozenInstanceError):
        DATASETS["toy"].label = "other"
    with pytest.raises(TypeError):
        DATASETS["mine"] = small()


def test_digests_are_those_of_stored_results():
    stored = {"mnist": "c6352c521a0f468d", "fashion_mnist": "1d61eff2eb3d252f", "mosi": "7bcf20f0a2c571bf", "toy": "2af86c7680833726"}
    assert {name: datasets.digest(name)[:16] for name in stored} == stored
    assert all(datasets.digest(name, DATASETS[name].scale) == datasets.digest(name) for name in DATASETS)
    assert len({datasets.digest(name, scale) for name in DATASETS for scale in record.SCALES}) == 3 * len(DATASETS)


def test_digest_changes_with_the_content_and_with_nothing_else():
    mine, changed = small(), {"train": SMALL["train"] + [[0, 0], [0, 1e-9], [0, 0]], "test": SMALL["test"]}
    same = [small(), small(label="Other"), small(make=lambda: SMALL), small(scale="unit"), small(n_train=3, n_features=2, n_test=1)]
    labelled = SMALL | {"train_labels": [0, 1, 0], "test_labels": [0]}
    swapped = labelled | {"train_labels": [1, 0, 0]}
    others = [
        small("yours"),
        small(make=changed),
        small(scale="none"),
        small(image_shape=(1, 2)),
        small(image_shape=(2, 1)),
        small(make=labelled),
        small(make=swapped),
    ]
    assert {d.digest() for d in same} == {mine.digest()}
    assert len({mine.digest(), *(d.digest() for d in others)}) == 1 + len(others)
    assert mine.load(2).digest == mine.digest() and mine.load(scale="none").digest == mine.digest("none") != mine.digest()


def test_a_name_means_one_thing():
    first = register_dataset(small())
    again = register_dataset(small(make=lambda: SMALL))
    assert DATASETS["mine"] is again is not first
    for other in (small(scale="none"), small(make={"train": SMALL["test"], "test": SMALL["train"]}), small("toy")):
        before = DATASETS[other.id]
        with pytest.raises(ValueError, match=f"id '{other.id}' is taken by .*whose content is different"):
            register_dataset(other)
        assert DATASETS[other.id] is before
    for wrong in ("mine", None, SMALL, Dataset):
        with pytest.raises(ValueError, match="record must be a Dataset, got"):
            register_dataset(wrong)


@pytest.mark.parametrize(
    "field, value",
    [
        *(("id", v) for v in ("", "two words", "../up", 3, None)),
        ("label", 3),
        *(("make", v) for v in (None, [1], "toy")),
        *(("image_shape", v) for v in ((2,), [1, 2], (0, 2), "ab", (1.0, 2))),
        *((n, v) for n in ("n_features", "n_train", "n_test") for v in (-1, 2.0, True, None)),
        ("n_classes", 1.5),
        ("files", {"a": "b"}),
        *(("definition", v) for v in ("text", ({1, 2},), [1])),
        ("sha256", 5),
    ],
)
def test_bad_field_is_named(field, value):
    fields = {"id": "mine", "make": SMALL} | {field: value}
    with pytest.raises(ValueError, match=f"^{field} of a dataset must be .*, got "):
        Dataset(fields.pop("id"), **fields)


@pytest.mark.parametrize(
    "make, message",
    [
        ({"train": SMALL["train"]}, "make must give a dictionary with train and test.*; got train"),
        ((SMALL["train"], SMALL["test"]), "got tuple"),
        (SMALL | {"labels": [1]}, "got train, test, labels"),
        (SMALL | {"test": [[1.0]]}, "test must have the 2 features of train, got 1"),
        (SMALL | {"valid": [[1.0, np.nan]]}, "valid has NaN"),
        (SMALL | {"train": [[1.0, np.inf]]}, "train has NaN or infinite"),
        (SMALL | {"test": [["a", "b"]]}, "test must be a table of numbers"),
        (SMALL | {"test": np.empty((0, 2))}, "test must be a table of numbers"),
        (SMALL | {"train_labels": [0, 1, 0]}, "both or neither"),
        (SMALL | {"train_labels": [0, 1], "test_labels": [0]}, "train_labels must be 3 integers from 0 on"),
        (SMALL | {"train_labels": [0, 1, -1], "test_labels": [0]}, "train_labels must be 3 integers"),
        (SMALL | {"train_labels": [0, 1, 1], "test_labels": [0.5]}, "test_labels must be 1 integers"),
    ],
)
def test_bad_arrays_are_named(make, message):
    with pytest.raises(ValueError, match=f"dataset 'mine': .*{message}"):
        Dataset("mine", make=lambda: make)


@pytest.mark.parametrize("field, value", [("n_features", 5), ("n_train", 4), ("n_test", 2), ("n_classes", 2)])
def test_record_that_contradicts_its_arrays_is_refused(field, value):
    with pytest.raises(ValueError, match=f"dataset 'mine': its record says {field}={value}, its arrays have"):
        small(**{field: value})
    stated = {"n_features": 2, "n_train": 3, "n_test": 1, "definition": ("small",)} | {field: value}
    with pytest.raises(ValueError, match=f"its record says {field}={value}"):
        small(**stated).load()
    with pytest.raises(ValueError, match="image_shape of dataset 'mine' must have 2 pixels"):
        small(image_shape=(3, 4))


def test_complete_record_makes_nothing_until_it_is_loaded():
    def make():
        calls.append(1)
        return SMALL

    calls = []
    mine = small(make=make, n_features=2, n_train=3, n_test=1, definition=("small", 1))
    assert not calls and mine.sha256 is None
    mine.load()
    mine.load(2)
    assert len(calls) == 1
    assert mine.digest() != small(make=make, n_features=2, n_train=3, n_test=1, definition=("small", 2)).digest()


def test_own_arrays_are_not_shared():
    x = SMALL["train"].copy()
    mine = small(make={"train": x, "test": SMALL["test"]})
    x[:] = 100
    assert mine.load().train.max() == 1


def _random_table():
    return {"train": np.random.default_rng().random((5, 2)), "test": np.ones((1, 2))}


def test_a_function_that_gives_other_numbers_each_time_is_found_out():
    mine = small(make=_random_table)
    mine.load()
    forget()
    with pytest.raises(ValueError, match="make gave other numbers than when the record was made"):
        mine.load()


def _small_table():
    return SMALL


def _load_there(own):
    "In a process that knows only the package's own datasets."
    before = "mine" in record.DATASETS
    register_dataset(own)
    rows = datasets.load("mine", 2, seed=1)
    return before, rows.train.tolist(), rows.digest, callable(own.make)


def test_record_travels_to_another_process():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for make, by_name in ((lambda: SMALL, False), (_small_table, True), (SMALL, False)):
            mine = register_dataset(small(make=make))
            here = load("mine", 2, seed=1)
            there = pool.submit(_load_there, mine).result()
            assert there[1:] == (here.train.tolist(), here.digest, by_name)


def test_unknown_dataset_in_another_process_says_what_to_do():
    register_dataset(small())
    code = "from rvi_nb.data.datasets import load; load('mine')"
    error = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "name must be one of mnist" in error and "register_dataset adds others, in each process that needs them" in error


def test_records_of_the_package_travel_by_name():
    program = """
import pickle
from rvi_nb.data.datasets import DATASETS
from rvi_nb.data.record import register_dataset
for own in list(DATASETS.values()):
    copy = pickle.loads(pickle.dumps(own))
    assert copy.digest() == own.digest() and copy.make is own.make and len(pickle.dumps(own)) < 10_000
    register_dataset(copy)
"""
    subprocess.run([sys.executable, "-c", program], check=True)  # elsewhere: notebooks that ran in this process have defined the package's functions anew


# --- the datasets themselves


@pytest.mark.parametrize("name, mean", [("mnist", 0.1307), ("fashion_mnist", 0.2860)])
def test_images_arrive_with_an_empty_cache(place, name, mean):
    d = datasets.load(name, n_train=500)
    files = [f for f in files_below(place / "cache") if f.startswith(name)]
    assert files in (sorted(f"{name}/{f}" for f in datasets.IDX), [])  # none if the operating system has them
    assert d.train.shape == (500, 784) and d.test.shape == (10_000, 784) and d.image_shape == (28, 28)
    assert d.train.dtype == torch.float32 and (d.train.min(), d.train.max()) == (0, 1)
    assert d.train_labels.shape == (500,) and d.test_labels.dtype == torch.int64
    full = datasets.load(name)
    assert full.train.shape == (60_000, 784) and abs(full.train.mean() - mean) < 1e-4
    assert full.digest == d.digest == datasets.digest(name) and d.valid is None
    index = (full.train == d.train[0]).all(1).nonzero()[0, 0]
    assert full.train_labels[index] == d.train_labels[0]
    assert next(s for s in datasets.status() if s.name == name).found


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
def test_mosi_rows_follow_the_official_folds(place, layout):
    folds = datasets.MOSI_FOLDS
    videos = [v for group in zip(folds["train"], folds["test"], folds["valid"], strict=False) for v in group]
    hashes = write_mosi(place / "data" / layout, videos)
    small = replace(DATASETS["mosi"], files=sources.Files("mosi", hashes, ()), n_features=3, n_train=10, n_test=10)
    d = small.load()
    assert [tuple(x.shape) for x in (d.train, d.valid, d.test)] == [(10, 3)] * 3
    rows = torch.arange(0, 30, 3).double()
    for x, shift in ((d.train, 0), (d.test, 1), (d.valid, 2)):
        expected = ((rows + shift) / rows.max()).float()  # in [0, 1] by the training rows, from 0 to 27
        torch.testing.assert_close(x[:, 0], expected)
        torch.testing.assert_close(x[:, 1], expected)
        assert (x[:, 2] == 0).all()
    assert d.train_labels is None and d.image_shape is None


def test_mosi_rows_that_do_not_match_are_refused(place):
    write_mosi(place / "m", ["a", "b", "c", "d"])
    contents = {f: (place / "m" / f).read_bytes() for f in files_below(place / "m")}
    contents["transcripts.csv"] += b'"e_1","ONE TOO MANY","93","1"\n'
    with pytest.raises(sources.DataError, match="one to one"):
        datasets._mosi_table(contents)


def test_mosi_folds_are_disjoint():
    ids = [v for fold in datasets.MOSI_FOLDS.values() for v in fold]
    assert len(ids) == len(set(ids)) == 93


def test_mosi_itself(monkeypatch):
    for name, value in OWN.items():
        monkeypatch.setenv(name, value or "")
    if not datasets._status(DATASETS["mosi"]).found:
        pytest.skip("CMU-MOSI is neither in $RVI_DATA nor in the cache")
    d = datasets.load("mosi")
    assert [tuple(x.shape) for x in (d.train, d.valid, d.test)] == [(1284, 273), (229, 273), (686, 273)]
    assert (d.train.min(0).values == 0).all() and ((top := d.train.max(0).values) == 1).logical_or(top == 0).all()
    assert d.test.min() >= -0.5 and d.test.max() <= 1.5
    assert datasets.load("mosi", n_train=100).train.shape == (100, 273)


def test_toy_is_the_same_in_each_process_and_of_rank_ten():
    d = datasets.load("toy", scale="standard")
    assert d.train.shape == (10_000, 300) and d.test.shape == (2_000, 300)
    torch.testing.assert_close(d.train[0, :4], torch.tensor([-1.5968, -1.8321, 0.8469, -1.6266]), atol=1e-3, rtol=0)
    assert d.train.mean(0).abs().max() < 1e-4 and (d.train.std(0) - 1).abs().max() < 1e-3
    assert torch.linalg.matrix_rank(d.train[:500].double(), rtol=1e-5) == len(datasets.DISTRIBUTIONS) == 10


def test_rows_depend_on_the_seed_alone_and_are_nested():
    small, large, other = datasets.load("toy", 50), datasets.load("toy", 500), datasets.load("toy", 50, seed=1)
    assert torch.equal(small.train, large.train[:50]) and not torch.equal(small.train, other.train)
    assert len(datasets.load("toy", 10_000).train.unique(dim=0)) == 10_000
    assert small.digest == other.digest == datasets.load("toy").digest
    assert len({datasets.digest(name) for name in DATASETS}) == len(DATASETS) == 5


def test_changing_a_loaded_tensor_changes_nobody_elses():
    for n_train in (None, 10):
        first = datasets.load("toy", n_train)
        first.train.zero_()
        first.test.zero_()
        again = datasets.load("toy", n_train)
        assert again.train.abs().sum() > 0 and again.test.abs().sum() > 0


@pytest.mark.parametrize("n_train", [0, -1, 10_001, 10.0, "10", True])
def test_bad_n_train_is_named(n_train):
    with pytest.raises(ValueError, match="n_train must be an integer from 1 to 10000"):
        datasets.load("toy", n_train=n_train)


def test_unknown_name_lists_the_known_ones():
    for function in (datasets.load, datasets.fetch, datasets.digest):
        with pytest.raises(ValueError, match="mnist, fashion_mnist, mosi, toy, toy_tanh, got 'cifar'"):
            function("cifar")


def test_repr_is_short():
    assert repr(datasets.load("toy", 10)) == f"Rows(toy: 10+2,000 x 300, no labels, {datasets.digest('toy')[:8]})"
