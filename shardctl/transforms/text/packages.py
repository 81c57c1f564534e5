"""The versions of the packages that do the work of steps."""

from __future__ import annotations

import unicodedata
from importlib.metadata import version


def version_of(package: str) -> str:
    """Return a package with its version: "regex 2026.11.15"."""
    return f"{package} {version(package)}"


def unidata() -> str:
    """Return the version of Python's tables of Unicode: "unidata 14.0.0"."""
    return f"unidata {unicodedata.unidata_version}"
