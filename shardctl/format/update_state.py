"""update.arrows: what `convert --update` must know of the conversion before. docs/format.md,
section 2.

When each input was changed last, and what was counted in each shard: the totals of the manifest are
sums of the latter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Hashes, Numbers, numbers_of
from shardctl.format.counts import Counts
from shardctl.format.names import UPDATE, Json
from shardctl.system.files import FileFacts, HashingFile
from shardctl.system.folders import Folder, hash_file

FILE_STATES_SCHEMA = pa.schema([("mtime_ns", pa.int64()), ("beside", pa.uint64())])
"""A row per row of files.arrow. `beside` stands for a file that belongs to the input, such as its
mask; 0: there is none."""

COUNTS_SCHEMA = pa.schema(
    [
        ("labels", pa.list_(pa.int64())),
        ("samples", pa.list_(pa.int64())),
        ("shapes", pa.list_(pa.list_(pa.int64()))),
        ("objects", pa.int64()),
        ("cut_off", pa.int64()),
        ("jpegs", pa.list_(pa.int64())),
        ("steps", pa.string()),
    ]
)
"""A row per shard."""

PRUNED_SCHEMA = pa.schema(
    [("source", pa.string()), ("record", pa.int64()), ("unit", pa.list_(pa.uint64()))]
)
"""A row per record that a person has taken out, whether its file is there now or not: see
Pruned."""

BY_KEY = ""
"""What is the source of a record that is known by its own key, in any file: its number is a hash of
that."""

BESIDE_KEY, LABELS_KEY = "shardctl.beside", "shardctl.labels"
"""Metadata of the first stream: what stands for the files that decide what is read of others
(Listing.beside); and what was noted of labels files and annotations, as JSON."""


def marked(file_states: pa.Table, beside: str, labels: Json) -> pa.Table:
    """Return the states of files with these metadata; none for labels of which nothing is noted."""
    said = {BESIDE_KEY: beside} | ({LABELS_KEY: json.dumps(labels)} if labels else {})
    return file_states.replace_schema_metadata(said)


COUNTED_ROWS = 256
"""Rows of shards that are in memory."""


@dataclass(frozen=True)
class ShardCounts:
    """What was counted in a shard. `labels` has its samples by class, `shapes` the first few shapes
    of decoded images in it.

    `objects` are marked in its images, and `cut_off` of them are no longer (None: it is not known
    how many). `jpegs` counts its JPEG images (jpegs.COUNTS), None where that is not recorded.
    `steps` counts what became of its records in each step of text and tables.
    """

    labels: dict[int, int]
    shapes: tuple[tuple[int, int, int], ...]
    objects: int
    cut_off: int | None
    jpegs: tuple[int, ...] | None
    steps: tuple[Counts, ...]

    def row(self) -> Json:
        """Return the row of the table."""
        return {
            "labels": list(self.labels),
            "samples": list(self.labels.values()),
            "shapes": [list(shape) for shape in self.shapes],
            "objects": self.objects,
            "cut_off": self.cut_off,
            "jpegs": None if self.jpegs is None else list(self.jpegs),
            "steps": json.dumps(self.steps) if self.steps else None,
        }

    @classmethod
    def of_row(cls, row: Json) -> ShardCounts:
        """Read what `row` gave."""
        labels = dict(zip(row["labels"], row["samples"], strict=True))
        shapes = tuple((height, width, depth) for height, width, depth in row["shapes"])
        jpegs = None if row["jpegs"] is None else tuple(row["jpegs"])
        steps = tuple(json.loads(row["steps"])) if row["steps"] else ()
        return cls(labels, shapes, row["objects"], row["cut_off"], jpegs, steps)


NO_COUNTS = ShardCounts({}, (), 0, 0, None, ())
"""Of a shard of which nothing is known."""


PrunedUnit = tuple[int, ...]
"""The unit that a record was in: its row of the plan, from `offset` to `records`, and `digest`."""

Pruned = Mapping[tuple[str, int], PrunedUnit | None]
"""Records that a person has taken out: the path of the file, and the number of the record in it (0:
the file is one).

Where the file has gone, each has its unit, so that it is known again when the file is back; else
None.
"""

NOTHING_PRUNED: Pruned = {}


class UpdateWriter:
    """Writes update.arrows: first the rows of all files, then those of the shards in the order of
    the dataset, then what was pruned."""

    def __init__(self, sink: HashingFile, file_states: pa.Table, pruned: Pruned) -> None:
        """`file_states` may have more columns than those of FILE_STATES_SCHEMA; its metadata are
        kept."""
        self._file, self._pruned = pa.PythonFile(sink, mode="w"), pruned
        schema = FILE_STATES_SCHEMA.with_metadata(file_states.schema.metadata)
        with pa.ipc.new_stream(self._file, schema) as writer:
            for batch in file_states.select(FILE_STATES_SCHEMA.names).to_batches():
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        self._counts = pa.ipc.new_stream(self._file, COUNTS_SCHEMA)
        self._rows: list[Json] = []

    def add(self, counts: ShardCounts) -> None:
        """Add the row of a shard."""
        self._rows.append(counts.row())
        if len(self._rows) == COUNTED_ROWS:
            self._write()

    def _write(self) -> None:
        self._counts.write_batch(pa.RecordBatch.from_pylist(self._rows, COUNTS_SCHEMA))
        self._rows.clear()

    def finish(self) -> None:
        """Write what is held, and what was pruned."""
        self._write()
        self._counts.close()
        rows = [
            {"source": each[0], "record": each[1], "unit": self._pruned[each]}
            for each in sorted(self._pruned)
        ]
        with pa.ipc.new_stream(self._file, PRUNED_SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, PRUNED_SCHEMA))


class UpdateState:
    """update.arrows, memory-mapped. Raises DatasetError if it is not as the manifest records it."""

    def __init__(self, folder: Folder, facts: FileFacts | None) -> None:
        self._shown = folder.shown()
        found = folder.stat(UPDATE)
        if facts is None or found is None or found.kind not in ("file", "link"):
            raise DatasetError(f"{self._shown}: its update.arrows is missing")
        try:
            if hash_file(folder, UPDATE) != facts.sha256:
                raise DatasetError(f"{self._shown}: its update.arrows is damaged")
            with pa.memory_map(str(folder.path(UPDATE))) as file:
                self.files: pa.Table = pa.ipc.open_stream(file).read_all()
                self._counts: pa.Table = pa.ipc.open_stream(file).read_all()
                pruned: pa.Table = pa.ipc.open_stream(file).read_all()
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(
                f"{self._shown}: its update.arrows cannot be read ({error})"
            ) from error
        if self.files.schema != FILE_STATES_SCHEMA or self._counts.schema != COUNTS_SCHEMA:
            raise DatasetError(
                f"{self._shown}: its update.arrows is of another version of shardctl"
            )
        self.pruned: Pruned = {
            (row["source"], row["record"]): tuple(unit) if (unit := row.get("unit")) else None
            for row in pruned.to_pylist()
        }
        """The records that were taken out."""
        said = self.files.schema.metadata or {}
        self.digest_beside = said.get(BESIDE_KEY.encode(), b"").decode()
        """What stands for the files that decide what is read of others."""
        self.labels: Json = json.loads(said.get(LABELS_KEY.encode(), b"{}"))
        """What was noted of labels files and annotations (Listing.note_label_states)."""

    @classmethod
    def find(cls, folder: Folder, facts: FileFacts | None) -> UpdateState | None:
        """Return the same; None if it is not as the manifest records it."""
        with suppress(DatasetError):
            return cls(folder, facts)
        return None

    @property
    def mtime_ns(self) -> Numbers:
        """When each file of files.arrow was changed last, (files,) int64."""
        return numbers_of(self.files["mtime_ns"])

    @property
    def beside(self) -> Hashes:
        """What stands for the file that belongs to each file, (files,) uint64; 0: none."""
        return numbers_of(self.files["beside"])

    def counts(self, shard: int) -> ShardCounts:
        """Return what was counted in a shard."""
        (row,) = self._counts.slice(shard, 1).to_pylist()
        return ShardCounts.of_row(row)

    @property
    def cut_off(self) -> Numbers:
        """How many objects are no longer marked in the images of each shard, (shards,); -1 where
        that is not known."""
        return self._counts["cut_off"].fill_null(-1).to_numpy()  # type: ignore[no-any-return]  # pyarrow is untyped

    @property
    def image_sizes(self) -> Numbers:
        """The height and the width of the images of each shard, (shards, 2); 0 where they differ,
        and where there are none."""
        shapes = self._counts["shapes"].combine_chunks()
        of_shards = np.from_dlpack(shapes.offsets)
        alike = np.diff(of_shards) == 1
        sizes = np.zeros((len(shapes), 2), np.int64)
        # not filter, which imports pyarrow.compute
        starts = np.from_dlpack(shapes.values.offsets)[of_shards[:-1][alike]]
        sizes[alike] = np.from_dlpack(shapes.values.values)[starts[:, None] + np.arange(2)]
        return sizes
