"""Texts for people: what is safe to print, numbers with their nouns, sizes in bytes."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from unicodedata import normalize

from shardctl.errors import UsageError
from shardctl.system.arguments import ELSEWHERE


def printable(what: object) -> str:
    """Return a text or a path safe to show: control characters and undecodable bytes appear as
    escapes."""
    decoded = str(what).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in decoded
    )


def quoted(text: str) -> str:
    """Return a text in double quotes, as JSON, TOML and YAML take it. What a terminal or an editor
    does not show is escaped."""
    return "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 1 << 16 else f"\\U{ord(c):08x}"
        for c in json.dumps(text, ensure_ascii=False)
    )


def composed(text: str) -> str:
    """Return a text in the form of Unicode in which names are compared (NFC): a Mac writes é as e
    and an accent."""
    return normalize("NFC", text)


def format_bytes(count: float) -> str:
    """Return a number of bytes for display, in binary units: 77.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Return about how long something takes, for display: 45 s, 12 min, 1.5 h."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that some names have more than once; None if there is none. Tables may
    have thousands."""
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, for display: "1 shard", "2,000 shards". `plural` is needed
    where it is not noun + s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


FEW = 12
"""Up to this many names are listed in a message; of more only those that look like the wrong
one."""


NEAR = 0.65
"""How much a name must be like a wrong one to be suggested, from 0 to 1: `val` for `valid`, but not
`columns` for `colour`."""


def similar(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """Return up to `most` names that a wrong `name` may stand for, the nearest first, or one that
    begins a part of the other. Case, - and _ make no difference."""
    import difflib  # 3 ms, and only a message needs it

    written: dict[str, str] = {}
    for each in names:
        written.setdefault(_plain(each), each)
    wanted = _plain(name)
    near = difflib.get_close_matches(wanted, written, most, NEAR)
    if not near and len(wanted) > 2:
        parts = {each: _parts(written[each]) for each in written if len(each) > 2}
        near = [
            each for each in parts if _parts(name) in parts[each] or parts[each] in _parts(name)
        ]
    return [written[each] for each in near[:most]]


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def _parts(name: str) -> str:
    return f"_{name.casefold().replace('-', '_').strip('_')}"


def did_you_mean(name: str, names: Iterable[str], most: int = 1) -> str:
    """Return the end of a message about a wrong name, "; did you mean resize?", or "" where no name
    is similar."""
    near = similar(name, names, most)
    return f"; did you mean {' or '.join(map(printable, near))}?" if near else ""


def unknown(what: str, name: object, known: Iterable[str], listing: str = "") -> str:
    """Say that a word is not known, and what to write: for a word of another library, ours; else
    which one is similar, and which there are.

    `listing` is a command that prints all, where a message would be too long with them.
    """
    names = list(known)
    there = "there is" if len(names) == 1 else "there are"
    other = ELSEWHERE.get(str(name))
    instead = f"; {other}" if other else _instead(name, names, there, listing)
    return f"{what} {_quoted(name)} is not known{instead}"


def lacks(what: str, name: object, known: Iterable[str]) -> str:
    """Say that something has no `what` of this name, which one is similar, and which it has: a
    split, a column."""
    return f"no {what} {_quoted(name)}{_instead(name, list(known), 'it has')}"


def _instead(name: object, names: list[str], has: str, listing: str = "") -> str:
    near = did_you_mean(str(name), names)
    before = f"{near} " if near.endswith("?") else f"{near}; "
    if len(names) <= FEW:
        return f"{before}{has} {printable(', '.join(names)) or 'none'}"
    if listing:
        return f"{before}`{listing}` lists all {len(names):,}"
    return (
        near
        or f"; {has} {printable(', '.join(names[: FEW - 2]))} and {len(names) - FEW + 2:,} more"
    )


def _quoted(name: object) -> str:
    return repr(printable(name))


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTPkmgtp])([Ii]?))?[Bb]?")


def parse_size(text: str) -> int | None:
    """Return the number of bytes that a text such as 500GB, 64MiB or 1000000 means; None if it is
    not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    size = float(match[1]) * (1024 if match[3] else 1000) ** " KMGTP".index(
        (match[2] or " ").upper()
    )
    return int(size) if math.isfinite(size) else None


def size_of(limit: int | str, name: str) -> int:
    """Return a number of bytes from one, or from a text such as 500GB or 64MiB. Raises UsageError,
    which has the `name`."""
    if isinstance(limit, bool) or not isinstance(limit, int | str):
        raise UsageError(f"{name}: {limit!r} is not a size; give bytes, or a text such as '500GB'")
    size = parse_size(limit) if isinstance(limit, str) else limit
    if size is None:
        raise UsageError(
            f"{name}: {limit!r} is not a size; write 500GB, 64MiB or a number of bytes"
        )
    if size < 0:
        raise UsageError(f"{name}: {size} bytes are impossible; give 0 or more")
    return size


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names for a message: a, b, c and 17 more."""
    shown = ", ".join(printable(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
