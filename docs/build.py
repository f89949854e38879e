"""Build the book: notebooks become Markdown pages as they are, unexecuted; mkdocs makes a site of them that needs no network.

python docs/build.py [SITE PAGES]    SITE is _docs by default; PAGES, the Markdown on the way, _proc
"""

import base64
import hashlib
import logging
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat

os.environ["NO_MKDOCS_2_WARNING"] = "1"
from mkdocs.commands.build import build as build_site
from mkdocs.config import load_config

from rvi_nb.report.best import COMMITTED, best_reports

sys.path.insert(0, str(Path(__file__).parent))
import module_map
from modules import FOLDERS, PACKAGE, ROOT, api, fenced, modules

REPORTS = ROOT / "reports"
PARTS = {
    "A tour": "nbs/tour.ipynb",
    **{f"The library: {folder}": f"nbs/{folder}/[0-9]*.ipynb" for folder in FOLDERS},
    "The figures": "nbs/figures/fig*.ipynb",
    "Measurements": "bench/*.ipynb",
}
GUIDES = ["CONTRIBUTING.md", "CHANGELOG.md"]


def outputs(cell: dict) -> list[dict]:
    "What a cell printed and showed. A figure that it returned and that was also shown at its end comes once."
    returned = any(o.output_type == "execute_result" and "image/png" in o.data for o in cell.outputs)
    return [o for o in cell.outputs if not (returned and o.output_type == "display_data" and "image/png" in o.data)]


class Page:
    "A page of the book under construction."

    def __init__(self, notebook: Path, pages: Path):
        self.notebook, self.pages = notebook, pages
        self.report = REPORTS / best_reports(REPORTS).get(notebook.stem, COMMITTED[0])  # the largest in which a figure is complete
        self.results = self.report / notebook.stem  # of a figure, if the report has it
        self.executed = self.results / notebook.name

    def picture(self, content: bytes, suffix: str) -> str:
        path = self.pages / "pictures" / f"{self.notebook.stem}-{hashlib.sha256(content).hexdigest()[:8]}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return f"![output](pictures/{path.name}){{ .output }}\n"

    def link(self, match: re.Match) -> str:
        "A link to a notebook leads to its page; a file it points at comes along into the book."
        text, target, anchor = match[1], match[2], (match[3] or "").lower()
        if re.match(r"[a-z]+:", target):
            return match[0]
        if target.endswith(".ipynb"):
            return f"{text}({Path(target).stem}.md{anchor})"
        for folder in (ROOT, self.notebook.parent):
            path = (folder / target).resolve()
            if target and path.is_file() and path.name not in GUIDES:
                goal = self.pages / path.relative_to(ROOT)
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, goal)
                target = str(path.relative_to(ROOT))
        return f"{text}({target}{anchor})"

    def prose(self, text: str) -> str:
        "Markdown as notebooks have it, in the stricter form of mkdocs: blank lines around lists, tables and formulas."
        text = re.sub(r"(!?\[[^\]]*\])\(([^)#\s]*)(#[^)\s]*)?\)", self.link, text)
        text = re.sub(r"\s*(\$\$.+?\$\$)\s*", r"\n\n\1\n\n", text, flags=re.DOTALL)
        return re.sub(r"(?m)^(?!(?:[-*>#]|\d+\.) |\||\s)(.+)\n(?=(?:[-*]|\d+\.) |\|)", r"\1\n\n", text) + "\n"

    def code(self, source: str) -> str:
        "A cell of code without its directives to nbdev."
        directives = re.findall(r"(?m)^#\| *(\w+)", source)
        body = re.sub(r"(?m)^#\|.*\n?", "", source).strip("\n")
        if not body or "hide" in directives:
            return ""
        return fenced(body, ".python .export" if "export" in directives else ".python")

    def output(self, output: dict) -> str:
        if output["output_type"] == "stream":
            return fenced(output["text"].rstrip("\n"), ".text .output") if output["name"] == "stdout" else ""
        data = output.get("data", {"text/plain": "\n".join(output.get("traceback", []))})
        if "image/svg+xml" in data:
            return self.picture(data["image/svg+xml"].encode(), "svg")
        if "image/png" in data:
            return self.picture(base64.b64decode(data["image/png"]), "png")
        if "text/markdown" in data:
            return self.prose(data["text/markdown"])
        if "text/html" in data:
            table = re.sub(r"<style.*?</style>|</?div>", "", data["text/html"], flags=re.DOTALL)
            return f'<div class="output">{re.sub(r"<table[^>]*>", "<table>", table)}</div>\n'
        return fenced(re.sub(r"\x1b\[[0-9;]*m", "", data["text/plain"]), ".text .output")

    def write(self) -> str:
        "Write the page, and give its title."
        parts = []
        for cell in nbformat.read(self.executed if self.executed.exists() else self.notebook, as_version=4).cells:
            if cell.cell_type == "markdown":
                parts.append(self.prose(cell.source))
            elif text := self.code(cell.source):
                shown = [] if "hide-input" in cell.metadata.get("tags", []) else [text]
                parts += [*shown, *map(self.output, outputs(cell))]
        title, rest = re.fullmatch(r"\s*(# .+?\n)(.*)", "\n".join(parts), flags=re.DOTALL).groups()
        (self.pages / f"{self.notebook.stem}.md").write_text(f"{title}\n{self.origin()}\n{rest}")
        return title.strip("# \n")

    def origin(self) -> str:
        "Where the page comes from, in small type under its title, and the picture of a figure whose notebook has no outputs."
        if self.notebook.stem == "index":
            return ""
        made = {m.notebook: m for m in modules()}.get(self.notebook)
        module = f" \u00b7 defines [`{PACKAGE}.{made.name}`](api.md#{made.anchor}) in the cells with a bar" if made else ""
        report = (
            f" \u00b7 [in the reproduction]({self.report.relative_to(ROOT)}/index.html#{self.notebook.stem}), {self.report.name} profile"
            if self.results.exists()
            else ""
        )
        picture = self.results / f"{self.notebook.stem}.png"
        shown = self.picture(picture.read_bytes(), "png") if picture.exists() and not self.executed.exists() else ""
        return f"`{self.notebook.relative_to(ROOT)}`{module}{report}\n{{ .origin }}\n\n{shown}"


def copy_reports(pages: Path) -> list:
    "Put the committed reports into the book as they are, without stores and archives; the places they have in the contents, the largest first."
    there = [REPORTS / name for name in COMMITTED[::-1] if (REPORTS / name / "index.html").exists()]
    for report in there:
        shutil.copytree(report, pages / report.relative_to(ROOT), ignore=shutil.ignore_patterns("runs.*", "shards"), dirs_exist_ok=True)
    return [{f"The reproduction, {report.name} profile": f"{report.relative_to(ROOT)}/index.html"} for report in there]


def write_pages(pages: Path) -> list:
    "Write all pages in Markdown, and give the contents of the book."
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(Path(__file__).parent / "assets", pages / "assets")
    Page(ROOT / "nbs/index.ipynb", pages).write()
    contents = [{"Home": "index.md"}, *copy_reports(pages), {"Map": "map.md"}]
    for part, pattern in PARTS.items():
        chapters = [Page(path, pages) for path in sorted(ROOT.glob(pattern))]
        contents += [{part: [{chapter.write(): f"{chapter.notebook.stem}.md"} for chapter in chapters]}] if chapters else []
    (pages / "map.md").write_text(module_map.page())
    (pages / "api.md").write_text(api())
    for name in GUIDES:
        shutil.copy(ROOT / name, pages)
    return [*contents, {"API": "api.md"}, {"Carrying on": GUIDES}]


def build(site: Path, pages: Path) -> None:
    "Build the book in `site`, by way of Markdown in `pages`."
    contents = write_pages(pages)
    config = load_config(str(Path(__file__).with_name("mkdocs.yml")), docs_dir=str(pages), site_dir=str(site), nav=contents)
    build_site(config)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    site, pages = map(Path, sys.argv[1:]) if sys.argv[1:] else (ROOT / "_docs", ROOT / "_proc")
    build(site, pages)
    print(site / "index.html")
