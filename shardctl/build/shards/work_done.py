"""How far the work is, in numbers that are told again and again while shards are built."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkDone:
    """Work done since the last report: records of the plan, samples made, records rejected, and
    bytes read."""

    records: int
    samples: int
    rejected: int
    bytes: int

    def __add__(self, other: WorkDone) -> WorkDone:
        return WorkDone(
            self.records + other.records,
            self.samples + other.samples,
            self.rejected + other.rejected,
            self.bytes + other.bytes,
        )

    def __neg__(self) -> WorkDone:
        return WorkDone(-self.records, -self.samples, -self.rejected, -self.bytes)
