"""The job that makes a dataset again: by its own plan, or from its sources as they are now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError
from shardctl.format.arrays import Numbers
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, PLAN, PLANNED, SHARDS, shard_name
from shardctl.format.shard import ShardReader
from shardctl.format.tables import (
    PLAN_SCHEMA,
    REPAIR_ADVICE,
    Reject,
    ShardTable,
    of_several,
    open_checked_table,
)
from shardctl.making.commit.publish import link_or_copy
from shardctl.making.commit.staging import begin
from shardctl.making.convert.discover import Discovery
from shardctl.making.convert.duplicates import Compared, compare_texts, without_repeats
from shardctl.making.convert.table_writer import divided
from shardctl.making.plan.labels import (
    Labelling,
    classes_of,
    label_files,
    write_files_table,
)
from shardctl.making.plan.list_files import list_files
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
from shardctl.sources.annotations import AnnotationRule
from shardctl.sources.files import SourceRoot, folder_of
from shardctl.sources.kinds import KINDS
from shardctl.system.files import naming_the_path
from shardctl.system.folders import FolderHere
from shardctl.system.locations import normal
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe


@dataclass(frozen=True)
class Made:
    """How a dataset was made: what every job that makes it again must know. `sources` are their
    paths.

    `shards` are the file names of all shards, in the order of the dataset.
    """

    manifest: Manifest
    recipe: Recipe
    layout: Layout
    sources: Sequence[str]
    shards: Sequence[str]

    @property
    def roots(self) -> tuple[SourceBase, ...]:
        """The folders that paths of files are relative to."""
        return tuple(map(SourceBase.anywhere, map(folder_of, self.sources)))

    def job(self, folder: Path, splits: tuple[SplitPlan, ...], recorded: bool) -> DatasetJob:
        """Return the job in a folder that has its tables."""
        manifest, reading = self.manifest, RecordReading.from_json(self.manifest.records)
        if reading.fields is not None:  # an earlier version took chats by their types
            reading = replace(reading, fields=self.recipe.with_json(reading.fields))
        job = DatasetJob(
            folder,
            self.roots,
            self.recipe,
            self.layout,
            splits,
            **vars(reading),
            shuffle=manifest.settings["shuffle"],
            recorded=recorded,
            parts=manifest.fingerprint_parts,
        )
        begin(job)
        return job


def find_layout(dataset: FolderHere, manifest: Manifest, intact: set[str]) -> Layout:
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


# --- by the dataset's own plan ---


def _link(dataset: FolderHere, folder: Path, names: Iterable[str]) -> None:
    """Have a job find tables of the dataset: by a second name, since no symbolic link is followed
    in a staging folder."""
    for name in names:
        with naming_the_path(folder):
            link_or_copy(dataset.path(name).resolve(), folder / name)


def recorded_job(dataset: FolderHere, folder: Path, made: Made, intact: set[str]) -> DatasetJob:
    """Return the job that makes the same shards from the dataset's own plan, proving every unit by
    its digest.

    plan.arrow and files.arrow must be intact. Raises DatasetError if they contradict themselves all
    the same.
    """
    _link(dataset, folder, (PLAN, FILES, *made.recipe.tables))
    files, plan = open_checked_table(dataset, FILES), open_checked_table(dataset, PLAN)
    units = _units_of_shards(plan, files.num_rows, len(made.shards), dataset.shown(PLAN))
    ends = np.cumsum([0, *units])
    in_plan = np.concatenate([[0], np.cumsum(plan["records"].to_numpy())])
    records = in_plan[ends[1:]] - in_plan[ends[:-1]]
    names = [split.name for split in made.manifest.splits]
    places = [split_and_number(name, names) for name in made.shards]
    split, number = np.array(places).reshape(-1, 2).T
    columns = [split, number, ends[:-1], units, records, np.full(len(units), NOT_KEPT)]
    # where they are lost, they are as a conversion makes them
    blocks = [entry.block_rows for entry in ShardTable(dataset)] if SHARDS in intact else None
    write_shards(folder, np.stack(columns, axis=1), blocks)
    splits = []
    for of, name in enumerate(names):
        count = int(records[split == of].sum())
        splits.append(SplitPlan(name, count, count, int(np.count_nonzero(split == of))))
    return made.job(folder, tuple(splits), recorded=True)


def _units_of_shards(plan: pa.Table, files: int, shards: int, shown: str) -> Numbers:
    """Return how many units each shard has, (shards,). Raises DatasetError if the plan says what
    cannot be."""
    if not plan.schema.equals(PLAN_SCHEMA):
        raise DatasetError(f"{shown}: has other columns than in `shardctl help format`")
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


def split_and_number(name: str, splits: Sequence[str]) -> tuple[int, int]:
    """Return the number of a shard's split, and its own number within it, from its file name.
    Raises DatasetError."""
    split, _, digits = name.removesuffix(".arrow").rpartition("-")
    if split in splits and digits.isdecimal() and shard_name(split, int(digits)) == name:
        return splits.index(split), int(digits)
    raise DatasetError(f"{printable(name)} is not a possible name of a shard of this dataset")


# --- from the sources as they are now ---


def list_again(folder: Path, made: Made) -> tuple[Listing, Labelling, Splitting]:
    """List, label and divide the sources of a dataset again by its settings. Raises InputError if they are gone, or have nothing of this kind any
    more."""
    manifest, settings = made.manifest, made.manifest.settings
    given = settings["labels"]
    said: dict[str, Any] = {"boxes": "keep", "annotation_frame": "auto", "task": None} | settings
    labels = LabelRule.parse(
        given if isinstance(given, list) else str(given),
        bool(settings["lenient_labels"]),
        list(map(str, settings.get("drop_columns", []))),
        AnnotationRule(said["boxes"], said["annotation_frame"], said["task"]),
    )
    if "classes" in settings:
        labels = replace(labels, classes=classes_of(made.layout.roles))
    recipe, by_key = made.recipe, settings.get("drawn_by") == "key"  # older ones saw no keys
    split = SplitRule.parse(settings["split"])
    rules = PlanRules(split, labels, settings["shuffle"], recipe.seed, by_key, recipe.undivided)
    roots = [SourceRoot(normal(source)) for source in made.sources]
    reading, table = recipe.record_reading, folder / "listing.arrow"
    listing = list_files(roots, KINDS[recipe.kind], reading, labels, table, lambda _: None)
    splitting = split_files(listing, rules)
    fields = RecordReading.from_json(manifest.records).fields
    found = recipe.typed_fields is None and fields is not None and reading.label in fields.names
    if labels.mode == "auto" and listing.side is None and found:
        return listing, Labelling(), splitting  # the records have labels of their own
    return listing, label_files(listing, rules, splitting, recipe, None), splitting


def duplicates_again(folder: Path, made: Made, engine: Engine) -> list[Compared]:
    """Find the duplicates among the texts of the sources as they are now. Raises InputError,
    SourceGoneError."""
    listing, labelling, _ = list_again(folder, made)
    discovery = Discovery(
        listing, made.recipe.record_reading, made.manifest.settings["shuffle"] is not None, engine
    )
    job = made.job(folder, (), recorded=False)
    return compare_texts(job, listing, labelling, discovery.find_units(), engine)


def fresh_job(dataset: FolderHere, folder: Path, made: Made, engine: Engine) -> DatasetJob:
    """Return the job that makes the dataset from its sources as they are now. Raises DatasetError,
    InputError.

    What it says of duplicates is right: those of the sources are the same.
    """
    listing, labelling, splitting = list_again(folder, made)
    shuffle = made.manifest.settings["shuffle"]
    discovery = Discovery(listing, made.recipe.record_reading, shuffle is not None, engine)
    units = without_repeats(discovery, discovery.find_units(), made.recipe, made.roots)
    planner = Planner(units, splitting, shuffle)
    shards = made.manifest.settings.get(PLANNED) or {
        split.name: split.shards for split in made.manifest.splits
    }
    numbered = [
        shard_name(name, number) for name, count in shards.items() for number in range(count)
    ]
    there = set(made.shards)
    if list(splitting.names) != list(shards) or [
        name for name in numbered if name in there
    ] != list(made.shards):
        raise DatasetError(
            "its sources give other splits and shards now; convert again with --overwrite"
        )
    write_files_table(folder / FILES, listing, labelling)
    _link(dataset, folder, made.recipe.tables)
    planner.write(folder, list(shards.values()))
    splits = tuple(
        SplitPlan(name, records, expected, count)
        for (name, count), records, expected in zip(
            shards.items(), planner.records, planner.split_records, strict=True
        )
    )
    filled = np.array([name in there for name in numbered])
    if not filled.all():
        begins, chosen = divided(list(shards.values()), filled)
        job = made.job(folder, splits, recorded=False).with_shards(begins[:-1], chosen)
        job.write_shards()
        splits = job.splits
    return made.job(folder, splits, recorded=False)


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
