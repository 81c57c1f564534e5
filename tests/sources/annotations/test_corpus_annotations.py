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
    labels = {
        "coco": [f"coco:{root}/instances.json", f"masks:{root}/masks_semantic"],
        "yolo": [f"yolo:{root}/labels_yolo"],
        "segments": [f"yolo:{root}/labels_yolo_seg"],
    }
    for name, each in labels.items():
        converted(root / "images", tmp_path / name, *each)
        assert rejects(tmp_path / name) == {}
    coco, yolo, segments = (samples(tmp_path / name) for name in labels)
    close = total = 0
    for key, sample in coco.items():
        objects, shapes = sample["objects"], segments[key]["objects"]
        for runs in filter(None, objects["rle"]):
            assert rle.decode(runs["counts"], tuple(runs["size"])).any()
        theirs = np.array(yolo[key]["objects"]["bbox"]).reshape(-1, 4)
        for box, crowd in zip(objects["bbox"], objects["iscrowd"], strict=True):
            total += not crowd
            close += not crowd and bool((np.abs(theirs - box).max(axis=1) < 1).any())
        assert len(shapes["bbox"]) == len(shapes["segmentation"])
    assert total > 150
    assert close / total > 0.95, "but for a few that were corrected"


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
