"""The unit of work: build one shard. The same function runs in-process, in a worker process, or anywhere else."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.inputs import read_planned
from shardctl.engines.job import Job
from shardctl.engines.samples import SampleMaker, Shape, add_sample, digest_of
from shardctl.errors import Rejection
from shardctl.shard import ShardFacts, ShardWriter
from shardctl.storage import StreamedFile, replacing

PLAN_ROWS = 2048
"""Rows of the plan that are Python objects at a time."""

REPORT_SECONDS = 0.5
"""Seconds between progress reports of a task. Every report wakes the parent, which then takes a core from a worker."""

OUT_OF_MEMORY_MESSAGE = "needs more memory than there is, or than --worker-memory allows"

MARKER_SCHEMA = pa.schema(
    [
        ("row", pa.int32()),
        ("digest", pa.uint64()),
        ("stage", pa.string()),
        ("error", pa.string()),
        ("message", pa.string()),
    ]
)


@dataclass(frozen=True)
class Progress:
    """Work done since the last report: inputs, those of them that were rejected, and the bytes read."""

    inputs: int
    rejected: int
    bytes: int

    def __add__(self, other: Progress) -> Progress:
        return Progress(self.inputs + other.inputs, self.rejected + other.rejected, self.bytes + other.bytes)

    def __neg__(self) -> Progress:
        return Progress(-self.inputs, -self.rejected, -self.bytes)


@dataclass(frozen=True)
class Outcome:
    """What became of one input: `row` in its shard, or None and the reason."""

    row: int | None
    digest: int | None
    stage: str | None = None
    error: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Done:
    """A finished shard, as its marker records it. `shapes` are the first few different decoded shapes in it.

    `labels` counts its samples by class; None if that was not recorded, and the plan's labels are those of the samples.
    """

    facts: ShardFacts
    shapes: tuple[Shape, ...]
    outcomes: pa.Table
    labels: dict[int, int] | None = None

    @property
    def rejected(self) -> int:
        """How many inputs were rejected."""
        return int(self.outcomes["row"].null_count)


def run_shard(
    job: Job, shard: int, report: Callable[[Progress], None], crumb: Breadcrumb, lost: Mapping[int, Rejection]
) -> None:
    """Build one shard: its rows of the plan in, the shard file and then its done marker out, each by rename.

    `lost` are rows of the plan that no worker survives, with the reason: they are not decoded again. A job whose plan is
    that of a finished dataset makes the same shard again, and rejects what its source no longer gives.
    """
    place = job.place(shard)
    maker = SampleMaker(job.recipe, job.layout, crumb.enter)
    outcomes: list[Outcome] = []
    shapes: set[Shape] = set()
    labels: Counter[int] = Counter()
    reporter = _Reporter(report)
    with replacing(job.shard_path(shard), StreamedFile) as sink:
        writer = ShardWriter(sink, job.layout.schema(place.split.name, place.local, place.split.shards), job.recipe.compression)
        rows = 0
        for number, planned in enumerate(_plan_rows(job, place.first_row, place.rows), place.first_row):
            digest = None
            crumb.drop(number)
            try:
                if number in lost and lost[number].stage == "read":
                    raise lost[number]
                data = read_planned(job, number, planned)
                digest = digest_of(data)
                if number in lost:
                    raise lost[number]
                made = maker.make(data, planned)
            except Rejection as rejection:
                outcomes.append(Outcome(None, digest, rejection.stage, rejection.error, rejection.message))
            except MemoryError:
                outcomes.append(Outcome(None, digest, crumb.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE))
            else:
                add_sample(writer, made, crumb)
                outcomes.append(Outcome(rows, digest))
                rows += 1
                if made.label is not None:
                    labels[made.label] += 1
                if made.shape and len(shapes) < 2:
                    shapes.add(made.shape)
            crumb.leave()
            reporter.count(planned["size"], outcomes[-1].row is None)
        block_rows = writer.finish()
    facts = ShardFacts(rows, sink.tell(), writer.raw_bytes, sink.sha256, block_rows)
    _write_marker(job.marker_path(shard), Done(facts, tuple(sorted(shapes)), _outcome_table(outcomes), dict(labels)))
    reporter.flush()


def read_finished(job: Job, shard: int) -> Done | None:
    """Return what the marker of a shard says, None if the shard is not finished.

    Markers are written after their shard. Where the power failed, one may still be there without it, or be torn itself.
    """
    try:
        done = read_marker(job.marker_path(shard))
        whole = job.shard_path(shard).stat().st_size == done.facts.bytes
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, AttributeError):
        return None
    return done if whole and done.outcomes.num_rows == job.place(shard).rows else None


def read_marker(path: Path) -> Done:
    """Read what a finished shard's marker says."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    record = json.loads(table.schema.metadata[b"done"])
    facts = ShardFacts(**{**record["facts"], "block_rows": tuple(record["facts"]["block_rows"])})
    labels = {int(label): count for label, count in record["labels"].items()}
    return Done(facts, tuple(tuple(shape) for shape in record["shapes"]), table, labels)


def _write_marker(path: Path, done: Done) -> None:
    record = json.dumps({"facts": asdict(done.facts), "shapes": done.shapes, "labels": done.labels})
    schema = MARKER_SCHEMA.with_metadata({"done": record})
    with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
        writer.write_table(done.outcomes.cast(schema))


def _outcome_table(outcomes: list[Outcome]) -> pa.Table:
    columns = {name: [getattr(outcome, name) for outcome in outcomes] for name in MARKER_SCHEMA.names}
    return pa.table(columns, schema=MARKER_SCHEMA)


def _plan_rows(job: Job, first: int, count: int) -> Iterator[dict[str, Any]]:
    for start in range(first, first + count, PLAN_ROWS):
        yield from job.plan.slice(start, min(PLAN_ROWS, first + count - start)).to_pylist()


class _Reporter:
    """Adds up progress and passes it on now and then."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report
        self._inputs = self._rejected = self._bytes = 0
        self._next = time.monotonic() + REPORT_SECONDS

    def count(self, size: int, rejected: bool) -> None:
        self._inputs += 1
        self._bytes += size
        self._rejected += rejected
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        self._report(Progress(self._inputs, self._rejected, self._bytes))
        self._inputs = self._rejected = self._bytes = 0
        self._next = time.monotonic() + REPORT_SECONDS
