"""Annotations of images that EXIF turns, where their size does not tell the frame."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from making import box, converted, mask, photo, rejects, samples, values_of

import shardctl
from shardctl.errors import InputError
from shardctl.sources.annotations import finishing

Listed = dict[str, tuple[int, tuple[int, int], tuple[int, int]]]
"""By name: the orientation, the size as it is stored, and the size that the annotations say."""

UNCLEAR: Listed = {
    "half.jpg": (3, (8, 6), (8, 6)),
    "mirror.jpg": (2, (8, 6), (8, 6)),
    "square.jpg": (6, (6, 6), (6, 6)),
}
PLAIN: Listed = {"plain.jpg": (1, (8, 6), (8, 6))}
STORED: Listed = {"stored.jpg": (6, (8, 6), (8, 6))}
UPRIGHT: Listed = {"upright.jpg": (6, (8, 6), (6, 8))}


def written(root: Path, listed: Listed) -> str:
    """Write the images, and a COCO file with a box in the left upper corner of each, as [0, 0, 2,
    1]."""
    images, annotations = [], []
    for number, (name, (orientation, size, said)) in enumerate(listed.items(), 1):
        photo(root / "in" / name, size, orientation)
        images.append({"id": number, "file_name": name, "width": said[0], "height": said[1]})
        annotations.append(box(number, (0, 0, 2, 1)))
    record = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 3, "name": "cat"}],
    }
    (root / "coco.json").write_text(json.dumps(record))
    return f"coco:{root}/coco.json"


def boxes(out: Path) -> dict[str, list[float]]:
    return {key: sample["objects"]["bbox"][0] for key, sample in samples(out).items()}


TURNED = {
    "half.jpg": [6, 5, 2, 1],
    "mirror.jpg": [6, 0, 2, 1],
    "square.jpg": [5, 0, 1, 2],
    "plain.jpg": [0, 0, 2, 1],
}
AS_THEY_ARE = dict.fromkeys(TURNED, TURNED["plain.jpg"])
WITH_STORED = {**TURNED, "stored.jpg": [5, 0, 1, 2]}


@pytest.mark.parametrize("workers", [0, 2])
def test_those_that_tell_the_frame_tell_it_for_the_others(tmp_path, out, workers):
    labels = written(tmp_path, UNCLEAR | PLAIN | STORED)
    result = shardctl.convert(tmp_path / "in", out, labels=[labels], workers=workers)
    assert boxes(out) == WITH_STORED
    said = str(result.notices)
    assert "EXIF turns 3 images whose size does not tell the frame" in said
    assert "of the stored image (as others say)" in said


def test_sizes_that_tell_both_frames_are_refused_with_counts_and_the_option(tmp_path, out):
    labels = written(tmp_path, UNCLEAR | PLAIN | STORED | UPRIGHT)
    with pytest.raises(InputError, match=r"1 image fit .* 1 the upright one.*annotation_frame"):
        converted(tmp_path / "in", out, labels)
    assert not (out / "manifest.json").exists()
    converted(tmp_path / "in", out, labels, annotation_frame="stored")
    assert {name: error for name, (error, _) in rejects(out).items()} == {
        "upright.jpg": "other-size"
    }
    assert boxes(out) == WITH_STORED


def test_where_nothing_tells_the_frame_a_note_counts_what_is_taken_as_upright(tmp_path, out):
    result = converted(tmp_path / "in", out, written(tmp_path, UNCLEAR | PLAIN))
    assert boxes(out) == AS_THEY_ARE
    assert "EXIF turns 3 images whose size does not tell" in str(result.notices)
    again = converted(tmp_path / "in", tmp_path / "two", written(tmp_path, PLAIN))
    assert "EXIF" not in str(again.notices)


def test_an_image_that_was_not_looked_at_is_never_taken_in_a_wrong_frame(tmp_path, monkeypatch):
    """Of the first and the last one is looked at: what contradicts these is a reject, and so is
    what nothing tells."""
    monkeypatch.setattr(finishing, "LOOKED_AT", 2)
    plain, stored, upright, half = (
        *PLAIN.values(),
        *STORED.values(),
        *UPRIGHT.values(),
        UNCLEAR["half.jpg"],
    )
    for name, shots, error, found in (
        ("contradicts", (stored, upright, half), "other-size", [[5, 0, 1, 2], [6, 5, 2, 1]]),
        ("untold", (plain, half, plain), "unknown-frame", [[0, 0, 2, 1]] * 2),
    ):
        root = tmp_path / name
        labels = written(root, dict(zip(("a.jpg", "b.jpg", "c.jpg"), shots, strict=True)))
        converted(root / "in", root / "out", labels)
        assert rejects(root / "out")["b.jpg"][0] == error
        assert list(boxes(root / "out").values()) == found


def test_images_that_an_update_adds_tell_the_frame_of_those_that_are_there(tmp_path, out):
    """What was made in the other frame is made anew: an update gives what a new conversion
    gives."""
    labels = written(tmp_path, UNCLEAR | PLAIN)
    converted(tmp_path / "in", out, labels)
    written(tmp_path, UNCLEAR | PLAIN | STORED)
    converted(tmp_path / "in", out, labels, update=True)
    assert boxes(out) == WITH_STORED
    written(tmp_path, UNCLEAR | PLAIN | STORED | UPRIGHT)
    with pytest.raises(InputError, match="annotation_frame"):
        converted(tmp_path / "in", out, labels, update=True)
    assert boxes(out) == WITH_STORED


def test_masks_tell_their_frame_by_their_own_sizes(tmp_path, out):
    for name, (orientation, size, _) in (UNCLEAR | STORED).items():
        photo(tmp_path / "in" / name, size, orientation)
        mask(tmp_path / "masks" / f"{name[:-4]}.png", values_of(size), "L")
    result = converted(tmp_path / "in", out, f"masks:{tmp_path}/masks")
    found = {sample["key"]: sample["mask"] for sample in shardctl.open(out)}
    assert np.array_equal(found["half.jpg"], values_of((8, 6))[::-1, ::-1])
    assert np.array_equal(found["mirror.jpg"], values_of((8, 6))[:, ::-1])
    assert np.array_equal(found["square.jpg"], np.rot90(values_of((6, 6)), -1))
    assert "mask: EXIF turns 3 images" in str(result.notices)
