"""Text: whole files, or lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.sample import RESERVED_FIELDS, Sample
from shardctl.sources import jsonl
from shardctl.sources.base import Input, file_input
from shardctl.sources.walk import FoundFile
from shardctl.storage import printable

FILE_SUFFIXES = frozenset((".txt", ".text", ".md"))
LINE_SUFFIXES = frozenset((".jsonl", ".ndjson"))
_TEXT = pa.schema([("text", pa.string())])


class TextSource:
    """A `.txt` file is one sample with the field `text`; a line of a `.jsonl` file is one with the fields of its object."""

    kind = "text"

    def __init__(self) -> None:
        self._inference = jsonl.TypeInference()
        self._seen: dict[str, str] = {}

    def takes(self, file: FoundFile) -> bool:
        """Tell by the name."""
        return file.suffix in FILE_SUFFIXES or file.suffix in LINE_SUFFIXES

    def inputs(self, file: FoundFile) -> Iterator[Input]:
        """Give the file, or its lines. Raises InputError where files and lines are mixed, or a line uses our names."""
        form = "lines of JSON" if file.suffix in LINE_SUFFIXES else "text files"
        self._seen.setdefault(form, file.path)
        if len(self._seen) > 1:
            both = " and ".join(f"{form} ({printable(path)})" for form, path in self._seen.items())
            raise InputError(f"the sources mix {both}, which have different fields; convert them into two datasets")
        if file.fault or form == "text files":
            yield file_input(file)
        else:
            yield from self._lines(file)

    def _lines(self, file: FoundFile) -> Iterator[Input]:
        try:
            with open(file.opened, "rb") as opened:
                for number, offset, line in jsonl.lines(opened):
                    self._infer(line, number, file)
                    yield Input(
                        f"{file.path}#{number}",
                        file.path,
                        file.root,
                        offset,
                        len(line),
                        file.mtime_ns,
                        file.folder,
                        None,
                    )
        except OSError as error:
            fault = Rejection("plan", "unreachable", f"cannot be read ({error.strerror})")
            yield file_input(file._replace(fault=fault))

    def _infer(self, line: bytes, number: int, file: FoundFile) -> None:
        try:
            record = jsonl.parse_line(line)
        except Rejection:
            return  # the worker that reads the line rejects it, with the reason
        for name in RESERVED_FIELDS:
            if name in record:
                raise InputError(
                    f"{printable(file.opened)}, line {number}: the field {name!r} is one that shardctl makes itself; rename it"
                )
        self._inference.add(record)

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

    def notices(self) -> list[str]:
        """Name the fields that have no type of their own."""
        return [
            f"the field {printable(name)} holds values of several types; those that are no strings are kept as JSON text"
            for name in self._inference.mixed()
        ]
