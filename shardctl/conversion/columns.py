"""The columns of a dataset, decided before any sample is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from shardctl.annotations.huggingface import has_objects
from shardctl.annotations.objects import OBJECTS
from shardctl.codecs import backend
from shardctl.engines.job import KEY
from shardctl.errors import InputError, UsageError
from shardctl.labelling import LABEL, Labelling, side_fields
from shardctl.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.listing import Listing
from shardctl.recipe import Recipe
from shardctl.roles import Image, Label, Mask, Objects, Role, Tokens
from shardctl.sample import RESERVED_FIELDS
from shardctl.sources.boxes import place_columns
from shardctl.sources.exported import described
from shardctl.sources.formats import CHOSEN
from shardctl.sources.image_columns import AUTO, KEPT, NO_IMAGES, ROLE, choose_column, mark_columns, marked_columns
from shardctl.sources.labels import some
from shardctl.sources.types import WRITTEN
from shardctl.storage import printable
from shardctl.transforms.base import ImageTransform


def with_images(fields: pa.Schema, recipe: Recipe, listing: Listing) -> pa.Schema:
    """Return the columns of records with those of images marked. Raises InputError if it is not clear which they are."""
    if recipe.kind == "image":
        return mark_columns(fields, choose_column(fields, recipe.image_field or AUTO))
    if recipe.kind != "table" or recipe.image_field == NO_IMAGES:
        return fields
    fields = mark_columns(fields, None)
    kept = marked_columns(fields, KEPT)
    if kept:
        backend.require_one()
        if recipe.batch_transforms:
            name = recipe.batch_transforms[0].name
            raise UsageError(f"{name} is not for records with images ({some(kept)}); use --image-field none")
        what = "the column {} holds images" if len(kept) == 1 else "the columns {} hold images"
        notice = f"{what.format(', '.join(map(printable, kept)))}; --image-field none keeps the structs as they are"
        if notice not in listing.notices:
            listing.notices.append(notice)
    return fields


def known_layout(
    recipe: Recipe,
    labelling: Labelling,
    listing: Listing,
    content: pa.Schema | None,
    kept_images: Collection[str],
    of_steps: Mapping[str, Role],
) -> Layout:
    """Decide the columns of the shards, but for what a user's functions make of them.

    In this order: key, the image, the content, label, columns of the labels files, annotations, variant. `content` are the
    columns of the records, None for files that are images; those of `kept_images` are images that no recipe works on.
    `of_steps` are the roles of columns that batch transforms have made.
    """
    fields = [pa.field("key", pa.string())]
    size = recipe.output_size
    shape = (size[1], size[0], 3) if size else None
    if recipe.store is not None:
        if recipe.store.name != "none":
            fields.append(pa.field("image", image_tensor(shape) if recipe.store.name == "raw" and shape else ENCODED_IMAGE))
        content = pa.schema([f for f in content or [] if f.name != "image"])
    fields += [f for f in content or [] if not (labelling.by_field and f.name == LABEL)]
    _refuse_reserved(f for f in content or [] if f.name not in kept_images)
    side = side_fields(listing.side)
    others = [f for f in content or [] if f.name != OBJECTS or not has_objects(content)]
    _refuse_places(recipe, [*side, *others])
    by_number = LABEL in labelling.declared  # the label is a field of the records already
    if (labelling.classes is not None and not by_number) or (listing.side and "label" in listing.side.columns.column_names):
        if "label" in [f.name for f in fields]:
            raise InputError("the inputs have a field label, and labels were to be added to them; use --labels none")
        fields.append(pa.field("label", pa.int64()))
    clash = {f.name for f in side} & {f.name for f in fields}
    if clash:
        names = ",".join(sorted(clash))
        raise InputError(
            f"the labels file has a column that the inputs have too: {names}; rename it in the labels file, or leave it out"
            f" with --drop-columns {names}"
        )
    fields += side
    taken = {f.name for f in fields}
    annotated = [f for each in listing.annotations for f in each.fields if f.name != LABEL]
    clash = {f.name for f in annotated} & taken
    if clash:
        raise InputError(f"the annotations give {some(sorted(clash))}, which the inputs have too; rename it in the inputs")
    fields += annotated
    roles = {**of_steps, **{name: role for each in listing.annotations for name, role in each.roles.items()}}
    if recipe.store is not None:
        of_records: dict[str, Role] = {OBJECTS: Objects()} if content is not None and has_objects(content) else {}
        _refuse_immovable(recipe, {**of_records, **roles}, fields)
        roles = _moved_roles(recipe, roles)
    if recipe.samples_per_record > 1 or any(step.splits for step in recipe.batch_transforms):
        fields.append(pa.field("variant", pa.int32()))
    labels = {f.name for f in fields if f.name in labelling.declared} - {LABEL}
    roles = {**roles, **{name: Label(labelling.declared[name]) for name in sorted(labels)}}
    image = Image(str(recipe.store), shape) if recipe.store and recipe.store.name != "none" else None
    return Layout.by_name(recipe.kind, pa.schema(fields), image, labelling.classes, kept_images, roles)


def chosen_columns(fields: pa.Schema, recipe: Recipe) -> pa.Schema:
    """Return those of the columns of records that the recipe keeps. Raises InputError if there is no such field."""
    wanted = recipe.chosen_fields
    if not wanted:
        return fields
    missing = [name for name in wanted if name not in fields.names]
    if missing:
        held = ", ".join(map(printable, fields.names))
        raise InputError(f"the records have no field {printable(missing[0])}; they have {held}")
    return pa.schema([fields.field(name) for name in wanted], {CHOSEN: b"", **(fields.metadata or {})})


def roles_of_export(listing: Listing, content: pa.Schema | None) -> dict[str, Role]:
    """Return the roles that shardctl.json gives to tokens and marked objects, where the sources are an export."""
    if listing.whole or content is None:
        return {}
    export = described(listing.opened(listing.table.slice(0, 1).to_pylist()[0]))
    roles = {} if export is None else export.layout.roles.by_name
    return {name: role for name, role in roles.items() if isinstance(role, Tokens | Objects) and name in content.names}


def renamed(fields: pa.Schema, renames: dict[str, str]) -> pa.Schema:
    """Return columns under the names that they have in the dataset. Raises InputError if there is no such field, or two."""
    missing = [name for name in renames if name not in fields.names]
    if missing:
        held = ", ".join(map(printable, fields.names))
        raise InputError(f"the records have no field {printable(missing[0])}; they have {held}")
    names = [renames.get(name, name) for name in fields.names]
    twice = next((new for old, new in renames.items() if names.count(new) > 1), None)
    if twice is not None:
        raise InputError(
            f"the records have a field {twice} already, and another one was to be called so; rename it in the files"
        )
    return pa.schema([_plain(f).with_name(name) for f, name in zip(fields, names, strict=True)])


def without_key(columns: pa.Schema, recipe: Recipe) -> pa.Schema:
    """Return columns without that of the records' own keys. Raises InputError if these cannot be keys."""
    if recipe.key_source is None:
        return columns
    type_ = columns.field(KEY).type
    if not (pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_integer(type_)):
        raise InputError(f"the field {printable(recipe.key_source)} is of type {type_}; keys are text, or whole numbers")
    return columns.remove(columns.get_field_index(KEY))


def refuse_fields(recipe: Recipe) -> None:
    """Raise UsageError if the recipe names fields of records, and each file is one record without any."""
    names = ("text_field", "label_field", "key_field", "fields", "schema")
    given = next((name for name in names if getattr(recipe, name) is not None), None)
    if given is not None:
        what = "images" if recipe.kind == "image" else "whole files of text"
        raise UsageError(f"{given} names fields of records, and the inputs are {what}, which have none")


def compare_schema(schema: pa.Schema, first: list[str], listing: Listing) -> None:
    """Say which fields of the first records a given schema leaves out, and which of its own they do not have.

    Raises InputError if they have none of its fields.
    """
    left_out = [name for name in first if name not in schema.names]
    missing = [name for name in schema.names if name not in first]
    if first and len(missing) == len(schema):
        raise InputError(f"the records have none of the fields of the schema ({some(missing)}); they have {some(first)}")
    if left_out:
        listing.notices.append(f"left out: the fields {some(left_out)}, which the schema does not name")
    if first and missing:
        listing.notices.append(f"the first records have no field {some(missing)}, which the schema names: it is empty there")


def _plain(field: pa.Field) -> pa.Field:
    """Return a column without what its type was found from, and what it is for: only those who read files need that."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key not in (WRITTEN, ROLE)}
    return field.with_metadata(metadata) if metadata else field.remove_metadata()


def _refuse_reserved(fields: Iterable[pa.Field]) -> None:
    """Raise InputError if records have a field of a name that shardctl gives to fields itself."""
    for f in fields:
        if f.name in RESERVED_FIELDS:
            images = "; --kind image reads the images that it holds or names" if f.name == "image" else ""
            raise InputError(
                f"the records have a field {f.name!r}, which is one that shardctl makes itself; rename it (--fields NEW=OLD,…),"
                " or leave it out: --fields and --schema name those that are wanted (--drop-columns is for labels files, not"
                f" for fields of records){images}"
            )


def _refuse_immovable(recipe: Recipe, roles: dict[str, Role], fields: list[pa.Field]) -> None:
    """Raise UsageError for a step that cannot move what is marked in the images."""
    kinds = {f.name: _annotation_kinds(roles[f.name], f.type) for f in fields if f.name in roles}
    for step in recipe.image_transforms:
        for name, of_field in kinds.items():
            role, fixed = roles[name], sorted(of_field - step.moves)
            if fixed:
                raise UsageError(
                    f"{_named_step(step, of_field)} cannot move {' and '.join(fixed)}, which the images have"
                    f" ({printable(name)}); leave out the step or these annotations"
                )
            if step.mirrors and "keypoints" in of_field and isinstance(role, Objects) and role.flip is None:
                raise UsageError(
                    f"{step.name} mirrors the images, and it is not known which keypoints of the left and of the right side"
                    f" change places then ({printable(name)}); leave out the step, or say it in the source (flip_idx of YOLO,"
                    " names such as left_eye and right_eye)"
                )


def _named_step(step: ImageTransform, kinds: frozenset[str]) -> str:
    """Return the name of a step that cannot move something, with that of the step inside of it that is why."""
    inside = next((each for each in getattr(step, "steps", ()) if kinds - each.moves), None)
    return step.name if inside is None else f"{_named_step(inside, kinds)} in {step.name}"


def _moved_roles(recipe: Recipe, roles: dict[str, Role]) -> dict[str, Role]:
    """Return the roles of annotations after the steps of a recipe: a mask that was moved is a PNG."""
    if all(step.in_place for step in recipe.image_transforms):
        return roles
    return {name: replace(role, store="png") if isinstance(role, Mask) else role for name, role in roles.items()}


def _annotation_kinds(role: Role, type_: pa.DataType) -> frozenset[str]:
    """Return what has to be moved with the images: as `ImageTransform.moves` names it."""
    if isinstance(role, Mask):
        return frozenset(("masks",))
    members = {f.name for f in type_} if isinstance(role, Objects) else set()
    named = {"bbox": "boxes", "segmentation": "polygons", "keypoints": "keypoints", "rle": "masks"}
    return frozenset(kind for member, kind in named.items() if member in members)


def _refuse_places(recipe: Recipe, fields: list[pa.Field]) -> None:
    """Raise UsageError if columns look like places in the image, and the recipe moves the pixels."""
    moving = [step for step in recipe.image_transforms if not step.in_place]
    places = place_columns(fields) if moving else []
    if places:
        columns = ",".join(dict.fromkeys(name.partition(".")[0] for name in places))
        step = moving[0].name
        raise UsageError(
            f"{step} moves what is in the images, but not the places in {some(places)}, which are no `objects` as"
            f" docs/annotations.md describes them; leave {step} out, or the columns: those of a labels file with"
            f" --drop-columns {columns}"
        )
