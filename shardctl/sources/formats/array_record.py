"""ArrayRecord, the files that Grain and TFDS read by number. A record is a tf.train.Example;
Google's package reads the files.

The package compares the checksums of what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from array_record.python import array_record_module

from shardctl.errors import Rejection, first_line
from shardctl.sources.formats.base import UNIT_BYTES, Digest, check_magic
from shardctl.sources.formats.columns import damaged
from shardctl.sources.formats.found_values import Record
from shardctl.sources.formats.tfrecord import example_parser
from shardctl.system.text import printable

MAGIC = (
    bytes.fromhex("83af70d10d884a3f")
    + bytes(8)
    + bytes.fromhex("4000000000000000")
    + bytes.fromhex("91bac23c9287e1a9")
)
"""What every file begins with: the head of a block and the signature of Riegeli, on which the
format is built."""

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
"""No threads, and nothing is read before it is asked for."""


@contextmanager
def opened(path: str) -> Iterator[Examples]:
    """Open a file for the block. Raises OSError, Rejection; InstallError if what reads an Example
    is missing."""
    check_magic(path, MAGIC, 0, "an ArrayRecord file", "not-array-record")
    try:
        reader = array_record_module.ArrayRecordReader(path, _OPTIONS)
        if not reader.ok():
            reader.close()  # which says why
    except (RuntimeError, ValueError) as error:
        raise _damaged("the file", error) from None
    try:
        yield Examples(reader, example_parser())
    finally:
        with suppress(RuntimeError):  # what was wrong has been said
            reader.close()


class Examples:
    """The records of an open file."""

    def __init__(self, reader: Any, parse: Callable[[bytes], Record]) -> None:
        self._reader, self._parse = reader, parse
        self.count = int(reader.num_records())

    def edges(self, size: int) -> list[int]:
        """Return units of about 1 MiB."""
        each = max(1, min(self.count, UNIT_BYTES * self.count // max(1, size)))
        return [*range(0, self.count, each), self.count]

    def records(
        self, first: int, digest: Digest | None
    ) -> Iterator[tuple[int, Callable[[], Record]]]:
        """Yield the records from a number on."""
        for number in range(first, self.count + 1):
            try:
                data: bytes = self._reader.read([number - 1])[0]
            except (RuntimeError, ValueError, IndexError) as error:
                raise _damaged(f"record {number}", error) from None
            if digest is not None:
                digest.update(data)
            yield len(data), partial(self._parse, data)


def _damaged(what: str, error: Exception) -> Rejection:
    return damaged(what, ValueError(printable(first_line(error).partition(";")[0])))
