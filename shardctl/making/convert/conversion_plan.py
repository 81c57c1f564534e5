"""The plan of a new dataset, made before anything is written: the units of its shards, the columns,
the cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.format.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.format.names import FILES
from shardctl.format.roles import RESERVED_FIELDS, Image, Label, Mask, Objects, Role
from shardctl.format.tables import failures
from shardctl.making.convert.columns import (
    chosen_columns,
    compare_schema,
    exported_columns,
    names_left_out,
    refuse_groups,
    refuse_partitions,
    renamed,
    with_bits,
    with_images,
    with_rule,
    without_key,
)
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.discover import Discovery
from shardctl.making.options import Options
from shardctl.making.plan.labels import (
    LABEL,
    Labelling,
    label_files,
    left_out_by,
    side_fields,
    write_files_table,
)
from shardctl.making.plan.listing import Listing
from shardctl.making.plan.plan import Planner, SplitPlan, Units
from shardctl.making.plan.splits import look_inside, split_files
from shardctl.making.shards.job import DatasetJob, Job, Probe
from shardctl.sources.annotations.huggingface import has_objects
from shardctl.sources.annotations.objects import OBJECTS
from shardctl.sources.formats import CHOSEN, DETECT, is_json
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.image_columns import FRAME, marked_masks, with_said
from shardctl.sources.jsonl import null_label_notice
from shardctl.sources.label_table import SPLIT_COLUMN
from shardctl.sources.types import UNNAMED, Types, separator_in, without_nulls
from shardctl.system.files import copy_file
from shardctl.system.text import counted, printable, some
from shardctl.transforms.base import ImageTransform
from shardctl.transforms.image_steps import refuse_immovable
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.text.deduplicate import Deduplicate

if TYPE_CHECKING:
    from shardctl.making.convert.duplicates import Compared

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


def discovery_of(conversion: Conversion, listing: Listing) -> Discovery:
    """Return what looks into the files."""
    recipe, shuffled = conversion.recipe, conversion.rules.shuffle is not None
    scanning = conversion.listener.scanning
    return Discovery(listing, recipe.record_reading, shuffled, conversion.engine, scanning)


def trial_job(
    conversion: Conversion, inputs: Inputs, fields: pa.Schema | None, by_field: bool
) -> Job:
    """Return a job that reads records as these columns, in the folder for scratch."""
    recipe, bases = conversion.recipe, inputs.bases
    return Job(inputs.scratch, bases, recipe, EMPTY, (), fields=fields, by_field=by_field)


def shards_of(rows: int, sample_bytes: float, options: Options, of_blocks: bool) -> int:
    """Return the number of shards of a split with `rows` rows, which may be blocks of tokens; a
    small dataset has no shards of few rows."""
    if options.samples_per_shard:
        return max(1, -(-rows // options.samples_per_shard))
    if options.shard_size:
        return max(1, min(rows, round(rows * sample_bytes / options.shard_size)))
    by_size = -(-int(rows * sample_bytes) // SHARD_BYTES)
    fewest = SMALLEST_SHARD_BLOCKS if of_blocks else SMALLEST_SHARD_ROWS
    return max(1, by_size, min(FEWEST_SHARDS, rows // fewest))


@dataclass(frozen=True)
class ConversionPlan:
    """A new dataset that is decided on and not begun: its `job`, and what makes its tables."""

    listing: Listing
    labelling: Labelling
    planner: Planner
    job: DatasetJob
    probe: Probe
    compared: Sequence[Compared]

    def write(self) -> None:
        """Write the tables of the job into its folder."""
        folder = self.job.folder
        write_files_table(folder / FILES, self.listing, self.labelling)
        self.planner.write(folder, [split.shards for split in self.job.splits])
        for each in self.compared:
            copy_file(each.table, folder / each.table.name)


def plan_conversion(
    conversion: Conversion, inputs: Inputs, folder: Path, all_types: bool
) -> ConversionPlan:
    """Plan a conversion, whose job will be in `folder`, having probed some of its records. Notices
    are added to a list of its own.

    With `all_types`, the types of fields are found in all records, else in some of them where that
    is enough. Raises InputError.
    """
    recipe, rules = conversion.recipe, conversion.rules
    listing = inputs.listing.fresh()
    discovery, comparing = discovery_of(conversion, listing), conversion.listener.comparing
    units = discovery.find_units()
    if recipe.duplicates.mode != "keep":
        # which most conversions never need
        from shardctl.making.convert.duplicates import without_repeats

        units = without_repeats(discovery, units, recipe, inputs.bases, comparing)
    types = None
    held: list[str] = []  # nothing that could be read
    if listing.whole:
        # each file is one record without fields
        of_fields = ("text_field", "label_field", "key_field", "fields", "schema", "mask_fields")
        given = next((name for name in of_fields if getattr(recipe, name)), None)
        if given is not None:
            what = "images" if recipe.kind == "image" else "whole files of text"
            raise UsageError(f"{given} is for records, and the inputs are {what}; leave it out")
    elif recipe.typed_fields is not None:
        first = discovery.types_of(units, units.readable()[:1])
        held = [] if first is None else first.found().names
        compare_schema(recipe.typed_fields, held, listing)
    else:
        types = discovery.find_types(units, all_types)
        types = types or Types.of_schema(pa.schema([]), recipe.record_reading.label)
        held = types.found().names
    if held:
        refuse_partitions(listing, rules.labels.mode, held)
    splitting = split_files(listing, rules)
    look_inside(listing, rules.split, splitting)
    labelling = label_files(listing, rules, splitting, recipe, types)
    fields = _columns(types, labelling, listing, conversion)
    trial = trial_job(conversion, inputs, fields, labelling.by_field)
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
                raise InputError(f"--classes: {printable(field_name)} has classes of its own")
    compared: list[Compared] = []
    if recipe.compares_texts:
        from shardctl.making.convert.duplicates import compare_texts  # the same

        compared = compare_texts(trial, listing, labelling, units, conversion.engine, comparing)
        steps = tuple(step for step in recipe.transform if not isinstance(step, Deduplicate))
        trial = replace(trial, recipe=replace(recipe, transform=steps))
    probe = _probe(conversion, listing, trial, planner, labelling)
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
    splits = []
    for name, records, expected in zip(
        splitting.names, planner.records, planner.split_records, strict=True
    ):
        rows = round(expected * probe.samples_per_record)
        shards = shards_of(rows, probe.sample_bytes, conversion.options, recipe.joins)
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
    if recipe.record_reading.encoding == DETECT and (found := discovery.encodings()):
        shown = (
            f"{name} ({counted(count, 'file')}, {printable(of)})" for name, (count, of) in found
        )
        listing.note("encodings", found=", ".join(shown))
    listing.notices += [said for step in recipe.transform for said in step.notices()]
    job = DatasetJob(
        folder,
        inputs.bases,
        recipe,
        probe.layout,
        tuple(splits),
        fields,
        labelling.by_field,
        planner.draw,
        rules.shuffle,
        parts=inputs.parts,
        beside=listing.digest_beside,
        notices=tuple(listing.notices),
        warnings=tuple(listing.warnings),
        sample_bytes=probe.sample_bytes,
        samples_per_record=probe.samples_per_record,
        record_seconds=probe.record_seconds,
        shard_bytes=probe.shard_bytes,
        probed=probe.records,
        probe_rejects=probe.rejected,
    )
    return ConversionPlan(listing, labelling, planner, job, probe, compared)


def _columns(
    types: Types | None, labelling: Labelling, listing: Listing, conversion: Conversion
) -> pa.Schema | None:
    """Return the columns of the records, None for files of one record. Raises InputError."""
    recipe, rules, fields = conversion.recipe, conversion.rules, None
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
    conversion: Conversion, listing: Listing, job: Job, planner: Planner, labelling: Labelling
) -> Probe:
    """Try some records of a job: if most fail, others from all over the inputs, as the first ones
    of a file may be unlike all others. They are always the same ones."""
    folder, recipe = job.folder, conversion.recipe
    some, run = (PROBE_FILES[recipe.kind], 1) if listing.whole else (PROBE_RUNS, PROBE_RUN)
    if job.has_image_columns:
        run = PROBE_IMAGE_RUN
    elif recipe.batch_transforms:
        some, run = min(some, PROBED_BY_STEPS), min(run, PROBED_BY_STEPS)
    if recipe.filters:
        some *= PROBED_WITH_FILTERS
    files = planner.write_some(folder, some, run)
    write_files_table(folder / FILES, listing, labelling, files)
    probe = conversion.engine.probe(job)
    if not is_failing(probe) or probe.records >= planner.inputs:
        return probe
    slow = bool(recipe.sample_transforms) and (job.has_image_columns or recipe.kind == "image")
    if listing.whole:
        files = planner.write_some(folder, WIDE_PLACES if slow else WIDE_FILES[recipe.kind], 1)
    else:
        run = WIDE_SLOW_RUN if job.has_image_columns or recipe.batch_transforms else WIDE_RUN
        files = planner.write_widely(folder, WIDE_PLACES, 1 if slow else run, WIDE_REACH)
    write_files_table(folder / FILES, listing, labelling, files)
    return conversion.engine.probe(replace(job))  # which reads the new tables


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
    said = exported_columns(listing, content, job.renames)
    if content is not None:  # lists of the numbers of tensors
        types = {name: tensor for name, (_, tensor) in said.items() if tensor is not None}
        content = pa.schema(
            [f.with_type(types.get(f.name, f.type)) for f in content], content.metadata
        )
    masks = marked_masks(fields).items()
    roles: Mapping[str, Role] = {
        **{job.renames.get(name, name): Mask("source", bits=bits) for name, bits in masks},
        **{name: role for name, (role, _) in said.items() if role is not None},
    }
    for step in recipe.batch_transforms:
        before = [] if content is None else content.names
        content, roles = step.schema(content), step.roles(roles)
        listing.notices += (
            left_out_by(step.name, [name for name in before if name not in content.names])
            if step.joins
            else []
        )
    return known_layout(job, labelling, listing, content, roles)


def known_layout(
    job: Job,
    labelling: Labelling,
    listing: Listing,
    content: pa.Schema | None,
    of_steps: Mapping[str, Role],
) -> Layout:
    """Decide the columns of the shards, but for what a user's functions make of them.

    In this order: key, the image, the content, label, columns of the labels files, annotations,
    variant. `content` are the columns of the records, None for files that are images. `of_steps` are the roles of columns that batch
    transforms have made.
    """
    recipe, kept_images = job.recipe, job.kept_images
    fields = [pa.field("key", pa.string())]
    size, image = recipe.output_size, None
    shape = (size[1], size[0], 3) if size else None
    content = content or pa.schema([])
    if recipe.store is not None:
        if recipe.store.name != "none":
            image, is_raw = Image(str(recipe.store), shape), recipe.store.name == "raw"
            tensor = image_tensor(shape) if is_raw and shape else ENCODED_IMAGE
            fields.append(pa.field("image", tensor))
        content = pa.schema([f for f in content if f.name != "image"])
    content = pa.schema(
        [f.with_type(ENCODED_IMAGE) if f.name in kept_images else f for f in content]
    )
    for name in (f.name for f in content if f.name not in kept_images):
        if name in RESERVED_FIELDS:
            images = "; --kind image reads the images that it holds or names"
            raise InputError(
                f"the records have a field {name!r}, which shardctl makes itself. Rename it "
                "(--fields NEW=OLD,…), or name only the others in --fields or "
                f"--schema{images if name == 'image' else ''}"
            )
    has_table = (
        has_objects(content)
        and not isinstance(of_steps.get(OBJECTS), Objects)
        and OBJECTS not in recipe.unmoved
    )
    if has_table and recipe.moving:
        content = _with_places_in_parts_of_pixels(content)
    fields += [f for f in content if not (labelling.by_field and f.name == LABEL)]
    side, annotations = listing.side, listing.annotations
    by_number = LABEL in labelling.declared  # the label is a field of the records already
    if (labelling.classes is not None and not by_number) or (
        side is not None and LABEL in side.columns.column_names
    ):
        if LABEL in [f.name for f in fields]:
            raise InputError("the inputs have a field label already; use --labels none")
        fields.append(pa.field(LABEL, pa.int64()))
    clash = {f.name for f in side_fields(side)} & {f.name for f in fields}
    if clash:
        names = ",".join(sorted(clash))
        raise InputError(
            f"the labels file and the inputs both have {names}; rename it, or use --drop-columns "
            f"{names}"
        )
    fields += side_fields(side)
    annotated = [f for each in annotations for f in each.fields if f.name != LABEL]
    clash = {f.name for f in annotated} & {f.name for f in fields}
    if clash:
        raise InputError(
            f"the annotations give {some(sorted(clash))}, which the inputs have too; rename it "
            "there"
        )
    fields += annotated
    roles = dict(of_steps)
    for each in annotations:
        roles |= each.roles
    if recipe.kind == "image":
        _refuse_unmoved(recipe, [f.name for f in fields], roles)
    if recipe.store is not None:
        of_records: dict[str, Role] = {OBJECTS: Objects()} if has_table else {}
        marked: dict[str, Role] = {**of_records, **roles}
        reading = [step for step in recipe.reading if isinstance(step, ImageTransform)]
        refuse_immovable(
            (*recipe.image_transforms, *reading),
            {
                f.name: (role, [each.name for each in f.type] if isinstance(role, Objects) else ())
                for f in fields
                if (role := marked.get(f.name)) is not None
            },
        )
        if not all(step.in_place for step in recipe.image_transforms):  # a moved mask is a PNG
            for name, role in roles.items():
                roles[name] = replace(role, store="png") if isinstance(role, Mask) else role
    if recipe.samples_per_record > 1 or any(step.splits for step in recipe.batch_transforms):
        fields.append(pa.field("variant", pa.int32()))
    labels = {f.name for f in fields if f.name in labelling.declared} - {LABEL}
    roles |= {name: Label(labelling.declared[name]) for name in sorted(labels)}
    return Layout.by_name(
        recipe.kind, pa.schema(fields), image, labelling.classes, kept_images, roles
    )


def _refuse_unmoved(recipe: Recipe, names: Collection[str], roles: Mapping[str, Role]) -> None:
    """Raise UsageError for fields that are to stay as they are and do not exist, or move with the
    image by their role."""
    unknown = [name for name in recipe.unmoved if name not in names]
    if unknown:
        raise UsageError(
            f"--unmoved: there is no field {printable(unknown[0])}; fields are {some(list(names))}"
        )
    marked = [
        name
        for name in recipe.unmoved
        if name == "image" or isinstance(roles.get(name), Mask | Objects)
    ]
    if marked and recipe.moving:
        what = "the image itself"
        if marked[0] != "image":
            what = (
                f"{'a mask' if isinstance(roles[marked[0]], Mask) else 'objects'} by role "
                "(`shardctl help annotations`)"
            )
        raise UsageError(
            f"--unmoved {printable(marked[0])}: it is {what}, which {recipe.moving[0].name} "
            "moves; leave out the step, or this of --unmoved"
        )


def _with_places_in_parts_of_pixels(content: pa.Schema) -> pa.Schema:
    """Return columns whose objects have float32 in the place of whole numbers, which moved places
    are not."""
    place = content.get_field_index(OBJECTS)
    members = [
        f.with_type(_in_parts(f.type)) if f.name in PLACES_IN_OBJECTS else f
        for f in content.field(place).type
    ]
    return content.set(place, content.field(place).with_type(pa.struct(members)))


def _in_parts(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_in_parts(type_.value_type), type_.list_size)
    for is_list, list_of in ((pa.types.is_large_list, pa.large_list), (pa.types.is_list, pa.list_)):
        if is_list(type_):
            return list_of(_in_parts(type_.value_type))
    return pa.float32() if pa.types.is_integer(type_) else type_


PLACES_IN_OBJECTS = ("bbox", "area", "segmentation", "keypoints")
