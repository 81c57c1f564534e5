"""TFRecord: records of bytes with checksums; TensorFlow is not needed to read them.

A record is its length (u64), the masked CRC-32C of these 8 bytes (u32), its data, and the masked
CRC-32C of the data (u32), all little-endian (tensorflow/core/lib/io/record_writer.h). The data is a
tf.train.Example, or a SequenceExample.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from shardctl.errors import InstallError, Rejection
from shardctl.sources.export_description import described
from shardctl.sources.format_table import TFRECORD_NEEDS
from shardctl.sources.formats.base import RECORD_BYTES, Reading
from shardctl.sources.formats.containers import NOTHING_DECLARED, Declared, Frame, too_large
from shardctl.sources.formats.content import Content
from shardctl.sources.formats.found_values import Record
from shardctl.sources.formats.tfds import FEATURES, Features

HEAD = struct.Struct("<QI")
TAIL = struct.Struct("<I")

_DELTA = 0xA282EAD8


def masked(checksum: int) -> int:
    """Return a CRC-32C as TFRecord stores it: turned by 15 bits, and a constant added."""
    return (((checksum >> 15) | (checksum << 17)) + _DELTA) & 0xFFFFFFFF


def crc32c() -> Callable[[bytes], int]:
    """Return the function that gives the CRC-32C of bytes. Raises InstallError."""
    try:
        import google_crc32c
    except ImportError:
        raise InstallError(TFRECORD_NEEDS.message) from None
    value: Callable[[bytes], int] = google_crc32c.value
    return value


def begins(start: bytes) -> bool:
    """Return whether a file that begins like this is a TFRecord: the checksum of its first length
    is right."""
    try:
        checksum = crc32c()
    except InstallError:
        return False
    return len(start) >= HEAD.size and masked(checksum(start[:8])) == HEAD.unpack_from(start)[1]


class TFRecord:
    """Opens TFRecord files. Raises InstallError if a package is missing."""

    name: ClassVar[str] = "tfrecord"

    def __init__(self) -> None:
        from shardctl.sources.formats.examples import example_parser

        self._crc32c = crc32c()
        self._parse = example_parser()

    def is_plain(self, start: bytes) -> bool:
        """Return whether this is no compressed data, but a length that looks like it."""
        return begins(start)

    def open(self, content: Content, path: str, reading: Reading) -> TFRecords:
        """Return the records of a file, with the types that a features.json beside it gives them.

        Of an export the types are in shardctl.json, which holds more of them.
        """
        features = (
            None if described(path) is not None else Features.beside(Path(path).with_name(FEATURES))
        )
        return TFRecords(content, self._crc32c, self._parse, features)


class TFRecords:
    """The records of an open TFRecord file."""

    def __init__(
        self,
        content: Content,
        checksum: Callable[[bytes], int],
        parse: Callable[[bytes], Record],
        features: Features | None,
    ) -> None:
        self.content = content
        self._crc32c, self._parse, self._features = checksum, parse, features

    def begin(self) -> int:
        """Return 0. Raises Rejection if the file does not begin with a record."""
        head = self.content.at(0, HEAD.size)
        if len(head) == HEAD.size and not begins(head):
            message = (
                "it is not a TFRecord file, although its name says so, or damaged at its "
                "beginning; get it again"
            )
            raise self.content.fault or Rejection("read", "not-tfrecord", message)
        return 0

    def frame(self, offset: int) -> Frame | None:
        """Return the next record."""
        head = self.content.at(offset, HEAD.size)
        if not head and self.content.fault is None:
            return None
        if len(head) < HEAD.size:
            return self._ends_early(offset, offset + len(head))
        length, checksum = HEAD.unpack(head)
        if masked(self._crc32c(head[:8])) != checksum:
            message = f"the length of the record at byte {offset} is damaged (CRC-32C)"
            fault = Rejection(
                "read", "damaged", f"{message}; what follows is not read, get the file again"
            )
            return Frame(offset, offset + HEAD.size, fault, last=True)
        end = offset + HEAD.size + length + TAIL.size
        if length > RECORD_BYTES:
            self.content.release(offset + HEAD.size + length)
        if not self.content.reaches(end):
            return self._ends_early(offset, end)
        return Frame(offset, end, too_large(length) if length > RECORD_BYTES else None)

    def _ends_early(self, offset: int, end: int) -> Frame:
        message = f"the file ends within the record at byte {offset}; get the whole file"
        return Frame(
            offset, end, self.content.fault or Rejection("read", "truncated", message), last=True
        )

    def fields(self, frame: Frame, data: bytes) -> Record:
        """Return the features of a record. Raises Rejection for a wrong checksum, and if it is no
        Example."""
        content = data[HEAD.size : -TAIL.size]
        if masked(self._crc32c(content)) != TAIL.unpack_from(data, len(data) - TAIL.size)[0]:
            message = (
                f"the data of the record at byte {frame.offset} is damaged (CRC-32C); get "
                "the file again"
            )
            raise Rejection("read", "damaged", message)
        record = self._parse(content)
        return record if self._features is None else self._features.decoded(record)

    @property
    def declared(self) -> Declared:
        """What features.json says of the fields, where there is one."""
        return (
            NOTHING_DECLARED
            if self._features is None
            else Declared(self._features.types, self._features.classes)
        )
