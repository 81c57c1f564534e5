"""A few inputs pushed through the recipe before anything is written: what the columns are, and what it will all cost.

This is done where shards are built, since any of the inputs may be fatal to the process that decodes it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.inputs import read_planned
from shardctl.engines.job import Job
from shardctl.engines.samples import Finished, SampleMaker, add_sample
from shardctl.errors import InputError, Rejection
from shardctl.shard import Compression, Layout, ShardWriter, image_tensor
from shardctl.storage import counted
from shardctl.transforms.values import UnfitValue, check_fit, column_type, describe, plain_value, python_value


@dataclass(frozen=True)
class Probe:
    """What a few inputs pushed through the recipe showed: the final layout, and what a sample costs.

    On average a sample takes `sample_bytes` in a shard, and an input, rejected or not, has `input_bytes`; a shard without
    samples has `shard_bytes`. `rejected` of the inputs could not be converted.
    """

    layout: Layout
    sample_bytes: float
    input_bytes: float
    shard_bytes: int
    sample_seconds: float
    rejected: int

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {**vars(self), "layout": self.layout.to_json()}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Probe:
        """Build the probe that `record` gave."""
        return cls(**{**record, "layout": Layout.loads(record["layout"])})


def probe_inputs(job: Job, crumb: Breadcrumb, lost: Mapping[int, Rejection]) -> Probe:
    """Push every row of the plan of a small job through its recipe, into a shard in memory.

    The job's layout is what is known without looking at any sample. `lost` are rows that crashed every worker that tried
    them. Raises InputError if user functions return no sample for any of them, or fields without a type,
    SourceGoneError if a source does not answer.
    """
    rows = [(number, row) for number, row in enumerate(job.plan.to_pylist()) if number not in lost]
    layout = _with_own_fields(job, _own_samples(job, rows, crumb, lost)) if job.recipe.sample_transforms else job.layout
    maker = SampleMaker(job.recipe, layout, crumb.enter)
    sink = pa.BufferOutputStream()
    writer = ShardWriter(sink, layout.schema("probe", 0, 1), job.recipe.compression)
    made_samples = 0
    started = time.monotonic()
    for number, row in rows:
        if number == rows[0][0] + 1:
            started = time.monotonic()  # the first one also loaded the decoders
        crumb.drop(number)
        try:
            made = maker.make(read_planned(job, number, row), row)
        except (Rejection, MemoryError):
            continue
        add_sample(writer, made, crumb)
        made_samples += 1
    crumb.leave()
    writer.finish()
    seconds = (time.monotonic() - started) / max(1, len(rows) - 1)
    empty = _empty_shard_bytes(layout)
    sample_bytes = (sink.getvalue().size - empty) / max(1, made_samples)
    input_bytes = sum(job.plan["size"].to_pylist()) / job.plan.num_rows
    return Probe(layout, sample_bytes, input_bytes, empty, seconds, job.plan.num_rows - made_samples)


def _empty_shard_bytes(layout: Layout) -> int:
    """Return the size of a shard without samples: names of classes and columns are in every one, twice."""
    sink = pa.BufferOutputStream()
    ShardWriter(sink, layout.schema("probe", 0, 1), Compression("none")).finish()
    return int(sink.getvalue().size)


def _own_samples(
    job: Job, rows: list[tuple[int, dict[str, Any]]], crumb: Breadcrumb, lost: Mapping[int, Rejection]
) -> list[Finished]:
    """Return what a user's functions make of a few inputs."""
    maker, samples = SampleMaker(job.recipe, None, crumb.enter, job.layout.classes), []
    reason: Rejection | MemoryError | None = next(reversed(list(lost.values())), None)
    for number, row in rows:
        crumb.drop(number)
        try:
            samples.append(maker.finish(read_planned(job, number, row), row))
        except (Rejection, MemoryError) as rejection:
            reason = rejection
    crumb.leave()
    if not samples:
        why = f", the last one because: {reason}" if reason else ""
        raise InputError(f"none of {counted(job.plan.num_rows, 'input')} came through the recipe{why}")
    return samples


def _with_own_fields(job: Job, samples: list[Finished]) -> Layout:
    """Return the layout after a user's functions: fields that they dropped are gone, those that they made are added."""
    fields, shape = list(job.layout.columns), None
    if job.layout.store == "raw":
        shape = samples[0].fields["image"].shape
        fields = [pa.field("image", image_tensor(shape)) if f.name == "image" else f for f in fields]
    known = {f.name: f for f in fields}
    names = list(dict.fromkeys(name for sample in samples for name in sample.fields))
    touched = {name for sample in samples for name in sample.setters}
    result = [f for f in fields if f.name in names]
    for name in names:
        if name == "variant" or (name in known and (name not in touched or name in ("key", "image", "label"))):
            continue
        found = pa.field(name, _own_type(name, samples, known[name].type if name in known else None))
        if name in known:
            result[[f.name for f in result].index(name)] = found
        else:
            result.append(found)
    return replace(job.layout, columns=pa.schema(result), shape=shape, classes=job.layout.classes if "label" in names else None)


def _own_type(name: str, samples: list[Finished], known: pa.DataType | None) -> pa.DataType:
    """Return the type of a field that functions set: the one that it had if that still holds all values, else a new one.

    A value that no column can hold is left out: its sample becomes a reject. Raises InputError if none is left, or if
    the others have no type in common.
    """
    values: list[Any] = []
    unfit = None
    for sample in samples:
        try:
            plain = plain_value(sample.fields.get(name))
            pa.array([plain])
            values.append(plain)
        except (UnfitValue, pa.ArrowException, OverflowError, ValueError, TypeError) as problem:
            unfit = problem if isinstance(problem, UnfitValue) else UnfitValue(describe(plain))
    who = next(sample.setters[name] for sample in samples if name in sample.setters)
    if not values:
        raise InputError(f"{who} set {name} to {unfit}, which no column can hold")
    if known is not None and all(_fits(value, known) for value in values):
        return known
    type_ = _common_type(values)
    if not all(_fits(value, type_) for value in values):
        type_ = _common_type(list(map(python_value, values)))
    odd = next((value for value in values if not _fits(value, type_)), None)
    if odd is not None:
        other = next((value for value in values if value is not None and type(value) is not type(odd)), values[0])
        raise InputError(
            f"{who} set {name} to values that have no type in common, such as {describe(other)} and {describe(odd)}"
        )
    return type_


def _common_type(values: list[Any]) -> pa.DataType:
    """Return the type of a column that Arrow finds for these values; null if it finds none."""
    try:
        return column_type(pa.array(values).type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return pa.null()


def _fits(value: Any, type_: pa.DataType) -> bool:
    try:
        check_fit(value, type_)
    except UnfitValue:
        return False
    return True
