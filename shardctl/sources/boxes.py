"""Which columns have places in an image, masks of it, or other images: they are wrong once it is resized, cut or mirrored.

One rule for conversions of all sources and for the loader. It goes by the words of a name and by the type: of columns without
a role nothing else is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

import pyarrow as pa

from shardctl.roles import PLACES, Plain, Role
from shardctl.sources.labels import some

PLACE_NAMES = frozenset(
    ("bbox", "bboxes", "box", "boxes", "boundingbox", "boundingboxes", "keypoint", "keypoints", "landmark", "landmarks")
    + ("polygon", "polygons", "points", "segmentation", "segmentations", "rle")
)
"""Names of columns, or of fields in them, that hold places in the image; without _ and - and in lower case.

A single number is none of them: the points of a game.
"""

PLACE_WORDS = PLACE_NAMES | frozenset(
    ("bndbox", "bndboxes", "kpt", "kpts", "poly", "polys", "corner", "corners", "quad", "quads", "contour", "contours")
    + ("vertices", "joints", "roi", "rois", "segm", "segms", "rles")
)
"""Words of names of lists of numbers, or of other lists and bytes, that are places."""

MASK_WORDS = frozenset(
    ("mask", "masks", "seg", "depth", "depths", "flow", "flows", "normals", "disparity", "disparities", "trimap", "trimaps")
    + ("matte", "mattes", "heatmap", "heatmaps", "semantic", "panoptic")
)
"""Words of names of arrays and of bytes that have a value for each pixel."""

PLAIN_MASK_WORDS = frozenset(("mask", "masks", "seg", "segmentation", "segmentations"))
"""Words of names of images that are masks where their values are: one number for each pixel of the main image."""

IMAGE_WORDS = frozenset(
    ("image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "thumbnail", "thumbnails")
    + ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "pgm", "ppm", "avif")
)
"""Words of names of bytes that are images."""

COORDINATES = tuple(
    frozenset(names.split())
    for names in (
        "xmin ymin xmax ymax",
        "x1 y1 x2 y2",
        "x0 y0 x1 y1",
        "left top right bottom",
        "x y w h",
        "x y width height",
        "cx cy w h",
        "xc yc w h",
        "xcenter ycenter width height",
    )
)
"""Names that are coordinates if all of a group are present, with the same words before them: `face_x1`, …"""

_ABOUT = frozenset(
    ("label", "labels", "id", "ids", "class", "classes", "category", "categories", "score", "scores", "confidence", "conf")
    + ("confidences", "prob", "probs", "count", "counts", "num", "name", "names", "text", "texts", "caption", "captions")
    + ("type", "types", "format", "mode", "source", "weight", "weights", "iscrowd", "crowd", "difficult", "truncated")
    + ("embedding", "embeddings", "feature", "features", "latent", "latents", "hash", "phash", "md5", "sha", "sha1", "sha256")
    + ("path", "paths", "file", "url", "urls", "version", "exif", "meta", "metadata")
)
"""Last words of names that say something about an image or a place, and are none."""

_COUNTED = frozenset(("num", "n", "count", "has", "is", "no"))
"""First words of such names."""

_STORED = frozenset(("npy", "npz", "json", "bin", "raw", "bytes", "data", "array", "encoded", "buffer"))
"""Words that say how a value is stored."""

_OF_TOKENS = frozenset(("attention", "attn", "loss", "padding", "pad", "token", "tokens", "input", "causal", "text", "label"))
"""Words of masks that are not of images."""

_NO_PICTURES = frozenset(("audio", "video", "speech", "sound", "pdf"))

_BETWEEN = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])")
_NUMBERED = re.compile(r"(?<=[^\W\d])\d+d?$")


def place_columns(fields: Iterable[pa.Field]) -> list[str]:
    """Return the columns that look like places, masks or other images, those inside others with a dot: objects.bbox.

    The image that is moved, and what is moved with it, must not be among `fields`.
    """
    return list(_places(fields, ""))


def why_unmoved(moves: str, fields: Iterable[pa.Field], roles: Mapping[str, Role]) -> tuple[list[str], str]:
    """Return the columns among `fields` that would be wrong beside moved pixels, and a sentence on them: ([], "") for none.

    `moves` names the step or the option that moves the pixels. `roles` are those that are known of columns.
    """
    listed = list(fields)
    said = [f.name for f in listed if isinstance(role := roles.get(f.name), Plain) and role.name in PLACES]
    places = [*said, *place_columns(f for f in listed if f.name not in said)]
    columns = [f.name for f in listed if any(place == f.name or place.startswith(f"{f.name}.") for place in places)]
    if not places:
        return [], ""
    they = "it looks like a place in the image, a mask or another image, and is"
    if len(places) > 1:
        they = "they look like places in the image, masks or other images, and are"
    why = f"{they} no mask and no objects by role (docs/annotations.md)"
    return columns, f"{moves} moves what is in the images, but not {some(places)}: {why}"


def why_images(step: str, columns: list[str]) -> str:
    """Return why a step of a recipe is refused beside columns of records whose values are images, and what to do."""
    they = "its values are images" if len(columns) == 1 else "their values are images"
    return f"{step} moves what is in the images, but not {some(columns)}: {they}. {ways_out(step, columns, [])}"


def ways_out(step: str, of_records: list[str], of_labels: list[str]) -> str:
    """Return what can be done about columns of records and of labels files that a step of a recipe does not move."""
    ways = ["those of records with --fields, which names those to keep"] if of_records else []
    ways += [f"those of a labels file with --drop-columns {','.join(of_labels)}"] if of_labels else []
    unmoved = ",".join([*of_records, *of_labels])
    return f"Leave out {step}; or keep them as they are with --unmoved {unmoved}; or leave them out, {' and '.join(ways)}"


def is_named_mask(field: pa.Field) -> bool:
    """Return whether the name of a column says that it is a mask, and its type can hold one encoded image in each value."""
    words, type_ = _words(field.name), field.type
    if not (pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or _is_image(type_)):
        return False
    return bool(PLAIN_MASK_WORDS & set(words)) and (_is_place(words, type_) or words[-1] == "encoded")


def why_no_masks(step: str, columns: list[str]) -> str:
    """Return why a step is refused beside columns that are called masks and are none, and what to do."""
    they = "its name says mask, and its first values are" if len(columns) == 1 else "their names say mask, and first values are"
    none = "not images with one number for each pixel of the main image"
    return f"{step} moves what is in the images, but not {some(columns)}: {they} {none}. {ways_out(step, columns, [])}"


def why_not_as_said(columns: list[str]) -> str:
    """Return why columns cannot be masks although a person says so."""
    return (
        f"{some(columns)} of --mask-fields: the first values are not images with one number for each pixel of the main image;"
        " leave it out"
    )


def has_bytes(type_: pa.DataType) -> bool:
    """Return whether values are bytes, or lists of them."""
    leaf, _ = _leaf(type_)
    return bool(pa.types.is_binary(leaf) or pa.types.is_large_binary(leaf) or pa.types.is_fixed_size_binary(leaf))


def _places(fields: Iterable[pa.Field], within: str) -> Iterable[str]:
    listed = list(fields)
    coordinates = _coordinates([f.name for f in listed])
    for f in listed:
        words = _words(f.name)
        if f.name in coordinates or _is_place(words, f.type):
            yield within + f.name
        else:
            type_, _ = _leaf(f.type)
            if pa.types.is_struct(type_):
                yield from _places(type_, f"{within}{f.name}.")


def _words(name: str) -> list[str]:
    """Return the words of a name, in lower case: `image/object/faceBoxes_2` has image, object, face, boxes and 2."""
    return [word.lower() for word in _BETWEEN.split(name) if word]


def _coordinates(names: list[str]) -> set[str]:
    """Return the names that are coordinates, because all of a group are there."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        words = _words(name)
        for size in (1, 2):  # xmin, and x_min
            if len(words) >= size:
                found.setdefault(tuple(words[:-size]), {})["".join(words[-size:])] = name
    return {same[one] for same in found.values() for group in COORDINATES if group <= same.keys() for one in group}


def _is_place(words: list[str], type_: pa.DataType) -> bool:
    leaf, depth = _leaf(type_)
    is_number = pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_boolean(leaf)
    is_bytes = has_bytes(leaf)
    if "".join(words) in PLACE_NAMES:
        return depth > 0 or not is_number
    told = [_NUMBERED.sub("", word) for word in words if word not in _STORED and not word.isdecimal()]
    if _is_image(leaf):
        return not _NO_PICTURES & set(told)
    if not told or told[-1] in _ABOUT or told[0] in _COUNTED:
        return False
    if told[0].startswith("bbox"):  # bbox_xywh, bbox_left
        return True
    pairs = {one + other for one, other in pairwise(told)}  # key_points
    if PLACE_WORDS & {*told, *pairs}:
        return is_bytes or (depth > 0 and (is_number or pa.types.is_struct(leaf) or pa.types.is_null(leaf)))
    if MASK_WORDS & set(told):
        return is_bytes or (depth > 1 and is_number and not _OF_TOKENS & set(told))
    return is_bytes and bool(IMAGE_WORDS & set(told))


def _leaf(type_: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the type of the values in lists and tensors, and in how many lists they are."""
    depth = 0
    while True:
        if isinstance(type_, pa.FixedShapeTensorType):
            return type_.value_type, depth + len(type_.shape)
        if not (pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)):
            return type_, depth
        type_, depth = type_.value_type, depth + 1


def _is_image(type_: pa.DataType) -> bool:
    """Return whether values have bytes and path, as images of Hugging Face."""
    return bool(pa.types.is_struct(type_)) and {f.name for f in type_} == {"bytes", "path"}
