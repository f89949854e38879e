"""The map: the modules in layers, and the way data takes through them, drawn from the imports."""

import random
import textwrap
from html import escape
from itertools import combinations, pairwise

from modules import Module, modules

WIDTH, HEIGHT = 216, 96  # of a box
GAP_X, GAP_Y = 26, 46
BEND = 12  # the width that a passing line takes in a layer


def reduced(uses: dict[str, set[str]]) -> dict[str, set[str]]:
    "Imports without those that a longer way already shows."

    def behind(name: str) -> set[str]:
        return uses[name].union(*(behind(n) for n in uses[name]))

    return {name: {d for d in direct if not any(d in behind(other) for other in direct - {d})} for name, direct in uses.items()}


def layers(uses: dict[str, set[str]]) -> dict[str, int]:
    "In which layer a module stands: as low as those below it allow, so that it is near to what uses it."

    def below(name: str) -> int:
        return 1 + max((below(n) for n in uses if name in uses[n]), default=-1)

    deepest = max(map(below, uses))
    return {name: deepest - below(name) for name in uses}


def routes(edges: dict[str, set[str]], depth: dict[str, int]) -> list[list[str | tuple[str, str, int]]]:
    "Each edge as the places it passes, one in every layer on its way."
    return [[start, *((start, end, layer) for layer in range(depth[start] + 1, depth[end])), end] for end, starts in edges.items() for start in sorted(starts)]


def places(paths: list, depth: dict[str, int]) -> dict:
    "Where everything stands: the best of several attempts, which is the one with the fewest crossings and then the shortest lines."
    rows: list[list] = [[] for _ in range(max(depth.values()) + 1)]
    for name, layer in depth.items():
        rows[layer].append(name)
    for path in paths:
        for bend in path[1:-1]:
            rows[bend[2]].append(bend)
    pairs = [pair for path in paths for pair in pairwise(path)]
    level = {place: layer for layer, row in enumerate(rows) for place in row}

    def cost(x: dict) -> tuple[int, float]:
        crossed = [(a, c) for (a, b), (c, d) in combinations(pairs, 2) if level[a] == level[c] and (x[a] - x[c]) * (x[b] - x[d]) < 0]
        return len(crossed), sum(abs(x[a] - x[b]) for a, b in pairs)

    x = min((settled(rows, pairs, random.Random(seed)) for seed in range(20)), key=cost)
    return {place: (x[place], layer * (HEIGHT + GAP_Y)) for place, layer in level.items()}


def settled(rows: list[list], pairs: list[tuple], start: random.Random) -> dict:
    "From a random order, each layer is again and again sorted and moved towards the mean position of its neighbours."
    rows = [start.sample(row, len(row)) for row in rows]
    near = {p: [b if a == p else a for a, b in pairs if p in (a, b)] for row in rows for p in row}
    x = {p: float(i * WIDTH) for row in rows for i, p in enumerate(row)}
    for _ in range(60):
        for row in rows:
            goal = {p: sum(x[n] for n in near[p] or [p]) / max(1, len(near[p])) for p in row}
            row.sort(key=goal.__getitem__)
            for left, place in zip([None, *row], row, strict=False):
                x[place] = goal[place] if left is None else max(goal[place], x[left] + apart(left, place))
            back = sum(x[p] - goal[p] for p in row) / len(row)
            x |= {p: x[p] - back for p in row}
    return x


def apart(*places: str | tuple) -> float:
    "The least distance of two neighbours, middle to middle."
    return GAP_X + sum(WIDTH if isinstance(p, str) else BEND for p in places) / 2


def box(module: Module, x: float, y: float) -> str:
    lines = textwrap.wrap(module.question, 34)
    text = "".join(f'<tspan x="{x:.0f}" dy="15">{escape(line)}</tspan>' for line in lines[:4])
    return (
        f'<a href="{module.notebook.stem}.html"><rect x="{x - WIDTH / 2:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text class="name" x="{x:.0f}" y="{y + 21:.0f}">{module.name}</text><text x="{x:.0f}" y="{y + 24:.0f}">{text}</text></a>'
    )


def line(path: list, at: dict, taken: list[str]) -> str:
    "A smooth line from the foot of one box to the head of another."
    x, y = at[path[0]]
    d, y = f"M{x:.0f} {y + HEIGHT:.0f}", y + HEIGHT
    for place in path[1:]:
        nx, ny = at[place]
        d += f" C{x:.0f} {y + GAP_Y * 0.6:.0f} {nx:.0f} {ny - GAP_Y * 0.6:.0f} {nx:.0f} {ny:.0f}"
        x, y = nx, ny
        if not isinstance(place, str):
            d, y = d + f" V{ny + HEIGHT:.0f}", ny + HEIGHT
    return f'<path d="{d}" marker-end="url(#head)"><title>{path[-1]} takes {escape(", ".join(taken))} from {path[0]}</title></path>'


def drawing(rooms: list[Module]) -> str:
    uses = {m.name: set(m.imports) for m in rooms}
    depth, edges = layers(uses), reduced(uses)
    paths = routes(edges, depth)
    at = places(paths, depth)
    left, right = min(x for x, _ in at.values()) - WIDTH / 2 - 4, max(x for x, _ in at.values()) + WIDTH / 2 + 4
    bottom = max(y for _, y in at.values()) + HEIGHT
    by_name = {m.name: m for m in rooms}
    return "".join(
        [
            f'<svg class="map" viewBox="{left:.0f} -4 {right - left:.0f} {bottom + 8:.0f}" role="img" aria-label="The modules and what they import">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            *(line(path, at, by_name[path[-1]].imports[path[0]]) for path in paths),
            *(box(m, *at[m.name]) for m in rooms),
            "</svg>",
        ]
    )


def page() -> str:
    rooms = modules()
    chapter = {m.name: f"[{m.name}]({m.notebook.stem}.md)" for m in rooms}
    table = [f"| {chapter[m.name]} | {m.question.replace('|', '&#124;')} | {', '.join(chapter[n] for n in m.imports) or 'nothing'} |" for m in rooms]
    return "\n".join(
        [
            "---\nhide: [toc]\n---\n# Map\n",
            "Data flows downwards: a module imports only from those above it. An arrow says that the lower module uses the upper one;",
            "arrows that a longer way already shows are left out (the table has them all). Each box leads to its chapter.\n",
            drawing(rooms),
            "\n| module | the question it answers | imports from |\n|---|---|---|",
            *table,
        ]
    )
