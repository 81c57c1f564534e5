"""What the records and the samples of a job cost on average."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """What records and samples cost, as the probe measured it or as the dataset before shows it.

    A sample takes `sample_bytes` in a shard, and a shard `shard_bytes` beside its samples. A record
    becomes `samples_per_record` and takes `record_seconds`. Of the `probed` records `probe_rejects`
    were rejected.
    """

    sample_bytes: float = 0.0
    samples_per_record: float = 1.0
    record_seconds: float = 0.0
    shard_bytes: int = 0
    probed: int = 0
    probe_rejects: int = 0
