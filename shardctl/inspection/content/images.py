"""What an image is, from its header, and what is marked in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import StorageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Objects
from shardctl.images.codecs.drawing import name_of
from shardctl.images.codecs.image import ImageEncoding
from shardctl.inspection.content.blocks import StoredSample
from shardctl.system.files import make_folder, naming_the_path
from shardctl.system.text import printable


def is_encoded_image(value: Any) -> bool:
    """Return whether a stored value is an image in a file format."""
    return isinstance(value, dict) and set(value) == {f.name for f in ENCODED_IMAGE}


_MOST_FLOAT = float(np.finfo(np.float32).max)


def plain_objects(objects: dict[str, Any]) -> dict[str, Any]:
    """Return the objects of a sample as JSON has them: numbers of 32 bits in their shortest form,
    RLE as text."""
    return {name: _plain(value) for name, value in objects.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        narrow = np.float32(value) if abs(value) <= _MOST_FLOAT else np.float32(0)
        return float(str(narrow)) if float(narrow) == value else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return plain_objects(value)
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def is_objects(value: Any) -> bool:
    """Return whether a stored value is the objects of a sample: a dict of lists, with a box and a
    category for each."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), list) for name in ("bbox", "category")
    )


def object_rows(objects: dict[str, Any], role: Objects) -> tuple[list[str], list[list[Any]]]:
    """Return the objects of a sample as a table for people: its header, and a row for each
    object."""
    header = ["object", "category", "x", "y", "width", "height"]
    count = len(objects["bbox"])
    extra = [
        (said, values) for said, values in _more_of(objects) if len(values) == count and any(values)
    ]
    rows = []
    for number, (box, category) in enumerate(
        zip(objects["bbox"], objects["category"], strict=False)
    ):
        sides = ["" if side is None else float(f"{side:.6g}") for side in (box or [None] * 4)]
        name = "" if category is None else name_of(category, role.names)
        rows.append([number, name, *sides, *(values[number] for _, values in extra)])
    return header + [said for said, _ in extra], rows


def _more_of(objects: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what else is known of objects: the name of a column, and a short value for each
    object."""
    yield (
        "area",
        [float(f"{area:.6g}") if area is not None else "" for area in objects.get("area") or ()],
    )
    for member, said in (
        ("iscrowd", "crowd"),
        ("difficult", "difficult"),
        ("truncated", "truncated"),
    ):
        yield said, [said if value else "" for value in objects.get(member) or ()]
    polygons = [
        f"{len(each)} ({sum(len(polygon or ()) for polygon in each) // 2} points)" if each else ""
        for each in objects.get("segmentation") or ()
    ]
    yield "polygons", polygons
    yield "RLE", ["RLE" if each else "" for each in objects.get("rle") or ()]
    points = [
        f"{sum(bool(point and point[2]) for point in each)} of {len(each)}" if each else ""
        for each in objects.get("keypoints") or ()
    ]
    yield "keypoints", points


SUFFIXES = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"RIFF": ".webp",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
}


def save(
    records: Iterable[StoredSample], folder: Path, columns: Sequence[str] | None = None
) -> list[Path]:
    """Write every record into `folder`, named by its key, and return the files.

    Existing files are never overwritten, and no link below `folder` is followed.

    `columns` are those that are written, None for all; the class of a label is written beside it,
    as `label_name`. Raises StorageError, and UsageError for an unknown column.
    """
    written: list[Path] = []
    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        name = _name(record)
        for field, suffix, content in _files(record.chosen_values(columns), record.images):
            path = folder / _named(name, field, suffix)
            with naming_the_path(path):
                make_folder(path.parent, folder)
                try:
                    with open(path, "xb") as file:
                        file.write(content)
                except FileExistsError:
                    raise StorageError(
                        f"{printable(path)}: exists already; give a folder that is new or empty"
                    ) from None
            written.append(path)
    return written


def _name(record: StoredSample) -> str:
    """Return where in the folder a record goes: its key without what could lead out of it, and its
    variant."""
    key = str(record.values.get("key", ""))
    parts = [
        part.replace("\\", "_").replace("\0", "_")
        for part in key.split("/")
        if part not in ("", ".", "..")
    ]
    name = "/".join(parts) or f"{record.shard}-{record.row}"
    variant = record.values.get("variant")
    return name if variant is None else f"{name}.{variant}"


def _files(values: dict[str, Any], images: Sequence[str]) -> list[tuple[str, str, bytes]]:
    """Return the field, the suffix and the content of every file of a record; all that is not a
    file is JSON."""
    files, rest = [], {}
    for name, value in values.items():
        if (
            isinstance(value, np.ndarray)
            and value.dtype == np.uint8
            and (value.shape[2:] == (3,) or (value.ndim == 2 and name in images))
        ):
            files.append((name, ".png", ImageEncoding.parse("png").encode(value)))
        elif is_encoded_image(value):
            files.append((name, _suffix(value["bytes"], value["path"]), value["bytes"]))
        elif name == "text" and isinstance(value, str):
            files.append((name, ".txt", value.encode()))
        elif name != "key" and value is not None:
            rest[name] = _json_value(value)
    if rest:
        files.append(
            ("", ".json", json.dumps(rest, ensure_ascii=False, default=_printable).encode() + b"\n")
        )
    return files


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return plain_objects(value) if is_objects(value) else value


def _named(name: str, field: str, suffix: str) -> str:
    """Return a file name: that of the input where it fits (photo.jpg), else with what it is
    (photo.jpg.png, 3.answer.txt)."""
    if field not in ("", "image", "text"):
        return f"{name}.{field}{suffix}"
    return name if field and name.lower().endswith(suffix) else f"{name}{suffix}"


def _suffix(data: bytes, path: str | None) -> str:
    """Return the suffix that the name had, else that of the format."""
    named = Path(path or "").suffix.lower()
    known = next((suffix for magic, suffix in SUFFIXES.items() if data.startswith(magic)), ".bin")
    return named if named and "/" not in named and "\0" not in named else known


def _printable(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
