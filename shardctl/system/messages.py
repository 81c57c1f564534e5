"""The table of messages as the page docs/troubleshooting.md has it: what each message means, and
what to do.

The page is written from docs/messages/ (scripts/docs/write_troubleshooting.py). It is read here, as
that takes a few milliseconds: an error does not wait for it.
"""

from __future__ import annotations

from typing import NamedTuple

from shardctl.system.documents import documents

PAGE = "troubleshooting"

ANY = "…"
"""Stands for a value in the text of a message."""

_DO, _CODE = "\n**Do:** ", "\n```sh\n"
"""What is before the advice of an entry, and before its example."""


class Entry(NamedTuple):
    """An entry: the texts of the messages that it is about, with `…` for values, and the entry
    itself in Markdown."""

    name: str
    says: tuple[str, ...]
    markdown: str

    @property
    def do(self) -> str:
        """What to do, in Markdown."""
        return self.markdown.partition(_DO)[2].partition("\n\n")[0].strip()

    @property
    def example(self) -> str:
        """The command lines that show it; "" where there are none."""
        return self.markdown.partition(_CODE)[2].partition("\n```")[0]


def all_entries() -> list[Entry]:
    """Return the entries of the table. Raises OSError where there are no documents."""
    return entries_of((documents() / f"{PAGE}.md").read_text(encoding="utf-8"))


def entries_of(page: str) -> list[Entry]:
    """Return the entries of the page."""
    found = []
    for section in page.split("\n### ")[1:]:
        text = section.partition("\n## ")[0]
        name, says, _ = text.split("\n\n", 2)
        found.append(
            Entry(name, tuple(_text(line) for line in says.splitlines()), f"### {text.rstrip()}\n")
        )
    return found


def _text(line: str) -> str:
    """Return the text of a message out of a line of a list, where it is written as code."""
    code = line.removeprefix("- ")
    return code[3:-3] if code.startswith("``") else code[1:-1]


def is_in(said: str, text: str) -> bool:
    """Whether a text of the table is in a message: its parts between values, in this order."""
    at = 0
    for part in said.split(ANY):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def entry_for(text: str, entries: list[Entry]) -> Entry | None:
    """Return the entry about a message: the one with the longest text that is in it. None if there
    is none."""
    fitting = [(len(said), entry) for entry in entries for said in entry.says if is_in(said, text)]
    return max(fitting, key=lambda each: each[0], default=(0, None))[1]


def entries_with(words: str, entries: list[Entry]) -> list[Entry]:
    """Return the entries about messages that have some words: first that with the shortest text."""
    found = {}
    for entry in entries:
        if texts := [said for said in entry.says if words.casefold() in said.casefold()]:
            found[entry] = min(map(len, texts))
    return sorted(found, key=found.__getitem__)
