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
    from torchvision import tv_tensors

    from shardctl.torch import Loader, detection

    ds = write(tmp_path / "out", SAMPLES, [(16, 12), (16, 12), (20, 9), (16, 12)])
    (batch,) = Loader(ds.loader(4, **OPTIONS))
    images, targets = detection(batch, label_offset=1)
    assert [type(image) for image in images] == [tv_tensors.Image] * 4
    assert [tuple(image.shape) for image in images] == [
        (3, 12, 16),
        (3, 12, 16),
        (3, 9, 20),
        (3, 12, 16),
    ]
    first, none, unknown, last = targets
    assert unknown is None
    assert isinstance(first["boxes"], tv_tensors.BoundingBoxes)
    assert (first["boxes"].format, first["boxes"].canvas_size) == (
        tv_tensors.BoundingBoxFormat.XYWH,
        (12, 16),
    )
    assert first["boxes"].tolist() == [[1, 2, 3, 4], [0, 0, 16, 12]]
    assert (first["labels"].tolist(), first["labels"].dtype) == ([3, 2], torch.int64)
    assert (first["iscrowd"].tolist(), first["area"].tolist(), first["id"].tolist()) == (
        [True, False],
        [12, 192],
        [10, 11],
    )
    assert none["boxes"].shape == (0, 4)
    assert none["masks"].shape == (0, 12, 16)
    assert isinstance(last["keypoints"], tv_tensors.KeyPoints)
    assert last["keypoints"].canvas_size == (12, 16)
    assert last["keypoints"].tolist() == [[[5, 5], [6, 7], [0, 0]]]
    assert last["visibility"].tolist() == [[2, 1, 0]]
    assert isinstance(last["mask"], tv_tensors.Mask)
    assert np.array_equal(last["mask"].numpy(), batch["mask"][3])
    assert isinstance(last["masks"], tv_tensors.Mask)
    assert (tuple(last["masks"].shape), last["masks"].dtype) == ((1, 12, 16), torch.uint8)
    inside = np.argwhere(last["masks"][0].numpy())
    assert (inside.min(axis=0).tolist(), inside.max(axis=0).tolist()) == ([4, 4], [7, 11])
    corners = detection(batch, box_format="XYXY", masks=False)[1]
    assert corners[0]["boxes"].tolist() == [[1, 2, 4, 6], [0, 0, 16, 12]]
    assert corners[0]["boxes"].format == tv_tensors.BoundingBoxFormat.XYXY
    assert "masks" not in corners[0]


def test_transforms_of_torchvision_move_a_target_as_the_loader_does(tmp_path, torchvision):
    from torchvision.transforms import v2

    from shardctl.torch import detection

    mask = np.zeros((12, 16), bool)
    # it fills its box, and what is left of it fills what is left of that
    mask[3:8, 3:8] = np.arange(25).reshape(5, 5) % 2 == 0
    runs = {"size": (12, 16), "counts": rle.encode(mask)}
    marked = [
        thing([5, 3, 4, 6], segmentation=[[5, 3, 9, 3, 9, 9, 5, 9]]),
        thing([3, 3, 5, 5], rle=runs),
    ]
    ds = write(tmp_path / "out", [marked])
    options: list[dict[str, Any]] = [{}, {"crop": 8, "flip": 1.0}]
    (stored, targets), (cut, moved) = (
        detection(next(iter(ds.loader(1, **OPTIONS, **each)))) for each in options
    )
    compose = v2.Compose([v2.CenterCrop(8), v2.RandomHorizontalFlip(1.0), v2.ClampBoundingBoxes()])
    image, theirs = compose(stored[0], targets[0])
    ours = moved[0]
    assert ours is not None
    assert torch.equal(image, cut[0])
    assert torch.equal(theirs["boxes"], ours["boxes"])
    assert torch.equal(theirs["masks"], ours["masks"])
    assert torch.equal(theirs["mask"], ours["mask"])


def test_what_a_batch_lacks_is_said(tmp_path, torchvision):
    from shardctl.torch import detection

    ds = write(tmp_path / "out", SAMPLES)
    for options, why in [
        ({}, r"an image is \(12, 16, 3\), not \(3, height, width\); give channels_first=True"),
        ({"columns": ["image", "key"]}, "the batch has no field 'objects'; it has image, key"),
        ({"pad": {"objects": 0}}, "the batch has no field 'objects'"),
        (
            {**OPTIONS, "columns": ["image", "objects.bbox"]},
            "objects have no bbox and category, but bbox",
        ),
    ]:
        with pytest.raises(UsageError, match=why):
            detection(next(iter(ds.loader(4, **options))))
    with pytest.raises(UsageError, match="box_format is XYWH or XYXY; it is 'xyxy'"):
        detection(next(iter(ds.loader(4))), box_format="xyxy")


def test_without_torchvision_it_says_what_to_install(tmp_path, monkeypatch):
    from shardctl.torch import detection

    monkeypatch.setitem(sys.modules, "torchvision", None)
    (batch,) = write(tmp_path / "out", SAMPLES).loader(4, **OPTIONS)
    with pytest.raises(ImportError, match="detection needs torchvision: pip install torchvision"):
        detection(batch)


def test_a_sample_without_a_mask_has_a_target_without_one(tmp_path, torchvision):
    from shardctl.torch import detection

    (batch,) = write(tmp_path / "out", SAMPLES).loader(4, **OPTIONS)
    masks = [mask if place else None for place, mask in enumerate(batch["mask"])]
    targets = detection({**batch, "mask": masks})[1]
    assert ["mask" in target for target in targets if target is not None] == [False, True, True]
