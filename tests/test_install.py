"""The package as it is installed: notebooks and templates come along, and nothing of a clone is needed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory, take_compiled) -> Path:
    "The content of the wheel."
    folder = tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns(".*", "__pycache__", "reports", "build", "dist", "*.egg-info", "_docs", "_proc")
    tree = shutil.copytree(ROOT, folder / "tree", ignore=skip)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, tree]
    subprocess.run(command, check=True, cwd=folder, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    take_compiled(folder / "unpacked" / "rvi_nb")
    return folder / "unpacked"


def test_the_wheel_has_what_is_needed(unpacked):
    assert {p.name for p in (unpacked / "rvi_nb" / "figures").iterdir()} == {p.name for p in (ROOT / "nbs" / "figures").glob("*.ipynb")}
    for folder, pattern in (("rvi_nb", "*.py"), ("rvi_nb", "*.csv"), ("rvi_nb/report/templates", "*")):
        assert {p.relative_to(ROOT) for p in (ROOT / folder).rglob(pattern)} == {p.relative_to(unpacked) for p in (unpacked / folder).rglob(pattern)}


def test_reproduce_in_an_empty_folder(unpacked, tmp_path):
    env = os.environ | {"PYTHONPATH": str(unpacked)}
    run = lambda *args: subprocess.run(
        [sys.executable, "-c", "import rvi_nb; print(rvi_nb.__file__); from rvi_nb.cli.command import main; main()", *args],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    first = run("reproduce", "fig07", "--profile", "smoke")
    assert first.returncode == 0, first.stdout + first.stderr
    lines = first.stdout.splitlines()
    assert Path(lines[0]) == unpacked / "rvi_nb" / "__init__.py" and lines[1] == f"smoke profile into {tmp_path.resolve() / 'reports' / 'smoke'}"
    results = tmp_path / "reports" / "smoke" / "fig07_progression"
    assert {p.suffix for p in results.iterdir()} == {".csv", ".html", ".ipynb", ".json", ".png", ".svg"}
    assert [p.name for p in tmp_path.iterdir()] == ["reports"]
    assert "(0 to be run)" in run("reproduce", "fig07", "--profile", "smoke").stdout
    assert "fig07_progression" in run("runs", "--profile", "smoke").stdout
