"""The option that was meant by a word that no option has: another tool's word for it, or a slip of the keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

ALIKE = 0.65
"""How similar a word must be to an option, as SequenceMatcher measures it, to be taken for a slip of the keyboard."""

SURE = 0.9
"""The same for options that change or delete data that exists: these are named only where a letter or two are wrong."""

WRITING = frozenset(("overwrite", "update", "append", "drop-lost", "moved-from", "keep-generations"))
"""Options that change or delete data that exists."""


class Known(NamedTuple):
    """An option that there is: how it is written, such as `--workers`, and other tools' words for it with a value for each."""

    spelled: str
    alike: Mapping[str, str]


_NUMBER = re.compile(r"\d+(\.\d+)?")


def meant_option(typed: str, known: Iterable[Known], elsewhere: Mapping[str, str], given: object = None) -> str | None:
    """Return what to write in place of `typed`, None where nobody knows. Options are spelled as on the command line.

    `typed` is a name, with or without dashes. `elsewhere` has words for which there is an answer but no option. `given` is
    the value that came with it: a number is shown in place of an example that is one, and any value in place of {example}.
    """
    import shlex  # a wrong name is rare, and `--help` should not wait for these
    from difflib import SequenceMatcher

    word, known = typed.lstrip("-").replace("_", "-").lower(), list(known)
    for words, answer in elsewhere.items():
        if word in words.split():
            return answer
    for option in known:
        for words, value in option.alike.items():
            if word in words.split():
                if _NUMBER.fullmatch(value) and _NUMBER.fullmatch(str(given)):
                    value = str(given)
                elif value[:1] == "{":  # any value that came is the option's too
                    value = shlex.quote(given) if isinstance(given, str) and given[:1] not in ("", "-") else value[1:-1]
                return f"use {option.spelled} {value}".rstrip()
    best, most = None, 0.0
    for option in known:
        name = option.spelled.partition("/")[0].lstrip("-")
        share = 1.0 if _swapped(word) & {name} else SequenceMatcher(None, word, name).ratio()
        if share > most and share >= (SURE if name in WRITING else ALIKE):
            best, most = name, share
    return None if best is None else f"did you mean --{best}?"


def _swapped(word: str) -> set[str]:
    """Return a word, and what it is with two neighbours swapped: `key` for `kye`."""
    places = range(len(word) - 1)
    return {word, *(word[:place] + word[place + 1] + word[place] + word[place + 2 :] for place in places)}
