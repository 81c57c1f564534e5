"""Batches of objects as torchvision takes them, where it is installed: `make setup` installs it
where it can."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from objects_in_images import SAMPLES, thing, write

from shardctl.errors import UsageError
from shardctl.images.codecs import rle

torch = pytest.importorskip("torch")

OPTIONS: dict[str, Any] = {"channels_first": True, "threads": 1}


def test_a_batch_becomes_images_and_targets(tmp_path, torchvision):
    from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image, KeyPoints, Mask

    from shardctl.torch import Loader, detection

    sizes = [(16, 12), (16, 12), (20, 9), (16, 12)]
    ds = write(tmp_path / "out", SAMPLES, sizes)
    (batch,) = Loader(ds.loader(4, **OPTIONS))
    images, targets = detection(batch, label_offset=1)
    shapes = [(3, height, width) for width, height in sizes]
    assert [(type(image), tuple(image.shape)) for image in images] == [(Image, s) for s in shapes]
    first, none, unknown, last = targets
    assert unknown is None
    kinds = {"boxes": BoundingBoxes, "keypoints": KeyPoints, "mask": Mask, "masks": Mask}
    assert {name: type(last[name]) for name in kinds} == kinds
    assert (first["boxes"].format, first["boxes"].canvas_size) == (BoundingBoxFormat.XYWH, (12, 16))
    wanted = {
        "boxes": [[1, 2, 3, 4], [0, 0, 16, 12]],
        "labels": [3, 2],
        "iscrowd": [True, False],
        "area": [12, 192],
        "id": [10, 11],
    }
    assert {name: first[name].tolist() for name in wanted} == wanted
    assert first["labels"].dtype == torch.int64
    assert none["boxes"].shape == (0, 4)
    assert none["masks"].shape == (0, 12, 16)
    assert last["keypoints"].canvas_size == (12, 16)
    assert last["keypoints"].tolist() == [[[5, 5], [6, 7], [0, 0]]]
    assert last["visibility"].tolist() == [[2, 1, 0]]
    assert np.array_equal(last["mask"].numpy(), batch["mask"][3])
    assert (tuple(last["masks"].shape), last["masks"].dtype) == ((1, 12, 16), torch.uint8)
    inside = np.argwhere(last["masks"][0].numpy())
    assert [*inside.min(axis=0), *inside.max(axis=0)] == [4, 4, 7, 11]
    corners = detection(batch, box_format="XYXY", masks=False)[1][0]
    assert corners["boxes"].tolist() == [[1, 2, 4, 6], [0, 0, 16, 12]]
    assert corners["boxes"].format == BoundingBoxFormat.XYXY
    assert "masks" not in corners


def test_transforms_of_torchvision_move_a_target_as_the_loader_does(tmp_path, torchvision):
    from torchvision.transforms import v2

    from shardctl.torch import detection

    mask = np.zeros((12, 16), bool)
    # it fills its box, and what is left of it fills what is left of that
    mask[3:8, 3:8] = np.arange(25).reshape(5, 5) % 2 == 0
    runs = {"size": (12, 16), "counts": rle.encode(mask)}
    outline = [[5, 3, 9, 3, 9, 9, 5, 9]]
    marked = [thing([5, 3, 4, 6], segmentation=outline), thing([3, 3, 5, 5], rle=runs)]
    ds = write(tmp_path / "out", [marked])
    (stored, targets), (cut, moved) = (
        detection(next(iter(ds.loader(1, **OPTIONS, **each))))
        for each in ({}, {"crop": 8, "flip": 1.0})
    )
    compose = v2.Compose([v2.CenterCrop(8), v2.RandomHorizontalFlip(1.0), v2.ClampBoundingBoxes()])
    image, theirs = compose(stored[0], targets[0])
    assert torch.equal(image, cut[0])
    for name in ("boxes", "masks", "mask"):
        assert torch.equal(theirs[name], moved[0][name]), name


def test_what_a_batch_lacks_is_said(tmp_path, torchvision):
    from shardctl.torch import detection

    ds = write(tmp_path / "out", SAMPLES)
    for options, why in (
        ({}, "give channels_first=True"),
        ({"columns": ["image", "key"]}, "no field 'objects'; it has image, key"),
        ({"pad": {"objects": 0}}, "no field 'objects'"),
        ({**OPTIONS, "columns": ["image", "objects.bbox"]}, "no bbox and category, but bbox"),
    ):
        with pytest.raises(UsageError, match=why):
            detection(next(iter(ds.loader(4, **options))))
    with pytest.raises(UsageError, match="XYWH or XYXY"):
        detection(next(iter(ds.loader(4))), box_format="xyxy")


def test_without_torchvision_it_says_what_to_install(tmp_path, monkeypatch):
    from shardctl.torch import detection

    monkeypatch.setitem(sys.modules, "torchvision", None)
    (batch,) = write(tmp_path / "out", SAMPLES).loader(4, **OPTIONS)
    with pytest.raises(ImportError, match=r"needs torchvision: .*pip install torchvision"):
        detection(batch)


def test_a_sample_without_a_mask_has_a_target_without_one(tmp_path, torchvision):
    from shardctl.torch import detection

    (batch,) = write(tmp_path / "out", SAMPLES).loader(4, **OPTIONS)
    masks = [mask if place else None for place, mask in enumerate(batch["mask"])]
    targets = detection({**batch, "mask": masks})[1]
    assert ["mask" in target for target in targets if target is not None] == [False, True, True]
