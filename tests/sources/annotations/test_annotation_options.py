from __future__ import annotations

import pytest
from in_this_process import convert
from making import box, coco_file, photos, samples

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.making.plan.listing import LabelRule
from shardctl.sources.annotations import parse_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("coco:a/b.json", ("coco", "a/b.json", ())),
        ("captions:", ("captions", "", ())),
        ("voc+zero-based:C:/x", ("voc", "C:/x", (("zero-based", ""),))),
        ("masks+ignore=255:m:n", ("masks", "m:n", (("ignore", "255"),))),
        ("labels.csv", None),
        ("coc:a.json", None),
        ("auto", None),
    ],
)
def test_a_source_is_a_format_and_a_path(text, source):
    parsed = parse_source(text)
    assert (parsed and (parsed.format, parsed.path, parsed.options)) == source
    assert parsed is None or str(parsed) == text


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["coco:"], "it needs a path, coco:PATH"),
        (["coco+x:a"], "coco annotations have no option 'x'"),
        (["voc+zero-based=1:a"], "voc annotations have no option"),
        (["masks+ignore:a"], "it is 0 to 65535"),
        (["auto", "none", "coco:a"], "--labels auto and --labels none contradict each other"),
    ],
)
def test_impossible_sources_are_refused(labels, says):
    with pytest.raises(UsageError) as caught:
        LabelRule.parse(labels)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"boxes_outside": "cut"}, "boxes_outside must be keep, clip or drop"),
        ({"annotation_frame": "raw"}, "annotation_frame must be auto, stored or upright"),
        (
            {"labels": "coco:x.json", "yolo_task": "obb"},
            "is for YOLO labels; add labels='yolo:PATH'",
        ),
        (
            {"labels": "yolo:x", "yolo_task": "count"},
            "yolo_task must be detect, segment, pose or obb",
        ),
    ],
)
def test_impossible_rules_are_refused(tmp_path, options, says):
    with pytest.raises(UsageError) as caught:
        convert(photos(tmp_path / "in", "a.png"), tmp_path / "out", **options)
    assert says in str(caught.value)


def test_the_command_takes_annotations_and_labels_together(tmp_path, out, cli):
    source = photos(tmp_path / "in", "cat/a.png", "dog/b.png")
    (source / "cat" / "a.txt").write_text("a cat")
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], [box(1, (7, 5, 3, 3))])
    labels = [f"--labels={each}" for each in (f"coco:{file}", "captions:", "folder")]
    words = ["convert", source, out, *labels, "--boxes-outside=clip", "--workers=0"]
    assert cli(*words).code == 0
    found = samples(out)["cat/a.png"]
    assert (found["label"], found["caption"]) == (0, "a cat")
    assert found["objects"]["bbox"] == [[7, 5, 1, 1]]
    settings = shardctl.open(out).manifest.settings
    assert settings["labels"] == ["folder", f"coco:{file}", "captions:"]
    assert settings["boxes"] == "clip"
    assert "up to date" in cli(*words).out


def test_a_function_is_given_the_finished_objects_and_may_change_them(tmp_path, out, monkeypatch):
    source = photos(tmp_path / "in", "a.png")
    file = coco_file(tmp_path / "coco.json", [(1, "a.png")], [box(1, (7, 5, 3, 3)), box(1)])
    (tmp_path / "own_step.py").write_text(
        "def first(sample):\n    sample['seen'] = sorted(sample)\n"
        "    sample['objects'] = {name: items[:1] for name, items in sample['objects'].items()}\n  "
        "  return sample\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = {"transform": [{"name": "custom", "target": "own_step:first"}]}
    convert(source, out, recipe=recipe, labels=f"coco:{file}", boxes_outside="clip")
    found = samples(out)["a.png"]
    assert found["objects"] == {"category": [0], "bbox": [[7, 5, 1, 1]]}
    assert "shardctl.annotated" not in found["seen"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "yolov5:labels",
            None,
            r"yolov5:labels: .*; format of .* 'yolov5' is not known; did you mean yolo\?",
        ),
        (
            "x.json",
            '{"images": [], "annotations": []}',
            r"; if it is a COCO file, give coco:\S*x\.json$",
        ),
        ("x.jsonl", '{"name": "a"}', r"call one file_name$"),
        ("absent.csv", None, r"absent\.csv: cannot be read [^;]*$"),
    ],
)
def test_a_labels_file_that_should_be_annotations_is_said(tmp_path, name, text, says):
    source = photos(tmp_path / "in", "a.png")
    if text is not None:
        (tmp_path / name).write_text(text)
    given = name if ":" in name else str(tmp_path / name)
    with pytest.raises(InputError, match=says):
        convert(source, tmp_path / "out", labels=given)
