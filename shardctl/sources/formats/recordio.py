"""RecordIO of MXNet: records of bytes, most of them an image with its label (read only).

u32 0xced7230a, u32 length with the kind of part in its upper 3 bits, data, zeros up to a multiple
of 4; all little-endian (dmlc-core, include/dmlc/recordio.h). A record whose data contains the first
number is stored in several parts.
"""

from __future__ import annotations

import struct

import numpy as np

from shardctl.sources.formats.base import RECORD_BYTES, not_this
from shardctl.sources.formats.found_values import Container, Frame, Record, too_large

MAGIC = 0xCED7230A

_HEAD = struct.Struct("<II")
_IMAGE = struct.Struct("<IfQQ")
"""What MXNet puts before an image: how many numbers its label has, 0 for the one that follows;
label, id, second id."""

_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)

MOST_NUMBERS = 1 << 16
"""More numbers than a label has."""


class RecordIOFile(Container):
    """The records of an open file."""

    def begin(self) -> int:
        """Return 0. Raises Rejection if the file does not begin as such files do."""
        if self.content.at(0, 4) != struct.pack("<I", MAGIC):
            raise self.content.fault or not_this("a RecordIO file", "not-recordio")
        return 0

    def frame(self, offset: int) -> Frame | None:
        """Return the next record, with all its parts."""
        at, wanted = offset, (_WHOLE, _FIRST)
        while True:
            head = self.content.at(at, _HEAD.size)
            if not head and at == offset and self.content.fault is None:
                return None
            if len(head) < _HEAD.size:
                return self._ended(offset, at, "truncated", "the file ends within a record")
            magic, packed = _HEAD.unpack(head)
            part, length = packed >> 29, packed & ((1 << 29) - 1)
            if magic != MAGIC or part not in wanted:
                return self._ended(offset, at, "damaged", f"no record begins at byte {at}")
            at += _HEAD.size + -(-length // 4) * 4
            if at - offset > RECORD_BYTES:
                self.content.release(at)
            if not self.content.reaches(at):
                return self._ended(offset, at, "truncated", "the file ends within a record")
            if part in (_WHOLE, _LAST):
                return Frame(
                    offset, at, too_large(at - offset) if at - offset > RECORD_BYTES else None
                )
            wanted = (_MIDDLE, _LAST)

    def _ended(self, offset: int, at: int, error: str, what: str) -> Frame:
        message = f"{what}; what follows is not read, get the file again"
        return self.broken(offset, max(at, offset + 1), error, message)

    def fields(self, frame: Frame, data: bytes) -> Record:
        """Return an image with its label and its id; of a record that is none, its bytes."""
        payload = _joined(data)
        if len(payload) < _IMAGE.size:
            return {"data": payload}
        count, label, number, _ = _IMAGE.unpack_from(payload)
        end = _IMAGE.size + 4 * count
        if count > MOST_NUMBERS or end > len(payload):
            return {"data": payload}
        # MXNet stores numbers of classes as float32
        of_class = int(label) if label.is_integer() else label
        numbers = np.frombuffer(payload, "<f4", count, _IMAGE.size).astype(np.float32)
        return {"id": number, "label": numbers if count else of_class, "image": payload[end:]}


def _joined(data: bytes) -> bytes:
    """Return the data of a record, with the number between its parts that they were cut at."""
    parts, at = [], 0
    while at < len(data):
        length = _HEAD.unpack_from(data, at)[1] & ((1 << 29) - 1)
        parts.append(data[at + _HEAD.size : at + _HEAD.size + length])
        at += _HEAD.size + -(-length // 4) * 4
    return struct.pack("<I", MAGIC).join(parts)
