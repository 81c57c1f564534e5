"""The columns of a dataset, decided before any sample is made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import is_text, numbers_of
from shardctl.format.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.format.roles import RESERVED_FIELDS, Image, Label, Mask, Objects, Role
from shardctl.images.codecs import backend
from shardctl.images.defaults import SUFFIXES
from shardctl.making.notices import notice
from shardctl.making.plan.labels import LABEL, Labelling, left_out_by, side_fields
from shardctl.making.plan.listing import Listing
from shardctl.making.shards.job import KEY, Job, objects_of_records
from shardctl.sources.annotations import AnnotationRule
from shardctl.sources.annotations.objects import OBJECTS, has_objects
from shardctl.sources.boxes import is_named_mask
from shardctl.sources.export_description import Description, described, name_in_records
from shardctl.sources.format_table import PLAIN_TEXTS, Subject
from shardctl.sources.formats import CHOSEN, without_compression
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.image_columns import (
    AUTO,
    BOXES,
    FRAME,
    IMAGE_NAMES,
    KEPT,
    MAIN,
    MASK,
    NO_IMAGES,
    ROLE,
    can_hold_images,
    choose_column,
    mark_columns,
    mark_masks,
    marked_columns,
    marked_masks,
    with_said,
    without_masks,
)
from shardctl.sources.label_table import DELIMITED_SUFFIXES, said_of_names
from shardctl.sources.types import WRITTEN, Types, separator_in, without_nulls
from shardctl.system.text import counted, printable, some
from shardctl.transforms.base import ImageTransform
from shardctl.transforms.image_steps import refuse_immovable
from shardctl.transforms.recipe import Recipe


def with_images(fields: pa.Schema, recipe: Recipe, listing: Listing) -> pa.Schema:
    """Return the columns of records with those of images marked. Raises InputError if it is not
    clear which they are."""
    if members := [
        f.name
        for f in fields
        if pa.types.is_binary(f.type) and "." in f.name and f.name.endswith(tuple(SUFFIXES))
    ]:
        listing.note("images-as-bytes", names=some(members))
    if recipe.kind == "image":
        return with_masks(
            mark_columns(fields, choose_column(fields, recipe.image_field or AUTO)), recipe, listing
        )
    if recipe.kind != "table" or recipe.image_field == NO_IMAGES:
        return fields
    if {"images", "annotations"}.issubset(fields.names):
        listing.note("coco-as-records")
    fields = mark_columns(fields, None)
    kept = marked_columns(fields, KEPT)
    if kept:
        backend.require_one()
        if recipe.batch_transforms:
            step = recipe.batch_transforms[0].name
            raise UsageError(notice("step-beside-images", step=step, names=some(kept)))
    paths = [f.name for f in fields if is_text(f.type) and f.name.lower() in IMAGE_NAMES]
    if kept or paths:
        said = notice("columns-of-images" if kept else "paths-of-images", names=some(kept or paths))
        if said not in listing.notices:
            listing.notices.append(said)
    return with_masks(fields, recipe, listing) if kept else fields


def with_masks(fields: pa.Schema, recipe: Recipe, listing: Listing) -> pa.Schema:
    """Return the columns of records with images, those marked that may have to be moved with the
    image as masks.

    These are the ones that the recipe names, all that hold other images by their type, and where a
    step moves pixels, those that are called masks. The first records tell which are masks. Those of
    exports have the roles that shardctl.json tells. Raises InputError for a field that the recipe
    names and that cannot be a mask.
    """
    other = {*marked_columns(fields, MAIN), *marked_masks(fields)}
    names = {f.name: recipe.renames.get(f.name, f.name) for f in fields if f.name not in other}
    for name in recipe.mask_fields:
        old = next((old for old, new in names.items() if new == name), None)
        if old is None:
            others = ", ".join(map(printable, names.values())) or "none"
            raise InputError(notice("no-such-mask-field", name=printable(name), others=others))
        if not can_hold_images(type_ := fields.field(old).type):
            raise InputError(notice("mask-of-type", name=printable(name), type=type_))
    found = [old for old, new in names.items() if new in recipe.mask_fields]
    kept = marked_columns(fields, KEPT)
    for old, new in names.items():
        may_be = old in kept or (
            bool(recipe.moving) and is_named_mask(fields.field(old).with_name(new))
        )
        if may_be and old not in found and new not in recipe.unmoved:
            found.append(old)
    with_roles = _with_roles(listing) if found else ()
    return mark_masks(fields, {name: 8 for name in found if name not in with_roles})


def with_bits(fields: pa.Schema, layout: Layout, renames: Mapping[str, str]) -> pa.Schema:
    """Return the columns of records, those of masks marked with the bits that a layout says of
    them.

    Those that it says to be no masks are not marked any more.
    """
    roles = {name: layout.roles.get(renames.get(name, name)) for name in marked_masks(fields)}
    fields = without_masks(
        fields, [name for name, role in roles.items() if not isinstance(role, Mask)]
    )
    return mark_masks(
        fields, {name: role.bits for name, role in roles.items() if isinstance(role, Mask)}
    )


def with_rule(
    fields: pa.Schema | None, recipe: Recipe, listing: Listing, rule: AnnotationRule
) -> pa.Schema | None:
    """Return the columns of records, those of masks and objects marked with what a person says of
    their frame and boxes."""
    if fields is None or not marked_columns(fields, MAIN):
        return fields
    objects = objects_of_records(fields, recipe)
    of_objects = [] if objects is None or objects in _with_roles(listing) else [objects]
    if rule.boxes != "keep":
        fields = with_said(fields, BOXES, dict.fromkeys(of_objects, rule.boxes))
    if rule.frame != "auto":
        named = [*marked_masks(fields), *of_objects]
        fields = with_said(fields, FRAME, dict.fromkeys(named, rule.frame))
    return fields


def found_in(
    fields: pa.Schema | None, recipe: Recipe, listing: Listing, endings: Collection[str]
) -> Iterator[Subject]:
    """Yield what the inputs have that options may be about. `endings` are those of files of many
    records."""
    yield from [Subject.IMAGES] if recipe.kind == "image" else []
    yield from [Subject.LABELS_FILES] if listing.side_files else []
    yield from [] if listing.whole else [Subject.FIELDS]
    of_texts = [".txt"] if listing.whole and recipe.kind == "text" else []
    plain = {*map(without_compression, endings), *of_texts}
    yield from [] if plain.isdisjoint(PLAIN_TEXTS) else [Subject.TEXT]
    yield from [] if plain.isdisjoint(DELIMITED_SUFFIXES) else [Subject.CSV]
    kinds = {type(role) for each in listing.annotations for role in each.roles.values()}
    yield from [Subject.OBJECTS, Subject.BOXES] if Objects in kinds else []
    yield from [Subject.MASKS] if Mask in kinds else []
    if fields is not None and marked_columns(fields, MAIN):
        yield Subject.BESIDE
        yield from [Subject.MASKS] if marked_masks(fields) else []
        if (objects := objects_of_records(fields, recipe)) is not None:
            yield Subject.OBJECTS
            # what an export says of boxes holds
            yield from [] if objects in _with_roles(listing) else [Subject.BOXES]


def _no_such_field(name: str, fields: pa.Schema) -> InputError:
    """Return the error for a field that was named, and that records have not."""
    outer = name.partition(".")[0]
    which = "field-in-a-struct" if outer in fields.names else "no-such-field"
    if mark := separator_in(fields.names):
        which = "fields-in-one"
    values = {"name": printable(name), "outer": printable(outer), "mark": mark}
    return InputError(notice(which, names=", ".join(map(printable, fields.names)), **values))


def chosen_columns(types: Types, recipe: Recipe) -> pa.Schema:
    """Return those of the columns of records that the recipe keeps.

    Raises InputError if there is no such field, and if records have fields of their own, too many
    for a column each.
    """
    fields = types.found()
    wanted = recipe.chosen_fields
    named = (recipe.text_field, recipe.label_field, recipe.key_field, *wanted)
    if absent := [name for name in named if name is not None and name not in fields.names]:
        raise _no_such_field(absent[0], fields)
    if not wanted:
        if types.scattered > MOST_SCATTERED:
            raise InputError(notice("scattered", count=types.scattered, most=MOST_SCATTERED))
        return fields
    return pa.schema(
        [fields.field(name) for name in wanted], {CHOSEN: b"", **(fields.metadata or {})}
    )


ExportedColumn = tuple[Role | None, pa.DataType | None]
"""What shardctl.json says of a column that its values do not show: its role, and its type where
that is a tensor."""


def exported_columns(
    listing: Listing, content: pa.Schema | None, renames: Mapping[str, str]
) -> dict[str, ExportedColumn]:
    """Return what the exports among the sources say of columns, where all sources say the same.

    The main image and classes with names are left out: a conversion finds these as in any other
    source. `renames` has the columns that get another name in the dataset. Raises InputError for
    exports that say different things of a column.
    """
    if listing.whole or content is None:
        return {}
    found = [_exported_by(export, content, renames) for export in _exports(listing)]
    together: dict[str, ExportedColumn] = {}
    for columns in found:
        odd = next(
            (name for name, said in columns.items() if together.setdefault(name, said) != said),
            None,
        )
        if odd is not None:
            raise InputError(notice("exports-differ", name=printable(odd)))
    lost = [name for name in together if not all(name in columns for columns in found)]
    if lost:
        listing.note("roles-left-out", names=some(lost))
    return {name: said for name, said in together.items() if name not in lost}


def _exports(listing: Listing) -> list[Description | None]:
    """Return the description of the export that the first file of each folder is of, None for one
    of none."""
    root = numbers_of(listing.table["root"]).astype(np.int64)
    folders = listing.folder_of_group[listing.group] + len(listing.groups) * root
    rows = np.unique(folders, return_index=True)[1].tolist()
    return [described(listing.opened(row)) for row in listing.rows_at(rows)]


def _with_roles(listing: Listing) -> set[str]:
    """Return the columns that exports tell the role of, by their names in the records."""
    return {
        name_in_records(field, export)
        for export in _exports(listing)
        if export is not None
        for field in export.fields
        if export.layout.roles.get(field.name) is not None
    }


def _exported_by(
    export: Description | None, content: pa.Schema, renames: Mapping[str, str]
) -> dict[str, ExportedColumn]:
    """Return what an export says of columns, by their names in the new dataset."""
    if export is None:
        return {}
    made: dict[str, ExportedColumn] = {}
    for field in export.fields:
        read = name_in_records(field, export)
        name, type_ = renames.get(read, read), export.layout.columns.field(field.name).type
        if name in content.names:
            role = export.layout.roles.get(field.name)
            is_main = field.name == export.layout.roles.main_image and not isinstance(role, Mask)
            is_found = is_main or (isinstance(role, Label) and (bool(role.names) or name == LABEL))
            tensor = type_ if _are_its_numbers(content.field(name).type, type_) else None
            if (role is not None and not is_found) or tensor is not None:
                made[name] = None if role is None or is_found else _as_read(role, type_), tensor
    return made


def _are_its_numbers(type_: pa.DataType, tensor: pa.DataType) -> bool:
    """Return whether a type is one of lists of the numbers of a tensor: of all of them, or of lists
    in its shape."""
    count = 1
    while pa.types.is_fixed_size_list(type_):
        count, type_ = count * type_.list_size, type_.value_type
    return (
        isinstance(tensor, pa.FixedShapeTensorType)
        and type_ == tensor.value_type
        and count == tensor.storage_type.list_size
    )


def _as_read(role: Role, type_: pa.DataType) -> Role:
    """Return the role of a column of this type once it was exported: raw masks and images are PNG
    then."""
    if not isinstance(role, Image) or not isinstance(type_, pa.FixedShapeTensorType):
        return role
    if isinstance(role, Mask):
        return replace(role, store="png", bits=16 if type_.value_type == pa.uint16() else 8)
    return replace(role, store="png")


def renamed(fields: pa.Schema, renames: dict[str, str]) -> pa.Schema:
    """Return columns under the names that they have in the dataset. Raises InputError if there is
    no such field, or two."""
    missing = [name for name in renames if name not in fields.names and name != FOLDER]
    if missing:
        raise _no_such_field(missing[0], fields)
    names = [renames.get(name, name) for name in fields.names]
    twice = next((new for old, new in renames.items() if names.count(new) > 1), None)
    if twice is not None:
        raise InputError(notice("same-name-twice", name=twice))
    return pa.schema([_plain(f).with_name(name) for f, name in zip(fields, names, strict=True)])


def without_key(columns: pa.Schema, recipe: Recipe) -> pa.Schema:
    """Return columns without that of the records' own keys. Raises InputError if these cannot be
    keys."""
    if recipe.key_source is None:
        return columns
    _refuse_names(columns.field(KEY).type, recipe.key_source, "keys")
    return columns.remove(columns.get_field_index(KEY))


def refuse_groups(fields: pa.Schema, recipe: Recipe, types: Types | None) -> None:
    """Raise InputError if the records do not have the field of the groups, or it cannot be one: 3
    and 3.0 are two texts."""
    if recipe.group is not None and (name := recipe.group.field) is not None:
        if name not in fields.names:
            raise _no_such_field(name, fields)
        if types is not None and name in types.mixed():
            raise InputError(notice("groups-of-several-types", name=printable(name)))
        _refuse_names(fields.field(name).type, name, "groups")


def _refuse_names(type_: pa.DataType, name: str, what: str) -> None:
    if not (
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_integer(type_)
    ):
        raise InputError(notice("no-names-in-field", name=printable(name), type=type_, what=what))


def compare_schema(schema: pa.Schema, first: list[str], listing: Listing) -> None:
    """Say which fields of the first records a given schema leaves out, and which of its own they do
    not have.

    Raises InputError if they have none of its fields.
    """
    named, held = dict.fromkeys(schema.names), dict.fromkeys(first)
    left_out = [name for name in held if name not in named]
    missing = [name for name in named if name not in held]
    if first and len(missing) == len(schema):
        raise InputError(notice("none-of-the-schema", names=some(missing), held=some(first)))
    if left_out:
        listing.note("fields-left-out", names=some(left_out))
    if first and missing:
        listing.note("fields-missing", names=some(missing))


def refuse_partitions(listing: Listing, mode: str, held: Collection[str]) -> None:
    """Raise InputError for tables in folders NAME=VALUE, which are values of a column that is none
    of those `held`.

    With the labels' mode `none`, a notice names these columns.
    """
    lost = {
        number: names
        for number, group in enumerate(listing.groups)
        if (
            names := {
                part.partition("=")[0] for part in group.folder.split("/") if "=" in part[1:]
            }.difference(held)
        )
    }
    if not lost:
        return
    columns = some(sorted(set().union(*lost.values())))
    if mode != "none":
        folder = printable(listing.groups[min(lost)].folder)
        raise InputError(notice("partitions-refused", folder=folder, columns=columns))
    files = counted(int(np.isin(listing.group, list(lost)).sum()), "file")
    listing.note("partitions-left-out", columns=columns, files=files)


def names_left_out(types: Types, layout: Layout, recipe: Recipe) -> list[str]:
    """Say which names of classes that files say a dataset of this layout does not have, though it
    has the fields."""
    kept = {*layout.columns.names}.difference(layout.roles.names)
    lost = {
        name
        for name in types.named
        if recipe.renames.get(top := name.partition(".")[0], top) in kept
    }
    return said_of_names(
        {name: names for name, names in types.named.items() if names and name in lost}
    )


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
            said = notice("reserved-field", name=name)
            raise InputError(notice("field-image", what=said) if name == "image" else said)
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
            raise InputError(notice("label-twice"))
        fields.append(pa.field(LABEL, pa.int64()))
    clash = {f.name for f in side_fields(side)} & {f.name for f in fields}
    if clash:
        raise InputError(notice("columns-clash", names=",".join(sorted(clash))))
    fields += side_fields(side)
    annotated = [f for each in annotations for f in each.fields if f.name != LABEL]
    clash = {f.name for f in annotated} & {f.name for f in fields}
    if clash:
        raise InputError(notice("annotations-clash", names=some(sorted(clash))))
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
        name = printable(unknown[0])
        raise UsageError(notice("no-such-unmoved", name=name, names=some(list(names))))
    marked = [
        name
        for name in recipe.unmoved
        if name == "image" or isinstance(roles.get(name), Mask | Objects)
    ]
    if marked and recipe.moving:
        which = "image-unmoved"
        if marked[0] != "image":
            which = "mask-unmoved" if isinstance(roles[marked[0]], Mask) else "objects-unmoved"
        step = recipe.moving[0].name
        raise UsageError(notice(which, name=printable(marked[0]), step=step))


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


def _plain(field: pa.Field) -> pa.Field:
    """Return a column without what its type was found from, and what it is for: only those who read
    files need that."""
    metadata = {
        key: value
        for key, value in (field.metadata or {}).items()
        if key not in (WRITTEN, ROLE, MASK, FRAME, BOXES)
    }
    return field.with_metadata(metadata) if metadata else field.remove_metadata()


MOST_SCATTERED = 4096
"""Fields that the first records do not have: with more, and a column each, a dataset grows with the
square of its records."""
