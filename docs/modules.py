"""What the modules of the package say about themselves, read from their source: nothing is imported."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "rvi_nb"
FOLDERS = {  # a folder imports only from those before it
    "base": "random streams, files, threads",
    "data": "what a dataset is, and which there are",
    "model": "the paper's method",
    "impute": "estimators for tables with holes",
    "runs": "a training, its result, the store",
    "report": "claims, pictures, the page",
    "studies": "what single figures need",
    "cli": "the command line",
}
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    "A module and the notebook that defines it."

    notebook: Path

    @cached_property
    def name(self) -> str:
        return re.search(r"#\| default_exp ([\w.]+)", self.notebook.read_text())[1]

    @property
    def folder(self) -> str:
        return self.name.split(".")[0]

    @property
    def file(self) -> Path:
        return ROOT / PACKAGE / f"{self.name.replace('.', '/')}.py"

    @property
    def anchor(self) -> str:
        "The name of its section on the page of all signatures."
        return f"{PACKAGE}_{self.name.replace('.', '_')}"

    @cached_property
    def source(self) -> str:
        return self.file.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def n_lines(self) -> int:
        "Lines of code: neither blank nor comments nor descriptions."
        owners = [n for n in ast.walk(self.tree) if isinstance(n, ast.Module | ast.ClassDef | Function) and ast.get_docstring(n)]
        described = {i for n in owners for i in range(n.body[0].lineno, n.body[0].end_lineno + 1) if n.body[0].lineno > getattr(n, "lineno", 0)}
        tokens = tokenize.generate_tokens(io.StringIO(self.source).readline)
        return len({i for t in tokens if t.type not in SILENT for i in range(t.start[0], t.end[0] + 1)} - described)

    @cached_property
    def question(self) -> str:
        return ast.get_docstring(self.tree)

    @cached_property
    def imports(self) -> dict[str, list[str]]:
        "What it takes from which module of the package, also inside functions."
        taken: dict[str, list[str]] = {}
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            above = [PACKAGE, *self.name.split(".")][: -node.level] if node.level else []
            path = [*above, *(node.module.split(".") if node.module else [])]
            if path[0] != PACKAGE:
                continue
            for alias in node.names:
                module = next((m for m in (path, [*path, alias.name]) if (ROOT.joinpath(*m[:-1]) / f"{m[-1]}.py").exists()), None)
                if module and module[1:]:
                    taken[".".join(module[1:])] = sorted({*taken.get(".".join(module[1:]), []), alias.name})
        return taken


def modules() -> list[Module]:
    "The modules in reading order: folder by folder, and within a folder in the order of the notebooks' numbers."
    paths = [path for folder in FOLDERS for path in sorted(ROOT.glob(f"nbs/{folder}/*.ipynb"))]
    return [Module(path) for path in paths if "#| default_exp" in path.read_text()]


def head(source: str, node: Function) -> str:
    "A signature as it stands in the source, with the comments beside the parameters."
    lines = source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
    if not lines:  # the whole function stands on one line
        lines = [source.splitlines()[node.lineno - 1][: node.body[0].col_offset]]
    text = "\n".join(line[node.col_offset :] for line in lines).rstrip()
    return re.sub(r":(\s*#.*)?$", r"\1", text)


def described(source: str, node: Function) -> str:
    text = ast.get_docstring(node)
    return f"{fenced(head(source, node))}\n{text or ''}\n"


def fenced(code: str, classes: str = ".python") -> str:
    return f"`````{{{classes}}}\n{code}\n`````\n"


def methods(module: Module, node: ast.ClassDef) -> Iterator[Function]:
    "The public methods of a class, also those of the private classes it is made from."
    bases = {n.name: n for n in module.tree.body if isinstance(n, ast.ClassDef) and n.name.startswith("_")}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in bases:
            yield from methods(module, bases[base.id])
    yield from (n for n in node.body if isinstance(n, Function) and (not n.name.startswith("_") or n.name == "__init__"))


def describe_class(module: Module, node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(b) for b in node.bases if not ast.unparse(b).startswith("_"))
    lines = module.source.splitlines()
    fields = [line for n in node.body if isinstance(n, ast.AnnAssign) for line in lines[n.lineno - 1 : n.end_lineno]]
    first = f"class {node.name}({bases})" if bases else f"class {node.name}"
    last = {m.name: m for m in methods(module, node)}  # what a class defines again replaces its base's
    return "\n".join(
        [
            fenced("\n".join([first + ":" * bool(fields), *fields])),
            ast.get_docstring(node) or "",
            *(f'\n<div class="method" markdown>\n\n{described(module.source, m)}\n</div>' for m in last.values()),
        ]
    )


def public(module: Module) -> Iterator[tuple[str, str]]:
    "Each public name of a module with its description in Markdown."
    names = next(ast.literal_eval(n.value) for n in module.tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    for node in module.tree.body:
        if isinstance(node, Function) and node.name in names:
            yield node.name, described(module.source, node)
        elif isinstance(node, ast.ClassDef) and node.name in names:
            yield node.name, describe_class(module, node)


def api() -> str:
    "The page of all signatures."
    parts = ["# API", "Every public function and class, with what its source says about each parameter."]
    for module in modules():
        parts += [
            f"## {PACKAGE}.{module.name} {{ #{module.anchor} }}",
            f"{module.question} Chapter: [{module.notebook.stem}]({module.notebook.stem}.md).",
        ]
        for name, text in public(module):
            parts += [f"### {name} {{ #{module.name}.{name} }}", text]
    return "\n\n".join(parts)
