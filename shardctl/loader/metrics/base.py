"""What is measured while something runs, and what takes the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Metric:
    """A figure: its name, what it means, and whether it only grows (a counter of Prometheus)."""

    name: str
    meaning: str
    grows: bool = False


@dataclass(frozen=True)
class Family:
    """Figures that are told together, under one name."""

    name: str
    metrics: tuple[Metric, ...]


LOADER = Family(
    "loader",
    (
        Metric("samples", "samples that the training loop took", grows=True),
        Metric("batches", "batches that the training loop took", grows=True),
        Metric("epoch", "the epoch that is being read"),
        Metric("samples_per_s", "samples that the training loop took in a second"),
        Metric("stall_share", "share of the time that the training loop waited for batches"),
        Metric(
            "utilization",
            "share of the time that the training loop did not wait: accelerator utilisation",
        ),
        Metric(
            "room_share",
            "share of the time of the loader's threads that they waited until batches were taken",
        ),
        Metric(
            "cache_hit_share",
            "share of the blocks and images that were in the loader's memory already",
        ),
        Metric("skipped", "samples that were left out since they could not be read"),
        Metric("threads", "threads that make batches"),
    ),
)

CONVERSION = Family(
    "conversion",
    (
        Metric("records", "records of the plan that are done", grows=True),
        Metric("all_records", "records of the plan"),
        Metric("samples", "samples that were made", grows=True),
        Metric("rejected", "records that were rejected", grows=True),
        Metric("bytes", "bytes of the inputs that were read", grows=True),
        Metric("records_per_s", "records that are done in a second"),
        Metric("left_s", "seconds that are left at this speed"),
    ),
)


class Sink(Protocol):
    """Something that takes figures: a file, an endpoint, another program."""

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Take the figures of a family; those that are not known are left out. `step` grows. Raises
        StorageError."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...
