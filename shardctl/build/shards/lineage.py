"""What the dataset that a job makes has to do with the one before, and what a later run compares it by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lineage:
    """What the dataset that a job makes has to do with the one before.

    `parts` are those of its fingerprint. `beside` is the digest of files that decide how others are read. `updates` is the
    digest of the dataset that is brought up to date (its SHA256SUMS), "" where one is made anew; `kept_records` are those of
    the shards that are kept of it, and `changes` say what differs. `warnings` are told in the end.
    """

    parts: dict[str, str]
    beside: str = ""
    updates: str = ""
    kept_records: int = 0
    changes: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
