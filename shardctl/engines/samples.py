"""One input to one sample: read, parse, transform, and lay out as the values of a shard's columns."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.codecs import image
from shardctl.codecs.image import Opened, Pixels, Store
from shardctl.errors import InputError, Rejection, SourceGoneError
from shardctl.geometry import View
from shardctl.recipe import Recipe
from shardctl.sample import Sample
from shardctl.shard import Layout
from shardctl.sources import SOURCES
from shardctl.sources.jsonl import fit
from shardctl.storage import printable

Shape = tuple[int, int, int]
ROW_OVERHEAD = 32
"""Bytes that a row costs beside its largest field: offsets, numbers, its key."""


@dataclass(frozen=True)
class Made:
    """A finished sample. `values` are in the layout's order, `size` is about their bytes."""

    values: tuple[Any, ...]
    size: int
    shape: Shape | None


UNKNOWN_DEVICE = -1


@dataclass(frozen=True)
class Root:
    """A folder that sources are relative to, and the number of the file system that it lay on when it was listed."""

    path: str
    device: int

    @classmethod
    def of(cls, path: str) -> Root:
        """Return the root as it is now. Raises InputError where it is gone."""
        try:
            return cls(path, Path(path).stat().st_dev)
        except OSError as error:
            raise InputError(f"{printable(path)}: cannot be read ({error.strerror})") from error

    @classmethod
    def anywhere(cls, path: str) -> Root:
        """Return a root that may be gone, or lie on another file system than it did: each input is proven on its own."""
        return cls(path, UNKNOWN_DEVICE)

    def check(self) -> None:
        """Make sure that it is still there. Raises SourceGoneError: a source that went away is not a reject for every file."""
        try:
            same = self.device in (UNKNOWN_DEVICE, Path(self.path).stat().st_dev)
            with os.scandir(self.path) as entries:  # its first entry is enough: there may be millions
                if same and next(entries, None):
                    return
        except OSError:
            pass
        raise SourceGoneError(f"{printable(self.path)}: the source has gone away; bring it back (was it unmounted?)")


def read_input(roots: tuple[Root, ...], row: dict[str, Any]) -> bytes:
    """Read the bytes of one input as planned; `roots` are the folders that sources are relative to.

    Raises Rejection (stages `plan`, `read`), SourceGoneError where the whole source has gone away.
    """
    if row["error"]:
        raise Rejection("plan", row["error"], row["message"])
    root = roots[row["root"]]
    try:
        data, status = _read(f"{root.path}/{row['source']}", row["offset"], row["size"])
    except FileNotFoundError:
        root.check()
        raise Rejection("read", "vanished", "it was there when the inputs were listed, and is gone") from None
    except OSError as error:
        root.check()
        raise Rejection("read", "unreadable", f"cannot be read ({error.strerror})") from error
    if status.st_mtime_ns != row["mtime_ns"] or len(data) != row["size"]:
        raise Rejection("read", "changed", "it changed after the inputs were listed; run the conversion again")
    return data


def read_recorded(roots: tuple[Root, ...], row: dict[str, Any]) -> bytes:
    """Read the bytes of one input of a finished dataset, as its plan.arrow records it.

    Raises Rejection (stage `read`) where they are not the ones that the dataset was made from, and where it was rejected
    then.
    """
    if row["outcome"] != "ok":
        raise Rejection("read", "rejected", "it was rejected when the dataset was made")
    if not 0 <= row["root"] < len(roots) or ".." in row["source"].split("/"):
        raise Rejection("read", "astray", "the plan names a file outside of the sources")
    path = f"{roots[row['root']].path}/{row['source']}"
    try:
        data, _ = _read(path, row["offset"], row["size"])
    except FileNotFoundError:
        raise Rejection("read", "gone", f"its source is gone ({printable(path)})") from None
    except (OSError, ValueError) as error:
        raise Rejection("read", "unreadable", f"its source cannot be read ({printable(path)}: {error})") from error
    if digest_of(data) != row["digest"]:
        raise Rejection("read", "changed", f"its source is not what it was ({printable(path)})")
    return data


def _read(path: str, offset: int, size: int) -> tuple[bytes, os.stat_result]:
    """Return a range of a file, or what there is of it: no more is asked for than the file has, whatever the plan says."""
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file")
        if offset:
            file.seek(offset)
        there = min(size, status.st_size - offset)
        return file.read(there) if there > 0 else b"", status


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: a pipe in the place of the file would wait for somebody to write."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class SampleMaker:
    """Applies a recipe. Without a layout (`probe`), `sample` still gives the fields, from which one can be found.

    `enter` hears the stage (decode, transform, encode) that the work comes to.
    """

    def __init__(self, recipe: Recipe, layout: Layout | None, enter: Callable[[str], None]) -> None:
        self._recipe = recipe
        self._enter = enter
        self._source = SOURCES[recipe.kind]()
        self._views = recipe.views
        self._random_views = any(step.random for step in self._views)
        self._own = recipe.sample_transforms
        self._store = recipe.store
        self._fill = [self._filler(f) for f in layout.columns] if layout else []

    def make(self, data: bytes, row: dict[str, Any]) -> Made:
        """Turn the bytes of one input into the values of its row. Raises Rejection."""
        sample = self.sample(data, row)
        shape = sample.pop("_shape", None)
        values = tuple(fill(sample) for fill in self._fill)
        return Made(values, _size(values), shape)

    def sample(self, data: bytes, row: dict[str, Any]) -> Sample:
        """Return the finished fields of one sample; an image is pixels for `raw`, (bytes, path) otherwise."""
        self._enter("decode")
        sample = self._source.parse(data, row["source"])
        if row.get("columns"):
            sample |= row["columns"]
        if row["label"] is not None:
            sample["label"] = row["label"]
        sample["key"], sample["variant"] = row["key"], row["variant"]
        if self._store is None:
            return self._transformed(sample, row)
        if self._store.name == "source":
            sample["_shape"] = _check_source(self._open(data))
            sample["image"] = (data, row["key"])
            return sample
        pixels = self._view(self._open(data), row)
        sample["image"] = pixels
        sample = self._transformed(sample, row)
        self._enter("encode")
        return _stored(sample, self._store)

    def _open(self, data: bytes) -> Opened:
        return image.open_image(data, self._recipe.max_pixels, self._recipe.keep_truncated)

    def _view(self, opened: Opened, row: dict[str, Any]) -> Pixels:
        view = View.whole(opened.size)
        rng = self._recipe.rng(row["key"], row["variant"]) if self._random_views else None
        for step in self._views:
            view = step.view(view, rng)
        return image.render(opened, view)

    def _transformed(self, sample: Sample, row: dict[str, Any]) -> Sample:
        for number, step in enumerate(self._own, 1):
            self._enter("transform")
            # Its own stream per function, so that one that draws more or less does not disturb the next.
            rng = self._recipe.rng(f"{row['key']}\0{number}", row["variant"])
            changed = step.apply(sample, rng)
            if changed is None:
                raise Rejection("transform", "left-out", f"{step.settings()['target']} left it out")
            if changed.get("key") != row["key"]:
                raise Rejection(
                    "transform", "key-changed", f"{step.settings()['target']} changed the key, which names the input"
                )
            sample = changed
        return sample

    def _filler(self, field: pa.Field) -> Callable[[Sample], Any]:
        """Return what takes the value of one column out of a sample."""
        name, type_ = field.name, field.type
        if name == "key":
            return lambda sample: sample[name]
        if name == "image" and self._store is not None:
            shape = tuple(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else None
            return lambda sample: _of_shape(sample.get("image"), shape) if shape else sample.get("image")
        if self._own:
            return lambda sample: _checked(sample.get(name), field)
        return lambda sample: fit(sample.get(name), type_)


def _stored(sample: Sample, store: Store) -> Sample:
    pixels = sample.get("image")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise Rejection("transform", "not-an-image", "the image must stay a (height, width, 3) uint8 array")
    sample["_shape"] = pixels.shape
    if store.name != "raw":
        stem = sample["key"].rpartition(".")[0] or sample["key"]
        sample["image"] = (store.encode(pixels), stem + store.suffix)
    return sample


def _check_source(opened: Opened) -> Shape:
    """Return the decoded shape of an image whose bytes are kept, having made sure that it does decode."""
    image.check(opened)
    return opened.size[1], opened.size[0], 3


def _of_shape(pixels: Any, shape: tuple[int, ...]) -> Any:
    if pixels.shape != shape:
        message = f"the image is {pixels.shape[1]}x{pixels.shape[0]}, the others are {shape[1]}x{shape[0]}"
        raise Rejection("encode", "other-size", f"{message}; store raw needs one size")
    return pixels


def _checked(value: Any, field: pa.Field) -> Any:
    """Return a value made by a user's function as its column wants it. Raises Rejection where it does not fit."""
    plain = plain_value(value)
    try:
        pa.array([plain], field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError) as error:
        message = f"the field {field.name} does not fit the column's type {field.type} ({error})"
        raise Rejection("encode", "other-type", message) from error
    return plain


def plain_value(value: Any) -> Any:
    """Return numpy arrays and numbers as Arrow takes them: arrays of one dimension, lists of arrays, Python numbers."""
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def _size(values: tuple[Any, ...]) -> int:
    size = ROW_OVERHEAD
    for value in values:
        if isinstance(value, np.ndarray):
            size += value.nbytes
        elif isinstance(value, tuple):
            size += len(value[0]) + len(value[1])
        elif isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, list):
            size += 8 * len(value)
        else:
            size += 8
    return size


def digest_of(data: bytes) -> int:
    """Return the XXH3-64 of an input's bytes: how a later run knows whether the input is still the same."""
    return xxhash.xxh3_64_intdigest(data)
