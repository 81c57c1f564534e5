"""The steps of a recipe for one record at a time: decode, transform, encode, and lay out as the values of a shard's columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.codecs import image
from shardctl.codecs.image import Opened, Pixels, Store
from shardctl.errors import Rejection
from shardctl.geometry import View
from shardctl.layout import Layout
from shardctl.recipe import Recipe
from shardctl.sample import Sample
from shardctl.sources.jsonl import fit
from shardctl.transforms import SampleTransform
from shardctl.transforms.values import UnfitValue, check_fit, describe, plain_types, plain_value, quick_check

Shape = tuple[int, int, int]
ROW_OVERHEAD = 32
"""Bytes that a row costs beside its values: offsets, validity."""


class Origin(NamedTuple):
    """What is known of a record beside its fields: its key, and the label and the columns that its file has.

    `file_name` is that of the image, where a record of a table names it.
    """

    key: str
    label: int | None = None
    columns: dict[str, Any] | None = None
    file_name: str | None = None


@dataclass(frozen=True)
class Made:
    """A finished sample. `values` are in the layout's order, `size` is about their bytes.

    `label` is its class, None if it has none or the dataset has no classes.
    """

    values: tuple[Any, ...]
    size: int
    shape: Shape | None
    label: int | None


class Call(NamedTuple):
    """A call of a user's function: its name, the fields that it was given and those that it returned."""

    who: str
    before: Sample
    after: Sample


class Finished(NamedTuple):
    """The fields of a sample once all is done to it; an image is pixels for `raw`, (bytes, path) otherwise.

    `shape` is that of its pixels. `calls` are those of the user's functions that it came through.
    """

    fields: Sample
    shape: Shape | None
    calls: tuple[Call, ...] = ()

    @property
    def setters(self) -> dict[str, str]:
        """The user's function that set a field last."""
        absent = object()
        return {
            name: call.who
            for call in self.calls
            for name in call.before.keys() | call.after.keys()
            if call.after.get(name, absent) is not call.before.get(name, absent)
        }


class SamplePipeline:
    """The steps of a recipe, for one record at a time: images, texts that are a file each, and all that a user's function is
    called with.

    Without a layout (`probe`), `finish` still returns the fields, from which a layout can be made. `enter` is called with the
    name of each stage (decode, transform, encode) when it begins. `classes` are the names of the classes; without them, those
    of the layout.
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
        self._views = recipe.views
        self._random_views = any(step.random for step in self._views)
        self._own = [(step, str(step.settings().get("target", step.name))) for step in recipe.sample_transforms]
        self._left_out_by = ""
        self._several = False
        self._store = recipe.store
        self._classes = layout.classes if layout else classes
        self._fill = [self._filler(f) for f in layout.columns] if layout else []
        self._columns = layout.columns if layout else pa.schema([])
        self._numbered = layout is None or "variant" in layout.columns.names
        self._label_column = layout.columns.get_field_index("label") if layout and layout.classes else -1

    def make(self, fields: Sample, origin: Origin) -> list[Made]:
        """Return the samples of one record, as the values of their rows. Raises Rejection, which costs all of them."""
        made = []
        for finished in self.finish(fields, origin):
            values = tuple(fill(finished) for fill in self._fill)
            label = values[self._label_column] if self._label_column >= 0 else None
            made.append(Made(values, row_size(values), finished.shape, label))
        return made

    def lay_out(self, finished: Sequence[Finished]) -> tuple[pa.RecordBatch, dict[int, Rejection]]:
        """Return samples of text or of tables as a block of a shard has them, and those that do not fit, by their place.

        Values are looked at a column at a time: ten times as fast as one by one.
        """
        rejects: dict[int, Rejection] = {}
        arrays = [self._column(f, fill, finished, rejects) for f, fill in zip(self._columns, self._fill, strict=True)]
        batch = pa.record_batch(arrays, schema=self._columns)
        if rejects:
            batch = batch.take(pa.array([place for place in range(len(finished)) if place not in rejects], pa.int64()))
        return batch, rejects

    def _column(
        self, field: pa.Field, fill: Callable[[Finished], Any], finished: Sequence[Finished], rejects: dict[int, Rejection]
    ) -> pa.Array:
        name, values = field.name, [each.fields.get(field.name) for each in finished]
        if set(map(type, values)) <= plain_types(field.type) and not (name == "label" and self._classes is not None):
            with contextlib.suppress(pa.ArrowException, OverflowError, ValueError):
                return pa.array(values, field.type)
        for place, each in enumerate(finished):
            try:
                values[place] = fill(each)
            except Rejection as rejection:
                rejects.setdefault(place, rejection)
                values[place] = None
        return pa.array(values, field.type)

    def finish(self, fields: Sample, origin: Origin) -> list[Finished]:
        """Do all that the recipe says to one record. Raises Rejection."""
        self._enter("decode")
        sample = fields | origin.columns if origin.columns else fields
        if origin.label is not None:
            sample["label"] = origin.label
        elif self._classes is not None and sample.get("label") == "":
            sample["label"] = None  # the empty label of a record: where labels name classes, it is a missing one
        sample["key"] = origin.key
        finished = list(self._texts(sample) if self._store is None else self._images(sample, origin.file_name or origin.key))
        if not finished:
            raise Rejection("transform", "left-out", f"{self._left_out_by} left it out")
        if self._several and not self._numbered:
            message = (
                f"{self._own[-1][1]} returned several samples, which it did of none of the inputs that were tried beforehand"
            )
            raise Rejection("transform", "several-samples", message)
        if self._several:
            for number, each in enumerate(finished):
                each.fields["variant"] = number
            self._several = False
        return finished

    def _texts(self, sample: Sample) -> Iterator[Finished]:
        for number in range(self._recipe.variants):
            for fields, calls in self._transformed({**sample, "variant": number}):
                yield Finished(fields, None, calls)

    def _images(self, sample: Sample, name: str) -> Iterator[Finished]:
        """Decode the image once, and yield the samples of each of its variants. `name` is that of its file."""
        assert self._store is not None, "images are stored in some way"
        data = sample["image"]
        opened = image.open_image(data, self._recipe.max_pixels, self._recipe.keep_truncated)
        if self._store.name == "source":
            yield Finished({**sample, "image": (data, name), "variant": 0}, _check_source(opened))
            return
        views = [self._view(opened, sample["key"], variant) for variant in range(self._recipe.variants)]
        for variant, pixels in enumerate(image.render_all(opened, views)):
            # Pillow's array is read-only, and user functions may draw into the image. The copy takes 0.01 ms for 500 x 375
            # pixels, which take 1.8 ms to decode.
            writable = pixels if not self._own or pixels.flags.writeable else pixels.copy()
            for fields, calls in self._transformed({**sample, "image": writable, "variant": variant}):
                yield self._encoded(Finished(fields, None, calls), name)

    def _encoded(self, finished: Finished, name: str) -> Finished:
        assert self._store is not None, "images are stored in some way"
        self._enter("encode")
        fields = finished.fields
        pixels = self._checked_pixels(fields.get("image"), finished)
        kept = pixels if self._store.name == "raw" else _encoded(pixels, name, self._store)
        return Finished({**fields, "image": kept}, pixels.shape, finished.calls)

    def _view(self, opened: Opened, key: str, variant: int) -> View:
        view = View.whole(opened.size)
        rng = self._recipe.rng(key, variant) if self._random_views else None
        for step in self._views:
            view = step.view(view, rng)
        return view

    def _transformed(self, sample: Sample) -> list[tuple[Sample, tuple[Call, ...]]]:
        """Return the samples that the user's functions make of one, each with the calls that it came through."""
        made: list[tuple[Sample, tuple[Call, ...]]] = [(sample, ())]
        for number, (step, who) in enumerate(self._own, 1):
            self._enter("transform")
            made = [out for one, calls in made for out in self._called(number, step, who, one, calls)]
        return made

    def _called(
        self, number: int, step: SampleTransform, who: str, sample: Sample, calls: tuple[Call, ...]
    ) -> Iterator[tuple[Sample, tuple[Call, ...]]]:
        key, variant = sample["key"], sample["variant"]
        # Its own stream per function, so that one that draws more or less does not disturb the next.
        rng = self._recipe.rng(f"{key}\0{number}", variant) if step.draws else None
        before = dict(sample)
        made = step.apply(sample, rng)
        if not made:
            self._left_out_by = who
        elif len(made) > 1:
            self._several = True
        for changed in made:
            if not _is_same(changed.get("key"), key):
                message = f"{who} changed the key to {describe(changed.get('key'))}; it names the input and must stay"
                raise Rejection("transform", "key-changed", message)
            if not _is_same(changed.get("variant", variant), variant):
                message = f"{who} changed variant to {describe(changed['variant'])}; it counts the samples of an input"
                raise Rejection("transform", "variant-changed", message)
            changed["variant"] = variant
            yield changed, (*calls, Call(who, before, changed))

    def _checked_pixels(self, pixels: Any, finished: Finished) -> Pixels:
        """Return the pixels of an image that functions may have changed. Raises Rejection."""
        fits = isinstance(pixels, np.ndarray) and not isinstance(pixels, np.ma.MaskedArray) and pixels.dtype == np.uint8
        if fits and pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.size:
            return np.asarray(pixels)
        came = "removed the image" if pixels is None else f"made the image {describe(pixels)}"
        pixel = isinstance(pixels, np.ndarray) and pixels.ndim == 3 and 0 in pixels.shape[:2]
        no_pixel = f", and its {'height' if pixels.shape[0] == 0 else 'width'} is 0" if pixel else ""
        message = (
            f"{self._setter('image', finished)} {came}{no_pixel}; it must be a numpy array of shape (height, width, 3) and type"
            " uint8"
        )
        raise Rejection("transform", "not-an-image", message)

    def _setter(self, name: str, finished: Finished) -> str:
        """Name the function that set a field last; the last of all where it changed the value in place."""
        return finished.setters.get(name) or self._own[-1][1]

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
            fits = quick_check(type_)
            return lambda finished: value if fits(value := finished.fields.get(name)) else self._own_value(finished, field)
        return lambda finished: fit(finished.fields.get(name), type_)

    def _of_shape(self, finished: Finished, shape: tuple[int, ...]) -> Pixels:
        pixels: Pixels = finished.fields["image"]
        if pixels.shape != shape:
            who = f"{self._setter('image', finished)} made" if self._own else "it is"
            message = f"{who} an image of {pixels.shape[1]}x{pixels.shape[0]}, the others are {shape[1]}x{shape[0]}"
            raise Rejection("encode", "other-size", f"{message}; store raw needs one size")
        return pixels

    def _label(self, finished: Finished) -> int | None:
        """Return the number of the class. Raises Rejection for one that has no name."""
        assert self._classes is not None, "labels are checked where classes have names"
        label = finished.fields.get("label")
        if label is None:
            return None
        last = len(self._classes) - 1
        is_number = isinstance(label, int | np.integer) and not isinstance(label, bool)
        if is_number and 0 <= label <= last:
            return int(label)
        what = f"{self._setter('label', finished)} set label to" if self._own else "its label is"
        what = f"{what} {describe(label)}"
        if not is_number:
            raise Rejection("encode", "other-type", f"{what}; it must be the number of a class, 0 to {last}")
        raise Rejection("encode", "no-such-class", f"{what}; the classes have the numbers 0 to {last}")

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
            message = f"{self._setter(name, finished)} set {name} to {problem}; its column is of type {field.type}"
            raise Rejection("encode", "other-type", message) from problem
        return plain


def _is_same(value: Any, wanted: str | int) -> bool:
    """Return whether a function has left a value as it was; what it may have put there need not even be comparable."""
    return isinstance(value, type(wanted)) and not isinstance(value, bool) and value == wanted


def _encoded(pixels: Pixels, name: str, store: Store) -> tuple[bytes, str]:
    """Return the encoded image, and its name with the ending of its format: that of its file, or the key of its record."""
    stem, _, ending = name.rpartition(".")
    if not stem or "#" in ending:  # path#N has no ending
        stem = name
    return store.encode(pixels), stem + store.suffix


def _check_source(opened: Opened) -> Shape:
    """Return the decoded shape of an image whose bytes are kept, having made sure that it does decode."""
    image.check(opened)
    return opened.size[1], opened.size[0], 3


def row_size(values: tuple[Any, ...]) -> int:
    """Return about how many bytes a row takes in a block."""
    return ROW_OVERHEAD + sum(map(_value_size, values))


def _value_size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return 4 + sum(map(_value_size, value))
    if isinstance(value, dict):
        return sum(map(_value_size, value.values()))
    return 8
