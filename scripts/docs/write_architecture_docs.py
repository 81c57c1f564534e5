"""Write what docs/architecture.md takes from the code: the table of the rooms, their picture in
docs/images/rooms.svg, and that of the commands and their commit in docs/images/commit.svg.

The picture has a floor for each room, from the ground up. A line goes down from each room, with a
dot on the floor of each room that it imports: small up to 9 import statements, large from 50.
tests/test_docs.py fails where it is not up to date.
"""

from __future__ import annotations

import ast
import html
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shardctl"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
COMMITS = ROOT / "docs" / "images" / "commit.svg"

COMMANDS = {
    "convert": ("convert", "finish", "snapshot"),
    "repair": ("repair --drop-lost",),
    "rewrite": ("compact", "prune"),
    "write": ("shardctl.write",),
}
"""What commits, by the folder of making/ that has it."""

ROOMS = ("errors", "system", "format", "images", "sources", "transforms", "loader", "inspection")
ROOMS += ("making", "interop", "benchmark", "cli")
"""From the ground up. import-linter checks that no room imports one above it (pyproject.toml)."""

FLOOR, WIDTH, LEFT = 46, 250, 16
"""Pixels: the height of a floor, the width of a room, and the space at its left."""

LANE = 13
"""Pixels between two arrows that run beside each other."""


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")
    COMMITS.write_text(picture_of_commits(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page(text: str) -> str:
    """Return the page with the table of rooms as it is now."""
    start, end = (
        "<!-- rooms: written by scripts/docs/write_architecture_docs.py -->",
        "<!-- end of rooms -->",
    )
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n{rooms_table()}\n{end}{after}"


def rooms_table() -> str:
    rows = ["| room | what is in it | folders |", "| --- | --- | --- |"]
    for room in reversed(ROOMS):
        folders = ", ".join(f"`{name}`" for name in folders_of(room)) or "-"
        rows.append(
            f"| [`{room}`](../shardctl/{room if room != 'errors' else 'errors.py'}) | "
            f"{first_sentence(room)} | {folders} |"
        )
    return "\n".join(rows)


def first_sentence(room: str) -> str:
    """Return what a room says of itself in its first paragraph."""
    path = PACKAGE / f"{room}.py"
    path = path if path.exists() else PACKAGE / room / "__init__.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def folders_of(room: str) -> list[str]:
    """Return the folders of a room."""
    folders = sorted(path.parent for path in (PACKAGE / room).glob("*/__init__.py"))
    return [path.name for path in folders]


def imports() -> dict[str, Counter[str]]:
    """Return how many import statements of each room name each other room, also those within
    functions."""
    found: dict[str, Counter[str]] = {room: Counter() for room in ROOMS}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if room in found and isinstance(node, ast.ImportFrom) and node.module is not None:
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                others = {name.split(".")[1] for name in names if name.startswith("shardctl.")}
                found[room].update(others & set(ROOMS) - {room})
    return found


def picture() -> str:
    """Return the rooms as SVG: one floor each, and for every room a line with an arrow to each room
    that it imports."""
    found, height = imports(), len(ROOMS) * FLOOR + 20
    floor_of = {room: height - 10 - (number + 1) * FLOOR for number, room in enumerate(ROOMS)}
    parts = []
    for room in ROOMS:
        parts.append(_box(LEFT, floor_of[room] + FLOOR / 2, room))
    for lane, room in enumerate(room for room in ROOMS if found[room]):
        x, middle = LEFT + WIDTH + 14 + lane * LANE, floor_of[room] + FLOOR / 2
        lowest = max(floor_of[other] for other in found[room]) + FLOOR / 2
        parts.append(f'<path d="M{LEFT + WIDTH} {middle:g}H{x}V{lowest + 6:g}" class="line"/>')
        for other in ROOMS:
            if count := found[room][other]:
                radius = 2.5 if count < 10 else 4 if count < 50 else 6
                parts.append(
                    f'<circle cx="{x}" cy="{floor_of[other] + FLOOR / 2 + 6:g}" r="{radius}" '
                    'class="dot"/>'
                )
    for room in ROOMS:  # along which every dot of a floor is found
        y = floor_of[room] + FLOOR / 2 + 6
        parts.insert(
            0,
            f'<path d="M{LEFT + WIDTH} {y:g}H{LEFT + WIDTH + 14 + len(ROOMS) * LANE}" '
            'class="floor"/>',
        )
    width = LEFT + WIDTH + 30 + len(ROOMS) * LANE
    return drawn("The rooms of shardctl, and which imports which", width, height, parts)


def picture_of_commits() -> str:
    """Return the commands as SVG, with an arrow from each to the one commit. Raises ValueError for
    code that commits and is of no command."""
    making = PACKAGE / "making"
    found = {
        path.relative_to(making).parts[0]
        for path in making.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "commit"
    } - {"commit"}
    if found != {*COMMANDS}:
        raise ValueError(f"COMMANDS has not what commits: {found ^ {*COMMANDS}}")
    commands = [name for folder in sorted(found) for name in COMMANDS[folder]]
    height, end = len(commands) * FLOOR + 20, LEFT + WIDTH + 100
    parts = []
    for number, name in enumerate(commands):
        middle = 10 + (number + 0.5) * FLOOR
        parts += [
            _box(LEFT, middle, name),
            f'<path d="M{LEFT + WIDTH} {middle:g}L{end - 6} {height / 2:g}" class="line"/>',
        ]
    parts += [
        f'<circle cx="{end - 5}" cy="{height / 2:g}" r="4" class="dot"/>',
        _box(end, height / 2, "making/commit/commit.py"),
    ]
    return drawn("Each command makes its dataset by one commit", end + WIDTH + 16, height, parts)


def _box(x: int, middle: float, text: str) -> str:
    return (
        f'<rect x="{x}" y="{middle + 5 - FLOOR / 2:g}" width="{WIDTH}" height="{FLOOR - 10}" '
        f'rx="5" class="room"/>\n<text x="{x + 12}" y="{middle + 5:g}">{html.escape(text)}</text>'
    )


def drawn(title: str, width: int, height: int, parts: list[str]) -> str:
    """Return a picture as SVG."""
    style = (
        ".room{fill:#eef3f8;stroke:#5b7a99}text{font:15px sans-serif;fill:#1b2733}"
        ".line{fill:none;stroke:#5b7a99;stroke-width:1.5}"
        ".dot{fill:#c2571a}.floor{stroke:#c9d3dc;stroke-width:1}"
        "@media(prefers-color-scheme:dark){.room{fill:#22303d;stroke:#86a3bf}text{fill:#e6edf3}.line{stroke:#86a3bf}"
        ".floor{stroke:#3c4a57}}"
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 '
        f'{width} {height}">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    main()
