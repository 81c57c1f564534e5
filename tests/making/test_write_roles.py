"""Objects and masks of samples that are made in Python."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_files import shards_in
from PIL import Image

import shardctl
from shardctl.errors import InputError, UsageError

PIXELS = np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)
OBJECTS = {
    "bbox": [[1.1, 2, 3, 4], [10, 6, 4, 4]],
    "category": [1, 0],
    "segmentation": [[], [[10, 6, 14, 6, 14, 10]]],
}
ROLE = {"role": "objects", "names": ["cat", "dog"]}


def png(values: Any) -> bytes:
    target = io.BytesIO()
    Image.fromarray(values).save(target, "PNG")
    return target.getvalue()


MASKED = np.arange(12 * 16, dtype=np.uint8).reshape(12, 16)


def write_objects(out: Any, *objects: Any, roles: Any = None, schema: Any = None) -> None:
    """Write samples of one image and their objects."""
    samples = ({"image": PIXELS, "objects": each} for each in objects)
    shardctl.write(out, samples, schema, roles=roles or {"objects": ROLE})


def schema_of(**members: pa.DataType) -> pa.Schema:
    """Return the schema of an image and of objects with these lists beside their boxes."""
    lists = {name: pa.list_(type_) for name, type_ in members.items()}
    boxes = {"bbox": pa.list_(pa.list_(pa.float32(), 4))}
    image = pa.fixed_shape_tensor(pa.uint8(), PIXELS.shape)
    return pa.schema({"image": image, "objects": pa.struct({**boxes, **lists})})


def test_objects_and_masks_are_moved_with_the_image(out, cli):
    one = {"bbox": np.zeros((1, 4)), "category": np.array([1]), "segmentation": [[]]}
    samples = [
        {"image": PIXELS, "things": OBJECTS, "mask": MASKED},
        {"image": PIXELS, "things": None, "mask": None},
        {"image": PIXELS, "things": one, "mask": png(MASKED)},
    ]
    shardctl.write(out, samples, roles={"things": ROLE, "mask": {"role": "mask", "ignore": 255}})
    ds = shardctl.open(out)
    assert ds.roles.objects["things"].names == ("cat", "dog")
    assert ds[0]["things"]["bbox"][0].tolist() == np.array([1.1, 2, 3, 4], np.float32).tolist()
    (batch,) = ds.loader(3, flip=1.0, crop=(12, 14), fill={"mask": 255})
    first = batch["things"][0]
    assert np.allclose(first["bbox"], [[10.9, 2, 3, 4], [1, 6, 4, 4]])
    assert first["category"].tolist() == [1, 0]
    assert first["segmentation"][1][0].tolist() == [5, 6, 1, 6, 1, 10]
    assert batch["things"][1] is None
    for number in (0, 2):
        assert np.array_equal(batch["mask"][number], MASKED[:, 1:15][:, ::-1])
    for seed in range(4):
        (batch,) = ds.loader(3, flip=0.5, seed=seed)
        for image, mask in zip(batch["image"][::2], batch["mask"][::2], strict=True):
            step = -1 if np.array_equal(image, PIXELS[:, ::-1]) else 1
            assert np.array_equal(mask, MASKED[:, ::step])
    assert cli("verify", out).code == 0


def test_a_role_may_be_its_name_and_the_schema_may_give_the_members(tmp_path, out):
    schema = schema_of(category=pa.int64(), area=pa.float32())
    objects = {"bbox": [[1, 2, 3, 4]], "category": [5], "area": [None]}
    write_objects(out, objects, schema=schema, roles={"objects": "objects"})
    ds = shardctl.open(out)
    assert ds.schema.field("objects").type == schema.field("objects").type
    assert ds.roles.objects["objects"].names is None
    found = ds[0]["objects"]
    assert found["bbox"].tolist() == objects["bbox"]
    assert np.isnan(found["area"]).all()
    wrong = schema.set(1, pa.field("objects", pa.struct({"bbox": pa.list_(pa.float32())})))
    with pytest.raises(UsageError, match="objects cannot be objects: it needs a bbox of four"):
        write_objects(tmp_path / "other", None, schema=wrong)


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        ({"image": "mask"}, "image cannot be 'mask'"),
        ({"objects": "boxes"}, "'boxes'; .* can be objects, mask or tokens"),
        ({"objects": {"role": "objects", "name": ["cat"]}}, "objects is no role as in"),
        ({"objects": {"role": "objects", "names": "cat"}}, "objects is no role as in"),
        ({"things": "objects"}, "the samples have no field things; they have image, objects"),
        ({"objects": 5}, "roles: objects must be a name or a dict; it is 5"),
        (["objects"], "roles is a dict such as"),
    ],
)
def test_roles_that_cannot_be_are_refused(out, roles, says):
    with pytest.raises(UsageError, match=says):
        write_objects(out, OBJECTS, roles=roles)
    assert not out.exists()


def test_objects_need_an_image_and_have_no_other_members(out):
    with pytest.raises(UsageError, match="objects and masks need an image"):
        shardctl.write(out, [{"objects": OBJECTS}], roles={"objects": "objects"})
    with pytest.raises(UsageError, match="objects has a member colour; objects have id"):
        write_objects(out, {**OBJECTS, "colour": [1, 2]})


LATE: dict[str, dict[str, Any]] = {
    "1 of bbox and 2 of category": {"bbox": [[1, 2, 3, 4]]},
    r"bbox\[1\] is .* finite": {"bbox": [[1, 2, 3, 4], [1, 2, 3, float("nan")]]},
    r"category\[1\] is 2 \(int\); .* whole numbers from 0 to 1": {"category": [0, 2]},
    r"segmentation\[1\] has a polygon of 3 numbers": {"segmentation": [[], [[1, 2, 3]]]},
    r"category\[1\] is 'cat' \(str\); it must be a whole number": {"category": [0, "cat"]},
    "a dict that objects cannot be": {"segmentation": [[], [[1, "x"]]]},
    "a dict with the key 'area'": {"area": [1, 2]},
    "whose bbox is 7": {"bbox": 7},
}


NO_INTEGER = r"; it must be a whole number \(int64\);"
NOT_FINITE = "a number that is not finite, or beyond float32"


FIRST: dict[str, dict[str, Any]] = {
    rf"category\[1\] is 1.9 \(float\){NO_INTEGER}": {"category": [0, 1.9]},
    rf"category\[0\] is -0.9 \(float\){NO_INTEGER}": {"category": [-0.9, 0]},
    rf"category\[0\] is 0.0 \(float\){NO_INTEGER}": {"category": np.array([0, 1.7])},
    rf"id\[0\] is 2.0 \(float\){NO_INTEGER}": {"id": [2.0, 1.7]},
    rf"id\[1\] is 'a' \(str\){NO_INTEGER}": {"id": [None, "a"]},
    r"iscrowd\[1\] is 2 \(int\); it must be of type bool;": {"iscrowd": [True, 2]},
    r"bbox\[1\] is .* none beyond float32;": {"bbox": [[1, 2, 3, 4], [1e39, 2, 3, 4]]},
    r"bbox\[1\] is .* negative width or height": {"bbox": [[1, 2, 3, 4], [30, 30, -20, 2]]},
    r"bbox\[0\] is .* none beyond float32;": {"bbox": [[1, 2, 3, 10**400], [1, 2, 3, 4]]},
    rf"area\[1\] is 1e\+300 \(float\), {NOT_FINITE}; an unknown": {"area": [1, 1e300]},
    rf"area\[0\] is -inf \(float\), {NOT_FINITE}": {"area": [-np.inf, None]},
    rf"tion\[1\] has a polygon with {NOT_FINITE};": {
        "segmentation": [[], [[1, 2, 3, 4, 5, np.inf]]]
    },
    rf"tion\[0\] has a polygon with {NOT_FINITE};": {"segmentation": [[[1e39, 2]], []]},
    rf"keypoints\[1\] have {NOT_FINITE};": {"keypoints": [[[1, 2, 2]], [[1, np.nan, 2]]]},
}


@pytest.mark.parametrize("says", [*LATE, *FIRST])
def test_objects_that_are_wrong_are_errors(out, monkeypatch, says):
    """Nor would their numbers come out as they went in. In the first sample, or after those that
    are looked at for their types."""
    monkeypatch.setattr("shardctl.making.write.FIRST_SAMPLES", 2)
    before = [OBJECTS] * 3 * (says in LATE)
    changed = {**OBJECTS, **(LATE if before else FIRST)[says]}
    number = len(before)
    with pytest.raises(
        InputError, match=rf"^sample {number} \(0+{number}\): .* objects is .*{says}"
    ):
        write_objects(out, *before, changed)
    assert not out.exists()


def test_objects_that_were_read_can_be_written(tmp_path):
    more = {"id": [7, 8], "area": [None, 16], "iscrowd": [False, True]}
    objects = {**OBJECTS, **more, "keypoints": [[[1, 2, 2]], [[0, 0, 0]]]}
    written = []
    for number in range(2):
        out = tmp_path / f"{number}"
        write_objects(out, objects)
        objects = shardctl.open(out)[0]["objects"]
        written.append(next(iter(shards_in(out))).read_bytes())
    assert written[0] == written[1]


def test_members_of_a_schema_with_whole_numbers_are_not_rounded(tmp_path, out):
    polygons = pa.list_(pa.list_(pa.int32()))
    schema = schema_of(category=pa.int64(), segmentation=polygons)
    objects = {"bbox": [[1.5, 2, 3, 4]], "category": [1], "segmentation": [[[1, 2, 3, 4, 5, 6]]]}
    write_objects(out, objects, schema=schema)
    assert shardctl.open(out)[0]["objects"]["category"].tolist() == [1]
    for name, value in (("category", [1.5]), ("segmentation", [[[1, 2.5, 3, 4, 5, 6]]])):
        with pytest.raises(InputError, match=rf"whose {name}\[0\] is .*; it must be"):
            write_objects(tmp_path / "other", {**objects, name: value}, schema=schema)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (np.zeros((12, 15), np.uint8), "its mask has 15x12 pixels, and its image 16x12"),
        (np.zeros((12, 16), np.float32), "not a uint8"),
        (np.zeros((12, 16), np.uint16), "its mask has 16 bits; give roles="),
        (b"x", "not an image"),
    ],
)
def test_masks_that_are_wrong_are_errors(out, mask, says):
    with pytest.raises(InputError, match=rf"sample 0 \(000000000\).*{says}"):
        shardctl.write(out, [{"image": PIXELS, "mask": mask}], roles={"mask": "mask"})


def test_a_mask_of_16_bits_keeps_its_numbers(out):
    mask = MASKED.astype(np.uint16) * 300
    role = {"role": "mask", "bits": 16}
    shardctl.write(out, [{"image": png(PIXELS), "mask": mask}], roles={"mask": role})
    (batch,) = shardctl.open(out).loader(1)
    assert np.array_equal(batch["mask"][0], mask)
