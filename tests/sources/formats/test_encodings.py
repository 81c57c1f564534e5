from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from reading import read as read_whole
from reading import sized

from shardctl.errors import InstallError, Rejection, UsageError
from shardctl.sources.formats import encodings
from shardctl.sources.formats.base import Reading
from shardctl.sources.formats.encodings import Transcoder, decode_text, detect, known_encoding
from shardctl.sources.formats.sequential import Sequential
from shardctl.sources.formats.text import Lines
from shardctl.system.packages import install_line

SCHEMA = pa.schema([("text", pa.string())])
CHINESE = """人人生而自由, 在尊严和权利上一律平等。他们赋有理性和良心, 并应以兄弟关系的精神相对待。
人人有资格享有本宣言所载的一切权利和自由, 不分种族、肤色、性别、语言、宗教、政治或其他见解。
任何人不得使为奴隶或奴役; 一切形式的奴隶制度和奴隶买卖, 均应予以禁止。
"""
JAPANESE = "吾輩は猫である。名前はまだ無い。\nどこで生れたか頓と見当がつかぬ。\n" * 3
RUSSIAN = "Люди рождаются свободными\nи равными в своём достоинстве и правах.\n" * 3
FRENCH = (
    "Longtemps, je me suis couché de bonne heure.\nParfois, à peine ma bougie éteinte, mes "
    "yeux se fermaient.\n"
)
TEXTS = {
    "gbk": CHINESE,
    "gb18030": CHINESE,
    "big5": "中文\n測試\n",
    "shift_jis": JAPANESE,
    "cp932": JAPANESE,
    "euc_jp": JAPANESE,
    "iso2022_jp": JAPANESE,
    "euc_kr": "모든 인간은 태어날 때부터\n자유로우며\n",
    "cp1251": RUSSIAN,
    "koi8-r": RUSSIAN,
    "latin-1": FRENCH,
    "cp1252": FRENCH + "“quotes” and €\n",
    "utf-16": CHINESE + "𠀋 outside the first plane\n",
    "utf-16-le": CHINESE,
    "utf-16-be": CHINESE,
    "utf-32": CHINESE,
    "utf-8": CHINESE,
    "utf-8-sig": CHINESE,
    "ascii": "plain\ntext\n",
}
needs_detection = pytest.mark.usefixtures("charset_normalizer")


@pytest.fixture
def charset_normalizer() -> None:
    pytest.importorskip("charset_normalizer")


def read(
    path: Path, encoding: str, form: Sequential | None = None
) -> tuple[list[tuple[int, str]], list[tuple[int, str, str]], str]:
    """Return the records of a file, its rejects, and the encoding that it was found to be in."""
    form, reading = form or Sequential(Lines()), Reading(encoding=encoding)
    found = read_whole(form, path, reading, SCHEMA)
    scan = form.scan(str(path), 0, path.stat().st_size, reading)
    texts = found.table["text"].to_pylist()
    return list(zip(found.numbers, texts, strict=True)), found.rejects, scan["encoding"]


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize(("part_bytes", "chunk_bytes"), [(1 << 20, 1 << 20), (5, 1), (16, 3)])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_text_in_any_encoding_comes_out_as_it_is(
    encoding, part_bytes, chunk_bytes, ending, tmp_path
):
    data = TEXTS[encoding].encode(encoding)
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(gzip.compress(data) if ending else data)
    found, rejects, _ = read(
        path, encoding, sized(Sequential(Lines()), part_bytes=part_bytes, chunk_bytes=chunk_bytes)
    )
    assert found == list(enumerate(TEXTS[encoding].splitlines(), 1))
    assert rejects == []
    assert decode_text(data, encoding) == TEXTS[encoding]


@pytest.mark.parametrize(
    ("encoding", "data", "kept", "faults"),
    [
        ("gbk", "一\n".encode("gbk") + b"ab\xff\n\x81\nlast \x81", {1: "一"}, {2: 5, 3: 7, 4: 14}),
        ("shift_jis", b"a\n\x93\xfa\xff\xff\nb\x81\nc\n", {1: "a", 4: "c"}, {2: 4, 3: 8}),
        ("ascii", "a\né\nb\n".encode(), {1: "a", 3: "b"}, {2: 2}),
        ("iso2022_jp", b"\x1b$BF|\x1b(B\n\xff\n\x1b$BF|\x1b(B\n", {1: "日", 3: "日"}, {2: 9}),
        ("utf-16-le", b"a\0\n\0\x00\xd8b\0\n\0c\0\n\0", {1: "a", 3: "c"}, {2: 4}),
        ("utf-16", b"\xfe\xff\0a\0b\0\n\0", {1: "ab"}, {2: 8}),
        (
            "utf-32-be",
            b"\0\0\0a\0\0\0\n\x00\x11\x00\x00\0\0\0\n\0\0\0b",
            {1: "a", 3: "b"},
            {2: 8},
        ),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(("part_bytes", "chunk_bytes"), [(1 << 20, 1 << 20), (5, 1), (16, 3)])
def test_bytes_that_are_no_text_cost_their_record_and_are_named(
    encoding, data, kept, faults, ending, part_bytes, chunk_bytes, tmp_path
):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(gzip.compress(data) if ending else data)
    found, rejects, own = read(
        path, encoding, sized(Sequential(Lines()), part_bytes=part_bytes, chunk_bytes=chunk_bytes)
    )
    assert dict(found) == kept
    where = " of its decompressed content" if ending else ""
    assert [(number, error, message.split(";")[0]) for number, error, message in rejects] == [
        (number, "wrong-encoding", f"not {own} at byte {place}{where}")
        for number, place in faults.items()
    ]
    with pytest.raises(Rejection, match=f"not {own} at byte {min(faults.values())}"):
        decode_text(data, encoding)


@given(
    encoding=st.sampled_from(
        [
            "gbk",
            "gb18030",
            "shift_jis",
            "euc_jp",
            "big5",
            "utf-16-le",
            "utf-32-be",
            "iso2022_jp",
            "cp1252",
        ]
    ),
    data=st.binary(max_size=40),
    sizes=st.lists(st.integers(1, 5), min_size=40, max_size=40),
)
@examples(200)
def test_decoding_in_stretches_is_decoding_at_once(encoding, data, sizes):
    whole, parts = Transcoder(encoding, 0), Transcoder(encoding, 0)
    expected = whole.feed(data, final=True)
    out, at = b"", 0
    for size in sizes:
        out += parts.feed(data[at : at + size])
        at += size
    out += parts.feed(data[at:], final=True)
    assert out == expected
    assert parts.undecoded.tolist() == whole.undecoded.tolist()
    assert out.count(b"\xff") == len(whole.undecoded)
    try:
        strict, fault = data.decode(encoding), []
    except UnicodeDecodeError as error:
        strict, fault = None, [error.start]
    assert whole.undecoded[:1].tolist() == fault
    assert strict in (None, expected.decode(errors="replace"))


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        (encoding, named)
        for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
        for named in ("gbk", "latin-1", "utf-16", "utf-16-le", "utf-32")
        # FF FE 00 00 is UTF-16, if that was named
        if not (named.startswith("utf-16") and encoding.startswith("utf-32"))
    ],
)
def test_a_byte_order_mark_counts_for_more_than_the_name(encoding, named, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(("\ufeff" + CHINESE).encode(encoding))
    found, rejects, own = read(path, named)
    assert ([text for _, text in found], rejects, own) == (CHINESE.splitlines(), [], encoding)
    assert decode_text(path.read_bytes(), named) == CHINESE


@pytest.mark.parametrize("named", ["utf-16", "utf-32"])
def test_utf16_without_a_mark_is_not_guessed(named, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("a\n".encode(f"{named}-le"))
    with pytest.raises(
        Rejection, match=f"no byte order mark; use --encoding {named}-le or {named}-be"
    ):
        read(path, named)


def test_text_in_utf8_names_the_byte():
    assert decode_text(b"\xef\xbb\xbfa", "utf-8") == "a"
    with pytest.raises(Rejection, match="not UTF-8 at byte 4; give --encoding") as caught:
        decode_text(b"\xef\xbb\xbfa\xff", "utf-8")
    assert caught.value.error == "not-utf8"


@pytest.mark.parametrize("name", ["no-such", "rot13", "unicode_escape", "", "\x00", "日本"])
def test_what_is_no_encoding_of_files_is_refused(name):
    with pytest.raises(UsageError, match="there is no such encoding"):
        known_encoding(name)
    with pytest.raises(UsageError, match="utf-7 is not read; recode the files"):
        known_encoding("UTF7")


def test_detection_without_its_package_says_how_to_install_it(
    monkeypatch,
):
    monkeypatch.setitem(sys.modules, "charset_normalizer", None)
    with pytest.raises(InstallError, match=re.escape(install_line("detect"))):
        detect(b"abc")


@needs_detection
@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", CHINESE),
        ("gb18030", CHINESE * 5),
        ("cp932", JAPANESE * 5),
        ("iso2022_jp", JAPANESE),
        ("cp1251", RUSSIAN * 5),
        ("utf-16-le", FRENCH),
        ("utf-32-be", FRENCH),
        ("utf-16", CHINESE),
    ],
)
@pytest.mark.parametrize("before", ["", "plain lines in ASCII\n" * 10_000])
def test_the_encoding_is_found_and_told(encoding, text, before, tmp_path):
    path = tmp_path / "a.txt.gz"
    data = (before + text).encode(encoding)
    path.write_bytes(gzip.compress(data))
    for form in (Sequential(Lines()), sized(Sequential(Lines()), chunk_bytes=777)):
        found, rejects, own = read(path, "detect", form)
        assert [line for _, line in found] == (before + text).splitlines()
        assert (rejects, own.removesuffix("-le")) == ([], encoding.removesuffix("-le"))
    assert decode_text(data, "detect") == before + text


@needs_detection
def test_half_a_character_where_the_look_ends_does_not_mislead():
    data = (CHINESE * 3).encode("gbk")
    assert [detect(data[:size], whole=False) for size in (500, 501)] == ["gb18030"] * 2


@needs_detection
def test_what_no_encoding_fits_is_a_reject(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(1, 256)) * 20)
    with pytest.raises(Rejection, match="its encoding could not be found") as caught:
        read(path, "detect")
    assert caught.value.error == "unknown-encoding"


@needs_detection
def test_a_file_that_is_utf8_for_long_is_utf8_and_later_faults_are_rejects(tmp_path, monkeypatch):
    monkeypatch.setattr(encodings, "DETECTED_BYTES", 301)  # within a character
    monkeypatch.setattr("shardctl.sources.formats.sequential.DETECTED_BYTES", 301)
    path = tmp_path / "a.txt"
    path.write_bytes("é\n".encode() * 200 + b"\xe9\nend\n")
    found, rejects, own = read(path, "detect", sized(Sequential(Lines()), chunk_bytes=100))
    assert (len(found), [number for number, *_ in rejects], own) == (201, [201], "utf-8")


@pytest.mark.corpus
@needs_detection
@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("utf-8", "utf-8"),
        ("GB2312", "gbk"),
        ("Big5", "big5"),
        ("EUC-JP", "euc-jp"),
        ("EUC-KR", "euc-kr"),
        ("windows-1251-russian", "windows-1251"),
        ("windows-1255-hebrew", "windows-1255"),
        ("UTF-16", "utf-16"),
    ],
)
def test_encodings_of_real_files_are_found(corpus, folder, name):
    for path in (corpus / "text/encodings" / folder).iterdir():
        found, rejects, own = read(path, "detect")
        assert rejects == []
        expected = path.read_bytes().decode(name, "replace").removeprefix("\ufeff")
        lines = [line.removesuffix("\r") for line in expected.split("\n")]
        assert sum(len(line) for _, line in found) == sum(map(len, lines)), own
