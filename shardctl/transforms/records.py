"""Records of text and tables at work: some of them together, in Arrow's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection


@dataclass(frozen=True)
class Records:
    """Some records of one file.

    `batch` has the column `key` and the fields of the records. `file` is the number of their file
    in files.arrow; `numbers` (n,) int64 are those of the records in it, counted from 1, and 0 for a
    file that is one record. Together they name a record in the same way before there is a plan, and
    in every shard.
    """

    file: int
    numbers: npt.NDArray[np.int64]
    batch: pa.RecordBatch

    def kept(self, rows: npt.NDArray[np.bool_]) -> Records:
        """Return those of the records whose row is True in `rows`, (n,)."""
        if rows.all():
            return self
        return replace(self, numbers=self.numbers[rows], batch=self.batch.filter(pa.array(rows)))

    def with_column(self, name: str, values: pa.Array) -> Records:
        """Return the records with a column in the place of the one of this name, or after the
        others."""
        place = self.batch.schema.get_field_index(name)
        field = pa.field(name, values.type)
        if place < 0:
            return replace(self, batch=self.batch.append_column(field, values))
        return replace(self, batch=self.batch.set_column(place, field, values))


class HeldMemoryError(MemoryError):
    """Memory ran out for work on many records that a step has held: none of them alone is to
    blame."""


RejectRow = Callable[[int, Rejection], None]
"""Takes the row of a record among those that a step was given, and why it is rejected."""


class BatchRun(Protocol):
    """A batch transform at work in one shard: it may hold records back, and give them with
    others."""

    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return what is made of some records, in order. `reject` takes those of them that become
        nothing."""
        ...

    def finish(self) -> Iterable[Records]:
        """Return what is made of the records that are still held, at the end of the shard."""
        ...

    def counts(self) -> dict[str, int]:
        """Return what it has counted in its shard, by name: numbers that can be added up over
        shards."""
        ...


class NothingHeld(ABC):
    """The run of a step that gives at once what it makes of the records that it gets, and counts
    nothing unless it says so."""

    @abstractmethod
    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return what is made of some records, in order."""

    def finish(self) -> Iterable[Records]:
        """Return nothing: nothing is held."""
        return ()

    def counts(self) -> dict[str, int]:
        """Return nothing."""
        return {}


class EachBatch(NothingHeld):
    """Such a run by a function: `work` makes records of records."""

    def __init__(self, work: Callable[[Records, RejectRow], Records]) -> None:
        self._work = work

    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return what `work` makes of the records."""
        return (self._work(records, reject),)
