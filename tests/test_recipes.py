"""CONTRIBUTING's recipes, followed to the letter in a copy of the tree, and its walks through the house."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.append(str(Path(__file__).parent.parent / "docs"))
from modules import FOLDERS, ROOT, modules

GUIDE = (ROOT / "CONTRIBUTING.md").read_text()

BLOCK = re.compile(r"<!-- recipe (\w+): (.+?) -->\n```(\w+)\n(.*?)\n```\n", re.DOTALL)
BLOCKS = BLOCK.findall(GUIDE)  # (recipe, what to do, language, text)
RECIPES = ["dataset", "model", "posterior", "likelihood", "figure", "claim"]


def new_cell(language: str, text: str, tag: str | None):
    "A cell as a recipe gives it."
    if language == "markdown":
        return nbformat.v4.new_markdown_cell(text)
    return nbformat.v4.new_code_cell(text, metadata={"tags": [tag]} if tag else {})


def follow(tree: Path) -> None:
    "Add every cell of every recipe where it says."
    for _, what, language, text in BLOCKS:
        if not (place := re.fullmatch(r"cell in (\S+)(?: before (\S+)| tagged (\S+)| titled)?", what)):
            assert what == "try", what
            continue
        path, before, tag = tree / place[1], place[2], place[3]
        nb = nbformat.read(path, 4) if path.exists() else nbformat.v4.new_notebook()
        at = next(i for i, c in enumerate(nb.cells) if c.cell_type == "code" and f"{before} = " in c.source) if before else len(nb.cells)
        nb.cells.insert(at, new_cell(language, text, tag))
        nbformat.write(nb, path)


def call(tree: Path, *words: str | Path, cwd: Path | None = None) -> str:
    "What a command prints that runs with the copy's package."
    env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=cwd or tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory, take_compiled) -> Path:
    "A copy of the tree in which all recipes were followed."
    skip = shutil.ignore_patterns(".*", "__pycache__", "reports", "build", "dist", "*.egg-info", "_docs", "_proc")
    tree = Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("copy") / "rvi", ignore=skip))
    assert not any(p.is_symlink() for p in tree.rglob("*"))
    follow(tree)
    call(tree, "nbdev_export")
    take_compiled(tree / "rvi_nb")
    return tree


def test_every_recipe_is_there():
    assert list(dict.fromkeys(name for name, *_ in BLOCKS)) == RECIPES
    assert GUIDE.count("<!-- recipe") == len(BLOCKS)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != "figure"])
def test_recipe(recipe, tree, tmp_path):
    [text] = [text for name, what, _, text in BLOCKS if (name, what) == (recipe, "try")]
    (tmp_path / "attempt.py").write_text(f"import rvi_nb\nassert rvi_nb.__file__.startswith({str(tree)!r})\n{text}\n")
    printed = call(tree, sys.executable, "attempt.py", cwd=tmp_path)
    expected = {"dataset": "waves", "model": "dense", "claim": "holds in 1 of 2 cells; CONTRADICTED in 1 of 2 (MNIST)"}.get(recipe, "")
    assert expected in printed and "NaN" not in printed and "nan" not in printed


def test_recipe_of_a_figure(tree):
    [name] = {what.split("/")[-1].split(".")[0] for recipe, what, *_ in BLOCKS if recipe == "figure"}
    words = re.search(rf"rvi (reproduce {name.split('_')[0]} .*)", GUIDE)[1].split()
    call(tree, sys.executable, "-c", "from rvi_nb.cli.command import main; main()", *words)
    out = tree / "reports" / "smoke"
    assert {p.suffix for p in (out / name).iterdir()} == {".csv", ".html", ".ipynb", ".json", ".png", ".svg"}
    [claim] = json.loads((out / name / "claims.json").read_text())
    assert (claim["figure"], claim["counts"]["n"]) == (name, 2) and "RVI ends below VAD." in (out / "index.html").read_text()


def test_the_house_still_stands(tree):
    "A stranger's additions pass the tests of the map, and change no module but those whose notebooks they are in."
    call(tree, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "tests/test_map.py")
    homes = {re.search(r"nbs/(\S+)/\d+\w?_(\w+).ipynb", what).groups() for _, what, *_ in BLOCKS if what.startswith("cell") and "figures" not in what}
    changed = {p.relative_to(tree / "rvi_nb").with_suffix("").parts for p in (tree / "rvi_nb").rglob("*.py") if differs(p, ROOT / p.relative_to(tree))}
    assert changed == homes | {("_modidx",)}


def differs(one: Path, other: Path) -> bool:
    return not other.exists() or one.read_bytes() != other.read_bytes()


def walk(direction: str) -> list[str]:
    "The modules that a walk names first in each of its steps."
    steps = re.search(rf"<!-- walk {direction} -->\n((?:\d+\. .*\n)+)", GUIDE)[1]
    return [re.match(r"\d+\. `([\w.]+)`", line)[1] for line in steps.splitlines()]


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_walk_has_no_step_back(direction):
    "Down: each step is asked by one before it, and no folder is entered from below. Up: each step takes from one before it, and comes later in the house."
    known = {m.name: m for m in modules()}
    names, order = walk(direction), list(known)
    assert len(names) >= 7 and len(set(names)) == len(names) and set(names) <= set(known)
    for i, name in enumerate(names[1:], 1):
        before = names[:i]
        if direction == "down":
            assert any(name in known[b].imports for b in before), f"nobody before {name} asks for it"
            assert list(FOLDERS).index(known[name].folder) <= list(FOLDERS).index(known[before[-1]].folder)
        else:
            assert set(before) & set(known[name].imports), f"{name} takes nothing from those before it"
            assert order.index(name) > order.index(before[-1])
