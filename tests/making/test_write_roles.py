"""Objects and masks of samples that are made in Python."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
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


def test_objects_and_masks_are_moved_with_the_image(out, cli):
    mask = np.arange(12 * 16, dtype=np.uint8).reshape(12, 16)
    samples = [
        {"image": PIXELS, "things": OBJECTS, "mask": mask},
        {"image": PIXELS, "things": None, "mask": None},
        {
            "image": PIXELS,
            "things": {"bbox": np.zeros((1, 4)), "category": np.array([1]), "segmentation": [[]]},
            "mask": png(mask),
        },
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
    assert np.array_equal(batch["mask"][0], mask[:, 1:15][:, ::-1])
    assert np.array_equal(batch["mask"][2], mask[:, 1:15][:, ::-1])
    assert cli("verify", out).code == 0


def test_a_role_may_be_its_name_and_the_schema_may_give_the_members(tmp_path, out):
    type_ = pa.struct(
        [
            ("bbox", pa.list_(pa.list_(pa.float32(), 4))),
            ("category", pa.list_(pa.int64())),
            ("area", pa.list_(pa.float32())),
        ]
    )
    schema = pa.schema(
        [("image", pa.fixed_shape_tensor(pa.uint8(), (12, 16, 3))), ("objects", type_)]
    )
    objects = {"bbox": [[1, 2, 3, 4]], "category": [5], "area": [None]}
    shardctl.write(
        out,
        [{"image": PIXELS, "objects": objects}],
        schema,
        roles={"objects": "objects"},
    )
    ds = shardctl.open(out)
    assert ds.schema.field("objects").type == type_
    assert ds.roles.objects["objects"].names is None
    found = ds[0]["objects"]
    assert found["bbox"].tolist() == objects["bbox"]
    assert np.isnan(found["area"]).all()
    wrong = schema.set(1, pa.field("objects", pa.struct([("bbox", pa.list_(pa.float32()))])))
    with pytest.raises(
        UsageError, match="objects cannot be objects: it needs a bbox of four numbers"
    ):
        shardctl.write(
            tmp_path / "other",
            [{"image": PIXELS, "objects": None}],
            wrong,
            roles={"objects": "objects"},
        )


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        ({"image": "mask"}, "image cannot be 'mask'"),
        (
            {"objects": "boxes"},
            "objects cannot be 'boxes'; fields but key, image, label, variant can be "
            "objects, mask or tokens",
        ),
        (
            {"objects": {"role": "objects", "name": ["cat"]}},
            "objects is no role as in `shardctl help format`",
        ),
        (
            {"objects": {"role": "objects", "names": "cat"}},
            "objects is no role as in `shardctl help format`",
        ),
        ({"things": "objects"}, "the samples have no field things; they have image, objects"),
        ({"objects": 5}, "roles: objects must be a name or a dict; it is 5"),
        (["objects"], "roles is a dict such as"),
    ],
)
def test_roles_that_cannot_be_are_refused(out, roles, says):
    with pytest.raises(UsageError, match=says):
        shardctl.write(out, [{"image": PIXELS, "objects": OBJECTS}], roles=roles)
    assert not out.exists()


def test_objects_need_an_image(out):
    with pytest.raises(
        UsageError, match="objects and masks need an image, and the samples have none"
    ):
        shardctl.write(out, [{"objects": OBJECTS}], roles={"objects": "objects"})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"bbox": [[1, 2, 3, 4]]}, "1 of bbox and 2 of category"),
        ({"bbox": [[1, 2, 3, 4], [1, 2, 3, float("nan")]]}, r"bbox\[1\] is .* finite"),
        (
            {"category": [0, 2]},
            r"category\[1\] is 2 \(int\); categories are whole numbers from 0 to 1",
        ),
        ({"segmentation": [[], [[1, 2, 3]]]}, r"segmentation\[1\] has a polygon of 3 numbers"),
        ({"category": [0, "cat"]}, r"category\[1\] is 'cat' \(str\); it must be a whole number"),
        ({"segmentation": [[], [[1, "x"]]]}, "a dict that objects cannot be"),
        ({"area": [1, 2]}, "a dict with the key 'area'"),
        ({"bbox": 7}, "whose bbox is 7"),
    ],
)
def test_objects_that_are_wrong_are_errors(out, monkeypatch, changed, says):
    monkeypatch.setattr("shardctl.making.write.FIRST_SAMPLES", 2)
    samples = [{"image": PIXELS, "objects": OBJECTS}] * 3 + [
        {"image": PIXELS, "objects": {**OBJECTS, **changed}}
    ]
    with pytest.raises(InputError, match=rf"sample 3 \(000000003\): the field objects is .*{says}"):
        shardctl.write(out, iter(samples), roles={"objects": ROLE})
    assert not out.exists()


NOT_FINITE = "a number that is not finite, or beyond float32"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"category": [0, 1.9]},
            r"category\[1\] is 1.9 \(float\); it must be a whole number \(int64\);",
        ),
        (
            {"category": [-0.9, 0]},
            r"category\[0\] is -0.9 \(float\); it must be a whole number \(int64\);",
        ),
        (
            {"category": np.array([0, 1.7])},
            r"category\[0\] is 0.0 \(float\); it must be a whole number \(int64\);",
        ),
        ({"id": [2.0, 1.7]}, r"id\[0\] is 2.0 \(float\); it must be a whole number \(int64\);"),
        ({"id": [None, "a"]}, r"id\[1\] is 'a' \(str\); it must be a whole number \(int64\);"),
        ({"iscrowd": [True, 2]}, r"iscrowd\[1\] is 2 \(int\); it must be of type bool;"),
        (
            {"bbox": [[1, 2, 3, 4], [1e39, 2, 3, 4]]},
            r"bbox\[1\] is .* none beyond float32;",
        ),
        (
            {"bbox": [[1, 2, 3, 4], [30, 30, -20, 2]]},
            r"bbox\[1\] is \[30, 30, -20, 2\], with a negative width or height",
        ),
        ({"bbox": [[1, 2, 3, 10**400], [1, 2, 3, 4]]}, r"bbox\[0\] is .* none beyond float32;"),
        (
            {"area": [1, 1e300]},
            rf"area\[1\] is 1e\+300 \(float\), {NOT_FINITE}; an unknown one is None;",
        ),
        ({"area": [-np.inf, None]}, rf"area\[0\] is -inf \(float\), {NOT_FINITE}"),
        (
            {"segmentation": [[], [[1, 2, 3, 4, 5, np.inf]]]},
            rf"segmentation\[1\] has a polygon with {NOT_FINITE};",
        ),
        (
            {"segmentation": [[[1e39, 2]], []]},
            rf"segmentation\[0\] has a polygon with {NOT_FINITE};",
        ),
        ({"keypoints": [[[1, 2, 2]], [[1, np.nan, 2]]]}, rf"keypoints\[1\] have {NOT_FINITE};"),
    ],
)
def test_numbers_that_would_not_come_out_as_they_went_in_are_errors(out, changed, says):
    with pytest.raises(
        InputError, match=rf"sample 0 \(000000000\): the field objects is a dict whose {says}"
    ):
        shardctl.write(
            out,
            [{"image": PIXELS, "objects": {**OBJECTS, **changed}}],
            roles={"objects": ROLE},
        )
    assert not out.exists()


def test_objects_that_were_read_can_be_written(tmp_path):
    objects = {
        **OBJECTS,
        "id": [7, 8],
        "area": [None, 16],
        "iscrowd": [False, True],
        "keypoints": [[[1, 2, 2]], [[0, 0, 0]]],
    }
    for source, out in ((None, "first"), ("first", "second")):
        given = shardctl.open(tmp_path / source)[0]["objects"] if source else objects
        shardctl.write(
            tmp_path / out, [{"image": PIXELS, "objects": given}], roles={"objects": ROLE}
        )
    (first, second) = (
        next((tmp_path / name).glob("*-0*.arrow")).read_bytes() for name in ("first", "second")
    )
    assert first == second


def test_members_of_a_schema_with_whole_numbers_are_not_rounded(tmp_path, out):
    type_ = pa.struct(
        [
            ("bbox", pa.list_(pa.list_(pa.float32(), 4))),
            ("category", pa.large_list(pa.int64())),
            ("segmentation", pa.list_(pa.list_(pa.list_(pa.int32())))),
        ]
    )
    schema = pa.schema(
        [("image", pa.fixed_shape_tensor(pa.uint8(), (12, 16, 3))), ("objects", type_)]
    )
    objects = {"bbox": [[1.5, 2, 3, 4]], "category": [1], "segmentation": [[[1, 2, 3, 4, 5, 6]]]}
    shardctl.write(out, [{"image": PIXELS, "objects": objects}], schema, roles={"objects": ROLE})
    assert shardctl.open(out)[0]["objects"]["category"].tolist() == [1]
    for name, value in (("category", [1.5]), ("segmentation", [[[1, 2.5, 3, 4, 5, 6]]])):
        sample = {"image": PIXELS, "objects": {**objects, name: value}}
        with pytest.raises(InputError, match=rf"whose {name}\[0\] is .*; it must be"):
            shardctl.write(tmp_path / "other", [sample], schema, roles={"objects": ROLE})


def test_a_member_that_objects_do_not_have_is_named(out):
    with pytest.raises(
        UsageError, match="objects has a member colour; objects have id, category, bbox"
    ):
        shardctl.write(
            out,
            [{"image": PIXELS, "objects": {**OBJECTS, "colour": [1, 2]}}],
            roles={"objects": "objects"},
        )


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
    mask = np.arange(12 * 16, dtype=np.uint16).reshape(12, 16) * 300
    shardctl.write(
        out,
        [{"image": png(PIXELS), "mask": mask}],
        roles={"mask": {"role": "mask", "bits": 16}},
    )
    (batch,) = shardctl.open(out).loader(1)
    assert np.array_equal(batch["mask"][0], mask)
