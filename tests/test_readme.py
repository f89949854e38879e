"""The README is what index.ipynb says (its snippets run as a notebook in test_notebooks.py), and says what the report says; its commands, and CONTRIBUTING's, work."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from rvi_nb.claims import load_claims
from rvi_nb.reproduce import claims_table, datasets_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RVI = Path(sys.executable).with_name("rvi")
GUIDES = README + (ROOT / "CONTRIBUTING.md").read_text()


def test_readme_is_made_from_the_index():
    recipe = re.search(r"-m (nbconvert .*?) > README", (ROOT / "Makefile").read_text().replace("\\\n", ""))
    made = subprocess.run([sys.executable, "-m", *shlex.split(recipe[1])], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert made == README, "run make readme and commit"


def agree(table: str, report: Path) -> bool:
    "A table of verdicts has a row for each claim on the paper's figures, with its verdict and its counts; whether there was any."
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.sub(r"\[(fig\w\d)\]\([^)]*\)", r"\1", table).splitlines()
        if re.match(r"\| fig\w\d", line)
    ]
    claims = [c for file in sorted(report.glob("fig[!S]*/claims.json")) for c in json.loads(file.read_text())]
    assert [row[:3] for row in rows] == [[c["figure"].split("_")[0], c["text"], c["verdict"]] for c in claims]
    for row, claim in zip(rows, claims, strict=True):
        assert row[3].startswith(f"holds in {claim['counts']['holds']} of {claim['counts']['n']} cells")
        assert ("CONTRADICTED" in row[3]) == (claim["counts"]["contradicted"] > 0)
    return bool(rows)


def test_its_tables_equal_the_claims_of_the_standard_report():
    assert agree(README, ROOT / "reports/standard") and datasets_table(ROOT / "reports/standard", "vad") in README


def test_the_table_of_a_report(smoke):
    assert agree(claims_table(smoke, "x"), smoke)


@pytest.mark.parametrize("rival", ["vad", "vae"])
def test_the_table_by_datasets_has_every_cell_once(rival, smoke):
    claims = {f"{c.text} ({c.figure.split('_')[0]})": c.counts for file in smoke.glob("fig*/claims.json") for c in load_claims(file)}
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in datasets_table(smoke, rival).splitlines()]
    assert head == ["", "Toy", "MNIST"] and len(rows) >= 8
    for name, *cells in rows:
        sums = [sum(int(m[1]) for cell in cells for m in re.finditer(pattern, cell)) for pattern in (r"(\d+) of", r"of (\d+)", r"contradicted in (\d+)")]
        assert sums == [claims[name][k] for k in ("holds", "n", "contradicted")]


def test_every_file_it_points_at_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets and not [t for t in targets if "://" not in t and not (ROOT / t).exists()]


def commands(start: str) -> list[str]:
    "The commands in code blocks and in backticks of the guides that begin with `start`, each once, without remarks."
    found = re.findall(rf"(?m)(?:^|`)(?:\.venv/bin/)?({start} [^`#\n]*)", GUIDES)
    return sorted({c.strip() for c in found})


@pytest.mark.parametrize("command", commands("make"))
def test_make_knows_its_targets(command):
    made = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("command", [c for c in commands("rvi") if "figXX" not in c])
def test_rvi_knows_its_commands_and_options(command):
    words = shlex.split(command)
    known = subprocess.run([RVI, words[1], "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word in known for word in words if word.startswith("--")), known


def test_the_cluster_commands(tmp_path):
    "The commands of the section on clusters, with this machine as scheduler and worker, on one figure at the smoke profile."
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    [scheduler], [worker], [run] = commands("dask scheduler"), commands("dask worker"), [c for c in commands("rvi") if "--scheduler" in c]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{RVI.parent}{os.pathsep}{os.environ['PATH']}"}
    here = lambda command: shlex.split(command.replace("scheduler:8786", f"127.0.0.1:{port}").replace("paper", "smoke"))
    with ExitStack() as stack:
        for words in (
            [*here(scheduler), "--no-dashboard", "--host", "127.0.0.1", "--port", str(port)],
            [*here(worker), "--no-dashboard", "--local-directory", str(tmp_path)],
        ):
            process = stack.enter_context(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
        words = [*here(run), "fig07", "--out", str(tmp_path / "out")]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/fig07_progression/fig07_progression.png").exists()
