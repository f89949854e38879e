"""The README is what index.ipynb says (its snippets run as a notebook in test_notebooks.py)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_is_made_from_the_index():
    call = [sys.executable, "-m", "nbconvert", "--log-level", "ERROR", "--to", "markdown", "--stdout", "nbs/index.ipynb"]
    made = subprocess.run(call, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert made == (ROOT / "README.md").read_text(), "run make readme and commit"
