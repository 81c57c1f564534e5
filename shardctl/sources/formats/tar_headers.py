"""The headers of tar files: ustar, GNU and pax.

Own code where the standard library has some: tarfile takes 20 µs for a header, and samples have
many, with pax twice as many. This takes 2 µs (docs/dev/measurements.md), and reads what
tarfile reads: tests/sources/formats/test_webdataset.py compares them.
"""

from __future__ import annotations

import tarfile
from typing import NamedTuple
from zlib import adler32

BLOCK = tarfile.BLOCKSIZE

_CHECKSUM = slice(148, 156)
_SPACES = 8 * ord(" ")
"""What the checksum itself counts as."""


class Header(NamedTuple):
    """A header: name, size in bytes, type as tarfile names it, and the target of a link."""

    name: str
    size: int
    type: bytes
    link: str


def parse_header(block: bytes) -> Header:
    """Read a header of 512 bytes. Raises ValueError if it is none."""
    if len(block) != BLOCK:
        raise ValueError("part of a header")
    written = block[_CHECKSUM]
    stored = _number(written)
    if stored != _sum(block) - sum(written) + _SPACES and stored != _signed_sum(block):
        raise ValueError("a header with a wrong checksum")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    type_ = block[156:157]
    if type_ == tarfile.AREGTYPE and name.endswith(b"/"):
        type_ = tarfile.DIRTYPE  # as tars before POSIX have folders
    return Header(
        _decoded(name), _number(block[124:136]), type_, _decoded(block[157:257].split(b"\0", 1)[0])
    )


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    """Return a number: octal digits, or bytes behind a first one of 0x80 (GNU). Raises
    ValueError."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        raise ValueError("a negative number in a header")
    digits = field.split(b"\0", 1)[0].strip()
    if digits.strip(b"01234567"):
        raise ValueError("a number in a header that is none")
    return int(digits or b"0", 8)


def _sum(block: bytes) -> int:
    """Return the sum of the bytes, as the low half of Adler-32 has it (RFC 1950, section 9): a
    third of the time of `sum`.

    It is kept modulo 65521, which the sum of 256 bytes is always below.
    """
    return (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2


def _signed_sum(block: bytes) -> int:
    """Return the checksum as some old writers computed it, of signed bytes."""
    rest = block[: _CHECKSUM.start] + block[_CHECKSUM.stop :]
    return sum(rest) - 256 * sum(byte > 127 for byte in rest) + _SPACES
