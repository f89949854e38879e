"""The library notebooks run, and what they export is what is committed."""

import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from loops import NOTES, sources
from nbdev.test import test_nb as run_notebook

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(p for p in ROOT.glob("nbs/**/*.ipynb") if p.parent.name != "figures")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("IN_TEST", "1")  # nbdev sets it too, and would leave it: its commands then do nothing, in later tests as well
    monkeypatch.setattr(plt, "install_repl_displayhook", lambda: None)  # it draws figures at the end of a cell, and then they are drawn once more to be shown
    # compiled cells are kept by their own text, whatever the functions that they call have become
    monkeypatch.setattr("IPython.paths.get_ipython_cache_dir", lambda: str(NOTES / sources()))
    passed, _ = run_notebook(path, skip_flags=["notest"], force_flags=[], basepath=ROOT)
    assert passed, f"{path.name} failed: its traceback is in the captured output"


def test_export_and_clean_change_nothing(tmp_path):
    tree = tmp_path / "tree"
    keep = shutil.ignore_patterns(".venv", ".git", "__pycache__", "reports", ".pytest_cache", ".hypothesis", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=keep)
    before = {p: p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    for command in ("nbdev_export", "nbdev_clean"):
        subprocess.run([command], cwd=tree, check=True, capture_output=True)
    after = {p: p.read_bytes() for p in tree.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    changed = sorted(str(p.relative_to(tree)) for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    assert not changed, f"run nbdev_export and nbdev_clean, and commit: {changed}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("nbs/**/*.ipynb")), ids=lambda p: p.stem)
def test_notebook_is_small(path):
    assert path.stat().st_size < 1_000_000
