"""The entries of docs/troubleshooting.md are about messages that there are."""

from __future__ import annotations

import ast
from pathlib import Path

from doc_snippets import ROOT

from shardctl.system.messages import ANY, all_entries

SHORTEST = 4
"""Letters: a shorter part between two values is in too many messages."""


def test_each_quoted_text_is_in_the_source():
    source = "\n".join(text for file in (ROOT / "shardctl").rglob("*.py") for text in strings(file))
    gone = [
        (entry.name, part)
        for entry in all_entries()
        for said in entry.says
        for part in said.split(ANY)
        if len(part.strip()) >= SHORTEST and part not in source
    ]
    assert gone == [], "quote these messages as they are now, or remove their entries"


def strings(file: Path) -> list[str]:
    """Return the strings of a module, without the values in them."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [str(each.value) for each in nodes if isinstance(each, ast.Constant)]


def test_each_entry_has_a_name_of_its_own_and_says_what_to_do():
    entries = all_entries()
    assert len({entry.name for entry in entries}) == len(entries)
    assert [entry.name for entry in entries if not (entry.do and any(entry.says))] == []
