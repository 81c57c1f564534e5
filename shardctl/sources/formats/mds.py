"""MDS, the shards of MosaicML Streaming: each says its own columns, and where its samples begin.

u32 samples, u32 where each sample begins and the last one ends, JSON of the columns, then the
samples. A sample is the sizes (u32) of its columns without a fixed size, and then its values, in
the order of the columns. All is little-endian (streaming/base/format/mds/writer.py).
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Numbers
from shardctl.sources.files import Version, local_copy, local_version
from shardctl.sources.formats.base import RECORD_BYTES, refused
from shardctl.sources.formats.beside import FAULTS_OF_JSON, is_beside, is_name, json_in, of_export
from shardctl.sources.formats.found_values import (
    Container,
    Declared,
    Frame,
    Record,
    too_large,
    whole_array,
)
from shardctl.sources.jsonl import parse_value
from shardctl.sources.values import WHOLE
from shardctl.sources.walk import FoundFile
from shardctl.system.files import open_ordinary
from shardctl.system.locations import beside, name_of
from shardctl.system.text import printable

MOST_SAMPLES = 1 << 24
"""The most samples that a shard may have: where they begin takes 200 MB of memory then."""

MOST_CONFIG = 1 << 20
"""The largest description of columns that is read."""

_NUMBERS = {
    name: np.dtype(name).newbyteorder("<") for name in (*WHOLE, "float16", "float32", "float64")
} | {"int": np.dtype("<i8")}
_ARRAY_TYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_SHAPE_TYPES = ("<u1", "<u2", "<u4", "<u8")


class _Column(NamedTuple):
    """A column: its size if that is fixed, and what makes a value of its bytes, None where it is
    not wanted.

    `type` is None where values say their own types.
    """

    name: str
    size: int | None
    decode: Callable[[bytes], Any] | None
    type: pa.DataType | None


class MdsShard(Container):
    """The samples of an open shard."""

    @staticmethod
    def is_plain(start: bytes) -> bool:
        """Return whether this is a number of samples and the beginning of the first one, which
        looks like compressed data."""
        samples, first = struct.unpack("<II", start[:8]) if len(start) >= 8 else (0, 0)
        return 8 + 4 * int(samples) <= int(first) <= 8 + 4 * int(samples) + MOST_CONFIG

    def begin(self) -> int:
        """Read where the samples are, and which columns they have. Raises Rejection if that cannot
        be."""
        samples = int.from_bytes(self.content.at(0, 4), "little")
        start = 8 + 4 * samples  # of what says the columns
        table = self.content.at(4, start - 4) if samples <= MOST_SAMPLES else b""
        places = np.frombuffer(table[: len(table) // 4 * 4], "<u4").astype(np.int64)
        if (
            len(places) <= samples
            or (np.diff(places) <= 0).any()
            or not 0 <= places[0] - start <= MOST_CONFIG
        ):
            raise self.content.fault or refused(
                "not-mds", "it is no MDS shard, or damaged; get it again"
            )
        self._columns = self._read_columns(self.content.at(start, int(places[0]) - start))
        types = [(each.name, each.type) for each in self._columns if each.type is not None]
        self.declared = Declared(pa.schema(types), {})
        self._ends: Numbers = places[1:]
        size = int(places[-1])
        listed = listed_in(beside(self.path, INDEX)).get(name_of(self.path))
        if listed is not None and listed[:2] != (samples, size):
            raise refused(
                "not-as-listed",
                f"{INDEX} says {listed[0]} samples in {listed[1]} bytes, and it has {samples} in {size}; get both again",
            )
        return int(places[0])

    def _read_columns(self, config: bytes) -> list[_Column]:
        try:
            columns = json.loads(config)
            rows = zip(
                columns["column_names"],
                columns["column_encodings"],
                columns["column_sizes"],
                strict=True,
            )
            found = [_column(*row, self.reading.only) for row in rows]
            if len({column.name for column in found}) < len(found):
                raise ValueError("two columns have one name")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise refused(
                "bad-columns",
                f"its columns cannot be read ({printable(error)}); it is damaged, get it again",
            ) from None
        return found

    def frame(self, offset: int) -> Frame | None:
        """Return the sample that begins at `offset`."""
        number = int(np.searchsorted(self._ends, offset, side="right"))
        if number >= len(self._ends):
            return None
        end = int(self._ends[number])
        if end - offset > RECORD_BYTES:
            self.content.release(end)
            return Frame(offset, end, too_large(end - offset))
        if not self.content.reaches(end):
            message = "the shard ends within this sample; get the whole file"
            return self.broken(offset, end, "truncated", message)
        return Frame(offset, end)

    def fields(self, frame: Frame, data: bytes) -> Record:
        """Return the values of a sample. Raises Rejection."""
        free = [column for column in self._columns if column.size is None]
        sizes = iter(np.frombuffer(data[: min(4 * len(free), len(data) // 4 * 4)], "<u4").tolist())
        at = 4 * len(free)
        record: Record = {}
        for column in self._columns:
            size = next(sizes, len(data) + 1) if column.size is None else column.size
            start, at = at, at + size
            if at > len(data):
                raise Rejection(
                    "decode",
                    "bad-sample",
                    "the sizes of its values do not fit into the sample; get the shard again",
                )
            if column.decode is None:
                continue
            try:
                record[column.name] = column.decode(data[start:at])
            except Rejection as rejection:  # of JSON
                raise rejection.saying(
                    f"its {printable(column.name)}: {rejection.message}"
                ) from None
            except (ValueError, LookupError, TypeError, ArithmeticError) as error:
                raise Rejection(
                    "decode",
                    "bad-value",
                    f"its {printable(column.name)} is not as it should be ({printable(error)}); get the shard again",
                ) from None
        return record


def _column(name: Any, encoding: Any, size: Any, only: Collection[str]) -> _Column:
    """Return a column. Raises ValueError, TypeError; Rejection for one that is not read."""
    if (
        not isinstance(name, str)
        or not isinstance(encoding, str)
        or not (size is None or (type(size) is int and size >= 0))
    ):
        raise TypeError("a name, an encoding and a size are needed")
    if only and name not in only:
        return _Column(name, size, None, None)
    dtype = _NUMBERS.get(encoding)
    if dtype is not None:
        if size != dtype.itemsize:
            raise ValueError(
                f"{name} is of {encoding}, which has {dtype.itemsize} bytes, and not {size}"
            )
        return _Column(
            name,
            size,
            lambda data: np.frombuffer(data, dtype)[0].item(),
            pa.from_numpy_dtype(dtype.newbyteorder("=")),
        )
    if encoding in _OTHERS:
        return _Column(name, size, *_OTHERS[encoding])
    if encoding == "ndarray" or encoding.startswith("ndarray:"):
        return _Column(name, size, _array_decoder(encoding), None)
    why = f"the encoding {encoding} of {name} is not read; write it as bytes, json or ndarray"
    if encoding == "pkl":
        why = f"{name} holds pickles, which can run any code; write it as json or ndarray"
    raise refused("unsupported", f"{printable(why)}, or leave the column out (--fields)")


def _listed_parts(data: bytes, head: int) -> list[bytes]:
    """Return the parts that a list has, behind `head` bytes: u32 count, u32 sizes, the parts.
    Raises ValueError."""
    count = int.from_bytes(data[head : head + 4], "little")
    at = head + 4 + 4 * count
    sizes = np.frombuffer(data[head + 4 : at], "<u4") if at <= len(data) else None
    if sizes is None or at + int(sizes.sum(dtype=np.int64)) != len(data):
        raise ValueError("the sizes of its parts are not that of the list")
    ends = at + np.cumsum(sizes, dtype=np.int64)
    return [data[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


_OTHERS: dict[str, tuple[Callable[[bytes], Any], pa.DataType | None]] = {
    **dict.fromkeys(("bytes", "jpeg", "png"), (bytes, pa.binary())),
    "str": (bytes.decode, pa.string()),
    "json": (parse_value, None),
    "str_int": (lambda data: int(data.decode()), None),
    "str_float": (lambda data: float(data.decode()), pa.float64()),
    "str_decimal": (lambda data: str(Decimal(data.decode())), pa.string()),
    **dict.fromkeys(
        ("jpeg_array", "jpegarray"), (lambda data: _listed_parts(data, 0), pa.list_(pa.binary()))
    ),
    **dict.fromkeys(
        ("list[jpeg]", "list[png]"), (lambda data: _listed_parts(data, 4), pa.list_(pa.binary()))
    ),
}


def _array_decoder(encoding: str) -> Callable[[bytes], Any]:
    """Return what makes arrays of bytes: of type and shape that the encoding gives,
    ndarray:TYPE:SHAPE, or they themselves."""
    _, _, given = encoding.partition(":")
    of_type, _, of_shape = given.partition(":")
    if of_type and of_type not in _ARRAY_TYPES.values():
        raise ValueError(f"the encoding {encoding} is not read")
    shape = tuple(map(int, of_shape.split(","))) if of_shape else None

    def decode(data: bytes) -> Any:
        at = 0 if of_type else 1
        dtype = np.dtype(of_type or _ARRAY_TYPES[data[0]]).newbyteorder("<")
        found = shape
        if found is None:
            dimensions, kind = data[at] >> 2, np.dtype(_SHAPE_TYPES[data[at] & 3])
            end = at + 1 + dimensions * kind.itemsize
            found, at = tuple(np.frombuffer(data[at + 1 : end], kind).tolist()), end
        return whole_array(np.frombuffer(data[at:], dtype).reshape(found)).astype(
            dtype.newbyteorder("=")
        )

    return decode


# --- index.json of MDS: the names of the shards, their sizes and hashes ---

INDEX = "index.json"
PARTS = ("raw_data", "zip_data")
"""What it has of a shard: the file without compression, and the compressed one."""

_HASHES: dict[str, Callable[[], Any]] = {
    name: getattr(xxhash if name.startswith("xxh") else hashlib, name)
    for name in (
        "md5 sha1 sha224 sha256 sha384 sha512 blake2b blake2s xxh32 xxh64 xxh3_64 xxh3_128"
    ).split()
}
"""The hashes that MDS may have (streaming/base/hashing.py), those that are known here."""

HASHED_BYTES = 1 << 20

_SHARD = re.compile(r"^(.*\.mds)(\.(zstd|zst|gz|bz2|br|snappy))?$", re.DOTALL)


Listed = tuple[int, int, dict[str, str]]
"""What index.json says of a file of a shard: its samples, its size without compression, the hashes
(hex) of the file by their names."""


def check_hashes(path: str) -> None:
    """Compare a shard with the hashes that index.json has of it. Raises Rejection if one differs,
    OSError."""
    *_, listed = listed_in(beside(path, INDEX)).get(name_of(path), (0, 0, {}))
    hashes = {name: _HASHES[name]() for name in sorted(listed) if name in _HASHES}
    if not hashes:
        return
    with open_ordinary(path) as file:
        while chunk := file.read(HASHED_BYTES):
            for each in hashes.values():
                each.update(chunk)
    for name, each in hashes.items():
        if each.hexdigest() != listed[name]:
            raise refused("wrong-hash", f"its {name} is not the one that {INDEX} has; get it again")


def listed_in(index: str) -> dict[str, Listed]:
    """Return the shards that an index.json lists, by the names of their files; none where it is no
    such list."""
    try:
        return _listed(index, local_version(local_copy(index)))
    except OSError:
        return {}


@lru_cache(16)
def _listed(index: str, _version: Version) -> dict[str, Listed]:
    found: dict[str, Listed] = {}
    try:
        for shard in json_in(index)["shards"]:
            samples, size = int(shard["samples"]), int(shard["raw_data"]["bytes"])
            for part in PARTS:
                if shard.get(part):
                    hashes = shard[part].get("hashes") or {}
                    said = {str(name): str(value) for name, value in hashes.items()}
                    found[str(shard[part]["basename"])] = samples, size, said
    except FAULTS_OF_JSON:
        return {}
    return found


def companions(path: str) -> Iterator[str]:
    """Yield the files that say more of a shard, as InputFormat.companions has it."""
    yield from of_export(path)
    yield INDEX


def refuse_missing_shards(file: FoundFile) -> None:
    """Raise InputError if an index lists a shard that is not there, compressed or not."""
    try:
        listed = [
            [str(shard[part]["basename"]) for part in PARTS if shard.get(part)]
            for shard in json_in(file.opened)["shards"]
        ]
    except FAULTS_OF_JSON:
        return
    for names in listed:
        if names and not any(is_name(name) and is_beside(file, name) for name in names):
            shown = " or ".join(map(printable, names))
            raise InputError(
                f"{printable(file.opened)}: lists {shown}, which is not there; get it, or give the shards as sources"
            )


def why_left_out(file: FoundFile, name: str) -> str | None:
    """Return why a file is left out: a shard that the index does not list, or a compressed copy of
    an uncompressed one; None for others."""
    shard = _SHARD.match(name)
    if shard is None:
        return None
    if shard[2] and is_beside(file, shard[1]):
        return "the shards are there uncompressed too"
    listed = listed_in(beside(file.opened, INDEX))
    return "index.json does not list them" if listed and name not in listed else None
