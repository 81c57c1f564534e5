"""The types that a folder of TFDS (TensorFlow Datasets) gives to the features of its records:
features.json and *.labels.txt.

The JSON is that of tensorflow_datasets/core/proto/feature.proto. A field of a dict that a sequence
holds is a list of its own, as TFDS gives it too. Whatever is not known here stays as it is in the
records.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from shardctl.errors import Rejection
from shardctl.format.arrays import dtype_of
from shardctl.format.names import Json
from shardctl.sources.files import Version, local_version, read_small
from shardctl.sources.formats.base import refused
from shardctl.sources.formats.beside import FAULTS_OF_JSON, MOST_BYTES, json_in, of_export
from shardctl.sources.formats.found_values import Declared, Record, whole_array
from shardctl.sources.values import WHOLE, Feature
from shardctl.system.locations import beside

FEATURES = "features.json"

MOST_SEQUENCES = 8
"""How many sequences may be inside of each other."""

MOST_INFLATED = 256 << 20
"""The most bytes that one array may have."""

_ARROW = {
    **WHOLE,
    "bool": pa.bool_(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "object": pa.string(),
}


@dataclass(frozen=True)
class _Leaf:
    """A feature that is stored under one name: of `type` (of one element), with `shape`, in so many
    sequences.

    Lengths that are not known are -1. `encoding` is none, bytes or zlib. `names` are those of its
    classes.
    """

    type: pa.DataType
    shape: tuple[int, ...] = ()
    encoding: str = "none"
    names: tuple[str, ...] = ()
    sequences: int = 0

    @property
    def has_bytes(self) -> bool:
        """Whether it is stored as bytes, and not as numbers."""
        return self.encoding != "none" or bool(
            types.is_binary(self.type) or types.is_string(self.type)
        )


@dataclass(frozen=True)
class Features:
    """The features of a folder: the leaves by their names in the records, such as objects/bbox."""

    leaves: dict[str, _Leaf]
    types: pa.Schema

    @classmethod
    def beside(cls, path: Path) -> Features | None:
        """Read features.json, None if there is none. Raises Rejection if it is damaged, OSError."""
        try:
            version = local_version(str(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _read(path, version)

    @property
    def declared(self) -> Declared:
        """The types of the fields, and the names of the classes of labels, also inside of dicts and
        sequences: by their paths, objects.category."""
        named = ((name.replace("/", "."), leaf.names) for name, leaf in self.leaves.items())
        return Declared(self.types, {name: names for name, names in named if names})

    def decoded(self, record: Record) -> Record:
        """Return the fields of a record as its features say. Raises Rejection (stage `decode`)."""
        made: Record = {}
        used: set[str] = set()
        for name, leaf in self.leaves.items():
            try:
                value = _value(name, leaf, record, used)
            except (ValueError, TypeError, ArithmeticError, LookupError, zlib.error) as error:
                raise Rejection(
                    "decode",
                    "other-type",
                    f"the feature {name!r} is not as {FEATURES} says ({error}); write the records again",
                ) from None
            _put(made, name, value)
        made.update((name, value) for name, value in record.items() if name not in used)
        return made


def _put(record: Record, name: str, value: Any) -> None:
    *dicts, last = name.split("/")
    for part in dicts:
        record = record.setdefault(part, {})
    if record.setdefault(last, value) is not value:
        raise ValueError(f"{name} is both a feature and a dict of features")


@lru_cache(64)
def _read(path: Path, _version: Version) -> Features:
    try:
        tree = json_in(str(path))
        features = {
            name: _leaf(feature, name, sequences, path.parent)
            for name, sequences, feature in _features(tree)
        }
        leaves = {name: leaf for name, leaf in features.items() if leaf is not None}
        types = _schema(leaves)
    except FAULTS_OF_JSON as error:
        reason = f"{type(error).__name__}: {error}"
        raise refused(
            "bad-features",
            f"{FEATURES} beside it cannot be read ({reason}); repair it, or move it away",
        ) from None
    return Features(leaves, types)


def _features(tree: Json, name: str = "", sequences: int = 0) -> Iterator[tuple[str, int, Json]]:
    """Yield the features of a tree, each with its name and in how many sequences it is."""
    if "featuresDict" in tree:
        for part, feature in sorted(tree["featuresDict"]["features"].items()):
            if not part or "/" in part:
                raise ValueError(f"a feature is called {part!r}")
            yield from _features(feature, f"{name}/{part}" if name else part, sequences)
    elif "sequence" in tree:
        if sequences >= MOST_SEQUENCES:
            raise ValueError(
                f"{name} has sequences inside of sequences deeper than {MOST_SEQUENCES}"
            )
        yield from _features(tree["sequence"]["feature"], name, sequences + 1)
    else:
        yield name, sequences, tree


def _leaf(tree: Json, name: str, sequences: int, folder: Path) -> _Leaf | None:
    if "image" in tree:
        return _Leaf(pa.binary(), sequences=sequences)
    if "text" in tree:
        return _Leaf(pa.string(), sequences=sequences)
    if "classLabel" in tree:
        return _Leaf(pa.int64(), names=_class_names(folder, name), sequences=sequences)
    found = tree.get("tensor") or tree.get("boundingBox")
    if found is None or found["dtype"] not in _ARROW:
        return None
    shape = tuple(int(length) for length in found.get("shape", {}).get("dimensions", ()))
    if sequences and any(length < 0 for length in shape):
        return None  # their shapes are not in the records
    return _Leaf(
        _ARROW[found["dtype"]],
        shape,
        str(found.get("encoding", "none")).lower(),
        sequences=sequences,
    )


def companions(path: str) -> Iterator[str]:
    """Yield the files that say more of a file of records, as InputFormat.companions has it: of an
    export, and of TFDS."""
    yield from of_export(path)
    yield FEATURES
    # `_read` tells it
    with contextlib.suppress(*FAULTS_OF_JSON):
        for name, _, feature in _features(json_in(beside(path, FEATURES))):
            if "classLabel" in feature:
                yield label_file(name)


def label_file(name: str) -> str:
    """Return the name of the file with the classes of a label."""
    return f"{name.replace('/', '-')}.labels.txt"


def _class_names(folder: Path, name: str) -> tuple[str, ...]:
    """Return the names of the classes of a label, none if they are not known."""
    path = folder / label_file(name)
    try:
        text = read_small(str(path), MOST_BYTES)
    except FileNotFoundError:
        return ()
    names = tuple(filter(None, map(str.strip, text.decode().split("\n"))))  # as TFDS reads them
    if len(set(names)) < len(names):
        raise ValueError(f"{path.name} has a name twice")
    return names


def _schema(leaves: dict[str, _Leaf]) -> pa.Schema:
    tree: Json = {}
    for name, leaf in leaves.items():
        type_ = leaf.type
        for _ in range(len(leaf.shape) + leaf.sequences):
            type_ = pa.list_(type_)
        _put(tree, name, type_)
    return pa.schema(list(_struct(tree)))


def _struct(tree: Json) -> pa.StructType:
    return pa.struct(
        [(name, _struct(part) if isinstance(part, dict) else part) for name, part in tree.items()]
    )


def _value(name: str, leaf: _Leaf, record: Record, used: set[str]) -> Any:
    """Return the value of a feature from those that it is stored as, whose names are added to
    `used`. Raises ValueError."""

    def stored(end: str = "", has_bytes: bool = leaf.has_bytes) -> Any:
        used.add(name + end)
        feature = record.get(name + end)
        if not isinstance(feature, Feature):
            return None
        if isinstance(feature.items, np.ndarray) == has_bytes:
            raise ValueError(
                f"{'numbers' if has_bytes else 'bytes'} in place of "
                f"{'bytes' if has_bytes else 'numbers'}"
            )
        return feature.items

    if leaf.sequences > 1:
        flat = stored("/ragged_flat_values")
        lengths = [
            stored(f"/ragged_row_lengths_{level}", False) for level in range(leaf.sequences - 1)
        ]
        if flat is None or any(each is None for each in lengths):
            return None
        made = _elements(leaf, flat)
        for each in reversed(lengths):
            made = _split(made, each)
        return made
    shape = stored("/shape", False) if sum(length < 0 for length in leaf.shape) > 1 else None
    items = stored() if shape is None else stored("/value")
    if items is None:
        return None
    if leaf.sequences:
        return _elements(leaf, items)
    if shape is not None and len(shape) != len(leaf.shape):
        raise ValueError(f"an array of {len(shape)} dimensions in place of {len(leaf.shape)}")
    return _element(leaf, items, leaf.shape if shape is None else tuple(shape.tolist()))


def _split(values: Any, lengths: Any) -> list[Any]:
    ends = np.cumsum(lengths)
    if len(lengths) and (
        lengths.min() < 0 or lengths.max() > len(values) or ends[-1] != len(values)
    ):
        raise ValueError("its lengths are not those of its values")
    if not len(lengths) and len(values):
        raise ValueError("it has values and no lengths")
    return [
        values[end - length : end]
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]


def _elements(leaf: _Leaf, items: Any) -> Any:
    """Return the elements of a sequence: an array, or a list."""
    if leaf.encoding != "none":
        made, left = [], MOST_INFLATED  # bytes that they have together at most
        for item in items:
            made.append(whole_array(_unpacked(leaf, item, left).reshape(leaf.shape)))
            left -= made[-1].nbytes
        return made
    values = _typed(leaf, items)
    if not leaf.shape:
        return values
    return values.reshape(-1, *leaf.shape) if len(values) else []


def _element(leaf: _Leaf, items: Any, shape: tuple[int, ...]) -> Any:
    if leaf.encoding != "none":
        return whole_array(_unpacked(leaf, items[0], MOST_INFLATED).reshape(shape))
    values = _typed(leaf, items)
    if not shape:
        if len(values) > 1:
            raise ValueError(f"{len(values)} values in place of one")
        only = next(iter(values), None)
        return only.item() if isinstance(only, np.generic) else only
    return whole_array(values.reshape(shape)) if isinstance(values, np.ndarray) else values


def _typed(leaf: _Leaf, items: Any) -> Any:
    if types.is_binary(leaf.type):
        return items
    if types.is_string(leaf.type):
        return [item.decode() for item in items]
    if types.is_uint64(leaf.type) and items.dtype == np.int64:
        return items.view(np.uint64)  # Example has no such type: TFDS stores the same 64 bits
    with np.errstate(invalid="ignore", over="ignore"):  # such a value is another one then
        made = items.astype(dtype_of(leaf.type))
    if not np.array_equal(made, items, equal_nan=made.dtype.kind == "f"):
        raise ValueError(f"a value does not fit {leaf.type}")
    return made


def _unpacked(leaf: _Leaf, data: bytes, most: int) -> Any:
    """Return the elements of an array whose bytes are stored. Raises ValueError if they have more
    than `most` bytes."""
    dtype = dtype_of(leaf.type).newbyteorder("<")
    if leaf.encoding == "zlib":
        inflate = zlib.decompressobj()
        data = inflate.decompress(data, max(most, 1))  # 0 stands for no limit
        if not inflate.eof:
            raise ValueError("its compressed data is not whole, or very large")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
