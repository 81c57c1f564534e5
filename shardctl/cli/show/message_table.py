"""The table of messages: what each means, and what to do. Its files are docs/messages/*.toml."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ANY = "…"
"""Stands for a value in the text of a message."""


@dataclass(frozen=True)
class Message:
    """An entry: the texts that it is about, with `…` for values, what they mean, what to do, and an example of that."""

    id: str
    says: tuple[str, ...]
    means: str
    do: str
    example: str = ""


def read_messages(folder: Path) -> dict[str, list[Message]]:
    """Return the entries of all files in a folder, by the title of the file."""
    found = {}
    for file in sorted(folder.glob("*.toml")):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        found[table["title"]] = [Message(**{**each, "says": tuple(each["says"])}) for each in table["message"]]
    return found


def is_in(said: str, text: str) -> bool:
    """Whether a text of the table is in a message: its parts between values, in this order."""
    at = 0
    for part in said.split(ANY):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def entry_for(text: str, messages: list[Message]) -> Message | None:
    """Return the entry about a message: the one with the longest text that is in it. None if there is none."""
    fitting = [(len(said), message) for message in messages for said in message.says if is_in(said, text)]
    return max(fitting, key=lambda each: each[0], default=(0, None))[1]
