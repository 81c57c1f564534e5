"""The versions of the packages that do the work of steps."""

from __future__ import annotations

from importlib.metadata import version


def version_of(package: str) -> str:
    """Return a package with its version: "regex 2026.11.15"."""
    return f"{package} {version(package)}"
