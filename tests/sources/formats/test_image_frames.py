"""Animations and pages: the first frame with a note, or a sample of each; Pillow reads the frames
for comparison."""

from __future__ import annotations

import re
import shutil
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
        first, *others = (Image.fromarray(pixels(10 * place + number)) for number in range(FRAMES))
        for ending in ("gif", "webp", "png", "tif"):
            more = {"lossless": True} if ending == "webp" else {}
            first.save(folder / f"x.{ending}", save_all=True, append_images=others, **more)
        first.save(folder / "y.jpg")
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
        shutil.copy(source / "a" / "x.gif", source / "a" / f"{number}#x.gif")

    def split_of_files(out: str, **more: Any) -> dict[str, set[str]]:
        convert(source, tmp_path / out, split="train=0.6,val=0.4", labels="none", **more)
        found: dict[str, set[str]] = {}
        for split in ("train", "val"):
            for sample in shardctl.open(tmp_path / out, split=split):
                found.setdefault(re.sub(r"#\d+$", "", sample["key"]), set()).add(split)
        return found

    whole = split_of_files("whole")
    assert split_of_files("frames", frames="all") == whole
    assert {"train"} in whole.values()
    assert {"val"} in whole.values()
    shutil.copy(source / "a" / "x.gif", source / "b" / "new.gif")
    after = split_of_files("frames", frames="all", update=True)
    assert len(after.pop("b/new.gif")) == 1
    assert after == whole
    as_it_is_said = split_of_files("grouped", frames="all", group="(.*)")
    assert {"train", "val"} in as_it_is_said.values()


def test_pages_of_deep_gray_and_of_floating_point_keep_their_values(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    for name, dtype, values in (
        ("heights", np.float32, (-7.5, 0.25, 3000.0)),
        ("xray", np.uint16, (0, 1000, 4000)),
    ):
        first, *others = (Image.fromarray(np.full((8, 9), value, dtype)) for value in values)
        first.save(source / f"{name}.tif", save_all=True, append_images=others)
    convert(source, out, frames="all", gray16="0:4000", store="png")
    ds = shardctl.open(out)
    assert [int(sample["image"].max()) for sample in ds] == [0, 0, 191, 0, 64, 255]
    assert ds[4]["key"] == "xray.tif#2"


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
