"""WebDataset: samples as the package webdataset finds them; members that are no fields are rejects;
nothing is extracted."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from conftest import examples
from containers import INTEROP, Promises, errors, expected
from hypothesis import given
from hypothesis import strategies as st
from reading import READING, Everything, read, types_of
from tars import tar

from shardctl.sources.formats import ending_of, find_format
from shardctl.sources.formats.base import Reading
from shardctl.sources.formats.content import StreamedContent
from shardctl.sources.formats.framed import Framed
from shardctl.sources.formats.webdataset import TarSamples, parse_header

FORM = Framed(TarSamples)


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=True)
    return sink.getvalue()


def special(name: str, type_: bytes, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type_, link
    return info.tobuf(tarfile.GNU_FORMAT)


def read_bytes(data: bytes, tmp_path: Path) -> Everything:
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    return read(FORM, path)


def texts(found: Everything) -> list[str]:
    return [row["txt"] for row in found.rows]


def with_size(size: str, data: bytes) -> bytes:
    """Return a member a.txt whose size is in a pax header: that of its own header is 0."""
    info = tarfile.TarInfo("a.txt")
    info.pax_headers = {"size": size}
    return info.tobuf(tarfile.PAX_FORMAT) + data.ljust(512, b"\0") + tar([("b.txt", b"x")])


def sample(number: int) -> list[tuple[str, bytes]]:
    return [
        (f"d/{number:03}.cls", b"%d" % number),
        (f"d/{number:03}.bin", bytes([255]) * (100 * number)),
    ]


class TestWebDataset(Promises):
    form = TarSamples
    suffix = ".tar"

    def whole(self, count: int) -> bytes:
        return tar([member for number in range(count) for member in sample(number)])

    def starts(self, count: int) -> list[int]:
        sizes = [len(tar(sample(number), end=False)) for number in range(count)]
        return [0, *np.cumsum(sizes).tolist()]

    def _cuts(self, starts: list[int]) -> Iterator[tuple[int, int]]:
        """In its data, and in the header of the sample that follows: that may have been another
        member of it."""
        for whole, (start, end) in enumerate(pairwise(starts)):
            yield from ((whole, at) for at in (start + 600, end + 1, end + 511) if 0 < whole < 19)


@pytest.mark.parametrize("name", ["plain-000000.tar", "packed.tar.gz"])
def test_samples_are_those_that_webdataset_reads(name):
    path = INTEROP / "webdataset" / name
    found = read(find_format(ending_of(name, str(path)), READING), path)
    wanted = expected("webdataset")[name]
    assert found.rejects == []
    assert [
        {field: value for field, value in row.items() if value is not None} for row in found.rows
    ] == wanted
    assert [row["txt"] is None for row in found.rows] == [False, True, False]


@pytest.mark.parametrize("start", ["", "./", "d/"])
def test_what_a_mac_puts_into_a_tar_is_no_member(start, tmp_path):
    double = b"\0\5\x16\7" + bytes(120)  # AppleDouble: before each file that has attributes
    names = [f"{number}.{ending}" for number in range(3) for ending in ("cls", "txt")]
    members = [(f"{start}{name}", name[:1].encode()) for name in names]
    junk = [
        (f"{start}{name}", double) for name in (".git/1.txt", "__MACOSX/0.cls", "@eaDir/0/1.jpg")
    ]
    for name, member in zip(names, members, strict=True):
        junk += [(f"{start}._{name}", double), member]
    plain, mac = read_bytes(tar(members), tmp_path), read_bytes(tar(junk), tmp_path)
    assert len(plain.rows) == 3
    assert (mac.rows, mac.rejects) == (plain.rows, [])


def test_names_are_split_as_webdataset_splits_them(tmp_path):
    names: dict[str, Any] = json.loads((INTEROP / "expected" / "webdataset_names.json").read_text())
    assert len(names) > 10
    for name, (key, field) in names.items():
        found = read_bytes(tar([(name, b"1")]), tmp_path)
        if (field and not name.startswith(("/", ".", "a/."))) or name == "./a.jpg":
            assert found.rows[0].keys() == {"__key__", field.lower()}, name
            assert found.rows[0]["__key__"] == key, name
        elif not name.endswith("/"):
            assert found.rejects, name


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("/abs/a.txt", "unsafe-name"),
        ("../a.txt", "unsafe-name"),
        ("a/../../b.txt", "unsafe-name"),
        ("README", "no-field"),
        ("a/.hidden", "no-field"),
        ("x.__key__", "no-field"),
        ("\udcff.txt", "name-not-utf8"),
    ],
)
@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_that_are_no_fields_are_rejects(name, error, format_, tmp_path):
    found = read_bytes(tar([("good.txt", b"a"), (name, b"1"), ("z.txt", b"b")], format_), tmp_path)
    assert errors(found) == [(2, error)]
    assert texts(found) == ["a", "b"]
    assert list(tmp_path.iterdir()) == [tmp_path / "a.tar"]


@pytest.mark.parametrize(
    ("type_", "error"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.FIFOTYPE, "not-a-file"),
        (tarfile.CHRTYPE, "not-a-file"),
    ],
)
def test_links_and_devices_are_rejects_of_their_samples(type_, error, tmp_path):
    start, end = tar([("a.txt", b"1")], end=False), tar([("b.txt", b"2")])
    found = read_bytes(start + special("a.json", type_, "/etc/passwd") + end, tmp_path)
    assert errors(found) == [(1, error)]
    assert texts(found) == ["2"]
    assert "passwd" in found.rejects[0][2] or error != "link"


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is not installed")
@pytest.mark.parametrize("format_", ["gnu", "posix"])
def test_sparse_members_are_rejects_and_what_follows_is_read(format_, tmp_path):
    """With 60 stretches of data, GNU tar writes more blocks behind the header of its own format."""
    with open(tmp_path / "a.bin", "wb") as file:
        for n in range(60):
            file.seek(n * 1 << 16)
            file.write(b"x" * 4096)
    (tmp_path / "b.txt").write_text("after")
    command = f"tar --sparse --format={format_} -cf a.tar a.bin b.txt"
    subprocess.run(command.split(), check=True, cwd=tmp_path)
    if (tmp_path / "a.tar").stat().st_size > 1 << 20:
        pytest.skip("the file system knows no holes")
    found = read(FORM, tmp_path / "a.tar")
    assert errors(found) == [(1, "sparse")]
    assert texts(found) == ["after"]


def test_sizes_in_pax_headers_count(tmp_path):
    """A file of 8 GiB or more has its size there alone; here the one in the header is wrong."""
    assert texts(read_bytes(with_size("5", b"hello"), tmp_path)) == ["hello", "x"]


@pytest.mark.parametrize("size", ["-1", "1e3", "9" * 30, str(2**63), ""])
def test_a_size_that_no_file_has_is_damage(size, tmp_path):
    data = tar([("0.txt", b"1")], end=False) + with_size(size, b"hello")
    for stored in (data, gzip.compress(data)):
        assert errors(read_bytes(stored, tmp_path))[-1][1] in ("damaged", "truncated")


def test_members_of_a_sample_must_be_beside_each_other(tmp_path):
    data = tar([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("c.txt", b"4")])
    for stored in (data, gzip.compress(data)):
        found = read_bytes(stored, tmp_path)
        assert errors(found) == [(3, "repeated-key")]
        assert "sample 1" in found.rejects[0][2]
        assert texts(found) == ["1", "2", "4"]


def test_folders_and_meta_members_are_passed_over(tmp_path):
    folder = special("d", tarfile.DIRTYPE)
    start = tar([("__index__", b"x"), ("d/a.txt", b"1")], end=False)
    data = folder + start + folder + tar([("d/a.cls", b"2")], end=False) + folder
    for stored in (data + bytes(1024), gzip.compress(data)):
        found = read_bytes(stored, tmp_path)
        assert found.rows == [{"__key__": "d/a", "txt": "1", "cls": 2}]
        assert found.rejects == []


def test_archives_in_a_tar_are_rejects(tmp_path):
    found = read_bytes(tar([("n1.tar", b"1"), ("b.txt", b"2"), ("n2.tar.gz", b"3")]), tmp_path)
    assert errors(found) == [(1, "archive"), (3, "archive")]
    assert texts(found) == ["2"]
    beside = read_bytes(tar([("a.txt", b"1"), ("a.zip", b"PK")]), tmp_path)
    assert beside.rows == [{"__key__": "a", "txt": "1", "zip": b"PK"}]


def test_two_members_of_one_field_are_a_reject(tmp_path):
    found = read_bytes(tar([("a.jpg", b"1"), ("a.JPG", b"2"), ("b.jpg", b"3")]), tmp_path)
    assert errors(found) == [(1, "repeated-field")]
    assert found.rows == [{"__key__": "b", "jpg": b"3"}]


@pytest.mark.parametrize(
    ("field", "data", "error"),
    [
        ("cls", b"cat", "not-a-number"),
        ("json", b"{", "not-json"),
        ("json", b'{"a": 1, "a": 2}', "not-json"),
        ("txt", b"\xff", "not-utf8"),
        ("npy", npy(np.zeros(3))[:-1], "not-npy"),
        ("npy", npy(np.array([{}], object)), "not-npy"),
        ("npy", npy(np.array(["a"])), "not-npy"),
        ("npy", npy(np.zeros(2)).replace(b"(2,)", b"(-2"), "not-npy"),
        ("pkl", pickle.dumps(1), "pickle"),
        ("depth.pth", b"", "pickle"),
    ],
)
def test_a_member_that_is_not_what_its_name_says_is_the_reject_of_its_sample(
    field, data, error, tmp_path
):
    found = read_bytes(tar([(f"a.{field}", data), ("b.txt", b"1")]), tmp_path)
    assert errors(found) == [(1, error)]
    assert field in found.rejects[0][2]
    assert found.rows == [{"__key__": "b", "txt": "1"}]


@pytest.mark.parametrize("dtype", ["?", "<i2", ">i4", "<u8", "<f2", ">f8"])
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 3), (0, 2), (2, 1, 2)])
def test_arrays_are_nested_lists_of_their_type(dtype, shape, tmp_path):
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    found = read_bytes(tar([("a.npy", npy(array)), ("b.npy", npy(array + array))]), tmp_path)
    assert found.rows[0]["npy"] == array.tolist()
    type_ = found.table.schema.field("npy").type
    for _ in shape:
        type_ = type_.value_type
    assert type_ == (
        pa.from_numpy_dtype(array.dtype.newbyteorder("=")) if array.size else pa.string()
    )


def test_fields_that_some_samples_lack_are_null(tmp_path):
    found = read_bytes(
        tar([("a.txt", b"1"), ("b.json", b"[1]"), ("b.txt", b"2"), ("c.cls", b"7")]), tmp_path
    )
    assert [(row["txt"], row["json"], row["cls"]) for row in found.rows] == [
        ("1", None, None),
        ("2", [1], None),
        (None, None, 7),
    ]


def test_a_tar_without_blocks_of_zeros_at_its_end_is_whole(tmp_path):
    members = [("a.txt", b"1"), ("b.txt", b"x" * 600)]
    whole = tar(members, end=False)
    for data in (whole, whole + bytes(512), whole + bytes(700)):
        found = read_bytes(data, tmp_path)
        assert (len(found.rows), found.rejects) == (2, [])
    # it may have had other members
    assert errors(read_bytes(whole[:-400], tmp_path)) == [(2, "truncated")]


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_that_ends_between_a_long_name_and_its_member_says_so(format_, tmp_path):
    start = tar([("a.txt", b"1"), ("b.txt", b"2")], end=False)
    named = tar([("k" * 200 + ".txt", b"2")], format_, end=False)
    for size in (512, 600, 1024, 1100):
        found = read_bytes(start + named[:size], tmp_path)
        assert errors(found) == [(2, "damaged")], size
        assert "at byte" in found.rejects[0][2]
        assert texts(found) == ["1"]


def test_headers_without_end_are_damage_and_take_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("shardctl.sources.formats.webdataset.MOST_HEADERS", 4096)
    pax = tar([("k" * 200 + ".txt", b"")], tarfile.PAX_FORMAT, end=False)[:1024]
    found = read_bytes(
        gzip.compress(tar([("a.txt", b"1"), ("b.txt", b"1")], end=False) + pax * 20), tmp_path
    )
    assert errors(found) == [(2, "damaged")]
    assert "no end of headers" in found.rejects[0][2]


def test_a_large_first_member_stays_out_of_memory(tmp_path, monkeypatch):
    """Before the member that follows it is looked at."""
    monkeypatch.setattr("shardctl.sources.formats.webdataset.RECORD_BYTES", 1 << 20)
    held, fill = [], StreamedContent._fill
    monkeypatch.setattr(
        StreamedContent, "_fill", lambda self: (fill(self), held.append(len(self._held)))[0]
    )
    data = tar([("a.bin", bytes(20 << 20)), ("a.txt", b"1"), ("b.txt", b"2")])
    found = read_bytes(zstandard.compress(data), tmp_path)
    assert errors(found) == [(1, "too-large")]
    assert texts(found) == ["2"]
    assert max(held) < 4 << 20


@pytest.mark.parametrize("name", ["x^2.txt", "BZh91.txt", "BZhang.txt", "x\x9c.txt"])
def test_a_name_that_looks_like_compressed_data_is_a_name(name, tmp_path):
    assert texts(read_bytes(tar([(name, b"1")]), tmp_path)) == ["1"]


def test_only_the_fields_that_are_wanted_are_looked_at(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(tar([("a.txt", b"1"), ("a.json", b"{"), ("a.pkl", b"")]))
    reading = Reading(only=("txt",))
    assert read(FORM, path, reading).rows == [{"__key__": "a", "txt": "1"}]


def test_the_key_comes_first_and_one_key_in_two_files_is_no_fault(tmp_path):
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(tar([("a.txt", b"1")]))
        assert read(FORM, tmp_path / name).rejects == []
    assert types_of(FORM, tmp_path / "a.tar").found().names[0] == "__key__"


@examples(150)
@given(st.data())
def test_headers_are_read_as_tarfile_reads_them(data):
    """Those of all formats, and changed ones; only fields that tarfile is looser about may be
    refused."""
    characters = st.characters(exclude_characters="\0", exclude_categories=("Cs",))
    info = tarfile.TarInfo(data.draw(st.text(characters, min_size=1, max_size=60)))
    info.size = data.draw(st.integers(0, 2**40))
    types = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE]
    info.type = data.draw(st.sampled_from(types))
    info.linkname = data.draw(st.text("abc/", max_size=20))
    format_ = data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    block = bytearray(info.tobuf(format_, "utf-8", "surrogateescape")[-512:])
    if data.draw(st.booleans()):
        block[data.draw(st.integers(0, 511))] = data.draw(st.integers(0, 255))
    try:
        theirs = tarfile.TarInfo.frombuf(bytes(block), "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
            parse_header(bytes(block))
        return
    try:
        ours = parse_header(bytes(block))
    except ValueError:
        assert theirs.size < 0
        return
    name = ours.name.rstrip("/") if ours.type == tarfile.DIRTYPE else ours.name
    assert name == theirs.name
    assert (ours.size, ours.type, ours.link) == (theirs.size, theirs.type, theirs.linkname)


@pytest.mark.parametrize("what", ["hole", "two", "two.gz"])
def test_a_hole_or_a_second_tar_does_not_end_a_tar_silently(what, tmp_path):
    whole = tar([("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3")])
    data = {
        "hole": whole[:1024] + bytes(1024) + whole[2048:],  # in the place of b
        "two": whole + bytes(1 << 17) + whole,
        "two.gz": gzip.compress(whole + whole),
    }[what]
    [(_, error, message)] = read_bytes(data, tmp_path).rejects
    assert error == "damaged"
    assert "a hole, or another tar" in message
