"""What a worker tells of a shard: how far it is, and the marker of a finished one, with what became of its units."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass
from operator import add, neg
from pathlib import Path

import pyarrow as pa

from shardctl.format.counts import Counts, JpegRecord
from shardctl.format.shard import ShardFacts
from shardctl.making.shards.job import Job
from shardctl.system.files import replacing
from shardctl.transforms.pipeline.functions import Shape


@dataclass(frozen=True)
class WorkDone:
    """Work done since the last report: records of the plan, samples made, records rejected, and
    bytes read."""

    records: int = 0
    samples: int = 0
    rejected: int = 0
    bytes: int = 0

    def __add__(self, other: WorkDone) -> WorkDone:
        return WorkDone(*map(add, astuple(self), astuple(other)))

    def __neg__(self) -> WorkDone:
        return WorkDone(*map(neg, astuple(self)))


MARKER_SCHEMA = pa.schema(
    [
        ("first_row", pa.int64()),
        ("samples", pa.int64()),
        ("rejected", pa.int64()),
        ("digest", pa.uint64()),
    ]
)
"""What became of each unit of a shard: its samples are among the rows from `first_row` on."""


@dataclass(frozen=True)
class ShardMarker:
    """A finished shard, as its marker records it. `shapes` are the first few different decoded
    shapes in it.

    Of `inputs` records `rejected` became no sample. `labels` counts its samples by class. `objects`
    are marked in its images, and `cut_off` of them are no longer (None: it is not known how many).
    `units` has MARKER_SCHEMA. `jpegs` is what its images are as JPEG, None where that is not
    recorded. `steps` counts what became of its records in each step of text and tables.
    `first_frames` of its images are the first of several frames.
    """

    facts: ShardFacts
    inputs: int
    rejected: int
    shapes: tuple[Shape, ...]
    labels: dict[int, int]
    objects: int
    cut_off: int | None
    units: pa.Table
    jpegs: JpegRecord | None = None
    steps: tuple[Counts, ...] = ()
    first_frames: int = 0


def read_finished(job: Job, shard: int) -> ShardMarker | None:
    """Return what the marker of a shard says, None if the shard is not finished.

    Markers are written after their shard. Where the power failed, one may still be there without
    it, or be torn itself. On an object store each is there whole, and only after its shard.
    """
    try:
        done = read_marker(job.marker_path(shard))
        whole = bool(job.url) or job.shard_path(shard).stat().st_size == done.facts.bytes
        whole = whole and (bool(job.url) or bool(done.rejected) == job.rejects_path(shard).exists())
    except (
        OSError,
        pa.ArrowException,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
    ):
        return None
    return done if whole and done.units.num_rows == job.planned_shard(shard).units else None


def read_marker(path: Path) -> ShardMarker:
    """Read what a finished shard's marker says."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    record = json.loads(table.schema.metadata[b"done"])
    facts = ShardFacts(**{**record["facts"], "block_rows": tuple(record["facts"]["block_rows"])})
    jpegs = record["jpegs"]
    read = {
        "facts": facts,
        "shapes": tuple(map(tuple, record["shapes"])),
        "labels": {int(label): count for label, count in record["labels"].items()},
        "units": table.replace_schema_metadata(),
        "jpegs": jpegs and JpegRecord.from_json(jpegs, facts.rows),
        "steps": tuple(record["steps"]),
    }
    return ShardMarker(**{**record, **read})


def rows_made(path: Path) -> int:
    """Return how many samples a finished shard has, by its marker: without a look at its units."""
    metadata = pa.ipc.open_file(pa.memory_map(str(path))).schema.metadata
    return int(json.loads(metadata[b"done"])["facts"]["rows"])


def write_marker(path: Path, done: ShardMarker) -> None:
    """Write the marker of a finished shard."""
    jpegs = done.jpegs and done.jpegs.to_json()
    record = {**vars(done), "facts": asdict(done.facts), "jpegs": jpegs}
    units = record.pop("units")
    schema = MARKER_SCHEMA.with_metadata({"done": json.dumps(record)})
    with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
        writer.write_table(units)
