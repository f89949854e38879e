"""Data flows one way: a module imports only from those whose notebook comes earlier."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "docs"))
from module_map import drawing
from modules import modules

MODULES = modules()
ORDER = [m.name for m in MODULES]


@pytest.mark.parametrize("module", MODULES, ids=ORDER)
def test_imports_come_from_above(module):
    below = set(module.imports) & set(ORDER[ORDER.index(module.name) :])
    assert not below, f"{module.name} ({module.notebook.name}) imports from {sorted(below)}, which the reader meets later"
    assert set(module.imports) <= set(ORDER)


def test_every_module_has_a_notebook():
    files = {p.stem for p in Path(__file__).parent.parent.glob("rvi_nb/*.py")} - {"__init__", "_modidx"}
    assert set(ORDER) == files


def test_imports_inside_functions_count():
    assert "reproduce" in MODULES[ORDER.index("cli")].imports


def test_map_draws_every_module():
    svg = drawing(MODULES)
    assert all(f">{name}</text>" in svg for name in ORDER)
