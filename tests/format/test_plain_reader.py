"""docs/format.md is enough to read a dataset: a reader of 80 lines reads what shardctl reads."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from dataset_facts import tree
from forged_datasets import write_manifest
from plain_reader import PlainReader

import shardctl
from shardctl.errors import DatasetError

EARLIER = Path(__file__).parent / "earlier"
OF_FORMAT_2 = ("e7c2c638", "8884cb86", "277d4520", "7ea9dfe6")


def expect_same(reader: PlainReader, ds: shardctl.Dataset) -> None:
    keys = [sample["key"] for sample in ds]
    assert [sample["key"] for sample in reader.samples()] == keys
    assert len(reader) == len(keys)
    places = sorted({0, len(keys) // 2, len(keys) - 1})
    assert [reader.sample(place)["key"] for place in places] == [keys[place] for place in places]


def test_the_reader_imports_nothing_of_shardctl_and_is_short():
    text = (Path(__file__).parent / "plain_reader.py").read_text()
    assert "shardctl.format" not in text
    assert "import shardctl" not in text
    assert len(text.splitlines()) < 80


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("commit", OF_FORMAT_2)
def test_it_reads_datasets_of_format_2(commit: str, tmp_path: Path):
    with tarfile.open(EARLIER / f"{commit}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for dataset in (tmp_path / "all").iterdir():
        if dataset.name != "sources":
            expect_same(PlainReader(dataset), shardctl.open(dataset))


def test_it_reads_all_generations_that_are_there(tmp_path: Path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(12):
        (texts / f"{number}.txt").write_text(f"text {number}\n")
        if number % 4 == 3:
            shardctl.convert(texts, tmp_path / "out", update=True, keep_generations=2, workers=0)
    for number in (1, 2, 3):
        ds = shardctl.open(tmp_path / "out", generation=number)
        assert len(ds) == 4 * number
        expect_same(PlainReader(tmp_path / "out", number), ds)


def test_a_need_that_is_not_known_is_refused_by_its_name(tmp_path: Path):
    shardctl.write(tmp_path / "out", [{"text": "one"}])
    manifest = shardctl.open(tmp_path / "out").manifest
    record = json.loads(manifest.to_json()) | {"needs": ["columns-apart"]}
    write_manifest(tmp_path / "out", record)
    before = tree(tmp_path / "out")
    for command in (shardctl.open, shardctl.inspect, shardctl.compact, shardctl.repair):
        with pytest.raises(DatasetError, match="needs columns-apart"):
            command(tmp_path / "out")
    assert tree(tmp_path / "out") == before
    with pytest.raises(ValueError, match="columns-apart"):
        PlainReader(tmp_path / "out")
