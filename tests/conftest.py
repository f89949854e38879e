"""What several test files share: the two paths of the core, one reproduction at the smoke profile, and one browser."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rvi_nb.base.compiling import NOTE
from rvi_nb.base.paths import plain_torch
from rvi_nb.report.reproduce import reproduce

ORIGINAL = Path(__file__).parent.parent / "rvi_nb"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(params=["compiled", "plain"])
def path(request):
    "The path on which a test of the core runs: compiled loops, or plain torch as on a device that has none."
    if request.param == "compiled":
        yield request.param
    else:
        with plain_torch():
            yield request.param


@pytest.fixture
def one_thread():
    "Small products, on one thread: as fast, and whatever else the machine does."
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def take_compiled() -> Callable:
    "Lets a copy of the package have the loops that were compiled for the original, where its modules are the same: compiling them takes a minute."

    def take(package: Path) -> None:
        for module in package.rglob("*.py"):
            original = ORIGINAL / module.relative_to(package)
            if original.exists() and original.read_bytes() == module.read_bytes():
                kept = original.parent / "__pycache__"
                for file in [*kept.glob(f"{module.stem}.*.nb[ic]"), *kept.glob(NOTE)]:
                    (module.parent / "__pycache__").mkdir(exist_ok=True)
                    shutil.copy2(file, module.parent / "__pycache__")

    return take


@pytest.fixture(scope="session")
def once(request, tmp_path_factory) -> Callable:
    "Gives the folder that `make` fills, once per test session, by whichever worker asks for it first."
    worker = hasattr(request.config, "workerinput")
    base = tmp_path_factory.getbasetemp().parent if worker else tmp_path_factory.getbasetemp()
    session = request.config.workerinput["testrunuid"] if worker else "alone"

    def once(name: str, make: Callable[[Path], bool]) -> Path:
        folder = base / f"{name}-{session}"
        folder.mkdir(exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder / "done"
            if not done.exists():
                done.write_text("ok" if make(folder / "out") else "failed")
            assert done.read_text() == "ok", f"making {name} failed: see {folder / 'out'}"
        return folder / "out"

    return once


@pytest.fixture(scope="session")
def smoke(once) -> Path:
    "The folder of a smoke reproduction of all figures."
    return once("smoke", lambda out: reproduce(profile="smoke", out=out, jobs=2))


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("no Chromium here, and it could not be installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()
