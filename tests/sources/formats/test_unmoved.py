"""What lies beside an image and is not moved with it: a known form of places is refused, and all
else that may be one named."""

from __future__ import annotations

import io
import json
import tarfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_facts import stored
from flipped_photos import FLIP, GREY, PHOTO, PIXELS
from in_this_process import convert
from PIL import Image
from pyarrow import parquet
from tfrecords import write_examples

import shardctl
from shardctl.errors import UsageError
from shardctl.format.layout import ENCODED_IMAGE


def npy(values: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, np.asarray(values))
    return target.getvalue()


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
        f"image/object/bbox/{name}": [number / 8, number / 10]
        for number, name in enumerate(("xmin", "xmax", "ymin", "ymax"))
    }
    record = {"image/encoded": [PHOTO], "image/object/class/label": [1, 2], **corners}
    return write_examples(folder / "a.tfrecord", [record] * 3)


def of_huggingface(folder: Path) -> Path:
    image = {"bytes": PHOTO, "path": "a.png"}
    columns = {
        "image": pa.array([image] * 3, ENCODED_IMAGE),
        "conditioning_image": pa.array([image] * 3, ENCODED_IMAGE),
    }
    parquet.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def of_bytes(folder: Path) -> Path:
    """Write a table whose second image has a name that tells nothing."""
    columns = {
        "image": pa.array([PHOTO] * 3, pa.binary()),
        "before": pa.array([GREY] * 3),
        "blob": pa.array([b"blob"] * 3),
    }
    parquet.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


DETECTION = [
    "image/object/bbox/xmax",
    "image/object/bbox/xmin",
    "image/object/bbox/ymax",
    "image/object/bbox/ymin",
]

CASES = {
    "boxes of a tar": (of_tar(boxes_npy=npy([[1.0, 2, 3, 4]])), ["boxes.npy"]),
    "a mask in colours": (of_tar(mask_png=PHOTO), ["mask.png"]),
    "a depth of a tar": (of_tar(depth_png=GREY), ["depth.png"]),
    "the image of the other eye": (of_tar(right_png=PHOTO), ["right.png"]),
    "boxes in JSON": (
        of_tar(json=json.dumps({"bboxes": [[1, 2, 3, 4]], "points": 5}).encode()),
        ["json"],
    ),
    "TensorFlow's object detection": (of_detection, DETECTION),
    "a second image of Hugging Face": (of_huggingface, ["conditioning_image"]),
    "bytes that are images": (of_bytes, ["before"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_that_moves_pixels_leaves_nothing_behind(case, tmp_path, out):
    write, columns = CASES[case]
    source, recipe = (
        write(tmp_path),
        {**FLIP, "image_field": "jpg" if case == "the image of the other eye" else None},
    )
    with pytest.raises(
        UsageError, match="hflip moves the content of the images, but not "
    ) as caught:
        convert(source, out, recipe=recipe)
    assert "or leave them out, those of records with fields" in str(caught.value)
    assert not out.exists()
    # what moves nothing needs no such word
    in_place = {**recipe, "transform": [{"name": "grayscale"}]}
    assert convert(source, tmp_path / "grey", recipe=in_place).samples == 3
    told = {**recipe, "unmoved": columns}
    assert convert(source, tmp_path / "told", recipe=told).samples == 3
    for name in columns:
        assert stored(tmp_path / "told", name) == stored(tmp_path / "grey", name)
    (image, *_) = stored(tmp_path / "told", "image")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(image["bytes"]))), PIXELS[:, ::-1])


@pytest.mark.parametrize(
    "case", ["boxes of a tar", "a mask in colours", "TensorFlow's object detection"]
)
@pytest.mark.parametrize("option", [{"flip": True}, {"crop": 4}, {"resize": 5}], ids=str)
def test_a_loader_that_moves_pixels_leaves_nothing_behind(case, option, tmp_path, out):
    write, columns = CASES[case]
    convert(write(tmp_path), out, recipe={"kind": "image"})
    ds = shardctl.open(out)
    (name,) = option
    with pytest.raises(
        UsageError,
        match=f"{name} moves the content of the images, but not {columns[0]}.* unmoved=.* columns=",
    ) as caught:
        ds.loader(1, **option)
    assert f"unmoved={columns}" in str(caught.value)
    (batch,) = ds.loader(3, **option, unmoved=columns)
    assert columns[0] in batch
    (batch,) = ds.loader(3, **option, columns=["key", "image"])
    assert (
        batch["image"].shape
        == {"flip": (3, 6, 8, 3), "crop": (3, 4, 4, 3), "resize": (3, 5, 6, 3)}[name]
    )


YOLO, VOC = (
    b"0 0.25 0.3 0.2 0.3\n1 0.6 0.6 0.1 0.1\n",
    b"<annotation><object><bndbox></bndbox></object></annotation>",
)


def of_table(folder: Path, columns: Mapping[str, Any]) -> Path:
    parquet.write_table(
        pa.table({"image": pa.array([PHOTO] * 3, pa.binary()), **columns}), folder / "a.parquet"
    )
    return folder / "a.parquet"


BY_VALUE: dict[str, list[Any]] = {
    "txt": [YOLO.decode()] * 3,
    "label_txt": [None, None, YOLO.decode()],
    "target": [YOLO] * 3,
    "bbox": ["n/a", "n/a", "[[1, 2, 3, 4]]"],
    "EncodedPixels": ["1 3 10 5"] * 3,
    "notes": [[{"text": "dog", "shape": "none"}, {"text": YOLO.decode(), "shape": "none"}]] * 3,
    "keypoints": [{"left": "1 2", "right": "3 4"}] * 3,
    "landmarks": pa.nulls(3, pa.string()),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_the_first_values_of_records_are_looked_at(name, tmp_path, out):
    source = of_table(tmp_path, {name: BY_VALUE[name]})
    with pytest.raises(
        UsageError,
        match=f"hflip moves the content of the images, but not {name}.* unmoved.*{name}.*; or leave",
    ):
        convert(source, out, recipe=FLIP)
    assert not out.exists()
    told = {**FLIP, "unmoved": [name]}
    assert convert(source, tmp_path / "told", recipe=told).samples == 3
    assert convert(source, tmp_path / "kept", recipe={"kind": "image"}).samples == 3
    assert stored(tmp_path / "told", name) == stored(tmp_path / "kept", name)
    with pytest.raises(UsageError, match=f"flip moves the content of the images, but not {name}"):
        shardctl.open(tmp_path / "kept").loader(3, flip=True)


@pytest.mark.parametrize(("ending", "data"), [("txt", YOLO), ("ann", VOC)])
def test_annotations_in_a_tar_are_not_left_behind(ending, data, tmp_path):
    source = write_tar(tmp_path, {ending: data})
    with pytest.raises(
        UsageError,
        match=f"crop moves the content of the images, but not {ending}: .* unmoved.*{ending}",
    ):
        convert(
            source,
            tmp_path / "out",
            recipe={
                "kind": "image",
                "store": "raw",
                "transform": [{"name": "crop", "size": "4x4"}],
            },
        )


def test_ordinary_values_of_records_are_taken(tmp_path, out, cli):
    columns = {
        "landmark": ["Eiffel (1889)"] * 3,
        "box": ["large", "1,200 pieces", None],
        "bbox_label": ["person"] * 3,
        "txt": ["a photo of 2 dogs"] * 3,
        "target": ["cat"] * 3,
        "info": [{"landmark": "Eiffel Tower", "tags": ["a", "b"]}] * 3,
    }
    source = of_table(tmp_path, columns)
    result = convert(source, out, recipe=FLIP)
    assert (result.samples, result.notices) == (3, ())
    assert convert(source, out, recipe=FLIP).status == "up-to-date"
    (batch,) = shardctl.open(out).loader(3, flip=True)
    assert batch["landmark"][0] == "Eiffel (1889)"
    arguments = ["--kind", "image", "--step", "hflip p=1", "--html", tmp_path / "a.html"]
    assert cli("preview", source, *arguments).code == 0


NAMED: dict[str, list[Any]] = {
    "width": [8] * 3,
    "joints": [[1.0, 2.0]] * 3,
    "elevation": np.zeros((3, 6, 8)).tolist(),
    "info": [{"nose": {"x": 1, "name": "a"}}] * 3,
    "arrays": [npy([1.0, 2.0])] * 3,
    "mask_path": ["m/0.png", "m/1.png", "m/2.png"],
    "roi": ["", None, "1 2 3 4"],
    "polys_json": [["[[1, 2, 3, 4]]"]] * 3,
    "xmin": [1, 2, 3],
}


@pytest.mark.parametrize("name", NAMED)
def test_what_may_be_a_place_is_named(name, tmp_path, out, cli):
    source = of_table(tmp_path, {name: NAMED[name], "caption": ["a cat", "2 dogs", "3"]})
    result = convert(source, out, recipe=FLIP)
    said = f"hflip moves the content of the images, and 1 field beside them not: {name}. "
    assert [notice for notice in result.notices if notice.startswith(said)] == list(result.notices)
    assert len(result.notices) == 1
    told = convert(source, tmp_path / "told", recipe={**FLIP, "unmoved": [name]})
    assert told.notices == ()
    assert stored(tmp_path / "told", name) == stored(out, name)
    ds = shardctl.open(out)
    with pytest.warns(
        UserWarning,
        match=f"flip moves the content of the images, and 1 field beside them not: {name}. ",
    ):
        ds.loader(3, flip=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds.loader(3, flip=True, unmoved=[name])
        ds.loader(3, flip=True, columns=["image", "caption"])
        ds.loader(3)


Extra = dict[str, Any]


def written(folder: Path, extra: Extra, roles: dict[str, Any] | None = None) -> shardctl.Dataset:
    samples = (
        {"image": PHOTO, **{name: of[number] for name, of in extra.items()}} for number in range(3)
    )
    shardctl.write(folder / "out", samples, roles=roles)
    return shardctl.open(folder / "out")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mask", [PIXELS[:, :, 0]] * 3),
        ("boxes.npy", [npy([1.0, 2.0])] * 3),
        ("blob", [GREY] * 3),
        ("blob", [None, GREY, None]),
        ("views", [[PHOTO, PHOTO]] * 3),
        ("parts", [{"a": GREY, "b": GREY}] * 3),
        ("voc", [b"<annotation><object><bndbox></bndbox></object></annotation>"] * 3),
        ("ann", [b"0 0.5 0.5 0.2 0.2"] * 3),
        ("yolo", ["0 0.5 0.5 0.2 0.2"] * 3),
        ("bbox", ["1,2,3,4"] * 3),
        ("x1", [1, 2, 3]),
    ],
)
def test_a_loader_goes_by_the_first_values_too(name, values, tmp_path):
    beside: Extra = {key: [1, 2, 3] for key in ("y1", "x2", "y2")} if name == "x1" else {}
    ds = written(tmp_path, {name: values, **beside})
    columns = ["image", name]  # y1 tells what x1 is, and is not read
    with pytest.raises(
        UsageError, match=f"flip moves the content of the images, but not {name}.*unmoved=.'{name}'"
    ):
        ds.loader(3, flip=True, columns=columns)
    (batch,) = ds.loader(3, flip=True, columns=columns, unmoved=[name])
    assert name in batch
    (batch,) = ds.loader(3, columns=columns)
    assert name in batch


def test_unmoved_names_columns_that_a_loader_would_leave(tmp_path):
    boxes = {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [0]}
    extra: Extra = {"mask": [PIXELS[:, :, 0]] * 3, "objects": [boxes] * 3, "bbox": [[1.0]] * 3}
    ds = written(tmp_path, extra, {"mask": "mask", "objects": "objects"})
    with pytest.raises(UsageError, match="unmoved: no column 'bboxes'; did you mean bbox"):
        ds.loader(3, unmoved=["bbox", "bboxes"])
    for name in ("mask", "objects", "image"):
        with pytest.raises(UsageError, match=f"unmoved: {name} has the role"):
            ds.loader(3, flip=True, unmoved=["bbox", name])
        assert len(list(ds.loader(3, unmoved=[name]))) == 1
    (batch,) = ds.loader(3, flip=1.0, unmoved=["bbox"], columns=["image", "mask"])
    assert np.array_equal(batch["mask"][0], PIXELS[:, ::-1, 0])


def of_labels_file(folder: Path, columns: str, values: str) -> Path:
    source = folder / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.png").write_bytes(PHOTO)
    rows = "".join(f"{number}.png,{values}\n" for number in range(3))
    (source / "labels.csv").write_text(f"file_name,{columns}\n{rows}")
    return source


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("x_1,y_1,width,height", "1,2,3,4"),
        ("ClassId,EncodedPixels", "1,1 3 10 5"),
        ("xmin,ymin,xmax,ymax", "1,2,3,4"),
    ]
    + [("yolo", "0 0.5 0.5 0.2 0.2"), ("bbox", '"[1, 2, 3, 4]"')],
)
def test_a_labels_file_is_refused_for_its_names_and_values(columns, values, tmp_path, out):
    source = of_labels_file(tmp_path, columns, values)
    named = columns.replace("ClassId,", "")
    with pytest.raises(UsageError, match=r"unmoved.*; or leave them out, .* drop_columns"):
        convert(source, out, recipe=FLIP)
    told = {**FLIP, "unmoved": named.split(",")}
    assert convert(source, out, recipe=told).samples == 3
