"""The snippets of code in the pages of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def snippets(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def snippets_of(page: str, language: str) -> list[str]:
    """Return the snippets of a page of docs/."""
    return snippets((ROOT / "docs" / page).read_text(encoding="utf-8"), language)
