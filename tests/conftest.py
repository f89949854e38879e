"""What several test files share: one reproduction at the smoke profile."""

import fcntl
from pathlib import Path

import pytest

from rvi_nb.reproduce import reproduce


@pytest.fixture(scope="session")
def smoke(request, tmp_path_factory) -> Path:
    "The folder of a smoke reproduction of all figures, made once per test session, by whichever worker asks for it first."
    worker = hasattr(request.config, "workerinput")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if worker else base) / f"smoke-{request.config.workerinput['testrunuid'] if worker else 'alone'}"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            good = reproduce(profile="smoke", out=folder / "out", jobs=2)
            done.write_text("ok" if good else "failed")
        assert done.read_text() == "ok", f"the smoke reproduction failed: see {folder / 'out'}"
    return folder / "out"
