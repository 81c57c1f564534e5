"""What lies beside an image and is not moved with it: refused by name where pixels move, kept as it is where that is said."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from test_tfrecord import write as write_examples

import shardctl
from shardctl.errors import UsageError
from shardctl.layout import ENCODED_IMAGE

PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
FLIP: dict[str, Any] = {"kind": "image", "store": "png", "transform": [{"name": "hflip", "p": 1}]}


def png(values: Any) -> bytes:
    target = io.BytesIO()
    Image.fromarray(values).save(target, "PNG")
    return target.getvalue()


def npy(values: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, np.asarray(values))
    return target.getvalue()


PHOTO, GREY = png(PIXELS), png(PIXELS[:, :, 0])


def write_tar(folder: Path, members: Mapping[str, bytes]) -> Path:
    path = folder / "a.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(3):
            for ending, data in {"jpg": PHOTO, **members}.items():
                info = tarfile.TarInfo(f"s{number}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def of_tar(**members: bytes) -> Callable[[Path], Path]:
    named = {name.replace("_", "."): data for name, data in members.items()}
    return lambda folder: write_tar(folder, named)


def of_detection(folder: Path) -> Path:
    """Write records as the Object Detection API of TensorFlow does."""
    corners: dict[str, list[Any] | None] = {
        f"image/object/bbox/{name}": [number / 8, number / 10] for number, name in enumerate(("xmin", "xmax", "ymin", "ymax"))
    }
    record = {"image/encoded": [PHOTO], "image/object/class/label": [1, 2], **corners}
    return write_examples(folder / "a.tfrecord", [record] * 3)


def of_huggingface(folder: Path) -> Path:
    image = {"bytes": PHOTO, "path": "a.png"}
    columns = {"image": pa.array([image] * 3, ENCODED_IMAGE), "conditioning_image": pa.array([image] * 3, ENCODED_IMAGE)}
    parquet.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def of_bytes(folder: Path) -> Path:
    """Write a table whose second image has a name that tells nothing."""
    columns = {"image": pa.array([PHOTO] * 3, pa.binary()), "before": pa.array([GREY] * 3), "blob": pa.array([b"blob"] * 3)}
    parquet.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


DETECTION = ["image/object/bbox/xmax", "image/object/bbox/xmin", "image/object/bbox/ymax", "image/object/bbox/ymin"]

CASES = {
    "boxes of a tar": (of_tar(boxes_npy=npy([[1.0, 2, 3, 4]])), ["boxes.npy"]),
    "a mask in colours": (of_tar(mask_png=PHOTO), ["mask.png"]),
    "a depth of a tar": (of_tar(depth_png=GREY), ["depth.png"]),
    "the image of the other eye": (of_tar(right_png=PHOTO), ["right.png"]),
    "boxes in JSON": (of_tar(json=json.dumps({"face_bboxes": [[1, 2, 3, 4]], "points": 5}).encode()), ["json"]),
    "TensorFlow's object detection": (of_detection, DETECTION),
    "a second image of Hugging Face": (of_huggingface, ["conditioning_image"]),
    "bytes that are images": (of_bytes, ["before"]),
}


def stored(dataset: Path, name: str) -> list[Any]:
    tables = [pa.ipc.open_file(shard).read_all() for shard in sorted(dataset.glob("train-*.arrow"))]
    values: list[Any] = pa.concat_tables(tables)[name].to_pylist()
    return values


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_that_moves_pixels_leaves_nothing_behind(case: str, tmp_path: Path) -> None:
    write, columns = CASES[case]
    source, recipe = write(tmp_path), {**FLIP, "image_field": "jpg" if case == "the image of the other eye" else None}
    with pytest.raises(UsageError, match="hflip moves what is in the images, but not ") as caught:
        shardctl.convert(source, tmp_path / "out", recipe=recipe, workers=0)
    assert f"--unmoved {','.join(columns)}; or leave them out, those of records with --fields" in str(caught.value)
    assert not (tmp_path / "out").exists()
    in_place = {**recipe, "transform": [{"name": "grayscale"}]}  # what moves nothing needs no such word
    assert shardctl.convert(source, tmp_path / "grey", recipe=in_place, workers=0).samples == 3
    told = {**recipe, "unmoved": columns}
    assert shardctl.convert(source, tmp_path / "told", recipe=told, workers=0).samples == 3
    for name in columns:
        assert stored(tmp_path / "told", name) == stored(tmp_path / "grey", name)
    (image, *_) = stored(tmp_path / "told", "image")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(image["bytes"]))), PIXELS[:, ::-1])


@pytest.mark.parametrize("case", ["boxes of a tar", "a mask in colours", "TensorFlow's object detection"])
@pytest.mark.parametrize("option", [{"flip": True}, {"crop": 4}, {"resize": 5}], ids=str)
def test_a_loader_that_moves_pixels_leaves_nothing_behind(case: str, option: dict[str, Any], tmp_path: Path) -> None:
    write, columns = CASES[case]
    shardctl.convert(write(tmp_path), tmp_path / "out", recipe={"kind": "image"}, workers=0)
    ds = shardctl.open(tmp_path / "out")
    (name,) = option
    with pytest.raises(
        UsageError, match=f"{name} moves what is in the images, but not {columns[0]}.* unmoved=.* columns="
    ) as caught:
        ds.loader(1, **option)
    assert f"unmoved={columns}" in str(caught.value)
    (batch,) = ds.loader(3, **option, unmoved=columns)
    assert columns[0] in batch
    (batch,) = ds.loader(3, **option, columns=["key", "image"])
    assert batch["image"].shape == {"flip": (3, 6, 8, 3), "crop": (3, 4, 4, 3), "resize": (3, 5, 6, 3)}[name]


def test_the_command_line_and_the_preview_take_the_same_word(tmp_path: Path, cli: Any) -> None:
    source = write_tar(tmp_path, {"depth.png": GREY})
    arguments = ["--kind", "image", "--step", "hflip p=1", "--workers", "0"]
    refused = cli("convert", source, tmp_path / "out", *arguments)
    assert refused.code == 2
    assert "hflip moves what is in the images, but not depth.png: it looks like a place" in refused.err
    assert cli("convert", source, tmp_path / "out", *arguments, "--unmoved", "depth.png").code == 0
    assert shardctl.open(tmp_path / "out").manifest.recipe["unmoved"] == ["depth.png"]
    page = cli(
        "preview", source, "--kind", "image", "--step", "hflip p=1", "--unmoved", "depth.png", "--html", tmp_path / "a.html"
    )
    assert page.code == 0
