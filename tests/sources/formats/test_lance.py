"""Lance: the rows of the newest version come out, and nothing else of the folder."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from dataset_facts import keys
from in_this_process import convert
from reading import read, read_apart

import shardctl
from shardctl.errors import Rejection
from shardctl.interop.foreign_shards import check
from shardctl.sources.formats import Reading, ending_of, find_format

lance = pytest.importorskip("lance")

LANCE = find_format(".lance", Reading())


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "text": [None if n % 7 == 3 else f"text {n}" for n in numbers],
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(rows * 2), pa.float32()), 2
            ),
            "tags": [["a"] * (n % 3) for n in numbers],
            "at": pa.array(
                [datetime.datetime(2026, 1, 1, 0, 0, n % 60) for n in numbers], pa.timestamp("us")
            ),
            "data": pa.array([bytes([n % 256]) * 3 for n in numbers], pa.large_binary()),
        }
    )


def newest(folder: Path) -> Path:
    return min((folder / "_versions").glob("*.manifest"))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    lance.write_dataset(table(0, 100), str(tmp_path / "a.lance"), max_rows_per_file=30)
    return tmp_path / "a.lance"


def test_rows_come_out_with_their_types(dataset):
    found = read(LANCE, newest(dataset))
    assert found.rows == table(0, 100).to_pylist()
    assert found.table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert found.table.schema.field("data").type == pa.binary()


def test_units_are_read_apart(tmp_path):
    wide = pa.table(
        {"id": range(3000), "data": [np.random.default_rng(n).bytes(2000) for n in range(3000)]}
    )
    lance.write_dataset(wide, str(tmp_path / "a.lance"), max_rows_per_file=700)
    whole = read_apart(LANCE, newest(tmp_path / "a.lance"))
    assert whole.rows == wide.to_pylist()
    assert len(set(whole.digests)) == len(whole.digests)


def test_the_newest_version_is_read_without_what_was_deleted(dataset, tmp_path_factory):
    changed = lance.dataset(str(dataset))
    changed.delete("id % 10 = 3")
    changed.insert(table(100, 5))
    wanted = [n for n in range(100) if n % 10 != 3] + list(range(100, 105))
    assert [row["id"] for row in read(LANCE, newest(dataset)).rows] == wanted
    out = tmp_path_factory.mktemp("lance") / "out"
    convert(dataset.parent, out, key_field="id")
    assert keys(out) == [str(n) for n in wanted]
    result = check(dataset, 0)
    assert (result.ok, result.shards, result.samples) == (True, 1, len(wanted))


def test_manifests_that_are_numbered_upwards_are_known(tmp_path):
    path = str(tmp_path / "a.lance")
    lance.write_dataset(table(0, 5), path, enable_v2_manifest_paths=False)
    for _ in range(10):
        lance.write_dataset(table(5, 1), path, mode="append", enable_v2_manifest_paths=False)
    assert (tmp_path / "a.lance" / "_versions" / "11.manifest").exists()
    assert check(tmp_path / "a.lance", 0).samples == 15


def test_damaged_and_missing_files_are_named(dataset):
    manifest = newest(dataset)
    data = min((dataset / "data").glob("*.lance"))
    whole = data.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        data.write_bytes(whole[:size])
        with pytest.raises(Rejection):
            read(LANCE, manifest)
    data.unlink()
    assert [finding.kind for finding in check(dataset, 0).findings] == ["damaged"]
    manifest.write_bytes(manifest.read_bytes()[:20])
    with pytest.raises(Rejection):
        read(LANCE, manifest)


def test_files_of_others_beside_a_folder_of_this_name_are_inputs(tmp_path, out):
    folder = tmp_path / "_mine"
    names = ("data/a.jsonl", "_versions/b.json", "_deletions/c.json")
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f'{{"n": {number}}}\n')
    convert(folder, out, kind="table")
    assert sorted(sample["n"] for sample in shardctl.open(out)) == [0, 1, 2]


def test_the_name_of_a_manifest_tells_its_format(dataset):
    manifest = newest(dataset)
    assert ending_of(manifest.name, str(manifest)) == ".lance"
    assert ending_of("app.manifest", str(manifest)) != ".lance"
