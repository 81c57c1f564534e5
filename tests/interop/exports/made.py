"""Datasets that tests export: images with hostile keys, all sorts of columns, and texts. And what
they are when they come back."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from dataset_files import shards_in
from hypothesis import strategies as st
from in_this_process import convert, export
from PIL import Image

import shardctl
from shardctl.format.layout import ENCODED_IMAGE

FORMS = ("parquet", "webdataset", "tfrecord", "tfds", "mds", "array-record")
"""Those that keep everything."""

KEYS = (
    "v1.0/img.1.jpg",
    "v1.0/img.2.jpg",
    "../up",
    "/absolute/a.png",
    "a/../b.jpg",
    "__meta__/x",
    "new\nline.jpg",
    "100%2E.jpg",
    "café/ü",
    "folder/",
    "A.jpg",
    "a.jpg",
    "con",
    "x" * 300,
)
"""Names that archives, file systems and readers could take for something else."""

CLASSES = ("cat", "dog", "a/b")

PHOTO_COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("image", pa.binary()),
        ("label", pa.int64()),
        ("caption", pa.string()),
        ("score", pa.float32()),
        ("box", pa.list_(pa.float32(), 4)),
        ("tags", pa.list_(pa.string())),
        ("info", pa.struct([("width", pa.int32()), ("taken", pa.timestamp("us"))])),
        ("blob", pa.binary()),
    ]
)


def picture(number: int, format_: str = "JPEG", mode: str = "RGB") -> bytes:
    """Return an image of 8 x 6 pixels, another one for each number."""
    pixels = np.random.default_rng(number).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(target, format_)
    return target.getvalue()


def photo(number: int, key: str) -> dict[str, Any]:
    return {
        "key": key,
        "image": picture(number),
        "label": number % len(CLASSES),
        "caption": f"caption {number}",
        "score": float(np.float32(number / 10)),
        "box": [0.5, 1.25, float(number), float(np.float32(0.1))],
        "tags": [f"tag{at}" for at in range(number % 3)],
        "info": {"width": number, "taken": datetime.datetime(2026, 1, 1, 0, 0, number)},
        "blob": bytes([number, 0, 255]),
    }


def write_photos(folder: Path, **options: Any) -> Path:
    """Write a dataset of encoded images with columns of many types, none of which lacks a value, in
    two splits."""
    photos = [photo(number, key) for number, key in enumerate(KEYS)]
    splits = {"train": photos[:9], "val": photos[9:]}
    shardctl.write(
        folder, splits, PHOTO_COLUMNS, classes=CLASSES, **{"samples_per_shard": 4, **options}
    )
    return folder


def write_gaps(folder: Path) -> Path:
    """Write a dataset of values some of which are missing."""
    columns = {"number": pa.int32(), "text": pa.string(), "list": pa.list_(pa.int16())}
    rows = [("a", 1, "one", [1, 2]), ("b", None, "two", []), ("c", 3, None, None)]
    samples = [dict(zip(("key", *columns), row, strict=True)) for row in rows]
    shardctl.write(folder, samples, pa.schema({"key": pa.string(), **columns}), samples_per_shard=2)
    return folder


def write_holes(folder: Path) -> Path:
    """Write a dataset of masks, lists and structs that may be missing: a block lacks all of them."""
    struct = {"a": pa.int8(), "words": pa.list_(pa.string())}
    columns = {
        "texts": (pa.list_(pa.string()), [None, [], [""], ["a"]]),
        "pair": (pa.list_(pa.int8(), 2), [None, [1, 2], None, [3, 4]]),
        "flag": (pa.bool_(), [None, True, None, False]),
        "half": (pa.float16(), [None, None, 1.5, None]),
        "struct": (
            pa.struct([*struct.items(), ("pairs", pa.list_(pa.list_(pa.int16(), 2)))]),
            [
                {"a": 1, "words": [], "pairs": [[1, 2], [3, 4]]},
                None,
                {"a": 0, "words": ["x"], "pairs": []},
                None,
            ],
        ),
        "mask": (ENCODED_IMAGE, [picture(1, "PNG", "L"), None] * 2),
    }
    samples = [
        {
            "key": f"{number}.jpg",
            "image": picture(number),
            **{name: (values + [None] * 2)[number] for name, (_, values) in columns.items()},
        }
        for number in range(6)
    ]
    types = {name: type_ for name, (type_, _) in columns.items()}
    schema = pa.schema({"key": pa.string(), "image": pa.binary(), **types})
    shardctl.write(folder, samples, schema, samples_per_shard=4, roles={"mask": "mask"})
    return folder


def write_tokens(folder: Path) -> Path:
    """Write a dataset of lists of different lengths, of blocks, and of labels that are text."""
    types = {
        "key": pa.string(),
        "tokens": pa.list_(pa.uint16()),
        "block": pa.list_(pa.int32(), 3),
        "parts": pa.list_(pa.struct([("a", pa.list_(pa.int8()))])),
        "label": pa.string(),
    }
    rows = [
        (f"{n}", [*range(300 * n)], [n, n + 1, -1], [{"a": [n]}], ("pos", "neg")[n % 2])
        for n in range(1, 5)
    ]
    samples = [dict(zip(types, row, strict=True)) for row in rows]
    shardctl.write(folder, samples, pa.schema(types), samples_per_shard=3)
    return folder


def write_raw(folder: Path) -> Path:
    """Write a dataset of raw images."""
    return write_masks(folder, masks=False)


def write_masks(folder: Path, masks: bool = True) -> Path:
    """Write a dataset of raw images with raw masks of 16 bits."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(5):
        image = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        mask = rng.integers(0, 2**16, (6, 8), dtype=np.uint16)
        sample = {"key": f"{number}", "image": image, "label": number % 2}
        samples.append({**sample, "mask": mask} if masks else sample)
    roles = {"mask": {"role": "mask", "bits": 16}} if masks else None
    shardctl.write(folder, samples, samples_per_shard=2, roles=roles)
    return folder


def write_texts(folder: Path) -> Path:
    """Write a dataset of texts."""
    samples = [
        {"key": f"lines.jsonl#{number}", "text": f"text {number}\n", "year": 1900 + number}
        for number in range(1, 8)
    ]
    shardctl.write(folder, {"train": samples[:5], "test": samples[5:]}, samples_per_shard=2)
    return folder


FEATURE_COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("image", pa.binary()),
        ("mask", ENCODED_IMAGE),
        ("label", pa.int64()),
        ("flag", pa.bool_()),
        ("flags", pa.list_(pa.bool_())),
        ("pair", pa.list_(pa.bool_(), 2)),
        ("names", pa.list_(pa.string(), 2)),
        ("half", pa.float16()),
        ("halves", pa.large_list(pa.float16())),
        ("large", pa.uint64()),
        ("small", pa.list_(pa.uint8())),
        ("negative", pa.list_(pa.int64())),
        ("words", pa.large_string()),
        ("blobs", pa.large_list(pa.large_binary())),
        ("size/width", pa.int8()),
        ("size/unit/name", pa.string()),
        ("box", pa.list_(pa.float32(), 4)),
    ]
)


def features(number: int) -> dict[str, Any]:
    deep = io.BytesIO()
    Image.fromarray((np.arange(48, dtype=np.uint16) * 999 + number).reshape(6, 8)).save(deep, "PNG")
    return {
        "key": str(number),
        "image": picture(number, "PNG" if number % 2 else "JPEG"),
        "mask": deep.getvalue(),
        "label": number % 3,
        "flag": number % 2 == 0,
        "flags": [True, False][: number % 3],
        "pair": [True, number % 2 == 0],
        "names": ["", f"name {number}"],
        "half": 1.5 * number,
        "halves": [0.25] * number,
        "large": 2**63 - 1 - number,
        "small": list(range(0, 255, 50))[:number],
        "negative": [-(2**63), -1, 0, 127, 128, 2**63 - 1][:number],
        "words": "é" * 100 * number,
        "blobs": [b"", b"\xff" * number],
        "size/width": -number,
        "size/unit/name": f"unit {number}",
        "box": [1.0, 2.0, float(np.float32(0.1)), float(number)],
    }


def write_features(folder: Path) -> Path:
    """Write a dataset with each sort of values that a tf.train.Example holds: images of two
    formats, masks of 16 bits, ..."""
    samples = [features(number) for number in range(7)]
    roles = {"mask": {"role": "mask", "bits": 16}}
    splits = {"train": samples[:5], "test": samples[5:]}
    shardctl.write(
        folder, splits, FEATURE_COLUMNS, classes=("x", "a b", "ç"), samples_per_shard=2, roles=roles
    )
    return folder


def write_objects(folder: Path) -> Path:
    """Write a dataset of images in which objects are marked: boxes, areas and crowds."""
    samples = []
    for number in range(5):
        boxes = [[0.5 * each, 1.0, 2.0, 3.0] for each in range(number % 3)]
        objects = {
            "category": [each % 2 for each in range(len(boxes))],
            "bbox": boxes,
            "area": [6.0] * len(boxes),
            "iscrowd": [each == 1 for each in range(len(boxes))],
            "id": [100 * number + each for each in range(len(boxes))],
        }
        samples.append({"key": f"{number}.jpg", "image": picture(number), "objects": objects})
    roles = {"objects": {"role": "objects", "names": ["cat", "big dog"]}}
    shardctl.write(
        folder, {"train": samples[:3], "test": samples[3:]}, roles=roles, samples_per_shard=2
    )
    return folder


def values() -> Any:
    """Types of columns, each with what may be in them."""
    return st.recursive(
        st.sampled_from(
            [
                (pa.bool_(), st.booleans()),
                (pa.int8(), st.integers(-128, 127)),
                (pa.uint64(), st.integers(0, 2**64 - 1)),
                (pa.float32(), st.floats(width=32)),
                (pa.float64(), st.floats()),
                (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
                (pa.binary(), st.binary(max_size=4)),
                (pa.timestamp("us"), st.datetimes()),
                (pa.date32(), st.dates()),
            ]
        ),
        lambda inner: (
            inner.map(lambda pair: (pa.list_(pair[0]), st.lists(pair[1] | st.none(), max_size=3)))
            | inner.map(
                lambda pair: (pa.list_(pair[0], 2), st.lists(pair[1], min_size=2, max_size=2))
            )
            | inner.map(
                lambda pair: (
                    pa.struct([("part", pair[0])]),
                    st.fixed_dictionaries({"part": pair[1] | st.none()}),
                )
            )
        ),
        max_leaves=3,
    )


@st.composite
def tables(draw: Any) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """Draw columns of a few types beside the key, and rows, some values of which are missing."""
    columns = draw(st.lists(values(), min_size=1, max_size=3))
    typed = [
        ("key", pa.string()),
        *((f"column {n}", type_) for n, (type_, _) in enumerate(columns)),
    ]
    rows = [
        {
            "key": f"k.{number}",
            **{f"column {n}": draw(each | st.none()) for n, (_, each) in enumerate(columns)},
        }
        for number in range(draw(st.integers(1, 4)))
    ]
    return pa.schema(typed), rows


def table(dataset: Path, split: str = "train") -> pa.Table:
    """All samples of a split as they are stored."""
    shards = [pa.ipc.open_file(shard).read_all() for shard in shards_in(dataset, split)]
    return pa.concat_tables(shards).replace_schema_metadata(None)


def facts_of(dataset: Path) -> dict[str, Any]:
    """Return all that the manifest says of the samples, and the samples: NaN is what it prints
    as."""
    manifest = json.loads((dataset / "manifest.json").read_text())
    tables = {split["name"]: table(dataset, split["name"]) for split in manifest["splits"]}
    return {
        "fields": manifest["fields"],
        "schema": {split: rows.schema for split, rows in tables.items()},
        "rows": {split: list(map(repr, rows.to_pylist())) for split, rows in tables.items()},
    }


def back_from(export: Path) -> Path:
    """Convert an export, and return the dataset."""
    back = export.with_name(f"{export.name}-back")
    assert convert(export, back, overwrite=True).rejected == 0
    return back


def comes_back(dataset: Path, out: Path, form: str, **options: Any) -> Any:
    """Export a dataset, convert that, expect the same dataset, and return the result of the
    export."""
    result = export(dataset, out, form, **options)
    assert facts_of(back_from(out)) == facts_of(dataset)
    return result
