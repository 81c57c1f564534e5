"""WebDataset: tar files in which the members of a sample follow each other, and have the same name
up to its first dot.

Nothing is ever extracted: names are only the keys and the fields of samples.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from contextlib import closing
from typing import Any, NamedTuple
from zlib import adler32

import numpy as np
import xxhash

from shardctl.errors import Rejection
from shardctl.sources.formats.base import FOLDER, RECORD_BYTES, not_this, refused
from shardctl.sources.formats.content import open_content
from shardctl.sources.formats.found_values import Container, Frame, Record, too_large, whole_array
from shardctl.sources.image_columns import AUTO
from shardctl.sources.jsonl import parse_value
from shardctl.sources.walk import is_of_system
from shardctl.system.text import printable

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
    stored = _octal(written)
    if stored != _sum(block) - sum(written) + _SPACES and stored != _signed_sum(block):
        raise ValueError("a header with a wrong checksum")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    type_ = block[156:157]
    if type_ == tarfile.AREGTYPE and name.endswith(b"/"):
        type_ = tarfile.DIRTYPE  # as tars before POSIX have folders
    return Header(
        _decoded(name), _octal(block[124:136]), type_, _decoded(block[157:257].split(b"\0", 1)[0])
    )


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _octal(field: bytes) -> int:
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


NUMBERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
TEXTS = frozenset(("txt", "text", "transcript"))
JSONS = frozenset(("json", "jsn"))
ARRAYS = frozenset(("npy",))
PICKLES = frozenset(("pyd", "pkl", "pickle", "pth", "pt"))
"""The last parts of names that the package webdataset gives a meaning to. All others are bytes."""

_WHOLE = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")


def value_of(field: str, data: bytes) -> Any:
    """Return the value of a member. Raises Rejection (stage `decode`) if it is not what its name
    says."""
    ending = field.rpartition(".")[2]
    what = f"its member {printable(field)}"
    if ending in NUMBERS:
        if not _WHOLE.fullmatch(data):
            shown = printable(data[:40].decode("utf-8", "replace"))
            raise Rejection(
                "decode",
                "not-a-number",
                f"{what} must be a whole number, and is {shown}; fix it, or name it .txt",
            )
        return int(data)
    if ending in ARRAYS:
        return array_in(data, what)
    if ending in PICKLES:
        raise Rejection(
            "decode", "pickle", f"{what} is a pickle, which can run any code; use .json or .npy"
        )
    try:
        if ending in JSONS:
            return parse_value(data)
        return data.decode() if ending in TEXTS else data
    except UnicodeDecodeError as error:
        raise Rejection(
            "decode", "not-utf8", f"{what} is not UTF-8 at byte {error.start}; recode it"
        ) from None
    except Rejection as rejection:
        raise rejection.saying(f"{what}: {rejection.message}") from None


def array_in(data: bytes, what: str) -> Any:
    """Return the array in the bytes of an .npy file. Nothing is unpickled, and no memory is taken
    beyond them.

    Raises Rejection.
    """
    from shardctl.sources.formats.npy import read_header

    try:
        header = read_header(io.BytesIO(data), what)
        header.check_size(len(data) - header.start)
        dtype = header.dtype
        if dtype.kind not in "iufb":
            raise Rejection("", "", f"{what} is an array of {dtype}; arrays of numbers are read")
        array = np.frombuffer(data, dtype, offset=header.start)
        array = whole_array(array.reshape(header.shape, order="F" if header.fortran else "C"))
    except (Rejection, ValueError) as error:
        why = error.message if isinstance(error, Rejection) else f"{what} cannot be read ({error})"
        raise Rejection("decode", "not-npy", why) from None
    return array.astype(dtype.newbyteorder("="))


IMAGE = "image"

IMAGES = frozenset(
    ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "jp2", "avif", "qoi")
)
"""Fields that are images. Where images are wanted, the only one of a sample is the field
`image`."""

KEY = "__key__"
"""The field with the key of a sample: the path of its members up to the first dot of the name."""

LONGEST_HEADER = 1 << 16
"""The longest name, and the largest pax header, that is read."""

MOST_HEADERS = 1 << 20
"""The most bytes of headers that one member has, and of folders and the like between two members of
a sample."""

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITH_DATA = (*_FILES, tarfile.GNUTYPE_SPARSE)
_LINKS = (tarfile.LNKTYPE, tarfile.SYMTYPE)
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_BEFORE_OTHERS = (*_PAX, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)

ZEROS_AHEAD, ZEROS_AT_ONCE = 1 << 16, 1 << 20
"""Bytes behind a block of zeros that are looked at while the sample before it is still needed, and
at a time after that."""

HOLE = "zeros, and more data behind them: a hole, or another tar"

_PAX_NAMES = (b"path", b"size", b"linkpath")
"""What is of interest in pax headers, beside the marks of sparse files: most of them only have
times."""

_NAME = re.compile(r"^((?:.*/)?[^./]+)\.([^/]+)$", re.DOTALL)
"""A key and a field, as the package webdataset tells them apart."""

_META = re.compile(r"__[^/]*__($|/)")
"""Names of members that webdataset passes over."""

_NO_UTF8 = re.compile(r"[\ud800-\udfff]")

_END = b"\0" * BLOCK

_MORE_HOLES_OF_HEADER, _MORE_HOLES = 482, 504
"""Where GNU says, in the header of a sparse member and in the blocks behind it, that one more block
tells of holes."""


_ARCHIVES = ("tar", "tgz", "tar.gz", "zip")
"""Members that hold files of their own. Where one is a whole sample, as in the tar of ImageNet, the
tar is none of samples."""


class _Member(NamedTuple):
    """A member of a tar: the `key` of its sample, its `field`, where its data begins and ends, and
    where the next one begins.

    `fault` says why it cannot be a field. What is passed over has no key: folders, and names such
    as __meta__.
    """

    key: str | None
    field: str
    start: int
    stop: int
    next: int
    fault: Rejection | None = None


class TarSamples(Container):
    """The samples of an open tar. Fields that are not wanted are not looked at."""

    @staticmethod
    def is_plain(start: bytes) -> bool:
        """Return whether this looks like zlib data, which nobody makes of a tar: it is the name of
        its first member."""
        return start.startswith(b"x")

    def begin(self) -> int:
        """Return 0. Raises Rejection if it is no tar."""
        self._only = frozenset(self.reading.only)
        self._joins_images = self.reading.image in (AUTO, IMAGE)
        self._seen: dict[int, int] = {}
        self._samples = 0
        # a member that was looked at, and where it begins
        self._ahead: tuple[int, _Member | Frame | None] = (-1, None)
        start = self.content.at(0, BLOCK)
        if not start:
            raise self.content.fault or refused(
                "empty", "the file is empty, not a tar; make it again"
            )
        if start != _END:
            try:
                parse_header(start)
            except ValueError:
                raise self.content.fault or not_this("a tar file", "not-tar") from None
        return 0

    def frame(self, offset: int) -> Frame | None:
        """Return the next sample: the members up to one of another key."""
        first = self._member(offset)
        while isinstance(first, _Member) and first.key is None:
            offset = first.next
            self.content.release(offset)
            first = self._member(offset)
        if first is None:
            return self._at_zeros(offset)
        if isinstance(first, Frame):
            return first
        key = first.key or ""
        self._members: list[_Member] = []
        fault = first.fault or self._repeats(key)
        member: _Member | None = first
        while member is not None:
            if member.next - offset > RECORD_BYTES:
                fault = fault or too_large(member.next - offset)
                # before what follows is read: it would all be in memory
                self.content.release(member.next)
                self._members.clear()
            self._members.append(member)
            fault = fault or member.fault
            member = self._of_key(key, member.next)
        following = self._ahead[1]
        # it may have been a member of this sample, which would lack a field silently
        if isinstance(following, Frame):
            return Frame(offset, following.end, following.fault, last=True)
        last = self._members[-1]
        if not self.content.reaches(last.next):  # also where only the zeros that fill it lack
            message = "the tar ends within this sample; get the whole file"
            return self.broken(offset, last.stop, "truncated", message)
        return Frame(offset, last.next, fault, folder=_folder(last.key or ""))

    def _of_key(self, key: str, offset: int) -> _Member | None:
        """Return the member at `offset`, or after folders that are there, if it belongs to the
        sample of this key."""
        member = self._member(offset)
        while (
            isinstance(member, _Member)
            and member.key is None
            and member.next - offset <= MOST_HEADERS
        ):
            member = self._member(member.next)
        return member if isinstance(member, _Member) and member.key == key else None

    def _repeats(self, key: str) -> Rejection | None:
        """Return why a sample is rejected whose key another one had, whose members are not beside
        its own."""
        self._samples += 1
        digest = xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))
        first = self._seen.setdefault(digest, self._samples)
        if first == self._samples:
            return None
        message = f"its key {printable(key)} is that of sample {first}, too; put the members of a sample beside"
        return refused("repeated-key", f"{message} each other (tar --sort=name)")

    def _member(self, offset: int) -> _Member | Frame | None:
        if self._ahead[0] != offset:
            self._ahead = offset, self._read_member(offset)
        return self._ahead[1]

    def _read_member(self, offset: int) -> _Member | Frame | None:
        """Return the member whose headers begin at `offset`; None at the end; a Frame if nothing
        can be read from here on."""
        names: dict[str, str] = {}
        at = offset
        try:
            while True:
                header = self.content.at(at, BLOCK)
                # two blocks of zeros should be there, which some leave out
                if at == offset and not header.strip(b"\0"):
                    if self.content.at(at, ZEROS_AHEAD).strip(b"\0"):
                        raise ValueError(HOLE)
                    return None if self.content.fault is None else self._broken(offset, at, "")
                if at - offset > MOST_HEADERS:
                    raise ValueError("no end of headers")
                info = parse_header(header)
                if info.type not in _BEFORE_OTHERS:
                    return _made(info, names, self._start_of_data(info, header, at))
                if info.size > LONGEST_HEADER:
                    raise ValueError(f"a header of {info.size} bytes")
                text = self.content.at(at + BLOCK, info.size)
                if info.type in _PAX:
                    names |= _pax(text)
                # a global one is about all members, which have headers of their own
                elif info.type != tarfile.XGLTYPE:
                    is_name = info.type == tarfile.GNUTYPE_LONGNAME
                    names["path" if is_name else "linkpath"] = _decoded(text.split(b"\0", 1)[0])
                at = _next_block(at + BLOCK + info.size)
        except ValueError as error:
            return self._broken(offset, at, str(error))

    def _at_zeros(self, offset: int) -> Frame | None:
        """Return None where only zeros follow: the tar ends. A hole, or a second tar, must not end
        it silently.

        What is before is not needed any more: a member that is only looked at ahead must not come
        here.
        """
        at = offset
        while chunk := self.content.at(at, ZEROS_AT_ONCE):
            if chunk.strip(b"\0"):
                return self._broken(offset, offset, HOLE)
            at += len(chunk)
            self.content.release(at)
        return None if self.content.fault is None else self._broken(offset, offset, "")

    def _start_of_data(self, info: Header, header: bytes, at: int) -> int:
        """Return where the data of a member begins whose header is at `at`: behind what it says of
        holes. Raises ValueError."""
        start = at + BLOCK
        more = info.type == tarfile.GNUTYPE_SPARSE and header[_MORE_HOLES_OF_HEADER]
        while more:
            block = self.content.at(start, BLOCK)
            if len(block) < BLOCK or start - at > MOST_HEADERS:
                raise ValueError("no end of holes")
            start += BLOCK
            more = block[_MORE_HOLES]
        return start

    def _broken(self, offset: int, at: int, why: str) -> Frame:
        """Return what is left of a tar from a header on that cannot be read."""
        message = (
            f"the tar is damaged at byte {at} ({why}); what follows is not read, get the file again"
        )
        return self.broken(offset, at + 1, "damaged", message)

    def fields(self, frame: Frame, data: bytes) -> Record:
        """Return the fields of a sample: its key, and a field for each member. Raises Rejection."""
        key, field = self._members[0].key or "", self._members[0].field
        if len(self._members) == 1 and field in _ARCHIVES:
            shown = printable(f"{key}.{field}")
            raise refused(
                "archive", f"its member {shown} is an archive; unpack this tar first (tar xf)"
            )
        record: Record = {KEY: key}
        if self.reading.label == FOLDER:
            has_image = not self._joins_images or not IMAGES.isdisjoint(
                member.field for member in self._members
            )
            record[FOLDER] = (_folder(key) or ".") if has_image else None
        for member in self._members:
            if member.field in record:
                raise refused(
                    "repeated-field", f"it has two members {printable(member.field)}; keep one"
                )
            if self._only and member.field not in self._only:
                continue
            record[member.field] = value_of(
                member.field, data[member.start - frame.offset : member.stop - frame.offset]
            )
        return _with_one_image(record) if self._joins_images else record


def note_on_end(path: str) -> tuple[str, str] | None:
    """Return that a tar does not end with a block of zeros; None if it does, or is compressed.
    Raises OSError, Rejection."""
    size = os.stat(path).st_size  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
    with closing(open_content(path, TarSamples.is_plain)) as content:
        if content.compression is not None or not content.at(max(0, size - BLOCK), BLOCK).strip(
            b"\0"
        ):
            return None
    return (
        "no-end",
        "it has no end marker (two blocks of zeros) and may be cut; compare its size with the original's",
    )


def _folder(key: str) -> str:
    return key.removeprefix("./").rpartition("/")[0]


def _with_one_image(record: Record) -> Record:
    """Return a sample whose only image is called `image`, whatever its format: that may differ from
    sample to sample."""
    images = [name for name in record if name in IMAGES]
    if len(images) != 1 or IMAGE in record:
        return record
    return {IMAGE if name == images[0] else name: value for name, value in record.items()}


def _next_block(offset: int) -> int:
    return -(-offset // BLOCK) * BLOCK


def _made(info: Header, names: dict[str, str], start: int) -> _Member:
    """Return a member, given what the headers before its own say. Raises ValueError for a size that
    is none."""
    name = names.get("GNU.sparse.name", names.get("path", info.name))
    has_data = info.type in _WITH_DATA or info.type not in tarfile.SUPPORTED_TYPES
    size = int(names.get("size", info.size)) if has_data else 0
    if size < 0:
        raise ValueError("a negative size")
    stop = start + size
    if info.type == tarfile.DIRTYPE or (
        info.type in _FILES and (_META.match(name) or is_of_system(name))
    ):
        return _Member(None, "", start, stop, _next_block(stop))
    found = _NAME.match(name)
    key, field = (found[1], found[2].lower()) if found else (name, "")
    return _Member(
        key or name, field, start, stop, _next_block(stop), _fault_of(info, names, name, field)
    )


def _fault_of(info: Header, names: dict[str, str], name: str, field: str) -> Rejection | None:
    """Return why a member cannot be a field of a sample, None if it can."""
    plain = name.isascii() and ".." not in name and name[:1] != "/" and "\0" not in name
    if (
        plain
        and field not in ("", KEY)
        and info.type in _FILES
        and names.keys() <= {"path", "size"}
    ):
        return None  # nearly all are so
    shown = printable(name)
    if info.type in _LINKS:
        target = printable(names.get("linkpath", info.link))
        return refused("link", f"its member {shown} is a link to {target}; store the file itself")
    if info.type == tarfile.GNUTYPE_SPARSE or any(each.startswith("GNU.sparse") for each in names):
        return refused(
            "sparse", f"its member {shown} is stored with holes; write the tar without --sparse"
        )
    if info.type not in _FILES:
        return refused("not-a-file", f"its member {shown} is not a file; leave it out")
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        return refused(
            "unsafe-name", f"its member has the name {shown}; names must be relative, without .."
        )
    if _NO_UTF8.search(name):
        return refused(
            "name-not-utf8", f"its member has the name {shown}, which is not UTF-8; rename it"
        )
    if not field or field == KEY:
        return refused("no-field", f"its member {shown} has no ending, which would name a field")
    return None


def _pax(text: bytes) -> dict[str, str]:
    """Return the records of a pax header: "LENGTH NAME=VALUE\\n" each (POSIX, pax, extended
    header). Raises ValueError."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text) and text[at]:
        length, _, _ = text[at : at + 20].partition(b" ")
        if not length.isdigit() or not len(length) + 3 <= int(length) <= len(text) - at:
            raise ValueError("a pax header that is none")
        name, equals, value = text[at + len(length) + 1 : at + int(length) - 1].partition(b"=")
        if not equals:
            raise ValueError("a pax header that is none")
        if name in _PAX_NAMES or name.startswith(b"GNU.sparse"):
            found[_decoded(name)] = _decoded(value)
        at += int(length)
    return found
