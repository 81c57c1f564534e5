"""The records of a unit, as its format reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.build.shards.inputs import check_state, read_whole, reading, state_of
from shardctl.build.shards.job import KEY, Job, PlannedUnit
from shardctl.build.shards.mask_files import read_mask
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.errors import Rejection
from shardctl.format.exact_values import python_rows
from shardctl.format.sample import Sample
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.companions import copy_to_read
from shardctl.sources.endings import ending_of
from shardctl.sources.files import local_copy
from shardctl.sources.formats import Choose, Digest, Parsed, Reading, Unit, find_format
from shardctl.sources.kinds import KINDS
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.transforms.pipeline.batches import check_keys, check_labels, encode_labels
from shardctl.transforms.pipeline.samples import RecordContext

FITTED_RECORDS = 1024
"""The most records that are read together where some do not fit the types that were given."""


def read_unit(job: Job, planned: PlannedUnit, unit: Unit, choose: Choose | None, digest: Digest) -> Iterator[Parsed]:
    """Yield the chosen records of a unit of a file of many records, labels as the numbers of their classes.

    Raises Rejection, Misfit, SourceGoneError.
    """
    assert job.fields is not None, "a format reads into columns"
    for parsed in read_fields(job, planned, unit, job.recipe.reading, job.fields, choose, digest):
        if job.renames:
            parsed = replace(parsed, batch=_renamed(parsed.batch, job.renames))
        if job.by_field and job.layout.classes is not None:
            parsed = replace(parsed, batch=encode_labels(parsed.batch, job.layout.classes))
        if job.layout.roles.names:
            parsed = _without(parsed, *check_labels(parsed.batch, job.layout.roles.names))
        if job.recipe.key_source is not None:
            parsed = _without(parsed, *check_keys(parsed.batch))
        yield parsed


def read_fields(
    job: Job, planned: PlannedUnit, unit: Unit, rules: Reading, schema: pa.Schema, choose: Choose | None, digest: Digest
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit as its format reads them. Raises Rejection, Misfit, SourceGoneError."""
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
                check_state(job, planned, path, before)
                return
        yield parsed


def origin_of(planned: PlannedUnit, record: int | None, fields: Sample) -> RecordContext:
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


def records_of(
    job: Job, planned: PlannedUnit, progress: WorkerProgress, hints: RetryHints
) -> Iterator[tuple[Sample, RecordContext]]:
    """Yield the fields of the records of a unit, one by one, before any step of the recipe. Raises Rejection."""
    file = planned.file
    if (planned.number, None) in hints.lost:
        raise hints.lost[planned.number, None]
    if job.fields is None:
        fields = KINDS[job.recipe.kind].fields(read_whole(job, planned), file.path, job.recipe.reading)
        mask = read_mask(job, planned)
        yield fields if mask is None else {**fields, MASK: mask}, RecordContext(planned.key(), file.label, file.columns)
        return
    for parsed in read_unit(job, planned, planned.unit, hints.without_lost(planned.number, None), xxhash.xxh3_64()):
        for record, fields in zip(parsed.numbers.tolist(), python_rows(parsed.batch), strict=True):
            progress.begin(planned.number, record)
            yield fields, origin_of(planned, record, fields)
