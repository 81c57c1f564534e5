"""The folder docs/: the pages, the ready recipes, and the schema of recipes."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

_FOR_DEVELOPERS = "dev"
"""The folder of docs/ with measurements. Neither a wheel nor `shardctl help` has it."""


def documents() -> Path:
    """Return where it is. A wheel has it in the package (setup.py); in a clone it lies beside the
    package."""
    installed = _PACKAGE / "docs"
    return installed if installed.is_dir() else _PACKAGE.parent / "docs"


def pages() -> dict[str, Path]:
    """Return the pages for users by their names, which are the names of the files without .md."""
    folder = documents()
    found = (
        path
        for path in folder.rglob("*.md")
        if path.relative_to(folder).parts[0] != _FOR_DEVELOPERS
    )
    return {path.stem: path for path in sorted(found)}
