"""Real annotations of the corpus."""

from __future__ import annotations

import json

import numpy as np
import pytest
from making import converted, rejects, samples

import shardctl
from shardctl.images.codecs import rle

pytestmark = pytest.mark.corpus


def test_coco_and_yolo_and_masks_of_the_same_images_agree(corpus, tmp_path):
    root = corpus / "captions" / "coco128"
    converted(
        root / "images",
        tmp_path / "coco",
        f"coco:{root}/instances.json",
        f"masks:{root}/masks_semantic",
    )
    converted(root / "images", tmp_path / "yolo", f"yolo:{root}/labels_yolo")
    converted(root / "images", tmp_path / "segments", f"yolo:{root}/labels_yolo_seg")
    coco, yolo, segments = (samples(tmp_path / name) for name in ("coco", "yolo", "segments"))
    assert rejects(tmp_path / "coco") == rejects(tmp_path / "yolo") == {}
    raw = json.loads((root / "instances.json").read_text())
    by_image = {image["id"]: image for image in raw["images"]}
    close = total = 0
    for key, sample in coco.items():
        expected = [
            each for each in raw["annotations"] if by_image[each["image_id"]]["file_name"] == key
        ]
        objects = sample["objects"]
        assert objects["id"] == [each["id"] for each in expected]
        assert np.array_equal(
            np.float32(objects["bbox"]), np.float32([each["bbox"] for each in expected])
        )
        for runs in objects["rle"]:
            assert runs is None or rle.decode(runs["counts"], tuple(runs["size"])).any()
        theirs = np.array(yolo[key]["objects"]["bbox"]).reshape(-1, 4)
        plain = [
            box for box, crowd in zip(objects["bbox"], objects["iscrowd"], strict=True) if not crowd
        ]
        for box in plain:
            total += 1
            close += bool(len(theirs) and (np.abs(theirs - box).max(axis=1) < 1).any())
        assert len(segments[key]["objects"]["bbox"]) == len(
            segments[key]["objects"]["segmentation"]
        )
    assert total > 150
    assert close / total > 0.95, (
        "the YOLO labels are the same boxes but for a few that were corrected"
    )


@pytest.mark.parametrize(
    ("folder", "annotations", "names"),
    [("bccd_voc", "Annotations", 3), ("raccoon", "annotations", 1)],
)
def test_voc_boxes_lie_within_their_images(corpus, out, folder, annotations, names):
    root = corpus / "captions" / folder
    converted(root, out, f"voc:{root}/{annotations}")
    assert rejects(out) == {}
    assert len(shardctl.open(out).manifest.fields["objects"]["names"]) == names
    found = samples(out)
    assert all(sample["objects"]["bbox"] for sample in found.values())
    assert sum(len(sample["objects"]["bbox"]) for sample in found.values()) >= 30


def test_hugging_face_metadata(corpus, tmp_path):
    root = corpus / "captions"
    converted(root / "hf_imagefolder", tmp_path / "hf")
    found = samples(tmp_path / "hf")
    for line in (root / "hf_imagefolder" / "train" / "metadata.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert found[f"train/{record['file_name']}"]["objects"] == record["objects"]
