"""HDF5: data sets of equal length, at the root or in one group, are the columns of the records.
h5py reads them.

Nothing outside of the file is opened: links to other files, and data that lies in others, are
refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Array, DType, leaf_of
from shardctl.sources.formats.base import Digest, Unit, check_magic, refused
from shardctl.sources.formats.columns import FAULTS, HUGGING_FACE, damaged, nested
from shardctl.sources.formats.numbered import Rows, batch_of, column, column_type, row_bytes
from shardctl.system.text import printable

MOST_CHUNK = 256 << 20
"""The largest chunk of a data set that is read: a whole one is decompressed for each of its
rows."""

MOST_INFLATED = 10_000
"""How many bytes one byte of a data set may stand for. zlib reaches 1,032."""

_FAULTS = (*FAULTS, RuntimeError, AttributeError, MemoryError)
"""What h5py raises for files that are damaged."""


def opened(path: str) -> DataSets:
    """Return the rows of the data sets. Raises OSError; Rejection if they are not the columns of
    records."""
    # what h5py says of a lost file has no number
    check_magic(path, ".hdf5")
    with ExitStack() as stack:
        try:
            file = stack.enter_context(h5py.File(path, "r", locking=False))
            sets = DataSets(file, os.stat(path).st_size)  # noqa: PTH116 - see pyproject.toml
        except _FAULTS as error:
            raise damaged("it", error) from None
        stack.pop_all()
        return sets


class DataSets(Rows):
    """The data sets of an open file that are columns."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._sets = _data_sets(file)
        if not self._sets:
            raise refused("empty", "the file has no data sets at its root or in one group")
        types = {name: self._column_type(name, each, size) for name, each in self._sets.items()}
        lengths = {name: each.shape[0] for name, each in self._sets.items()}
        first = next(iter(lengths))
        other = next((name for name in lengths if lengths[name] != lengths[first]), None)
        if other is not None:
            raise refused(
                "several-lengths",
                f"its data sets {printable(first)} and {printable(other)} have {lengths[first]:,} and {lengths[other]:,} rows; write them to files of their own",
            )
        enums = {  # whose numbers may be any: a path that is no column
            f"{name}.enum": {"_type": "ClassLabel", "names": list(map(str, sorted(enum.items())))}
            for name, each in self._sets.items()
            if (enum := h5py.check_enum_dtype(each.dtype))
        }
        self.schema = pa.schema(
            list(types.items()), {HUGGING_FACE: json.dumps({"info": {"features": enums}})}
        )
        self.count = lengths[first]
        self.row_bytes = sum(_row_bytes(each) for each in self._sets.values())

    def _column_type(self, name: str, found: Any, size: int) -> pa.DataType:
        """Return the type of a data set. Raises Rejection if it is no column, or has not the place
        that it should have."""
        what = f"the data set {printable(name)}"
        if found.shape is None or found.is_virtual or found.external:
            raise refused(
                "elsewhere",
                f"{what} is empty, or made of data in other files; write its values into this one",
            )
        _row_bytes(found, what)
        _check_storage(found, size, what)
        text = h5py.check_string_dtype(found.dtype)
        is_text = text is not None and (text.length is None or text.encoding == "utf-8")
        return column_type(np.dtype("U1") if is_text else found.dtype, found.shape[1:], what)

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the values of a unit to a digest: where their bytes lie is known to h5py alone."""
        for first, count in self.runs(unit):
            for name in self._sets:
                _give(self._values(name, first, count), digest)

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit."""
        for first, count in self.runs(unit):
            yield batch_of({name: self._column(name, first, count) for name in names}, count)

    def _column(self, name: str, first: int, count: int) -> pa.Array:
        found, values = self._sets[name], self._values(name, first, count)
        is_text = h5py.check_string_dtype(found.dtype) is not None
        if is_text and pa.types.is_string(leaf_of(self.schema.field(name).type)[0]):
            texts = list(map(_text, values.reshape(-1).tolist()))
            return nested(pa.array(texts, pa.binary()).view(pa.string()), values.shape)
        return column(values)

    def _values(self, name: str, first: int, count: int) -> Array:
        try:
            return np.asarray(self._sets[name][first : first + count])
        except _FAULTS as error:
            raise damaged("it", error) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _check_storage(found: Any, size: int, what: str) -> None:
    """Raise Rejection if a data set of a file of `size` bytes has not the bytes that its shape
    needs."""
    item, stored, offset = found.dtype.itemsize, found.id.get_storage_size(), found.id.get_offset()
    wanted = math.prod(found.shape) * item
    chunk = math.prod(found.chunks or (0,)) * item
    most = stored if found.chunks is None else chunk + MOST_INFLATED * stored
    if stored > size or wanted > most or (offset is not None and offset + wanted > size):
        raise refused(
            "truncated",
            f"{what} is to have {wanted:,} bytes, and has {stored:,} in the file; it is cut",
        )
    if chunk > MOST_CHUNK:
        raise refused(
            "too-large",
            f"{what} has chunks of more than {MOST_CHUNK >> 20} MiB; write it with smaller ones",
        )


def _give(values: Array, digest: Digest) -> None:
    """Give values to a digest; what lies between the fields of a structure is no value."""
    if values.dtype.names:
        for name in values.dtype.names:
            _give(values[name], digest)
    elif values.dtype.kind == "O":
        for value in values.reshape(-1):
            text = _text(value)
            digest.update(len(text).to_bytes(8, "little") + text)
    else:
        digest.update(values.tobytes())


def _text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


_TEXT_BYTES = 64
"""What a text of any length is taken to have, where units are cut."""


def _row_bytes(found: Any, what: str = "it") -> int:
    """Return the size of a row. Raises Rejection if a data set has none, or holds references or
    sequences of any length."""
    dtype: DType = found.dtype
    text = h5py.check_string_dtype(dtype)
    if text is not None and text.length is None:
        dtype = np.dtype(f"S{_TEXT_BYTES}")
    elif dtype.hasobject:
        raise refused(
            "unknown-type",
            f"{what} holds references, or lists of any length; write arrays of numbers",
        )
    return row_bytes(dtype, found.shape, what)


def _data_sets(file: Any) -> dict[str, Any]:
    """Return the data sets at the root, or in the only group if there are none. Raises Rejection
    for links to elsewhere."""
    sets, groups = _members(file)
    if not sets and len(groups) == 1:
        sets, groups = _members(next(iter(groups.values())))
    if groups:
        named = ", ".join(map(printable, list(groups)[:3]))
        raise refused(
            "several-groups",
            f"it has data sets in several groups ({named}); write the columns into one group",
        )
    return sets


def _members(group: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data sets and the groups in a group. Types that have a name there are neither."""
    sets, groups = {}, {}
    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise refused(
                "link", f"{printable(name)} is a link to another place; write the data set itself"
            )
        found = group[name]
        if isinstance(found, h5py.Dataset):
            sets[name] = found
        elif isinstance(found, h5py.Group):
            groups[name] = found
    return sets, groups
