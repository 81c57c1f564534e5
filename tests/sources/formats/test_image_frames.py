"""Animations and pages: the first frame with a note, or a sample of each; Pillow reads the frames
for comparison."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_facts import rejects_of
from in_this_process import convert
from PIL import Image, ImageSequence

import shardctl
from shardctl.errors import UsageError

FRAMES = 4


def pixels(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Classes a and b, each with a GIF, a WebP, an APNG and a TIFF of some frames, and a JPEG."""
    for place, name in enumerate("ab"):
        folder = tmp_path / "in" / name
        folder.mkdir(parents=True)
        frames = [Image.fromarray(pixels(10 * place + number)) for number in range(FRAMES)]
        for ending, more in (
            (".gif", {}),
            (".webp", {"lossless": True}),
            (".png", {}),
            (".tif", {}),
        ):
            frames[0].save(folder / f"x{ending}", save_all=True, append_images=frames[1:], **more)
        frames[0].save(folder / "y.jpg")
    return tmp_path / "in"


def expected(source: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(source.rglob("*.*")):
        with Image.open(path) as image:
            for number, frame in enumerate(ImageSequence.Iterator(image), 1):
                found[f"{path.relative_to(source)}#{number}"] = np.asarray(frame.convert("RGB"))
    return found


@pytest.mark.parametrize("store", ["source", "png"])
def test_each_frame_becomes_a_sample(source, out, store):
    result = convert(source, out, frames="all", store=store)
    wanted = expected(source)
    assert len(wanted) == 2 * (4 * FRAMES + 1)
    dataset = shardctl.open(out)
    assert {sample["key"] for sample in dataset} == set(wanted)
    for sample in dataset:
        assert np.array_equal(sample["image"], wanted[sample["key"]]), sample["key"]
        assert dataset.classes[sample["label"]] == sample["key"][0]
    assert "frames" not in str(result.notices)
    assert shardctl.verify(out, level="deep").ok
    assert convert(source, out, frames="all", store=store).status == "up-to-date"


def test_shares_do_not_divide_the_frames_of_a_file(source, tmp_path):
    """They are drawn as the files are where each is one image, and stay there when others come."""
    for number in range(30):
        (source / "a" / f"{number}#x.gif").write_bytes((source / "a" / "x.gif").read_bytes())

    def split_of_files(out: str, **more: Any) -> dict[str, set[str]]:
        convert(source, tmp_path / out, split="train=0.6,val=0.4", labels="none", **more)
        found: dict[str, set[str]] = {}
        for split in ("train", "val"):
            for sample in shardctl.open(tmp_path / out, split=split):
                found.setdefault(re.sub(r"#\d+$", "", sample["key"]), set()).add(split)
        return found

    whole = split_of_files("whole")
    assert split_of_files("frames", frames="all") == whole
    assert {split for splits in whole.values() for split in splits} == {"train", "val"}
    (source / "b" / "new.gif").write_bytes((source / "a" / "x.gif").read_bytes())
    after = split_of_files("frames", frames="all", update=True)
    assert len(after.pop("b/new.gif")) == 1
    assert after == whole
    assert {"train", "val"} in split_of_files("grouped", frames="all", group="(.*)").values(), (
        "as it is said"
    )


def test_pages_of_deep_gray_and_of_floating_point_keep_their_values(tmp_path, out):
    (tmp_path / "in").mkdir()
    pages = [np.full((8, 9), value, np.float32) for value in (-7.5, 0.25, 3000.0)]
    first, *others = map(Image.fromarray, pages)
    first.save(tmp_path / "in" / "heights.tif", save_all=True, append_images=others)
    deep = [np.full((8, 9), value, np.uint16) for value in (0, 1000, 4000)]
    first, *others = map(Image.fromarray, deep)
    first.save(tmp_path / "in" / "xray.tif", save_all=True, append_images=others)
    convert(tmp_path / "in", out, frames="all", gray16="0:4000", store="png")
    found = {sample["key"]: int(sample["image"].max()) for sample in shardctl.open(out)}
    levels = [0, 0, 191, 0, 64, 255]
    keys = [f"{name}.tif#{number}" for name in ("heights", "xray") for number in (1, 2, 3)]
    assert found == dict(zip(keys, levels, strict=True))


def test_a_damaged_frame_and_one_that_is_too_large_are_rejects(source, out):
    (source / "a" / "broken.gif").write_bytes((source / "a" / "x.gif").read_bytes()[:40])
    (source / "a" / "phone.heic").write_bytes(b"\0\0\0\x24ftypheic\0\0\0\0mif1heic" + bytes(40))
    small, large = (Image.new("RGB", size) for size in ((10, 10), (99, 99)))
    small.save(source / "a" / "pages.tif", save_all=True, append_images=[large, small])
    result = convert(source, out, frames="all", max_pixels=5000, max_rejects="50%")
    rejected = {each.key: each.error for each in rejects_of(out)}
    assert rejected == {
        "a/broken.gif": "damaged",
        "a/pages.tif#2": "too-many-pixels",
        "a/phone.heic": "format-not-allowed",
    }
    assert result.samples == 2 * (4 * FRAMES + 1) + 2


def test_annotations_of_whole_files_are_refused(source, out):
    (source / "metadata.jsonl").write_text(
        '{"file_name": "a/x.gif", "objects": {"bbox": [[1, 2, 3, 4]], "category": [0]}}\n'
    )
    with pytest.raises(
        UsageError, match=r"metadata\.jsonl: objects is about files that are images each"
    ):
        convert(source, out, frames="all", lenient_labels=True)
    (source / "metadata.jsonl").unlink()
    with pytest.raises(UsageError, match=r"masks:.* is about files that are images each"):
        convert(source, out, frames="all", labels=f"masks:{source}")
