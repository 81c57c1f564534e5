"""The plan of a new dataset, made before anything is written: the units of its shards, the columns,
the cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
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
from shardctl.build.plan.splits import look_inside, split_files
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
from shardctl.system.progress import Report
from shardctl.system.text import counted, printable
from shardctl.transforms.duplicates.pictures import Repeats
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
        probe, draw = self.probe, self.planner.order.draw
        costs = Costs(
            sample_bytes=self.sample_bytes,
            samples_per_record=probe.samples_per_record,
            record_seconds=probe.record_seconds
            + probe.unit_seconds / self.planner.records_per_unit,
            shard_bytes=probe.shard_bytes,
            probed=probe.records,
            probe_rejects=probe.rejected,
        )
        reading = RecordReading(self.fields, self.labelling.by_field, draw=draw)
        lineage = Lineage(parts, beside=self.listing.digest_beside)
        return plan_job(
            folder,
            roots,
            recipe,
            probe.layout,
            self.splits,
            reading,
            lineage,
            shuffle=shuffle,
            costs=costs,
        )

    def write(self, folder: Path) -> None:
        """Write the tables of the job."""
        write_files(folder / FILES, self.listing, self.labelling)
        self.planner.write(folder, [split.shards for split in self.splits])
        for each in self.compared:
            copy_file(each.table, folder / each.table.name)


def plan_conversion(
    listing: Listing,
    recipe: Recipe,
    rules: PlanRules,
    options: Options,
    roots: tuple[Root, ...],
    engine: Engine,
    folder: Path,
    all_types: bool,
    comparing: Callable[[int], None],
    scanning: Report,
) -> ConversionPlan:
    """Plan a conversion, having probed some of its records. `folder` is for scratch, and only this
    process reads it.

    With `all_types`, the types of fields are found in all records, else in some of them where that
    is enough. Raises InputError. `comparing` is told how many inputs have been looked at for
    duplicates, `scanning` is called with (pieces of files scanned, pieces).
    """
    discovery = Discovery(listing, recipe.reading, rules.shuffle is not None, engine, scanning)
    units = discovery.find_units()
    if recipe.duplicates.mode != "keep":
        # which most conversions never need
        from shardctl.build.convert.duplicates import without_repeats

        units = without_repeats(discovery, units, recipe, roots, comparing)
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
    splitting = split_files(listing, rules.split, rules.seed, rules.by_key, rules.group)
    look_inside(listing, rules.split, splitting)
    labelling = label_files(listing, rules, splitting, recipe, types)
    fields = recipe.typed_fields if types is None else chosen_columns(types, recipe)
    if fields is not None and not listing.whole:
        fields = recipe.with_json(fields if labelling.by_field else without_folders(fields))
        fields = with_images(fields, recipe, listing)
        if SPLIT_COLUMN in fields.names and rules.split.mode == "auto":
            listing.notices.append(
                "the field split of the records is kept as a field; it does not decide the splits"
            )
    fields = with_rule(fields, recipe, listing, rules.labels.annotation_rule)
    probe_job = Job(folder, roots, recipe, EMPTY, (), fields=fields, by_field=labelling.by_field)
    for name, other in probe_job.set_apart.items():
        listing.notices.append(
            f"the field {name} of the records is kept as {other}: shardctl makes a field {name} "
            "itself"
        )
    if fields is not None and splitting.draw is not None:
        refuse_groups(fields, recipe, types)
    planner = Planner(units, order_units(units, splitting, rules.shuffle))
    probe_job = replace(probe_job, layout=layout_before_functions(probe_job, labelling, listing))
    if rules.labels.classes is not None:
        refuse_other_names(probe_job.layout.roles.by_name, rules.labels.classes)
    compared: list[Compared] = []
    if recipe.compares_texts:
        from shardctl.build.convert.duplicates import compare_texts, without_comparing  # the same

        compared = compare_texts(probe_job, listing, labelling, units, engine, comparing)
        probe_job = replace(probe_job, recipe=without_comparing(recipe))
    some, run = (PROBE_FILES[recipe.kind], 1) if listing.whole else (PROBE_RUNS, PROBE_RUN)
    if probe_job.has_images:
        run = PROBE_IMAGE_RUN
    elif recipe.batch_transforms:
        some, run = min(some, PROBED_BY_STEPS), min(run, PROBED_BY_STEPS)
    if recipe.filters:
        some *= PROBED_WITH_FILTERS
    write_files(folder / FILES, listing, labelling, planner.write_some(folder, some, run))
    probe = engine.probe(probe_job)
    # the first records of a file may be unlike all others
    if is_failing(probe) and probe.records < planner.inputs:
        write_files(
            folder / FILES,
            listing,
            labelling,
            _write_widely(planner, folder, recipe, listing, probe_job.has_images),
        )
        probe = engine.probe(replace(probe_job))
    probe = _of_all(probe, units, compared)
    if fields is not None:
        if marked_masks(fields):
            fields = with_bits(fields, probe.layout, probe_job.renames)
            names = [probe_job.renames.get(name, name) for name in marked_masks(fields)]
            listing.notices += _notices_on_masks(
                [name for name in names if name not in recipe.mask_fields], recipe
            )
        fields = with_said(fields, FRAME, probe.frames)
    listing.warnings += probe.warnings
    listing.notices += [*probe.notices, *(notice for each in compared for notice in each.notices())]
    if units.repeats is not None:
        listing.notices.append(_notice_on_duplicates(recipe, units.repeats))
    sample_bytes = _sample_bytes(probe, recipe, listing)
    splits = []
    for name, records, expected in zip(
        splitting.names, planner.records, planner.split_records, strict=True
    ):
        fewest = SMALLEST_SHARD_BLOCKS if recipe.joins else SMALLEST_SHARD_ROWS
        shards = shards_of(
            round(expected * probe.samples_per_record), sample_bytes, options, fewest
        )
        splits.append(SplitPlan(name, records, expected, shards))
    if types is not None:
        listing.warnings += _warnings_on_header(discovery.header_like_a_record())
        listing.notices += types.notices("field", {f.name for f in fields or () if is_json(f)})
        listing.notices += [
            *_notices_on_cells(types, discovery),
            *names_left_out(types, probe.layout, recipe),
        ]
        if labelling.by_field and labelling.classes is not None and (words := types.null_labels()):
            listing.notices.append(null_label_notice(words, ""))
    listing.notices += _notices_on_encodings(discovery)
    listing.notices += [notice for step in recipe.transforms for notice in step.notices()]
    return ConversionPlan(
        listing, labelling, planner, fields, probe, sample_bytes, tuple(splits), compared
    )


def is_failing(probe: Probe) -> bool:
    """Return whether more than half of the inputs that were tried cannot be converted.

    What filters and duplicates leave out does not count: it is as the user wants it.
    """
    return sum(failures(probe.reasons).values()) > probe.records * MANY_FAILURES


def _write_widely(
    planner: Planner, folder: Path, recipe: Recipe, listing: Listing, has_images: bool
) -> npt.NDArray[np.int64]:
    """Write a plan with records from all over the inputs, always the same ones, and return the
    files that it has."""
    slow = bool(recipe.sample_transforms) and (has_images or recipe.kind == "image")
    if listing.whole:
        return planner.write_some(folder, WIDE_PLACES if slow else WIDE_FILES[recipe.kind], 1)
    run = WIDE_SLOW_RUN if has_images or recipe.batch_transforms else WIDE_RUN
    return planner.write_widely(folder, WIDE_PLACES, 1 if slow else run, WIDE_REACH)


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


def _notices_on_masks(names: list[str], recipe: Recipe) -> list[str]:
    """Say which fields are taken for masks though nobody said so."""
    if names and not recipe.moving:
        they = ("is a mask", "it an image") if len(names) == 1 else ("are masks", "them images")
        return [
            f"{some(names)} {they[0]}, which the loader moves with the image; --unmoved "
            f"{','.join(names)} keeps {they[1]}"
        ]
    they = (
        ("is a mask, and is", "it as it is")
        if len(names) == 1
        else ("are masks, and are", "them as they are")
    )
    return (
        [
            f"{some(names)} {they[0]} moved with the image; --unmoved {','.join(names)} keeps "
            f"{they[1]}"
        ]
        if names
        else []
    )


def _notice_on_duplicates(recipe: Recipe, repeats: Repeats) -> str:
    dropped = int(repeats.dropped.sum())
    if not dropped:
        return (
            f"none of {counted(len(repeats.kept_for), 'input')} is a duplicate of another "
            f"(--duplicates {recipe.duplicates})"
        )
    are = "is a duplicate" if dropped == 1 else "are duplicates"
    of_all = f"{dropped:,} of {counted(len(repeats.kept_for), 'input')}"
    return f"{of_all} {are} of others, and rejected (--duplicates {recipe.duplicates})"


def _warnings_on_header(row: list[str]) -> list[str]:
    """Say that the header of a CSV file looks like a record."""
    if not row:
        return []
    return [
        f"the first row ({some(row)}) is read as the names of the columns, but it looks like a "
        "record; if it is one, give the"
        " names with --columns A,B,C"
    ]


def _notices_on_cells(types: Types, discovery: Discovery) -> list[str]:
    """Say where the header of CSV files, or the delimiter, may be another one."""
    notices = []
    if types.has_unnamed():
        notices.append(
            "the first column has no name, as pandas writes its index: it is kept as the field "
            f"{UNNAMED}; --fields names those"
            " to keep"
        )
    path, name = discovery.only_column()
    if path:
        of_several = f"if it is several, use --delimiter {separator_in([name])}"
        notices.append(f"{printable(path)}: there is one column, {printable(name)}; {of_several}")
    return notices


def _notices_on_encodings(discovery: Discovery) -> list[str]:
    """Say which encodings were detected."""
    if discovery.reading.encoding != DETECT or not (found := discovery.encodings()):
        return []
    shown = (
        f"{name} ({counted(count, 'file')}, {printable(first)})"
        for name, (count, first) in found.items()
    )
    files = sum(count for count, _ in found.values())
    of_all = (
        f", looking at {files} of {len(discovery.listing):,} files"
        if files < len(discovery.listing)
        else ""
    )
    return [
        f"encodings that were detected{of_all}: {', '.join(shown)}; --encoding names one for all"
    ]


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
