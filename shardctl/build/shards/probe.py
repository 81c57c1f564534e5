"""What a few records showed that were pushed through the recipe before anything was written
(probing.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardctl.format.layout import Layout
from shardctl.format.tables import Reject


@dataclass(frozen=True)
class Probe:
    """What a few records pushed through the recipe showed: the final layout, and what a sample
    costs.

    On average a sample takes `sample_bytes` in a shard, and a record, rejected or not, has
    `record_bytes` (0: not known), becomes `samples_per_record` and takes `record_seconds`, beside
    the `unit_seconds` that it takes to read a unit of many; a shard without samples has
    `shard_bytes`. Of the `records` that were tried `rejected` could not be converted: `reasons`
    counts them by stage and error, and `examples` has the first one of each. `notices` say which
    fields are no longer what they were, because of a user's function, and what the first records
    show of masks and objects; `warnings` say it where that should be looked at. `frames` are those
    of masks and objects, by the names that fields have in records.
    """

    layout: Layout
    sample_bytes: float
    record_bytes: float
    shard_bytes: int
    record_seconds: float
    unit_seconds: float
    samples_per_record: float
    records: int
    rejected: int
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    frames: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **vars(self),
            "layout": self.layout.to_json(),
            "examples": [vars(example) for example in self.examples],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Probe:
        """Build the probe that `to_json` gave."""
        examples = tuple(Reject(**example) for example in record["examples"])
        return cls(**{**record, "layout": Layout.loads(record["layout"]), "examples": examples})
