"""Made-up documents as files of many formats: the same from run to run. For measurements and tests
of text and tables."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

CHUNK = 10_000
"""Documents that are made together."""

PARQUET_ROWS = 100_000
"""Rows of a row group."""

PARTS = 8
"""Files of the case of several compressed files."""

FIELDS = ("id", "title", "text", "score")

ODD_WORDS = [
    "café",
    "naïve",
    "Zürich",
    "façade",
    "señor",
    "数据",
    "模型",
    "данные",
    "Ελλάδα",
    "日本語",
    "🙂",
    "—",
    "…",
    "“so”",
]


class Vocabulary:
    """20,000 words of made-up syllables, as often as words are in English (Zipf), and some that are
    not ASCII."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        starts = [*"bcdfghlmnprstvw", "st", "tr", "ch", "br", "th", "pl", ""]
        ends = ["", "n", "r", "s", "t", "l", "d", "ng", "rd", "st"]
        syllables = [
            start + vowel + end
            for start in starts
            for vowel in ("a", "e", "i", "o", "u", "ea", "ou")
            for end in ends
        ]
        count = 20_000
        lengths = np.minimum(1 + np.arange(count) // 500, 1 + self._rng.integers(0, 3, count))
        drawn = self._rng.integers(0, len(syllables), (count, 3))
        self._words = [
            "".join(syllables[i] for i in row[:n]) for row, n in zip(drawn, lengths, strict=True)
        ]
        for place, word in enumerate(ODD_WORDS):
            self._words[300 + 40 * place] = word
        weights = 1 / (np.arange(count) + 2.7)
        self._up_to = np.cumsum(weights / weights.sum())

    def sentences(self, lengths: npt.NDArray[np.int64]) -> Iterator[str]:
        """Yield so many words at a time, (n,) int64, joined by spaces, now and then with a full
        stop or a comma."""
        total = int(lengths.sum())
        picks = (
            np.searchsorted(self._up_to, self._rng.random(total))
            .clip(0, len(self._words) - 1)
            .tolist()
        )
        marks = self._rng.random(total)
        words = [self._words[pick] for pick in picks]
        for place in np.flatnonzero(marks < 0.08).tolist():
            words[place] += "," if marks[place] < 0.04 else "."
        first = 0
        for length in lengths.tolist():
            yield " ".join(words[first : first + length])
            first += length

    def documents(self, first: int, count: int) -> list[dict[str, Any]]:
        """Make documents with the numbers from `first` on: about 300 bytes of text, with quotes,
        line ends and tabs in some."""
        titles = list(self.sentences(self._rng.integers(3, 7, count)))
        texts = list(self.sentences(self._rng.integers(32, 72, count)))
        odd = self._rng.random(count)
        for place in np.flatnonzero(odd < 0.2).tolist():
            half = len(texts[place]) // 2
            inside = ['" he said, "', '" he said, "', "\n", "\t", " C:\\new "][int(odd[place] * 25)]
            texts[place] = texts[place][:half] + inside + texts[place][half:]
        scores = self._rng.normal(0, 10, count).round(4).tolist()
        return [
            {"id": first + n, "title": title.capitalize(), "text": text, "score": score}
            for n, (title, text, score) in enumerate(zip(titles, texts, scores, strict=True))
        ]


def documents(size: int, seed: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Yield chunks of documents until they are about `size` bytes as JSON lines."""
    vocabulary, made, first = Vocabulary(seed), 0, 0
    while made < size:
        chunk = vocabulary.documents(first, CHUNK)
        each = len(json_lines(chunk)) / CHUNK
        chunk = chunk[: max(1, int((size - made) / each))]
        yield chunk
        made, first = made + int(each * len(chunk)), first + len(chunk)
        if each * len(chunk) < each:
            return


def json_lines(chunk: list[dict[str, Any]]) -> bytes:
    """Return documents as JSON lines, one in ten with \\uXXXX for what is not ASCII, as some tools
    write it."""
    return "".join(
        json.dumps(doc, ensure_ascii=doc["id"] % 10 == 0) + "\n" for doc in chunk
    ).encode()


def plain_line(doc: dict[str, Any]) -> str:
    """Return a document as a line of text."""
    return f"{doc['title']}: {doc['text']}".replace("\n", " ") + "\n"


def make_text_inputs(root: Path, size: int) -> dict[str, Any]:
    """Write documents of about `size` bytes in every format below `root`, once. Returns what is
    there, as inputs.json has it.

    The middle of the CSV file is the beginning of a row, which a reader cannot find out without
    reading: the bare loop is told it.
    """
    facts = root / "inputs.json"
    if not facts.exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        facts.write_text(json.dumps(_write(root, size)))
    found: dict[str, Any] = json.loads(facts.read_text())
    return found


def _write(root: Path, size: int) -> dict[str, Any]:
    import pyarrow.parquet as pq

    schema = pa.schema(
        [("id", pa.int64()), ("title", pa.string()), ("text", pa.string()), ("score", pa.float64())]
    )
    count, middle, waiting = 0, 0, []
    with (
        open(root / "docs.jsonl", "wb") as jsonl,
        open(root / "docs.csv", "w", encoding="utf-8", newline="") as table,
        open(root / "docs.txt", "w", encoding="utf-8") as lines,
        pq.ParquetWriter(root / "docs.parquet", schema, compression="snappy") as parquet,
    ):
        writer = csv.DictWriter(table, FIELDS, lineterminator="\n")
        writer.writeheader()
        for chunk in documents(size):
            jsonl.write(json_lines(chunk))
            writer.writerows(chunk)
            lines.writelines(map(plain_line, chunk))
            count += len(chunk)
            waiting += chunk
            if not middle and jsonl.tell() >= size // 2:
                middle = table.tell()
            if len(waiting) >= PARQUET_ROWS:
                parquet.write_table(
                    pa.Table.from_pylist(waiting[:PARQUET_ROWS], schema),
                    row_group_size=PARQUET_ROWS,
                )
                waiting = waiting[PARQUET_ROWS:]
        if waiting:
            parquet.write_table(pa.Table.from_pylist(waiting, schema), row_group_size=PARQUET_ROWS)
    _split(root / "docs.jsonl", root / "parts")
    names = ("docs.jsonl", "docs.csv", "docs.txt", "docs.parquet")
    sizes = {name: (root / name).stat().st_size for name in names}
    sizes["parts"] = sum(part.stat().st_size for part in (root / "parts").iterdir())
    return {"documents": count, "csv_middle": middle, "bytes": sizes}


def _split(source: Path, target: Path) -> None:
    """Write JSON lines as PARTS compressed files of about the same size."""
    import zstandard

    target.mkdir()
    each = source.stat().st_size // PARTS + 1
    with open(source, "rb") as plain:
        for number in range(PARTS):
            part = plain.read(each) + plain.readline()
            (target / f"part-{number}.jsonl.zst").write_bytes(
                zstandard.ZstdCompressor(3).compress(part)
            )


def make_short_lines(path: Path, count: int) -> None:
    """Write so many short lines, about 50 bytes each, each with its own number.

    A block of lines is written over and over with other numbers in it: 5 GB take half a minute.
    """
    block = 100_000
    words = Vocabulary(7)
    lengths = np.random.default_rng(7).integers(2, 11, block)
    rows = [f"1000000000 {text}\n".encode() for text in words.sentences(lengths)]
    data = np.frombuffer(b"".join(rows), np.uint8).copy()
    ends = np.cumsum(list(map(len, rows)))
    starts = ends - [len(row) for row in rows]
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        for first in range(0, count, block):
            numbers = np.arange(first, first + block)
            # the leading 1 keeps ten digits
            for digit in range(1, 10):
                data[starts + digit] = numbers // 10 ** (9 - digit) % 10 + 48
            file.write(data[: ends[min(block, count - first) - 1]].tobytes())
    partial.rename(path)
