"""The entries of docs/troubleshooting.md: messages whose cause or cure needs more than their one
sentence."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardctl.system.packages import documents

ANY = "…"
"""Stands for a value in the text of a message."""


class Entry(NamedTuple):
    """An entry: its name, the texts of the messages that it is about, and all of it as the page has
    it."""

    name: str
    says: tuple[str, ...]
    text: str

    @property
    def do(self) -> str:
        """What to do."""
        return self.text.partition("\n**Do:** ")[2].partition("\n\n")[0].replace("`", "")


def all_entries() -> list[Entry]:
    """Return the entries of the page. Raises OSError where there are no documents."""
    found = []
    page = (documents() / "troubleshooting.md").read_text(encoding="utf-8")
    for section in page.split("\n### ")[1:]:
        text = section.partition("\n## ")[0].rstrip()
        name, says, _ = text.split("\n\n", 2)
        quoted = (line.removeprefix("- ").strip("`").strip() for line in says.splitlines())
        found.append(Entry(name, tuple(quoted), f"### {text}\n"))
    return found


def entry_for(message: str) -> Entry | None:
    """Return the entry about a message: the one with the longest text whose parts between values
    are in the message, in their order. None without one, or without documents."""
    try:
        entries = all_entries()
    except OSError:
        return None
    fitting = [
        (len(said), entry)
        for entry in entries
        for said in entry.says
        if re.search(".*".join(map(re.escape, said.split(ANY))), message, re.DOTALL)
    ]
    return max(fitting, key=lambda each: each[0], default=(0, None))[1]
