"""Exports are read by the programs that they are for, and every value is the dataset's."""

from __future__ import annotations

import base64
import io
import json
import os
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
from in_this_process import export
from pictures import encoded
from PIL import Image

import shardctl
from shardctl.format.names import key_of_member
from shardctl.images.codecs import rle

INTEROP = Path(os.environ.get("SHARDCTL_INTEROP", Path(__file__).parents[3] / ".interop"))
READERS = Path(__file__).parent / "readers"
plain = runpy.run_path(str(READERS / "plain.py"))["plain"]
FORMS = ("parquet", "webdataset", "mds", "files")
MADE: dict[str, Callable[[Path], Path]] = {
    "photos": made.write_photos,
    "gaps": made.write_gaps,
    "raw": made.write_raw,
    "texts": made.write_texts,
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exports")
    for name, write in MADE.items():
        dataset = write(root / name)
        for to in FORMS:
            if (name, to) != ("gaps", "files"):  # files of texts that are not there
                export(dataset, root / f"{to}-{name}", to, on_loss="json")
    return root


def read(environment: str, script: str, root: Path) -> dict[str, Any]:
    """Run a script in an environment of other packages, and return what it found."""
    python = INTEROP / environment / "bin" / "python"
    if not (INTEROP / environment / ".done").exists():
        pytest.skip(f"no environment {environment}; `make interop` makes it")
    ran = subprocess.run(
        [python, READERS / f"{script}.py", root], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def seen(value: Any) -> Any:
    """Return a stored value as the readers print it."""
    if isinstance(value, dict) and set(value) == {"bytes", "path"}:
        return plain(Image.open(io.BytesIO(value["bytes"])))
    return plain(Image.fromarray(value) if hasattr(value, "shape") else value)


def stored(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Return the samples of a split as the readers print them."""
    samples = shardctl.open(root / name, split=split)
    rows = made.table(root / name, split).to_pylist()
    return [
        {
            field: seen(samples[place]["image"]) if field == "image" else seen(value)
            for field, value in row.items()
        }
        for place, row in enumerate(rows)
    ]


def in_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a sample of photos with the columns that are JSON as they are there: times are
    numbers."""
    info = row["info"]
    return {**row, "info": {**info, "taken": 1767225600000000 + 1000000 * info["width"]}}


def near(row: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with floats as the shortest numbers of 32 bits that they are nearest to."""
    shortened = {
        name: float(f"{value:.6g}") for name, value in row.items() if isinstance(value, float)
    }
    return {
        **row,
        **shortened,
        **({"box": [float(f"{number:.6g}") for number in row["box"]]} if "box" in row else {}),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("environment", ["tensorflow", "datasets3"])
def test_hugging_face_reads_every_form_for_it(exports, environment):
    found = read(environment, "huggingface", exports)
    assert found["classes"] == list(made.CLASSES)
    assert found["shards"] == stored(exports, "photos", "train")
    pixels = [sample["image"].ravel().tolist() for sample in shardctl.open(exports / "raw")]
    assert [row["image"] for row in found["vectors"]] == pixels
    for name, splits in (
        ("photos", ("train", "val")),
        ("gaps", ("train",)),
        ("raw", ("train",)),
        ("texts", ("train", "test")),
    ):
        for split in splits:
            assert found[f"parquet {name}"][split] == stored(exports, name, split)
    for split, theirs in (("train", "train"), ("val", "validation")):
        rows = {row["key"]: near(in_json(row)) for row in stored(exports, "photos", split)}
        # it has an order of its own
        assert {row["key"]: near(row) for row in found["files photos"][theirs]} == rows
        for row, tar in zip(
            map(in_json, stored(exports, "photos", split)),
            found["webdataset photos"][split],
            strict=True,
        ):
            check_photo(row, tar)
    for row, tar in zip(
        stored(exports, "raw", "train"), found["webdataset raw"]["train"], strict=True
    ):
        assert (tar["__key__"], tar["png"], tar["cls"]) == (row["key"], row["image"], row["label"])
    if environment == "tensorflow":
        check_webdataset(exports, found)


def check_photo(row: dict[str, Any], tar: dict[str, Any]) -> None:
    assert key_of_member(tar["__key__"]) == row["key"]
    members = {"jpg": "image", "cls": "label", "blob.bin": "blob", "box.npy": "box"}
    assert {name: tar[name] for name in members} == {
        name: row[column] for name, column in members.items()
    }
    given = {name: row[name] for name in ("caption", "score", "tags", "info")}
    assert near(tar["json"]) == near(given)


def check_webdataset(exports: Path, found: dict[str, Any]) -> None:
    rows = map(in_json, stored(exports, "photos", "train"))
    for row, tar in zip(rows, found["wds photos"], strict=True):
        check_photo(row, tar)
    for row, tar in zip(stored(exports, "texts", "train"), found["wds texts"], strict=True):
        assert (key_of_member(tar["__key__"]), tar["txt"], tar["json"]) == (
            row["key"],
            row["text"],
            {"year": row["year"]},
        )
    gaps = [
        {name: value for name, value in row.items() if name != "key"}
        for row in stored(exports, "gaps", "train")
    ]
    assert [tar["json"] for tar in found["wds gaps"]] == gaps


@pytest.mark.thorough
def test_streaming_and_litdata_read_theirs(exports):
    found = read("torch", "streams", exports)
    for name, splits in (
        ("photos", ("train", "val")),
        ("gaps", ("train",)),
        ("texts", ("train", "test")),
    ):
        for split in splits:
            rows = [
                in_json(row) if name == "photos" else row for row in stored(exports, name, split)
            ]
            assert found[f"mds {name} {split}"] == rows
    pixels = [sample["image"].tolist() for sample in shardctl.open(exports / "raw", split="train")]
    assert [row["image"] for row in found["mds raw train"]] == pixels
    if "litdata texts" not in found:
        pytest.skip("LitData reads Parquet with polars, which this environment lacks")
    assert found["litdata texts"] == stored(exports, "texts", "train")
    assert [row["key"] for row in found["litdata photos"]] == list(made.KEYS[:9])


@pytest.fixture(scope="module")
def exported_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples")
    more = {
        "features": made.write_features,
        "masks": made.write_masks,
        "objects": made.write_objects,
    }
    for name, write in {**MADE, **more}.items():
        dataset = write(root / name)
        for to in ("tfrecord", "array-record", "tfds"):
            export(dataset, root / f"{to}-{name}", to, on_loss="json")
    options = {"where": "key == '2'", "workers": 0}
    shardctl.export(root / "features", root / "tfds-one", "tfds", **options)
    shardctl.export(
        root / "features", root / "tfrecord-one", "tfrecord", compression="gzip", **options
    )
    export(root / "raw", root / "tfds-kept", "tfds", store="keep")
    return root


def in_example(row: dict[str, Any], texts: tuple[str, ...]) -> dict[str, Any]:
    """Return a stored sample as a record of TFRecord: what is missing is not there, and `texts` are
    JSON text."""
    made: dict[str, Any] = {}
    for name, value in row.items():
        if name in texts:
            made[name] = [json.dumps(value, separators=(",", ":"))]
        elif name == "objects":
            made |= {f"objects/{member}": each for member, each in value.items()}
            made["objects/bbox"] = [number for box in value["bbox"] for number in box]
        elif isinstance(value, dict):
            path = [value["path"]] if value["path"] != row["key"] else None
            made |= {name: [value["bytes"]], f"{name}/path": path}
        else:
            made[name] = value if value is None or isinstance(value, list) else [value]
    return {name: bare(values) for name, values in made.items() if values is not None}


def bare(value: Any) -> Any:
    """Return strings and bytes as the readers print them: they know bytes alone."""
    if isinstance(value, list):
        return [bare(each) for each in value]
    return (
        base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        if isinstance(value, str | bytes)
        else value
    )


def in_tfds(row: dict[str, Any], texts: tuple[str, ...]) -> dict[str, Any]:
    """Return a stored sample as TFDS gives it: dicts in the place of names with slashes, and images
    with their pixels."""
    made: dict[str, Any] = {}
    for name, value in row.items():
        *above, last = name.split("/")
        into = made
        for part in above:
            into = into.setdefault(part, {})
        if name in texts:
            into[last] = bare(json.dumps(value, separators=(",", ":")))
        elif name == "objects":
            into[last] = value
        elif isinstance(value, dict):
            into[last] = bare(value["bytes"])
            into[f"{last}.pixels"] = pixels_of(value["bytes"], name)
        else:
            into[last] = bare(value)
    return made


def pixels_of(data: bytes, name: str) -> Any:
    """Return the pixels of a PNG with an axis for channels; those of JPEG differ by decoder."""
    image = Image.open(io.BytesIO(data))
    if image.format == "JPEG":
        return None
    return (
        [[[pixel] for pixel in line] for line in np.asarray(image).tolist()]
        if name == "mask"
        else np.asarray(image).tolist()
    )


def without_jpeg(row: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if name.endswith(".pixels") and like[name] is None else value
        for name, value in row.items()
    }


TEXTS = {
    "tfrecord-photos": ("info",),
    "tfds-photos": ("info",),
    "tfds-gaps": ("number", "text", "list"),  # TFDS has no missing values
}
"""The columns that are JSON text."""


@pytest.mark.thorough
def test_tensorflow_and_tfds_read_theirs(exported_examples):
    root = exported_examples
    found = read("tensorflow", "examples", root)
    two = ("train", "val")
    names = {
        "photos": two,
        "gaps": ("train",),
        "texts": ("train", "test"),
        "features": ("train", "test"),
    }
    names["objects"] = ("train", "test")
    for name, splits in names.items():
        assert found[f"tfds-{name} splits"] == sorted(splits)
        for split in splits:
            rows = [
                in_json(row) if name == "photos" else row
                for row in made.table(root / name, split).to_pylist()
            ]
            texts, tfds_texts = (TEXTS.get(f"{to}-{name}", ()) for to in ("tfrecord", "tfds"))
            assert found[f"tfrecord-{name} {split}"] == [in_example(row, texts) for row in rows]
            assert found[f"array-record-{name} {split}"] == found[f"tfrecord-{name} {split}"]
            for row, given in zip(rows, found[f"tfds-{name} {split}"], strict=True):
                expected = in_tfds(row, tfds_texts)
                assert without_jpeg(given, expected) == expected
    assert found["tfds-photos classes"] == list(made.CLASSES)
    assert found["tfds-features classes"] == ["x", "a b", "ç"]
    assert found["tfds-objects classes of objects"] == ["cat", "big dog"]
    one = made.table(root / "features").to_pylist()[2]
    assert found["tfds-one splits"] == ["train"]
    assert [row["key"] for row in found["tfds-one train"]] == [bare("2")]
    assert found["tfrecord-one train"] == [in_example(one, ())]
    check_pixels(root, found)


def check_pixels(root: Path, found: dict[str, Any]) -> None:
    for sample, kept, image in zip(
        shardctl.open(root / "raw", split="train"),
        found["tfds-kept train"],
        found["tfds-raw train"],
        strict=True,
    ):
        assert kept["image"] == image["image.pixels"] == sample["image"].tolist()
    for sample, masked in zip(
        shardctl.open(root / "masks", split="train"), found["tfds-masks train"], strict=True
    ):
        assert masked["image.pixels"] == sample["image"].tolist()
        assert masked["mask.pixels"] == sample["mask"][:, :, None].tolist()


def test_pycocotools_reads_what_is_marked(tmp_path, out):
    mask = np.zeros((12, 16), bool)
    mask[2:5, 3:13] = True
    objects: dict[str, Any] = {
        "category": [1, 0, 0],
        "bbox": [[1, 2, 6, 4], [3, 2, 10, 3], [0, 0, 2.5, 3]],
        "iscrowd": [False, True, False],
        "segmentation": [[[1, 2, 7, 2, 7, 6, 1, 6]], [], []],
        "rle": [None, {"size": [12, 16], "counts": rle.encode(mask)}, None],
        "keypoints": [[[1.5, 2.5, 2], [4.5, 3.5, 0]], [], []],
    }
    none: dict[str, Any] = {name: [] for name in objects}
    image = encoded(Image.new("RGB", (16, 12)), "JPEG")
    samples = [
        {"key": key, "image": image, "objects": each}
        for key, each in (("a", objects), ("b", none), ("c", None), ("d", objects))
    ]
    role = {"role": "objects", "names": ["cat", "dog"], "keypoints": ["left", "right"]}
    shardctl.write(
        tmp_path / "in", {"train": samples}, roles={"objects": role}, samples_per_shard=2
    )
    export(tmp_path / "in", out, "coco")
    facts = [
        ("dog", [1, 2, 6, 4], 0, 24, 1),
        ("cat", [3, 2, 10, 3], 1, 30, None),
        ("cat", [0, 0, 2.5, 3], 0, None, None),
    ]
    names = ("name", "bbox", "iscrowd", "pixels", "num_keypoints")
    marked = [dict(zip(names, each, strict=True)) for each in facts]
    assert read("coco", "coco", out) == {"a.jpg": marked, "b.jpg": [], "d.jpg": marked}
