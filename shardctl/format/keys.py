"""Keys of samples as names in archives, from which they can be read again."""

from __future__ import annotations

import re
from collections import Counter

_UNSAFE = re.compile(r"[\x00-\x1f\x7f%\\]")
_EMPTY_PART = re.compile(r"^/|/(?=/)|/$")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
REPEATED = "%~"
"""Comes behind a key that an archive has already, with a number: the second one has %~1. No escaped
key has it."""


def member_key(key: str) -> str:
    """Return a key as the path that the members of a sample share: no dot in its last part, and
    nothing that leads elsewhere.

    A character that cannot stand is written as % and two hex digits: `.` in the last part, `/`
    where it would make an empty part, the first dot of `.` and `..`, the first `_` of a name that
    readers skip (`__…__`), control characters, the backslash and `%` itself.
    """
    path = _EMPTY_PART.sub("%2F", _UNSAFE.sub(lambda found: _escaped(found[0]), key))
    *folders, last = path.split("/")
    parts = [f"%2E{part[1:]}" if part in (".", "..") else part for part in folders] + [
        last.replace(".", "%2E")
    ]
    return (
        "/".join(f"%5F{part[1:]}" if part.startswith("__") else part for part in parts)
        or f"{REPEATED}0"
    )


def key_of_member(path: str) -> str:
    """Return the key of which `member_key` made a path, without what was added because it was
    repeated."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path.partition(REPEATED)[0])


def _escaped(character: str) -> str:
    return f"%{ord(character):02X}"


class DistinctNames:
    """Tells names apart that are repeated within one archive, as those of several variants of a
    sample are."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, name: str) -> str:
        """Return a name that was not returned before: the name itself, or with %~1, %~2 behind
        it."""
        times = self._seen[name]
        self._seen[name] += 1
        return f"{name}{REPEATED}{times}" if times else name


def extension_part(name: str) -> str:
    """Return the name of a column as a part of a file's extension: of a-z, 0-9, _ and -, others as
    % and two hex digits.

    Readers of WebDataset turn extensions into lower case, and split them at dots.
    """
    plain = "abcdefghijklmnopqrstuvwxyz0123456789_-"
    return "".join(
        c if c in plain else "".join(f"%{byte:02x}" for byte in c.encode()) for c in name
    )
