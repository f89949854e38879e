"""The README is what index.ipynb says (its snippets run as a notebook in test_notebooks.py), and says what the report says."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rvi_nb.reproduce import claims_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_readme_is_made_from_the_index():
    recipe = re.search(r"-m (nbconvert .*?) > README", (ROOT / "Makefile").read_text().replace("\\\n", ""))
    made = subprocess.run([sys.executable, "-m", *shlex.split(recipe[1])], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert made == README, "run make readme and commit"


def agree(table: str, report: Path) -> bool:
    "A table of verdicts has a row for each claim on the paper's figures, with its verdict and its counts; whether there was any."
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if re.match(r"\| fig\w\d", line)]
    claims = [c for file in sorted(report.glob("fig[!S]*/claims.json")) for c in json.loads(file.read_text())]
    assert [row[:3] for row in rows] == [[c["figure"].split("_")[0], c["text"], c["verdict"]] for c in claims]
    for row, claim in zip(rows, claims, strict=True):
        assert row[3].startswith(f"holds in {claim['counts']['holds']} of {claim['counts']['n']} cells")
        assert ("CONTRADICTED" in row[3]) == (claim["counts"]["contradicted"] > 0)
    return bool(rows)


def test_its_table_equals_the_claims_of_the_standard_report():
    agree(README, ROOT / "reports/standard")  # no report, no table


def test_the_table_of_a_report(smoke):
    assert agree(claims_table(smoke), smoke)


def test_every_file_it_points_at_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets and not [t for t in targets if "://" not in t and not (ROOT / t).exists()]
