"""The README is what index.ipynb says (its snippets run as a notebook in test_notebooks.py), and says what the reports say; its commands, and CONTRIBUTING's, work."""

import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rvi_nb
from rvi_nb.report.best import best_claims, best_outcomes, best_reports, draw_best, resting_on
from rvi_nb.report.page import is_earlier, read_manifest, share

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "reports"
README = (ROOT / "README.md").read_text()
RVI = Path(sys.executable).with_name("rvi")
GUIDES = README + (ROOT / "CONTRIBUTING.md").read_text()


def test_readme_is_made_from_the_index():
    recipe = re.search(r"-m (nbconvert .*?) > README", (ROOT / "Makefile").read_text().replace("\\\n", ""))
    made = subprocess.run([sys.executable, "-m", *shlex.split(recipe[1])], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert made == README, "run make readme and commit"


def test_its_verdicts_are_those_of_the_largest_complete_report_of_each_figure():
    best = {figure: found for figure, found in best_claims(REPORTS).items() if figure[3] != "S"}
    found = [c.verdict for _, claims in best.values() for c in claims]
    assert found
    words = [
        re.escape(resting_on({figure: profile for figure, (profile, _) in best.items()})),
        rf"Of {len(found)} claims {found.count('reproduced')} are \*reproduced\*",
        *(rf"{found.count(v)} \*{v}\*" for v in ("partly", "contradicted", "inconclusive")),
        re.escape(share(*read_manifest(REPORTS / "paper")["progress"]["fig01_hyperparameters"])),
    ]
    assert re.search(".*".join(words), README, re.DOTALL)
    entries = {figure: read_manifest(REPORTS / profile)["figures"][figure] for figure, profile in best_reports(REPORTS).items()}
    earlier = ", ".join(name.split("_")[0] for name, entry in entries.items() if is_earlier(entry))
    assert ("previous version of the algorithm" in README) == bool(earlier) and earlier in README


def test_what_it_says_of_a_figure_rests_on_the_report_that_counts():
    best = best_reports(REPORTS)
    linked = re.findall(r"\]\(reports/(\w+)/(fig\w+)/", README)
    assert len(linked) > 6 and linked == [(best[figure], figure) for _, figure in linked]


def test_the_picture_at_its_top_is_up_to_date():
    "Everything that comes before the first section is text and one picture, which is drawn from the claims of the reports that count."
    top, picture = README.split("\n## ")[0], REPORTS / "verdicts.svg"
    assert re.findall(r"!\[[^\]]+\]\(([^)]+)\)", top) == ["reports/verdicts.svg"]
    assert picture.read_text() == draw_best(REPORTS), "execute nbs/index.ipynb and commit"
    found = {f.get("{http://www.w3.org/1999/xlink}href") for f in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}a")}
    assert found == {f"{r.profile}/index.html#{r.id}-{r.dataset}" for r in best_outcomes(REPORTS).itertuples()}


def test_it_is_short_and_has_no_long_table():
    assert len(README.encode()) < 16_000 and not re.search(r"(?m)(^\|.*\n){8}", README)


def test_the_paper_is_cited():
    paper = "2110.13422"
    assert README.count(paper) >= 2 and paper in (ROOT / "CITATION.cff").read_text() and "Zadeh" in README


def test_a_convolutional_decoder_in_ten_lines():
    [example] = [block for block in re.findall(r"```[a-z]*\n(.*?)```", README, re.DOTALL) if "ConvTranspose2d" in block]
    code = [line for line in example.splitlines() if line.strip() and not line.startswith(("from", "import", "print"))]
    assert len(code) <= 10 and "Bernoulli()" in example and "stack(" in example


def test_names_are_imported_from_the_top():
    imported = {name.strip() for names in re.findall(r"(?m)^from rvi_nb import (.*)$", README) for name in names.split(",")}
    assert {"RelayImputer", "fit", "stack", "Bernoulli"} <= imported <= set(rvi_nb.__all__) and not re.search(r"(?m)^from rvi_nb\.", README)
    assert "variance=" not in README  # likelihoods are objects


def test_every_file_it_points_at_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", README)  # of pictures too
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
