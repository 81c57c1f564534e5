"""The plan of a conversion, and the tables of a job that is planned: which shards there are, which units they
have, the columns, the cost. Where a dataset is brought up to date, its shards stay whose units have
not changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, InputError, Rejection, TypesDifferError, UsageError
from shardctl.format.arrays import Bools, Numbers, column_of, numbers_of, sums_of
from shardctl.format.layout import Layout
from shardctl.format.names import FILES
from shardctl.format.roles import Label, Mask, Objects
from shardctl.format.tables import UNIT_FIELDS, open_table
from shardctl.making.convert.columns import (
    chosen_columns,
    compare_schema,
    found_in,
    layout_before_functions,
    names_left_out,
    refuse_groups,
    refuse_partitions,
    with_bits,
    with_images,
    with_rule,
)
from shardctl.making.convert.conversion import Inputs
from shardctl.making.convert.discover import Discovery
from shardctl.making.convert.previous import (
    Matching,
    PreviousDataset,
    match_files,
    refuse_lost_shards,
    write_reused,
)
from shardctl.making.convert.rejects import (
    hide_pruned,
    is_failing,
    moved_records,
    refuse_failing,
    write_known,
)
from shardctl.making.notices import notice
from shardctl.making.options import Options
from shardctl.making.plan.labels import (
    LABEL,
    Labelling,
    job_files_schema,
    label_files,
    write_files_table,
)
from shardctl.making.plan.listing import Listing
from shardctl.making.plan.plan import (
    JOB_PLAN_SCHEMA,
    NO_ROWS,
    NOT_KEPT,
    Changes,
    Planner,
    ShardParts,
    SplitPlan,
    Units,
)
from shardctl.making.plan.splits import Splitting, look_inside, split_files
from shardctl.making.shards.job import DatasetJob, Job, Probe
from shardctl.sources.formats import CHOSEN, DETECT, is_json
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.image_columns import FRAME, marked_masks, with_said
from shardctl.sources.jsonl import null_label_notice
from shardctl.sources.label_table import SPLIT_COLUMN
from shardctl.sources.types import UNNAMED, Types, separator_in
from shardctl.sources.walked import why_unread
from shardctl.system.files import copy_file
from shardctl.system.folders import LocalFolder
from shardctl.system.options import without_effect
from shardctl.system.text import counted, printable, some
from shardctl.transforms.recipe import Recipe

if TYPE_CHECKING:
    from shardctl.making.convert.duplicates import Compared

Made = TypeVar("Made")

SHARD_BYTES = 128 << 20
"""Default target size of a shard. Defaults and advice of other tools: 50 to 150 MB."""

FEWEST_SHARDS = 16
"""A small dataset is still cut into this many shards (of SMALLEST_SHARD_ROWS or more), so that
workers can share the work."""

SMALLEST_SHARD_ROWS = 8

SMALLEST_SHARD_BLOCKS = 64
"""The same where samples are blocks: the last one of each shard is filled up, and few documents
fill blocks less well."""

FULL = 0.9
"""The last shard of a split with this share of the records of a full one is full: it is not built
again for a few more."""

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


def retrying_with_all_types(make: Callable[[bool], Made]) -> Made:
    """Call `make` and return its result. Its argument says whether it finds the types of fields in
    all records. It is used for a plan, which tries records, and for the conversion around it.

    The first time it finds them in some records. If another record does not fit these types, `make`
    is called once more, and finds them in all records. Raises InputError if a record does not fit
    the types of all records.
    """
    try:
        return make(False)
    except TypesDifferError:
        # which is known to no process before it reads the record: it may be the last one of all
        pass
    try:
        return make(True)
    except TypesDifferError as error:
        raise InputError(notice("types-differ", why=error)) from error


def shard_count(rows: int, sample_bytes: float, options: Options, of_blocks: bool) -> int:
    """Return the number of shards of a split with `rows` rows, which may be blocks of tokens; a
    small dataset has no shards of few rows."""
    if options.samples_per_shard:
        return max(1, -(-rows // options.samples_per_shard))
    if options.shard_size:
        return max(1, min(rows, round(rows * sample_bytes / options.shard_size)))
    by_size = -(-int(rows * sample_bytes) // SHARD_BYTES)
    fewest = SMALLEST_SHARD_BLOCKS if of_blocks else SMALLEST_SHARD_ROWS
    return max(1, by_size, min(FEWEST_SHARDS, rows // fewest))


RESUMED = "resumed"
"""The status of a job that an earlier call has begun."""


@dataclass(frozen=True)
class PlannedJob:
    """A job that this call has planned, or an earlier one, and the `listing` of its inputs.

    `status` is that of the result. `previous` is the dataset that the job updates, None for a new
    one. What is planned now has the `draft` and the `shard_parts`.
    """

    job: DatasetJob
    inputs: Inputs
    listing: Listing
    status: str
    previous: PreviousDataset | None
    draft: Draft | None = None
    shard_parts: Sequence[ShardParts] = ()

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier call has begun it."""
        return self.status == RESUMED


def _new_files(inputs: Inputs) -> Path:
    """Return where the files of an update are, as they are now, before its job begins."""
    return inputs.scratch / f"now-{FILES}"


def plan_job(
    inputs: Inputs,
    before: PreviousDataset | None,
    folder: Path,
    all_types: bool = False,
) -> PlannedJob:
    """Plan the conversion, whose job will be in `folder`, once some records were tried.

    `before` is the dataset that is brought up to date, None for none. An update tries no records:
    that dataset tells what they cost. With `all_types` the types of fields are found in all
    records; without, in some of them, and only where these do not show all, in all. Raises
    InputError, TooManyRejectsError, and TypesDifferError with `all_types`.
    """
    options, files = inputs.conversion.options, _new_files(inputs)
    draft, why = None, "new records have other types"
    if before is not None and not all_types:
        try:
            draft = _draft_update(inputs, before, files)
            why = ""
        except _MadeAnewError as reason:
            why = str(reason)
    if draft is None:
        if before is not None and options.append:
            shown = inputs.conversion.folder.shown()
            raise InputError(notice("append-changes-all", dataset=shown, why=why))
        make = partial(draft_anew, inputs)
        # records that are only tried may have other types; those that are converted are seen later
        draft = make(True) if all_types else retrying_with_all_types(make)
        if options.max_rejects is None:
            refuse_failing(draft.probe, draft.listing)
        if before is not None:
            write_files_table(files, draft.listing, draft.labelling)
    (splits, parts), matching = shards_of_plan(inputs, draft), draft.matching
    of_update: dict[str, Any] = {}
    if before is not None:
        matching = matching or match_files(before, files)
        kept = [part for part in parts if part.kept != NOT_KEPT]
        refuse_lost_shards(inputs.conversion.target, before, [part.kept for part in kept])
        of_splits = len(before.table) if why else int((draft.stays.split_of >= 0).sum())
        old = min(of_splits, len(parts))
        shards = old - len(kept), len(parts) - old, len(kept)
        of_update = {
            "digest_before": before.digest,
            "kept_records": sum(part.records for part in kept),
            "changes": Changes(*matching.counts, *shards, why),
        }
    job = job_of(inputs, folder, draft, splits, **of_update)
    if matching is not None:
        job.warnings.extend(moved_records(job, matching))
    status = "updated" if inputs.manifest is not None else "created"
    return PlannedJob(job, inputs, draft.listing, status, before, draft, parts)


def write_plan(planned: PlannedJob) -> list[str]:
    """Write the tables of a job that is planned now, with what is known of records of the dataset
    that it updates. Return warnings."""
    job, draft, parts, before = planned.job, planned.draft, planned.shard_parts, planned.previous
    assert draft is not None, "it is planned now"
    folder, stays = job.folder, draft.stays
    if before is None:
        write_files_table(folder / FILES, draft.listing, draft.labelling)
    else:
        copy_file(_new_files(planned.inputs), folder / FILES)
    draft.planner.write_parts(folder, parts, stays.rows)
    for each in draft.compared:
        copy_file(each.table, folder / each.table.name)
    if before is None:
        return []
    of_old = np.full(len(job.plan), -1, np.int64)
    for part, first in zip(parts, job.first_units.tolist(), strict=True):
        if part.kept == NOT_KEPT:
            own = stays.old_row[part.old_from : part.old_to]
            of_old[first : first + len(own)] = own
    write_reused(job, before, of_old)
    hide_pruned(folder / FILES, before.state.pruned)
    return write_known(job, before, of_old)


@dataclass(frozen=True)
class Stays:
    """What an update keeps of the dataset that is there. A unit stays in its shard, also where the
    unit has changed. A shard is kept as it is where none of its units has changed or gone.

    `rows` are the rows of the old plan whose units stay in their shards (JOB_PLAN_SCHEMA), with the
    numbers of files as they are listed now. `old_row` has the old row of each, -1 if its content has
    changed: (rows,).

    The others have a value for each old shard, (shards,). `split_of` is the number of its split
    now, -1 if that split has gone. `number` is its number in the split. `end` is where its rows
    end. `records` is how many records these rows have. `is_touched` says whether it has lost units,
    or some of them have changed.
    """

    rows: pa.Table
    old_row: Numbers
    split_of: Numbers
    number: Numbers
    end: Numbers
    records: Numbers
    is_touched: Bools


_NONE = np.zeros(0, np.int64)

NOTHING_STAYS = Stays(NO_ROWS, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE.astype(bool))


@dataclass(frozen=True)
class Draft:
    """What a plan puts into shards: the units of its `planner`, and what `stays`; their columns, and
    what they cost. `compared` has tables for the steps `deduplicate`; `matching` is that of an
    update."""

    listing: Listing
    labelling: Labelling
    fields: pa.Schema | None
    planner: Planner
    probe: Probe
    compared: Sequence[Compared] = ()
    stays: Stays = NOTHING_STAYS
    matching: Matching | None = None


def shards_of_plan(inputs: Inputs, draft: Draft) -> tuple[list[SplitPlan], list[ShardParts]]:
    """Return the splits of what is drafted, and what all shards consist of."""
    found = [
        _shards_of_split(inputs, draft, split, name)
        for split, name in enumerate(draft.planner.names)
    ]
    return [split for split, _ in found], [part for _, parts in found for part in parts]


def job_of(
    inputs: Inputs, folder: Path, draft: Draft, splits: Sequence[SplitPlan], **of_update: Any
) -> DatasetJob:
    """Return the job in a folder that makes what is drafted; `of_update` are fields that only an
    update has."""
    planner, probe, listing = draft.planner, draft.probe, draft.listing
    return DatasetJob(
        folder,
        inputs.bases,
        inputs.recipe,
        probe.layout,
        tuple(splits),
        draft.fields,
        draft.labelling.by_field,
        planner.draw,
        inputs.rules.shuffle,
        parts=inputs.fingerprint_parts,
        beside=listing.digest_beside,
        label_states=listing.label_states,
        notices=listing.notices,
        warnings=listing.warnings,
        url=inputs.conversion.folder.url,
        sample_bytes=probe.sample_bytes,
        samples_per_record=probe.samples_per_record,
        record_seconds=probe.record_seconds,
        shard_bytes=probe.shard_bytes,
        probed=probe.records,
        probe_rejects=probe.rejected,
        **of_update,
    )


def _shards_of_split(
    inputs: Inputs, draft: Draft, split: int, name: str
) -> tuple[SplitPlan, list[ShardParts]]:
    """Put what stays of a split, and its new records, into shards."""
    stays, planner, probe, options = (
        draft.stays,
        draft.planner,
        draft.probe,
        inputs.conversion.options,
    )
    mine, new, taken = np.flatnonzero(stays.split_of == split).tolist(), planner.records[split], 0
    total = new + int(stays.records[mine].sum())
    expected = round(total * planner.shares[split])
    rows = round(expected * probe.samples_per_record)
    count = shard_count(rows, probe.sample_bytes, options, inputs.recipe.joins)
    parts = list[ShardParts]()
    if len(stays.split_of):
        # so many records has a shard where all of them are converted anew
        full = max(1, -(-total // count))
        for shard in mine:
            # Those that have lost all records of theirs, and the last one, take new ones. None
            # does where inputs are appended, whose old ones may be gone.
            records, more = int(stays.records[shard]), 0
            has_room = full - records > (1 - FULL) * full and not options.append
            if has_room and (not records or shard == mine[-1]):
                more = min(full - records, new - taken)
            kept = NOT_KEPT if more or stays.is_touched[shard] else shard
            rows_of_it = int(stays.end[shard - 1]) if shard else 0, int(stays.end[shard])
            place = (taken, taken + more, kept, *rows_of_it)
            parts.append(ShardParts(split, int(stays.number[shard]), records + more, *place))
            taken += more
        count = -(-(new - taken) // full)
    after = max((part.number + 1 for part in parts), default=0)  # some may be missing
    parts += planner.divided(split, count, taken, after)
    return SplitPlan(name, total, expected, len(parts)), parts


# --- the draft of a new dataset ---


def _discovery(inputs: Inputs, listing: Listing) -> Discovery:
    """Return what looks into the files."""
    recipe, shuffled = inputs.recipe, inputs.rules.shuffle is not None
    scanning = inputs.conversion.listener.scanning
    return Discovery(listing, recipe.record_reading, shuffled, inputs.conversion.engine, scanning)


def _trial(inputs: Inputs, fields: pa.Schema | None, by_field: bool) -> Job:
    """Return a job that reads records as these columns, in the folder for scratch."""
    recipe, bases = inputs.recipe, inputs.bases
    return Job(inputs.scratch, bases, recipe, EMPTY, (), fields=fields, by_field=by_field)


def draft_anew(inputs: Inputs, all_types: bool) -> Draft:
    """Find what a new dataset has, having probed some of its records. Notices are added to a list
    of its own.

    With `all_types`, the types of fields are found in all records, else in some of them where that
    is enough. Raises InputError.
    """
    recipe, rules = inputs.recipe, inputs.rules
    listing = inputs.listing.fresh()
    discovery, comparing = _discovery(inputs, listing), inputs.conversion.listener.comparing
    units = discovery.find_units()
    if recipe.duplicates.mode != "keep":
        # which most conversions never need
        from shardctl.making.convert.duplicates import without_repeats

        units = without_repeats(discovery, units, recipe, inputs.bases, comparing)
    types = _types_of(inputs, discovery, units, all_types)
    splitting = split_files(listing, rules)
    look_inside(listing, rules.split, splitting)
    labelling = label_files(listing, rules, splitting, recipe, types)
    fields = _columns(types, labelling, listing, inputs)
    options = inputs.conversion.options
    if inputs.manifest is None or not (options.update or options.append):
        # what an update repeats had no effect on the dataset either
        endings = set() if listing.whole else discovery.endings(units)
        there = {*found_in(fields, recipe, listing, endings)}
        for given in (recipe, options):
            for name, problem in without_effect(given, there):
                raise UsageError(f"--{name.replace('_', '-')} {problem}")
    trial = _trial(inputs, fields, labelling.by_field)
    if apart := trial.set_apart:
        names, others = some(list(apart)), some(list(apart.values()))
        listing.note("kept-under-another-name", names=names, others=others)
    if fields is not None and splitting.draw is not None:
        refuse_groups(fields, recipe, types)
    planner = Planner(units, splitting, rules.shuffle)
    trial = replace(trial, layout=layout_before_functions(trial, labelling, listing))
    if rules.labels.classes is not None:
        for field_name, role in trial.layout.roles.by_name.items():
            names_of = role.names if isinstance(role, Mask | Objects) else None
            if names_of not in (None, rules.labels.classes):
                raise InputError(notice("classes-of-its-own", name=printable(field_name)))
    compared: list[Compared] = []
    if recipe.compares_texts:
        from shardctl.making.convert.duplicates import compare_texts  # the same

        compared = compare_texts(
            trial, listing, labelling, units, inputs.conversion.engine, comparing
        )
        steps = tuple(step for step in recipe.transform if not step.compares_texts)
        trial = replace(trial, recipe=replace(recipe, transform=steps))
    probe = _probe(inputs, listing, trial, planner, labelling)
    probe = _corrected(probe, planner, units, compared, listing, recipe)
    if fields is not None:
        if marked_masks(fields):
            fields = with_bits(fields, probe.layout, trial.renames)
            masks = [trial.renames.get(name, name) for name in marked_masks(fields)]
            if masks := [name for name in masks if name not in recipe.mask_fields]:
                moved = "moved" if recipe.moving else "moved by the loader"
                option = ",".join(masks)
                listing.note("masks-by-name", names=some(masks), moved=moved, option=option)
        fields = with_said(fields, FRAME, probe.frames)
    listing.warnings += probe.warnings
    listing.notices += probe.notices
    for each in compared:
        listing.notices += each.notices()
    if units.repeats is not None:
        dropped, count = int(units.repeats.dropped.sum()), counted(len(listing), "input")
        rule = f"--duplicates {recipe.duplicates}"
        listing.note("duplicates", dropped=dropped, count=count, what="rejected", rule=rule)
    if types is not None:
        listing.notices += types.notices("field", {f.name for f in fields or () if is_json(f)})
        if (only := types.only_column()) and (mark := separator_in([only])):
            listing.note("one-column", column=printable(only), mark=mark)
        if types.has_unnamed():
            listing.note("unnamed-column", name=UNNAMED)
        listing.notices += names_left_out(types, probe.layout, recipe)
        if labelling.by_field and labelling.classes is not None and (words := types.null_labels()):
            listing.notices.append(null_label_notice(words, ""))
    if recipe.record_reading.encoding == DETECT and (found := discovery.encodings()):
        shown = (
            f"{name} ({counted(count, 'file')}, {printable(of)})" for name, (count, of) in found
        )
        listing.note("encodings", found=", ".join(shown))
    for place, step in enumerate(recipe.transform):
        listing.notices += step.notices(recipe.transform[:place])
    return Draft(listing, labelling, fields, planner, probe, compared)


def _types_of(inputs: Inputs, discovery: Discovery, units: Units, all_types: bool) -> Types | None:
    """Return the types of the fields of records; None for files of one record, and where they are
    given. Raises InputError."""
    recipe, listing = inputs.recipe, discovery.listing
    if listing.whole:
        return None
    types = None
    if recipe.typed_fields is not None:
        first = discovery.types_of(units, units.readable()[:1])
        held = [] if first is None else first.found().names
        compare_schema(recipe.typed_fields, held, listing)
    else:
        types = discovery.find_types(units, all_types)
        types = types or Types.of_schema(pa.schema([]), recipe.record_reading.label)
        held = types.found().names
    if held:  # else nothing could be read
        refuse_partitions(listing, inputs.rules.labels.mode, held)
    return types


def _columns(
    types: Types | None, labelling: Labelling, listing: Listing, inputs: Inputs
) -> pa.Schema | None:
    """Return the columns of the records, None for files of one record. Raises InputError."""
    recipe, rules, fields = inputs.recipe, inputs.rules, None
    if not listing.whole:
        fields = recipe.typed_fields if types is None else chosen_columns(types, recipe)
    if fields is not None:
        if FOLDER in fields.names and not labelling.by_field:
            # as if a person had not chosen it: it has no classes
            kept = [f for f in fields if f.name != FOLDER]
            fields = pa.schema(kept, {CHOSEN: b"", **(fields.metadata or {})})
        fields = with_images(recipe.with_json(fields), recipe, listing)
        if SPLIT_COLUMN in fields.names and rules.split.mode == "auto":
            listing.note("field-split-kept")
    return with_rule(fields, recipe, listing, rules.labels.annotation_rule)


def _corrected(
    probe: Probe,
    planner: Planner,
    units: Units,
    compared: Sequence[Compared],
    listing: Listing,
    recipe: Recipe,
) -> Probe:
    """Return a probe with what records cost on average, each with its share of its unit, where it
    tried none that is a repeat of others, and files of another size than most."""
    share = 1.0 if units.repeats is None else 1 - float(units.repeats.dropped.mean())
    samples, size = probe.samples_per_record * share, probe.sample_bytes
    for each in compared:
        texts, of_text = each.kept
        samples, size = samples * texts, size * of_text
    # Where large files make large samples, the few that were tried may be larger or smaller than
    # most: the photos of `shardctl demo` were estimated at 1.4 times their size by these alone.
    if probe.record_bytes and not (recipe.store is not None and recipe.changes):
        size *= listing.total_bytes / len(listing) / probe.record_bytes
    seconds = probe.record_seconds * share + probe.unit_seconds / planner.records_per_unit
    return replace(probe, samples_per_record=samples, sample_bytes=size, record_seconds=seconds)


def _probe(
    inputs: Inputs, listing: Listing, job: Job, planner: Planner, labelling: Labelling
) -> Probe:
    """Try some records of a job: if most fail, others from all over the inputs, as the first ones
    of a file may be unlike all others. They are always the same ones; none where the columns are
    known, and nobody asks for the cost."""
    folder, recipe = job.folder, inputs.recipe
    # what only values show: what a mask, an object or a place is, and what functions return
    asked = recipe.sample_transforms or marked_masks(job.fields) or job.annotation_rules
    if not (inputs.conversion.asks_cost or asked):
        from shardctl.making.shards.first_records import columns_beside  # 13 modules

        if not columns_beside(job):
            return Probe(job.layout)
    some, run = (PROBE_FILES[recipe.kind], 1) if listing.whole else (PROBE_RUNS, PROBE_RUN)
    if job.has_image_columns:
        run = PROBE_IMAGE_RUN
    elif recipe.batch_transforms:
        some, run = min(some, PROBED_BY_STEPS), min(run, PROBED_BY_STEPS)
    if recipe.filters:
        some *= PROBED_WITH_FILTERS
    files = planner.write_some(folder, some, run)
    write_files_table(folder / FILES, listing, labelling, files)
    probe = inputs.conversion.engine.probe(job)
    if not is_failing(probe) or probe.records >= planner.inputs:
        return probe
    slow = bool(recipe.sample_transforms) and (job.has_image_columns or recipe.kind == "image")
    if listing.whole:
        files = planner.write_some(folder, WIDE_PLACES if slow else WIDE_FILES[recipe.kind], 1)
    else:
        run = WIDE_SLOW_RUN if job.has_image_columns or recipe.batch_transforms else WIDE_RUN
        files = planner.write_widely(folder, WIDE_PLACES, 1 if slow else run, WIDE_REACH)
    write_files_table(folder / FILES, listing, labelling, files)
    return inputs.conversion.engine.probe(replace(job))  # which reads the new tables


# --- the draft of an update: it keeps the columns of the dataset, and the shards whose units are as they
# were ---


class _MadeAnewError(Exception):
    """All shards must be made again; the message is why, as the end of a sentence."""


def _draft_update(inputs: Inputs, before: PreviousDataset, files: Path) -> Draft:
    """Find what changes in the dataset `before`, and what stays. The table of files is written to
    `files`; notices are added to a list of its own. Raises _MadeAnewError, InputError."""
    recipe, rules, manifest = inputs.recipe, inputs.rules, before.manifest
    listing, reading = inputs.listing.fresh(), before.reading
    discovery = _discovery(inputs, listing)
    if listing.whole != (manifest.records is None):
        raise _MadeAnewError("the files are of another form")
    if recipe.compares_texts or recipe.duplicates.mode != "keep":
        raise _MadeAnewError("duplicates are looked for among all inputs")
    if listing.digest_beside != before.state.digest_beside:
        raise _MadeAnewError("files that say what is read of others have changed")
    splitting = split_files(listing, rules)
    if splitting.draw != reading.draw:
        raise _MadeAnewError("the splits are made in another way")
    labelling = _labelling_of_records(inputs, listing, before)
    if labelling is None:
        labelling = label_files(listing, rules, splitting, recipe, None)
    write_files_table(files, listing, labelling)
    now = open_table(LocalFolder(files.parent), files.name)
    for name, what in (("label", "labels"), ("columns", "values of a labels file")):
        there = name in now.column_names and now[name].null_count < now.num_rows
        if name in before.files.column_names and not there:
            raise DatasetError(notice("labels-lost", dataset=before.folder.shown(), what=what))
    trial = _trial(inputs, reading.fields, reading.by_field)
    layout = layout_before_functions(trial, labelling, listing)
    _refuse_other_columns(layout, listing, before, recipe)
    matching = match_files(before, files)
    stays, is_new, units = _stays(before, matching, splitting, discovery)
    look_inside(listing, rules.split, splitting)
    if not listing.whole:
        _refuse_other_types(inputs, discovery, units, splitting, before)
    inputs_before = max(1, manifest.inputs)
    probe = Probe(
        before.layout,
        sample_bytes=manifest.bytes / max(1, manifest.samples),
        record_seconds=(manifest.seconds or 0.0) / inputs_before,
        samples_per_record=manifest.samples / inputs_before,
    )
    return Draft(
        listing,
        labelling,
        reading.fields,
        Planner(units, splitting, rules.shuffle, is_new),
        probe,
        stays=stays,
        matching=matching,
    )


def _labelling_of_records(
    inputs: Inputs, listing: Listing, before: PreviousDataset
) -> Labelling | None:
    """Return where labels of records came from when the dataset was made, None if it was not the
    records themselves."""
    if listing.whole or listing.side is not None:
        return None
    if inputs.recipe.joins:
        return Labelling()
    fields, by_field = before.reading.fields, before.reading.by_field
    assert fields is not None, "files of many records have columns"
    of_records = by_field or inputs.recipe.label_source in fields.names
    if not of_records and inputs.rules.labels.mode != "none":
        return None
    roles = before.layout.roles.by_name.items()
    names = {name: role.names for name, role in roles if isinstance(role, Label) and role.names}
    declared = {name: of for name, of in names.items() if not by_field or name != LABEL}
    return Labelling(names.get(LABEL), by_field=by_field, declared=declared)


def _refuse_other_columns(
    now: Layout, listing: Listing, before: PreviousDataset, recipe: Recipe
) -> None:
    """Raise _MadeAnewError if the samples of the sources as they are now differ in their columns or
    names of classes."""
    layout = before.layout
    if now.classes != layout.classes:
        others = sorted(set(now.classes or ()).symmetric_difference(layout.classes or ()))
        why = f"{some(others)} came or went" if others else "their order changed"
        raise _MadeAnewError(f"the classes have other numbers, as {why}")
    alike = now == layout
    if recipe.sample_transforms:  # functions may leave out columns, and make others
        alike = all(
            now.roles.by_name.get(name) == layout.roles.by_name.get(name)
            and now.columns.field(name).type == layout.columns.field(name).type
            for name in {*now.columns.names}.intersection(layout.columns.names)
        )
    known = [
        schema.field("columns").type if "columns" in schema.names else None
        for schema in (job_files_schema(listing), before.files.schema)
    ]
    if not alike or known[0] != known[1]:
        raise _MadeAnewError("the columns, or what is known of them, are others")


def _refuse_other_types(
    inputs: Inputs,
    discovery: Discovery,
    units: Units,
    splitting: Splitting,
    before: PreviousDataset,
) -> None:
    """Raise _MadeAnewError if the new records need other types, or labels that were not there."""
    recipe, listing, reading = inputs.recipe, discovery.listing, before.reading
    types = None
    if len(units) and recipe.typed_fields is None:
        types = discovery.find_types(units, False)
    if types is None:
        return
    fields = reading.fields
    assert fields is not None, "files of many records have columns"
    found = types.found()
    refuse_partitions(listing, inputs.rules.labels.mode, found.names)
    listing.notices += names_left_out(types, before.layout, recipe)
    plain = pa.schema([f.remove_metadata() for f in fields])
    joined = Types.of_schema(plain, recipe.record_reading.label).join(types)
    mixed, chosen = set(joined.mixed()), recipe.chosen_fields
    for f in joined.found():
        if f.name not in fields.names:
            if not chosen or f.name in chosen:
                raise _MadeAnewError(
                    f"new records have the field {printable(f.name)}, which the others do not have"
                )
            continue
        was = fields.field(f.name)
        new = found.field(f.name).type if f.name in found.names else None
        if not is_json(was) and (f.type != was.type or (f.name in mixed and new != was.type)):
            raise _MadeAnewError(
                f"the field {printable(f.name)} of new records is {new}, and was {was.type}"
            )
    names = before.layout.roles.names
    for name, classes in types.classes.items():
        if names.get(name) not in (None, classes):
            raise _MadeAnewError(f"new files give other names to the classes of {printable(name)}")
    if reading.by_field:
        labels = label_files(listing, inputs.rules, splitting, recipe, types).classes or ()
        if new_labels := sorted(set(labels) - set(before.layout.classes or ())):
            raise _MadeAnewError(f"the classes have other numbers, as {some(new_labels)} came")


def _stays(
    before: PreviousDataset, matching: Matching, splitting: Splitting, discovery: Discovery
) -> tuple[Stays, Bools, Units]:
    """Return what stays of the dataset before; which files are put into shards anew, (files,): new
    ones, those that change their split, and changed ones of many records; and their units, with
    those of all other files that are one record each."""
    listing, shards, shard = discovery.listing, len(before.table), before.units("shard")
    numbers = {name: number for number, name in enumerate(splitting.names)}
    places = [(numbers.get(entry.split, -1), entry.number) for entry in before.table]
    split_of, number = np.array(places, np.int64).reshape(-1, 2).T
    now = matching.new_row[before.units("file")]
    stays, same = (now >= 0) & (split_of[shard] >= 0), matching.same[now]
    if splitting.of_file is not None:
        stays &= splitting.of_file[now] == split_of[shard]
    if not listing.whole:
        stays &= same
    is_touched, changed = np.zeros(shards, bool), stays & ~same
    is_touched[shard[~stays | changed]] = True
    old_row = np.where(changed, -1, np.arange(len(stays)))[stays]
    plan = before.plan if stays.all() else before.plan.filter(pa.array(stays))
    now, shard = now[stays], shard[stays]
    records = sums_of(numbers_of(plan["records"]), shard, shards)
    end = np.cumsum(np.bincount(shard, minlength=shards))
    is_new = np.ones(len(listing), bool)
    is_new[now] = False
    units = discovery.find_units(is_new)
    columns = {name: plan[name] for name, _ in UNIT_FIELDS}
    columns["file"], faults = column_of(now.astype(np.int32)), list[Rejection | None]()
    if listing.whole:
        columns["size"] = column_of(numbers_of(listing.table["size"])[now])
        faults = [units.faults.get(file) for file in now.tolist()] if units.faults else []
    rows = pa.table([*columns.values(), *why_unread(faults, len(now))], schema=JOB_PLAN_SCHEMA)
    return Stays(rows, old_row, split_of, number, end, records, is_touched), is_new, units
