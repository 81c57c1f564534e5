"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind` is a short stable name to count by, `message` says what to do about it.

    Where a whole block is concerned, `row`, `key` and `source` are those of its first sample.
    """

    severity: str
    shard: str | None
    block: int | None
    row: int | None
    key: str | None
    kind: str
    message: str
    source: str | None = None


def error(
    kind: str,
    message: str,
    shard: str | None = None,
    block: int | None = None,
    row: int | None = None,
    key: str | None = None,
    source: str | None = None,
) -> Finding:
    """Return a finding that makes a dataset unsound."""
    return Finding("error", shard, block, row, key, kind, message, source)


def warning(kind: str, message: str) -> Finding:
    """Return a finding that does not."""
    return Finding("warning", None, None, None, None, kind, message)
