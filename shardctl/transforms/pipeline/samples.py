"""The steps of a recipe for one record at a time: decode, transform, encode, and lay out as the
values of a shard's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from PIL.Image import Image

from shardctl.errors import InputError, Rejection
from shardctl.format.layout import Layout
from shardctl.format.roles import Sample
from shardctl.images.codecs import image
from shardctl.images.codecs.image import ImageEncoding, Opened, Pixels
from shardctl.images.codecs.jpeg import JpegFacts, jpeg_facts
from shardctl.sources.annotations.base import AnnotationRule
from shardctl.sources.annotations.finishing import finish_annotations
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.annotations.objects import ANNOTATED
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE
from shardctl.transforms.base import judge
from shardctl.transforms.image_steps import ImageSteps
from shardctl.transforms.picture import Picture, Shape
from shardctl.transforms.pipeline.deferred_objects import Annotated, DeferredObjects, Marked
from shardctl.transforms.pipeline.functions import (
    Applied,
    Called,
    FailedCallError,
    Functions,
    Given,
    Made,
    MadeSample,
    unshared,
)
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.values import UnfitValue, array_of, describe, for_column, row_size

Outcome = list[MadeSample] | Rejection
"""The samples that were made of a record, or why it is rejected."""


@dataclass
class Prepared:
    """Samples of one record when all image steps are done, each for the user's functions, images as
    pixels.

    `images` has for each variant the number of objects that the steps have cut off, what is marked
    in its image, and, where there is no layout yet, its pixels; `name` is that of the image's file.
    """

    samples: list[Sample]
    name: str = ""
    images: dict[int, tuple[int, Marked, Pixels | None]] = field(default_factory=dict)


class SamplePipeline:
    """The steps of a recipe in Python: for images and texts that are a file each, one record at a
    time, and for records of text and tables that functions are called with, those that were read
    together.

    Without a layout (`probe`), samples have all of their fields, from which a layout can be made.
    `enter` is called with the name of each stage (decode, transform, encode) when it begins.
    `known` is what is known of the layout where there is none yet: the roles of fields.
    `of_records` says how masks and objects of records are read. `look` is given each image before
    it is decoded. Masks that are `recorded` in a dataset may have any numbers. `first_frames`
    counts the images that are the first of several frames. Without a layout, `unmoved` has the
    objects and masks that functions left as they were beside changed pixels, each with the
    function.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: Layout | None,
        enter: Callable[[str], None],
        known: Layout | None = None,
        of_records: Mapping[str, AnnotationRule] = MappingProxyType({}),
        look: Callable[[Opened], None] = lambda opened: None,
        recorded: bool = False,
    ) -> None:
        self._recipe = recipe
        self._enter, self._look = enter, look
        self.first_frames, self.unmoved = 0, dict[str, str]()
        self._filters = recipe.filters
        self._image_steps = ImageSteps(recipe.image_transforms, recipe.max_pixels)
        of_fields = layout or known
        self._annotated = Annotated(of_fields, recipe.keep_objects, of_records, recipe.unmoved)
        self._is_annotated = bool(self._annotated)
        self._mask = of_fields.roles.get(MASK) if of_fields and not recorded else None
        self._functions = Functions(
            recipe, layout is None or "variant" in layout.columns.names, traced=layout is None
        )
        # who finishes samples without a layout looks at them
        self._moves_later = layout is not None and not self._functions
        self._store = store = recipe.store
        self._pixels_only = store is not None and store.name in ("raw", "source", "none")
        self._columns = (
            SampleColumns(layout, store is not None, self._functions) if layout else None
        )
        self._has_classes = (
            layout is not None and layout.classes is not None and "label" in layout.columns.names
        )

    def make(self, record: Sample) -> list[MadeSample]:
        """Return the samples of one record, which is used up. Raises Rejection, which costs all of
        them."""
        if self._functions:
            return self._by_functions(record)
        if self._store is None:  # there may be millions of small texts
            return [self._made(sample) for sample in self._variants_of_text(record)]
        if self._store.name == "source":
            return [self._kept(record)]
        made, store = [], self._store
        for fields, picture, cut_off in self._pictures(record):
            self._enter("encode")
            (width, height), name = picture.size, _image_name(fields)
            is_raw = store.name == "raw"
            stored = picture.pixels if is_raw else _encoded(picture.image, name, store)
            shape = (height, width, 3)
            made.append(self._made({**fields, "image": stored}, (), shape, cut_off))
        return made

    def settle(self, made: Sequence[MadeSample]) -> list[MadeSample]:
        """Return samples as they are written, of which some had to wait."""
        fields = chain.from_iterable(one.fields.values() for one in made)
        waiting = [each for each in fields if isinstance(each, DeferredObjects)]
        moved = iter(self._annotated.settled(waiting))
        return [_settled(one, moved) if one.waits else one for one in made]

    def prepare(self, record: Sample) -> Prepared:
        """Do all to one record that the recipe says before the user's functions. Raises Rejection.

        Nothing in the samples is shared with `record`: it may be prepared again.
        """
        sample = unshared(record)
        if self._store is None:
            return Prepared(self._variants_of_text(sample))
        prepared = Prepared([], _image_name(record))
        for each in self._variants_of(sample):
            prepared.samples += each.samples
            prepared.images |= each.images
        return prepared

    def _variants_of(self, record: Sample) -> Iterator[Prepared]:
        """Yield each variant of an image for the user's functions: as a writable copy, since they
        may draw into it."""
        for fields, picture, cut_off in self._pictures(record):
            sample = {**unshared(fields), "image": np.array(picture.pixels)}
            pixels = picture.pixels if self._columns is None else None
            seen = (cut_off, self._annotated.marked(fields, picture.size), pixels)
            yield Prepared([sample], _image_name(record), {fields["variant"]: seen})

    def finish_together(
        self,
        parts: Iterable[Mapping[int, Prepared]],
        called: Called,
        encoding: Callable[[int], None],
    ) -> dict[int, Outcome]:
        """Do the rest to records that were prepared, by their numbers, so that models see all of
        those in one part. The parts after one with a reject are not asked for.

        `called` is told of each call, and `encoding` of each record whose samples are made into
        rows. The prepared samples are used up. Raises FailedCallError.
        """
        applied, images = Applied(), list[tuple[Shape | None, int]]()
        outcomes: dict[int, Outcome] = {}
        for part in parts:
            outcomes.update({number: [] for number in part})
            asked: list[Made] = [
                (number, sample, ()) for number, each in part.items() for sample in each.samples
            ]
            for each in part.values():
                each.samples = []
            made = self._functions.apply(asked, called)
            for record, sample, given in made.made:
                kept: Sample = sample
                image: tuple[Shape | None, int] = (None, 0)
                if self._store is not None and record not in made.rejects:
                    encoding(record)
                    try:
                        kept, image = self._stored(sample, given, part[record])
                    except Rejection as rejection:
                        made.rejects[record] = rejection
                applied.made.append((record, kept, given))
                images.append(image)
            applied.rejects.update(made.rejects)
            applied.left_out.update(made.left_out)
            if applied.rejects:
                break
        self._functions.settle(applied)
        outcomes.update(applied.rejects)
        for (record, sample, given), image in zip(applied.made, images, strict=True):
            found = outcomes[record]
            if isinstance(found, Rejection):
                continue
            encoding(record)
            try:
                found.append(self._made(sample, given, *image))
            except Rejection as rejection:
                outcomes[record] = rejection
        return outcomes

    def finish_records(self, numbers: list[int], records: list[Sample], called: Called) -> Applied:
        """Call the functions on records of text or of tables, given with their numbers, and return
        what they made.

        `called` is told of each call.
        """
        asked: list[Made] = [
            (number, sample, ())
            for number, record in zip(numbers, records, strict=True)
            for sample in self._variants_of_text(record)
        ]
        applied = self._functions.apply(asked, called)
        self._functions.settle(applied)
        applied.drop_rejected()
        return applied

    def lay_out(self, applied: Applied) -> pa.RecordBatch:
        """Return samples of text or of tables as a block of a shard has them: see
        SampleColumns.lay_out."""
        assert self._columns is not None, "a shard has a layout"
        return self._columns.lay_out(applied)

    def setters(self, made: MadeSample) -> dict[str, str]:
        """Return the user's function that set a field last, for each field of a sample that one of
        them set."""
        return self._functions.setters(made.given, made.fields)

    def _variants_of_text(self, record: Sample) -> list[Sample]:
        """Return the variants of a record without an image. Nothing in one is shared with another;
        one alone is the record itself."""
        variants = range(self._recipe.variants)
        if len(variants) > 1:
            return [{**unshared(record), "variant": number} for number in variants]
        record["variant"] = 0
        return [record]

    def _opened(self, sample: Sample) -> tuple[Opened, int]:
        """Open the image of a sample, finish its annotations, and ask the filters. Return too how
        many objects it dropped."""
        self._enter("decode")
        data = sample["image"]["bytes"]
        opened = self._recipe.open_image(data, self._pixels_only)
        dropped = finish_annotations(sample, opened, self._mask) + self._annotated.upright(
            sample, opened
        )
        if self._filters:
            judge(self._filters, opened)
        self.first_frames += opened.has_frames
        self._look(opened)
        return opened, dropped

    def _pictures(self, record: Sample) -> Iterator[tuple[Sample, Picture, int]]:
        """Decode an image, and yield for each variant its fields, its picture, and how many objects
        are no longer marked.

        The image is decoded for each of the sizes, 1/1 to 1/8 of its own, that are enough for what is
        seen of it in a variant: the pixels of one depend on no other.
        """
        of_table, recipe, steps = ANNOTATED not in record, self._recipe, self._image_steps
        opened, dropped = self._opened(record)
        images = dict[int, Image]()
        for variant in range(recipe.samples_per_record):
            rng = recipe.rng(record["key"], variant, steps.random)
            picture = steps.begin(opened.size, variant, rng)
            size = image.reduction(opened, picture.look)
            if size not in images:
                self._enter("decode")
                images[size] = image.decoded(opened, picture.look)
            self._enter("transform")
            steps.finish(picture, images[size], rng)
            moved: Sample = {}
            cut_off = 0
            if self._is_annotated:
                moved, cut_off = self._annotated.moved(
                    record, opened.size, picture.stages, of_table, self._moves_later
                )
            yield {**record, **moved, "variant": variant}, picture, cut_off + dropped

    def _kept(self, record: Sample) -> MadeSample:
        """Return the sample with the bytes of its image as they came. They are decoded once, to see
        that they can be.

        Raises Rejection.
        """
        name, data = _image_name(record), record["image"]["bytes"]
        opened, dropped = self._opened(record)
        image.check(opened)
        shape = (opened.size[1], opened.size[0], 3)
        fields = {**record, "image": {"bytes": data, "path": name}, "variant": 0}
        return self._made(fields, (), shape, dropped, jpeg_facts(data))

    def _by_functions(self, record: Sample) -> list[MadeSample]:
        """Return the samples that functions make of one record. Raises Rejection."""
        prepared = [self.prepare(record)] if self._store is None else self._variants_of(record)
        outcome = self.finish_together(
            ({0: each} for each in prepared),  # one at a time has pixels: there may be thousands
            lambda records, is_model: self._enter("transform"),
            lambda record: self._enter("encode"),
        )[0]
        if isinstance(outcome, Rejection):
            raise outcome
        return outcome

    def _stored(
        self, sample: Sample, given: Given, prepared: Prepared
    ) -> tuple[Sample, tuple[Shape | None, int]]:
        """Return a sample with what is stored of its image in place of the pixels that functions
        returned.

        And the shape of the image, None where none is stored, and how many objects in it are no
        longer marked. Raises Rejection.
        """
        store = self._store
        cut_off, before, seen = prepared.images[sample["variant"]]
        assert store is not None, "there are images"

        def setter(field: str) -> str:
            return self._functions.setter(field, given, sample)

        if seen is not None and not np.array_equal(np.asarray(sample.get("image")), seen):
            for name in self._annotated.unmoved(before, sample):
                self.unmoved[name] = setter("image")
        if store.name == "none":
            self._annotated.check(sample, setter)
            return {key: value for key, value in sample.items() if key != "image"}, (None, cut_off)
        pixels = self._checked_pixels(sample, given)
        self._annotated.check(sample, setter)
        size = (pixels.shape[1], pixels.shape[0])
        self._annotated.check_moved(before, sample, size, setter("image"))
        stored = pixels if store.name == "raw" else _encoded(pixels, prepared.name, store)
        return {**sample, "image": stored}, (pixels.shape, cut_off)

    def _checked_pixels(self, sample: Sample, given: Given) -> Pixels:
        """Return the pixels of an image that functions may have changed. Raises Rejection."""
        pixels: Any = sample.get("image")
        fits = (
            isinstance(pixels, np.ndarray)
            and not isinstance(pixels, np.ma.MaskedArray)
            and pixels.dtype == np.uint8
        )
        if fits and pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.size:
            return np.asarray(pixels)
        came = "removed the image" if pixels is None else f"made the image {describe(pixels)}"
        message = (
            f"{self._functions.setter('image', given, sample)} {came}; it must be a numpy array of "
            "shape (height, width, 3) and type uint8"
        )
        raise Rejection("transform", "not-an-image", message)

    def _made(
        self,
        fields: Sample,
        given: Given = (),
        shape: Shape | None = None,
        cut_off: int = 0,
        jpeg: JpegFacts | None = None,
    ) -> MadeSample:
        """Return a sample to which all is done. Raises Rejection for values that do not fit their
        columns."""
        if self._columns is None:
            return MadeSample(fields, shape, cut_off, jpeg, given=given)
        values = self._columns.values(fields, given)
        size, label = row_size(values.values()), values["label"] if self._has_classes else None
        if not self._is_annotated:
            return MadeSample(values, shape, cut_off, jpeg, size, label)
        waiting = [value for value in values.values() if isinstance(value, DeferredObjects)]
        size += sum(each.bytes for each in waiting)
        return MadeSample(
            values, shape, cut_off, jpeg, size, label, self._annotated.count(fields), bool(waiting)
        )


def _settled(made: MadeSample, moved: Iterator[dict[str, Any]]) -> MadeSample:
    objects, cut_off, fields = made.objects, made.cut_off, dict(made.fields)
    for name, value in made.fields.items():
        if isinstance(value, DeferredObjects):
            fields[name] = found = next(moved)
            objects += len(found["bbox"])
            cut_off += len(value.objects["bbox"]) - len(found["bbox"])
    size = row_size(fields.values())
    return replace(made, fields=fields, size=size, objects=objects, cut_off=cut_off, waits=False)


def _image_name(record: Sample) -> str:
    """Return the path of the image of a record; its key where it has none."""
    return str(record["image"]["path"] or record["key"])


def _encoded(pixels: Pixels | Image, name: str, store: ImageEncoding) -> dict[str, Any]:
    """Return the encoded image, and its name with the ending of its format: that of its file, or
    the key of its record."""
    stem, _, ending = name.rpartition(".")
    if not stem or "#" in ending:  # path#N has no ending
        stem = name
    return {"bytes": store.encode(pixels), "path": stem + store.suffix}


# --- records that models are called with together, some at a time ---
#
# What a model returns for a sample may depend on the others in its call. So the rows that are stored
# come from calls without any record that is rejected, at whatever point: whoever makes the shard
# again, knowing the rejects, makes the same calls.

Watch = Callable[[int | None, str], None]
"""Is told what is worked on next: the record, by the number by which it was added, and the stage
that it reaches. None: a model is called with samples of several records."""


class ModelBatcher:
    """Records whose samples models are called with together."""

    def __init__(self, pipeline: SamplePipeline, watch: Watch) -> None:
        self._pipeline, self._watch = pipeline, watch
        self._held: list[Sample] = []
        self._ready: dict[int, Prepared] = {}
        self._called: set[int] = set()
        self._current: int | None = None

    def add(self, record: Sample) -> int:
        """Prepare a record, and return its number, counted from 0. Raises Rejection: then it is not
        added."""
        number = len(self._held)
        self._ready[number] = self._pipeline.prepare(record)
        self._held.append(record)
        return number

    def finish(self, careful: bool) -> list[Outcome]:
        """Return the samples of each record that was added, or why it is rejected, and forget them.

        With `careful` each goes through the models alone first, so that one which ends the process
        does so there. Raises InputError if calls with several records fail, and none of these
        alone.
        """
        found: dict[int, Outcome] = {}
        left = list(range(len(self._held)))
        try:
            if careful:
                self._ready = {}  # one at a time is in memory, as later all of them
                for record in left:
                    self._attempt([record])
            while left:
                self._called.clear()
                try:
                    made = self._attempt(left)
                except FailedCallError as failed:
                    made = self._culprits(failed)
                rejected = {
                    record: each.bare()
                    for record, each in made.items()
                    if isinstance(each, Rejection)
                }
                if not self._called & rejected.keys():
                    found.update(made)
                    break
                found.update(rejected)
                left = [record for record in left if record not in rejected]
        finally:
            self._held, self._ready = [], {}
        return [each for _, each in sorted(found.items())]

    def _culprits(self, failed: FailedCallError) -> dict[int, Outcome]:
        """Return those of the records of a call that failed which fail alone too. Raises InputError
        if there are none."""
        alone = {record: self._attempt([record])[record] for record in failed.records}
        rejected = {record: each for record, each in alone.items() if isinstance(each, Rejection)}
        if not rejected:
            raise InputError(
                f"{failed.rejection.message}: in a call with {len(failed.records)} inputs, not with each "
                f"alone. Resize the images to one size, or set a lower batch for {failed.who}"
            ) from failed
        self._called.update(rejected)
        return dict(rejected)

    def _attempt(self, records: Iterable[int]) -> dict[int, Outcome]:
        """Do all to some records. Raises FailedCallError."""
        made: dict[int, Outcome] = {}
        ready: dict[int, Prepared] = {}
        try:
            for record in records:
                prepared = self._ready.pop(record, None)  # functions change what they get
                try:
                    if prepared is None:
                        self._on(record, "decode")
                        prepared = self._pipeline.prepare(self._held[record])
                    ready[record] = prepared
                except Rejection as rejection:
                    made[record] = rejection
            made |= self._pipeline.finish_together(
                [ready], self._calls, lambda record: self._on(record, "encode")
            )
        except MemoryError as error:
            no_memory = Rejection("transform", "out-of-memory", OUT_OF_MEMORY_MESSAGE)
            if self._current is None:
                raise FailedCallError(list(ready), "the model", no_memory) from error
            # whatever it was in: the others are done again without it
            self._called.add(self._current)
            return {self._current: no_memory}
        return made

    def _on(self, record: int | None, stage: str) -> None:
        self._current = record
        self._watch(record, stage)

    def _calls(self, records: list[int], is_model: bool) -> None:
        """A function, or a model, is called with the samples of some records."""
        if is_model:
            self._called.update(records)
        self._on(records[0] if len(records) == 1 else None, "transform")


# --- samples as the columns of a shard hold them ---


_Field = tuple[str, pa.DataType, tuple[int, ...] | None]
"""The name and the type of a column, and the shape of its values where that is fixed."""


def _shape_of(type_: pa.DataType) -> tuple[int, ...] | None:
    return tuple(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else None


class SampleColumns:
    """The columns of a layout. `has_image` says that the recipe stores an image in `image`.

    If a value does not fit, and one of the user's `functions` has set it, the message names that
    function.
    """

    def __init__(self, layout: Layout, has_image: bool, functions: Functions) -> None:
        self._classes, self._has_image, self._functions = layout.classes, has_image, functions
        self._schema = layout.columns
        # Read once: a look at Arrow's fields for each image took 4 % of its time.
        self._fields = [(each.name, each.type, _shape_of(each.type)) for each in layout.columns]

    def values(self, fields: Sample, given: Given) -> Sample:
        """Return the values of a sample by the names of the columns, in their order. Raises
        Rejection."""
        return {field[0]: self._value(field, fields, given) for field in self._fields}

    def lay_out(self, applied: Applied) -> pa.RecordBatch:
        """Return samples of text or of tables as a block of a shard has them, without those whose
        record is a reject.

        Values are looked at a column at a time: ten times as fast as one by one. Records with
        values that do not fit become rejects too.
        """
        before = len(applied.rejects)
        arrays = []
        for each in self._fields:
            values = [sample.get(each[0]) for _, sample, _ in applied.made]
            is_class = each[0] == "label" and self._classes is not None
            array = None if is_class else array_of(values, each[1])
            arrays.append(self._column(each, applied) if array is None else array)
        batch = pa.record_batch(arrays, schema=self._schema)
        if len(applied.rejects) > before:  # a rejection costs all samples of its record
            kept = [record not in applied.rejects for record, *_ in applied.made]
            batch = batch.filter(pa.array(kept))
        return batch

    def _column(self, field: _Field, applied: Applied) -> pa.Array:
        """Return the values of one column, looking at them one by one. Those that do not fit are
        null, and rejects."""
        values: list[Any] = [None] * len(applied.made)
        for place, (record, sample, given) in enumerate(applied.made):
            try:
                values[place] = self._value(field, sample, given)
            except Rejection as rejection:
                applied.rejects.setdefault(record, rejection)
        return pa.array(values, field[1])

    def _value(self, field: _Field, fields: Sample, given: Given) -> Any:
        """Return the value of one column. Raises Rejection."""
        name, type_, shape = field
        value = fields.get(name)
        if name == "image" and self._has_image:
            return value if shape is None else self._of_shape(fields, given, shape)
        if name == "label" and self._classes is not None:
            return self._label(fields, given)
        if name == "key" or value is None or (shape is None and not self._functions):
            return value
        try:
            return for_column(value, type_)
        except UnfitValue as problem:
            who = self._functions.setter(name, given, fields)
            message = f"{who} set {name} to {problem}; its column is of type {type_}"
            raise Rejection("encode", "other-type", message) from problem

    def _of_shape(self, fields: Sample, given: Given, shape: tuple[int, ...]) -> Pixels:
        pixels: Pixels = fields["image"]
        if pixels.shape != shape:
            functions = self._functions
            who = f"{functions.setter('image', given, fields)} made" if functions else "it is"
            message = (
                f"{who} an image of {pixels.shape[1]}x{pixels.shape[0]}, the others are "
                f"{shape[1]}x{shape[0]}"
            )
            raise Rejection("encode", "other-size", f"{message}; store raw needs one size")
        return pixels

    def _label(self, fields: Sample, given: Given) -> int | None:
        """Return the number of the class. Raises Rejection for one that has no name."""
        assert self._classes is not None, "labels are checked where classes have names"
        label = fields.get("label")
        if label is None:
            return None
        last = len(self._classes) - 1
        is_number = isinstance(label, int | np.integer) and not isinstance(label, bool)
        if is_number and 0 <= label <= last:
            return int(label)
        functions, what = self._functions, "its label is"
        if functions:
            what = f"{functions.setter('label', given, fields)} set label to"
        kind, why = "no-such-class", f"the classes have the numbers 0 to {last}"
        if not is_number:
            kind, why = "other-type", f"it must be the number of a class, 0 to {last}"
        raise Rejection("encode", kind, f"{what} {describe(label)}; {why}")
