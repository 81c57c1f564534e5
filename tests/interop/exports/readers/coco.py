"""Print what pycocotools finds in annotations: for each image its annotations, with the pixels of
their masks."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

from plain import show
from pycocotools.coco import COCO

with contextlib.redirect_stdout(io.StringIO()):
    coco = COCO(Path(sys.argv[1]) / "annotations" / "instances_train.json")
names = {category["id"]: category["name"] for category in coco.loadCats(coco.getCatIds())}
found = {
    image["file_name"]: [
        {
            "name": names[each["category_id"]],
            "bbox": each["bbox"],
            "iscrowd": each["iscrowd"],
            "pixels": int(coco.annToMask(each).sum()) if each["segmentation"] else None,
            "num_keypoints": each.get("num_keypoints"),
        }
        for each in coco.loadAnns(coco.getAnnIds(imgIds=image["id"]))
    ]
    for image in coco.loadImgs(coco.getImgIds())
}
show(found)
