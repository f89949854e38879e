"""The house: data flows one way through the folders and the notebooks in them, modules stay small, and the map shows it."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.append(str(Path(__file__).parent.parent / "docs"))
from module_map import FULL, drawing, floors
from modules import FOLDERS, ROOT, modules

MODULES = modules()
ORDER = [m.name for m in MODULES]


@pytest.mark.parametrize("module", MODULES, ids=ORDER)
def test_a_notebook_imports_only_from_notebooks_before_it(module):
    below = set(module.imports) & set(ORDER[ORDER.index(module.name) :])
    assert not below, f"{module.name} ({module.notebook.name}) imports from {sorted(below)}, which the reader meets later"
    assert set(module.imports) <= set(ORDER)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_imports_from_a_folder_below(folder):
    order = list(FOLDERS)
    below = {source for m in MODULES if m.folder == folder for source in m.imports if order.index(source.split(".")[0]) > order.index(folder)}
    assert not below, f"{folder} imports from {sorted(below)}"


def test_every_module_has_a_notebook_in_the_folder_of_its_name():
    files = ROOT.glob("rvi_nb/**/*.py")
    assert {m.file for m in MODULES} == {p for p in files if p.stem not in ("__init__", "_modidx")}
    assert all(m.notebook.parent.name == m.folder and re.fullmatch(rf"\d\d[a-z]?_{m.name.split('.')[1]}", m.notebook.stem) for m in MODULES)


def test_every_notebook_is_in_a_folder_of_the_house():
    assert {p.parent.name for p in ROOT.glob("nbs/*/*.ipynb")} == {*FOLDERS, "figures"} and sorted(p.name for p in ROOT.glob("nbs/*.ipynb")) == [
        "index.ipynb",
        "tour.ipynb",
    ]


def test_modules_stay_small():
    large = {m.name: m.n_lines for m in MODULES if m.n_lines > FULL}
    assert not large, f"more than {FULL} lines of code: {large}"


def test_lines_of_code(tmp_path):
    "Neither blank lines nor comments nor descriptions count; a string in several lines does."
    module = modules()[0]
    source = '"""Why?"""\n\n# a remark\ndef f(x):  # why\n    "What it does,\\\n    in two lines."\n    return """a\n    b"""\n\n\ndef g(): "All."\n'
    module.__dict__["source"] = source
    assert module.n_lines == 4


def test_imports_inside_functions_count():
    assert "report.reproduce" in MODULES[ORDER.index("cli.command")].imports


def test_the_map_has_every_module_in_its_folder_and_every_arrow_downwards():
    svg = ElementTree.fromstring(drawing(MODULES))
    assert [e.text for e in svg.iter("text") if e.get("class") == "name"] == [name.split(".")[1] for name in ORDER]
    assert [e.text for e in svg.iter("text") if e.get("class") == "folder"] == list(FOLDERS)
    assert [int(e.text) for e in svg.iter("text") if e.get("class") == "size"] == [m.n_lines for m in MODULES]
    pairs = {(source.split(".")[0], m.folder) for m in MODULES for source in m.imports if source.split(".")[0] != m.folder}
    arrows = [e for e in svg.iter("g") if e.get("class", "").startswith("from-")]
    assert len(arrows) == len(pairs) > 15
    for arrow in arrows:
        heights = [float(v) for v in re.findall(r"(?:M\S+ |V)([\d.]+)", arrow.find("path").get("d"))]
        assert heights == sorted(heights), arrow.find("title").text
    tops = [f.top for f in floors(MODULES)]
    assert tops == sorted(tops)
