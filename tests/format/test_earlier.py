"""Datasets that earlier commits made: they open, or they are refused with the version that reads
them (earlier/README.md)."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardctl
from shardctl.errors import DatasetError
from shardctl.images.codecs import backend

EARLIER = Path(__file__).parent / "earlier"

REFUSED = ("eb0362ab", "cd8e6d4f")
OPENED = ("e7c2c638", "8884cb86", "277d4520")
WITH_UPDATES = OPENED[1:]


@pytest.fixture
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(EARLIER / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "all"


def test_every_archive_is_tested():
    assert {path.name.partition(".")[0] for path in EARLIER.glob("*.tar.xz")} == {*REFUSED, *OPENED}
    readme = (EARLIER / "README.md").read_text()
    assert all(f"| `{commit}` |" in readme for commit in (*REFUSED, *OPENED))


@pytest.mark.parametrize("unpacked", REFUSED, indirect=True)
def test_version_1_is_refused_with_what_to_do(unpacked):
    said = r"format version 1; .* reads version 2.*convert the sources again"
    for call in (shardctl.open, shardctl.inspect):
        with pytest.raises(DatasetError, match=said):
            call(unpacked / "raw")
    (finding,) = shardctl.verify(unpacked / "raw").findings
    assert re.search(said, finding.message)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("unpacked", OPENED, indirect=True)
def test_version_2_opens_whole_with_the_values_of_its_sources(unpacked):
    datasets = sorted(path.name for path in unpacked.iterdir() if path.name != "sources")
    assert datasets in (
        ["jpeg", "lines", "raw", "source", "texts"],
        ["jpeg", "lines", "raw", "source", "texts", "tokens"],
    )
    for name in datasets:
        assert shardctl.verify(unpacked / name, level="deep").findings == ()
        assert shardctl.inspect(unpacked / name).samples == len(shardctl.open(unpacked / name)) > 0
    sources = unpacked / "sources"
    kept = shardctl.open(unpacked / "source")
    assert {kept.classes[sample["label"]] for sample in kept} == {"cats", "dogs"}
    for sample in kept:
        with Image.open(sources / "photos" / sample["key"]) as picture:
            assert np.array_equal(sample["image"], np.asarray(picture))
    raw = shardctl.open(unpacked / "raw")
    assert {split.name for split in raw.manifest.splits} == {"train", "val"}
    for sample in raw:
        with Image.open(sources / "photos" / sample["key"]) as picture:
            assert np.array_equal(sample["image"], np.asarray(picture.crop((2, 0, 18, 16))))
    assert next(iter(raw.loader(batch_size=6, shuffle=True, seed=0)))["image"].shape == (
        6,
        16,
        16,
        3,
    )
    texts = {sample["key"]: sample["text"] for sample in shardctl.open(unpacked / "texts")}
    assert texts == {path.name: path.read_text() for path in (sources / "texts").iterdir()}
    lines = [
        {name: sample[name] for name in ("text", "id", "score")}
        for sample in shardctl.open(unpacked / "lines")
    ]
    assert lines == [
        json.loads(line) for line in (sources / "lines.jsonl").read_text().splitlines()
    ]
    if "tokens" in datasets:
        tokens = shardctl.open(unpacked / "tokens")
        assert b"line 0" in bytes(
            np.concatenate([sample["tokens"] for sample in tokens]).clip(0, 255).astype(np.uint8)
        )


@pytest.mark.parametrize("unpacked", OPENED, indirect=True)
def test_damage_in_version_2_is_found_and_repaired_from_its_sources(unpacked):
    dataset = unpacked / "raw"
    shard = dataset / "train-00000.arrow"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not shardctl.verify(dataset).ok
    assert shardctl.repair(dataset, sources=[unpacked / "sources" / "photos"], workers=0).ok
    assert shard.read_bytes() == whole


@pytest.mark.parametrize("unpacked", WITH_UPDATES, indirect=True)
def test_version_2_follows_its_sources(unpacked):
    dataset, photos = unpacked / "raw", unpacked / "sources" / "photos"
    manifest = json.loads((dataset / "manifest.json").read_text())
    (before,), imaging = manifest["sources"], manifest["environment"]
    shutil.copy(photos / "cats" / "0.png", photos / "cats" / "9.png")
    options = {
        "crop": 16,
        "store": "raw",
        "split": {"train": 0.5, "val": 0.5},
        "shuffle": 1,
        "workers": 0,
    }
    if (imaging["imaging"], imaging["libraries"]) != (
        backend.require_one(),
        ", ".join(backend.libraries()),
    ):
        with pytest.raises(DatasetError, match="other versions made it"):
            shardctl.convert(photos, dataset, update=True, moved_from=[before], **options)
    else:
        result = shardctl.convert(photos, dataset, update=True, moved_from=[before], **options)
        assert (result.status, result.samples) == ("updated", 7)
    assert shardctl.verify(dataset).ok
