"""What torture.py converts: photos of a folder, and text and tables that are made here, sound ones
and damaged ones."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import shardctl

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from text_inputs import FIELDS, documents, json_lines, plain_line

LARGE = 30_000_000
"""Bytes of JSON lines of the source of `kills`: a conversion has shards to write for about a
second."""

SMALL = 150_000
"""Bytes of the source of `faults`: the shards are built again thousands of times."""

LONG_LINE = 300 << 20
"""Bytes of a line that is longer than any record may be."""

LONGEST_LINE = (2 << 30) + (1 << 20)
"""Bytes of a line that is longer than a string of Arrow may be."""

RECIPE = {
    "store": "jpeg:90",
    "transform": [{"name": "resize", "size": 72}, {"name": "crop", "size": 64}],
}


@dataclass
class Expected:
    """What must become of damaged records.

    `kept`: key -> text. `rejected`: key -> name of the error, None for any; a key without `#` is a
    file of which some reject must speak. `free`: files whose records may be kept or rejected, but
    must not disturb others. `alone`: files that are converted by themselves, because all of a
    conversion may be refused for them: in a sentence, with no traceback.
    """

    kept: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, str | None] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)
    alone: list[Path] = field(default_factory=list)

    def add_alone(self, path: Path, data: bytes = b"", size: int | None = None) -> None:
        """Write a file that is converted by itself; it is made as long as `size` by zeros that take
        no disk."""
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        if size:
            os.truncate(path, size)
        self.alone.append(path)


@dataclass(frozen=True)
class Source:
    """A kind of input: the folders that are made of it, and the options to convert them with.

    `large(data, folder)` and `small(data, folder)` return a folder; both have inputs that are
    rejected. `hostile(folder)` makes damaged records and says what must become of them.
    """

    options: tuple[str, ...]
    large: Callable[[Path, Path], Path]
    small: Callable[[Path, Path], Path]
    hostile: Callable[[Path], Expected] | None = None


# --- photos


def all_photos(data: Path, _: Path) -> Path:
    return data / "photos"


def small_photos(data: Path, folder: Path) -> Path:
    """Make a folder of the photos at a size at which building a shard takes no time, and of a file
    that is no image."""
    small = folder / "small"
    shardctl.convert(data / "photos", folder / "first", recipe=RECIPE, shuffle=1)
    first = shardctl.open(folder / "first")
    batch = first.take(range(len(first)), decode=False)
    for key, encoded in zip(batch["key"], batch["image"], strict=True):
        (small / key).parent.mkdir(parents=True, exist_ok=True)
        (small / key).write_bytes(encoded)
    (small / "broken.jpg").write_bytes(b"no image")
    return small


# --- documents in four files of a form, one of a thousand records broken, one late value that fits
# no type found before


def documents_of(size: int, form: str) -> Callable[[Path, Path], Path]:
    """Return what makes a folder of four files of about `size` bytes together."""

    def make(_: Path, folder: Path) -> Path:
        root = folder / f"{form}-{size}"
        root.mkdir()
        docs = [doc for chunk in documents(size, seed=1) for doc in chunk]
        docs[-len(docs) // 20]["score"] = "none"
        each = -(-len(docs) // 4)
        for number in range(4):
            part = docs[number * each : (number + 1) * each]
            name, encode = FORMS[form]
            (root / f"part-{number}.{name}").write_bytes(encode(part))
        return root

    return make


def encode_json(docs: list[dict[str, Any]]) -> bytes:
    lines = json_lines(docs).splitlines(keepends=True)
    for place in broken(len(lines)):
        lines[place] = lines[place][: len(lines[place]) // 2] + b"\n"
    return b"".join(lines)


def encode_csv(docs: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    bad = set(broken(len(docs)))
    for place, doc in enumerate(docs):
        writer.writerow(
            [*(doc[name] for name in FIELDS), *(["one too many"] if place in bad else [])]
        )
    return text.getvalue().encode()


def encode_lines(docs: list[dict[str, Any]]) -> bytes:
    lines = [plain_line(doc).encode() for doc in docs]
    for place in broken(len(lines)):
        lines[place] = b"\xff" + lines[place]
    return b"".join(lines)


def encode_gzip(docs: list[dict[str, Any]]) -> bytes:
    return gzip.compress(encode_json(docs), 1, mtime=0)


def encode_parquet(docs: list[dict[str, Any]]) -> bytes:
    """Row groups of 500 rows with checksums; one value has another type in its file than in the
    others, and none is broken."""
    types = {"id": pa.int64(), "title": pa.string(), "text": pa.string()}
    types["score"] = (
        pa.string() if any(isinstance(doc["score"], str) for doc in docs) else pa.float64()
    )
    columns = {name: pa.array([doc[name] for doc in docs]) for name in ("id", "title", "text")}
    as_text = pa.types.is_string(types["score"])
    columns["score"] = pa.array([str(doc["score"]) if as_text else doc["score"] for doc in docs])
    return parquet_of(pa.table(columns, schema=pa.schema(list(types.items()))))


def parquet_of(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=500, write_page_checksum=True, compression="none")
    return sink.getvalue()


def broken(count: int) -> range:
    """Return the places of the records that are broken, one of a thousand."""
    return range(min(500, count // 2), count, 1000)


FORMS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], bytes]]] = {
    "jsonl": ("jsonl", encode_json),
    "csv": ("csv", encode_csv),
    "lines": ("txt", encode_lines),
    "gz": ("jsonl.gz", encode_gzip),
    "parquet": ("parquet", encode_parquet),
}


# --- damaged records, with what must become of each


def hostile_json(folder: Path) -> Expected:
    """Files of JSON lines: sound and broken lines in random order, long ones, odd line ends, files
    that are something else."""
    expected = Expected()
    _json_file(folder, "mixed.jsonl", expected, b"\n", random.Random(1), 4000)
    _json_file(folder, "returns.jsonl", expected, b"\r\n", random.Random(2), 500)
    _json_file(folder, "mark.jsonl", expected, b"\n", random.Random(3), 500, start=b"\xef\xbb\xbf")
    _json_file(
        folder,
        "cut.jsonl",
        expected,
        b"\n",
        random.Random(4),
        500,
        end='{"id": 500, "text": "é'.encode()[:-1],
    )
    expected.rejected["cut.jsonl#501"] = None
    (folder / "long.jsonl").write_bytes(
        b'{"id": 1, "text": "before"}\n' + b"x" * LONG_LINE + b'\n{"id": 3, "text": "after"}\n'
    )
    expected.kept |= {"long.jsonl#1": "before", "long.jsonl#3": "after"}
    expected.rejected["long.jsonl#2"] = None
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "blank.jsonl").write_bytes(b"\n \n\r\n\t\n")
    (folder / "bytes.jsonl").write_bytes(random.Random(5).randbytes(100_000))
    (folder / "sixteen.jsonl").write_bytes('{"id": 1, "text": "a"}\n'.encode("utf-16"))
    expected.free |= {"bytes.jsonl", "sixteen.jsonl"}
    alone = folder.with_name("alone")
    expected.add_alone(alone / "empty.jsonl")
    expected.add_alone(alone / "blank.jsonl", b"\n\n")
    expected.add_alone(alone / "ours.jsonl", b'{"key": "mine", "text": "a"}\n')
    expected.add_alone(alone / "no-field.jsonl", b"{}\n{}\n")
    expected.add_alone(alone / "one-line.jsonl", b'{"text": "a"}\n', LONGEST_LINE)
    return expected


def _json_file(
    folder: Path,
    name: str,
    expected: Expected,
    ending: bytes,
    rng: random.Random,
    count: int,
    start: bytes = b"",
    end: bytes = b"",
) -> None:
    lines = []
    for number in range(1, count + 1):
        key = f"{name}#{number}"
        if rng.random() < 0.3:
            error, line = rng.choice(BROKEN_JSON)
            if error != "blank":
                expected.rejected[key] = error
        else:
            text = rng.choice(SOUND_TEXTS) * rng.choice([1, 1, 1, 50, 5000])
            record = {"id": number, "text": text, **rng.choice(ODD_FIELDS)}
            line = json.dumps(record, ensure_ascii=rng.random() < 0.5).encode()
            expected.kept[key] = text
        lines.append(line)
    (folder / name).write_bytes(start + b"".join(line + ending for line in lines) + end)


SOUND_TEXTS = [
    "plain",
    "",
    "a\tb\nc",
    'say "so"',
    "数据 🙂",
    "\u2028 and \u0085",
    "nul \x00 inside",
    "C:\\new",
    " edges ",
]

ODD_FIELDS: list[dict[str, Any]] = [
    {},
    {"n": 1.5},
    {"n": 3},
    {"n": None},
    {"big": 2**53 + 1},
    {"big": 2**64},
    {"big": -1},
    {"mixed": [1, "a", None]},
    {"mixed": {"x": {"y": []}}},
    {"when": "2026-11-22T01:00:00Z"},
    {"nested": {"a": [{"b": 1}]}},
    {"nested": {}},
]

BROKEN_JSON: list[tuple[str | None, bytes]] = [
    ("not-json", b'{"id": 1'),
    ("not-json", b'{"id": 1} {"id": 2}'),
    ("not-json", b'{"id": 1, "id": 2}'),
    ("not-json", b'{"id": 01}'),
    ("not-json", b"{'id': 1}"),
    ("not-json", b'{"text": "a\x00b"}'),
    ("not-json", b"\x00"),
    ("not-json", b"NULL"),
    ("not-an-object", b"[1, 2]"),
    ("not-an-object", b"null"),
    ("not-an-object", b'"text"'),
    ("lone-surrogate", b'{"text": "\\ud800"}'),
    ("lone-surrogate", b'{"text": "\\udc00\\ud800"}'),
    ("not-utf8", b'{"text": "\xff"}'),
    ("not-utf8", b'{"text": "\xed\xa0\x80"}'),
    ("too-deep", b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    ("out-of-range", b'{"n": 1e400}'),
    ("blank", b""),
    ("blank", b" \t"),
]


def hostile_csv(folder: Path) -> Expected:
    """CSV: ragged rows, bytes that are no UTF-8, quotes where they must not be, line ends in
    quotes, odd line ends."""
    expected = Expected()
    _csv_file(folder, "mixed.csv", expected, "\n", random.Random(1), 4000)
    _csv_file(folder, "returns.csv", expected, "\r\n", random.Random(2), 500)
    (folder / "open.csv").write_bytes(b'id,text,score\n1,before,1\n2,"never closed,2\n3,after,3\n')
    (folder / "bytes.csv").write_bytes(random.Random(5).randbytes(100_000))
    expected.free |= {"open.csv", "bytes.csv"}
    alone = folder.with_name("alone")
    expected.add_alone(alone / "twice.csv", b"id,text,text\n1,a,b\n")
    expected.add_alone(alone / "ours.csv", b"key,text\nmine,a\n")
    expected.add_alone(alone / "no-name.csv", b"id,,text\n1,2,3\n")
    expected.add_alone(alone / "header.csv", b"id,text\n")
    expected.add_alone(alone / "empty.csv")
    expected.add_alone(alone / "open.csv", b'id,text\n1,"never closed\n2,b\n')
    expected.add_alone(alone / "bytes.csv", random.Random(6).randbytes(100_000))
    expected.add_alone(alone / "one-line.csv", b"id,text\n1,a\n", LONGEST_LINE)
    (folder / "header.csv").write_bytes(b"id,text,score\n")
    (folder / "empty.csv").write_bytes(b"")
    return expected


def _csv_file(
    folder: Path, name: str, expected: Expected, ending: str, rng: random.Random, count: int
) -> None:
    rows = [b"id,text,score" + ending.encode()]
    for number in range(1, count + 1):
        key, draw = f"{name}#{number}", rng.random()
        if draw < 0.1:
            rows.append(f"{number},too few{ending}".encode())
            expected.rejected[key] = None
        elif draw < 0.2:
            rows.append(f"{number},one,2,too many{ending}".encode())
            expected.rejected[key] = None
        elif draw < 0.25:
            rows.append(f"{number},".encode() + b"\xff\xfe" + f",3{ending}".encode())
            expected.rejected[key] = "not-utf8"
        else:
            text = rng.choice(
                [
                    "plain",
                    "a, b",
                    'say "so"',
                    "two\nlines",
                    "two\r\nlines",
                    "数据 🙂",
                    "007",
                    " edges ",
                    "C:\\new",
                ]
            )
            row = io.StringIO()
            csv.writer(row, lineterminator=ending).writerow(
                [number, text, rng.choice([1, 2.5, "", "007"])]
            )
            rows.append(row.getvalue().encode())
            expected.kept[key] = text
    (folder / name).write_bytes(b"".join(rows))


def hostile_lines(folder: Path) -> Expected:
    """Lines of text: bytes that are no UTF-8, NUL bytes, half a character at the end, a line longer
    than any may be."""
    expected = Expected()
    rng, lines = random.Random(1), []
    for number in range(1, 4001):
        key = f"mixed.txt#{number}"
        if rng.random() < 0.2:
            lines.append(rng.choice([b"\xff", b"a\xed\xa0\x80", b"\xc3", b"caf\xe9 au lait"]))
            expected.rejected[key] = "not-utf8"
        elif rng.random() < 0.1:
            lines.append(b"")
        else:
            text = rng.choice(
                [
                    "plain",
                    "a\tb",
                    "数据 🙂",
                    "\u2028 and \u0085",
                    "nul \x00 inside",
                    "\x0b\x0c",
                    '"open',
                ]
            )
            text *= rng.choice([1, 1, 1, 50, 5000])
            lines.append(text.encode())
            expected.kept[key] = text
    (folder / "mixed.txt").write_bytes(b"\n".join(lines) + b"\n" + "é".encode()[:1])
    expected.rejected["mixed.txt#4001"] = "not-utf8"
    (folder / "long.txt").write_bytes(b"before\n" + b"x" * LONG_LINE + b"\nafter\n")
    expected.kept |= {"long.txt#1": "before", "long.txt#3": "after"}
    expected.rejected["long.txt#2"] = None
    (folder / "returns.txt").write_bytes(b"one\r\ntwo\r\r\nthree")
    expected.kept |= {"returns.txt#1": "one", "returns.txt#2": "two\r", "returns.txt#3": "three"}
    (folder / "empty.txt").write_bytes(b"")
    (folder / "sixteen.txt").write_bytes("one\ntwo\n".encode("utf-16"))
    expected.free.add("sixteen.txt")
    alone = folder.with_name("alone")
    expected.add_alone(alone / "empty.txt")
    expected.add_alone(alone / "blank.txt", b"\n\n")
    expected.add_alone(alone / "one-line.txt", b"a line\n", LONGEST_LINE)
    return expected


def hostile_gzip(folder: Path) -> Expected:
    """Compressed JSON lines: sound in one part and in two, cut off, a bit changed, not compressed,
    with bytes after it."""
    expected = Expected()
    plain = folder / "mixed.jsonl"
    inside = Expected()
    _json_file(folder, plain.name, inside, b"\n", random.Random(1), 4000)
    data = plain.read_bytes()
    plain.unlink()
    halves = gzip.compress(data[: len(data) // 2], 6, mtime=0) + gzip.compress(
        data[len(data) // 2 :], 6, mtime=0
    )
    for name, packed in {
        "whole.jsonl.gz": gzip.compress(data, 6, mtime=0),
        "members.jsonl.gz": halves,
    }.items():
        (folder / name).write_bytes(packed)
        expected.kept |= {key.replace(plain.name, name): text for key, text in inside.kept.items()}
        expected.rejected |= {
            key.replace(plain.name, name): error for key, error in inside.rejected.items()
        }
    records = [json.dumps({"id": n, "text": f"record {n}"}) + "\n" for n in range(20_000)]
    sound = gzip.compress("".join(records).encode(), 6, mtime=0)
    for name, size in {
        "cut.jsonl.gz": len(sound) * 2 // 3,
        "without-sum.jsonl.gz": len(sound) - 4,
    }.items():
        (folder / name).write_bytes(sound[:size])
        expected.rejected[name] = None
        # how many lines are complete is not for us to say; the first ones are
        expected.free.add(name)
        expected.kept |= {f"{name}#{n + 1}": f"record {n}" for n in range(1000)}
    changed = bytearray(sound)
    changed[len(changed) // 2] ^= 4
    (folder / "changed.jsonl.gz").write_bytes(changed)
    (folder / "plain.jsonl.gz").write_bytes(b'{"id": 1, "text": "not compressed"}\n')
    expected.rejected |= {"changed.jsonl.gz": None, "plain.jsonl.gz": None}
    (folder / "after.jsonl.gz").write_bytes(sound + b"something else")
    expected.free |= {"changed.jsonl.gz", "plain.jsonl.gz", "after.jsonl.gz"}
    (folder / "empty.jsonl.gz").write_bytes(gzip.compress(b"", mtime=0))
    alone = folder.with_name("alone")
    expected.add_alone(alone / "empty.jsonl.gz", gzip.compress(b"", mtime=0))
    expected.add_alone(alone / "nothing.jsonl.gz")
    expected.add_alone(alone / "changed.jsonl.gz", bytes(changed))
    expected.add_alone(alone / "cut.jsonl.gz", sound[:20])
    return expected


def hostile_parquet(folder: Path) -> Expected:
    """Parquet: sound, with changed bytes in one row group, cut off, something else, empty, of no
    rows, names that clash."""
    expected = Expected()
    rows = 2000
    table = pa.table({"id": range(rows), "text": [f"record {number}" for number in range(rows)]})
    sound = parquet_of(table)
    (folder / "sound.parquet").write_bytes(sound)
    expected.kept |= {f"sound.parquet#{number + 1}": f"record {number}" for number in range(rows)}
    place = sound.index(b"record 700")
    (folder / "group.parquet").write_bytes(sound[:place] + b"RECORD" + sound[place + 6 :])
    # The three other row groups are sound: rows 1 to 500 and 1,001 to 2,000.
    others = [*range(500), *range(1000, rows)]
    expected.kept |= {f"group.parquet#{number + 1}": f"record {number}" for number in others}
    (folder / "cut.parquet").write_bytes(sound[: len(sound) // 2])
    (folder / "bytes.parquet").write_bytes(random.Random(5).randbytes(100_000))
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "rows.parquet").write_bytes(parquet_of(table.slice(0, 0)))
    expected.rejected |= dict.fromkeys(("group.parquet", "cut.parquet", "bytes.parquet"))
    expected.free |= {"group.parquet", "cut.parquet", "bytes.parquet", "empty.parquet"}
    alone = folder.with_name("alone")
    expected.add_alone(
        alone / "ours.parquet", parquet_of(table.rename_columns(["key", "text"]).slice(0, 10))
    )
    expected.add_alone(alone / "rows.parquet", parquet_of(table.slice(0, 0)))
    expected.add_alone(alone / "empty.parquet")
    expected.add_alone(alone / "cut.parquet", sound[: len(sound) // 2])
    return expected


_RECORDS = ("--shuffle", "1", "--workers", "2", "--samples-per-shard", "5000")

SOURCES = {
    "photos": Source(
        (
            "--resize",
            "72",
            "--crop",
            "64",
            "--store",
            "jpeg:90",
            "--shuffle",
            "1",
            "--workers",
            "2",
        ),
        all_photos,
        small_photos,
    ),
    "jsonl": Source(
        _RECORDS, documents_of(LARGE, "jsonl"), documents_of(SMALL, "jsonl"), hostile_json
    ),
    "csv": Source(_RECORDS, documents_of(LARGE, "csv"), documents_of(SMALL, "csv"), hostile_csv),
    "lines": Source(
        (*_RECORDS, "--kind", "text", "--record", "line"),
        documents_of(LARGE, "lines"),
        documents_of(SMALL, "lines"),
        hostile_lines,
    ),
    "gz": Source(_RECORDS, documents_of(LARGE, "gz"), documents_of(SMALL, "gz"), hostile_gzip),
    "parquet": Source(
        _RECORDS, documents_of(LARGE, "parquet"), documents_of(SMALL, "parquet"), hostile_parquet
    ),
}
