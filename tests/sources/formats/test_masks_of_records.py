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
from dataset_facts import rejects_of, stored, sums
from flipped_photos import FLIP, GREY, PHOTO, PIXELS, png
from in_this_process import convert
from PIL import Image
from pyarrow import parquet
from tars import write_tar
from tfrecords import write_examples

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.format.layout import ENCODED_IMAGE

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
    pictures = np.random.default_rng(0).integers(0, 255, (60, 20, 30, 3), np.uint8)
    records = {
        f"s{number:03}": {"png": png(pixels), "seg.png": png(np.ascontiguousarray(pixels[:, :, 0]))}
        for number, pixels in enumerate(pictures)
    }
    del records["s000"]["seg.png"]  # not every image need have one
    source = write_tar(tmp_path / "a.tar", records)
    steps = [{"name": "random_crop", "size": 9}, {"name": "hflip", "p": 0.5}]
    outs = [tmp_path / f"out{workers}" for workers in (0, 2)]
    for workers, out in zip((0, 2), outs, strict=True):
        convert(source, out, recipe={**FLIP, "transform": steps}, workers=workers)
    assert sums(outs[0]) == sums(outs[1])
    images, masks = (stored(outs[0], name) for name in ("image", "seg.png"))
    assert [mask is None for mask in masks] == [True] + [False] * 59
    for image, mask in zip(images[1:], masks[1:], strict=True):
        assert np.array_equal(decoded(image)[:, :, 0], decoded(mask))


def test_fields_that_are_said_to_be_masks_move_here_and_in_the_loader(tmp_path, out):
    source = of_tar(trimap_png=GREY, note_txt=b"cat")(tmp_path)
    told = {"kind": "image", "mask_fields": ["trimap.png"]}
    convert(source, out, recipe=told)
    assert [mask["bytes"] for mask in stored(out, "trimap.png")] == [GREY] * 3
    (batch,) = shardctl.open(out).loader(3, flip=True, columns=["image", "trimap.png"])
    assert [np.array_equal(mask, NUMBERS) for mask in batch["trimap.png"]] == [
        np.array_equal(i, PIXELS) for i in batch["image"]
    ]
    convert(source, tmp_path / "flipped", recipe={**FLIP, **told})
    assert np.array_equal(decoded(stored(tmp_path / "flipped", "trimap.png")[0]), NUMBERS[:, ::-1])
    for wrong in (
        *({"mask_fields": [name]} for name in ("no", "jpg", "note.txt")),
        {"unmoved": ["trimap.png"]},
        {"kind": "table"},
    ):
        with pytest.raises((UsageError, InputError)):
            convert(source, tmp_path / "no", recipe={**told, **wrong})


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
    with pytest.raises(UsageError, match=f"but not {name}: .*unmoved.*; or leave"):
        convert(source, tmp_path / "out", recipe=FLIP)
    convert(source, tmp_path / "told", recipe={**FLIP, "unmoved": [name]})
    words = ("--kind", "image", "--step", "hflip p=1", "--html", tmp_path / "a.html")
    assert cli("preview", source, *words).code == 2


def test_a_later_value_that_is_no_mask_is_a_reject(tmp_path, out):
    records = {f"s{number:03}": {"png": PHOTO, "seg.png": GREY} for number in range(200)}
    for key, mask in {
        "s120": PHOTO,
        "s130": png(NUMBERS[:4]),
        "s140": png(NUMBERS.astype(np.uint16)),
    }.items():
        records[key]["seg.png"] = mask
    result = convert(write_tar(tmp_path / "a.tar", records), out, recipe=FLIP)
    assert result.samples == 197
    colours, size, deep = rejects_of(out)
    assert (colours.key, size.key, deep.key) == ("a.tar#121", "a.tar#131", "a.tar#141")
    assert "this is an image of mode RGB" in colours.message
    assert size.message == "seg.png: its mask is of 8x4, and the image has 8x6"
    assert deep.message.endswith("has 16 bits for each pixel, and masks of this column have 8")


def test_a_mask_of_hugging_face_has_its_role_without_steps_that_move_pixels(tmp_path, out):
    encoded = {
        name: ({"bytes": data, "path": "b.png"}, ENCODED_IMAGE)
        for name, data in {"image": PHOTO, "seg": PHOTO, "mask": GREY}.items()
    }
    source, recipe = of_table(**encoded)(tmp_path), {"kind": "image"}
    result = convert(source, out, recipe=recipe)
    assert "mask: masks, and moved by the loader with the image" in str(result.notices)
    fields = shardctl.open(out).manifest.fields
    assert (fields["mask"]["role"], fields["seg"]["role"]) == ("mask", "image")  # seg has colours
    convert(source, tmp_path / "told", recipe={**recipe, "unmoved": ["mask"]})
    assert shardctl.open(tmp_path / "told").manifest.fields["mask"]["role"] == "image"
    assert stored(out, "mask") == stored(tmp_path / "told", "mask")
    (batch,) = shardctl.open(out).loader(3, resize=(3, 4), columns=["image", "mask"])
    assert set(np.unique(batch["mask"])) <= set(np.unique(NUMBERS))
    assert convert(source, out, recipe=recipe, update=True).status == "up-to-date"


def test_a_mask_whose_format_changes_numbers_is_warned_of(tmp_path):
    jpeg = encoded(NUMBERS, "JPEG")["bytes"]
    for name, data in {"mask_jpg": jpeg, "mask_png": GREY}.items():
        result = convert(of_tar(**{name: data})(tmp_path), tmp_path / name, recipe=FLIP)
        assert ("mask.jpg: its masks are JPEG, which changes numbers" in str(result.warnings)) == (
            data is jpeg
        )


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
