"""Tiny inputs with annotations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from dataset_files import shards_in
from PIL import Image

import shardctl
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.tables import read_rejects
from shardctl.making.convert import ConvertResult

PALETTE = [0, 0, 0, 128, 0, 0, 0, 128, 0]


def mask(path: Path, values: np.ndarray, mode: str = "P") -> Path:  # type: ignore[type-arg]
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "P":
        image = Image.fromarray(values.astype(np.uint8))
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette(PALETTE)
    elif mode == "I;16":
        image = Image.fromarray(values.astype(np.uint16))
    else:
        image = Image.fromarray(values.astype(np.uint8)).convert(mode)
    image.save(path)
    return path


def values_of(size: tuple[int, int], most: int = 3) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(0).integers(0, most, size[::-1])


def photo(path: Path, size: tuple[int, int] = (8, 6), orientation: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 255, (size[1], size[0], 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return path


def photos(root: Path, *names: str, size: tuple[int, int] = (8, 6)) -> Path:
    for name in names:
        photo(root / name, size)
    return root


CATEGORIES = (
    {"id": 3, "name": "cat"},
    {"id": 7, "name": "dog", "supercategory": "animal"},
)


def coco_file(
    path: Path,
    images: Iterable[tuple[int, str]],
    annotations: Iterable[dict[str, Any]],
    categories: Iterable[dict[str, Any]] = CATEGORIES,
) -> Path:
    record = {
        "info": {"year": 2026},
        "images": [
            {"id": number, "file_name": name, "width": 8, "height": 6} for number, name in images
        ],
        "annotations": list(annotations),
        "categories": list(categories),
    }
    path.write_text(json.dumps(record))
    return path


def box(image: int, bbox: Any = (1, 2, 3, 2), category: Any = 3, **more: Any) -> dict[str, Any]:
    return {"image_id": image, "category_id": category, "bbox": bbox, **more}


def converted(source: Path, out: Path, *labels: str, **options: Any) -> ConvertResult:
    return shardctl.convert(source, out, workers=0, labels=list(labels) or "auto", **options)


def samples(out: Path) -> dict[str, dict[str, Any]]:
    """All samples by key, the mask as it is stored."""
    found: dict[str, dict[str, Any]] = {}
    for shard in shards_in(out):
        for row in pa.ipc.open_file(shard).read_all().to_pylist():
            found[row["key"]] = row
    return found


def rejects(out: Path) -> dict[str, tuple[str, str]]:
    return {reject.key: (reject.error, reject.message) for reject in read_rejects(dataset_in(out))}
