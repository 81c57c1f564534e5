"""What the dataset that a job makes has to do with the one before, and what a later run compares it
by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lineage:
    """What identifies the dataset of a job, and how it differs from the dataset before."""

    parts: dict[str, str]
    """The parts of the fingerprint."""

    beside: str = ""
    """The digest of files that decide how other files are read; "" for none."""

    updates: str = ""
    """The digest of the dataset that the job updates (its SHA256SUMS); "" for a new dataset."""

    kept_records: int = 0
    """The number of records in the shards that an update keeps."""

    changes: dict[str, Any] | None = None
    """What an update changes; None for a new dataset."""

    warnings: tuple[str, ...] = ()
    """Warnings of the plan, which the result has too."""
