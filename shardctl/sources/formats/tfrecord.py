"""TFRecord: records of bytes with checksums; TensorFlow is not needed to read them.

A record is its length (u64), the masked CRC-32C of these 8 bytes (u32), its data, and the masked
CRC-32C of the data (u32), all little-endian (tensorflow/core/lib/io/record_writer.h). The data is a
tf.train.Example, or a SequenceExample.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from shardctl.errors import InstallError, Rejection
from shardctl.sources.format_table import TFRECORD_NEEDS
from shardctl.sources.formats.base import RECORD_BYTES, not_this, refused
from shardctl.sources.formats.found_values import Container, Frame, Record, too_large
from shardctl.sources.values import Feature

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


class TFRecords(Container):
    """The records of an open TFRecord file."""

    @staticmethod
    def is_plain(start: bytes) -> bool:
        """Return whether this is no compressed data, but a length that looks like it."""
        return begins(start)

    def begin(self) -> int:
        """Return 0. Raises Rejection if the file does not begin with a record, InstallError if a
        package is missing."""
        self._crc32c, self._parse = crc32c(), example_parser()
        head = self.content.at(0, HEAD.size)
        if len(head) == HEAD.size and not begins(head):
            raise self.content.fault or not_this("a TFRecord file", "not-tfrecord")
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
            fault = refused(
                "damaged",
                f"the length of the record at byte {offset} is damaged (CRC-32C); what follows is not read, get the file again",
            )
            return Frame(offset, offset + HEAD.size, fault, last=True)
        end = offset + HEAD.size + length + TAIL.size
        if length > RECORD_BYTES:
            self.content.release(offset + HEAD.size + length)
        if not self.content.reaches(end):
            return self._ends_early(offset, end)
        return Frame(offset, end, too_large(length) if length > RECORD_BYTES else None)

    def _ends_early(self, offset: int, end: int) -> Frame:
        message = f"it ends within the record at byte {offset}; get the whole file"
        return self.broken(offset, end, "truncated", message)

    def fields(self, frame: Frame, data: bytes) -> Record:
        """Return the features of a record. Raises Rejection for a wrong checksum, and if it is no
        Example."""
        content = data[HEAD.size : -TAIL.size]
        if masked(self._crc32c(content)) != TAIL.unpack_from(data, len(data) - TAIL.size)[0]:
            raise refused(
                "damaged",
                f"the data of the record at byte {frame.offset} is damaged (CRC-32C); get the file again",
            )
        return self._parse(content)


_MESSAGES = {
    "BytesList": {"value": "bytes*"},
    "FloatList": {"value": "float*"},
    "Int64List": {"value": "int64*"},
    "Feature": {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"},
    "FeatureEntry": {"key": "string", "value": "Feature"},
    "Features": {"feature": "FeatureEntry*"},
    "FeatureList": {"feature": "Feature*"},
    "FeatureListEntry": {"key": "string", "value": "FeatureList"},
    "FeatureLists": {"feature_list": "FeatureListEntry*"},
    "Example": {"features": "Features", "feature_lists": "FeatureLists"},
}
"""The fields of messages, numbered from 1, and their types; of those with a star there are several.
Maps are written as entries (tensorflow/core/example/example.proto and feature.proto).

A SequenceExample has its `context` where an Example has its `features`, field 1 of the same type,
so that one class reads both.
"""


@cache
def messages() -> Any:
    """Return the message class that parses both. Raises InstallError."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise InstallError(TFRECORD_NEEDS.message) from None
    known = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shardctl/example.proto", package="shardctl", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "Feature":
            message.oneof_decl.add(name="kind")
        for number, (field, written) in enumerate(fields.items(), 1):
            type_ = written.rstrip("*")
            made = message.field.add(name=field, number=number)
            made.label = known.LABEL_OPTIONAL if type_ == written else known.LABEL_REPEATED
            if type_ in _MESSAGES:
                made.type, made.type_name = known.TYPE_MESSAGE, f".shardctl.{type_}"
            else:
                made.type = known.Type.Value(f"TYPE_{type_.upper()}")
            if name == "Feature":
                made.oneof_index = 0
    # not the common one, in which TensorFlow may have its own
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shardctl.Example"))


_KEY = attrgetter("key")


@cache
def example_parser() -> Callable[[bytes], Record]:
    """Return the function that gives the features of an Example, or of a SequenceExample. Raises
    InstallError.

    It raises Rejection where the bytes are neither.
    """
    class_ = messages()
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    def parse(data: bytes) -> Record:
        try:
            example = class_.FromString(data)
            if len(UnknownFieldSet(example)):
                raise DecodeError
        except DecodeError:
            raise Rejection(
                "decode", "not-an-example", "its data is not a tf.train.Example; write it as one"
            ) from None
        # Sorted: a map is written in any order. Of a name that is there twice, the last one counts.
        record: Record = {
            entry.key: _values(entry.value) for entry in sorted(example.features.feature, key=_KEY)
        }
        lists: Record = {
            entry.key: [_values(feature) for feature in entry.value.feature]
            for entry in sorted(example.feature_lists.feature_list, key=_KEY)
        }
        if both := record.keys() & lists.keys():
            raise Rejection(
                "decode",
                "repeated-field",
                f"it has {min(both)!r} both in its context and in its lists; rename one",
            )
        return record | lists

    return parse


def _values(feature: Any) -> Feature | None:
    """Return the values of a feature, None if it does not even say of which kind they are."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return Feature(list(values))
    return Feature(np.array(values, np.float32 if kind == "float_list" else np.int64))
