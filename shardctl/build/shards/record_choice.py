"""Which records of a unit are in a shard: those of its split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.build.shards.job import Job
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.records import FITTED_RECORDS, read_fields
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.errors import Rejection
from shardctl.sources.formats import CHOSEN, Choose, ColumnMisfit, Misfit, Numbers
from shardctl.system.processes.worker_state import KEYS, NOWHERE, WHOLE, WorkerProgress


class RecordChoice:
    """Tells which records of a unit are in a shard. Where keys decide it, those of a unit are read
    once.

    Every method may read them then, and so raises MemoryError and SourceGoneError.
    """

    def __init__(self, build: ShardBuild) -> None:
        self._build = build
        self._unit = NOWHERE
        self._choose: Choose | None = None

    def of_split(self, planned: PlannedUnit) -> Choose | None:
        """Return what tells which records of a unit are of this split; None: all of them."""
        if self._unit != planned.number:
            build = self._build
            self._choose = choice_of(
                build.job, planned, build.place.split, build.progress, build.hints
            )
            self._unit = planned.number
        return self._choose

    def to_read(self, planned: PlannedUnit) -> Choose | None:
        """Return what tells which records of a unit are read: those of this split, except the ones
        that end a worker."""
        return self._build.hints.without_lost(planned.number, self.of_split(planned))

    def has(self, planned: PlannedUnit, record: int) -> bool:
        """Return whether a record of a unit is of this split."""
        choose = self.of_split(planned)
        return choose is None or bool(choose(np.array([record]))[0])

    def span(self, planned: PlannedUnit) -> tuple[int, int]:
        """Return the first record of a unit that is of this split, and how many there are of
        them."""
        unit, choose = planned.unit, self.of_split(planned)
        if choose is None:
            return unit.first, unit.records
        own = np.flatnonzero(choose(np.arange(unit.first, unit.first + unit.records)))
        return unit.first + int(own[0]) if len(own) else unit.first, len(own)

    def ranks(self, planned: PlannedUnit) -> npt.NDArray[np.int64] | None:
        """Return the places of a unit's records among those of the same split, (records,); None if
        all are of this one."""
        unit, choose = planned.unit, self.of_split(planned)
        return (
            None
            if choose is None
            else np.cumsum(choose(np.arange(unit.first, unit.first + unit.records))) - 1
        )


def choice_of(
    job: Job, planned: PlannedUnit, split: int, progress: WorkerProgress, hints: RetryHints
) -> Choose | None:
    """Return what tells which records of a unit are in a split; None: all of them. Raises
    MemoryError, SourceGoneError.

    Where the records have keys of their own, this reads them first. It draws a record without a
    readable key by its number, so that this record is a reject of one split.
    """
    by_number, draw, unit = job.choose(planned, split), job.draw, planned.unit
    if by_number is None or draw is None or not draw.by_key:
        return by_number
    has_key, own = np.zeros(unit.records, bool), np.zeros(unit.records, bool)
    lost = hints.lost.get((planned.number, None))
    for numbers, keys in (
        () if lost is not None and lost.stage == KEYS else _keys_of(job, planned, progress, hints)
    ):
        has_key[numbers - unit.first] = True
        own[numbers - unit.first] = draw.of_keys(keys) == split
    progress.begin(planned.number)

    def choose(numbers: Numbers) -> npt.NDArray[np.bool_]:
        # a format may ask of records behind the unit
        places = np.clip(numbers - unit.first, 0, unit.records - 1)
        return np.where(has_key[places], own[places], by_number(numbers))

    return choose


def _keys_of(
    job: Job, planned: PlannedUnit, progress: WorkerProgress, hints: RetryHints
) -> Iterator[tuple[Numbers, list[str]]]:
    """Yield the numbers and the keys of records of a unit, without those whose key cannot be read.

    They are read together, and in smaller parts where one does not fit; one by one where one of
    them has ended a worker.
    """
    group, unit = job.draw.group if job.draw else None, planned.unit
    source = str((group.field if group else None) or job.recipe.key_source)
    assert job.fields is not None, "files of many records have columns"
    rules, schema = (
        replace(job.recipe.reading, only=(source,)),
        pa.schema([job.fields.field(source)], {CHOSEN: b""}),
    )
    fatal = [
        n for n in hints.lost_records(planned.number) if hints.lost[planned.number, n].stage == KEYS
    ]
    most = 1 if planned.number in hints.careful else unit.records
    together, done = most, 0
    while done < unit.records:
        end = min(done + together, unit.records)
        part = unit._replace(skip=unit.skip + done, first=unit.first + done, records=end - done)
        progress.begin(planned.number, part.first if most == 1 else WHOLE, KEYS)
        try:
            for parsed in read_fields(
                job,
                planned,
                part,
                rules,
                schema,
                lambda numbers: ~np.isin(numbers, fatal),
                xxhash.xxh3_64(),
            ):
                keys = parsed.batch.column(0).cast(pa.string())
                there = np.asarray(keys.is_valid())
                # its time runs anew with each part: a compressed file is one unit
                if most > 1 and len(keys):
                    progress.begin(planned.number, int(parsed.numbers[-1]), KEYS)
                yield parsed.numbers[there], keys.drop_null().to_pylist()
                if len(keys):
                    # what follows it is read again if something does not fit
                    done = int(parsed.numbers[-1]) + 1 - unit.first
        except ColumnMisfit:
            return  # no key of the file fits
        except Misfit:
            if end - done > 1:
                together = min((end - done) // 2, FITTED_RECORDS)
                continue
        except Rejection:
            pass  # it is told where the records themselves are read
        except MemoryError:
            if part.records > 1:
                raise
        else:
            together = min(2 * together, most)
        done = end
