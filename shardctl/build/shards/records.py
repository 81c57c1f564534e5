"""The records of a unit, as its format reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.build.shards.inputs import check_state, read_whole, reading, state_of
from shardctl.build.shards.job import KEY, Job, Planned
from shardctl.build.shards.mask_files import read_mask
from shardctl.build.shards.retry_hints import Instructions
from shardctl.errors import Rejection
from shardctl.format.exact_values import python_rows
from shardctl.format.sample import Sample
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.endings import ending_of
from shardctl.sources.formats import CHOSEN, Choose, ColumnMisfit, Digest, Misfit, Numbers, Parsed, Reading, Unit, find_format
from shardctl.sources.kinds import KINDS
from shardctl.system.processes.progress_slot import KEYS, WHOLE, Breadcrumb
from shardctl.transforms.pipeline.batches import check_keys, check_labels, encode_labels
from shardctl.transforms.pipeline.samples import RecordContext

FITTED_RECORDS = 1024
"""The most records that are read together where some do not fit the types that were given."""


def read_unit(job: Job, planned: Planned, unit: Unit, choose: Choose | None, digest: Digest) -> Iterator[Parsed]:
    """Yield the chosen records of a unit of a file of many records, labels as the numbers of their classes.

    Raises Rejection, Misfit, SourceGoneError.
    """
    assert job.fields is not None, "a format reads into columns"
    for parsed in _read(job, planned, unit, job.recipe.reading, job.fields, choose, digest):
        if job.renames:
            parsed = replace(parsed, batch=_renamed(parsed.batch, job.renames))
        if job.by_field and job.layout.classes is not None:
            parsed = replace(parsed, batch=encode_labels(parsed.batch, job.layout.classes))
        if job.layout.roles.names:
            parsed = _without(parsed, *check_labels(parsed.batch, job.layout.roles.names))
        if job.recipe.key_source is not None:
            parsed = _without(parsed, *check_keys(parsed.batch))
        yield parsed


def _read(
    job: Job, planned: Planned, unit: Unit, rules: Reading, schema: pa.Schema, choose: Choose | None, digest: Digest
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit as its format reads them. Raises Rejection, Misfit, SourceGoneError."""
    path = job.path_of(planned.file)
    before = None
    with reading(job, planned):
        before = state_of(job, planned)
        form = find_format(ending_of(planned.file.path, path), rules, job.shuffle is not None)
        parts = form.read(path, unit, rules, schema, choose, digest)
    while True:
        with reading(job, planned):
            parsed = next(parts, None)
            if parsed is None:
                check_state(job, planned, before)
                return
        yield parsed


def choice_of(job: Job, planned: Planned, split: int, crumb: Breadcrumb, known: Instructions) -> Choose | None:
    """Return what tells which records of a unit are in a split; None: all of them. Raises MemoryError, SourceGoneError.

    Where the records have keys of their own, this reads them first. It draws a record without a readable key by its number, so
    that this record is a reject of one split.
    """
    by_number, draw, unit = job.choose(planned, split), job.draw, planned.unit
    if by_number is None or draw is None or not draw.by_key:
        return by_number
    has_key, own = np.zeros(unit.records, bool), np.zeros(unit.records, bool)
    lost = known.lost.get((planned.number, None))
    for numbers, keys in () if lost is not None and lost.stage == KEYS else _keys_of(job, planned, crumb, known):
        has_key[numbers - unit.first] = True
        own[numbers - unit.first] = draw.of_keys(keys) == split
    crumb.drop(planned.number)

    def choose(numbers: Numbers) -> npt.NDArray[np.bool_]:
        places = np.clip(numbers - unit.first, 0, unit.records - 1)  # a format may ask of records behind the unit
        return np.where(has_key[places], own[places], by_number(numbers))

    return choose


def _keys_of(job: Job, planned: Planned, crumb: Breadcrumb, known: Instructions) -> Iterator[tuple[Numbers, list[str]]]:
    """Yield the numbers and the keys of records of a unit, without those whose key cannot be read.

    They are read together, and in smaller parts where one does not fit; one by one where one of them has ended a worker.
    """
    source, unit = str(job.recipe.key_source), planned.unit
    assert job.fields is not None, "files of many records have columns"
    rules, schema = replace(job.recipe.reading, only=(source,)), pa.schema([job.fields.field(source)], {CHOSEN: b""})
    fatal = [n for n in known.lost_records(planned.number) if known.lost[planned.number, n].stage == KEYS]
    most = 1 if planned.number in known.careful else unit.records
    together, done = most, 0
    while done < unit.records:
        end = min(done + together, unit.records)
        part = unit._replace(skip=unit.skip + done, first=unit.first + done, records=end - done)
        crumb.drop(planned.number, part.first if most == 1 else WHOLE, KEYS)
        try:
            for parsed in _read(job, planned, part, rules, schema, lambda numbers: ~np.isin(numbers, fatal), xxhash.xxh3_64()):
                keys = parsed.batch.column(0).cast(pa.string())
                there = np.asarray(keys.is_valid())
                if most > 1 and len(keys):  # its time runs anew with each part: a compressed file is one unit
                    crumb.drop(planned.number, int(parsed.numbers[-1]), KEYS)
                yield parsed.numbers[there], keys.drop_null().to_pylist()
                if len(keys):
                    done = int(parsed.numbers[-1]) + 1 - unit.first  # what follows it is read again if something does not fit
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


def origin_of(planned: Planned, record: int | None, fields: Sample) -> RecordContext:
    """Return where a record comes from, and its key: its own, which is taken out of its fields, or that of the plan."""
    key = fields.pop(KEY, None)
    return RecordContext(planned.key(record) if key is None else key, planned.file.label, planned.file.columns)


def _without(parsed: Parsed, batch: pa.RecordBatch, wrong: Mapping[int, Rejection]) -> Parsed:
    """Return what was read, with these records, some rows of which are rejected."""
    if not wrong:
        return replace(parsed, batch=batch)
    numbers = parsed.numbers
    kept = np.ones(len(numbers), bool)
    kept[list(wrong)] = False
    rejects = [*parsed.rejects, *((int(numbers[row]), rejection) for row, rejection in wrong.items())]
    return Parsed(numbers[kept], batch.filter(pa.array(kept)), sorted(rejects, key=itemgetter(0)))


def _renamed(batch: pa.RecordBatch, renames: dict[str, str]) -> pa.RecordBatch:
    return batch.rename_columns([renames.get(name, name) for name in batch.schema.names])


def records_of(job: Job, planned: Planned, crumb: Breadcrumb, known: Instructions) -> Iterator[tuple[Sample, RecordContext]]:
    """Yield the fields of the records of a unit, one by one, before any step of the recipe. Raises Rejection."""
    file = planned.file
    if (planned.number, None) in known.lost:
        raise known.lost[planned.number, None]
    if job.fields is None:
        fields = KINDS[job.recipe.kind].fields(read_whole(job, planned), file.path, job.recipe.reading)
        mask = read_mask(job, planned)
        yield fields if mask is None else {**fields, MASK: mask}, RecordContext(planned.key(), file.label, file.columns)
        return
    for parsed in read_unit(job, planned, planned.unit, known.without_lost(planned.number, None), xxhash.xxh3_64()):
        for record, fields in zip(parsed.numbers.tolist(), python_rows(parsed.batch), strict=True):
            crumb.drop(planned.number, record)
            yield fields, origin_of(planned, record, fields)
