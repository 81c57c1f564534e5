"""Every kind of file that `shardctl convert` takes, by its name: what becomes of it, and what is
said where it is wrong."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import zstandard
from dataset_facts import rejects_of
from in_this_process import convert
from PIL import Image
from pyarrow import feather, parquet
from written_samples import plain

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.making.convert import discover
from shardctl.sources import formats

Rows = list[dict[str, Any]]

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}

TEXT = "first line\nsecond line: é\n\nthird\n".encode()
WHOLE = [{"key": "a", "text": TEXT.decode()}]
LINES = [
    {"key": "a#1", "text": "first line"},
    {"key": "a#2", "text": "second line: é"},
    {"key": "a#4", "text": "third"},
]
PARAGRAPHS = [{"key": "a#1", "text": "first line\nsecond line: é"}, {"key": "a#2", "text": "third"}]

JSON_LINES = b'{"n": 1, "s": "x"}\n{"n": 2.5, "s": null, "l": [1, 2]}\n'
JSON_ARRAY = b'[{"n": 1, "s": "x"},\n {"n": 2.5, "s": null, "l": [1, 2]}]'
OBJECTS = [
    {"key": "a#1", "n": 1.0, "s": "x", "l": None},
    {"key": "a#2", "n": 2.5, "s": None, "l": [1, 2]},
]

CSV = b'n,s\n1,"x\ny"\n2,z\n'
CELLS = [{"key": "a#1", "n": 1, "s": "x\ny"}, {"key": "a#2", "n": 2, "s": "z"}]

TABLE = pa.table({"n": [1, 2], "o": [{"x": [1]}, {"x": [2, 3]}]})
NESTED = [{"key": "a#1", "n": 1, "o": {"x": [1]}}, {"key": "a#2", "n": 2, "o": {"x": [2, 3]}}]


def _written(write: Callable[[Any], object]) -> bytes:
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def _ipc(new: Callable[..., Any]) -> bytes:
    sink = io.BytesIO()
    with new(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


PARQUET = _written(lambda sink: parquet.write_table(TABLE, sink))
FEATHER = _written(lambda sink: feather.write_feather(TABLE, sink))

PLAIN: list[tuple[str, bytes, list[str], Rows]] = [
    *((name, TEXT, [], WHOLE) for name in (".txt", ".text", ".md", ".TXT")),
    (".txt", TEXT, ["--record", "line"], LINES),
    (".md", TEXT, ["--record", "paragraph"], PARAGRAPHS),
    (".jsonl", JSON_LINES, [], OBJECTS),
    (".ndjson", JSON_LINES, [], OBJECTS),
    (".json", JSON_ARRAY, [], OBJECTS),
    (".json", b'{"n": 1, "s": "x"}', [], [{"key": "a#1", "n": 1, "s": "x"}]),
    (".csv", CSV, [], CELLS),
    (".csv", CSV[4:], ["--columns", "n,s"], CELLS),
    (".csv", CSV.replace(b",", b";"), ["--delimiter", ";"], CELLS),
    (".tsv", CSV.replace(b",", b"\t"), [], CELLS),
    (".csv", CSV.replace(b",", b"\t"), ["--delimiter", "tab"], CELLS),
]

COMPRESSED = [
    *((f"{name}.gz", gzip.compress(data), options, rows) for name, data, options, rows in PLAIN),
    *(
        (f".jsonl.{ending}", COMPRESS[ending](JSON_LINES), [], OBJECTS)
        for ending in ("bz2", "xz", "zst")
    ),
    (".txt.zst", COMPRESS["zst"](TEXT), [], WHOLE),
]
COMPRESSED += [
    (f".jsonl.{ending}", COMPRESS[ending](JSON_LINES), [], OBJECTS)
    for ending in ("bz2", "xz", "zst")
]
COMPRESSED += [
    (f".txt.{ending}", COMPRESS[ending](TEXT), [], WHOLE) for ending in ("bz2", "xz", "zst")
]
COMPRESSED += [
    (f".json.{ending}", COMPRESS[ending](JSON_ARRAY), [], OBJECTS)
    for ending in ("bz2", "xz", "zst")
]

BINARY: list[tuple[str, bytes, list[str], Rows]] = [
    (".parquet", PARQUET, [], NESTED),
    (".arrow", _ipc(pa.ipc.new_file), [], NESTED),
    (".arrow", _ipc(pa.ipc.new_stream), [], NESTED),
    (".arrows", _ipc(pa.ipc.new_stream), [], NESTED),
    (".feather", FEATHER, [], NESTED),
]

GBK = "中文、再来\n第二行\n".encode("gbk")
CHINESE = [{"key": "a#1", "text": "中文、再来"}, {"key": "a#2", "text": "第二行"}]
_BOTH = [{"key": "a#1", "s": "中文"}, {"key": "a#2", "s": "é"}]
_LINES = '{"s": "中文"}\n{"s": "é"}\n'.encode("gb18030")

ENCODED: list[tuple[str, bytes, list[str], Rows]] = [
    (".txt.gz", gzip.compress(GBK), ["--encoding", "gbk", "--record", "line"], CHINESE),
    (".txt", GBK, ["--encoding", "gbk"], [{"key": "a", "text": GBK.decode("gbk")}]),
    (".json", '[{"s": "中文"}, {"s": "é"}]'.encode("utf-16"), ["--encoding", "utf-16"], _BOTH),
    (".jsonl.zst", COMPRESS["zst"](_LINES), ["--encoding", "gb18030"], _BOTH),
    (".csv", "s\n中文\né\n".encode("gb18030"), ["--encoding", "gb18030"], _BOTH),
    (".csv", b"\xef\xbb\xbfs\n\xe4\xb8\xad\xe6\x96\x87\n\xc3\xa9\n", [], _BOTH),
]

FIELDS: list[tuple[str, bytes, list[str], Rows]] = [
    (
        ".csv",
        b"b,c\nhi,3\n",
        ["--text-field", "b", "--label-field", "c"],
        [{"key": "a#1", "text": "hi", "label": 3}],
    ),
    (
        ".jsonl",
        b'{"c": "pos"}\n{"c": "neg"}\n',
        ["--label-field", "c"],
        [{"key": "a#1", "label": 1}, {"key": "a#2", "label": 0}],
    ),
    (
        ".csv",
        b"n,s,x\n007,x,1\n",
        ["--schema", "n:string,s:string"],
        [{"key": "a#1", "n": "007", "s": "x"}],
    ),
    (".jsonl", b'{"n": 1, "s": "x"}\n', ["--schema", "s:string"], [{"key": "a#1", "s": "x"}]),
    (
        ".parquet",
        PARQUET,
        ["--schema", "n:float64"],
        [{"key": "a#1", "n": 1.0}, {"key": "a#2", "n": 2.0}],
    ),
    (".jsonl", b'{"n": 1}\n', ["--kind", "table"], [{"key": "a#1", "n": 1}]),
]


def rows_of(dataset: Path, file: str) -> Rows:
    """Return the samples in plain Python, `a` for the name of the file in their keys."""
    return [
        {**sample, "key": sample["key"].replace(file, "a", 1)}
        for sample in plain(shardctl.open(dataset))
    ]


def column(dataset: Path, name: str, split: str | None = None) -> list[Any]:
    """Return a column of a dataset."""
    return [sample[name] for sample in shardctl.open(dataset, split=split)]


def _named(cases: list[Any]) -> list[Any]:
    """Name the tests by the file and the options, not by the bytes."""
    return [pytest.param(*case, id=" ".join([case[0], *case[2]])) for case in cases]


@pytest.mark.thorough(after=30)
@pytest.mark.parametrize(
    ("ending", "data", "options", "rows"), _named([*PLAIN, *COMPRESSED, *BINARY, *ENCODED, *FIELDS])
)
def test_every_kind_of_file_comes_back_as_its_records(
    cli, tmp_path, out, ending, data, options, rows
):
    file = tmp_path / f"in{ending}"
    file.write_bytes(data)
    ran = cli("convert", file, out, "--workers", "0", *options)
    assert ran.code == 0, ran.err
    assert rows_of(out, file.name) == rows
    assert rejects_of(out) == []


def test_a_schema_may_be_in_a_file_and_is_recorded_by_what_it_says(tmp_path, out):
    source, schema = tmp_path / "in.jsonl", tmp_path / "schema.txt"
    source.write_text('{"n": 1, "s": "x"}\n')
    schema.write_text("n:float64\ns:string\n")
    convert(source, out, recipe={"schema": str(schema)})
    assert convert(source, out, recipe={"schema": "n:float64, s:string"}).status == "up-to-date"
    schema.write_text("n:int64\ns:string\n")
    with pytest.raises(DatasetError, match="differs in its recipe"):
        convert(source, out, recipe={"schema": str(schema)})


@pytest.mark.parametrize(("encoding", "named"), [("detect", True), ("utf-8", False)])
def test_a_dataset_names_the_version_of_what_detects_encodings(
    tmp_path, out, monkeypatch, encoding, named
):
    # UTF-8 is known without it
    monkeypatch.setitem(sys.modules, "charset_normalizer", SimpleNamespace(from_bytes=None))
    (tmp_path / "in.jsonl").write_text('{"text": "a"}')
    convert(tmp_path / "in.jsonl", out, {"encoding": encoding})
    versions = shardctl.open(out).manifest.fingerprint_parts["versions"]
    assert ("charset-normalizer " in versions) == named


def test_the_encoding_that_was_detected_is_told(cli, tmp_path):
    pytest.importorskip("charset_normalizer")
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_bytes("中文再来、第二行也是中文。\n".encode("gbk") * 20)
    (source / "b.txt").write_bytes("é\n".encode())
    for record in ("file", "line"):
        words = ("--workers=0", "--encoding=detect", f"--record={record}")
        ran = cli("convert", source, tmp_path / record, *words)
        assert "gb18030 (1 file, a.txt)" in ran.err
        assert "utf-8 (1 file, b.txt)" in ran.err
        assert "中文再来" in next(iter(shardctl.open(tmp_path / record)))["text"]


# --- what is wrong ---

FLOATS = _written(lambda sink: parquet.write_table(pa.table({"n": [1.5, 2.0]}), sink))

"""Of the type string are the first and, as it is missing, the third."""

TOO_DEEP = b'{"a": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}"

WRONG: list[tuple[str, bytes, list[str], int, dict[int, str]]] = [
    # name, bytes, options, samples, errors of the rejects by the numbers of their records
    (
        "a.csv",
        b'a,b\n1,2\n3\n4,5,6\n7,8\n"3,4\n',
        [],
        2,
        {2: "wrong-columns", 3: "wrong-columns", 5: "unclosed-quote"},
    ),
    (
        "a.jsonl",
        b'{"a": 1}\n{"a":\n[2]\n{"a": 3',
        [],
        1,
        {2: "not-json", 3: "not-an-object", 4: "not-json"},
    ),
    (
        "a.jsonl",
        b'{"a": "C:\\\\u"}\n{"a": "\\ud800"}\n{"\\udc00": 1}',
        [],
        1,
        dict.fromkeys((2, 3), "lone-surrogate"),
    ),
    (
        "a.jsonl",
        b'{"x": -0e-999}\n{"y": [1e400]}\n{"y": 1e-400}\n{"y": %s.0}\n' % (b"1" * 310),
        [],
        1,
        dict.fromkeys((2, 3, 4), "out-of-range"),
    ),
    ("a.jsonl", TOO_DEEP + b'\n{"a": 1}', [], 1, {1: "too-deep"}),
    (
        "a.json.gz",
        gzip.compress(b'[{"a": 1}, 5, {"a": 2}'),
        [],
        1,
        {2: "not-an-object", 3: "not-json"},
    ),
    ("a.jsonl", b'\0\0\n{"a": 1}\n', [], 1, {1: "not-json"}),
    ("a.txt.gz", gzip.compress("é\né".encode()[:-1]), ["--record", "line"], 1, {2: "not-utf8"}),
    ("a.json", b'[{"a": "x"}, {"a": "\xff\xff"}]', ["--encoding", "gbk"], 1, {2: "wrong-encoding"}),
    ("a.jsonl", b'{"a": 1}\n{"a": "x"}\n', ["--schema", "a:int64"], 1, {2: "other-type"}),
    (
        "a.json",
        b'[{"a": "x"}, {"a": 5}, {"a": null}, {"a": true}, {"a": [1]}, {"a": {"b": 1}}]',
        ["--schema", "a:string"],
        2,
        dict.fromkeys((2, 4, 5, 6), "other-type"),
    ),
    ("a.csv", b"a,b\n1,x\ny,z\n2,x\n", ["--schema", "a:int64,b:string"], 2, {2: "other-type"}),
    ("a.parquet", FLOATS, ["--schema", "n:int64"], 1, {1: "other-type"}),
]


@pytest.mark.parametrize(("name", "data", "options", "samples", "rejects"), _named(WRONG))
def test_one_wrong_record_is_one_reject(cli, tmp_path, out, name, data, options, samples, rejects):
    (tmp_path / name).write_bytes(data)
    words = ("convert", tmp_path / name, out, "--workers=0", "--json", "--max-rejects=100%")
    ran = cli(*words, *options)
    assert (ran.code, ran.json["samples"]) == (0, samples), ran.err
    found = {reject.key: reject.error for reject in rejects_of(out)}
    assert found == {f"{name}#{number}": error for number, error in rejects.items()}


NAMED_TWICE = "its first row has the names that --columns gives; leave out"
REFUSED: list[tuple[str, bytes, list[str], int, str]] = [
    ("a.parquet", b"hello", [], 1, "not a Parquet file that can be read"),
    ("a.arrow", b"hello world, hello world", [], 1, "not an Arrow file that can be read"),
    ("a.jsonl.gz", b'{"a": 1}\n', [], 1, "it is not a gzip file"),
    ("a.jsonl", gzip.compress(b'{"a": 1}\n'), [], 1, "it is no text; add .gz"),
    ("a.csv", b"\xff\xd8\xff\xe0 JFIF", [], 1, "it is a JPEG image"),
    ("a.txt.zst", COMPRESS["zst"](b"text")[:-2], [], 1, "the compressed file ends early"),
    ("a.csv", b"a,a\n1,2\n", [], 1, "two columns have the name a"),
    ("a.parquet", FLOATS, ["--schema", "n:string"], 1, "values of type double do not fit string"),
    ("a.jsonl", b"", [], 3, "a.jsonl: has no records; nothing to convert"),
    ("a.json.gz", gzip.compress(b"[]"), [], 3, "a.json.gz: has no records; nothing to convert"),
    ("a.tsv.gz", gzip.compress(b"a\tb\n1\t2\n"), ["--columns", "a,b"], 1, NAMED_TWICE),
    ("a.csv", b'\xef\xbb\xbf\n"a";b\r\n1;2\n', ["--columns=a,b", "--delimiter=;"], 1, NAMED_TWICE),
    ("a.parquet.gz", b"x", [], 3, "no image and no text and no table"),
    ("a.csv", b"text,b\n1,2\n", ["--text-field", "b"], 3, "would be called text"),
    ("a.csv", b"label,b\n1,2\n", ["--label-field", "b"], 3, "would be called label"),
    ("a.jsonl", b'{"a": 1}\n', ["--text-field", "b"], 3, "have no field b; they have a"),
    ("a.jsonl", b'{"a": 1}\n', ["--schema", "b:int64"], 3, "none of the fields of the schema (b)"),
    ("a.txt", b"x\n", ["--text-field", "b"], 2, "is about fields of records"),
    ("a.jsonl", b'{"a": 1}\n', ["--schema", "nowhere"], 2, "neither name:type,… nor a"),
    ("a.csv", b"a\n1\n", ["--delimiter", "ab"], 2, "delimiter must be one character"),
    ("a.csv", b"1,2\n", ["--columns", "a,a"], 2, "columns must be different names"),
    ("a.csv", b"1,2\n", ["--columns", "a"], 1, "has 2 columns where --columns names 1"),
    ("a.txt", b"x", ["--encoding", "klingon"], 2, "there is no such encoding"),
]


@pytest.mark.parametrize(("name", "data", "options", "code", "sentence"), _named(REFUSED))
def test_what_cannot_be_converted_is_said_in_one_sentence(
    cli, tmp_path, name, data, options, code, sentence
):
    (tmp_path / name).write_bytes(data)
    ran = cli("convert", tmp_path / name, tmp_path / "out", "--workers", "0", "--quiet", *options)
    assert (ran.code, sentence in ran.err) == (code, True), ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz"])
def test_records_before_the_end_of_a_cut_file_are_kept(name, tmp_path, out):
    records = [{"n": n, "s": random.Random(n).randbytes(40).hex()} for n in range(2000)]
    text = json.dumps(records) if name == "a.json.gz" else "\n".join(map(json.dumps, records))
    (tmp_path / name).write_bytes(gzip.compress(text.encode())[:-5000])
    count = convert(tmp_path / name, out).samples
    assert 1500 < count < 2000
    assert column(out, "n") == list(range(count))
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == (f"{name}#{count + 1}", "truncated")


def test_a_damaged_row_group_costs_its_rows_and_no_others(tmp_path, out):
    path = tmp_path / "a.parquet"
    table = pa.table({"n": range(3000)})
    parquet.write_table(table, path, row_group_size=1000, compression="none", use_dictionary=False)
    place = parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[place : place + 40] = b"\xff" * 40
    path.write_bytes(data)
    convert(path, out)
    assert sorted(column(out, "n")) == [*range(1000), *range(2000, 3000)]
    assert {reject.error for reject in rejects_of(out)} == {"damaged"}


def test_a_whole_file_that_is_too_large_is_rejected_and_not_read(tmp_path, out, monkeypatch):
    monkeypatch.setattr("shardctl.making.convert.discover.RECORD_BYTES", 100)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x" * 101)
    (tmp_path / "in" / "b.txt").write_text("x" * 100)
    assert convert(tmp_path / "in", out).samples == 1
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("a.txt", "too-large")
    assert "--record line makes a record of each line" in reject.message


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    folder = tmp_path / "mixed"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    contents = {"b.txt": b"text", "c.csv": b"n\n1\n", "d.parquet": PARQUET, "e.pdf": b"x"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("kind", "keys", "others"),
    [
        ("auto", ["a.png"], "1 .txt, 1 .csv, 1 .parquet, 1 .pdf"),
        ("image", ["a.png"], "1 .txt, 1 .csv, 1 .parquet, 1 .pdf"),
        ("text", ["b.txt"], "1 .png, 1 .csv, 1 .parquet, 1 .pdf"),
        ("table", ["c.csv#1", "d.parquet#1", "d.parquet#2"], "1 .png, 1 .txt, 1 .pdf"),
    ],
)
def test_of_a_mixed_folder_the_kind_that_was_asked_for_is_converted(
    cli, mixed, out, kind, keys, others
):
    ran = cli("convert", mixed, out, "--workers", "0", "--kind", kind)
    assert ran.code == 0
    assert f"other files, not converted: {others}" in ran.err
    assert ("left out: 2 tables, which --kind table converts" in ran.err) == (kind == "text")
    assert [sample["key"] for sample in shardctl.open(out)] == keys


def test_words_for_a_missing_value_are_missing_where_they_are_named(tmp_path, out):
    path = tmp_path / "a.csv"
    path.write_text('v,label,t\n1,cat,x\nNA,NA,NA\n"null",dog,null\n2,"NA",\n')
    told = convert(path, out, recipe={"null_values": "NA,null"}).notices
    dataset = shardctl.open(out)
    assert dataset.classes == ("cat", "dog")
    assert [(row["v"], row["label"], row["t"]) for row in dataset] == [
        (1, 0, "x"),
        (None,) * 3,
        (None, 1, None),
        (2, None, ""),
    ]
    assert told == ("2 of 4 samples without a label",)
    assert convert(path, out, recipe={"null_values": ["NA", "null"]}).status == "up-to-date"
    assert len(convert(path, tmp_path / "plain").notices) == 2
    assert shardctl.open(tmp_path / "plain").classes == ("NA", "cat", "dog")


# --- splits and order ---


def splits_of(source: Path, out: Path, **options: Any) -> dict[str, str]:
    """Return the split of every record by its number."""
    convert(source, out, split="train=0.7,val=0.2,test=0.1", **options)
    return {key: name for name in ("train", "val", "test") for key in column(out, "key", name)}


@pytest.mark.thorough
def test_the_split_of_a_record_depends_on_its_key_and_the_seed_alone(tmp_path, monkeypatch):
    source = tmp_path / "in"
    source.mkdir()
    lines = "".join(f'{{"n": {n}, "s": "{n:0100}"}}\n' for n in range(3000))  # 330 kB
    (source / "a.jsonl").write_text(lines)
    alone = splits_of(source, tmp_path / "alone")
    names = list(alone.values())
    for name, share in {"train": 0.7, "val": 0.2, "test": 0.1}.items():
        assert names.count(name) / 3000 == pytest.approx(share, abs=0.03)
    assert splits_of(source, tmp_path / "shuffled", shuffle=1) == alone
    assert splits_of(source, tmp_path / "seed", recipe={"seed": 1}) != alone
    for size in (32 << 10, 64 << 10):
        monkeypatch.setattr(formats, "UNIT_BYTES", size)
        formats.find_format.cache_clear()
        assert splits_of(source, tmp_path / str(size)) == alone
    monkeypatch.undo()
    formats.find_format.cache_clear()
    (source / "0.jsonl").write_text(lines)
    more = splits_of(source, tmp_path / "more")
    assert len(more) == 6000
    assert {key: split for key, split in more.items() if key.startswith("a.")} == alone


def test_a_shuffled_order_has_the_same_records_for_any_number_of_workers(tmp_path):
    source, orders = tmp_path / "in.jsonl", []
    source.write_text("".join(f'{{"n": {n}, "s": "{n:0200}"}}\n' for n in range(3000)))
    for workers, seed in ((0, 7), (1, 7), (2, 7), (0, 8)):
        out = tmp_path / f"{workers}-{seed}"
        convert(source, out, workers=workers, shuffle=seed)
        orders.append(column(out, "n"))
    first, *same, other = orders
    assert same == [first, first]
    assert first != other
    assert first != sorted(first) == sorted(other) == list(range(3000))


def test_a_table_that_grows_after_it_was_listed_is_a_reject(tmp_path, out, monkeypatch):
    """Also where its quotes ask for a scan from its beginning to its end."""
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.csv").write_text("n,t\n1,a\n2,b\n")
    (source / "b.csv").write_text('n,t\n3,5" pipe\n4,6" a\n5,7" c\n')
    find_units = discover.Discovery.find_units

    def grow(discovery: discover.Discovery) -> object:
        with open(source / "b.csv", "a") as file:
            file.write("9,x\n")
        return find_units(discovery)

    monkeypatch.setattr(discover.Discovery, "find_units", grow)
    assert convert(source, out).samples == 2
    (reject,) = rejects_of(out)
    assert (reject.source, reject.error) == ("b.csv", "changed")


def test_options_that_only_tables_have_choose_tables(tmp_path, out):
    """A folder has its table, and a text beside it that says what the table is."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "in" / "train.csv").write_text("1,a\n2,b\n")
    convert(tmp_path / "in", out, recipe={"columns": ["n", "text"]})
    assert [(sample["n"], sample["text"]) for sample in shardctl.open(out)] == [
        (1, "a"),
        (2, "b"),
    ]


def test_one_field_is_not_the_text_and_the_label(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(UsageError, match="body cannot be the text and the label"):
        shardctl.convert(
            tmp_path / "a.jsonl",
            tmp_path / "out",
            recipe={"kind": "table", "text_field": "body", "label_field": "body"},
        )


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_file_in_utf_16_is_one_reject_that_says_the_option(name, encoding, tmp_path, out):
    source, data = tmp_path / "in", '{"a": 1}\n{"a": 2}\n'
    source.mkdir()
    (source / name).write_text(data, encoding=encoding)
    (source / f"b{name[1:]}").write_text(data)
    options: dict[str, Any] = (
        {"kind": "text", "record": "line"} if name == "a.txt" else {"kind": "table"}
    )
    convert(source, out, recipe=options)
    (reject,) = rejects_of(out)
    assert reject.message.endswith(f"it is in {encoding.upper()}; use --encoding {encoding}")
    right = convert(source / name, tmp_path / "right", recipe={**options, "encoding": encoding})
    assert (len(shardctl.open(out)), right.samples) == (2, 2)


def test_a_line_that_is_no_utf_8_is_told_the_option(tmp_path, out):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xe9"}\n')
    convert(tmp_path / "a.jsonl", out)
    (reject,) = rejects_of(out)
    assert "give --encoding (detect tries to find it)" in reject.message


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_the_index_that_pandas_writes_is_kept_and_told(suffix, tmp_path, out):
    pd.DataFrame({"a": ["x", "y"]}).to_csv(tmp_path / f"a{suffix}")
    (notice,) = convert(tmp_path / f"a{suffix}", out).notices
    assert [(row["Unnamed: 0"], row["a"]) for row in shardctl.open(out)] == [(0, "x"), (1, "y")]
    assert "it is kept as Unnamed: 0" in notice
