"""What `make lint` checks."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_clean(command):
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
