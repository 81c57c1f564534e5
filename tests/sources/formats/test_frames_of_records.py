"""Masks and objects in records whose images EXIF turns: the sizes of masks tell the frame, or a
person does."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_facts import rejects_of, stored, sums
from dataset_files import shard_in
from flipped_photos import FLIP, png
from in_this_process import convert, repair
from PIL import Image
from pyarrow import parquet
from tars import write_tar

import shardctl

PIXELS = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
SQUARE = PIXELS[:, :6]
MASK_ALONE: dict[str, Any] = {"kind": "image", "mask_fields": ["seg.png"]}
TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    6: lambda a: np.rot90(a, -1),
}

PLAIN, HALF, MIRROR, QUARTER = (1, PIXELS), (3, PIXELS), (2, PIXELS), (6, PIXELS)
Shot = tuple[int, Any]


def photo(orientation: int, pixels: Any) -> bytes:
    """Return an image as a camera stores it, which EXIF turns."""
    exif, target = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(pixels)).save(target, "PNG", exif=exif)
    return target.getvalue()


def upright(orientation: int, values: Any) -> Any:
    return TURNS[orientation](values)


def of_tar(path: Path, stored_masks: Mapping[str, Shot], upright_masks: Mapping[str, Shot]) -> Path:
    """Write images, each with the red of its pixels as its mask: of the image as it is stored, or
    upright."""
    records = {}
    for name, (orientation, pixels) in (*stored_masks.items(), *upright_masks.items()):
        mask = pixels[:, :, 0] if name in stored_masks else upright(orientation, pixels[:, :, 0])
        records[name] = {
            "png": photo(orientation, pixels),
            "seg.png": png(np.ascontiguousarray(mask)),
        }
    return write_tar(path, records)


def are_aligned(dataset: Path) -> list[bool]:
    """Return of each sample whether the mask is the red of its image as the loader gives both."""
    return [
        np.array_equal(batch["image"][0][:, :, 0], batch["seg.png"][0])
        for batch in shardctl.open(dataset).loader(1, columns=["image", "seg.png"])
    ]


ALL = {"plain": PLAIN, "half": HALF, "mirror": MIRROR, "quarter": QUARTER, "square": (6, SQUARE)}


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    "recipe",
    [MASK_ALONE, {**MASK_ALONE, "store": "png"}, FLIP],
    ids=["as it came", "decoded", "moved"],
)
@pytest.mark.parametrize("frame", ["stored", "upright"])
def test_masks_whose_size_tells_the_frame_tell_it_for_the_others(recipe, frame, tmp_path):
    source = of_tar(tmp_path / "a.tar", *((ALL, {}) if frame == "stored" else ({}, ALL)))
    outs = [tmp_path / f"out{workers}" for workers in (0, 2)]
    for workers, out in zip((0, 2), outs, strict=True):
        result = convert(source, out, recipe=recipe, workers=workers)
        assert are_aligned(out) == [True] * 5
        assert len([said for said in result.notices if "EXIF" in said]) == 1
    assert sums(outs[0]) == sums(outs[1])
    (shard_in(outs[0], "train-00000")).unlink()
    repair(outs[0])
    assert are_aligned(outs[0]) == [True] * 5


@pytest.mark.parametrize("frame", ["stored", "upright"])
def test_where_no_size_tells_the_frame_a_note_counts_the_images_and_the_option_decides(
    frame, tmp_path
):
    unclear = {name: ALL[name] for name in ("plain", "half", "mirror", "square")}
    source = of_tar(tmp_path / "a.tar", *((unclear, {}) if frame == "stored" else ({}, unclear)))
    said = str(convert(source, tmp_path / "auto", recipe=FLIP).notices)
    assert "EXIF turns 3 images of the 4" in said
    assert "annotation_frame='stored'" in said
    assert are_aligned(tmp_path / "auto") == [True, *[frame == "upright"] * 3]
    told = convert(source, tmp_path / "told", recipe=FLIP, annotation_frame=frame)
    assert "EXIF" not in str(told.notices)
    assert are_aligned(tmp_path / "told") == [True] * 4


def test_an_image_that_nothing_tells_the_frame_of_is_a_reject(tmp_path, out):
    """None of the first records is turned: a later one is, by 180 degrees, and another one so that
    its size tells."""
    shots = {f"s{number:03}": PLAIN for number in range(200)}
    source = of_tar(tmp_path / "a.tar", {**shots, "s110": HALF, "s120": QUARTER}, {})
    convert(source, out, recipe=FLIP)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("a.tar#111", "unknown-frame")
    assert reject.message.startswith("seg.png: EXIF turns it")
    assert are_aligned(out) == [True] * 199


BOX = {"bbox": [[1, 2, 3, 4]], "category": [0]}


@pytest.mark.parametrize(
    ("orientation", "box", "moved"),
    [(3, [4, 0, 3, 4], [1, 0, 3, 4]), (6, [0, 1, 4, 3], [2, 1, 4, 3])],
)
def test_objects_of_tables_are_turned_where_a_person_says_so(
    orientation, box, moved, tmp_path, out
):
    source, plain = tmp_path / "a.parquet", {"kind": "image"}
    objects = [BOX, None, {"bbox": [], "category": []}]
    images = pa.array([photo(orientation, PIXELS)] * 3, pa.binary())
    parquet.write_table(pa.table({"image": images, "objects": objects}), source)
    said = str(convert(source, out, recipe=plain).notices)
    assert "objects: EXIF turns 1 image" in said
    assert "annotation_frame='stored'" in said
    assert stored(out, "objects")[0] == BOX
    for recipe, expected in ((plain, box), ({**plain, "store": "png"}, box), (FLIP, moved)):
        told = convert(source, out, recipe=recipe, annotation_frame="stored", overwrite=True)
        assert "EXIF" not in str(told.notices)
        assert [each and each["bbox"] for each in stored(out, "objects")] == [[expected], None, []]
