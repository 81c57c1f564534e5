"""Records written out as ordinary files: an image as an image, text as text, the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.errors import StorageError
from shardctl.images.codecs.image import ImageEncoding
from shardctl.inspection.content.blocks import StoredSample
from shardctl.inspection.content.images import is_encoded_image, is_objects, plain_objects
from shardctl.system.files import make_folder, naming_the_path
from shardctl.system.text import printable

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
                        f"{printable(str(path))}: exists already; give a folder that is new or "
                        "empty"
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
            and _is_picture(value, name in images)
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
            ("", ".json", json.dumps(rest, ensure_ascii=False, default=_plain).encode() + b"\n")
        )
    return files


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return plain_objects(value) if is_objects(value) else value


def _is_picture(values: npt.NDArray[np.uint8], has_role: bool) -> bool:
    return (values.ndim == 3 and values.shape[2] == 3) or (values.ndim == 2 and has_role)


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


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
