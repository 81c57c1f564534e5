"""Recipes that come with shardctl: @imagenet is docs/recipes/imagenet.toml. Little is imported: the
Tab key and `recipe list` name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.system.packages import documents
from shardctl.system.text import unknown

MARK = "@"
"""The first character of the name of a ready recipe. A file with the same name goes before it."""


def ready_recipes() -> dict[str, str]:
    """Return what each ready recipe is for, by its name."""
    files = sorted((documents() / "recipes").glob("*.toml"))
    return {
        f"{MARK}{file.stem}": f"{' '.join(_comment(file)).partition('. ')[0].rstrip('.')}."
        for file in files
    }


def recipe_file(named: Path) -> Path:
    """Return the file of a recipe that is named by its path, or by the name of a ready one. Raises
    UsageError."""
    name = str(named)
    if not name.startswith(MARK) or named.suffix or "/" in name or named.is_file():
        return named
    if name not in ready_recipes():
        raise UsageError(unknown("ready recipe", name, ready_recipes()))
    return documents() / "recipes" / f"{name.removeprefix(MARK)}.toml"


def ready_text(name: str) -> str:
    """Return a ready recipe as a file to be changed. Raises UsageError if there is none of this
    name."""
    text = recipe_file(Path(name)).read_text(encoding="utf-8")
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("#:schema")
    )


def _comment(file: Path) -> Iterator[str]:
    """Yield the lines of the comment at the top of a recipe."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        if not line.startswith("#:"):
            yield line.removeprefix("# ")
