"""What became of every shard of a dataset that is repaired, and which of its samples are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError
from shardctl.format.counts import JpegRecord
from shardctl.format.names import PLAN, REJECTS, SHARDS
from shardctl.format.shard import ShardFacts, ShardReader
from shardctl.format.tables import Reject, ShardTable, open_checked_table, read_rejects, taken
from shardctl.format.update_state import NO_COUNTS, UpdateState
from shardctl.images.codecs.jpeg import jpeg_facts
from shardctl.making.convert.previous import done_of
from shardctl.making.shards.job import Job, PlannedShard, PlannedUnit
from shardctl.making.shards.marker import MARKER_SCHEMA, ShardMarker, read_marker
from shardctl.making.shards.rows import record_of_jpegs
from shardctl.system.folders import Folder, FolderHere, hash_file
from shardctl.system.progress import Phase, Progress
from shardctl.system.report import (
    BAD,
    GOOD,
    Html,
    in_notebook,
    lines_in_notebook,
    marked,
    rows_in_notebook,
    text,
)
from shardctl.system.text import counted


@dataclass(frozen=True)
class Lost:
    """Samples of a damaged shard that cannot be made from their source any more: those of one
    record, or of a whole unit.

    `key` is that of the first of them, `samples` how many they are.
    """

    key: str
    source: str
    shard: str
    reason: str
    samples: int = 1


@dataclass(frozen=True)
class Unrepaired:
    """A file that could not be repaired, and why."""

    file: str
    message: str


@dataclass(frozen=True)
class RepairResult:
    """The result of a repair. `status` is whole (no damage found), repaired, dropped (lost samples
    removed), damaged (still).

    `repaired` names the repaired files, `lost` the samples that cannot be made again; `notices` are
    messages for the user.
    """

    status: str
    repaired: tuple[str, ...]
    unrepaired: tuple[Unrepaired, ...]
    lost: tuple[Lost, ...]
    notices: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the dataset is undamaged now."""
        return not self.unrepaired

    @property
    def lost_samples(self) -> int:
        """How many samples cannot be made again."""
        return sum(lost.samples for lost in self.lost)

    @property
    def verdict(self) -> str:
        """What the dataset is now, in words."""
        return {"repaired": "is whole again", "damaged": "is still DAMAGED"}.get(
            self.status, "is whole"
        )

    @property
    def remark(self) -> str:
        """The words after the verdict: the actions, or the reason why they failed."""
        repaired = (
            f"{counted(len(self.repaired), 'file')} repaired, shards and tables verified by SHA-256"
        )
        return {
            "whole": "; nothing was done",
            "repaired": f": {repaired}",
            "dropped": f", without {counted(self.lost_samples, 'lost sample')}; rejects.jsonl has "
            "the names",
            "damaged": f": {counted(len(self.unrepaired), 'file')} could not be repaired",
        }[self.status]

    def __repr__(self) -> str:
        """Return the verdict, for display."""
        return f"<shardctl.RepairResult: the dataset {self.verdict}{self.remark}>"

    def _repr_html_(self) -> str:
        """Return the verdict, and what was repaired, lost and not repaired, for a notebook."""
        status = marked(self.status, GOOD if self.ok else BAD)
        lost = [
            (each.key, each.samples, each.shard, each.source, each.reason) for each in self.lost
        ]
        return in_notebook(
            Html(f"{status.text} the dataset {text(self.verdict + self.remark)}"),
            lines_in_notebook(self.notices),
            rows_in_notebook(
                "not repaired",
                [(each.file, each.message) for each in self.unrepaired],
                ("file", "why"),
            ),
            rows_in_notebook("lost", lost, ("key", "samples", "shard", "source", "why")),
            rows_in_notebook("repaired", [(name,) for name in self.repaired]),
        )


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a repair: first the files checked, then the records read, each
    as (done, total).

    `reading` gets the places of the sources that the manifest names, before anything is read there.
    """

    checking: Callable[[int, int], None] = lambda done, total: None
    building: Callable[[int, int], None] = lambda done, total: None
    waiting: Callable[[str], None] = lambda owner: None
    reading: Callable[[tuple[str, ...]], None] = lambda sources: None

    @classmethod
    def showing(cls, progress: Progress) -> Listener:
        """Return callbacks that show how far a repair is."""
        return cls(
            progress.counter(Phase("checking", "files")),
            progress.counter(Phase("rebuilding", "inputs")),
        )


LOST = "lost"
"""The reason, in rejects.jsonl, of records that were dropped because their shard and their source
were gone."""


class Outcomes:
    """What became of every shard, for the tables: from its marker where it was built again, else
    from what is intact.

    `done` and `lines` are called for every shard in the order of the dataset, `done` first.
    `counts` is what update.arrows says; without it, the dataset can be repaired, and only not be
    brought up to date.
    """

    def __init__(
        self, dataset: FolderHere, job: Job, intact: set[str], counts: UpdateState | None
    ) -> None:
        self._dataset, self._job = dataset, job
        self._table = ShardTable(dataset) if SHARDS in intact else None
        self._plan = open_checked_table(dataset, PLAN) if PLAN in intact else None
        self._reasons = read_rejects(dataset) if REJECTS in intact else None
        self._lines: list[bytes] | None = None
        self._counts = counts

    def done(self, shard: int) -> ShardMarker:
        """Return what became of a shard."""
        self._lines = None
        marker, place = self._job.marker_path(shard), self._job.planned_shard(shard)
        built = read_marker(marker) if marker.exists() else None
        recorded, reasons = None, []
        if self._plan is not None:
            recorded = self._plan.slice(place.first_unit, place.units)
            if self._reasons is not None:
                counts = filter(None, recorded["rejected"].to_pylist())
                reasons = [list(taken(self._reasons, count)) for count in counts]
        if built is None:
            assert recorded is not None, "shards that nothing is recorded of were all built again"
            self._lines = [reject.line() for of_unit in reasons for reject in of_unit]
            return self._recorded(shard, recorded)
        if recorded is None or self._reasons is None:
            return built
        return self._merged(shard, recorded, built, reasons)

    def lines(self, shard: int, done: ShardMarker) -> Iterator[bytes]:
        """Yield the lines of the rejects of a shard."""
        if self._lines is not None:
            yield from self._lines
        elif done.rejected:
            with open(self._job.rejects_path(shard), "rb") as file:
                yield from file

    def _recorded(self, shard: int, units: pa.Table) -> ShardMarker:
        """Return what became of a shard that was not built again, as the tables have it."""
        place = self._job.planned_shard(shard)
        rejected = _sum(units, "rejected")
        jpegs = self._jpegs(place) if self._job.keeps_sources else None
        if self._table is not None:
            entry = self._table[self._table.names.index(place.name)]
            facts = ShardFacts(
                entry.rows, entry.bytes, entry.raw_bytes, entry.sha256, entry.block_rows
            )
            inputs = entry.inputs
        else:
            facts, keys = shard_facts(self._dataset, place.name)
            inputs = keys + rejected
        counts = NO_COUNTS if self._counts is None else self._counts.counts(shard)
        return done_of(facts, inputs, rejected, counts, units, jpegs)

    def _jpegs(self, place: PlannedShard) -> JpegRecord:
        """Return what the images of a shard that was not built again are as JPEG, as they say it
        themselves."""
        reader = ShardReader(self._dataset, place.name)
        column = str(reader.layout.roles.main_image)
        images = (block.column(column).field("bytes") for block in reader.blocks())
        return record_of_jpegs([jpeg_facts(data.as_py()) for block in images for data in block])

    def _merged(
        self, shard: int, recorded: pa.Table, built: ShardMarker, reasons: list[list[Reject]]
    ) -> ShardMarker:
        """Join what is recorded of a shard with what was built again: what was rejected before
        keeps its reason."""
        place, left = self._job.planned_shard(shard), iter(reasons)
        lost = dict(_lost_units(self._job, shard, recorded))
        rows, lines = [], []
        units = zip(recorded.to_pylist(), built.units.to_pylist(), strict=True)
        for number, (old, new) in enumerate(units, place.first_unit):
            row = {name: old[name] for name in MARKER_SCHEMA.names}
            row |= {"first_row": new["first_row"], "samples": new["samples"]}
            rejects = next(left) if old["rejected"] else []
            for reject in lost.get(number, []):
                records = reject.records
                if new["samples"] == 0:  # some of the unit's records were rejected before
                    # Blank lines are no records, and functions may make several samples of one.
                    before = old["samples"] // self._job.recipe.samples_per_record
                    records = max(1, min(records - old["rejected"], before))
                    row["digest"] = None
                message = f"dropped by repair: {reject.message}"
                rejects.append(Reject(reject.source, reject.key, "read", LOST, message, records))
                row["rejected"] += records
            rows.append(row)
            lines += [reject.line() for reject in rejects]
        self._lines = lines
        table = pa.Table.from_pylist(rows, schema=MARKER_SCHEMA)
        steps = () if self._counts is None else built.steps  # those of all shards, or of none
        return replace(built, rejected=_sum(table, "rejected"), units=table, steps=steps)


def _sum(units: pa.Table, name: str) -> int:
    return int(pc.sum(units[name]).as_py() or 0)


def _lost_units(job: Job, shard: int, recorded: pa.Table) -> Iterator[tuple[int, list[Reject]]]:
    """Yield the units of a shard that gave fewer samples than before, each with its rejects that
    are new."""
    place = job.planned_shard(shard)
    built = read_marker(job.marker_path(shard)).units["samples"].to_numpy()
    fewer = np.flatnonzero(built < recorded["samples"].to_numpy()).tolist()
    by_source: dict[str, list[Reject]] = {}
    for reject in job.rejects(shard) if fewer else ():
        by_source.setdefault(reject.source, []).append(reject)
    for number in fewer:
        planned = job.planned_at(place.first_unit + number)
        known = job.known.get(planned.number, {})
        of_file = by_source.get(planned.file.path, [])
        yield planned.number, [reject for reject in of_file if _is_new(reject, planned, known)]


def _is_new(reject: Reject, planned: PlannedUnit, known: Mapping[int | None, object]) -> bool:
    """Return whether a reject is of a unit, and not one of those that are known. One of several
    records is of all of them."""
    record, first = reject.number, planned.unit.first
    of_unit = first <= record < first + planned.unit.records if first else record == 0
    return of_unit and (reject.records > 1 or record not in known)


def lost_samples(job: Job, shard: int, plan: pa.Table) -> Iterator[Lost]:
    """Yield the samples that a recorded job could not make again; `plan` is that of the dataset."""
    place = job.planned_shard(shard)
    recorded = plan.slice(place.first_unit, place.units)
    built = read_marker(job.marker_path(shard)).units
    for number, rejects in _lost_units(job, shard, recorded):
        at = number - place.first_unit
        fewer = recorded["samples"][at].as_py() - built["samples"][at].as_py()
        for reject in rejects:
            samples = fewer if len(rejects) == 1 else job.recipe.samples_per_record
            yield Lost(reject.key, reject.source, place.name, reject.message, samples)


def shard_facts(dataset: Folder, name: str) -> tuple[ShardFacts, int]:
    """Return the facts of a shard, and of how many records its samples are, from the file itself.
    Raises DatasetError."""
    reader = ShardReader(dataset, name)
    rows, size, keys = [], 0, []
    for block in reader.blocks():
        rows.append(block.num_rows)
        size += block.nbytes
        keys.append(pc.unique(block.column("key")))
    records = len(pc.unique(pa.chunked_array(keys))) if keys else 0
    try:
        sha256 = hash_file(dataset, name)
    except OSError as error:
        raise DatasetError(
            f"{dataset.shown(name)}: cannot be read ({error.strerror or error})"
        ) from error
    return ShardFacts(sum(rows), reader.bytes, size, sha256, tuple(rows)), records
