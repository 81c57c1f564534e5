"""What a notebook shows of a dataset and of results: tables, escaped, in which nothing runs. And
their repr: one line."""

from __future__ import annotations

import base64
import io
import os
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from dataset_files import shards_in
from PIL import Image

import shardctl

HOSTILE = "\"'><img src=x onerror=alert(1)>"


class Shown(HTMLParser):
    """HTML that was read: its tags with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


TAGS = set("div b table thead tbody tr th td span img br".split())


def shown(what: Any) -> Shown:
    """Return what a notebook shows of an object, in which nothing runs or is loaded."""
    found = Shown(what._repr_html_())
    assert found.open == []
    assert {tag for tag, _ in found.tags} <= TAGS
    for tag, attributes in found.tags:
        assert set(attributes) <= ({"src", "alt", "style"} if tag == "img" else {"style"})
        assert (attributes.get("src") or "data:image/").startswith("data:image/")
    assert len(repr(what).splitlines()) == 1
    assert len(repr(what)) < 300
    return found


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose keys, texts, class names, categories and columns are HTML."""
    out = tmp_path_factory.mktemp("hostile") / "<b>out"
    samples = [
        {
            "key": f"{HOSTILE}/{number}.jpg",
            "image": np.full((30, 40, 3), number * 20, np.uint8),
            "mask": np.full((30, 40), number % 3, np.uint8),
            "label": number % 2,
            "objects": {"bbox": [[1.0, 2.0, 20.0, 15.0]], "category": [0]},
            HOSTILE: HOSTILE * 10,
        }
        for number in range(7)
    ]
    roles = {"objects": {"role": "objects", "names": [HOSTILE]}, "mask": "mask"}
    shardctl.write(out, samples, classes=[HOSTILE, "dog"], roles=roles)
    return out


def test_a_dataset_is_shown_with_its_first_samples_and_small_pictures(hostile):
    ds = shardctl.open(hostile)
    found = shown(ds)
    for said in (
        "7 samples",
        f"{HOSTILE}/4.jpg",
        "raw image, 30x40x3",
        f"0 ({HOSTILE})",
        "1 (dog)",
        f"1 {HOSTILE}",
    ):
        assert said in found.text
    assert f"{HOSTILE}/5.jpg" not in found.text, "five are enough"
    pictures = [attributes["src"] for tag, attributes in found.tags if tag == "img"]
    assert len(pictures) == 10, "an image and a mask of each"
    first = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[0].partition(",")[2]))))
    assert np.ptp(first, axis=2).max() > 50, "a box in its colour is on the grey image"
    assert "/../" not in repr(shardctl.open(hostile / ".." / hostile.name))
    assert f"{HOSTILE}/6.jpg" in shown(ds[6:7]).text
    assert type(ds[6]) is dict, "a sample is plain data"
    assert f"{HOSTILE}/6.jpg" in shown(ds.filter("index == 6")).text
    assert "0 samples" in shown(ds.limit(0)).text


def test_a_dataset_that_is_damaged_is_shown_all_the_same(dataset):
    ds = shardctl.open(dataset)
    for shard in shards_in(dataset):
        os.truncate(shard, 100)
    found = shown(ds)
    assert "60 samples" in found.text
    assert "the samples cannot be shown" in found.text


RESULTS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "inspect": (
        lambda out: shardctl.inspect(out),
        ("59 image samples", "(6 classes)", "sunset", "rejected: 1 of 60 inputs", HOSTILE),
    ),
    "inspect a shard": (
        lambda out: shardctl.inspect(next(iter(shards_in(out))), stats=True),
        ("blocks", "holds"),
    ),
    "verify": (lambda out: shardctl.verify(out), ("whole", "59 samples", "no findings")),
    "repair": (lambda out: shardctl.repair(out), ("whole", "nothing was done")),
    "export": (
        lambda out: shardctl.export(out, out.parent / "<i>parquet", "parquet", workers=0),
        ("<i>parquet", "train", "59", "data/train-00000-of-00007.parquet"),
    ),
    "bench": (
        lambda out: shardctl.bench(out, runs=2, seconds=0.1, batch_size=8, consumer_rate=100),
        ("samples/s", "keeps up", "such GPUs", "ms per batch"),
    ),
}
"""Results of a whole dataset, and what is shown of each."""


@pytest.fixture(scope="module")
def made(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The result of a conversion in which an input with a hostile name was rejected, and the
    dataset."""
    root = tmp_path_factory.mktemp("made")
    shutil.copytree(photos, root / "in")
    next(iter(sorted((root / "in").rglob("*.jpg")))).unlink()
    (root / "in" / "snow" / f"{HOSTILE}.jpg").write_bytes(b"bad")
    return shardctl.convert(root / "in", root / "out", resize=32, crop=32, workers=0), root / "out"


def test_a_conversion_is_shown_with_its_rejects(made):
    found = shown(made[0])
    for said in (
        "created: 59 samples in 7 shards",
        "1 input rejected",
        "decode: not-an-image",
        HOSTILE,
    ):
        assert said in found.text


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_with_its_figures(name, made):
    make, said = RESULTS[name]
    found = shown(make(made[1]))
    for each in said:
        assert each in found.text


def test_findings_are_a_table_with_the_severity_of_each(dataset):
    flip(next(iter(shards_in(dataset))))
    (dataset / f"{HOSTILE}.txt").touch()
    result = shardctl.verify(dataset)
    found = shown(result)
    for said in ("DAMAGED", "error", "warning", HOSTILE, *(each.kind for each in result.findings)):
        assert said in found.text
    assert "repaired" in shown(shardctl.repair(dataset)).text
