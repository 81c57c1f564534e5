"""The protocols of a transform, and how sizes and randomness are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from shardctl.errors import UsageError
from shardctl.geometry import Size, View
from shardctl.sample import Sample

MAX_SIDE = 16384
"""Longest side of an output image, in pixels."""


class Transform(ABC):
    """A step of a recipe: a frozen dataclass whose fields are the step's settings.

    `random` says whether it draws from the generator that it is handed.
    """

    name: ClassVar[str]
    random: ClassVar[bool] = False

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""

    def code_digest(self) -> str | None:
        """Return a digest of the code that does the work where it is not shardctl's own, else None."""
        return None


class ViewTransform(Transform):
    """Chooses which part of an image is kept, and at what size."""

    @abstractmethod
    def view(self, view: View, rng: np.random.Generator | None) -> View:
        """Return the new view. `rng` is None if the transform is not random."""

    @abstractmethod
    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the output where it does not depend on the image, given that of the step before."""


class SampleTransform(Transform):
    """Makes samples of a sample, its image decoded to (height, width, 3) uint8."""

    random: ClassVar[bool] = True

    @property
    def draws(self) -> bool:
        """Whether `apply` needs a generator: making one takes 20 microseconds."""
        return True

    @abstractmethod
    def apply(self, sample: Sample, rng: np.random.Generator | None) -> Sequence[Sample]:
        """Return none, one or many samples. `rng` is None if it draws nothing. Raises Rejection, which costs the record."""


class BatchTransform(Transform):
    """Makes batches of records of a batch of them, with no Python object per record: for text and tables.

    A batch has the column `key` and the fields of the records.
    """

    @abstractmethod
    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns that it makes of batches with these. Raises InputError if it cannot."""

    @abstractmethod
    def begin(self) -> BatchRun:
        """Return what does the work in one shard."""


class BatchRun(Protocol):
    """A batch transform at work in one shard: it may hold records back, and give them with others."""

    def apply(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return what is made of some records, in order."""
        ...

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Return what is made of the records that are still held, at the end of the shard."""
        ...


def parse_size(value: Any, what: str) -> int | Size:
    """Read `224` or `320x240` (width x height). Raises UsageError."""
    text = str(value)
    parts = text.lower().split("x") if not isinstance(value, list | tuple) else [str(part) for part in value]
    if len(parts) not in (1, 2) or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{what} {text!r} is not a size; write 224, or 320x240 for width x height")
    sides = [int(part) for part in parts]
    if any(not 1 <= side <= MAX_SIDE for side in sides):
        raise UsageError(f"{what} {text} is impossible; each side must be 1 to {MAX_SIDE} pixels")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def square(size: int | Size) -> Size:
    """Return (width, height) for a size that may be one number."""
    return (size, size) if isinstance(size, int) else size


def format_size(size: int | Size) -> int | str:
    """Write a size as it is written in a recipe."""
    return size if isinstance(size, int) else f"{size[0]}x{size[1]}"
