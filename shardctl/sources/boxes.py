"""Which columns have places in an image, masks of it, or other images: they are wrong once it is resized, cut or mirrored.

One rule for conversions of all sources and for the loader. It goes by the words of a name, by the type, and by the first values
where these were read: of columns without a role nothing else is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from shardctl.format.list_types import leaf_of
from shardctl.format.roles import PLACES, Plain, Role
from shardctl.images.geometry import Size
from shardctl.sources.first_values import are_of_size, members_of, name_images, show_annotations, show_images, tell_places
from shardctl.sources.label_table import some

PLACE_NAMES = frozenset(
    ("bbox", "bboxes", "box", "boxes", "boundingbox", "boundingboxes", "keypoint", "keypoints", "landmark", "landmarks")
    + ("polygon", "polygons", "points", "segmentation", "segmentations", "encodedpixels")
)
"""Names of columns, or of fields in them, that hold places in the image; without _ and - and in lower case.

A single number is none of them: the points of a game.
"""

PLACE_WORDS = PLACE_NAMES | frozenset(
    ("bndbox", "bndboxes", "kpt", "kpts", "poly", "polys", "corner", "corners", "quad", "quads", "contour", "contours")
    + ("vertices", "joints", "skeleton", "skeletons", "roi", "rois", "segm", "segms", "bb", "bbs", "rbox", "rboxes", "obb")
    + ("rect", "rects", "rectangle", "rectangles", "center", "centers", "centroid", "centroids", "point", "pt", "pts")
    + ("coord", "coords", "coordinate", "coordinates", "pose", "poses", "gaze", "lane", "lanes", "det", "dets", "detections")
    + ("xy", "xys", "uv", "uvs", "xyxy", "xywh", "cxcywh", "ltrb", "tlbr", "ltwh", "tlwh", "yxyx")
)
"""Words of names of lists of numbers, or of other lists and bytes, that are places."""

RLE_WORDS = frozenset(("rle", "rles"))
"""Words of names of masks as the lengths of runs, which are lists, bytes or text."""

MASK_WORDS = frozenset(
    ("mask", "masks", "seg", "depth", "depths", "flow", "flows", "normal", "normals", "disparity", "disparities", "trimap")
    + ("trimaps", "matte", "mattes", "alpha", "heatmap", "heatmaps", "semantic", "instance", "instances", "panoptic")
    + ("labelmap", "labelmaps", "groundtruth", "gt", "parsing", "saliency")
)
"""Words of names of arrays and of bytes that have a value for each pixel."""

PLAIN_MASK_WORDS = frozenset(("mask", "masks", "seg", "segmentation", "segmentations"))
"""Words of names of images that are masks where their values are: one number for each pixel of the main image."""

IMAGE_WORDS = frozenset(
    ("image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "thumbnail", "thumbnails")
    + ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "pgm", "ppm", "pfm", "exr", "flo", "avif")
)
"""Words of names of bytes that are images, and of arrays of three dimensions or more."""

SECOND_WORDS = frozenset(("left", "right", "conditioning", "reference"))
"""Words of names of arrays of three dimensions or more, and of paths of images, that are another image."""

LABEL_WORDS = frozenset(("label", "labels", "target", "targets", "annotation", "annotations"))
"""Words of names of paths of images that have a value for each pixel."""

X_PARTS = frozenset(("xmin", "xmax", "minx", "maxx", "xstart", "xend", "startx", "endx", "xtl", "xbr", "xcenter", "centerx"))
Y_PARTS = frozenset(("ymin", "ymax", "miny", "maxy", "ystart", "yend", "starty", "endy", "ytl", "ybr", "ycenter", "centery"))
"""Last words of names of numbers that are coordinates, whatever is beside them: `face_xmin`, `x_max`, `startX`."""

PAIRS = (
    *(("x", "y"), ("x0", "y0"), ("x1", "y1"), ("x2", "y2"), ("x3", "y3"), ("x4", "y4"), ("left", "top"), ("right", "bottom")),
    *(("cx", "cy"), ("xc", "yc"), ("px", "py"), ("bx", "by")),
    *(("tlx", "tly"), ("brx", "bry"), ("trx", "try"), ("blx", "bly"), ("ulx", "uly"), ("lrx", "lry")),
)
"""Those that are coordinates if both are present, with the same words before them: `nose_x` and `nose_y`.

One alone may be anything: a `try`.
"""

SIZES = frozenset(("w", "h", "width", "height", "bw", "bh", "r", "radius"))
"""Those that are of a box, or of a circle, if just one x and one y are present with the same words before them.

Beside two corners, `width` and `height` are the size of the image.
"""

_NO_POINTS = frozenset(
    ("gps", "geo", "utm", "map", "world", "wind", "accel", "acceleration", "acc", "gyro", "imu", "mag", "velocity", "vel")
    + ("speed", "force", "torque", "scale", "size", "spacing", "resolution", "dpi", "ppi", "tile", "patch", "grid", "slide")
    + ("tsne", "umap", "pca", "mds", "isomap", "embedding", "embed", "emb", "geometry", "geographic", "geolocation")
)
"""Words before x and y that are no place in the image: in the world, in a plot of all, or of the image in a larger one."""

_POINTS = frozenset(
    ("point", "points", "pt", "pts", "coord", "coords", "coordinate", "coordinates", "center", "centers", "centroid")
    + ("centroids",)
)
"""Words of names that are no place in the image beside such a word: `gps_coordinates`, `tile_center`."""

_ABOUT = frozenset(
    ("label", "labels", "id", "ids", "class", "classes", "category", "categories", "score", "scores", "confidence", "conf")
    + ("confidences", "prob", "probs", "count", "counts", "num", "name", "names", "text", "texts", "caption", "captions")
    + ("type", "types", "format", "mode", "source", "weight", "weights", "iscrowd", "crowd", "difficult", "truncated")
    + ("embedding", "embeddings", "embed", "embeds", "emb", "feature", "features", "latent", "latents", "hash", "phash")
    + ("md5", "sha", "sha1", "sha256", "crc", "crc32", "crc32c", "icc", "path", "paths", "file", "url", "urls", "version")
    + ("exif", "meta", "metadata", "area", "iou", "present", "valid", "visible", "visibility")
)
"""Last words of names that say something about an image or a place, and are none."""

_OF_EACH_PIXEL = frozenset(("label", "labels", "id", "ids", "class", "classes", "category", "categories"))
"""Those that are none of a mask in an array: `semantic_ids`, `seg_label`."""

_COUNTED = frozenset(("num", "n", "count", "has", "is", "no"))
"""First words of such names."""

_STORED = frozenset(("npy", "npz", "json", "bin", "raw", "bytes", "data", "array", "encoded", "buffer", "str", "string"))
"""Words that say how a value is stored."""

_PATHS = frozenset(("path", "paths", "file", "files", "filename", "filenames", "filepath", "url", "urls", "uri"))
"""Last words of names of texts that say where a value is stored."""

_OF_TOKENS = frozenset(("attention", "attn", "loss", "padding", "pad", "token", "tokens", "causal"))
"""Words of masks that are not of images."""

_NO_PICTURES = frozenset(("audio", "video", "speech", "sound", "pdf"))

_BETWEEN = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])")
_NUMBERED = re.compile(r"(?<=[^\W\d])\d+d?$")


First = Mapping[str, pa.Array]
"""The first values of columns, by name: of all samples the same ones. Nothing is known of the values of other columns."""


def place_columns(fields: Iterable[pa.Field], first: First | None = None, sizes: Sequence[Size | None] = ()) -> list[str]:
    """Return the columns that look like places, masks or other images, those inside others with a dot: objects.bbox.

    The image that is moved, and what is moved with it, must not be among `fields`. `sizes` are (width, height) of the images of
    the samples of `first`, None where there is none.
    """
    return list(_places(fields, "", first or {}, sizes))


def why_unmoved(
    moves: str, side: Sequence[pa.Field], others: Sequence[pa.Field], roles: Mapping[str, Role], first: First
) -> tuple[list[str], str]:
    """Return the columns that would be wrong beside moved pixels, and a sentence on them: ([], "") for none.

    `moves` names the step that moves the pixels. `side` are the columns of labels files with their `first` values. Of `others`,
    of which some have `roles`, no value is known yet: those of text are left for when there are some.
    """
    said = said_places([*side, *others], roles)
    listed = [f for f in [*side, *without_texts(others)] if f.name not in said]
    return why_places(moves, [*said, *place_columns(listed, first)], {f.name for f in [*side, *others]})


def without_texts(fields: Iterable[pa.Field]) -> list[pa.Field]:
    """Return columns without those of text, which are places by their values alone; so also the members of structs."""
    listed = [f for f in fields if not _is_text(_leaf(f.type)[0])]
    return [f.with_type(_without_texts(f.type)) for f in listed]


def _without_texts(type_: pa.DataType) -> pa.DataType:
    leaf, depth = _leaf(type_)
    if not pa.types.is_struct(leaf) or _is_image(leaf):
        return type_
    bare: pa.DataType = pa.struct(without_texts(leaf))
    for _ in range(depth):
        bare = pa.list_(bare)
    return bare


def said_places(fields: Iterable[pa.Field], roles: Mapping[str, Role]) -> list[str]:
    """Return the columns whose roles say that they are places in the image."""
    return [f.name for f in fields if isinstance(role := roles.get(f.name), Plain) and role.name in PLACES]


def column_of(place: str, names: Collection[str]) -> str | None:
    """Return the one of these columns that a place is, or is in: objects of objects.bbox; None if it is of none."""
    while place not in names:
        place, dot, _ = place.rpartition(".")
        if not dot:
            return None
    return place


def why_places(moves: str, places: Sequence[str], names: Collection[str]) -> tuple[list[str], str]:
    """Return the columns, of these names, that have these places, and a sentence on them, as `why_unmoved` does."""
    columns = list(dict.fromkeys(name for place in places if (name := column_of(place, names)) is not None))
    if not places:
        return [], ""
    by_role = "is no mask and no objects by role (`shardctl help annotations`)"
    return columns, not_moved(moves, places, f"looks like a place in the image, a mask or another image, and {by_role}")


def not_moved(step: str, names: Sequence[str], why: str) -> str:
    """Return that a step of a recipe leaves columns where they are, and `why` not: what one of them is."""
    it = "it" if len(names) == 1 else "each"
    return f"{step} moves the content of the images, but not {some(names)}: {it} {why}"


def values_matter(field: pa.Field) -> bool:
    """Return whether the first values of a column can say that it would be wrong, if its name and its type do not."""
    leaf, depth = _leaf(field.type)
    if pa.types.is_struct(leaf):
        return any(map(values_matter, leaf))
    return _is_text(leaf) or has_bytes(leaf) or depth > 1


def why_images(step: str, columns: list[str]) -> str:
    """Return why a step of a recipe is refused beside columns of records whose values are images, and what to do."""
    return f"{not_moved(step, columns, 'is an image by its values')}. {ways_out(step, columns, [])}"


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
    return bool(PLAIN_MASK_WORDS & set(words)) and (_is_place(words, [], type_) or words[-1] == "encoded")


def why_no_masks(step: str, columns: list[str]) -> str:
    """Return why a step is refused beside columns that are called masks and are none, and what to do."""
    why = "is a mask by its name, and its first values are not images with one number for each pixel of the main image"
    return f"{not_moved(step, columns, why)}. {ways_out(step, columns, [])}"


def why_not_as_said(columns: list[str]) -> str:
    """Return why columns cannot be masks although a person says so."""
    return (
        f"{some(columns)} of --mask-fields: the first values are not images with one number for each pixel of the main image;"
        " leave it out"
    )


def has_arrays(type_: pa.DataType) -> bool:
    """Return whether values are numbers in lists of lists, which may be one for each pixel, or have such members."""
    leaf, depth = _leaf(type_)
    if pa.types.is_struct(leaf):
        return any(has_arrays(f.type) for f in leaf)
    return depth > 1 and not _is_text(leaf) and not has_bytes(leaf)


def has_bytes(type_: pa.DataType) -> bool:
    """Return whether values are bytes, or lists of them."""
    leaf, _ = _leaf(type_)
    return bool(pa.types.is_binary(leaf) or pa.types.is_large_binary(leaf) or pa.types.is_fixed_size_binary(leaf))


def _places(fields: Iterable[pa.Field], within: str, first: First, sizes: Sequence[Size | None]) -> Iterable[str]:
    listed = list(fields)
    coordinates = _coordinates(listed, _words(within))
    for f in listed:
        values = first.get(f.name)
        is_place = _is_place(_words(f.name), _words(within), f.type, values)
        if f.name in coordinates or is_place or _shows_place(f.type, values, sizes):
            yield within + f.name
            continue
        type_, _ = _leaf(f.type)
        if pa.types.is_struct(type_):
            members, alone = members_of(values) if values is not None else ({}, False)
            yield from _places(type_, f"{within}{f.name}.", members, sizes if alone else ())


def _words(name: str) -> list[str]:
    """Return the words of a name, in lower case: `image/object/faceBoxes_2` has image, object, face, boxes and 2."""
    return [word.lower() for word in _BETWEEN.split(name) if word]


def _coordinates(fields: Sequence[pa.Field], within: Sequence[str]) -> set[str]:
    """Return the names of numbers, or of lists of them, that are coordinates. `within` are the words of what they are in."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    numbered: dict[tuple[str, ...], list[str]] = {}
    for f in fields:
        leaf, _ = _leaf(f.type)
        words = _words(f.name)
        if not (pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_decimal(leaf) or pa.types.is_null(leaf)):
            continue
        for size in (1, 2):  # xmin, and x_min
            if len(words) >= size and not _NO_POINTS & {*within, *words[:-size]}:
                found.setdefault(tuple(words[:-size]), {})["".join(words[-size:])] = f.name
        if len(words) == 2 and words[1].isdecimal() and words[0] in PLACE_WORDS:
            numbered.setdefault(tuple(words[:-1]), []).append(f.name)
    names = {name for same in found.values() for name in _of_group(same)}
    return names | {name for same in numbered.values() if len(same) >= 4 for name in same}  # box_0, …, box_3


def _of_group(same: Mapping[str, str]) -> list[str]:
    """Return the names that are coordinates, by their last words; the words before these are the same."""
    in_space = {"x", "y", "z"} <= same.keys() and same["x"] == "x"  # of a tile of a map, or in a room
    pairs = [] if in_space else [pair for pair in PAIRS if same.keys() >= set(pair)]
    xs = (X_PARTS & same.keys()) | {x for x, _ in pairs}
    ys = (Y_PARTS & same.keys()) | {y for _, y in pairs}
    parts = xs | ys | (SIZES if len(xs) == len(ys) == 1 else set())
    return [same[part] for part in same if part in parts]


def _is_place(words: list[str], within: list[str], type_: pa.DataType, values: pa.Array | None = None) -> bool:
    """Return whether the name and the type of a column say that it has places, masks or other images; of texts, the values.

    `words` are those of its name, `within` those of what it is in.
    """
    leaf, depth = _leaf(type_)
    is_number = pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_boolean(leaf)
    is_bytes = has_bytes(leaf)
    if _is_text(leaf):
        return _is_text_of_place(words, within, values)
    if "".join(words) in PLACE_NAMES:
        return depth > 0 or not is_number
    if is_bytes and words[-1:] == ["xml"]:  # VOC
        return True
    terms = _terms(words)
    if _is_image(leaf):
        return not _NO_PICTURES & set(terms)
    if not terms or terms[0] in _COUNTED:
        return False
    pairs = {one + other for one, other in pairwise(terms)}  # key_points
    if depth > 1 and is_number and MASK_WORDS & {*terms, *pairs} and terms[-1] not in _ABOUT - _OF_EACH_PIXEL:
        return not _OF_TOKENS & set(terms)
    if terms[-1] in _ABOUT:
        return False
    if terms[0].startswith("bbox"):  # bbox_xywh, bbox_left
        return True
    if depth == 1 and _is_elsewhere({*terms, *pairs}, within):
        return False
    if (PLACE_WORDS | RLE_WORDS) & {*terms, *pairs}:
        return is_bytes or (depth > 0 and (is_number or pa.types.is_struct(leaf) or pa.types.is_null(leaf)))
    if is_bytes:
        return bool((MASK_WORDS | IMAGE_WORDS) & {*terms, *pairs})
    return depth > 2 and is_number and bool((IMAGE_WORDS | SECOND_WORDS) & set(terms))


def _is_elsewhere(words: Collection[str], within: Collection[str]) -> bool:
    """Return whether a point is none in the image: gps_coordinates, and coordinates in a geometry."""
    places = PLACE_WORDS & {*words}
    return bool(places) and places <= _POINTS and bool(_NO_POINTS & {*words, *within})


def _is_text_of_place(words: list[str], within: list[str], values: pa.Array | None) -> bool:
    """Return whether a column of text has coordinates, or paths of masks or of other images.

    Texts of any kind have such names, for instance a landmark. So the values decide where there are some that say something.
    """
    is_path = words[-1] in _PATHS or words[-2:] == ["file", "name"]
    terms = _terms([word for word in words[: -1 if is_path else None] if word not in _PATHS])
    if not terms or terms[-1] in _ABOUT - LABEL_WORDS or terms[0] in _COUNTED:
        return False
    if RLE_WORDS & set(terms):
        return True
    if (
        "".join(words) in PLACE_NAMES
        or "".join(terms) in PLACE_NAMES
        or (terms[0].startswith("bbox") and terms[-1] not in _ABOUT)
    ):
        return values is None or tell_places(values) is not False
    pairs = {one + other for one, other in pairwise(terms)}  # ground_truth
    if values is not None:
        if (MASK_WORDS | LABEL_WORDS | SECOND_WORDS) & {*terms, *pairs} and name_images(values):
            return True
        is_named = terms[-1] not in _ABOUT and PLACE_WORDS & {*terms, *pairs} and not _is_elsewhere({*terms, *pairs}, within)
        return bool(is_named) and tell_places(values) is True
    return bool(MASK_WORDS & {*terms, *pairs}) and (is_path or set(terms) <= {"mask", "masks"})


def _shows_place(type_: pa.DataType, values: pa.Array | None, sizes: Sequence[Size | None]) -> bool:
    """Return whether the values of a column are images or annotations, or have a value for each pixel, whatever its name is."""
    if values is None:
        return False
    leaf, depth = _leaf(type_)
    if _is_text(leaf):
        return show_annotations(values)
    return show_images(values) if has_bytes(leaf) else depth > 1 and are_of_size(values, sizes)


def _terms(words: Sequence[str]) -> list[str]:
    """Return the words of a name that say what the values are, without numbers behind them: image of image2_png_bytes."""
    said = (word for word in words if word not in _STORED and not word.isdecimal())
    return [word if word in _ABOUT else _NUMBERED.sub("", word) for word in said]


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _leaf(type_: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the type of the values in lists and tensors, and in how many lists they are."""
    leaf, depth = leaf_of(type_)
    return (leaf.value_type, depth + len(leaf.shape)) if isinstance(leaf, pa.FixedShapeTensorType) else (leaf, depth)


def _is_image(type_: pa.DataType) -> bool:
    """Return whether values have bytes and path, as images of Hugging Face."""
    return bool(pa.types.is_struct(type_)) and {f.name for f in type_} == {"bytes", "path"}
