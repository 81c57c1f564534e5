"""Files that somebody else made, or that were damaged: only our named errors come out of their
readers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from damage import file_of
from dataset_facts import tree
from dataset_files import shard_in, tables_in
from forged_datasets import read_table, replace_column, signed, write_manifest, write_table
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from places import file_at

import shardctl
from shardctl.errors import DatasetError, ShardctlError, StorageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.manifest import Manifest
from shardctl.format.shard import ShardReader
from shardctl.format.tables import ShardTable, open_checked_table, read_checksums, read_rejects
from shardctl.system.folders import LocalFolder

SHARD = "train-00000"


def read_shard(path: Path) -> None:
    reader = ShardReader(*file_at(path))
    for number, block in enumerate(reader.blocks()):
        block.slice(0, 2).to_pylist()
        reader.checked_block(number)
    assert reader.layout.columns.names


def read_shard_table(path: Path) -> None:
    table = ShardTable(LocalFolder(path.parent))
    assert sum(entry.rows for entry in table) == table.rows.sum()


def read_files(path: Path) -> None:
    stored = DatasetTables(LocalFolder(path.parent))
    for number in range(stored.files.num_rows):
        assert ".." not in stored.file(number).path.split("/")
    assert stored.find("forest/bad.jpg") or "forest/bad.jpg" not in stored.paths.to_pylist()


def read_units(path: Path) -> None:
    stored = DatasetTables(LocalFolder(path.parent))
    for number, entry in enumerate(stored.shards):
        units = stored.units(number)
        for place in range(len(units)):
            first, end = (edge[place] for edge in units.bounds)
            assert 0 <= first <= end <= entry.rows
            assert stored.file(units[place].file)


READERS: dict[str, Callable[[Path], Any]] = {
    "manifest.json": lambda path: Manifest.load(LocalFolder(path.parent)),
    "shards.arrow": read_shard_table,
    "files.arrow": read_files,
    "plan.arrow": read_units,
    "rejects.jsonl": lambda path: list(read_rejects(*file_at(path))),
    "SHA256SUMS": lambda path: read_checksums(LocalFolder(path.parent)),
    SHARD: read_shard,
}


@pytest.fixture(scope="module")
def whole(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a reject, so that no file of it is empty."""
    root = tmp_path_factory.mktemp("untrusted")
    shutil.copytree(demo / "photos", root / "in")
    (root / "in" / "forest" / "bad.jpg").write_bytes(b"bad")
    convert(root / "in", root / "out")
    return root / "out"


Edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=6
)


@pytest.mark.parametrize("name", READERS)
@examples(75)
@given(edits=Edits, near_end=st.booleans(), cut=st.none() | st.floats(0, 1))
def test_only_named_errors_come_out_of_a_damaged_file(whole, tmp_path, name, edits, near_end, cut):
    data = bytearray(file_of(whole, name).read_bytes())
    start = max(0, len(data) - 2048) if near_end else 0
    for place, bit in edits:
        data[start + int(place * (len(data) - start))] ^= 1 << bit
    if cut is not None:
        data = data[: int(cut * len(data))]
    for table in ("manifest.json", "shards.arrow", "files.arrow", "plan.arrow"):
        shutil.copy(file_of(whole, table), tmp_path / table)
    victim = tmp_path / name
    victim.write_bytes(data)
    try:
        READERS[name](victim)
    except ShardctlError:
        pass
    finally:
        victim.unlink()


@pytest.mark.parametrize("type_", [pa.duration("us"), pa.timestamp("us")])
def test_times_are_in_no_plan(whole, tmp_path, type_):
    """One wrong bit in a schema makes times of numbers that are too large for them."""
    plan = open_checked_table(dataset_in(whole), "plan.arrow")
    large = pa.array([2**62] * len(plan)).cast(type_)
    changed = plan.set_column(plan.column_names.index("digest"), "digest", large)
    write_table(tables_in(tmp_path) / "plan.arrow", changed)
    with pytest.raises(ShardctlError, match="not the columns that `shardctl help format` gives"):
        open_checked_table(LocalFolder(tmp_path), "plan.arrow")


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@examples(100)
@given(data=st.data())
def test_only_named_errors_come_out_of_a_manifest_that_was_made_up(whole, tmp_path, data):
    record = json.loads((whole / "manifest.json").read_text())
    names = st.sampled_from(sorted(set(record) - {"format", "format_version"}))
    for key in data.draw(st.lists(names, min_size=1, max_size=2)):
        record[key] = data.draw(Json)
    out = tmp_path / "out"
    if not out.exists():
        shutil.copytree(whole, out)
    (out / "manifest.json").write_text(signed(record))
    try:
        ds = shardctl.open(out)
        ds.take(range(min(4, len(ds))))
    except ShardctlError:
        pass


@pytest.mark.parametrize(
    ("column", "first"),
    [
        ("path", "../../etc/passwd"),
        ("path", "/etc/passwd"),
        ("path", None),
        ("rows", 2**60),
        ("rows", -1),
        ("units", -1),
        ("bytes", -1),
        ("block_rows", [2**30, 8]),
    ],
)
def test_a_table_of_shards_that_leads_astray_is_refused(dataset, column, first):
    table = read_table(tables_in(dataset) / "shards.arrow")
    values = [first, *table[column].to_pylist()[1:]]
    write_table(tables_in(dataset) / "shards.arrow", replace_column(table, column, values))
    with pytest.raises(
        DatasetError, match=r"outside of the dataset's folder|do not add up|values are missing"
    ):
        shardctl.open(dataset)
    assert not shardctl.verify(dataset, "quick").ok


@pytest.mark.parametrize("path", ["../victim.txt", "{folder}/victim.txt", "data/../../victim.txt"])
def test_a_table_of_a_generation_that_is_swept_deletes_nothing_outside_of_the_dataset(
    dataset, tmp_path, path
):
    (tmp_path / "victim.txt").write_text("mine")
    left = dataset / "generations" / "00002-0123abcd"
    shutil.copytree(tables_in(dataset), left)
    table = read_table(left / "shards.arrow")
    paths = [path.replace("{folder}", str(tmp_path)), *table["path"].to_pylist()[1:]]
    write_table(left / "shards.arrow", replace_column(table, "path", paths))
    assert shardctl.repair(dataset).status == "whole"
    assert not left.exists()
    assert (tmp_path / "victim.txt").read_text() == "mine"
    assert shardctl.verify(dataset).ok


@pytest.mark.parametrize("where", ["out/.shardctl", ".out.shardctl/.shardctl"])
def test_what_an_older_version_was_replacing_is_left_to_it(dataset, where):
    job = dataset.parent / where / "repair-00"
    job.mkdir(parents=True)
    (job / "replaced.json").write_text('["plan.arrow"]')
    for command in (shardctl.repair, lambda out: shardctl.write(out, [{"x": 1}], overwrite=True)):
        with pytest.raises(
            StorageError, match=r"shardctl 1\.0\.0rc1 was stopped while .* took its place"
        ):
            command(dataset)
    assert shardctl.verify(dataset).ok


def change_json(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The job of a conversion in parts that are built, with a shard whose inputs were all rejected;
    victim/ is a person's."""
    (tmp_path / "raw.jsonl").write_text(
        '{"text": "a"}\n' * 2 + "{bad\n" * 2 + '{"text": "b"}\n' * 2
    )
    convert(tmp_path / "raw.jsonl", tmp_path / "out", samples_per_shard=2, part="1/1")
    (tmp_path / "victim").mkdir()
    for number in range(3):
        (tmp_path / "victim" / f"train-{number:05d}.arrow").write_text("mine")
    (folder,) = (path.parent for path in (tmp_path / "out" / ".shardctl").glob("*/job.json"))
    return folder


SPLIT = {"records": 6, "expected": 6, "shards": 3}


@pytest.mark.parametrize(
    "changed",
    [
        {"splits": [{**SPLIT, "name": "../../../../victim/train"}]},
        {"splits": [{**SPLIT, "name": "{here}/victim/train"}]},
        {"id": "../../../../victim/"},
        {"url": "s3://bucket/out"},
    ],
)
def test_a_job_that_leads_out_of_the_dataset_writes_and_deletes_nothing_there(
    tmp_path, out, left, changed
):
    said = json.loads(json.dumps(changed).replace("{here}", str(tmp_path)))
    change_json(left / "job.json", **said)
    for command in (
        lambda: shardctl.finish(out),
        lambda: convert(tmp_path / "raw.jsonl", out, samples_per_shard=2, part="1/1"),
    ):
        with pytest.raises(DatasetError, match=r"job\.json: (not a|this) job"):
            command()
        assert {path.read_text() for path in (tmp_path / "victim").iterdir()} == {"mine"}
        assert len(list((tmp_path / "victim").iterdir())) == 3


@pytest.mark.parametrize(
    "changed", [{"split": "../../../../victim/train"}, {"entries": [{"path": "../victim"}]}]
)
def test_a_part_of_written_samples_that_leads_out_of_the_dataset_is_refused(
    out, monkeypatch, changed
):
    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shardctl.making.write.copy_shard", stop)
        with pytest.raises(KeyboardInterrupt):
            shardctl.write(out, samples_of_part, parts=[1, 2])
    (marker,) = (out / ".shardctl").glob("write-*/done/00000.json")
    (of_split,) = json.loads(marker.read_text())["splits"]
    change_json(marker, splits=[{**of_split, **changed}])
    keys = next(marker.parents[1].glob("parts/00000/*.keys"))
    victim = out / "victim" / "train-00000.arrow"
    victim.parent.mkdir()
    victim.write_text("mine")
    shutil.copy(keys, victim.with_name("train.keys"))
    with pytest.raises(DatasetError, match=r"00000\.json: not written by shardctl"):
        shardctl.write(out, samples_of_part, parts=[1, 2])
    assert victim.read_text() == "mine"


def samples_of_part(part: int) -> Iterator[dict[str, int]]:
    yield {"number": part}


def test_a_fingerprint_that_is_a_path_is_refused(dataset):
    """It names a folder that is deleted when it is left over."""
    record = json.loads((dataset / "manifest.json").read_text())
    write_manifest(dataset, {**record, "fingerprint": "../../victim"})
    with pytest.raises(DatasetError, match="plain names"):
        shardctl.open(dataset)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"format_version": 4, "shardctl_version": "3.1.0"},
            r"format version 4; .* use the version .*, 3\.1\.0",
        ),
        ({"needs": ["columns"]}, "needs columns, which shardctl .* does not know"),
    ],
)
def test_a_dataset_of_a_later_version_says_so_and_is_not_changed(dataset, said, message):
    """Its last generation could be read, and is not taken for it."""
    record = json.loads((dataset / "manifest.json").read_text())
    (dataset / "manifest.json").write_text(signed({**record, **said}))
    before = tree(dataset)
    overwrite = partial(shardctl.write, samples=[{"x": 1}], overwrite=True)
    for use in (shardctl.open, shardctl.repair, shardctl.compact, overwrite):
        with pytest.raises(DatasetError, match=message):
            use(dataset)
        assert tree(dataset) == before


def test_a_field_inside_a_field_whose_name_is_no_text_is_refused(whole, tmp_path):
    """The name of a child of the image column, in the footer, where readers take the schema
    from."""
    data = bytearray(shard_in(whole).read_bytes())
    place = data.rindex(b"path\0\0\0\0")
    data[place + 1] = 0xF4
    (tmp_path / "bad.arrow").write_bytes(data)
    with pytest.raises(DatasetError, match="not one of shardctl's"):
        ShardReader(LocalFolder(tmp_path), "bad.arrow")


def test_a_block_whose_offsets_lead_out_of_its_buffers_is_refused(tmp_path):
    """A crafted shard, valid as a file: reading the text of its last row would read far beyond the
    mapping."""
    info = {"format_version": 2, "kind": "text", "split": "train", "shard": 0, "fields": {}}
    schema = pa.schema(
        [("key", pa.string()), ("text", pa.string())], metadata={"shardctl": json.dumps(info)}
    )
    # the last offset fits, the one in the middle does not
    offsets = np.array([0, 2**30, 4], np.int32)
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"text")]
    )
    with pa.ipc.new_file(tmp_path / "bad.arrow", schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(["a", "b"]), text], schema=schema))
    with pytest.raises(DatasetError, match="block 0 cannot be read"):
        ShardReader(LocalFolder(tmp_path), "bad.arrow").block(0)
    (finding,) = shardctl.verify(tmp_path / "bad.arrow").findings
    assert finding.kind == "unreadable-block"


def test_a_conversion_that_somebody_else_left_unfinished_is_named_and_none_of_its_functions_is_imported(
    photos, tmp_path, out, monkeypatch
):
    """At a destination that came from elsewhere, job.json may name any module."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\ndef function(sample):\n    return sample\n"
    )
    left = out / ".shardctl" / "x"
    (left / "done").mkdir(parents=True)
    (left / "done" / "0000000.arrow").write_bytes(b"")
    step = {"name": "custom", "target": "evil:function"}
    recipe = {"kind": "image", "store": "png", "transform": [step]}
    job = {"recipe": recipe, "bases": [], "splits": [{"shards": 2}], "parts": {}}
    (left / "job.json").write_text(json.dumps(job))
    for dry_run in (True, False):
        with pytest.raises(
            DatasetError, match=r"holds an unfinished conversion .*: 1 of 2 shards are done"
        ):
            convert(photos, out, dry_run=dry_run)
    assert not (tmp_path / "ran").exists()
