"""What stays as it is beside images whose pixels a recipe moves: refused if it is a place, else
named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

import pyarrow as pa

from shardctl.build.shards.job import Job
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.records import records_of
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.errors import Rejection, UsageError
from shardctl.format.roles import Mask, Objects, Sample
from shardctl.sources.annotations.objects import ITEMS, OBJECTS
from shardctl.sources.boxes import (
    beside_images,
    column_of,
    has_values_to_see,
    said_of_unknown,
    ways_out,
    why_wrong,
)
from shardctl.sources.first_values import LOOKED_AT, Kind, kinds_of
from shardctl.system.processes.worker_state import WorkerProgress


def refuse_unmoved(
    job: Job, units: Sequence[PlannedUnit], progress: WorkerProgress, hints: RetryHints
) -> list[str]:
    """Return notices on what the recipe leaves as it is beside moved pixels. Raises UsageError for
    places, masks, images."""
    columns = columns_beside(job)
    to_see = [f.name for f in columns if has_values_to_see(f.type)]
    of_objects = _members_beside(job)
    if not columns and not of_objects:
        return []
    step, shown = job.recipe.moving[0].name, _first_kinds(job, to_see, units, progress, hints)
    wrong, unknown = beside_images([*columns, *of_objects], job.layout.roles.by_name, shown)
    if wrong:
        names = [f.name for f in columns]
        stay = dict.fromkeys(column_of(place, names) or OBJECTS for place in wrong)
        of_records = [name for name in stay if name in _names_of_records(job)]
        of_labels = [name for name in stay if name not in of_records]
        raise UsageError(f"{why_wrong(step, wrong)}. {ways_out(step, of_records, of_labels)}")
    return [said_of_unknown(step, unknown, "--unmoved")] if unknown else []


def columns_beside(job: Job) -> list[pa.Field]:
    """Return the columns that stay as they are while the pixels of the images are moved; none where
    nothing moves."""
    if not job.recipe.moving:
        return []
    moved = {
        name for name, role in job.layout.roles.by_name.items() if isinstance(role, Mask | Objects)
    }
    moved |= {"key", "image", "variant", *job.recipe.unmoved, *job.annotation_rules}
    return [f for f in job.layout.columns if f.name not in moved]


def _members_beside(job: Job) -> list[pa.Field]:
    """Return the members of objects of records that stay as they are while objects move, by names
    as objects.polygon."""
    if not job.recipe.moving or OBJECTS not in job.annotation_rules:
        return []
    members = job.layout.columns.field(OBJECTS).type
    return [f.with_name(f"{OBJECTS}.{f.name}") for f in members if f.name not in ITEMS]


def _names_of_records(job: Job) -> set[str]:
    return (
        set() if job.fields is None else {job.renames.get(name, name) for name in job.fields.names}
    )


def _first_kinds(
    job: Job,
    names: list[str],
    units: Sequence[PlannedUnit],
    progress: WorkerProgress,
    hints: RetryHints,
) -> dict[str, set[Kind]]:
    """Return what the first values of columns are.

    One unit that can be read is enough, as each of a compressed file may cost all that is before
    it; more are looked at only while no value of a column says anything.
    """
    found: dict[str, set[Kind]] = {name: set() for name in names}
    for planned in units:
        if all(found.values()):
            break
        progress.begin(planned.number)
        with suppress(Rejection, MemoryError):
            for fields in _records(job, planned, progress, hints):
                progress.enter("decode")
                for name in names:
                    found[name] |= kinds_of(fields.get(name))
    progress.leave()
    return found


def _records(
    job: Job, planned: PlannedUnit, progress: WorkerProgress, hints: RetryHints
) -> Iterator[Sample]:
    known = planned.file.columns or {}
    if job.fields is None:
        yield known
        return
    for _, fields in islice(records_of(job, planned, progress, hints), LOOKED_AT):
        yield {**fields, **known}
