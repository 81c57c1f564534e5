"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One finding of a check. `kind` is a short stable name, `message` says what is wrong and what to do.

    If a whole block is affected, `row`, `key` and `source` are those of its first sample.
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
    """Return a finding of severity `error`: the dataset is damaged."""
    return Finding("error", shard, block, row, key, kind, message, source)


def warning(kind: str, message: str) -> Finding:
    """Return a finding of severity `warning`."""
    return Finding("warning", None, None, None, None, kind, message)
