"""What lies beside an image and is not moved with it: a known form of places is refused, and all
else that may be one named."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
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
from tars import write_tar
from tfrecords import write_examples

import shardctl
from shardctl.errors import UsageError
from shardctl.format.layout import ENCODED_IMAGE


def npy(values: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, np.asarray(values))
    return target.getvalue()


def of_tar(**members: bytes) -> Callable[[Path], Path]:
    named = {"jpg": PHOTO, **{name.replace("_", "."): data for name, data in members.items()}}
    return lambda folder: write_tar(folder / "a.tar", {f"s{number}": named for number in range(3)})


def of_detection(folder: Path) -> Path:
    """Write records as the Object Detection API of TensorFlow does."""
    corners: dict[str, list[Any] | None] = {
        f"image/object/bbox/{name}": [number / 8, number / 10]
        for number, name in enumerate(("xmin", "xmax", "ymin", "ymax"))
    }
    record = {"image/encoded": [PHOTO], "image/object/class/label": [1, 2], **corners}
    return write_examples(folder / "a.tfrecord", [record] * 3)


ENCODED = pa.array([{"bytes": PHOTO, "path": "a.png"}] * 3, ENCODED_IMAGE)
YOLO = b"0 0.25 0.3 0.2 0.3\n1 0.6 0.6 0.1 0.1\n"
VOC = b"<annotation><object><bndbox></bndbox></object></annotation>"


def of_table(**columns: Any) -> Callable[[Path], Path]:
    """Write a table of three records with an image and these columns."""

    def write(folder: Path) -> Path:
        image = columns.get("image", pa.array([PHOTO] * 3, pa.binary()))
        parquet.write_table(pa.table({**columns, "image": image}), folder / "a.parquet")
        return folder / "a.parquet"

    return write


DETECTION = [f"image/object/bbox/{name}" for name in ("xmax", "xmin", "ymax", "ymin")]

CASES = {
    "boxes of a tar": (of_tar(boxes_npy=npy([[1.0, 2, 3, 4]])), ["boxes.npy"]),
    "a mask in colours": (of_tar(mask_png=PHOTO), ["mask.png"]),
    "the image of the other eye": (of_tar(right_png=PHOTO), ["right.png"]),
    "boxes in JSON": (of_tar(json=b'{"bboxes": [[1, 2, 3, 4]], "points": 5}'), ["json"]),
    "YOLO labels": (of_tar(txt=YOLO), ["txt"]),
    "a VOC file": (of_tar(ann=VOC), ["ann"]),
    "TensorFlow's object detection": (of_detection, DETECTION),
    "a second image of Hugging Face": (
        of_table(image=ENCODED, conditioning_image=ENCODED),
        ["conditioning_image"],
    ),
    "bytes that are images": (of_table(before=[GREY] * 3, blob=[b"blob"] * 3), ["before"]),
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
@pytest.mark.parametrize(
    ("option", "shape"),
    [({"flip": True}, (6, 8)), ({"crop": 4}, (4, 4)), ({"resize": 5}, (5, 6))],
    ids=str,
)
def test_a_loader_that_moves_pixels_leaves_nothing_behind(case, option, shape, tmp_path, out):
    write, columns = CASES[case]
    convert(write(tmp_path), out, recipe={"kind": "image"})
    ds, (name,) = shardctl.open(out), option
    said = f"{name} moves the content of the images, but not {columns[0]}.* unmoved=.* columns="
    with pytest.raises(UsageError, match=said) as caught:
        ds.loader(1, **option)
    assert f"unmoved={columns}" in str(caught.value)
    (batch,) = ds.loader(3, **option, unmoved=columns)
    assert columns[0] in batch
    (batch,) = ds.loader(3, **option, columns=["key", "image"])
    assert batch["image"].shape == (3, *shape, 3)


BY_VALUE: dict[str, list[Any]] = {
    "label_txt": [None, None, YOLO.decode()],
    "target": [YOLO] * 3,
    "EncodedPixels": ["1 3 10 5"] * 3,
    "notes": [[{"text": "dog"}, {"text": YOLO.decode()}]] * 3,
    "keypoints": [{"left": "1 2", "right": "3 4"}] * 3,
    "landmarks": pa.nulls(3, pa.string()),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_the_first_values_of_records_are_looked_at(name, tmp_path, out):
    source = of_table(**{name: BY_VALUE[name]})(tmp_path)
    with pytest.raises(UsageError, match=f"but not {name}.* unmoved.*{name}.*; or leave"):
        convert(source, out, recipe=FLIP)
    assert not out.exists()
    convert(source, tmp_path / "told", recipe={**FLIP, "unmoved": [name]})
    convert(source, out, recipe={"kind": "image"})
    assert stored(tmp_path / "told", name) == stored(out, name)
    with pytest.raises(UsageError, match=f"flip moves the content of the images, but not {name}"):
        shardctl.open(out).loader(3, flip=True)


def test_ordinary_values_of_records_are_taken(tmp_path, out, cli):
    columns = {
        "landmark": ["Eiffel (1889)"] * 3,
        "box": ["large", "1,200 pieces", None],
        "bbox_label": ["person"] * 3,
        "txt": ["a photo of 2 dogs"] * 3,
        "target": ["cat"] * 3,
        "info": [{"landmark": "Eiffel Tower", "tags": ["a", "b"]}] * 3,
    }
    source = of_table(**columns)(tmp_path)
    assert convert(source, out, recipe=FLIP).notices == ()
    assert convert(source, out, recipe=FLIP).status == "up-to-date"
    (batch,) = shardctl.open(out).loader(3, flip=True)
    assert batch["landmark"][0] == "Eiffel (1889)"
    arguments = ["--kind", "image", "--step", "hflip p=1", "--html", tmp_path / "a.html"]
    assert cli("preview", source, *arguments).code == 0


NAMED: dict[str, list[Any]] = {
    "width": [8] * 3,
    "elevation": np.zeros((3, 6, 8)).tolist(),
    "info": [{"nose": {"x": 1, "name": "a"}}] * 3,
    "arrays": [npy([1.0, 2.0])] * 3,
    "mask_path": ["m/0.png", "m/1.png", "m/2.png"],
    "roi": ["", None, "1 2 3 4"],
    "polys_json": [["[[1, 2, 3, 4]]"]] * 3,
}


@pytest.mark.parametrize("name", NAMED)
def test_what_may_be_a_place_is_named(name, tmp_path, out):
    source = of_table(**{name: NAMED[name], "caption": ["a cat", "2 dogs", "3"]})(tmp_path)
    (notice,) = convert(source, out, recipe=FLIP).notices
    said = f"flip moves the content of the images, but not {name}: places "
    assert notice.startswith(f"h{said}")
    told = convert(source, tmp_path / "told", recipe={**FLIP, "unmoved": [name]})
    assert told.notices == ()
    assert stored(tmp_path / "told", name) == stored(out, name)
    ds = shardctl.open(out)
    with pytest.warns(UserWarning, match=said):
        ds.loader(3, flip=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds.loader(3, flip=True, unmoved=[name])
        ds.loader(3, flip=True, columns=["image", "caption"])
        ds.loader(3)


def written(folder: Path, extra: dict[str, Any], roles: Any = None) -> shardctl.Dataset:
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
        ("blob", [None, GREY, None]),
        ("views", [[PHOTO, PHOTO]] * 3),
        ("parts", [{"a": GREY, "b": GREY}] * 3),
        ("voc", [VOC] * 3),
        ("yolo", [YOLO.decode()] * 3),
        ("bbox", ["1,2,3,4"] * 3),
        ("x1", [1, 2, 3]),
    ],
)
def test_a_loader_goes_by_the_first_values_too(name, values, tmp_path):
    # y1 tells what x1 is, and is not read
    beside = {key: [1, 2, 3] for key in ("y1", "x2", "y2")} if name == "x1" else {}
    ds, columns = written(tmp_path, {name: values, **beside}), ["image", name]
    with pytest.raises(UsageError, match=f"but not {name}.*unmoved=.'{name}'"):
        ds.loader(3, flip=True, columns=columns)
    for options in ({"flip": True, "unmoved": [name]}, {}):
        (batch,) = ds.loader(3, columns=columns, **options)
        assert name in batch


def test_unmoved_names_columns_that_a_loader_would_leave(tmp_path):
    boxes = {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [0]}
    extra = {"mask": [PIXELS[:, :, 0]] * 3, "objects": [boxes] * 3, "bbox": [[1.0]] * 3}
    ds = written(tmp_path, extra, {"mask": "mask", "objects": "objects"})
    with pytest.raises(UsageError, match="unmoved: no column 'bboxes'; did you mean bbox"):
        ds.loader(3, unmoved=["bbox", "bboxes"])
    for name in ("mask", "objects", "image"):
        with pytest.raises(UsageError, match=f"unmoved: {name} has the role"):
            ds.loader(3, flip=True, unmoved=["bbox", name])
        assert len(list(ds.loader(3, unmoved=[name]))) == 1
    (batch,) = ds.loader(3, flip=1.0, unmoved=["bbox"], columns=["image", "mask"])
    assert np.array_equal(batch["mask"][0], PIXELS[:, ::-1, 0])


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("x_1,y_1,width,height", "1,2,3,4"),
        ("EncodedPixels,ClassId", "1 3 10 5,1"),
        ("bbox", '"[1, 2, 3, 4]"'),
    ],
)
def test_a_labels_file_is_refused_for_its_names_and_values(columns, values, tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.png").write_bytes(PHOTO)
    (source / "labels.csv").write_text(f"file_name,{columns}\n0.png,{values}\n")
    with pytest.raises(UsageError, match=r"unmoved.*; or leave them out, .* drop_columns"):
        convert(source, out, recipe=FLIP)
    told = {**FLIP, "unmoved": columns.removesuffix(",ClassId").split(",")}
    assert convert(source, out, recipe=told).samples == 1
