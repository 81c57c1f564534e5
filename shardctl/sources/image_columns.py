"""Columns of tables that hold images: as bytes, as the path of a file, or as a struct of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.arrays import is_binary, is_text
from shardctl.format.layout import ENCODED_IMAGE, may_be_pictures
from shardctl.system.text import printable

ROLE = b"shardctl.image"
"""In the metadata of a field that holds images: MAIN for those that the recipe works on, KEPT for
others, kept as they are."""

MAIN, KEPT = b"main", b"kept"

MASK = b"shardctl.mask"
"""In the metadata of a KEPT field whose images are masks that are moved with the main image: the
bits of their numbers."""

FRAME = b"shardctl.frame"
"""In the metadata of a field of masks or objects: the frame of all of them, where that is known
(stored or upright)."""

BOXES = b"shardctl.boxes"
"""In the metadata of a field of objects: what is done about boxes that are not within their image,
where a person said it."""

AUTO = "auto"
"""The image column is found by type and name."""

NO_IMAGES = "none"
"""No column holds images."""

BYTES_NAMES = frozenset(
    (
        "image,img,picture,photo,jpg,jpeg,png,webp,image_bytes,img_bytes,image_data,image/encoded,image_encoded,encoded_image,image_raw"
    ).split(",")
)
"""Usual names of columns with the bytes of images."""

IMAGE_NAMES = frozenset(
    "image,img,picture,photo,image_path,img_path,image_file,image_name".split(",")
)
"""Those of PATH_NAMES that are about images alone."""

PATH_NAMES = IMAGE_NAMES.union("file_name,filename,file,path,filepath,file_path".split(","))
"""Usual names of columns with the paths of images, in tables of images and in labels files."""


def is_struct(type_: pa.DataType) -> bool:
    """Return whether values are structs of bytes and path, as Hugging Face datasets stores
    images."""
    if not pa.types.is_struct(type_) or sorted(f.name for f in type_) != ["bytes", "path"]:
        return False
    data, path = type_.field("bytes").type, type_.field("path").type
    return (is_binary(data) or pa.types.is_null(data)) and (is_text(path) or pa.types.is_null(path))


def can_hold_images(type_: pa.DataType) -> bool:
    """Return whether a column of this type can be one of images."""
    return (
        is_binary(type_)
        or is_text(type_)
        or is_struct(type_)
        or bool(pa.types.is_fixed_size_binary(type_))
    )


def struct_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that are structs of bytes and path, without those whose names say that
    they are no images."""
    return [f.name for f in schema if is_struct(f.type) and may_be_pictures(f.name)]


def without_doubt(schema: pa.Schema) -> str | None:
    """Return the column that makes a table one of images: the only struct of bytes and path, or
    bytes of a usual name."""
    named = [f.name for f in schema if is_binary(f.type) and f.name.lower() in BYTES_NAMES]
    found = struct_columns(schema) or named
    return found[0] if len(found) == 1 else None


def choose_column(schema: pa.Schema, wanted: str) -> str:
    """Return the column of the images: `wanted`, or with AUTO the one that is clearly meant.

    AUTO looks for structs of bytes and path, then for bytes, then for paths in columns of usual
    names. Of several, `image` is taken. Raises InputError if there is none, or if it is not clear
    which.
    """
    shown = ", ".join(printable(name) for name in schema.names) or "none"
    if wanted != AUTO:
        if wanted not in schema.names:
            raise InputError(
                f"the records have no field {printable(wanted)}; their fields are {shown}"
            )
        type_ = schema.field(wanted).type
        if not can_hold_images(type_):
            raise InputError(
                f"the field {printable(wanted)} is {type_}; images are bytes, paths, or structs of both"
            )
        return wanted
    for candidates in _candidates(schema):
        if found := the_one(
            candidates, "image", "several fields may hold the images", "--image-field"
        ):
            return found
    raise InputError(
        f"no field holds images (there are {shown}); name it with --image-field, or use --kind table"
    )


def the_one(columns: Sequence[str], usual: str, several: str, option: str) -> str | None:
    """Return the only one of some columns, or of several the one with the usual name; None if there
    are none. Raises InputError, with these words, if it is not clear which."""
    exact = [name for name in columns if name == usual]
    for left in (exact, [name for name in columns if name.lower() == usual], columns):
        if len(left) == 1:
            return left[0]
    if columns:
        raise InputError(
            f"{several}: {', '.join(map(printable, columns))}; say which with {option}"
        )
    return None


def _candidates(schema: pa.Schema) -> list[list[str]]:
    """Return the columns that may hold the images, the clearest kind first."""
    held = [f.name for f in schema if is_binary(f.type)]
    named = [name for name in held if name.lower() in BYTES_NAMES]
    paths = [f.name for f in schema if is_text(f.type) and f.name.lower() in PATH_NAMES]
    return [struct_columns(schema), named or held, paths]


def with_said(
    schema: pa.Schema, key: bytes, said: Mapping[str, str] | Mapping[str, bytes]
) -> pa.Schema:
    """Return the columns as they are read, those that are in `said` with this in their metadata."""
    fields = [
        f.with_metadata({**(f.metadata or {}), key: said[f.name]}) if f.name in said else f
        for f in schema
    ]
    return pa.schema(fields, schema.metadata)


def mark_columns(schema: pa.Schema, main: str | None) -> pa.Schema:
    """Return the columns as they are read, those of images marked with their ROLE, and structs with
    the type of images.

    `main` is the column that the recipe works on; all structs of bytes and path are images too.
    """
    roles = dict.fromkeys(struct_columns(schema), KEPT)
    roles |= {} if main is None else {main: MAIN}
    typed = [
        f.with_type(ENCODED_IMAGE) if f.name in roles and is_struct(f.type) else f for f in schema
    ]
    return with_said(pa.schema(typed, schema.metadata), ROLE, roles)


def marked_columns(schema: pa.Schema | None, role: bytes) -> list[str]:
    """Return the columns that are marked with a role."""
    return [f.name for f in schema or [] if (f.metadata or {}).get(ROLE) == role]


def mark_masks(schema: pa.Schema, bits: Mapping[str, int]) -> pa.Schema:
    """Return the columns as they are read, those marked as masks that have `bits`: of how many
    their numbers are."""
    marked = with_said(schema, ROLE, dict.fromkeys(bits, KEPT))
    return with_said(marked, MASK, {name: str(each) for name, each in bits.items()})


def without_masks(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the columns as they are read, of which those with these names are no masks."""
    fields = []
    for f in schema:
        kept = {key: value for key, value in (f.metadata or {}).items() if key not in (MASK, FRAME)}
        fields.append(f.with_metadata(kept) if f.name in names else f)
    return pa.schema(fields, schema.metadata)


def said_of(schema: pa.Schema | None, key: bytes) -> dict[str, str]:
    """Return what the metadata of columns says under a key, by their names."""
    return {f.name: f.metadata[key].decode() for f in schema or [] if key in (f.metadata or {})}


def marked_masks(schema: pa.Schema | None) -> dict[str, int]:
    """Return the columns that are marked as masks, and how many bits their numbers have."""
    return {name: int(bits) for name, bits in said_of(schema, MASK).items()}
