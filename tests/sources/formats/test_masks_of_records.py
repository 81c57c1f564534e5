"""Masks in records: a field that is one by its name and its first values is moved with the image,
where pixels move."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_facts import rejects_of, stored
from flipped_photos import FLIP, GREY, PHOTO, PIXELS, png
from in_this_process import convert
from PIL import Image
from pyarrow import parquet
from tars import write_tar
from tfrecords import write_examples

import shardctl
from shardctl.errors import UsageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.names import CHECKSUMS

NUMBERS = PIXELS[:, :, 0]


def of_palette(numbers: Any) -> bytes:
    made, target = Image.fromarray(numbers), io.BytesIO()
    made.putpalette([(37 * number) % 256 for number in range(768)])
    made.save(target, "PNG")
    return target.getvalue()


def of_tar(**members: bytes | None) -> Callable[[Path], Path]:
    """Write a tar; a mask may be missing."""
    named = {
        name.replace("_", "."): data
        for name, data in {"jpg": PHOTO, **members}.items()
        if data is not None
    }
    return lambda folder: write_tar(folder / "a.tar", {f"s{number}": named for number in range(3)})


def of_table(**columns: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        table = pa.table(
            {name: pa.array([value] * 3, type_) for name, (value, type_) in columns.items()}
        )
        parquet.write_table(table, folder / "a.parquet")
        return folder / "a.parquet"

    return write


def of_tensorflow(folder: Path) -> Path:
    record: dict[str, list[Any] | None] = {
        "image/encoded": [PHOTO],
        "image/segmentation/class/encoded": [GREY],
    }
    return write_examples(folder / "a.tfrecord", [record] * 3)


CASES = {
    "seg.png of a tar": (of_tar(seg_png=GREY), "seg.png", np.uint8),
    "with a palette": (of_tar(mask_png=of_palette(NUMBERS)), "mask.png", np.uint8),
    "of 16 bits": (of_tar(mask_png=png(NUMBERS.astype(np.uint16) + 300)), "mask.png", np.uint16),
    "bytes of a table": (
        of_table(image=(PHOTO, pa.binary()), face_mask=(GREY, pa.binary())),
        "face_mask",
        np.uint8,
    ),
    "of Hugging Face": (
        of_table(
            image=({"bytes": PHOTO, "path": "a.png"}, ENCODED_IMAGE),
            segmentation_mask=({"bytes": GREY, "path": "b.png"}, ENCODED_IMAGE),
        ),
        "segmentation_mask",
        np.uint8,
    ),
    "of TensorFlow": (of_tensorflow, "image/segmentation/class/encoded", np.uint8),
}


def decoded(mask: dict[str, Any]) -> Any:
    with Image.open(io.BytesIO(mask["bytes"])) as opened:
        return np.asarray(opened)


@pytest.mark.parametrize("case", CASES)
def test_a_mask_is_moved_with_its_image(case, tmp_path, out):
    write, name, dtype = CASES[case]
    source = write(tmp_path)
    result = convert(source, out, recipe=FLIP)
    assert f"{name}: masks, and moved with the image; unmoved" in " ".join(result.notices)
    as_it_is = convert(source, tmp_path / "told", recipe={**FLIP, "unmoved": [name]})
    assert "is a mask" not in str(as_it_is.notices)
    given = stored(tmp_path / "told", name)[0]
    before = decoded(given if isinstance(given, dict) else {"bytes": given})
    for mask in stored(out, name):
        assert np.array_equal(decoded(mask), before[:, ::-1])
    ds = shardctl.open(out)
    assert ds.manifest.fields[name]["role"] == "mask"
    (batch,) = ds.loader(3, flip=True, columns=["image", name])  # the loader moves both too
    assert batch[name][0].dtype == dtype
    shown = [np.array_equal(mask, before) for mask in batch[name]]
    assert shown == [np.array_equal(image, PIXELS) for image in batch["image"]]


def test_a_mask_stays_on_its_image_in_any_process(tmp_path):
    rng, records = np.random.default_rng(0), {}
    for number in range(60):
        pixels = rng.integers(0, 255, (20, 30, 3), np.uint8)
        records[f"s{number:03}"] = {"png": png(pixels), "seg.png": png(pixels[:, :, 0])}
    del records["s000"]["seg.png"]  # not every image need have one
    source = write_tar(tmp_path / "a.tar", records)
    recipe = {
        **FLIP,
        "transform": [{"name": "random_crop", "size": 9}, {"name": "hflip", "p": 0.5}],
    }
    digests = set()
    for workers in (0, 2):
        shardctl.convert(source, tmp_path / f"out{workers}", recipe=recipe, workers=workers)
        digests.add((tmp_path / f"out{workers}" / CHECKSUMS).read_bytes())
    assert len(digests) == 1
    images, masks = (stored(tmp_path / "out0", name) for name in ("image", "seg.png"))
    assert [mask is None for mask in masks] == [True] + [False] * 59
    for image, mask in zip(images[1:], masks[1:], strict=True):
        assert np.array_equal(decoded(image)[:, :, 0], decoded(mask))


def test_fields_that_are_said_to_be_masks_move_here_and_in_the_loader(tmp_path, out, cli):
    source = of_tar(trimap_png=GREY, note_txt=b"cat")(tmp_path)
    told = ["--kind", "image", "--mask-fields", "trimap.png", "--workers", "0"]
    assert cli("convert", source, out, *told).code == 0
    assert [mask["bytes"] for mask in stored(out, "trimap.png")] == [GREY] * 3
    (batch,) = shardctl.open(out).loader(3, flip=True, columns=["image", "trimap.png"])
    assert [np.array_equal(mask, NUMBERS) for mask in batch["trimap.png"]] == [
        np.array_equal(i, PIXELS) for i in batch["image"]
    ]
    assert cli("convert", source, tmp_path / "flipped", *told, "--step", "hflip p=1").code == 0
    assert np.array_equal(decoded(stored(tmp_path / "flipped", "trimap.png")[0]), NUMBERS[:, ::-1])
    for name in ("no", "jpg", "note.txt"):
        refused = cli("convert", source, tmp_path / "no", "--kind", "image", "--mask-fields", name)
        assert refused.code in (2, 3)
    twice = cli("convert", source, tmp_path / "no", *told, "--unmoved", "trimap.png")
    assert twice.code == 2
    tables = cli(
        "convert", source, tmp_path / "no", "--kind", "table", "--mask-fields", "trimap.png"
    )
    assert tables.code == 2


NO_MASKS = {
    "of colours": (of_tar(seg_png=PHOTO), "seg.png"),
    "of another size": (of_tar(seg_png=png(NUMBERS[:4])), "seg.png"),
    "numbers": (of_tar(mask_bin=b"no image"), "mask.bin"),
    "several images": (
        of_table(image=(PHOTO, pa.binary()), masks=([GREY], pa.list_(pa.binary()))),
        "masks",
    ),
    "a depth": (of_tar(depth_png=GREY), "depth.png"),
}


@pytest.mark.parametrize("case", NO_MASKS)
def test_what_is_no_plain_mask_is_refused(case, tmp_path, cli):
    write, name = NO_MASKS[case]
    source = write(tmp_path)
    with pytest.raises(
        UsageError,
        match=f"hflip moves the content of the images, but not {name}: .*unmoved.*; or leave",
    ):
        convert(source, tmp_path / "out", recipe=FLIP)
    told = convert(source, tmp_path / "told", recipe={**FLIP, "unmoved": [name]})
    assert told.samples == 3
    previewed = cli(
        "preview", source, "--kind", "image", "--step", "hflip p=1", "--html", tmp_path / "a.html"
    )
    assert previewed.code == 2


def test_a_later_value_that_is_no_mask_is_a_reject(tmp_path, out):
    records = {f"s{number:03}": {"png": PHOTO, "seg.png": GREY} for number in range(200)}
    records["s120"]["seg.png"], records["s130"]["seg.png"] = PHOTO, png(NUMBERS[:4])
    records["s140"]["seg.png"] = png(NUMBERS.astype(np.uint16))
    result = convert(write_tar(tmp_path / "a.tar", records), out, recipe=FLIP)
    assert result.samples == 197
    rejects = {reject.key: reject.message for reject in rejects_of(out)}
    assert rejects == {
        "a.tar#121": "seg.png: a mask has one number of up to 16 bits for each pixel; this is an "
        "image of mode RGB",
        "a.tar#131": "seg.png: its mask is of 8x4, and the image has 8x6",
        "a.tar#141": "seg.png: its mask has 16 bits for each pixel, and masks of this column have 8",
    }


def test_a_mask_of_hugging_face_has_its_role_without_steps_that_move_pixels(tmp_path, out):
    struct = {
        name: ({"bytes": data, "path": "b.png"}, ENCODED_IMAGE)
        for name, data in {"seg": PHOTO, "mask": GREY}.items()
    }
    source = of_table(image=({"bytes": PHOTO, "path": "a.png"}, ENCODED_IMAGE), **struct)(tmp_path)
    result = convert(source, out, recipe={"kind": "image"})
    assert "mask: masks, and moved by the loader with the image" in " ".join(result.notices)
    fields = shardctl.open(out).manifest.fields
    assert (fields["mask"]["role"], fields["seg"]["role"]) == ("mask", "image")  # seg has colours
    convert(source, tmp_path / "told", recipe={"kind": "image", "unmoved": ["mask"]})
    assert shardctl.open(tmp_path / "told").manifest.fields["mask"]["role"] == "image"
    # the bytes are the same
    assert stored(out, "mask") == stored(tmp_path / "told", "mask")
    (batch,) = shardctl.open(out).loader(3, resize=(3, 4), columns=["image", "mask"])
    assert set(np.unique(batch["mask"])) <= set(np.unique(NUMBERS))
    again = convert(source, out, recipe={"kind": "image"}, update=True)
    assert again.status == "up-to-date"


def test_a_mask_whose_format_changes_numbers_is_warned_of(tmp_path):
    target = io.BytesIO()
    Image.fromarray(NUMBERS).save(target, "JPEG")
    result = convert(of_tar(mask_jpg=target.getvalue())(tmp_path), tmp_path / "out", recipe=FLIP)
    assert any(
        said.startswith("mask.jpg: its masks are JPEG, which changes numbers")
        for said in result.warnings
    )
    result = convert(of_tar(mask_png=GREY)(tmp_path), tmp_path / "png", recipe=FLIP)
    assert "changes numbers" not in str(result.warnings)


def encoded(values: Any, form: str = "PNG", mode: str | None = None) -> dict[str, Any]:
    sink = io.BytesIO()
    image = Image.fromarray(values)
    if mode == "P":
        image.putpalette(
            [channel for number in range(256) for channel in (number, 0, 255 - number)]
        )
    image.save(sink, form)
    return {"bytes": sink.getvalue(), "path": None}


CLASSES = np.zeros((32, 32), np.uint8)
CLASSES[8:16, 4:20] = 3
MANY = np.arange(1024, dtype=np.uint16).reshape(32, 32)
SECOND: dict[str, tuple[dict[str, Any], str, Any]] = {
    "numbers": (encoded(CLASSES), "mask", CLASSES),
    "a palette": (encoded(CLASSES, mode="P"), "mask", CLASSES),
    "16 bits": (encoded(MANY * 60), "mask", MANY * 60),
    "a JPEG in grey": (encoded(CLASSES, "JPEG"), "image", None),
    "a picture in grey": (encoded((MANY % 256).astype(np.uint8)), "image", None),
    "colours": (encoded(np.dstack([MANY % 256] * 3).astype(np.uint8)), "image", None),
}


@pytest.mark.thorough(after=20)
@pytest.mark.parametrize("kind", ["auto", "image"])
@pytest.mark.parametrize("name", ["annotation", "label", "depth", "target", "conditioning_image"])
@pytest.mark.parametrize("second", SECOND)
def test_the_values_say_whether_another_image_is_a_mask(second, name, kind, tmp_path, out):
    value, role, numbers = SECOND[second]
    photo = encoded(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    structs = {
        "image": pa.array([photo] * 3, ENCODED_IMAGE),
        name: pa.array([value] * 3, ENCODED_IMAGE),
    }
    parquet.write_table(pa.table(structs), tmp_path / "a.parquet")
    result = convert(tmp_path / "a.parquet", out, kind=kind, image_field=None)
    ds = shardctl.open(out)
    assert {field: each.name for field, each in ds.roles.by_name.items()} == {
        "image": "image",
        name: role,
    }
    if numbers is not None:
        assert all(np.array_equal(sample[name], numbers) for sample in ds)
    assert second == "colours" or any(
        name in notice and "mask" in notice for notice in result.notices
    )
