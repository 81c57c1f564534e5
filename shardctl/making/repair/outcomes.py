"""The job that makes a dataset again, what became of every shard of it, and which of its samples are
lost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError
from shardctl.format.arrays import Numbers, edges_of, sums_of
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    FILES,
    PLAN,
    PLANNED,
    REJECTS,
    SHARDS,
    NamedShard,
    shard_name,
)
from shardctl.format.shard import ShardFacts, ShardReader
from shardctl.format.tables import (
    PLAN_SCHEMA,
    REPAIR_ADVICE,
    Reject,
    ShardTable,
    of_several,
    open_checked_table,
    read_rejects,
    taken,
)
from shardctl.format.update_state import NO_COUNTS, UpdateState
from shardctl.making.convert.discover import Discovery
from shardctl.making.convert.duplicates import Compared, compare_texts, without_repeats
from shardctl.making.convert.write_tables import divided
from shardctl.making.plan.labels import (
    Labelling,
    classes_of,
    label_files,
    write_files_table,
)
from shardctl.making.plan.list_files import list_sources
from shardctl.making.plan.listing import LabelRule, Listing
from shardctl.making.plan.plan import NOT_KEPT, Planner, SplitPlan, write_shards
from shardctl.making.plan.splits import PlanRules, SplitRule, Splitting, split_files
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.job import (
    DatasetJob,
    Job,
    KnownLine,
    PlannedUnit,
    RecordReading,
    SourceBase,
)
from shardctl.making.shards.marker import MARKER_SCHEMA, ShardMarker, read_marker
from shardctl.making.shards.rows import jpegs_in
from shardctl.sources.annotations import AnnotationRule
from shardctl.sources.files import SourceRoot, folder_of
from shardctl.sources.kinds import KINDS
from shardctl.system.files import copy_file, naming_the_path
from shardctl.system.folders import Folder, hash_file
from shardctl.system.locations import normal
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
from shardctl.transforms.recipe import Recipe


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
        self,
        dataset: Folder,
        job: Job,
        shards: Sequence[NamedShard],
        intact: set[str],
        counts: UpdateState | None,
    ) -> None:
        self._dataset, self._job, self._shards = dataset, job, shards
        self._table = ShardTable(dataset) if SHARDS in intact else None
        self._plan = open_checked_table(dataset, PLAN) if PLAN in intact else None
        self._reasons = read_rejects(dataset) if REJECTS in intact else None
        self._counts = counts

    def done(self, shard: int) -> ShardMarker:
        """Return what became of a shard."""
        self._lines: Iterable[bytes] = map(Reject.line, self._job.rejects(shard))
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

    def lines(self, _shard: int, _done: ShardMarker) -> Iterable[bytes]:
        """Return the lines of the rejects of a shard."""
        return self._lines

    def _recorded(self, shard: int, units: pa.Table) -> ShardMarker:
        """Return what became of a shard that was not built again, as the tables have it."""
        rejected = int(units["rejected"].to_numpy().sum())
        path, jpegs = self._shards[shard].path, None
        if self._job.keeps_sources:  # the images themselves say what they are as JPEG
            reader = ShardReader(self._dataset, path)
            jpegs = jpegs_in(reader.blocks(), str(reader.layout.roles.main_image))
        if self._table is not None:
            entry = self._table[shard]
            facts, inputs = entry.facts, entry.inputs
        else:
            facts, keys = shard_facts(self._dataset, path)
            inputs = keys + rejected
        counts = NO_COUNTS if self._counts is None else self._counts.counts(shard)
        outcomes = units.select(MARKER_SCHEMA.names)
        return ShardMarker(path, facts, inputs, rejected, counts, outcomes, jpegs)

    def _merged(
        self, shard: int, recorded: pa.Table, built: ShardMarker, reasons: list[list[Reject]]
    ) -> ShardMarker:
        """Join what is recorded of a shard with what was built again: what was rejected before
        keeps its reason."""
        place, left = self._job.planned_shard(shard), iter(reasons)
        lost = dict(_lost_units(self._job, shard, recorded, built.units))
        rows, lines = recorded.select(MARKER_SCHEMA.names).to_pylist(), []
        units = zip(rows, built.units.to_pylist(), strict=True)
        for number, (row, new) in enumerate(units, place.first_unit):
            samples, rejected = row["samples"], row["rejected"]
            row |= {"first_row": new["first_row"], "samples": new["samples"]}
            rejects = next(left) if rejected else []
            for reject in lost.get(number, []):
                records = reject.records
                if new["samples"] == 0:  # some of the unit's records were rejected before
                    # Blank lines are no records, and functions may make several samples of one.
                    before = samples // self._job.recipe.samples_per_record
                    records = max(1, min(records - rejected, before))
                    row["digest"] = None
                message = f"dropped by repair: {reject.message}"
                rejects.append(Reject(reject.source, reject.key, "read", LOST, message, records))
                row["rejected"] += records
            lines += [reject.line() for reject in rejects]
        self._lines = lines
        table = pa.Table.from_pylist(rows, schema=MARKER_SCHEMA)
        counts = built.counts
        if self._counts is None:
            counts = replace(counts, steps=())  # those of all shards, or of none
        rejected = sum(row["rejected"] for row in rows)
        return replace(built, rejected=rejected, units=table, counts=counts)


def _lost_units(
    job: Job, shard: int, recorded: pa.Table, built: pa.Table
) -> Iterator[tuple[int, list[Reject]]]:
    """Yield the units of a shard that gave fewer samples than before, each with its rejects that
    are new."""
    place = job.planned_shard(shard)
    fewer = np.flatnonzero(built["samples"].to_numpy() < recorded["samples"].to_numpy()).tolist()
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
    for number, rejects in _lost_units(job, shard, recorded, built):
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


# --- the job that makes a dataset again: by its own plan, or from its sources as they are now ---


@dataclass(frozen=True)
class Made:
    """How a dataset was made: what every job that makes it again must know. `folder` is that of the
    job, `sources` are their paths.

    `shards` are all shards, in the order of the dataset.
    """

    dataset: Folder
    folder: Path
    manifest: Manifest
    recipe: Recipe
    layout: Layout
    sources: Sequence[str]
    shards: Sequence[NamedShard]

    def _job(self, splits: Iterable[SplitPlan], recorded: bool) -> DatasetJob:
        """Return the job that has its tables in the folder, or will have them. It has not begun."""
        manifest, reading = self.manifest, RecordReading.from_json(self.manifest.records)
        if reading.fields is not None:  # an earlier version took chats by their types
            reading = replace(reading, fields=self.recipe.with_json(reading.fields))
        return DatasetJob(
            self.folder,
            self._roots,
            self.recipe,
            self.layout,
            tuple(splits),
            **vars(reading),
            shuffle=manifest.settings["shuffle"],
            recorded=recorded,
            apart=True,
            parts=manifest.fingerprint_parts,
        )

    @property
    def _roots(self) -> tuple[SourceBase, ...]:
        """The folders that paths of files are relative to."""
        return tuple(map(SourceBase.anywhere, map(folder_of, self.sources)))

    def _discovery(self, listing: Listing, engine: Engine) -> Discovery:
        """Return what finds the units of the sources."""
        mixed = self.manifest.settings["shuffle"] is not None
        return Discovery(listing, self.recipe.record_reading, mixed, engine)

    def _copy(self, *names: str) -> None:
        """Have the job find tables of the dataset in its own folder."""
        for name in names:
            with naming_the_path(self.folder):
                copy_file(self.dataset.path(name), self.folder / name)

    # --- by the dataset's own plan ---

    def recorded_job(self, intact: set[str]) -> DatasetJob:
        """Return the job that makes the same shards from the dataset's own plan, proving every unit
        by its digest.

        plan.arrow and files.arrow must be intact. Raises DatasetError if they contradict themselves
        all the same.
        """
        self._copy(PLAN, FILES, *self.recipe.tables)
        dataset = self.dataset
        files, plan = open_checked_table(dataset, FILES), open_checked_table(dataset, PLAN)
        units = _units_of_shards(plan, files.num_rows, len(self.shards), dataset.shown(PLAN))
        ends = edges_of(units)
        records = np.diff(edges_of(plan["records"].to_numpy())[ends])
        names = [split.name for split in self.manifest.splits]
        places = [(names.index(each.split), each.number) for each in self.shards]
        split, number = np.array(places).reshape(-1, 2).T
        columns = [split, number, ends[:-1], units, records, np.full(len(units), NOT_KEPT)]
        # where they are lost, they are as a conversion makes them
        blocks = [entry.block_rows for entry in ShardTable(dataset)] if SHARDS in intact else None
        write_shards(self.folder, np.stack(columns, axis=1), blocks)
        counts = sums_of(records, split, len(names)).tolist()
        shards = np.bincount(split, minlength=len(names)).tolist()
        return self._job(map(SplitPlan, names, counts, counts, shards), recorded=True)

    # --- from the sources as they are now ---

    def list_again(self) -> tuple[Listing, Labelling, Splitting]:
        """List, label and divide the sources of a dataset again by its settings. Raises InputError if they are gone, or have nothing of this kind any
        more."""
        manifest, settings = self.manifest, self.manifest.settings
        given = settings["labels"]
        said: dict[str, Any] = {
            "boxes": "keep",
            "annotation_frame": "auto",
            "task": None,
        } | settings
        labels = LabelRule.parse(
            given if isinstance(given, list) else str(given),
            bool(settings["lenient_labels"]),
            list(map(str, settings.get("drop_columns", []))),
            AnnotationRule(said["boxes"], said["annotation_frame"], said["task"]),
        )
        if "classes" in settings:
            labels = replace(labels, classes=classes_of(self.layout.roles))
        recipe, by_key = self.recipe, settings.get("drawn_by") == "key"  # older ones saw no keys
        split = SplitRule.parse(settings["split"])
        rules = PlanRules(split, labels, settings["shuffle"], recipe.seed, by_key, recipe.undivided)
        roots = [SourceRoot(normal(source)) for source in self.sources]
        kind = KINDS[recipe.kind]
        listing = list_sources(roots, kind, recipe.record_reading, labels, self.folder)
        splitting = split_files(listing, rules)
        fields = RecordReading.from_json(manifest.records).fields
        found = (
            recipe.typed_fields is None
            and fields is not None
            and recipe.record_reading.label in fields.names
        )
        if labels.mode == "auto" and listing.side is None and found:
            return listing, Labelling(), splitting  # the records have labels of their own
        return listing, label_files(listing, rules, splitting, recipe, None), splitting

    def duplicates_again(self, engine: Engine) -> list[Compared]:
        """Find the duplicates among the texts of the sources as they are now. Raises InputError,
        SourceGoneError."""
        listing, labelling, _ = self.list_again()
        units = self._discovery(listing, engine).find_units()
        return compare_texts(self._job((), recorded=False), listing, labelling, units, engine)

    def fresh_job(self, engine: Engine) -> DatasetJob:
        """Return the job that makes the dataset from its sources as they are now. Raises
        DatasetError, InputError.

        What it says of duplicates is right: those of the sources are the same.
        """
        listing, labelling, splitting = self.list_again()
        discovery = self._discovery(listing, engine)
        units = without_repeats(discovery, discovery.find_units(), self.recipe, self._roots)
        settings = self.manifest.settings
        planner = Planner(units, splitting, settings["shuffle"])
        shards = settings.get(PLANNED) or {
            split.name: split.shards for split in self.manifest.splits
        }
        numbered = [
            shard_name(name, number) for name, count in shards.items() for number in range(count)
        ]
        ordered = [each.name for each in self.shards]
        there = set(ordered)
        if (
            list(splitting.names) != list(shards)
            or [name for name in numbered if name in there] != ordered
        ):
            raise DatasetError(
                "its sources give other splits and shards now; convert again with --overwrite"
            )
        write_files_table(self.folder / FILES, listing, labelling)
        self._copy(*self.recipe.tables)
        planner.write(self.folder, list(shards.values()))
        job = self._job(
            map(SplitPlan, shards, planner.records, planner.split_records, shards.values()),
            recorded=False,
        )
        filled = np.array([name in there for name in numbered])
        if not filled.all():
            begins, chosen = divided(list(shards.values()), filled)
            job = job.with_shards(begins[:-1], chosen)
            job.write_shards()
        return job


def find_layout(dataset: Folder, manifest: Manifest, intact: set[str]) -> Layout:
    """Return the layout that the shards were written with, from whatever is intact and knows it.
    Raises DatasetError."""
    if SHARDS in intact:
        return Layout.loads(ShardTable(dataset).making.layout)
    for name in sorted(intact - set(manifest.files)):
        found = ShardReader(dataset, name).layout
        # in a shard they are sorted by name, and elsewhere in the order of the columns
        said = found.fields()
        fields = {column: said[column] for column in found.columns.names if column in said}
        return Layout.from_json(found.kind, fields, found.columns)
    raise DatasetError(f"neither a shard nor {SHARDS} is left; convert again with --overwrite")


def _units_of_shards(plan: pa.Table, files: int, shards: int, shown: str) -> Numbers:
    """Return how many units each shard has, (shards,). Raises DatasetError if the plan says what
    cannot be."""
    numbers = [name for name in PLAN_SCHEMA.names if name != "digest"]
    columns = {name: plan[name].to_numpy() for name in numbers if not plan[name].null_count}
    holds = len(columns) == len(numbers) and all(
        column.min() >= 0 and column.max() < 2**62 for column in columns.values() if len(column)
    )
    if holds and plan.num_rows:
        shard = columns["shard"]
        holds = (
            columns["file"].max() < files
            and shard.max() < shards
            and bool((np.diff(shard) >= 0).all())
        )
    if not holds:
        raise DatasetError(f"{shown}: contradicts itself; {REPAIR_ADVICE}")
    return np.bincount(columns["shard"], minlength=shards)


# --- what was rejected when the dataset was made ---


def known_lines(job: Job, rejects: Iterable[Reject], plan: pa.Table | None) -> Iterator[KnownLine]:
    """Yield lines by which the workers of a job reject the same records as the dataset, for the
    same reasons, untried.

    `plan` is the plan of the dataset, if what became of its units is known. Then the job has the
    same plan.
    """
    by_source: dict[str, dict[int, Reject]] = {}
    for reject in rejects:
        by_source.setdefault(reject.source, {})[reject.number] = reject
    paths = pa.array(sorted(by_source), pa.string())
    is_of = np.asarray(pc.is_in(job.files["path"].combine_chunks(), value_set=paths))
    for number in np.flatnonzero(is_of[job.plan["file"].to_numpy()]).tolist():
        planned = job.planned_at(number)
        # Not of blocks: they are counted for the unit that filled them.
        empty = plan is not None and not job.recipe.joins and plan["samples"][number].as_py() == 0
        lost = plan["rejected"][number].as_py() if plan is not None and empty else 0
        for record, reject in _rejects_of(job, planned, by_source[planned.file.path], lost):
            message = reject.message.removesuffix(of_several(reject.records))
            yield number, record, reject.stage, reject.error, message


def _rejects_of(
    job: Job, planned: PlannedUnit, of_file: dict[int, Reject], lost: int
) -> Iterator[tuple[int | None, Reject]]:
    """Yield the rejects of a unit, each with its record; None: all of them.

    `lost` records were rejected where nothing came of the unit, 0 elsewhere.
    """
    unit = planned.unit
    if unit.first == 0:
        if 0 in of_file:
            yield None, of_file[0]
        return
    numbers = sorted(of_file)
    own = numbers[
        bisect_left(numbers, unit.first) : bisect_left(numbers, unit.first + unit.records)
    ]
    if job.draw is not None and job.draw.by_key:
        # Which are of this split is not known without a look at their keys: who builds the shard
        # leaves out the others.
        found = [of_file[number] for number in own]
        of_all = [reject for reject in found if 1 < reject.records == lost]
        each = ((reject.number, reject) for reject in found if reject.records == 1)
        yield from [(None, of_all[0])] if of_all else each
        return
    if own:
        shard = int(np.searchsorted(job.first_units, planned.number, side="right")) - 1
        choose = job.choose(planned, job.planned_shard(shard).split)
        if choose is not None:
            own = np.array(own)[choose(np.array(own))].tolist()
    if own and (lost or of_file[own[0]].records > 1 or unit.records == 1):
        yield None, of_file[own[0]]
        return
    for record in own:
        yield record, of_file[record]
