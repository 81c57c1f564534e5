"""Images that EXIF turns leave in one frame with what is marked in them: read here without EXIF, as
torchvision does."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from in_this_process import convert
from PIL import Image
from tars import members_of

import shardctl

SIZE = WIDTH, HEIGHT = 96, 64
BOX = (16, 24, 32, 24)
"""x, y, width, height of a white rectangle in each upright image; whole blocks of JPEG."""

TURNED_BACK = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Images of all orientations as JPEG, PNG and WebP, with boxes and masks that fit them
    upright."""
    images, masks = tmp_path / "in" / "images", tmp_path / "in" / "masks"
    images.mkdir(parents=True)
    masks.mkdir()
    marked = np.zeros((HEIGHT, WIDTH), np.uint8)
    x, y, width, height = BOX
    marked[y : y + height, x : x + width] = 1
    lines = []
    for number, (orientation, back) in enumerate(TURNED_BACK.items(), 1):
        upright = Image.fromarray(marked * 255).convert("RGB")
        stored = upright if back is None else upright.transpose(back)
        exif = Image.Exif()
        exif[0x0112] = orientation
        exif[0x010F] = "a camera"
        ending, more = [("jpg", {"quality": 90}), ("png", {}), ("webp", {"lossless": True})][
            number % 3
        ]
        stored.save(images / f"{number}.{ending}", exif=exif, **more)
        Image.fromarray(marked).save(masks / f"{number}.png")
        objects = {"bbox": [BOX], "category": [0], "area": [768], "iscrowd": [False]}
        lines.append(json.dumps({"file_name": f"{number}.{ending}", "objects": objects}))
    (images / "metadata.jsonl").write_text("\n".join(lines))
    convert(images, tmp_path / "out", labels=["auto", f"masks:{masks}"], annotation_frame="upright")
    return tmp_path / "out"


def pixels(data: bytes) -> Any:
    """As PIL gives them to readers that do not ask for EXIF."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def coco(folder: Path) -> Iterator[tuple[bytes, Any]]:
    said = json.loads((folder / "annotations" / "instances_train.json").read_text())
    boxes = {each["image_id"]: each["bbox"] for each in said["annotations"]}
    for each in said["images"]:
        data = (folder / "train" / each["file_name"]).read_bytes()
        assert (each["width"], each["height"]) == Image.open(io.BytesIO(data)).size
        yield data, boxes[each["id"]]


def yolo(folder: Path) -> Iterator[tuple[bytes, Any]]:
    for path in sorted((folder / "images" / "train").iterdir()):
        _, x, y, w, h = map(
            float, (folder / "labels" / "train" / path.stem).with_suffix(".txt").read_text().split()
        )
        with Image.open(path) as image:
            width, height = image.size
        yield path.read_bytes(), [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]


def files(folder: Path) -> Iterator[tuple[bytes, Any]]:
    for line in (folder / "train" / "metadata.jsonl").read_text().splitlines():
        record = json.loads(line)
        mask = np.asarray(Image.open(folder / "train" / record["mask_file_name"]))
        data = (folder / "train" / record["file_name"]).read_bytes()
        assert np.abs(pixels(data)[..., 0] - mask * 255).max() < 8
        yield data, record["objects"]["bbox"][0]


def webdataset(folder: Path) -> Iterator[tuple[bytes, Any]]:
    found = members_of(folder / "train-00000.tar")
    for name, data in found.items():
        if name.endswith(".json"):
            names = (name.removesuffix("json") + kind for kind in ("jpg", "png", "webp"))
            (image,) = (found[other] for other in names if other in found)
            yield image, json.loads(data)["objects"]["bbox"][0]


def parquet(folder: Path) -> Iterator[tuple[bytes, Any]]:
    for record in pq.read_table(folder).to_pylist():
        objects = record["objects"]
        yield (
            record["image"]["bytes"],
            objects["bbox"][0] if isinstance(objects, dict) else objects[0]["bbox"],
        )


@pytest.mark.parametrize("read", [coco, yolo, files, webdataset, parquet])
def test_boxes_fit_for_readers_with_and_without_exif(dataset, tmp_path, read):
    target = tmp_path / "export"
    result = shardctl.export(dataset, target, to=read.__name__, on_loss="drop")
    assert any(note.startswith("7 images turned ") for note in result.notes)
    found = list(read(target / "data" if read is parquet else target))
    assert len(found) == 8
    x, y, width, height = BOX
    wanted = np.zeros((HEIGHT, WIDTH), int)
    wanted[y : y + height, x : x + width] = 255
    for data, box in found:
        assert np.allclose(box, BOX, atol=1e-4)
        assert np.abs(pixels(data) - wanted[..., None]).max() < 8
        with Image.open(io.BytesIO(data)) as image:
            assert image.getexif().get(0x0112, 1) == 1
            if image.format == "JPEG":
                assert image.getexif()[0x010F] == "a camera", "what else EXIF says stays"


def test_a_photo_changes_by_little_when_it_is_turned(tmp_path, out):
    """With the tables of its JPEG, of any quality and colours."""
    rng = np.random.default_rng(1)
    photo = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8)).resize(
        (201, 135), Image.Resampling.BICUBIC
    )
    (tmp_path / "in").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, (quality, sampling) in enumerate(((60, 2), (90, 1), (95, 0)), 1):
        photo.save(
            tmp_path / "in" / f"{number}.jpg", quality=quality, subsampling=sampling, exif=exif
        )
    boxes = [
        {"file_name": f"{n}.jpg", "objects": {"bbox": [[1, 1, 9, 9]], "category": [0]}}
        for n in (1, 2, 3)
    ]
    (tmp_path / "in" / "metadata.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in boxes)
    )
    convert(tmp_path / "in", out, annotation_frame="upright")
    shardctl.export(out, tmp_path / "export", to="coco")
    for name, most in (("1.jpg", 3.0), ("2.jpg", 1.5), ("3.jpg", 1.0)):
        before = np.rot90(pixels((tmp_path / "in" / name).read_bytes()), -1)
        data = (tmp_path / "export" / "train" / name).read_bytes()
        assert np.abs(pixels(data) - before).mean() < most
        assert len(data) < 1.3 * (tmp_path / "in" / name).stat().st_size
