from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import box, coco_file, converted, photo, photos, rejects, samples

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.images.codecs import rle
from shardctl.sources.annotations import json_parts
from shardctl.sources.annotations.coco import mirrored_points


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return photos(tmp_path / "in", "a.png", "b.png", "deep/c.png")


def objects_of(
    tmp_path: Path, source: Path, annotations: list[dict[str, Any]], **options: Any
) -> dict[str, Any]:
    file = coco_file(tmp_path / "coco.json", [(1, "a.png"), (2, "b.png")], annotations)
    converted(source, tmp_path / "out", f"coco:{file}", **options)
    return {key: sample["objects"] for key, sample in samples(tmp_path / "out").items()}


def test_each_image_has_its_objects_by_the_ids_of_the_file(tmp_path, out, source):
    annotations = [
        box(2, (0, 0, 8, 6), 7, id=11, area=48, iscrowd=0),
        box(1, (1.25, 2, 3, 2), 3, id=10, area=6.5, iscrowd=1),
    ]
    found = objects_of(
        tmp_path, source, [*annotations, box(2, (1, 1, 1, 1), 3, id=12, area=1, iscrowd=0)]
    )
    assert found["a.png"] == {
        "id": [10],
        "category": [0],
        "bbox": [[1.25, 2, 3, 2]],
        "area": [6.5],
        "iscrowd": [True],
    }
    assert found["b.png"]["id"] == [11, 12]
    assert found["b.png"]["category"] == [1, 0]
    assert found["deep/c.png"] is None, "the file does not list it: not annotated"
    by_key = samples(out)
    assert [by_key[key]["image_id"] for key in ("a.png", "b.png", "deep/c.png")] == [1, 2, None]
    role = shardctl.open(out).manifest.fields["objects"]
    assert role == {
        "role": "objects",
        "names": ["cat", "dog"],
        "ids": [3, 7],
        "supercategories": ["", "animal"],
    }
    assert "shardctl.annotated" not in by_key["a.png"]


def test_polygons_and_both_forms_of_rle_are_kept(tmp_path, source):
    mask = np.zeros((6, 8), bool)
    mask[2:4, 1:4] = True
    runs = rle.decompress(rle.encode(mask)).tolist()
    shapes = [
        [[1, 2, 4, 2, 4, 4], [0, 0, 1, 0, 1, 1, 0, 1]],
        {"size": [6, 8], "counts": runs},
        {"size": [6, 8], "counts": rle.encode(mask).decode()},
        [],
    ]
    found = objects_of(tmp_path, source, [box(1, segmentation=shape) for shape in shapes])["a.png"]
    assert found["segmentation"] == [shapes[0], [], [], []]
    packed = {"size": [6, 8], "counts": rle.encode(mask)}
    assert found["rle"] == [None, packed, packed, None]


def test_keypoints_of_pixels_become_corner_coordinates(tmp_path, out, source):
    person = {
        "id": 3,
        "name": "person",
        "keypoints": ["nose", "left_eye", "right_eye"],
        "skeleton": [[1, 2], [1, 3]],
    }
    annotations = [box(1, keypoints=[1, 2, 2, 3, 4, 1, 5, 5, 0], num_keypoints=2), box(1)]
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], annotations, [person])
    converted(source, out, f"coco:{file}")
    found = samples(out)["a.png"]["objects"]
    assert found["keypoints"] == [[[1.5, 2.5, 2], [3.5, 4.5, 1], [0, 0, 0]], []]
    role = shardctl.open(out).manifest.fields["objects"]
    assert role["keypoints"] == ["nose", "left_eye", "right_eye"]
    assert role["skeleton"] == [[0, 1], [0, 2]]
    assert role["flip"] == [0, 2, 1]


@pytest.mark.parametrize(
    ("names", "flip"),
    [
        (("LeftEye", "RightEye"), (1, 0)),
        (("nose",), None),
        (("left_eye", "nose"), None),
        (
            ("nose", "LEFT_EAR", "RIGHT_EAR", "left_of_right_eye", "right_of_left_eye"),
            (0, 2, 1, 4, 3),
        ),
        (("left_eye", "right_eye", "l_ear", "r_ear"), None),
        (("left_eye", "right_eye", "LEar", "REar"), None),
        (("left_eye", "right_eye", "earR", "earL"), None),
        (("left_eye", "right_eye", "rt ear", "LT ear"), None),
        (("left_eye", "right_eye", "ROOT", "lip", "tail_root"), (1, 0, 2, 3, 4)),
        (("left", "left", "right"), None),
        (None, None),
    ],
)
def test_keypoints_are_swapped_by_left_and_right_only_where_all_have_a_partner(names, flip):
    assert mirrored_points(names) == flip


def test_instances_keypoints_and_captions_of_several_files_are_joined(tmp_path, out, source):
    images = [(1, "a.png"), (2, "b.png")]
    instances = [
        box(1, id=5, area=6, segmentation=[[1, 2, 4, 2, 4, 4]]),
        box(1, category=7, id=6),
        box(2, id=7),
    ]
    points = [box(1, id=5, area=7, keypoints=[1, 1, 2]), box(2, id=8, keypoints=[2, 2, 1])]
    said = [{"image_id": 2, "id": 1, "caption": "two"}, {"image_id": 1, "id": 2, "caption": "one"}]
    files = [
        coco_file(tmp_path / "instances.json", images, instances),
        coco_file(
            tmp_path / "keypoints.json",
            images,
            points,
            [{"id": 3, "name": "cat", "keypoints": ["nose"]}],
        ),
        coco_file(
            tmp_path / "captions.json",
            images,
            [*said, {"image_id": 1, "id": 3, "caption": "more"}],
            [],
        ),
    ]
    converted(source, out, *(f"coco:{file}" for file in files))
    found = samples(out)
    assert found["a.png"]["captions"] == ["one", "more"]
    assert found["b.png"]["captions"] == ["two"]
    assert found["deep/c.png"]["captions"] is None
    first = found["a.png"]["objects"]
    assert first["id"] == [5, 6]
    assert first["bbox"] == [[1, 2, 3, 2]] * 2, "the first file that knows a member counts"
    assert first["area"] == [6, None]
    assert first["segmentation"] == [[[1, 2, 4, 2, 4, 4]], []]
    assert first["keypoints"] == [[[1.5, 1.5, 2]], []]
    assert found["b.png"]["objects"]["id"] == [7, 8]


@pytest.mark.parametrize(
    "name",
    [
        "deep/c.png",
        "c.png",
        "deep/1/c.png",
        "/elsewhere/deep/c.png",
        "./deep//c.png",
        "deep\\c.png",
    ],
)
def test_a_name_is_a_path_below_the_source_or_the_only_one_of_its_last_part(
    tmp_path, out, source, name
):
    file = coco_file(tmp_path / "coco.json", [(1, name)], [box(1)])
    converted(source, out, f"coco:{file}")
    assert samples(out)["deep/c.png"]["objects"]["category"] == [0]


def test_names_may_be_relative_to_the_folder_of_their_file(tmp_path, out):
    root = photos(tmp_path / "in", "train/x.png", "valid/x.png")
    for split, category in (("train", 3), ("valid", 7)):
        coco_file(
            root / split / "_annotations.coco.json", [(0, "x.png")], [box(0, category=category)]
        )
    files = [f"coco:{root}/{split}/_annotations.coco.json" for split in ("train", "valid")]
    converted(root, out, *files)
    found = samples(out)
    assert [found[f"{split}/x.png"]["objects"]["category"] for split in ("train", "valid")] == [
        [0],
        [1],
    ]


@pytest.mark.parametrize(
    ("images", "says"),
    [
        ([(1, "a.png"), (1, "b.png")], "the images a.png and b.png have the same id 1"),
        ([(1, "a.png"), (2, "x/a.png")], None),
        ([(1, "a.png"), (2, "a.png")], "a.png and a.png are both of the input a.png; keep one"),
        (
            [(1, "y/a.png"), (2, "x/a.png")],
            "y/a.png and x/a.png are both of the input a.png; keep one",
        ),
    ],
)
def test_two_images_of_one_id_or_name_are_both_named(tmp_path, source, images, says):
    file = coco_file(tmp_path / "coco.json", images, [box(1)])
    if says is None:
        assert any(
            "1 of 2 images are not among the inputs" in notice
            for notice in notices(source, tmp_path, file)
        )
        return
    with pytest.raises(InputError) as caught:
        converted(source, tmp_path / "out", f"coco:{file}")
    assert says in str(caught.value)


def notices(source: Path, tmp_path: Path, *files: Path, **options: Any) -> tuple[str, ...]:
    return converted(
        source, tmp_path / "out", *(f"coco:{file}" for file in files), **options
    ).notices


def test_a_name_that_may_be_two_inputs_is_refused_with_both(tmp_path):
    root = photos(tmp_path / "in", "p/x.png", "q/x.png")
    file = coco_file(tmp_path / "coco.json", [(1, "x.png")], [box(1)])
    with pytest.raises(InputError, match=r"name x\.png, which may be p/x\.png and q/x\.png"):
        converted(root, tmp_path / "out", f"coco:{file}")


def test_what_has_no_image_and_what_has_no_annotations_is_counted_and_said(tmp_path, source):
    file = coco_file(
        tmp_path / "coco.json", [(1, "a.png"), (2, "gone.png")], [box(1), box(2), box(99), box(99)]
    )
    said = notices(source, tmp_path, file)
    assert any(
        "1 of 2 images are not among the inputs, or are of another split (gone.png)" in notice
        for notice in said
    )
    assert any(
        "2 annotations of images that it does not list (image_id 99); skipped" in notice
        for notice in said
    )
    assert any(
        "2 of 3 inputs are not in the COCO files (b.png, deep/c.png): not annotated" in notice
        for notice in said
    )


def test_objects_without_any_list_of_categories_are_refused_as_a_whole(tmp_path, out, source):
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], [box(1)], [])
    with pytest.raises(
        InputError,
        match=r"coco\.json: it has objects and no categories; add the list",
    ):
        notices(source, tmp_path, file)
    other = coco_file(tmp_path / "other.json", [(2, "b.png")], [box(2)])
    converted(source, out, f"coco:{file}", f"coco:{other}")
    assert samples(out)["a.png"]["objects"]["category"] == [0], "those of another file count"


def test_an_unknown_category_is_said_with_the_id_of_its_annotation(tmp_path, out, source):
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], [box(1, id=5, category=99)])
    converted(source, out, f"coco:{file}")
    assert "the annotation 5 has the category 99, which is not among" in rejects(out)["a.png"][1]


def test_repeated_ids_and_crowds_are_kept_and_said(tmp_path, source):
    file = coco_file(
        tmp_path / "coco.json", [(1, "a.png")], [box(1, id=4, iscrowd=1), box(1, id=4, iscrowd=1)]
    )
    said = notices(source, tmp_path, file)
    assert any("1 annotation has the id of another (for instance 4)" in notice for notice in said)
    assert any("all annotations have iscrowd 1" in notice for notice in said)
    assert samples(tmp_path / "out")["a.png"]["objects"]["iscrowd"] == [True, True]


@pytest.mark.thorough(after=8)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            box(1, [1, 2, float("nan"), 2], id=17),
            "annotation 1 of annotations (id 17) has something else than finite numbers as its "
            "bbox",
        ),
        (
            box(1, [1, 2, 1e300, 2]),
            "annotation 1 of annotations has something else than finite numbers as its bbox",
        ),
        (box(1, [1, 2, "3", 2]), "has something else than finite numbers"),
        (box(1, [1, 2, 3]), "has no bbox of four numbers"),
        (box(1, None), "has no bbox of four numbers"),
        (
            box(1, segmentation=[[1, 2, 3]]),
            "has a polygon of 3 numbers; it takes an even number from 6 on",
        ),
        (box(1, segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "has a polygon of 7 numbers"),
        (box(1, segmentation=[[1, 2, 3, 4]]), "has a polygon of 4 numbers"),
        (
            box(1, segmentation=[[1, 2, 3, 4, 5, float("inf")]]),
            "has something else than finite numbers as its segmentation",
        ),
        (box(1, segmentation=[[1, 2, 3, 4, 5, [6]]]), "has something else than finite numbers"),
        (
            box(1, segmentation={"size": [6, 8], "counts": [3]}),
            "has an RLE of 3 pixels, and its size 8x6 has 48",
        ),
        (box(1, segmentation={"counts": [48]}), "has an RLE without a size"),
        (box(1, segmentation=7), "has a segmentation that is neither polygons nor RLE"),
        (box(1, keypoints=[1, 2]), "has keypoints that are no triples"),
        (box(1, keypoints=[1, 2, None]), "has something else than finite numbers as its keypoints"),
        (box(1, id=2**70, area=10**400), "has something else than finite numbers as its id"),
        (
            box(1, id=6, area=10**400),
            "annotation 1 of annotations (id 6) has something else than finite numbers as its area",
        ),
        (box(1, iscrowd="0"), "has an iscrowd that is neither 0 nor 1"),
        (box(1, area="12"), "has an area that is not a number"),
        (box(1, area=[3]), "has an area that is not a number"),
        (box(1, area=False), "has an area that is not a number"),
        (box(1, category=99), "has the category 99, which is not among the categories"),
        (box(1, category=None), "has no category_id"),
        ({"image_id": 1, "caption": 5}, "the caption of annotation 1 is not a text"),
    ],
)
def test_a_wrong_annotation_rejects_its_image_alone(tmp_path, out, source, wrong, says):
    file = coco_file(tmp_path / "coco.json", [(1, "a.png"), (2, "b.png")], [box(2), wrong, box(1)])
    converted(source, out, f"coco:{file}")
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("a.png", "bad-annotation")
    assert says in message
    assert "coco.json" in message
    assert samples(out)["b.png"]["objects"]["category"] == [0]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("category", [3, 7])
def test_an_object_with_more_or_fewer_keypoints_than_have_names_rejects_its_image(
    tmp_path, out, source, count, category
):
    categories = [
        {"id": 3, "name": "cat", "keypoints": ["nose", "left_eye", "right_eye"]},
        {"id": 7, "name": "dog"},
    ]
    objects = [
        box(1, category=category, keypoints=[1, 2, 2] * count),
        box(1),
        box(2, keypoints=[1, 2, 2] * 3),
    ]
    file = coco_file(tmp_path / "coco.json", [(1, "a.png"), (2, "b.png")], objects, categories)
    converted(source, out, f"coco:{file}")
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("a.png", "bad-annotation")
    assert f"an object has {count} keypoint" in message
    assert "and the categories name 3" in message
    read = {sample["key"]: sample["objects"] for sample in shardctl.open(out)}
    assert read["b.png"]["keypoints"].shape == (1, 3, 3)


def test_categories_may_have_different_numbers_of_keypoints(tmp_path, out, source):
    categories = [
        {"id": 3, "name": "cat", "keypoints": ["nose"]},
        {"id": 7, "name": "car", "keypoints": ["front", "back"]},
    ]
    objects = [
        box(1, keypoints=[1, 2, 2]),
        box(1, category=7, keypoints=[1, 2, 2, 3, 4, 2]),
        box(2, keypoints=[5, 2, 2]),
    ]
    file = coco_file(tmp_path / "coco.json", [(1, "a.png"), (2, "b.png")], objects, categories)
    made = converted(source, out, f"coco:{file}")
    assert "its categories have different keypoints, whose names are left out" in made.notices
    read = {sample["key"]: sample["objects"] for sample in shardctl.open(out)}
    assert read["a.png"]["keypoints"].tolist() == [
        [[1.5, 2.5, 2], [0, 0, 0]],
        [[1.5, 2.5, 2], [3.5, 4.5, 2]],
    ]
    assert read["b.png"]["keypoints"][0, 0].tolist() == [5.5, 2.5, 2]


def test_a_box_is_drawn_around_polygons_that_have_none(tmp_path, source):
    assert objects_of(tmp_path, source, [box(1, [], segmentation=[[1, 2, 4, 2, 4, 5]])])["a.png"][
        "bbox"
    ] == [[1, 2, 3, 3]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at character 0: it is not a JSON object"),
        ("[]", "it is not a JSON object"),
        ('{"images": [], "annotations": []', "a comma or } was expected"),
        ('{"images": [{"id": 1, "file_name": "a.png"', "the file is cut, in element 0 of images"),
        ('{"images": [{"id": 1,, "file_name": "a.png"}]}' + " " * 99, "in element 0 of images"),
        ('{"images": []}', "it has no annotations"),
        ('{"images": [], "annotations": []} x', "something follows the object"),
        (
            '{"images": [{"id": "1", "file_name": "a.png"}], "annotations": []}',
            "image 0 of images has no id",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{}]}',
            "annotation 0 of annotations has no image_id",
        ),
        (
            '{"images": [{"id": 99999999999999999999, "file_name": "a.png"}], "annotations": []}',
            "whole number of 64 bits",
        ),
        (
            '{"images": [{"id": 1, "file_name": "\\ud800"}], "annotations": []}',
            "half of a surrogate pair",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [], "categories": '
            '[{"id": 1}]}',
            "or no name",
        ),
    ],
)
def test_a_file_that_is_no_coco_file_is_named_with_the_place(tmp_path, source, text, says):
    file = tmp_path / "coco.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        converted(source, tmp_path / "out", f"coco:{file}")
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)


def test_text_that_is_not_utf8_is_refused(tmp_path, source):
    (tmp_path / "coco.json").write_bytes(
        b'{"images": [{"id": 1, "file_name": "\xe9.png"}], "annotations": []}'
    )
    with pytest.raises(InputError, match="not UTF-8"):
        converted(source, tmp_path / "out", f"coco:{tmp_path / 'coco.json'}")


@pytest.mark.parametrize(("block", "at_once"), [(1, 1), (7, 2), (64, 3), (1 << 20, 4096)])
def test_a_file_is_the_same_in_whatever_parts_it_is_read(tmp_path, monkeypatch, block, at_once):
    monkeypatch.setattr(json_parts, "BLOCK_BYTES", block)
    monkeypatch.setattr(json_parts, "ELEMENTS_AT_ONCE", at_once)
    monkeypatch.setattr(json_parts, "LEAST_TOGETHER", 2 * block)
    record = {
        "info": {"a": [1, {"b": "]}"}], "text": 'x"\\'},
        "empty": [],
        "images": [
            {"id": number, "file_name": f"é{number}.png", "x": [1.5e-7, -12, None, True]}
            for number in range(5)
        ],
        "nested": [{"in": [{"a": number}, {"b": "}, {"}], "c": {"d": 1}} for number in range(9)],
        "number": 12345.678,
        "annotations": [12, "a]b,c", [], {}, -0.25],
        "last": {},
    }
    for indent in (None, 1):
        (tmp_path / "x.json").write_text(
            json.dumps(record, indent=indent, ensure_ascii=False), "utf-8"
        )
        found: dict[str, list[Any]] = {}
        for part in json_parts.JsonParts(str(tmp_path / "x.json")):
            assert part.first == len(found.setdefault(part.name, []))
            found[part.name] += part.elements
        assert found == {name: value for name, value in record.items() if isinstance(value, list)}


def test_more_images_and_annotations_than_are_held_at_a_time(tmp_path, out, monkeypatch):
    monkeypatch.setattr(json_parts, "ELEMENTS_AT_ONCE", 7)
    monkeypatch.setattr("shardctl.sources.annotations.coco.IMAGES_AT_ONCE", 3)
    source = photos(tmp_path / "in", *(f"{number}.png" for number in range(20)))
    rng = np.random.default_rng(0)
    annotations = [
        box(int(image), (int(image), number, 1, 1), id=number)
        for number, image in enumerate(rng.integers(0, 20, 100))
    ]
    file = coco_file(
        tmp_path / "coco.json",
        [(number, f"{number}.png") for number in reversed(range(20))],
        annotations,
    )
    converted(source, out, f"coco:{file}")
    for key, sample in samples(out).items():
        expected = [each for each in annotations if each["image_id"] == int(key.split(".")[0])]
        assert sample["objects"]["id"] == [each["id"] for each in expected]
        assert sample["objects"]["bbox"] == [each["bbox"] for each in expected]


def test_categories_of_one_name_or_two_names_of_one_id(tmp_path, source):
    twice = [{"id": 0, "name": "cat"}, {"id": 5, "name": "cat"}, {"id": 9, "name": "dog"}]
    file = coco_file(tmp_path / "1.json", [(1, "a.png")], [box(1, category=5)], twice)
    said = notices(source, tmp_path, file)
    assert shardctl.open(tmp_path / "out").manifest.fields["objects"]["names"] == [
        "cat (id 0)",
        "cat (id 5)",
        "dog",
    ]
    assert any("several categories are called cat" in notice for notice in said)
    other = coco_file(tmp_path / "2.json", [(1, "b.png")], [box(1)], [{"id": 5, "name": "cow"}])
    with pytest.raises(InputError, match="the category 5 has two names, cat and cow"):
        converted(source, tmp_path / "new", f"coco:{file}", f"coco:{other}")


@pytest.mark.parametrize(
    ("rule", "left", "says"),
    [("keep", 3, "kept as they are"), ("clip", 2, "cut at the edge"), ("drop", 1, "dropped")],
)
def test_boxes_outside_are_counted_and_follow_the_rule(tmp_path, source, rule, left, says):
    annotations = [box(1), box(1, (6, 1, 4, 1)), box(1, (1, 1, 0, 2))]
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], annotations)
    said = notices(source, tmp_path, file, boxes_outside=rule)
    assert any(
        "1 box reaches outside of the image and 1 box has no area; " + says in notice
        for notice in said
    )
    assert len(samples(tmp_path / "out")["a.png"]["objects"]["bbox"]) == left


def test_a_changed_file_makes_another_dataset_and_the_same_one_does_not(tmp_path, out, source):
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], [box(1)])
    converted(source, out, f"coco:{file}")
    assert converted(source, out, f"coco:{file}").status == "up-to-date"
    coco_file(file, [(1, "a.png")], [box(1, (0, 0, 1, 1))])
    with pytest.raises(DatasetError, match="differs in its labels"):
        converted(source, out, f"coco:{file}")
    with pytest.raises(DatasetError, match="settings"):
        converted(source, out, f"coco:{file}", boxes_outside="drop")


def test_repair_makes_annotated_shards_again_without_the_annotation_files(tmp_path, out, source):
    file = coco_file(
        tmp_path / "coco.json",
        [(1, "a.png"), (2, "b.png")],
        [box(1, (6, 1, 4, 1)), box(2, [0, 0, 1])],
    )
    converted(source, out, f"coco:{file}", boxes_outside="clip")
    file.unlink()
    before = {path.name: path.read_bytes() for path in out.glob("*.arrow")}
    shard = next(out.glob("train-*.arrow"))
    shard.write_bytes(b"x" * shard.stat().st_size)
    shardctl.repair(out)
    assert {path.name: path.read_bytes() for path in out.glob("*.arrow")} == before
    assert shardctl.verify(out).ok


def test_repair_lists_the_sources_and_their_annotations_again_where_files_arrow_is_lost(
    tmp_path, out, source
):
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], [box(1, (6, 1, 4, 1))])
    converted(source, out, f"coco:{file}", boxes_outside="clip")
    before = (out / "files.arrow").read_bytes()
    (out / "files.arrow").unlink()
    shardctl.repair(out)
    assert (out / "files.arrow").read_bytes() == before


def test_annotations_are_of_image_files(tmp_path, source):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], [])
    with pytest.raises(
        UsageError, match="is about files that are images each, and the inputs are text"
    ):
        converted(tmp_path / "texts", tmp_path / "out", f"coco:{file}")


def test_objects_with_numbers_that_a_faster_parser_refuses_are_read_all_the_same(
    tmp_path, source, monkeypatch
):
    def refuse(_: str) -> Any:
        raise ValueError("not mine")

    monkeypatch.setattr(json_parts, "LEAST_TOGETHER", 64)
    annotations = [box(1, id=number) for number in range(20)]
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], annotations)
    converted(source, tmp_path / "one", f"coco:{file}")
    monkeypatch.setattr(json_parts, "_decoder", lambda: (refuse, (ValueError,)))
    converted(source, tmp_path / "two", f"coco:{file}")
    assert samples(tmp_path / "one") == samples(tmp_path / "two")
    assert samples(tmp_path / "one")["a.png"]["objects"]["id"] == list(range(20))


def test_objects_of_the_same_id_in_two_files_that_differ_are_all_kept(tmp_path, out, source):
    """Tools count from 1 in every file."""
    images = [(1, "a.png")]
    one = coco_file(
        tmp_path / "1.json", images, [box(1, (1, 1, 2, 2), id=1), box(1, (0, 0, 2, 2), id=2)]
    )
    two = coco_file(
        tmp_path / "2.json", images, [box(1, (4, 1, 2, 2), id=1), box(1, (0, 0, 2, 2), 7, id=2)]
    )
    said = converted(source, out, f"coco:{one}", f"coco:{two}").notices
    found = samples(out)["a.png"]["objects"]
    assert found["bbox"] == [[1, 1, 2, 2], [0, 0, 2, 2], [4, 1, 2, 2], [0, 0, 2, 2]]
    assert found["category"] == [0, 0, 0, 1]
    assert any(
        notice.startswith("2 annotations have the id of another one of the image")
        for notice in said
    )


@pytest.mark.parametrize(("width", "height"), [(8.0, 6.0), ("8", "6"), ("8.0", 6)])
def test_a_size_may_be_written_in_other_ways(tmp_path, out, width, height):
    photo(tmp_path / "in" / "a.jpg", (8, 6), 6)
    record = {"images": [{"id": 1, "file_name": "a.jpg", "width": width, "height": height}]}
    file = tmp_path / "coco.json"
    file.write_text(
        json.dumps({**record, "annotations": [box(1)], "categories": [{"id": 3, "name": "cat"}]})
    )
    converted(tmp_path / "in", out, f"coco:{file}")
    turned = [6 - 2 - 2, 1, 2, 3]
    assert samples(out)["a.jpg"]["objects"]["bbox"] == [turned], (
        "the size says that it is of the stored image"
    )


def test_images_of_lvis_have_addresses_alone_and_what_is_left_out_is_said(tmp_path):
    source = photos(tmp_path / "in", "train2017/1.png", "val2017/1.png", "val2017/2.png")
    images = [
        {
            "id": n,
            "coco_url": f"http://images.cocodataset.org/val2017/{n}.png",
            "neg_category_ids": [3],
            "license": 1,
        }
        for n in (1, 2)
    ]
    file = tmp_path / "lvis.json"
    categories = [{"id": 3, "name": "cat", "synset": "cat.n.01", "frequency": "c"}]
    file.write_text(
        json.dumps({"images": images, "annotations": [box(1), box(2)], "categories": categories})
    )
    said = notices(source, tmp_path, file)
    assert {key for key, sample in samples(tmp_path / "out").items() if sample["objects"]} == {
        "val2017/1.png",
        "val2017/2.png",
    }
    assert any("left out: neg_category_ids of 2 images" in notice for notice in said)


@pytest.mark.parametrize("odd", [[], [{"segmentation": {"size": [6, 8], "counts": [4, 44]}}]])
@pytest.mark.parametrize("indent", [None, 1])
def test_members_of_objects_without_a_column_are_named_and_counted(tmp_path, odd, indent):
    """Also where all are plain, and read as columns: a stretch of these has 64 kB."""
    source = photos(tmp_path / "in", "1.png")
    others: list[dict[str, Any]] = [
        {"score": 0.5, "ignore": 0, "num_keypoints": 0},
        {"attributes": {"a": [1]}},
    ]
    others += [{"attributes": {}, "score": None, "tags": [], "note": ""}, {"note": '[x] \\" {'}]
    annotations = [{**box(1), "id": number, **others[number % 4]} for number in range(4000)]
    annotations += [{**box(1), "id": 5000 + number, **each} for number, each in enumerate(odd)]
    file = tmp_path / "coco.json"
    record = {
        "images": [{"id": 1, "file_name": "1.png"}],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": annotations,
    }
    file.write_text(json.dumps(record, indent=indent))
    (said,) = [notice for notice in notices(source, tmp_path, file) if "left out" in notice]
    assert said.partition("left out: ")[2].split(", ") == [
        "score of 1,000 objects",
        "ignore of 1,000 objects",
        "attributes of 1,000 objects",
        "note of 1,000 objects",
    ]


def test_a_caption_in_two_files_is_one(tmp_path, out, source):
    one = [{"id": n, "image_id": 1 + n % 2, "caption": text} for n, text in enumerate("xyxz")]
    other = [one[3], {**one[0], "caption": "new"}, {"id": 9, "image_id": 2, "caption": "y"}, one[2]]
    images = [(1, "a.png"), (2, "b.png")]
    given = [
        f"coco:{coco_file(tmp_path / f'{n}.json', images, each, [])}"
        for n, each in enumerate((one, one, other))
    ]
    converted(source, out, *given)
    found = {key: sample["captions"] for key, sample in samples(out).items()}
    assert found == {"a.png": ["x", "x", "new"], "b.png": ["y", "z", "y"], "deep/c.png": None}


@pytest.mark.parametrize("text", ["a cat", ""])
def test_an_annotation_may_be_an_object_and_a_caption(tmp_path, source, text):
    both = box(1, (1, 2, 3, 2), 7, id=9, segmentation=[[1, 2, 4, 2, 4, 4]], caption=text)
    found = notices(
        source,
        tmp_path,
        coco_file(tmp_path / "coco.json", [(1, "a.png"), (2, "b.png")], [both, box(2)]),
    )
    assert not any("left out" in notice for notice in found)
    sample = samples(tmp_path / "out")["a.png"]
    assert sample["captions"] == [text]
    truth = {
        "id": [9],
        "category": [1],
        "bbox": [[1, 2, 3, 2]],
        "segmentation": [[[1, 2, 4, 2, 4, 4]]],
    }
    assert sample["objects"] == truth


def test_an_rle_without_a_box_has_the_box_around_its_ones(tmp_path, out, source):
    rng, masks = np.random.default_rng(0), []
    for share in (0.0, 0.03, 0.03, 0.1, 0.5, 1.0):
        masks.append(rng.random((6, 8)) < share)
    runs = [[len(list(run)) for _, run in groupby(mask.T.ravel().tolist())] for mask in masks]
    counts = [
        [0, *run] if mask.T.ravel()[0] else run for run, mask in zip(runs, masks, strict=True)
    ]
    objects = [
        box(1, None, segmentation={"size": [6, 8], "counts": each}, iscrowd=0) for each in counts
    ]
    converted(
        source,
        out,
        f"coco:{coco_file(tmp_path / 'coco.json', [(1, 'a.png')], objects)}",
    )
    expected = []
    for mask in masks:
        y, x = np.nonzero(mask)
        some = len(x) > 0
        expected.append([x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1] if some else [0, 0, 0, 0])
    assert samples(out)["a.png"]["objects"]["bbox"] == expected
