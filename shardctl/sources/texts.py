"""Text: whole files, or lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.sample import RESERVED_FIELDS, Sample
from shardctl.sources import jsonl
from shardctl.sources.base import Input, file_input
from shardctl.sources.walk import UNREACHABLE, FoundFile
from shardctl.storage import printable

FILE_SUFFIXES = frozenset((".txt", ".text", ".md"))
LINE_SUFFIXES = frozenset((".jsonl", ".ndjson"))
MOST_CLASSES = 100_000
"""Different labels of lines that are taken for names of classes: beyond that, a label is text of its own."""

_TEXT = pa.schema([("text", pa.string())])


class TextSource:
    """A `.txt` file is one sample with the field `text`; a line of a `.jsonl` file is one with the fields of its object."""

    kind = "text"

    def __init__(self) -> None:
        self._inference = jsonl.TypeInference()
        self._seen: dict[str, str] = {}
        self._labels: dict[str, int] | None = {}

    def takes(self, file: FoundFile) -> bool:
        """Tell by the name."""
        return file.suffix in FILE_SUFFIXES or file.suffix in LINE_SUFFIXES

    def inputs(self, file: FoundFile) -> Iterable[Input]:
        """Return the file, or its lines. Raises InputError if files and lines are mixed, or a line uses our names."""
        form = "lines of JSON" if file.suffix in LINE_SUFFIXES else "text files"
        self._seen.setdefault(form, file.path)
        if len(self._seen) > 1:
            both = " and ".join(f"{form} ({printable(path)})" for form, path in self._seen.items())
            raise InputError(f"the sources mix {both}, which have different fields; convert them into two datasets")
        return (file_input(file),) if file.fault or form == "text files" else self._lines(file)

    def _lines(self, file: FoundFile) -> Iterator[Input]:
        stem = file.path.rpartition("/")[2].rpartition(".")[0]
        try:
            with open(file.opened, "rb") as opened:
                for number, offset, line in jsonl.lines(opened):
                    label = self._infer(line, number, file)
                    yield Input(
                        f"{file.path}#{number}",
                        file.path,
                        file.root,
                        offset,
                        len(line),
                        file.mtime_ns,
                        file.folder,
                        stem,
                        label,
                        None,
                    )
        except OSError as error:
            fault = Rejection("plan", UNREACHABLE, f"cannot be read ({error.strerror})")
            yield file_input(file._replace(fault=fault))

    def _infer(self, line: bytes, number: int, file: FoundFile) -> int:
        """Take the types of a line into account, and return the place of its label among the names, -1 for none."""
        try:
            record = jsonl.parse_line(line)
        except Rejection:
            return -1  # the worker that reads the line rejects it, with the reason
        for name in RESERVED_FIELDS:
            if name in record:
                raise InputError(
                    f"{printable(file.opened)}, line {number}: the field {name!r} is one that shardctl makes itself; rename it"
                    " in the file (--drop-columns is for labels files, not for fields of lines)"
                )
        self._inference.add(record)
        return self._place_of_label(record.get("label"))

    def _place_of_label(self, label: Any) -> int:
        if self._labels is None or label is None or label == "":
            return -1
        if not isinstance(label, str) or (label not in self._labels and len(self._labels) == MOST_CLASSES):
            self._labels = None
            return -1
        return self._labels.setdefault(label, len(self._labels))

    def parse(self, data: bytes, source: str) -> Sample:
        """Decode UTF-8, or parse a line of JSON."""
        if source.lower().endswith(tuple(LINE_SUFFIXES)):
            return jsonl.parse_line(data)
        try:
            return {"text": data.decode("utf-8-sig")}
        except UnicodeDecodeError as error:
            message = f"not UTF-8 at byte {error.start}; recode it, for instance with iconv -t UTF-8"
            raise Rejection("decode", "not-utf8", message) from None

    def columns(self) -> pa.Schema | None:
        """Return `text`, or the fields that the lines have."""
        return self._inference.schema() if "lines of JSON" in self._seen else _TEXT

    def labels(self) -> list[str] | None:
        """Return the different values of the field `label` in the order in which they came, where all are strings."""
        return list(self._labels) if self._labels else None

    def notices(self) -> list[str]:
        """Name the fields that have no type of their own."""
        notices = jsonl.mixed_notices(self._inference.mixed(), "field")
        schema = self._inference.schema()
        if "label" in schema.names and self._labels is None and pa.types.is_string(schema.field("label").type):
            notices.append("the field label does not name classes (it is not always a string, or has over 100,000 values)")
        return notices
