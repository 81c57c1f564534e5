"""The steps of a recipe for one record at a time: decode, transform, encode, and lay out as the values of a shard's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from shardctl.errors import Rejection
from shardctl.format.layout import Layout
from shardctl.format.sample import Sample
from shardctl.images.codecs import image
from shardctl.images.codecs.image import Opened, Pixels, Store
from shardctl.images.codecs.jpeg import JpegFacts, jpeg_facts
from shardctl.images.object_geometry import KeepRule
from shardctl.sources.annotations.base import AnnotationRule
from shardctl.sources.annotations.finishing import finish_annotations
from shardctl.sources.annotations.objects import ANNOTATED
from shardctl.transforms.filter import judge
from shardctl.transforms.picture import Picture
from shardctl.transforms.pipeline.deferred_objects import Annotated, DeferredObjects
from shardctl.transforms.pipeline.functions import Applied, Calls, Functions, Given, unshared
from shardctl.transforms.pipeline.images import ImageSteps
from shardctl.transforms.pipeline.sizes import row_size
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.values import UnfitValue, array_of, describe, for_column, quick_check

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class EncodedRow:
    """A finished sample. `values` are in the layout's order, `size` is about their bytes.

    `label` is its class, None if it has none or the dataset has no classes. `objects` is the number of objects that are marked
    in it, `cut_off` of those that the steps have cut off, or that the rule for boxes has dropped. `waits` says that values are
    Waiting, which `SamplePipeline.settle` replaces: until then these are in `size` as they are before they are moved, and not
    among the numbers of objects. `jpeg` is what its image is as JPEG, where the original bytes are kept.
    """

    values: tuple[Any, ...]
    size: int
    shape: Shape | None
    label: int | None
    objects: int = 0
    cut_off: int = 0
    jpeg: JpegFacts | None = None
    waits: bool = False


class PictureFacts(NamedTuple):
    """What is known of the image of a sample: its decoded shape, how many objects in it were cut off, and what it is as JPEG.

    The last is None for what is no JPEG, and for images whose bytes are not kept.
    """

    shape: Shape | None
    cut_off: int
    jpeg: JpegFacts | None = None


NO_PICTURE = PictureFacts(None, 0)


class StepOutput(NamedTuple):
    """The fields of a sample once all is done to it; an image is pixels for `raw`, (bytes, path) otherwise.

    `shape` is that of its pixels. `given` are the fields as each of the user's functions was given them; `cut_off` is the
    number of objects that the steps have cut off.
    """

    fields: Sample
    shape: Shape | None
    given: Given = ()
    cut_off: int = 0
    jpeg: JpegFacts | None = None


@dataclass
class Prepared:
    """The samples of one record when all image steps are done, each for the user's functions, images as pixels.

    `cut_off` has for each of them the number of objects that the steps have cut off; `name` is that of the image's file.
    """

    samples: list[Sample]
    cut_off: list[int]
    name: str = ""


class _CallsOfOne:
    """Enters the stage of the user's functions before each call, on the record that work is on already."""

    def __init__(self, enter: Callable[[str], None]) -> None:
        self._enter = enter

    def one(self, _record: int) -> None:
        self._enter("transform")

    def many(self, _records: list[int]) -> None:
        self._enter("transform")


class SamplePipeline:
    """The steps of a recipe in Python: for images and texts that are a file each, one record at a time, and for records of text
    and tables that functions are called with, those that were read together.

    Without a layout (`probe`), `finish` still returns the fields, from which a layout can be made. `enter` is called with the
    name of each stage (decode, transform, encode) when it begins. `known` is what is known of the layout where there is none
    yet: the names of the classes, and the roles of fields. `of_records` says how masks and objects of records are read.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: Layout | None,
        enter: Callable[[str], None],
        known: Layout | None = None,
        of_records: Mapping[str, AnnotationRule] = MappingProxyType({}),
    ) -> None:
        self._recipe = recipe
        self._enter = enter
        known = layout or known
        self._steps, self._filters = ImageSteps(recipe), recipe.filters
        self._annotated = Annotated(known, KeepRule.of(recipe.keep_objects), of_records, recipe.unmoved)
        self._functions = Functions(recipe, layout is None or "variant" in layout.columns.names, traced=layout is None)
        self._moves_later = layout is not None and not self._functions  # who finishes samples without a layout looks at them
        self._calls = _CallsOfOne(enter)
        self._store = recipe.store
        self._classes = known.classes if known else None
        self._fill = [self._filler(f) for f in layout.columns] if layout else []
        self._columns = layout.columns if layout else pa.schema([])
        self._label_column = layout.columns.get_field_index("label") if layout and layout.classes else -1

    def make(self, record: Sample) -> list[EncodedRow]:
        """Return the samples of one record, as the values of their rows. Raises Rejection, which costs all of them."""
        return [self.laid_out(finished) for finished in self.finish(record)]

    def laid_out(self, finished: StepOutput) -> EncodedRow:
        """Return a sample as the values of its row. Raises Rejection."""
        values = tuple(fill(finished) for fill in self._fill)
        label = values[self._label_column] if self._label_column >= 0 else None
        objects = self._annotated.count(finished.fields)
        waiting = [value for value in values if isinstance(value, DeferredObjects)]
        size = row_size(values) + sum(each.bytes for each in waiting)
        return EncodedRow(values, size, finished.shape, label, objects, finished.cut_off, finished.jpeg, bool(waiting))

    def settle(self, made: Sequence[EncodedRow]) -> list[EncodedRow]:
        """Return samples as they are written, of which some had to wait."""
        moved = iter(
            self._annotated.settled([each for one in made for each in one.values if isinstance(each, DeferredObjects)])
        )
        return [_settled(one, moved) if one.waits else one for one in made]

    def finish(self, record: Sample) -> list[StepOutput]:
        """Do all that the recipe says to one record, which is used up. Raises Rejection."""
        facts: Iterable[PictureFacts]
        if self._store is None and not self._functions:  # there may be millions of small texts
            return [StepOutput(each, None) for each in self._with_variants([0], [record])[1]]
        if self._store is None:
            applied, facts = self._functions.apply(*self._with_variants([0], [record]), self._calls), repeat(NO_PICTURE)
        else:
            applied, facts = self._images(record, self._store)
        self._functions.settle(applied)
        _raise_rejection(applied)
        made = zip(applied.samples, facts, applied.given, strict=False)
        return [StepOutput(fields, known.shape, given, known.cut_off, known.jpeg) for fields, known, given in made]

    def prepare(self, record: Sample) -> Prepared:
        """Do all to one record that the recipe says before the user's functions. Raises Rejection.

        Nothing in the samples is shared with `record`: it may be prepared again.
        """
        sample = unshared(record)
        if self._store is None:
            samples = self._with_variants([0], [sample])[1]
            return Prepared(samples, [0] * len(samples))
        made = [(self._for_functions(each, picture), cut_off) for each, picture, cut_off in self._pictures(sample)]
        return Prepared([each for each, _ in made], [cut_off for _, cut_off in made], _image_name(record))

    def finish_together(self, prepared: Mapping[int, Prepared], calls: Calls) -> dict[int, list[StepOutput] | Rejection]:
        """Do the rest to the records that were prepared, by their numbers, so that models see all of them.

        Their samples are used up. Raises FailedCallError.
        """
        records = [number for number, each in prepared.items() for _ in each.samples]
        samples = [sample for each in prepared.values() for sample in each.samples]
        for each in prepared.values():
            each.samples = []
        applied = self._functions.apply(records, samples, calls)
        cut_off = [
            prepared[record].cut_off[sample["variant"]]  # before `settle` numbers those that functions have made
            for record, sample in zip(applied.records, applied.samples, strict=True)
        ]
        self._functions.settle(applied)
        result: dict[int, list[StepOutput] | Rejection] = {number: [] for number in prepared}
        result.update(applied.rejects)
        for place, (record, given, cut) in enumerate(zip(applied.records, applied.given, cut_off, strict=True)):
            found = result[record]
            if isinstance(found, Rejection):
                continue
            sample, applied.samples[place] = applied.samples[place], {}
            if self._store is None:
                found.append(StepOutput(sample, None, given))
                continue
            calls.one(record)
            try:
                fields, shape = self._stored(sample, given, prepared[record].name, self._store)
                found.append(StepOutput(fields, shape, given, cut))
            except Rejection as rejection:
                result[record] = rejection
        return result

    def finish_records(self, numbers: list[int], records: list[Sample], calls: Calls) -> Applied:
        """Do all that the recipe says to records of text or of tables, given with their numbers.

        `calls` is told of each call of a function.
        """
        applied = self._functions.apply(*self._with_variants(numbers, records), calls)
        self._functions.settle(applied)
        applied.drop_rejected()
        return applied

    def lay_out(self, applied: Applied) -> pa.RecordBatch:
        """Return samples of text or of tables as a block of a shard has them, without those whose record is a reject.

        Values are looked at a column at a time: ten times as fast as one by one. Records with values that do not fit become
        rejects too.
        """
        before = len(applied.rejects)
        arrays = []
        for field, fill in zip(self._columns, self._fill, strict=True):
            values = [sample.get(field.name) for sample in applied.samples]
            array = None if field.name == "label" and self._classes is not None else array_of(values, field.type)
            arrays.append(array if array is not None else _column(field.type, fill, applied))
        batch = pa.record_batch(arrays, schema=self._columns)
        if len(applied.rejects) > before:  # a rejection costs all samples of its record
            kept = [place for place, record in enumerate(applied.records) if record not in applied.rejects]
            batch = batch.take(pa.array(kept, pa.int64()))
        return batch

    def _with_variants(self, records: list[int], samples: list[Sample]) -> tuple[list[int], list[Sample]]:
        variants = range(self._recipe.variants)
        if len(variants) > 1:
            records = [record for record in records for _ in variants]
            samples = [{**unshared(sample), "variant": number} for sample in samples for number in variants]
        else:
            for sample in samples:
                sample["variant"] = 0
        return records, samples

    def _images(self, sample: Sample, store: Store) -> tuple[Applied, list[PictureFacts]]:
        """Decode the image once, and return the samples of all of its variants, with what is known of their images."""
        name = _image_name(sample)
        if store.name == "source":
            data = sample["image"]["bytes"]
            opened, dropped = self._opened(sample)
            known = PictureFacts(_check_source(opened), dropped, jpeg_facts(data))
            return Applied([0], [{**sample, "image": (data, name), "variant": 0}], [()]), [known]
        applied, facts = Applied(), list[PictureFacts]()
        for fields, picture, cut_off in self._pictures(sample):
            if not self._functions:
                self._enter("encode")
                width, height = picture.size
                kept = picture.pixels if store.name == "raw" else _encoded(picture.image, name, store)
                applied.extend(Applied([0], [{**fields, "image": kept}], [()]))
                facts.append(PictureFacts((height, width, 3), cut_off))
                continue
            made = self._functions.apply([0], [self._for_functions(fields, picture)], self._calls)
            _raise_rejection(made)
            for place, (each, given) in enumerate(zip(made.samples, made.given, strict=True)):
                self._enter("encode")
                made.samples[place], shape = self._stored(each, given, name, store)
                facts.append(PictureFacts(shape, cut_off))
            applied.extend(made)
        return applied, facts

    def _opened(self, sample: Sample) -> tuple[Opened, int]:
        """Open the image of a sample, finish its annotations, and ask the filters. Return too how many objects it dropped."""
        self._enter("decode")
        opened = image.open_image(sample["image"]["bytes"], self._recipe.max_pixels, self._recipe.keep_truncated)
        dropped = finish_annotations(sample, opened) + self._annotated.upright(sample, opened)
        if self._filters:
            judge(self._filters, opened)
        return opened, dropped

    def _pictures(self, sample: Sample) -> Iterator[tuple[Sample, Picture, int]]:
        """Decode an image, and yield for each variant its fields, its picture, and how many objects are no longer marked."""
        of_table = ANNOTATED not in sample
        opened, dropped = self._opened(sample)
        for variant, picture in enumerate(self._steps.pictures(opened, sample["key"], self._enter)):
            moved: Sample = {}
            cut_off = 0
            if self._annotated:
                moved, cut_off = self._annotated.moved(sample, opened.size, picture.stages, of_table, self._moves_later)
            yield {**sample, **moved, "variant": variant}, picture, cut_off + dropped

    def _for_functions(self, fields: Sample, picture: Picture) -> Sample:
        """Return a sample that functions may change: a motion that moves nothing gives back what it got.

        The image is a writable copy: the functions may draw into it.
        """
        return {**unshared(fields), "image": np.array(picture.pixels)}

    def _stored(self, sample: Sample, given: Given, name: str, store: Store) -> tuple[Sample, Shape | None]:
        """Return a sample of the user's functions with its image as it is stored, and the shape of that. Raises Rejection."""
        finished = StepOutput(sample, None, given)
        pixels = None if store.name == "none" else self._checked_pixels(sample.get("image"), finished)
        self._annotated.check(sample, partial(self._setter, finished=finished))
        if pixels is None:
            return {key: value for key, value in sample.items() if key != "image"}, None
        return {**sample, "image": pixels if store.name == "raw" else _encoded(pixels, name, store)}, pixels.shape

    def _checked_pixels(self, pixels: Any, finished: StepOutput) -> Pixels:
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

    def _setter(self, name: str, finished: StepOutput) -> str:
        """Name the function that set a field last; the last of all where it changed the value in place."""
        return self.setters(finished).get(name) or self._functions.last

    def setters(self, finished: StepOutput) -> dict[str, str]:
        """Return the user's function that set a field last, for each field of a sample that one of them set."""
        return self._functions.setters(finished.given, finished.fields)

    def _filler(self, field: pa.Field) -> Callable[[StepOutput], Any]:
        """Return what takes the value of one column out of a sample."""
        name, type_ = field.name, field.type
        if name == "key":
            return lambda finished: finished.fields[name]
        if name == "image" and self._store is not None:
            shape = tuple(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else None
            return lambda finished: self._of_shape(finished, shape) if shape else finished.fields["image"]
        if name == "label" and self._classes is not None:
            return self._label
        if self._functions:
            fits = quick_check(type_)
            return lambda finished: value if fits(value := finished.fields.get(name)) else self._own_value(finished, field)
        if isinstance(type_, pa.FixedShapeTensorType):
            return lambda finished: None if (value := finished.fields.get(name)) is None else for_column(value, type_)
        return lambda finished: finished.fields.get(name)

    def _of_shape(self, finished: StepOutput, shape: tuple[int, ...]) -> Pixels:
        pixels: Pixels = finished.fields["image"]
        if pixels.shape != shape:
            who = f"{self._setter('image', finished)} made" if self._functions else "it is"
            message = f"{who} an image of {pixels.shape[1]}x{pixels.shape[0]}, the others are {shape[1]}x{shape[0]}"
            raise Rejection("encode", "other-size", f"{message}; store raw needs one size")
        return pixels

    def _label(self, finished: StepOutput) -> int | None:
        """Return the number of the class. Raises Rejection for one that has no name."""
        assert self._classes is not None, "labels are checked where classes have names"
        label = finished.fields.get("label")
        if label is None:
            return None
        last = len(self._classes) - 1
        is_number = isinstance(label, int | np.integer) and not isinstance(label, bool)
        if is_number and 0 <= label <= last:
            return int(label)
        what = f"{self._setter('label', finished)} set label to" if self._functions else "its label is"
        what = f"{what} {describe(label)}"
        if not is_number:
            raise Rejection("encode", "other-type", f"{what}; it must be the number of a class, 0 to {last}")
        raise Rejection("encode", "no-such-class", f"{what}; the classes have the numbers 0 to {last}")

    def _own_value(self, finished: StepOutput, field: pa.Field) -> Any:
        """Return a value as its column holds it, after the user's functions. Raises Rejection."""
        name = field.name
        value = finished.fields.get(name)
        try:
            return for_column(value, field.type)
        except UnfitValue as problem:
            message = f"{self._setter(name, finished)} set {name} to {problem}; its column is of type {field.type}"
            raise Rejection("encode", "other-type", message) from problem


def _settled(made: EncodedRow, moved: Iterator[dict[str, Any]]) -> EncodedRow:
    before, kept, values = 0, 0, list[Any]()
    for value in made.values:
        if isinstance(value, DeferredObjects):
            before += len(value.objects["bbox"])
            value = next(moved)
            kept += len(value["bbox"])
        values.append(value)
    objects, cut_off = made.objects + kept, made.cut_off + before - kept
    together = tuple(values)
    return replace(made, values=together, size=row_size(together), objects=objects, cut_off=cut_off, waits=False)


def _column(type_: pa.DataType, fill: Callable[[StepOutput], Any], applied: Applied) -> pa.Array:
    """Return the values of one column, looking at them one by one. Those that do not fit are null, and rejects."""
    values: list[Any] = [None] * len(applied.samples)
    for place, (record, sample, given) in enumerate(zip(applied.records, applied.samples, applied.given, strict=True)):
        try:
            values[place] = fill(StepOutput(sample, None, given))
        except Rejection as rejection:
            applied.rejects.setdefault(record, rejection)
    return pa.array(values, type_)


def _raise_rejection(applied: Applied) -> None:
    for rejection in applied.rejects.values():
        raise rejection


def _image_name(record: Sample) -> str:
    """Return the path of the image of a record; its key where it has none."""
    return str(record["image"]["path"] or record["key"])


def _encoded(pixels: Pixels | Image.Image, name: str, store: Store) -> tuple[bytes, str]:
    """Return the encoded image, and its name with the ending of its format: that of its file, or the key of its record."""
    stem, _, ending = name.rpartition(".")
    if not stem or "#" in ending:  # path#N has no ending
        stem = name
    return store.encode(pixels), stem + store.suffix


def _check_source(opened: Opened) -> Shape:
    """Return the decoded shape of an image whose bytes are kept, having made sure that it does decode."""
    image.check(opened)
    return opened.size[1], opened.size[0], 3
