from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import content_of, shards_in, tables_in
from making import CATEGORIES, box, coco_file, converted, photo, photos, rejects, samples

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.images.codecs import rle
from shardctl.sources.annotations import json_parts
from shardctl.sources.annotations.coco import mirrored_points


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return photos(tmp_path / "in", "a.png", "b.png", "deep/c.png")


IMAGES = [(1, "a.png"), (2, "b.png")]


@pytest.fixture
def coco(tmp_path: Path, source: Path, out: Path) -> Any:
    """Convert with a file of these annotations, and return the notices."""

    def annotated(
        *annotations: Any, images: Any = IMAGES, categories: Any = CATEGORIES, **options: Any
    ) -> str:
        file = coco_file(tmp_path / "coco.json", images, annotations, categories)
        return str(converted(source, out, f"coco:{file}", **options).notices)

    return annotated


def objects_of(out: Path, key: str = "a.png") -> Any:
    return samples(out)[key]["objects"]


def role_of(out: Path) -> dict[str, Any]:
    return shardctl.open(out).manifest.fields["objects"]


def test_each_image_has_its_objects_by_the_ids_of_the_file(coco, out):
    coco(
        box(2, (0, 0, 8, 6), 7, id=11, area=48, iscrowd=0),
        box(1, (1.25, 2, 3, 2), 3, id=10, area=6.5, iscrowd=1),
        box(2, (1, 1, 1, 1), 3, id=12, area=1, iscrowd=0),
    )
    assert objects_of(out) == {
        "id": [10],
        "category": [0],
        "bbox": [[1.25, 2, 3, 2]],
        "area": [6.5],
        "iscrowd": [True],
    }
    assert objects_of(out, "b.png")["category"] == [1, 0]
    assert objects_of(out, "deep/c.png") is None, "the file does not list it: not annotated"
    assert [sample["image_id"] for sample in samples(out).values()] == [1, 2, None]
    assert role_of(out) == {
        "role": "objects",
        "names": ["cat", "dog"],
        "ids": [3, 7],
        "supercategories": ["", "animal"],
    }


def test_polygons_and_both_forms_of_rle_are_kept(coco, out):
    packed = rle.compress([8, 2, 38])
    shapes = [
        [[1, 2, 4, 2, 4, 4], [0, 0, 1, 0, 1, 1, 0, 1]],
        {"size": [6, 8], "counts": [8, 2, 38]},
        {"size": [6, 8], "counts": packed.decode()},
        [],
    ]
    coco(*(box(1, segmentation=shape) for shape in shapes))
    assert objects_of(out)["segmentation"] == [shapes[0], [], [], []]
    runs = {"size": [6, 8], "counts": packed}
    assert objects_of(out)["rle"] == [None, runs, runs, None]


def test_keypoints_of_pixels_become_corner_coordinates(coco, out):
    names = ["nose", "left_eye", "right_eye"]
    person = {"id": 3, "name": "person", "keypoints": names, "skeleton": [[1, 2], [1, 3]]}
    coco(box(1, keypoints=[1, 2, 2, 3, 4, 1, 5, 5, 0]), box(1), categories=[person])
    assert objects_of(out)["keypoints"] == [[[1.5, 2.5, 2], [3.5, 4.5, 1], [0, 0, 0]], []]
    role = role_of(out)
    assert (role["keypoints"], role["skeleton"], role["flip"]) == (
        names,
        [[0, 1], [0, 2]],
        [0, 2, 1],
    )


@pytest.mark.parametrize(
    ("names", "flip"),
    [
        (("LeftEye", "RightEye"), (1, 0)),
        (("left_eye", "nose"), None),
        (
            ("nose", "LEFT_EAR", "RIGHT_EAR", "left_of_right_eye", "right_of_left_eye"),
            (0, 2, 1, 4, 3),
        ),
        (("left_eye", "right_eye", "l_ear", "r_ear"), None),
        (("left_eye", "right_eye", "earR", "earL"), None),
        (("left_eye", "right_eye", "ROOT", "lip", "tail_root"), (1, 0, 2, 3, 4)),
        (("left", "left", "right"), None),
        (None, None),
    ],
)
def test_keypoints_are_swapped_by_left_and_right_only_where_all_have_a_partner(names, flip):
    assert mirrored_points(names) == flip


def test_instances_keypoints_and_captions_of_several_files_are_joined(tmp_path, out, source):
    points = {"id": 3, "name": "cat", "keypoints": ["nose"]}
    said = [
        {"id": n, "image_id": 1 + n % 2, "caption": text} for n, text in enumerate(["x", "y", "x"])
    ]
    again = [said[2], {**said[0], "caption": "new"}, {"id": 9, "image_id": 2, "caption": "y"}]
    files = {
        "instances": ([box(1, id=5, area=6), box(1, category=7, id=6), box(2, id=7)], CATEGORIES),
        "keypoints": (
            [box(1, id=5, area=7, keypoints=[1, 1, 2]), box(2, id=8, keypoints=[2, 2, 1])],
            [points],
        ),
        "captions": (said, []),
        "more": (again, []),
    }
    given = [
        f"coco:{coco_file(tmp_path / f'{name}.json', IMAGES, *each)}"
        for name, each in files.items()
    ]
    converted(source, out, *given)
    found = {key: sample["captions"] for key, sample in samples(out).items()}
    assert found == {"a.png": ["x", "x", "new"], "b.png": ["y", "y"], "deep/c.png": None}
    first = objects_of(out)
    assert first["id"] == [5, 6]
    assert first["area"] == [6, None], "the first file that knows a member counts"
    assert first["keypoints"] == [[[1.5, 1.5, 2]], []]
    assert objects_of(out, "b.png")["id"] == [7, 8]


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
def test_a_name_is_a_path_below_the_source_or_the_only_one_of_its_last_part(coco, out, name):
    coco(box(1), images=[(1, name)])
    assert objects_of(out, "deep/c.png")["category"] == [0]


@pytest.mark.parametrize(
    ("images", "says"),
    [
        ([(1, "a.png"), (1, "b.png")], "the images a.png and b.png have the same id 1"),
        ([(1, "a.png"), (2, "a.png")], "a.png and a.png are both of the input a.png; keep one"),
        ([(1, "y/a.png"), (2, "x/a.png")], "y/a.png and x/a.png are both of the input a.png"),
        ([(1, "c.png")], "name c.png, which may be deep/c.png and other/c.png"),
    ],
)
def test_two_images_of_one_id_or_name_are_both_named(coco, source, images, says):
    photos(source, "other/c.png")
    with pytest.raises(InputError, match=says):
        coco(box(1), images=images)


def test_what_has_no_image_and_what_has_no_annotations_is_counted_and_said(coco):
    said = coco(box(1), box(2), box(99), box(99), images=[(1, "a.png"), (2, "x/a.png")])
    assert "1 of 2 images are not among the inputs, or are of another split (x/a.png)" in said
    assert "does not list (image_id 99); skipped" in said
    assert "2 of 3 inputs are not in the COCO files (b.png, deep/c.png): not annotated" in said


def test_objects_without_any_list_of_categories_are_refused_as_a_whole(coco, tmp_path, out, source):
    with pytest.raises(InputError, match="and no categories"):
        coco(box(1), categories=[])
    other = coco_file(tmp_path / "other.json", IMAGES[1:], [box(2)])
    converted(source, out, f"coco:{tmp_path / 'coco.json'}", f"coco:{other}")
    assert objects_of(out)["category"] == [0], "those of another file count"


def test_repeated_ids_and_crowds_are_kept_and_said(coco, out):
    said = coco(*[box(1, id=4, iscrowd=1)] * 2)
    assert "1 annotation has the id of another (for instance 4)" in said
    assert "all annotations have iscrowd 1" in said
    assert objects_of(out)["iscrowd"] == [True, True]


@pytest.mark.thorough(after=8)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            box(1, [1, 2, float("nan"), 2], id=17),
            "annotation 1 of annotations (id 17) has something else than finite numbers as its "
            "bbox",
        ),
        (box(1, [1, 2, "3", 2]), "has something else than finite numbers"),
        (box(1, [1, 2, 3]), "has no bbox of four numbers"),
        (
            box(1, segmentation=[[1, 2, 3, 4, 5, 6, 7]]),
            "has a polygon of 7 numbers; it takes an even number from 6 on",
        ),
        (
            box(1, segmentation=[[1, 2, 3, 4, 5, float("inf")]]),
            "has something else than finite numbers as its segmentation",
        ),
        (
            box(1, segmentation={"size": [6, 8], "counts": [3]}),
            "has an RLE of 3 pixels, and its size 8x6 has 48",
        ),
        (box(1, segmentation={"counts": [48]}), "has an RLE without a size"),
        (box(1, segmentation=7), "has a segmentation that is neither polygons nor RLE"),
        (box(1, keypoints=[1, 2]), "has keypoints that are no triples"),
        (box(1, keypoints=[1, 2, None]), "has something else than finite numbers as its keypoints"),
        (box(1, id=2**70, area=10**400), "has something else than finite numbers as its id"),
        (box(1, id=6, area=10**400), "(id 6) has something else than finite numbers as its area"),
        (box(1, iscrowd="0"), "has an iscrowd that is neither 0 nor 1"),
        (box(1, area="12"), "has an area that is not a number"),
        (box(1, category=99), "has the category 99, which is not among the categories"),
        (box(1, category=None), "has no category_id"),
        ({"image_id": 1, "caption": 5}, "the caption of annotation 1 is not a text"),
    ],
)
def test_a_wrong_annotation_rejects_its_image_alone(coco, out, wrong, says):
    coco(box(2), wrong, box(1))
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("a.png", "bad-annotation")
    assert says in message
    assert "coco.json" in message
    assert objects_of(out, "b.png")["category"] == [0]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("category", [3, 7])
def test_an_object_with_more_or_fewer_keypoints_than_have_names_rejects_its_image(
    coco, out, count, category
):
    named = {"id": 3, "name": "cat", "keypoints": ["nose", "left_eye", "right_eye"]}
    point = [1, 2, 2]
    coco(
        box(1, category=category, keypoints=point * count),
        box(2, keypoints=point * 3),
        categories=[named, CATEGORIES[1]],
    )
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("a.png", "bad-annotation")
    assert f"an object has {count} keypoint" in message
    assert np.shape(objects_of(out, "b.png")["keypoints"]) == (1, 3, 3)


def test_categories_may_have_different_numbers_of_keypoints(coco, out):
    categories = [
        {"id": 3, "name": "cat", "keypoints": ["nose"]},
        {"id": 7, "name": "car", "keypoints": ["front", "back"]},
    ]
    said = coco(
        box(1, keypoints=[1, 2, 2]),
        box(1, category=7, keypoints=[1, 2, 2, 3, 4, 2]),
        categories=categories,
    )
    assert "its categories have different keypoints, whose names are left out" in said
    read = {sample["key"]: sample["objects"] for sample in shardctl.open(out)}
    assert read["a.png"]["keypoints"].tolist() == [
        [[1.5, 2.5, 2], [0, 0, 0]],
        [[1.5, 2.5, 2], [3.5, 4.5, 2]],
    ]


def test_what_has_no_box_has_the_one_around_its_polygons_or_ones(coco, out):
    runs = [[48], [0, 48], [8, 2, 38], [5, 1, 7, 3, 32]]
    shapes = [[[1, 2, 4, 2, 4, 5]], *({"size": [6, 8], "counts": each} for each in runs)]
    coco(*(box(1, None, segmentation=shape, iscrowd=0) for shape in shapes))
    assert objects_of(out)["bbox"] == [
        [1, 2, 3, 3],
        [0, 0, 0, 0],
        [0, 0, 8, 6],
        [1, 2, 1, 2],
        [0, 1, 3, 5],
    ]


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
        ('{"images": [{"id": "1", "file_name": "a.png"}], "annotations": []}', "has no id"),
        ('{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{}]}', "no image_id"),
        ('{"images": [{"id": 99999999999999999999, "file_name": "a.png"}]}', "of 64 bits"),
        ('{"images": [{"id": 1, "file_name": "\\ud800"}]}', "half of a surrogate pair"),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [], "categories": [{}]}',
            "or no name",
        ),
        ('{"images": [{"id": 1, "file_name": "\xe9.png"}], "annotations": []}', "not UTF-8"),
    ],
)
def test_a_file_that_is_no_coco_file_is_named_with_the_place(tmp_path, source, text, says):
    file = tmp_path / "coco.json"
    file.write_text(text, "latin-1")
    with pytest.raises(InputError) as caught:
        converted(source, tmp_path / "out", f"coco:{file}")
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(("block", "at_once"), [(1, 1), (7, 2), (64, 3), (1 << 20, 4096)])
def test_a_file_is_the_same_in_whatever_parts_it_is_read(tmp_path, monkeypatch, block, at_once):
    monkeypatch.setattr(json_parts, "BLOCK_BYTES", block)
    monkeypatch.setattr(json_parts, "ELEMENTS_AT_ONCE", at_once)
    monkeypatch.setattr(json_parts, "LEAST_TOGETHER", 2 * block)
    record = {
        "info": {"a": [1, {"b": "]}"}], "text": 'x"\\'},
        "empty": [],
        "images": [{"id": number, "file_name": f"é{number}.png"} for number in range(5)],
        "nested": [{"in": [{"b": "}, {"}], "c": {"d": 1}}] * 9,
        "number": 12345.678,
        "annotations": [12, "a]b,c", [], {}, -0.25, [1.5e-7, None, True]],
        "last": {},
    }
    for indent in (None, 1):
        (tmp_path / "x.json").write_text(
            json.dumps(record, indent=indent, ensure_ascii=False), "utf-8"
        )
        found: dict[str, list[Any]] = {}
        for part in json_parts.JsonParts(str(tmp_path / "x.json"), {}):
            assert part.first == len(found.setdefault(part.name, []))
            found[part.name] += part.elements
        assert found == {name: value for name, value in record.items() if isinstance(value, list)}


def test_more_images_and_annotations_than_are_held_at_a_time(tmp_path, out, monkeypatch):
    monkeypatch.setattr(json_parts, "ELEMENTS_AT_ONCE", 7)
    monkeypatch.setattr("shardctl.sources.annotations.coco.IMAGES_AT_ONCE", 3)
    names = [f"{number}.png" for number in range(20)]
    images = list(enumerate(names))[::-1]
    owners = np.random.default_rng(0).integers(0, 20, 100).tolist()
    annotations = [
        box(owner, (owner, number, 1, 1), id=number) for number, owner in enumerate(owners)
    ]
    file = coco_file(tmp_path / "coco.json", images, annotations)
    converted(photos(tmp_path / "in", *names), out, f"coco:{file}")
    for owner, name in images:
        expected = [list(each["bbox"]) for each in annotations if each["image_id"] == owner]
        assert objects_of(out, name)["bbox"] == expected


def test_categories_of_one_name_or_two_names_of_one_id(coco, tmp_path, out, source):
    twice = [{"id": 0, "name": "cat"}, {"id": 5, "name": "cat"}, {"id": 9, "name": "dog"}]
    said = coco(box(1, category=5), categories=twice)
    assert role_of(out)["names"] == ["cat (id 0)", "cat (id 5)", "dog"]
    assert "several categories are called cat" in said
    other = coco_file(tmp_path / "2.json", IMAGES, [box(1)], [{"id": 5, "name": "cow"}])
    with pytest.raises(InputError, match="the category 5 has two names, cat and cow"):
        converted(source, tmp_path / "new", f"coco:{tmp_path / 'coco.json'}", f"coco:{other}")


@pytest.mark.parametrize(
    ("rule", "left", "says"),
    [("keep", 3, "kept as they are"), ("clip", 2, "cut at the edge"), ("drop", 1, "dropped")],
)
def test_boxes_outside_are_counted_and_follow_the_rule(coco, out, rule, left, says):
    said = coco(box(1), box(1, (6, 1, 4, 1)), box(1, (1, 1, 0, 2)), boxes_outside=rule)
    assert f"1 box reaches outside of the image and 1 box has no area; {says}" in said
    assert len(objects_of(out)["bbox"]) == left


def test_a_coco_file_as_the_source_is_told(tmp_path, out):
    file = coco_file(tmp_path / "coco.json", IMAGES, [box(1, (0, 0, 1, 1))])
    made = shardctl.convert(file, out, workers=0, progress=False)
    assert "labels='coco:FILE'" in str(made.notices)


def test_boxes_that_are_shares_of_the_size_are_refused(coco):
    with pytest.raises(InputError, match=r"coco\.json: all boxes are shares .*make them pixels"):
        coco(box(1, (0, 0, 0.5, 1), 3), box(2, (0.25, 0.5, 0.5, 0.5), 7))
    assert "2 objects" in coco(box(1, (0, 0, 0.5, 1), 3), box(2, (0.25, 0.5, 1.5, 0.5), 7))


def test_a_changed_file_makes_another_dataset_and_the_same_one_does_not(
    coco, tmp_path, out, source
):
    coco(box(1))
    label = f"coco:{tmp_path / 'coco.json'}"
    assert converted(source, out, label).status == "up-to-date"
    with pytest.raises(DatasetError, match="settings"):
        converted(source, out, label, boxes_outside="drop")
    with pytest.raises(DatasetError, match="differs in its labels"):
        coco(box(1, (0, 0, 1, 1)))


def test_repair_makes_annotated_shards_again_without_the_annotation_files(coco, tmp_path, out):
    coco(box(1, (6, 1, 4, 1)), box(2, [0, 0, 1]), boxes_outside="clip")
    (tmp_path / "coco.json").unlink()
    before = content_of(out)
    next(iter(shards_in(out))).write_bytes(b"x")
    shardctl.repair(out)
    assert content_of(out) == before
    assert shardctl.verify(out).ok


@pytest.mark.parametrize("moved", [False, True])
def test_repair_lists_the_sources_and_their_annotations_again_where_files_arrow_is_lost(
    tmp_path, source, out, moved
):
    file = coco_file(source / "deep" / "coco.json", IMAGES, [box(1, (6, 1, 4, 1))])
    converted(source, out, f"coco:{file}", boxes_outside="clip")
    before = (tables_in(out) / "files.arrow").read_bytes()
    (tables_in(out) / "files.arrow").unlink()
    shardctl.repair(out, sources=[source.rename(tmp_path / "moved")] if moved else [])
    assert (tables_in(out) / "files.arrow").read_bytes() == before


def test_annotations_are_of_image_files(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UsageError, match="images each, and the inputs are text"):
        converted(tmp_path / "a.txt", tmp_path / "out", f"coco:{tmp_path / 'coco.json'}")


def test_objects_with_numbers_that_a_faster_parser_refuses_are_read_all_the_same(
    coco, out, monkeypatch
):
    def refuse(_: str) -> Any:
        raise ValueError("not mine")

    monkeypatch.setattr(json_parts, "LEAST_TOGETHER", 64)
    monkeypatch.setattr(json_parts, "_decoder", lambda: (refuse, (ValueError,)))
    coco(*(box(1, id=number) for number in range(20)))
    assert objects_of(out)["id"] == list(range(20))


def test_objects_of_the_same_id_in_two_files_that_differ_are_all_kept(tmp_path, out, source):
    """Tools count from 1 in every file."""
    boxes = [box(1, (1, 1, 2, 2), id=1), box(1, (0, 0, 2, 2), id=2)]
    others = [box(1, (4, 1, 2, 2), id=1), box(1, (0, 0, 2, 2), 7, id=2)]
    files = [
        coco_file(tmp_path / f"{number}.json", IMAGES, each)
        for number, each in enumerate((boxes, others))
    ]
    said = converted(source, out, *(f"coco:{file}" for file in files)).notices
    assert objects_of(out)["bbox"] == [[1, 1, 2, 2], [0, 0, 2, 2], [4, 1, 2, 2], [0, 0, 2, 2]]
    assert objects_of(out)["category"] == [0, 0, 0, 1]
    assert "2 annotations have the id of another" in str(said)


@pytest.mark.parametrize(("width", "height"), [(8.0, 6.0), ("8", "6"), ("8.0", 6)])
def test_a_size_may_be_written_in_other_ways(tmp_path, out, width, height):
    """It says that the box is one of the image as it is stored."""
    photo(tmp_path / "in" / "a.jpg", (8, 6), 6)
    file = coco_file(tmp_path / "coco.json", [(1, "a.jpg")], [box(1)])
    record = json.loads(file.read_text())
    record["images"][0] |= {"width": width, "height": height}
    file.write_text(json.dumps(record))
    converted(tmp_path / "in", out, f"coco:{file}")
    assert objects_of(out, "a.jpg")["bbox"] == [[6 - 2 - 2, 1, 2, 3]]


def test_images_of_lvis_have_addresses_alone_and_what_is_left_out_is_said(tmp_path, out):
    source = photos(tmp_path / "in", "train2017/1.png", "val2017/1.png")
    url = "http://images.cocodataset.org/val2017/1.png"
    record = {
        "images": [{"id": 1, "coco_url": url, "neg_category_ids": [3], "license": 1}],
        "annotations": [box(1)],
        "categories": [{"id": 3, "name": "cat", "synset": "cat.n.01", "frequency": "c"}],
    }
    (tmp_path / "lvis.json").write_text(json.dumps(record))
    said = converted(source, out, f"coco:{tmp_path}/lvis.json").notices
    assert objects_of(out, "val2017/1.png")
    assert objects_of(out, "train2017/1.png") is None
    assert "left out: neg_category_ids of 1 image" in str(said)


@pytest.mark.parametrize("odd", [(), [{"segmentation": {"size": [6, 8], "counts": [4, 44]}}]])
def test_members_of_objects_without_a_column_are_named_and_counted(coco, odd):
    """Also where all are plain, and read as columns: a stretch of these has 64 kB."""
    others: list[dict[str, Any]] = [
        {"score": 0.5, "ignore": 0, "num_keypoints": 0},
        {"attributes": {"a": [1]}},
        {"attributes": {}, "score": None, "tags": [], "note": ""},
        {"note": '[x] \\" {'},
    ]
    said = coco(
        *(box(1, id=number, **others[number % 4]) for number in range(4000)),
        *(box(1, **each) for each in odd),
    )
    names = ("score", "ignore", "attributes", "note")
    assert f"left out: {', '.join(f'{name} of 1,000 objects' for name in names)}'" in said


@pytest.mark.parametrize("text", ["a cat", ""])
def test_an_annotation_may_be_an_object_and_a_caption(coco, out, text):
    assert "left out" not in coco(box(1, id=9, caption=text), box(2))
    assert samples(out)["a.png"]["captions"] == [text]
    assert objects_of(out) == {"id": [9], "category": [0], "bbox": [[1, 2, 3, 2]]}
