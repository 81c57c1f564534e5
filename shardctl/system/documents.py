"""The folder docs/: the pages, the ready recipes, and the schema of recipes."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def documents() -> Path:
    """Return where it is. A wheel has it in the package (setup.py); in a clone it lies beside the package."""
    installed = _PACKAGE / "docs"
    return installed if installed.is_dir() else _PACKAGE.parent / "docs"
