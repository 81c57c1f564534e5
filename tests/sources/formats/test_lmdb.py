"""LMDB: keys and values come out in their order, and nothing is unpickled or lost."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from conftest import examples
from dataset_facts import keys
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from reading import read, read_apart

import shardctl
from shardctl.errors import Rejection
from shardctl.sources.formats import Reading, find_format

lmdb = pytest.importorskip("lmdb")

LMDB = find_format(".mdb", Reading())


def write(path: Path, entries: dict[bytes, bytes], subdir: bool = False) -> Path:
    with (
        lmdb.open(str(path), map_size=64 << 20, subdir=subdir) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in entries.items():
            transaction.put(key, value)
    return path / "data.mdb" if subdir else path


@examples(40)
@given(
    entries=st.dictionaries(st.text(min_size=1, max_size=40), st.binary(max_size=200), max_size=30)
)
def test_any_entries_come_out_in_the_order_of_their_keys(entries, tmp_path_factory):
    wanted = sorted((key.encode(), value) for key, value in entries.items())
    found = read(LMDB, write(tmp_path_factory.mktemp("lmdb") / "a.mdb", dict(wanted)))
    pickles = [number for number, error, _ in found.rejects if error == "pickle"]
    rows = []
    for row in found.rows if wanted else []:
        value = row.get("value", row.get("image"))
        rows.append((row["key"].encode(), value.encode() if isinstance(value, str) else value))
    assert rows == [each for number, each in enumerate(wanted, 1) if number not in pickles]


def test_units_are_read_apart(tmp_path):
    entries = {b"%05d" % number: bytes([number % 256]) * 5000 for number in range(1000)}
    whole = read_apart(LMDB, write(tmp_path / "a.mdb", entries))
    assert {row["key"].encode(): row["value"] for row in whole.rows} == entries


def test_databases_inside_are_refused_and_values_of_their_size_are_not(tmp_path):
    plain = {b"%d" % number: bytes([number]) * 48 for number in range(5)}
    assert len(read(LMDB, write(tmp_path / "plain.mdb", plain)).rows) == 5
    with lmdb.open(str(tmp_path / "a.mdb"), subdir=False, max_dbs=2) as environment:
        inside = environment.open_db(b"one")
        with environment.begin(write=True) as transaction:
            transaction.put(b"k", b"v", db=inside)
    with pytest.raises(Rejection, match=r"has databases inside \(one\)"):
        read(LMDB, tmp_path / "a.mdb")


def test_a_number_of_entries_that_is_too_large_is_damage(tmp_path):
    path = write(tmp_path / "a.mdb", {b"%03d" % number: b"x" for number in range(100)})
    data = path.read_bytes()
    pages = [page for page in (0, 4096) if (100).to_bytes(8, "little") in data[page : page + 200]]
    for page in pages:
        at = data.index((100).to_bytes(8, "little"), page)
        data = data[:at] + (200).to_bytes(8, "little") + data[at + 8 :]
    path.write_bytes(data)
    with pytest.raises(Rejection, match=r"entry 101 cannot be read \(it is not there"):
        read(LMDB, path)


def test_a_pickle_is_a_reject(tmp_path):
    path = write(tmp_path / "a.mdb", {b"a": pickle.dumps([1, "x"]), b"b": b"plain"})
    found = read(LMDB, path)
    assert [row["key"] for row in found.rows] == ["b"]
    assert [reject[:2] for reject in found.rejects] == [(1, "pickle")]


def test_keys_that_are_no_text_are_bytes(tmp_path):
    found = read(LMDB, write(tmp_path / "a.mdb", {b"\xff\0": b"x", b"\xff\1": b"y"}))
    assert [row["key"] for row in found.rows] == [b"\xff\0", b"\xff\1"]


def test_files_that_are_cut_are_refused(tmp_path):
    path = write(tmp_path / "a.mdb", {b"%d" % number: bytes(3000) for number in range(20)})
    data = path.read_bytes()
    for size in [*range(0, len(data), 3001), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(
            Rejection, match=r"not an LMDB file|cannot be read|get the whole file|damaged"
        ):
            read(LMDB, path)


def test_the_reject_of_a_damaged_file_has_no_path_of_this_machine(tmp_path):
    path = tmp_path / "a.mdb"
    path.write_bytes(bytes(16) + b"\xde\xc0\xef\xbe" + bytes(8000))
    with pytest.raises(Rejection, match=r"the file cannot be read \(MDB_INVALID: "):
        read(LMDB, path)


def test_a_folder_with_a_lock_is_converted_and_nothing_in_it_is_changed(photos, tmp_path, out):
    images = {path.name: path.read_bytes() for path in photos.rglob("*.jpg")}
    source = tmp_path / "train_lmdb"
    write(source, {name.encode(): data for name, data in images.items()}, subdir=True)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert "lock.mdb" in before
    assert "left out" not in str(convert(source, out, key_field="key").notices)
    assert keys(out) == sorted(images)
    assert shardctl.open(out)[0]["image"].shape[2] == 3
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
