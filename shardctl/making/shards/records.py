"""The records of a unit, as its format reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.format.python_values import python_rows
from shardctl.format.roles import Sample
from shardctl.making.shards.inputs import changed, read_mask, read_whole, reading, state_of
from shardctl.making.shards.job import ANY_UNIT, KEY, Job
from shardctl.making.shards.planned import File, PlannedUnit, RetryHints
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.files import local_copy
from shardctl.sources.formats import (
    CHOSEN,
    Choose,
    ColumnMisfit,
    Digest,
    Misfit,
    Numbers,
    Parsed,
    Reading,
    Unit,
    copy_to_read,
    ending_of,
    find_format,
)
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.kinds import KINDS
from shardctl.sources.label_table import hash_names
from shardctl.sources.splits import GroupRule
from shardctl.system.processes.worker_state import KEYS, NOWHERE, WHOLE, WorkerProgress
from shardctl.transforms.pipeline.batches import (
    check_keys,
    check_labels,
    encode_labels,
    with_class_folders,
)
from shardctl.transforms.pipeline.functions import unshared

FITTED_RECORDS = 1024
"""The most records that are read together where some do not fit the types that were given."""


def read_unit(
    job: Job, planned: PlannedUnit, unit: Unit, choose: Choose | None, digest: Digest
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit of a file of many records, labels as the numbers of their
    classes.

    Raises Rejection, Misfit, SourceGoneError.
    """
    assert job.fields is not None, "a format reads into columns"
    for parsed in read_fields(job, planned, unit, job.recipe.reading, job.fields, choose, digest):
        if job.renames:
            parsed = replace(parsed, batch=_renamed(parsed.batch, job.renames))
        if job.recipe.label_source == FOLDER:
            parsed = replace(parsed, batch=with_class_folders(parsed.batch))
        if job.by_field and job.layout.classes is not None:
            parsed = replace(parsed, batch=encode_labels(parsed.batch, job.layout.classes))
        if job.layout.roles.names:
            parsed = _without(parsed, *check_labels(parsed.batch, job.layout.roles.names))
        if job.recipe.key_source is not None:
            parsed = _without(parsed, *check_keys(parsed.batch))
            if known := job.known.get(ANY_UNIT):
                keys = enumerate(
                    hash_names(parsed.batch.column(KEY).to_pylist()).view(np.int64).tolist()
                )
                parsed = _without(
                    parsed, parsed.batch, {row: known[key] for row, key in keys if key in known}
                )
        if job.draw is not None and job.draw.group is not None:
            parsed = _without(
                parsed, parsed.batch, _in_no_group(job, planned, parsed, job.draw.group)
            )
        yield parsed


def read_fitting(
    job: Job,
    planned: PlannedUnit,
    choose: Choose | None,
    on_misfit: Callable[[int, Misfit], None],
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit that fit the types which were given; `on_misfit` is told
    of the others. Raises Rejection, SourceGoneError.

    Fewer and fewer are read together until one alone does not fit: one by one, each of them would
    cost a whole unit. All of a part is read before any of it is given, so that it can be read again
    in smaller ones.
    """
    unit, done, together = planned.unit, 0, FITTED_RECORDS
    while done < unit.records:
        count = min(together, unit.records - done)
        part = unit._replace(skip=unit.skip + done, first=unit.first + done, records=count)
        try:
            yield from list(read_unit(job, planned, part, choose, xxhash.xxh3_64()))
        except Misfit as misfit:
            if count > 1:
                together = count // 2
                continue
            on_misfit(part.first, misfit)
        done += count
        together = min(2 * together, FITTED_RECORDS)


def _in_no_group(
    job: Job, planned: PlannedUnit, parsed: Parsed, rule: GroupRule
) -> dict[int, Rejection]:
    """Return why some rows are rejected, by row: their field of groups is empty, or their key does
    not match."""
    if rule.field is not None:
        values = parsed.batch.column(job.renames.get(rule.field, rule.field)).to_pylist()
    elif job.recipe.key_source is not None:
        values = parsed.batch.column(KEY).to_pylist()
    else:
        values = list(map(planned.key, parsed.numbers.tolist()))
    reason = Rejection("decode", "no-group", f"it is in no group (--group {rule})")
    return {row: reason for row, group in enumerate(rule.of(values)) if group in (None, "")}


def read_fields(
    job: Job,
    planned: PlannedUnit,
    unit: Unit,
    rules: Reading,
    schema: pa.Schema,
    choose: Choose | None,
    digest: Digest,
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit as its format reads them. Raises Rejection, Misfit,
    SourceGoneError."""
    opened, version = job.path_of(planned.file), job.version_of(planned.file)
    path, before = opened, None
    with reading(job, planned):
        ending = ending_of(planned.file.path, local_copy(opened, version))
        path = copy_to_read(opened, ending, version)
        before = state_of(job, planned, path)
        form = find_format(ending, rules, job.shuffle is not None)
        parts = form.read(path, unit, rules, schema, choose, digest)
    while True:
        with reading(job, planned):
            parsed = next(parts, None)
            if parsed is None:
                if state_of(job, planned, path) != before:
                    raise changed(job, planned)
                return
        yield parsed


def sample_of(job: Job, planned: PlannedUnit, record: int | None, fields: Sample) -> Sample:
    """Return a record of a unit (None: the file that is one) as the sample that the recipe begins
    with.

    `fields` are used up.
    """
    (sample,) = samples_of(job, planned.file, [fields], [key_of(planned, record, fields)])
    return sample


def samples_of(
    job: Job, file: File, records: Iterable[Sample], keys: Iterable[str]
) -> list[Sample]:
    """Return records of a file as samples: with the label and the columns of the file, and with
    their keys.

    The records are used up. Where the recipe has functions, each sample gets a copy of the columns:
    functions may change it.
    """
    known = {**(file.columns or {}), **({} if file.label is None else {"label": file.label})}
    copied = bool(job.recipe.sample_transforms)
    # Where labels name classes, an empty one of a record is a missing one.
    may_be_empty = file.label is None and job.layout.classes is not None
    samples = []
    for sample, key in zip(records, keys, strict=True):
        if known:
            sample = sample | (unshared(known) if copied else known)
        if may_be_empty and sample.get("label") == "":
            sample["label"] = None
        sample[KEY] = key
        samples.append(sample)
    return samples


def key_of(planned: PlannedUnit, record: int | None, fields: Sample) -> str:
    """Return the key of a record: the one in its fields, or the one that the plan gives it."""
    key: str | None = fields.get(KEY)
    return planned.key(record) if key is None else key


def _without(parsed: Parsed, batch: pa.RecordBatch, wrong: Mapping[int, Rejection]) -> Parsed:
    """Return what was read, with these records, some rows of which are rejected."""
    if not wrong:
        return replace(parsed, batch=batch)
    numbers = parsed.numbers
    kept = np.ones(len(numbers), bool)
    kept[list(wrong)] = False
    rejects = [
        *parsed.rejects,
        *((int(numbers[row]), rejection) for row, rejection in wrong.items()),
    ]
    return Parsed(numbers[kept], batch.filter(pa.array(kept)), sorted(rejects, key=itemgetter(0)))


def _renamed(batch: pa.RecordBatch, renames: dict[str, str]) -> pa.RecordBatch:
    return batch.rename_columns([renames.get(name, name) for name in batch.schema.names])


def records_of(
    job: Job, planned: PlannedUnit, progress: WorkerProgress, hints: RetryHints
) -> Iterator[tuple[int | None, Sample]]:
    """Yield the fields of the records of a unit, one by one, each with its number in its file,
    None: the file is one record.

    Raises Rejection.
    """
    file = planned.file
    if (planned.number, None) in hints.lost:
        raise hints.lost[planned.number, None]
    if job.fields is None:
        fields = KINDS[job.recipe.kind].fields(
            read_whole(job, planned), file.path, job.recipe.reading
        )
        mask = read_mask(job, planned)
        yield None, fields if mask is None else {**fields, MASK: mask}
        return
    for parsed in read_unit(
        job, planned, planned.unit, hints.without_lost(planned.number, None), xxhash.xxh3_64()
    ):
        for record, fields in zip(parsed.numbers.tolist(), python_rows(parsed.batch), strict=True):
            progress.begin(planned.number, record)
            yield record, fields


@dataclass
class RecordChoice:
    """Tells which records of a unit are in a shard. Where keys decide it, those of a unit are read
    once.

    Every method may read them then, and so raises MemoryError and SourceGoneError.
    """

    job: Job
    split: int
    progress: WorkerProgress
    hints: RetryHints
    _unit: int = NOWHERE
    _choose: Choose | None = None

    def of_split(self, planned: PlannedUnit) -> Choose | None:
        """Return what tells which records of a unit are of this split; None: all of them."""
        if self._unit != planned.number:
            self._choose = choice_of(self.job, planned, self.split, self.progress, self.hints)
            self._unit = planned.number
        return self._choose

    def to_read(self, planned: PlannedUnit) -> Choose | None:
        """Return what tells which records of a unit are read: those of this split, except the ones
        that end a worker."""
        return self.hints.without_lost(planned.number, self.of_split(planned))

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
