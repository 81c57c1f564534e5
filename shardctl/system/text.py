"""Texts for people: what is safe to print, numbers with their nouns, sizes in bytes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from shardctl.errors import UsageError


def printable(text: str) -> str:
    """Return `text` safe to show: control characters and undecodable bytes appear as escapes."""
    decoded = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in decoded)


def format_bytes(count: float) -> str:
    """Return a number of bytes for display, in binary units: 77.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """Return about how long something takes, for display: 45 s, 12 min, 1.5 h."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that some names have more than once; None if there is none. Tables may have thousands."""
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, for display: "1 shard", "2,000 shards". `plural` is needed where it is not noun + s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTPkmgtp])([Ii]?))?[Bb]?")


def parse_size(text: str) -> int | None:
    """Return the number of bytes that a text such as 500GB, 64MiB or 1000000 means; None if it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    size = float(match[1]) * (1024 if match[3] else 1000) ** " KMGTP".index((match[2] or " ").upper())
    return int(size) if math.isfinite(size) else None


def size_of(limit: int | str, name: str) -> int:
    """Return a number of bytes from one, or from a text such as 500GB or 64MiB. Raises UsageError, which has the `name`."""
    if isinstance(limit, bool) or not isinstance(limit, int | str):
        raise UsageError(f"{name}: {limit!r} is not a size; give a number of bytes, or a text such as '500GB'")
    size = parse_size(limit) if isinstance(limit, str) else limit
    if size is None:
        raise UsageError(f"{name}: {limit!r} is not a size; write 500GB, 64MiB or a number of bytes")
    if size < 0:
        raise UsageError(f"{name}: {size} bytes are impossible; give 0 or more")
    return size
