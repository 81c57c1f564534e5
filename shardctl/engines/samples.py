"""One input to one sample: read, parse, transform, and lay out as the values of a shard's columns."""

from __future__ import annotations

import errno
import io
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
from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.errors import InputError, Rejection, SourceGoneError
from shardctl.geometry import View
from shardctl.recipe import Recipe
from shardctl.sample import Sample
from shardctl.shard import Layout, ShardWriter
from shardctl.sources import SOURCES
from shardctl.sources.jsonl import fit
from shardctl.storage import printable
from shardctl.transforms.values import UnfitValue, check_fit, describe, plain_value

Shape = tuple[int, int, int]
ROW_OVERHEAD = 32
"""Bytes that a row costs beside its largest field: offsets, numbers, its key."""


@dataclass(frozen=True)
class Made:
    """A finished sample. `values` are in the layout's order, `size` is about their bytes.

    `label` is its class, None if it has none or the dataset has no classes.
    """

    values: tuple[Any, ...]
    size: int
    shape: Shape | None
    label: int | None


@dataclass(frozen=True)
class Finished:
    """The fields of a sample once all is done to it; an image is pixels for `raw`, (bytes, path) otherwise.

    `shape` is that of its pixels, `setters` names the user's function that set a field last.
    """

    fields: Sample
    shape: Shape | None
    setters: dict[str, str]


UNKNOWN_DEVICE = -1


@dataclass(frozen=True)
class Root:
    """A folder that sources are relative to, and the number of the file system that it lay on when it was listed."""

    path: str
    device: int

    @classmethod
    def of(cls, path: str) -> Root:
        """Return the root as it is now. Raises InputError if it is gone."""
        try:
            return cls(path, Path(path).stat().st_dev)
        except OSError as error:
            raise InputError(f"{printable(path)}: cannot be read ({error.strerror})") from error

    @classmethod
    def anywhere(cls, path: str) -> Root:
        """Return a root that may be gone, or be on another file system now: each input is verified by itself."""
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

    Raises Rejection (stages `plan`, `read`), SourceGoneError if the whole source has gone away.
    """
    if row["error"]:
        raise Rejection("plan", row["error"], row["message"])
    root = roots[row["root"]]
    try:
        data, status = _read(f"{root.path}/{row['source']}", row["offset"], row["size"])
    except FileNotFoundError:
        root.check()
        raise Rejection("read", "vanished", "it was deleted after the inputs were listed") from None
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
        raise Rejection("read", "changed", f"its source has changed ({printable(path)})")
    return data


def _read(path: str, offset: int, size: int) -> tuple[bytes, os.stat_result]:
    """Return a range of a file, or the part of it that exists, and the file's state after the last byte was read.

    It is never more than the file has, whatever the plan says.
    """
    with open(path, "rb", buffering=0, opener=open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file")
        if offset:
            file.seek(offset)
        data = _read_fully(file, min(size, status.st_size - offset))
        return data, os.fstat(file.fileno())


def _read_fully(file: io.FileIO, count: int) -> bytes:
    """Return the next `count` bytes, or those up to the end of the file: one read may return fewer, 2 GiB at most."""
    data = file.read(count) if count > 0 else b""
    if len(data) >= count:
        return data
    parts = [data]
    while parts[-1] and (count := count - len(parts[-1])):
        parts.append(file.read(count))
    return b"".join(parts)


def open_at_once(path: str, flags: int) -> int:
    """Open without blocking: if the file is a pipe, an ordinary open would wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class SampleMaker:
    """Applies a recipe. Without a layout (`probe`), `finish` still returns the fields, from which a layout can be made.

    `enter` is called with the name of each stage (decode, transform, encode) when it begins. `classes` are the names of the
    classes; without them, those of the layout.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: Layout | None,
        enter: Callable[[str], None],
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self._recipe = recipe
        self._enter = enter
        self._source = SOURCES[recipe.kind]()
        self._views = recipe.views
        self._random_views = any(step.random for step in self._views)
        self._own = recipe.sample_transforms
        self._store = recipe.store
        self._classes = layout.classes if layout else classes
        self._fill = [self._filler(f) for f in layout.columns] if layout else []
        self._label_column = layout.columns.get_field_index("label") if layout and layout.classes else -1

    def make(self, data: bytes, row: dict[str, Any]) -> Made:
        """Turn the bytes of one input into the values of its row. Raises Rejection."""
        finished = self.finish(data, row)
        values = tuple(fill(finished) for fill in self._fill)
        label = values[self._label_column] if self._label_column >= 0 else None
        return Made(values, _size(values), finished.shape, label)

    def sample(self, data: bytes, row: dict[str, Any]) -> Sample:
        """Return the fields of one sample. Raises Rejection."""
        return self.finish(data, row).fields

    def finish(self, data: bytes, row: dict[str, Any]) -> Finished:
        """Do all that the recipe says to one input. Raises Rejection."""
        self._enter("decode")
        sample = self._source.parse(data, row["source"])
        if row.get("columns"):
            sample |= row["columns"]
        if row["label"] is not None:
            sample["label"] = row["label"]
        elif self._classes is not None and sample.get("label") == "":
            sample["label"] = None  # the empty label of a line: where labels name classes, it is a missing one
        sample["key"], sample["variant"] = row["key"], row["variant"]
        if self._store is None:
            sample, setters = self._transformed(sample, row)
            return Finished(sample, None, setters)
        if self._store.name == "source":
            shape = _check_source(self._open(data))
            sample["image"] = (data, row["key"])
            return Finished(sample, shape, {})
        pixels = self._view(self._open(data), row)
        # Pillow's array is read-only, and user functions may draw into the image. The copy takes 0.01 ms for 500 x 375 pixels,
        # which take 1.8 ms to decode.
        sample["image"] = pixels if not self._own or pixels.flags.writeable else pixels.copy()
        sample, setters = self._transformed(sample, row)
        self._enter("encode")
        pixels = self._checked_pixels(sample.get("image"), setters)
        sample["image"] = pixels if self._store.name == "raw" else _encoded(pixels, row["key"], self._store)
        return Finished(sample, pixels.shape, setters)

    def _open(self, data: bytes) -> Opened:
        return image.open_image(data, self._recipe.max_pixels, self._recipe.keep_truncated)

    def _view(self, opened: Opened, row: dict[str, Any]) -> Pixels:
        view = View.whole(opened.size)
        rng = self._recipe.rng(row["key"], row["variant"]) if self._random_views else None
        for step in self._views:
            view = step.view(view, rng)
        return image.render(opened, view)

    def _transformed(self, sample: Sample, row: dict[str, Any]) -> tuple[Sample, dict[str, str]]:
        """Call the user's functions, and record which of them set which field."""
        setters: dict[str, str] = {}
        for number, step in enumerate(self._own, 1):
            self._enter("transform")
            # Its own stream per function, so that one that draws more or less does not disturb the next.
            rng = self._recipe.rng(f"{row['key']}\0{number}", row["variant"])
            before, who = dict(sample), step.settings()["target"]
            changed = step.apply(sample, rng)
            if changed is None:
                raise Rejection("transform", "left-out", f"{who} left it out")
            if not _is_same(changed.get("key"), row["key"]):
                message = f"{who} changed the key to {describe(changed.get('key'))}; it names the input and must stay"
                raise Rejection("transform", "key-changed", message)
            if not _is_same(changed.get("variant", row["variant"]), row["variant"]):
                message = f"{who} changed variant to {describe(changed['variant'])}; it counts the samples of an input"
                raise Rejection("transform", "variant-changed", message)
            absent = object()
            names = before.keys() | changed.keys()
            setters |= {name: who for name in names if changed.get(name, absent) is not before.get(name, absent)}
            sample = {**changed, "key": row["key"], "variant": row["variant"]}
        return sample, setters

    def _checked_pixels(self, pixels: Any, setters: dict[str, str]) -> Pixels:
        """Return the pixels of an image that functions may have changed. Raises Rejection."""
        fits = isinstance(pixels, np.ndarray) and not isinstance(pixels, np.ma.MaskedArray) and pixels.dtype == np.uint8
        if fits and pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.size:
            return np.asarray(pixels)
        came = "removed the image" if pixels is None else f"made the image {describe(pixels)}"
        pixel = isinstance(pixels, np.ndarray) and pixels.ndim == 3 and 0 in pixels.shape[:2]
        no_pixel = f", and its {'height' if pixels.shape[0] == 0 else 'width'} is 0" if pixel else ""
        message = (
            f"{self._setter('image', setters)} {came}{no_pixel}; it must be a numpy array of shape (height, width, 3) and type"
            " uint8"
        )
        raise Rejection("transform", "not-an-image", message)

    def _setter(self, name: str, setters: dict[str, str]) -> str:
        """Name the function that set a field last; the last of all where it changed the value in place."""
        return setters.get(name) or str(self._own[-1].settings()["target"])

    def _filler(self, field: pa.Field) -> Callable[[Finished], Any]:
        """Return what takes the value of one column out of a sample."""
        name, type_ = field.name, field.type
        if name == "key":
            return lambda finished: finished.fields[name]
        if name == "image" and self._store is not None:
            shape = tuple(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else None
            return lambda finished: self._of_shape(finished, shape) if shape else finished.fields["image"]
        if name == "label" and self._classes is not None:
            return self._label
        if self._own:
            return lambda finished: self._own_value(finished, field)
        return lambda finished: fit(finished.fields.get(name), type_)

    def _of_shape(self, finished: Finished, shape: tuple[int, ...]) -> Pixels:
        pixels: Pixels = finished.fields["image"]
        if pixels.shape != shape:
            who = f"{self._setter('image', finished.setters)} made" if self._own else "it is"
            message = f"{who} an image of {pixels.shape[1]}x{pixels.shape[0]}, the others are {shape[1]}x{shape[0]}"
            raise Rejection("encode", "other-size", f"{message}; store raw needs one size")
        return pixels

    def _label(self, finished: Finished) -> int | None:
        """Return the number of the class. Raises Rejection for one that has no name."""
        assert self._classes is not None, "labels are checked where classes have names"
        label = finished.fields.get("label")
        if label is None:
            return None
        what = f"{self._setter('label', finished.setters)} set label to" if self._own else "its label is"
        what = f"{what} {describe(label)}"
        last = len(self._classes) - 1
        if isinstance(label, bool) or not isinstance(label, int | np.integer):
            raise Rejection("encode", "other-type", f"{what}; it must be the number of a class, 0 to {last}")
        if not 0 <= label <= last:
            raise Rejection("encode", "no-such-class", f"{what}; the classes have the numbers 0 to {last}")
        return int(label)

    def _own_value(self, finished: Finished, field: pa.Field) -> Any:
        """Return a value as its column holds it, after the user's functions. Raises Rejection."""
        name = field.name
        value = finished.fields.get(name)
        if name not in finished.setters and pa.types.is_string(field.type):
            return fit(value, field.type)  # a field of JSON lines whose values have no common type
        try:
            plain = plain_value(value)
            check_fit(plain, field.type)
        except UnfitValue as problem:
            message = f"{self._setter(name, finished.setters)} set {name} to {problem}; its column is of type {field.type}"
            raise Rejection("encode", "other-type", message) from problem
        return plain


def _is_same(value: Any, wanted: str | int) -> bool:
    """Return whether a function has left a value as it was; what it may have put there need not even be comparable."""
    return isinstance(value, type(wanted)) and not isinstance(value, bool) and value == wanted


def _encoded(pixels: Pixels, key: str, store: Store) -> tuple[bytes, str]:
    stem = key.rpartition(".")[0] or key
    return store.encode(pixels), stem + store.suffix


def _check_source(opened: Opened) -> Shape:
    """Return the decoded shape of an image whose bytes are kept, having made sure that it does decode."""
    image.check(opened)
    return opened.size[1], opened.size[0], 3


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


def add_sample(writer: ShardWriter, made: Made, crumb: Breadcrumb) -> None:
    """Append the sample of an input to a shard.

    Whatever happens while a block of many samples is written is the fault of none of them. Only the memory for a block
    that one sample fills is that sample's.
    """
    if writer.fills_a_block(made.size):
        crumb.enter("write")
    else:
        crumb.leave()
    writer.add(made.values, made.size)


def digest_of(data: bytes) -> int:
    """Return the XXH3-64 of an input's bytes: how a later run knows whether the input is still the same."""
    return xxhash.xxh3_64_intdigest(data)
