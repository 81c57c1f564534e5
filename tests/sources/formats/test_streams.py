from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from reading import cut, read, sized, units_of

from shardctl.errors import Rejection
from shardctl.sources.formats import content as streams
from shardctl.sources.formats.base import Choose, Unit
from shardctl.sources.formats.content import Truncated, compression_named, decompressed
from shardctl.sources.formats.sequential import Sequential
from shardctl.sources.formats.text import Lines, Paragraphs

SCHEMA = pa.schema([("text", pa.string())])


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def zstd_of_unknown_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd,
}
TEXT = b"".join(
    b"line %d with %d\n" % (number, random.Random(number).getrandbits(64)) for number in range(2000)
)
every_compression = pytest.mark.parametrize("ending", COMPRESS)


@pytest.fixture(params=["zlib", "isal"])
def inflate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With isal and without it."""
    if request.param == "zlib":
        monkeypatch.setattr(streams, "isal_zlib", None)
    elif importlib.util.find_spec("isal") is None:
        pytest.skip("isal is not installed")


def read_all(data: bytes, ending: str, folder: Path) -> tuple[bytes, str]:
    """Return all that comes out of a compressed file, and how it ended."""
    path = folder / f"read.{ending}"
    path.write_bytes(data)
    out = b""
    with open(path, "rb") as file:
        try:
            for chunk in decompressed(file, ending):
                assert len(chunk) <= streams.CHUNK_BYTES
                out += chunk
        except Truncated:
            return out, "truncated"
        except Rejection as fault:
            return out, fault.error
    return out, "whole"


def texts_of(
    path: Path, unit: Unit, form: Sequential, choose: Choose | None = None
) -> tuple[list[tuple[int, str]], list[tuple[int, str, str]], list[str]]:
    """Return the records of a unit, its rejects and its digest."""
    found = read(form, path, schema=SCHEMA, choose=choose, units=[unit])
    texts = found.table["text"].to_pylist()
    return list(zip(found.numbers, texts, strict=True)), found.rejects, found.digests


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("a.jsonl.gz", "gz"),
        ("folder.x/A.CSV.ZST", "zst"),
        ("a.gz", "gz"),
        ("a.b.txt", None),
        (".gz", None),
        ("gz", None),
    ],
)
def test_the_end_of_a_name_tells_the_compression(name, compression):
    assert compression_named(name) == compression


@every_compression
def test_members_are_read_one_after_the_other_to_the_end(ending, tmp_path, inflate):
    compress = COMPRESS[ending]
    data = compress(TEXT) + compress(b"") + compress(b"middle\n") + compress(b"") + compress(TEXT)
    assert read_all(data, ending, tmp_path) == (TEXT + b"middle\n" + TEXT, "whole")


def test_zstd_frames_of_all_kinds_are_read(tmp_path):
    skipped = b"\x51\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"extra"
    large = zstandard.ZstdCompressor(level=19).compress(TEXT)
    unknown = zstd_of_unknown_size(TEXT)
    wide = unknown[:5] + bytes([31 - 10 << 3]) + unknown[6:]  # with a window of 2 GiB
    assert zstandard.get_frame_parameters(wide).window_size == 1 << 31
    empty = zstd_of_unknown_size(b"")
    data = b"".join([skipped, zstd(TEXT), skipped, unknown, empty, large, wide, skipped])
    assert read_all(data, "zst", tmp_path) == (4 * TEXT, "whole")
    assert read_all(data[:-1], "zst", tmp_path) == (4 * TEXT, "truncated")


def test_a_zstd_file_that_needs_a_dictionary_is_not_damaged(tmp_path):
    dictionary = zstandard.train_dictionary(
        1024, [b"sample %d of text" % number for number in range(2000)]
    )
    data = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)
    assert read_all(data, "zst", tmp_path) == (b"", "needs-dictionary")


@every_compression
def test_a_file_that_is_cut_anywhere_is_truncated(ending, tmp_path, inflate):
    first = COMPRESS[ending](TEXT)
    data, between = first + COMPRESS[ending](b"second\n"), len(first)
    edges = {*range(1, 20), *range(between - 20, between + 20), *range(len(data) - 20, len(data))}
    for size in sorted(edges | set(range(1, len(data), 1499))):
        out, end = read_all(data[:size], ending, tmp_path)
        assert (TEXT + b"second\n").startswith(out), size
        assert end == ("whole" if size == between else "truncated"), size
        assert len(out) >= len(TEXT) * (size >= between)


@every_compression
def test_what_is_had_of_a_cut_file_does_not_depend_on_how_it_is_read(ending, tmp_path, monkeypatch):
    data = COMPRESS[ending](TEXT)
    cuts = range(100, len(data), 1009)
    expected = [read_all(data[:cut], ending, tmp_path) for cut in cuts]
    monkeypatch.setattr(streams, "READ_BYTES", 401)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 719)
    monkeypatch.setattr(streams, "isal_zlib", None)
    assert [read_all(data[:cut], ending, tmp_path) for cut in cuts] == expected


@every_compression
def test_no_flipped_bit_passes_unseen(ending, tmp_path, inflate):
    data, rng = COMPRESS[ending](TEXT), random.Random(5)
    named = ("damaged", "truncated", "wrong-format", "needs-memory", "needs-dictionary")
    drawn = [rng.randrange(16, len(data) - 16) for _ in range(40)]
    for place in [*range(-16, 16), *drawn]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        out, end = read_all(bytes(damaged), ending, tmp_path)
        # or in a field that says nothing of the data, such as the time in a gzip header
        assert end in named or (out, end) == (TEXT, "whole"), place


@every_compression
@pytest.mark.parametrize("junk", [b"x", b"junk", b"\x00\x00x", b"\n" * 100_000])
def test_something_else_after_the_end_is_damage(ending, junk, tmp_path, inflate):
    assert read_all(COMPRESS[ending](TEXT) + junk, ending, tmp_path)[1] == "damaged"


@pytest.mark.parametrize("ending", ["gz", "xz"])
def test_padding_with_zeros_is_no_damage(ending, tmp_path, inflate):
    member = COMPRESS[ending](TEXT)
    padding = b"\0" * 600_000
    assert read_all(member + padding + member + padding, ending, tmp_path) == (2 * TEXT, "whole")


@every_compression
def test_a_file_that_is_not_what_its_name_says_is_named(ending, tmp_path):
    assert read_all(b"plain text\n", ending, tmp_path) == (b"", "wrong-format")
    assert read_all(b"", ending, tmp_path) == (b"", "empty")


@pytest.mark.thorough(after=3)
@every_compression
def test_a_bomb_is_read_in_flat_memory(ending, tmp_path, inflate):
    path = tmp_path / f"bomb.{ending}"
    form = sized(Sequential(Lines()), record_bytes=1 << 20)
    path.write_bytes(COMPRESS[ending](b"a"))
    read(form, path)  # pyarrow imports pandas at the first conversion
    path.write_bytes(COMPRESS[ending](bytes(24 << 20)))
    tracemalloc.start()
    try:
        found = read(form, path, schema=SCHEMA)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.rows, [error for _, error, _ in found.rejects]) == ([], ["too-large"])
    assert peak < 14 << 20  # the window of xz is 8 MiB


@every_compression
def test_of_a_file_that_is_cut_complete_records_are_kept_and_the_rest_is_one_reject(
    ending, tmp_path
):
    path = tmp_path / f"a.txt.{ending}"
    compress = COMPRESS[ending]
    path.write_bytes((compress(b"one\ntwo\nthr") + compress(TEXT))[:-10])
    form = Sequential(Lines())
    found = read(form, path)
    [(number, error, message)] = found.rejects
    kept = found.table["text"].to_pylist()
    assert (number, error) == (len(kept) + 1, "truncated")
    assert f"after {len(kept):,} records" in message
    assert ("one\ntwo\nthr" + TEXT.decode()).startswith("\n".join(kept) + "\n")
    path.write_bytes(compress(b"no line end")[:-3])
    with pytest.raises(
        Rejection, match="ends early, before the end of its first record; get the whole file"
    ):
        cut(form, path)


@every_compression
def test_of_a_damaged_file_nothing_is_used(ending, tmp_path):
    path = tmp_path / f"a.txt.{ending}"
    data = bytearray(COMPRESS[ending](TEXT) * 2)
    data[-len(data) // 4] ^= 4
    path.write_bytes(data)
    with pytest.raises(Rejection, match="data is damaged") as caught:
        cut(Sequential(Lines()), path)
    assert caught.value.error == "damaged"


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("length", [100, 101, 5000])
def test_a_line_beyond_the_limit_is_a_reject_and_what_follows_is_read(ending, length, tmp_path):
    path = tmp_path / f"a.txt{ending}"
    long = b"x" * (length - 1)
    data = b"one\n" * 50 + long + b"\nlast\n" + b"y" * 200
    path.write_bytes(gzip.compress(data) if ending else data)
    lines = {**dict.fromkeys(range(1, 51), "one"), 51: long.decode(), 52: "last"}
    if length > 100:
        del lines[51]
    digests = set()
    for part_bytes, chunk_bytes in ((10, 1), (10, 7), (40, 1000), (1000, 1000)):
        found = read(
            sized(
                Sequential(Lines()),
                part_bytes=part_bytes,
                chunk_bytes=chunk_bytes,
                record_bytes=100,
            ),
            path,
        )
        assert dict(zip(found.numbers, found.table["text"].to_pylist(), strict=True)) == lines
        assert [(number, error) for number, error, _ in found.rejects] == [
            (number, "too-large") for number in (51, 53) if number not in lines
        ]
        assert (f"a line of {length} bytes, and at most 100 B" in str(found.rejects)) == (
            length > 100
        )
        digests.add(tuple(found.digests))
    assert len(digests) == 1 or not ending


def test_a_paragraph_beyond_the_limit_ends_the_file_and_those_before_it_are_kept(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n\n" * 50 + b"x\n" * 500 + b"\nlast\n"))
    for chunk_bytes in (1, 7, 1000):
        form = sized(
            Sequential(Paragraphs()), part_bytes=10, chunk_bytes=chunk_bytes, record_bytes=100
        )
        found = read(form, path)
        assert found.numbers == list(range(1, 51))
        assert [(number, error) for number, error, _ in found.rejects] == [(51, "too-large")]


class CountedReads(io.FileIO):
    total = 0

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        data = super().read(size) or b""
        CountedReads.total += len(data)
        return data


def test_units_that_follow_each_other_do_not_begin_anew(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.xz"
    lines = [random.Random(number).randbytes(300).hex() for number in range(3000)]
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=0))
    size, form = path.stat().st_size, Sequential(Lines())
    opened = []

    def counted_open(name: str, *_: object, **__: object) -> CountedReads:
        opened.append(name)
        return CountedReads(name)

    def lines_from(skip: int, count: int) -> list[str]:
        unit = Unit(0, size, skip, skip + 1, count)
        return [line for _, line in texts_of(path, unit, form)[0]]

    monkeypatch.setattr("builtins.open", counted_open)
    for skip in range(0, 3000, 500):
        assert lines_from(skip, 500) == lines[skip : skip + 500]
    assert opened == [str(path)]
    assert CountedReads.total <= size + 6 + 5  # the magic number is read first
    assert lines_from(1000, 2) == lines[1000:1002]
    os.utime(path, ns=(1, 1))
    assert lines_from(1002, 1) == lines[1002:1003]
    assert len(opened) == 3
    with pytest.raises(Rejection, match="changed after the files were listed"):
        lines_from(0, 3001)


@given(
    lines=st.lists(st.sampled_from(["", "a", "bb", "日本", "x\r", " "]), min_size=1, max_size=12),
    part_bytes=st.integers(1, 9),
    chunk_bytes=st.integers(1, 9),
    data=st.data(),
)
@pytest.mark.parametrize("form", [Lines, Paragraphs])
@examples(60)
def test_any_range_of_records_is_the_same_however_it_is_read(
    form, lines, part_bytes, chunk_bytes, data, tmp_path_factory
):
    path = tmp_path_factory.getbasetemp() / "ranges.txt.gz"
    ended = data.draw(st.booleans())
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n" * ended, mtime=0))
    tiny = sized(Sequential(form()), part_bytes=part_bytes, chunk_bytes=chunk_bytes)
    large = Sequential(form())
    cuts = cut(large, path)
    assert cut(tiny, path) == cuts
    if not cuts:
        return
    (whole,) = units_of(cuts)
    skip = data.draw(st.integers(0, whole.records - 1))
    count = data.draw(st.integers(1, whole.records - skip))
    some = Unit(0, whole.size, skip, skip + 1, count)
    everything, expected = texts_of(path, whole, large), texts_of(path, some, large)
    assert expected[0] == [record for record in everything[0] if skip < record[0] <= skip + count]
    assert texts_of(path, some, tiny) == expected
    texts_of(path, whole._replace(records=skip), tiny)
    # from the stream that is open
    assert texts_of(path, some, tiny) == expected


@given(text=st.text("ab \n", max_size=60), part_bytes=st.integers(1, 20))
@examples(60)
def test_plain_files_of_paragraphs_are_cut_between_them(text, part_bytes, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "paragraphs.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    form = sized(Sequential(Paragraphs()), part_bytes=part_bytes, chunk_bytes=3)
    found = read(form, path, schema=SCHEMA)
    whole = read(Sequential(Paragraphs()), path, schema=SCHEMA)
    assert (found.numbers, found.rows) == (whole.numbers, whole.rows)
    for unit in units_of(cut(form, path)):
        last = unit.first + unit.records - 1
        alone = unit._replace(skip=unit.records - 1, first=last, records=1)
        assert texts_of(path, alone, form)[0] == [(last, whole.rows[last - 1]["text"])]
