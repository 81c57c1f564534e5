"""The dataset that is brought up to date, as it was committed last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.convert.table_writer import done_of
from shardctl.build.shards.marker import ShardMarker
from shardctl.build.shards.record_reading import RecordReading
from shardctl.errors import DatasetError
from shardctl.format.counts import COUNTS, JpegRecord
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, FILES, PLAN, REJECTS, SHARDS, TABLES
from shardctl.format.shard import ShardFacts
from shardctl.format.tables import Reject, ShardTable, open_checked_table, read_rejects, taken
from shardctl.format.update_state import PrunedUnit, UpdateState
from shardctl.system.files import naming_the_path
from shardctl.system.folders import Folder, LocalFolder, hash_file

Numbers = npt.NDArray[np.int64]

REPAIR_FIRST = "run `shardctl repair` first"


def refuse_damaged_tables(folder: Folder, manifest: Manifest) -> None:
    """Raise DatasetError if a table of a dataset is not the one that its manifest records."""
    for name in TABLES:
        with contextlib.suppress(OSError):
            if hash_file(folder, name) == manifest.files[name].sha256:
                continue
        raise DatasetError(f"{folder.shown(name)}: is damaged or missing; {REPAIR_FIRST}")


class PreviousDataset:
    """The dataset at a place, with all that is recorded of it. Raises DatasetError if any of that
    is damaged or missing."""

    def __init__(self, folder: LocalFolder, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        refuse_damaged_tables(folder, manifest)
        try:
            self.state = UpdateState(folder, manifest.update)
        except DatasetError as problem:
            raise DatasetError(
                f"{problem}; without it shardctl cannot tell which inputs changed; use --overwrite "
                "to make the dataset again"
            ) from problem
        self.table = ShardTable(folder)
        making = self.table.making
        try:
            self.layout = Layout.loads(making.layout)
            self.reading = RecordReading.from_json(making.records)
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise DatasetError(
                f"{folder.shown()}: {SHARDS} does not say how it was made ({error!r})"
            ) from error

    def refuse_lost(self, shard: int) -> None:
        """Raise DatasetError if a shard is not there, or not as large as it was."""
        entry = self.table[shard]
        try:
            whole = self.folder.path(entry.path).stat().st_size == entry.bytes
        except OSError:
            whole = False
        if not whole:
            raise DatasetError(
                f"{self.folder.shown(entry.path)}: is damaged or missing; {REPAIR_FIRST}"
            )

    @property
    def digest(self) -> str:
        """What stands for every byte of its samples."""
        return self.manifest.files[CHECKSUMS].sha256

    @cached_property
    def files(self) -> pa.Table:
        """Its table of files, memory-mapped."""
        return open_checked_table(self.folder, FILES)

    @cached_property
    def plan(self) -> pa.Table:
        """Its table of units, memory-mapped."""
        return open_checked_table(self.folder, PLAN)

    def units(self, name: str) -> Numbers:
        """Return a column of its table of units, (units,) int64."""
        column: Numbers = self.plan[name].to_numpy().astype(np.int64, copy=False)
        return column

    @cached_property
    def samples_of_files(self) -> Numbers:
        """How many samples came of each file, (files,) int64."""
        counts = np.zeros(self.files.num_rows, np.int64)
        np.add.at(counts, self.units("file"), self.units("samples"))
        return counts

    @cached_property
    def pruned(self) -> dict[str, dict[int, PrunedUnit | None]]:
        """The records that were taken out by a person, by the path of their file and their number
        in it."""
        found: dict[str, dict[int, PrunedUnit | None]] = {}
        for (source, record), unit in self.state.pruned.items():
            found.setdefault(source, {})[record] = unit
        return found

    @cached_property
    def rejected_files(self) -> dict[str, Reject]:
        """The files that are one record each and were rejected before they were read, or while they
        were."""
        rejects = (reject for reject in read_rejects(self.folder) if reject.key == reject.source)
        return {reject.source: reject for reject in rejects if reject.stage in ("plan", "read")}

    @cached_property
    def _plain_jpegs(self) -> npt.NDArray[np.bool_]:
        return self.table.read_jpegs().plain

    def done(self, shard: int) -> ShardMarker:
        """Return what became of a shard, as its marker said it."""
        entry, counts = self.table[shard], self.state.counts(shard)
        facts = ShardFacts(entry.rows, entry.bytes, entry.raw_bytes, entry.sha256, entry.block_rows)
        jpegs = None
        if counts.jpegs is not None:
            plain = self._plain_jpegs[entry.first : entry.first + entry.rows]
            jpegs = JpegRecord(plain, *dict(zip(COUNTS, counts.jpegs, strict=True)).values())
        units = self.plan.slice(entry.first_unit, entry.units)
        return done_of(facts, entry.inputs, entry.rejected, counts, units, jpegs)

    @cached_property
    def _reject_places(self) -> tuple[Numbers, Numbers]:
        """Where the lines of the rejects of each shard begin in rejects.jsonl, and how many there
        are: (shards,) int64 each."""
        records = np.array([entry.rejected for entry in self.table], np.int64)
        starts, lines = np.zeros(len(records), np.int64), np.zeros(len(records), np.int64)
        shard, left = -1, 0
        offset = 0
        with open(self.folder.path(REJECTS), "rb") as file:
            for line, reject in zip(file, read_rejects(self.folder), strict=True):
                while left <= 0:
                    shard += 1
                    if shard == len(records):
                        raise DatasetError(
                            f"{self.folder.shown(REJECTS)}: has more rejects than {SHARDS} says"
                        )
                    left, starts[shard] = int(records[shard]), offset
                lines[shard] += 1
                left -= reject.records
                offset += len(line)
        return starts, lines

    def rejects_of_units(self) -> Iterator[tuple[int, list[Reject]]]:
        """Yield the units that have rejects, by their rows of the plan, each with these."""
        rejects, counts = read_rejects(self.folder), self.units("rejected")
        for unit in np.flatnonzero(counts).tolist():
            yield unit, list(taken(rejects, int(counts[unit])))

    def reject_lines(self, shard: int) -> Iterator[bytes]:
        """Yield the lines of the rejects of a shard."""
        starts, lines = self._reject_places
        if lines[shard]:
            with (
                naming_the_path(self.folder.path(REJECTS)),
                open(self.folder.path(REJECTS), "rb") as file,
            ):
                file.seek(int(starts[shard]))
                for _ in range(int(lines[shard])):
                    yield file.readline()
