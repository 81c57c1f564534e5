"""The plan of a new dataset, made before anything is written: the units of its shards, the columns,
the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from shardctl.build.convert.columns import (
    chosen_columns,
    compare_schema,
    known_layout,
    masks_of,
    names_left_out,
    refuse_fields,
    refuse_groups,
    refuse_partitions,
    renamed,
    said_by_exports,
    with_bits,
    with_images,
    with_rule,
    with_tensors,
    without_folders,
    without_key,
)
from shardctl.build.convert.discover import Discovery
from shardctl.build.convert.listener import Listener
from shardctl.build.options import Options
from shardctl.build.plan.labels import (
    Labelling,
    PlanRules,
    label_files,
    left_out_by,
    refuse_other_names,
    write_files,
)
from shardctl.build.plan.listing import Listing
from shardctl.build.plan.plan import Planner, SplitPlan, Units, order_units
from shardctl.build.plan.splits import Splitting, look_inside, split_files
from shardctl.build.shards.engines.local import Engine
from shardctl.build.shards.job import Costs, DatasetJob, Job, Lineage, RecordReading, plan_job
from shardctl.build.shards.planned import Root
from shardctl.build.shards.scan import Probe
from shardctl.format.layout import Layout
from shardctl.format.names import FILES
from shardctl.format.roles import Role
from shardctl.format.tables import failures
from shardctl.sources.formats import DETECT, is_json
from shardctl.sources.image_columns import FRAME, marked_masks, with_said
from shardctl.sources.jsonl import null_label_notice
from shardctl.sources.label_table import SPLIT_COLUMN, some
from shardctl.sources.types import UNNAMED, Types, separator_in, without_nulls
from shardctl.system.files import copy_file
from shardctl.system.text import counted, printable
from shardctl.transforms.recipe import Recipe

if TYPE_CHECKING:
    from shardctl.build.convert.duplicates import Compared

SHARD_BYTES = 128 << 20
"""Default target size of a shard. Defaults and advice of other tools: 50 to 150 MB."""

FEWEST_SHARDS = 16
"""A small dataset is still cut into this many shards (of SMALLEST_SHARD_ROWS or more), so that
workers can share the work."""

SMALLEST_SHARD_ROWS = 8

SMALLEST_SHARD_BLOCKS = 64
"""The same where samples are blocks: the last one of each shard is filled up, and few documents
fill blocks less well."""

PROBE_FILES = {"image": 32, "text": 1024}
"""Files, of those that are one record each, that are pushed through the recipe before the plan is
made: always the same ones, so that the plan is too.

Text is cheap to read, and compresses better in large blocks than in small ones: 32 files gave an
estimate of twice the size.
"""

PROBED_WITH_FILTERS = 4
"""So many times as many images are tried where filters reject some of them: else none may be left
to learn the size from."""

PROBE_RUNS, PROBE_RUN = 4, 256
"""How many records of files of many records are tried: so many runs, of so many neighbours each."""


PROBE_IMAGE_RUN = 8
"""The same where records have images, which take a thousand times as long as text."""

MANY_FAILURES = 0.5
"""A conversion does not begin where a larger share than this cannot be converted of the inputs that
were tried."""

WIDE_PLACES, WIDE_RUN, WIDE_SLOW_RUN = 64, 16, 4
"""Where most of these fail, so many runs of neighbours are tried at places all over the inputs: the
slow ones have images, or steps that work on text."""

WIDE_FILES = {"image": 256, "text": 1024}
"""The same of files that are one record each."""

WIDE_REACH = 8 << 20
"""How far into a unit records are tried then, in bytes: a compressed file is one, and is read from
its beginning."""

PROBED_BY_STEPS = 64
"""Files, or neighbouring records, where steps of text work on them: rules of quality and tokenizers
take a millisecond each."""

EMPTY = Layout("", pa.schema([]))


@dataclass(frozen=True)
class Material:
    """What a plan is made from. The plan adds notices to `listing`, and may take columns from its
    labels files. `roots` are the folders that paths are relative to; `folder` is for scratch, and
    only this process reads it."""

    listing: Listing
    recipe: Recipe
    rules: PlanRules
    options: Options
    roots: tuple[Root, ...]
    engine: Engine
    folder: Path
    listener: Listener

    @property
    def discovery(self) -> Discovery:
        """What looks into the files."""
        recipe, shuffled = self.recipe, self.rules.shuffle is not None
        scanning = self.listener.scanning
        return Discovery(self.listing, recipe.reading, shuffled, self.engine, scanning)

    def splitting(self) -> Splitting:
        """Divide the files. Raises InputError."""
        rules = self.rules
        return split_files(self.listing, rules.split, rules.seed, rules.by_key, rules.group)

    def job(self, fields: pa.Schema | None, by_field: bool) -> Job:
        """Return a job that reads records as these columns."""
        return Job(
            self.folder, self.roots, self.recipe, EMPTY, (), fields=fields, by_field=by_field
        )

    def shards_of(self, rows: int, sample_bytes: float) -> int:
        """Return the number of shards of a split with `rows` rows."""
        fewest = SMALLEST_SHARD_BLOCKS if self.recipe.joins else SMALLEST_SHARD_ROWS
        return shards_of(rows, sample_bytes, self.options, fewest)


@dataclass(frozen=True)
class ConversionPlan:
    """A new dataset that is decided on and not begun: what makes the rows of its plan, and its job
    but for the folder.

    `probed` records were tried; a sample takes `sample_bytes` on average, over all of them.
    """

    listing: Listing
    labelling: Labelling
    planner: Planner
    fields: pa.Schema | None
    probe: Probe
    sample_bytes: float
    splits: tuple[SplitPlan, ...]
    compared: Sequence[Compared] = ()

    def job(
        self,
        folder: Path,
        roots: tuple[Root, ...],
        recipe: Recipe,
        parts: dict[str, str],
        shuffle: int | None,
    ) -> DatasetJob:
        """Return the job in its folder."""
        probe, planner = self.probe, self.planner
        costs = Costs(
            sample_bytes=self.sample_bytes,
            samples_per_record=probe.samples_per_record,
            record_seconds=probe.record_seconds + probe.unit_seconds / planner.records_per_unit,
            shard_bytes=probe.shard_bytes,
            probed=probe.records,
            probe_rejects=probe.rejected,
        )
        reading = RecordReading(self.fields, self.labelling.by_field, draw=planner.order.draw)
        lineage = Lineage(parts, beside=self.listing.digest_beside)
        of_job = (folder, roots, recipe, probe.layout, self.splits, reading, lineage)
        return plan_job(*of_job, shuffle=shuffle, costs=costs)

    def write(self, folder: Path) -> None:
        """Write the tables of the job."""
        write_files(folder / FILES, self.listing, self.labelling)
        self.planner.write(folder, [split.shards for split in self.splits])
        for each in self.compared:
            copy_file(each.table, folder / each.table.name)


def plan_conversion(material: Material, all_types: bool) -> ConversionPlan:
    """Plan a conversion, having probed some of its records.

    With `all_types`, the types of fields are found in all records, else in some of them where that
    is enough. Raises InputError.
    """
    listing, recipe, rules, engine = (
        material.listing,
        material.recipe,
        material.rules,
        material.engine,
    )
    discovery, comparing = material.discovery, material.listener.comparing
    units = discovery.find_units()
    if recipe.duplicates.mode != "keep":
        # which most conversions never need
        from shardctl.build.convert.duplicates import without_repeats

        units = without_repeats(discovery, units, recipe, material.roots, comparing)
    types = None
    held: list[str] = []  # nothing that could be read
    if listing.whole:
        refuse_fields(recipe)
    elif recipe.typed_fields is not None:
        held = discovery.first_fields(units)
        compare_schema(recipe.typed_fields, held, listing)
    else:
        types = discovery.find_types(units, all_types)
        types = types if types is not None else Types.of_schema(pa.schema([]), recipe.reading.label)
        held = types.found().names
    if held:
        refuse_partitions(listing, rules.labels.mode, held)
    splitting = material.splitting()
    look_inside(listing, rules.split, splitting)
    labelling = label_files(listing, rules, splitting, recipe, types)
    fields = recipe.typed_fields if types is None else chosen_columns(types, recipe)
    if fields is not None and not listing.whole:
        fields = recipe.with_json(fields if labelling.by_field else without_folders(fields))
        fields = with_images(fields, recipe, listing)
        if SPLIT_COLUMN in fields.names and rules.split.mode == "auto":
            listing.note("field-split-kept")
    fields = with_rule(fields, recipe, listing, rules.labels.annotation_rule)
    job = material.job(fields, labelling.by_field)
    if apart := job.set_apart:
        names, others = some(list(apart)), some(list(apart.values()))
        listing.note("kept-under-another-name", names=names, others=others)
    if fields is not None and splitting.draw is not None:
        refuse_groups(fields, recipe, types)
    planner = Planner(units, order_units(units, splitting, rules.shuffle))
    job = replace(job, layout=layout_before_functions(job, labelling, listing))
    if rules.labels.classes is not None:
        refuse_other_names(job.layout.roles.by_name, rules.labels.classes)
    compared: list[Compared] = []
    if recipe.compares_texts:
        from shardctl.build.convert.duplicates import compare_texts, without_comparing  # the same

        compared = compare_texts(job, listing, labelling, units, engine, comparing)
        job = replace(job, recipe=without_comparing(recipe))
    probe = _of_all(_probe(material, job, planner, labelling), units, compared)
    if fields is not None:
        if marked_masks(fields):
            fields = with_bits(fields, probe.layout, job.renames)
            masks = [job.renames.get(name, name) for name in marked_masks(fields)]
            if masks := [name for name in masks if name not in recipe.mask_fields]:
                moved = "moved" if recipe.moving else "moved by the loader"
                facts = {"names": some(masks), "moved": moved, "option": ",".join(masks)}
                listing.note("masks-by-name", **facts)
        fields = with_said(fields, FRAME, probe.frames)
    listing.warnings += probe.warnings
    listing.notices += probe.notices
    for each in compared:
        listing.notices += each.notices()
    if units.repeats is not None:
        dropped, count = int(units.repeats.dropped.sum()), counted(len(listing), "input")
        facts = {"what": "rejected", "rule": f"--duplicates {recipe.duplicates}"}
        listing.note("duplicates", dropped=dropped, count=count, **facts)
    sample_bytes = _sample_bytes(probe, recipe, listing)
    splits = []
    for name, records, expected in zip(
        splitting.names, planner.records, planner.split_records, strict=True
    ):
        shards = material.shards_of(round(expected * probe.samples_per_record), sample_bytes)
        splits.append(SplitPlan(name, records, expected, shards))
    if types is not None:
        listing.notices += types.notices("field", {f.name for f in fields or () if is_json(f)})
        if (only := types.only_column()) and (mark := separator_in([only])):
            listing.note("one-column", column=printable(only), mark=mark)
        if types.has_unnamed():
            listing.note("unnamed-column", name=UNNAMED)
        listing.notices += names_left_out(types, probe.layout, recipe)
        if labelling.by_field and labelling.classes is not None and (words := types.null_labels()):
            listing.notices.append(null_label_notice(words, ""))
    if recipe.reading.encoding == DETECT and (found := discovery.encodings()):
        shown = (
            f"{name} ({counted(count, 'file')}, {printable(of)})" for name, (count, of) in found
        )
        listing.note("encodings", found=", ".join(shown))
    listing.notices += [said for step in recipe.transforms for said in step.notices()]
    return ConversionPlan(
        listing, labelling, planner, fields, probe, sample_bytes, tuple(splits), compared
    )


def _probe(material: Material, job: Job, planner: Planner, labelling: Labelling) -> Probe:
    """Try some records of a job: if most fail, others from all over the inputs, as the first ones
    of a file may be unlike all others. They are always the same ones."""
    folder, listing, recipe = material.folder, material.listing, material.recipe
    some, run = (PROBE_FILES[recipe.kind], 1) if listing.whole else (PROBE_RUNS, PROBE_RUN)
    if job.has_images:
        run = PROBE_IMAGE_RUN
    elif recipe.batch_transforms:
        some, run = min(some, PROBED_BY_STEPS), min(run, PROBED_BY_STEPS)
    if recipe.filters:
        some *= PROBED_WITH_FILTERS
    write_files(folder / FILES, listing, labelling, planner.write_some(folder, some, run))
    probe = material.engine.probe(job)
    if not is_failing(probe) or probe.records >= planner.inputs:
        return probe
    slow = bool(recipe.sample_transforms) and (job.has_images or recipe.kind == "image")
    if listing.whole:
        files = planner.write_some(folder, WIDE_PLACES if slow else WIDE_FILES[recipe.kind], 1)
    else:
        run = WIDE_SLOW_RUN if job.has_images or recipe.batch_transforms else WIDE_RUN
        files = planner.write_widely(folder, WIDE_PLACES, 1 if slow else run, WIDE_REACH)
    write_files(folder / FILES, listing, labelling, files)
    return material.engine.probe(replace(job))


def is_failing(probe: Probe) -> bool:
    """Return whether more than half of the inputs that were tried cannot be converted.

    What filters and duplicates leave out does not count: it is as the user wants it.
    """
    return sum(failures(probe.reasons).values()) > probe.records * MANY_FAILURES


def layout_before_functions(job: Job, labelling: Labelling, listing: Listing) -> Layout:
    """Return the layout of the samples of a job, but for what a person's functions make of them."""
    recipe, fields = job.recipe, job.fields
    content = (
        listing.kind.columns
        if fields is None
        else without_key(renamed(without_nulls(fields), job.renames), recipe)
    )
    said = said_by_exports(listing, content, job.renames)
    content = with_tensors(content, said)
    roles: Mapping[str, Role] = masks_of(fields, job.renames)
    roles = {**roles, **{name: each.role for name, each in said.items() if each.role is not None}}
    for step in recipe.batch_transforms:
        before = [] if content is None else content.names
        content, roles = step.schema(content), step.roles(roles)
        listing.notices += (
            left_out_by(step.name, [name for name in before if name not in content.names])
            if step.joins
            else []
        )
    return known_layout(recipe, labelling, listing, content, job.kept_images, roles)


def _of_all(probe: Probe, units: Units, compared: Sequence[Compared]) -> Probe:
    """Return what a record costs on average, given what those cost of which nothing is a repeat of
    others."""
    share = 1.0 if units.repeats is None else 1 - float(units.repeats.dropped.mean())
    probe = replace(
        probe,
        samples_per_record=probe.samples_per_record * share,
        record_seconds=probe.record_seconds * share,
    )
    for each in compared:
        probe = replace(
            probe,
            samples_per_record=probe.samples_per_record * each.kept_texts,
            sample_bytes=probe.sample_bytes * each.kept_bytes,
        )
    return probe


def _sample_bytes(probe: Probe, recipe: Recipe, listing: Listing) -> float:
    """Return the average size of a sample in bytes.

    Where large files make large samples, the few that were tried may be larger or smaller than
    most, and the sizes of all files are known. The photos of `shardctl demo` were estimated at 1.4
    times their size before this was taken into account.
    """
    if not probe.record_bytes or (recipe.store is not None and recipe.changes):
        return probe.sample_bytes
    return probe.sample_bytes * listing.total_bytes / len(listing) / probe.record_bytes


def shards_of(rows: int, sample_bytes: float, options: Options, fewest: int) -> int:
    """Return the number of shards of a split with `rows` rows; a small dataset has no shards of
    less than `fewest`."""
    if options.samples_per_shard:
        return max(1, -(-rows // options.samples_per_shard))
    if options.shard_size:
        return max(1, min(rows, round(rows * sample_bytes / options.shard_size)))
    by_size = -(-int(rows * sample_bytes) // SHARD_BYTES)
    return max(1, by_size, min(FEWEST_SHARDS, rows // fewest))
