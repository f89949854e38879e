"""The map: folders in their order with the modules in them, and what each folder takes from those above it, drawn from the imports."""

import textwrap
from dataclasses import dataclass
from html import escape

from modules import FOLDERS, Module, modules

COLUMNS = 5  # modules side by side
WIDTH, HEIGHT, GAP = 138, 40, 10  # of a module's box, and between boxes
SIDE = 170  # room for the name of a folder
BRANCH = 17  # between arrows that lead to the same folder
LABEL, LANE = 76, 18  # room for the names of arrows, and between the lines that come down from folders
BETWEEN = 22  # two folders
FULL = 350  # lines of code: no module has more
RIGHT = SIDE + COLUMNS * (WIDTH + GAP) + GAP  # edge of the folders' boxes


@dataclass(frozen=True)
class Floor:
    "A folder on the map."

    name: str
    modules: list[Module]
    takes: dict[str, list[str]]  # from each folder above: "module: names" of what is imported
    top: float

    @property
    def height(self) -> float:
        rows = -(-len(self.modules) // COLUMNS)
        return max(rows * (HEIGHT + GAP) + GAP, BRANCH * (len(self.takes) + 1), 62)


def taken(rooms: list[Module]) -> dict[str, list[str]]:
    "What the modules of a folder import from each other folder, in the order of the folders."
    found: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for module in rooms:
            words = [f"{module.name} takes {', '.join(names)} from {source}" for source, names in module.imports.items() if source.startswith(f"{folder}.")]
            if folder != module.folder and words:
                found.setdefault(folder, []).extend(words)
    return found


def floors(rooms: list[Module]) -> list[Floor]:
    "The folders that have modules, one below the other."
    made: list[Floor] = []
    for name in FOLDERS:
        inside = [m for m in rooms if m.folder == name]
        if inside:
            made.append(Floor(name, inside, taken(inside), made[-1].top + made[-1].height + BETWEEN if made else 0))
    return made


def room(module: Module, x: float, y: float) -> str:
    "A module: its name, its lines of code, and a bar as long as they are many."
    short, lines = module.name.split(".")[1], module.n_lines
    return (
        f'<a href="{module.notebook.stem}.html"><title>{escape(module.question)}</title><rect class="room" x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
        f'<rect class="bar" x="{x:.0f}" y="{y + HEIGHT - 5:.0f}" width="{WIDTH * min(1, lines / FULL):.0f}" height="5"/>'
        f'<text class="name" x="{x + 8:.0f}" y="{y + 22:.0f}">{short}</text><text class="size" x="{x + WIDTH - 8:.0f}" y="{y + 22:.0f}">{lines}</text></a>'
    )


def storey(floor: Floor) -> str:
    "A folder with its modules."
    places = [(SIDE + (i % COLUMNS) * (WIDTH + GAP), floor.top + GAP + i // COLUMNS * (HEIGHT + GAP)) for i in range(len(floor.modules))]
    total = sum(m.n_lines for m in floor.modules)
    lines = "".join(f'<tspan x="12" dy="14">{escape(line)}</tspan>' for line in textwrap.wrap(FOLDERS[floor.name], 25))
    return (
        f'<rect class="folder" x="0" y="{floor.top:.0f}" width="{RIGHT}" height="{floor.height:.0f}" rx="8"/><text class="folder" x="12" y="{floor.top + 24:.0f}">{floor.name}'
        f'<tspan class="size" dx="8">{total:,} lines</tspan></text><text class="about" x="12" y="{floor.top + 26:.0f}">{lines}</text>'
        + "".join(room(m, x, y) for m, (x, y) in zip(floor.modules, places, strict=True))
    )


def door(user: Floor, source: Floor) -> float:
    "The height at which an arrow from one folder comes to another."
    return user.top + BRANCH * (1 + list(user.takes).index(source.name))


def arrows(all_floors: list[Floor]) -> str:
    "A line comes down from each folder, and an arrow branches off to every folder that takes something from it."
    made = []
    for i, source in enumerate(all_floors):
        x, begin = RIGHT + LABEL + LANE * (len(all_floors) - 1 - i), f"M{RIGHT} {source.top + source.height - 8:.0f} H"
        for user in (f for f in all_floors if source.name in f.takes):
            y, words = door(user, source), user.takes[source.name]
            made.append(
                f'<g class="from-{source.name}"><title>{escape(chr(10).join(words))}</title><path d="{begin}{x} V{y:.0f} H{RIGHT + 2}" marker-end="url(#head-{source.name})"/>'
                f'<text x="{RIGHT + 13}" y="{y - 3:.0f}">{source.name} {len(words)}</text></g>'
            )
            begin = f"M{x} {y:.0f} H"
    return "".join(made)


def drawing(rooms: list[Module]) -> str:
    "The map as an SVG."
    all_floors = floors(rooms)
    width, height = RIGHT + LABEL + LANE * len(all_floors), all_floors[-1].top + all_floors[-1].height
    heads = "".join(
        f'<marker id="head-{f.name}" class="from-{f.name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker>'
        for f in all_floors
    )
    return (
        f'<svg class="map" viewBox="-2 -2 {width + 4} {height + 4:.0f}" role="img" aria-label="The folders, their modules, and what each folder takes from those above it">'
        f"<defs>{heads}</defs>{''.join(map(storey, all_floors))}{arrows(all_floors)}</svg>"
    )


def page() -> str:
    rooms = modules()
    chapter = {m.name: f"[{m.name}]({m.notebook.stem}.md)" for m in rooms}
    table = [
        f"| {chapter[m.name]} | {m.question.replace('|', '&#124;')} | {m.n_lines} | {', '.join(chapter[n] for n in m.imports) or 'nothing'} |" for m in rooms
    ]
    return "\n".join(
        [
            "---\nhide: [toc]\n---\n# Map\n",
            "Each folder is a part of the package, and data flows downwards: a folder takes only from folders above it, and a module only from those before it. An arrow",
            "comes from the folder it is named after; its number is that of pairs of modules. Bars and numbers in a module are its lines of code. Each module leads to its chapter.\n",
            f'<div class="wide">{drawing(rooms)}</div>',
            "\n| module | the question it answers | lines | imports from |\n|---|---|---|---|",
            *table,
        ]
    )
