"""A recipe: what is done to every input, and how the result is stored. Files of recipes:
recipe_files/."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.errors import UsageError
from shardctl.format.shard import Compression
from shardctl.images.codecs.image import ImageEncoding, Opened, open_image
from shardctl.images.geometry import Size
from shardctl.sources.format_table import FRAME
from shardctl.sources.formats import CHOSEN, GIVEN, JSON, Reading
from shardctl.sources.image_columns import NO_IMAGES
from shardctl.sources.splits import GroupRule
from shardctl.system.files import read_named
from shardctl.system.options import declared_in, setting
from shardctl.system.text import printable, unknown
from shardctl.transforms.base import (
    BatchTransform,
    Filter,
    GroupTransform,
    ImageTransform,
    Rng,
    SampleTransform,
    Transform,
)
from shardctl.transforms.custom import Custom
from shardctl.transforms.duplicates.rule import KEEP_ALL, OF_IMAGES, OF_TEXTS
from shardctl.transforms.image_steps import SampleRngs
from shardctl.transforms.recipe_options import STEP_OPTIONS, UNDECIDED, RecipeKeys
from shardctl.transforms.settings import Json, SettingError, each_of, raise_any
from shardctl.transforms.table import OWN, STEPS, TOKEN_STEPS, TRANSFORMS

FIELD_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
}
"""The types that a given schema may name."""

_NAMES_OF_TYPES = {type_: name for name, type_ in FIELD_TYPES.items()}


def parse_schema(text: str) -> pa.Schema:
    """Read `name:type,name:type`, or the file of this name that has it. Raises UsageError."""
    written = text if ":" in text else _file_of_schema(Path(text))
    fields = []
    for part in written.replace("\n", ",").split(","):
        if not part.strip():
            continue
        name, _, type_ = part.strip().rpartition(":")
        if not name or type_.strip() not in FIELD_TYPES:
            raise UsageError(
                f"schema {part.strip()!r} is not of the form name:type with one of "
                f"{', '.join(FIELD_TYPES)}"
            )
        fields.append(pa.field(name.strip(), FIELD_TYPES[type_.strip()]))
    if not fields or len({f.name for f in fields}) < len(fields):
        raise UsageError(f"schema {text!r} must have at least one field, and each name once")
    return pa.schema(fields, {CHOSEN: GIVEN})


def parse_fields(text: str) -> dict[str, str]:
    """Read `new=old,name`: the fields to keep, by the names that they have in records. Raises
    ValueError."""
    parts = [part for part in text.split(",") if part.strip()]
    pairs = [part.partition("=") if "=" in part else (part, "", part) for part in parts]
    found = {old.strip(): new.strip() for new, _, old in pairs}
    names = {*found.values()} - {""}
    if not found or "" in found or not len(names) == len(found) == len(pairs):
        raise ValueError(
            "must be fields and their new names, each once, such as label=image/class/label"
        )
    return found


def written_fields(text: str) -> str:
    """Return what fields are chosen, in one way."""
    return ",".join(f"{new}={old}" for old, new in parse_fields(text).items())


def _file_of_schema(path: Path) -> str:
    try:
        return read_named(path).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(
            f"schema {printable(path)}: neither name:type,… nor a readable file ({reason})"
        ) from None


def written_schema(text: str) -> str:
    """Return what a schema says, in one way: a file may change, and two ways to write the same are
    no two datasets."""
    return ",".join(f"{f.name}:{_NAMES_OF_TYPES[f.type]}" for f in parse_schema(text))


DEEPEST = 16
"""How deep steps may be inside of other steps. The recipe of a dataset is not trusted: reading it
must end well."""


@dataclass(frozen=True)
class Recipe(RecipeKeys):
    """A checked recipe: its fields are the keys of a recipe file. `from_json` makes one, and
    decides what is left open.

    Then `store` is None for text and tables only. `variants` samples are made of every record.

    `text_field` and `label_field` name the fields of records that become `text` and `label`;
    `image_field` the one of a table that has the images (`auto`: it is to be found, None: images
    are files of their own), or for tables `none`: there is none. `schema` has the types of the
    fields where they need not be found.
    """

    transform: tuple[Transform, ...] = setting(
        STEPS, (), "The steps, in the order in which they are done."
    )
    reading: tuple[Transform, ...] = setting(
        STEPS,
        (),
        "Steps of images that no conversion does: a loader does them in each epoch, with "
        'recipe="dataset".',
        omit_default=True,
    )

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """Say that there is no such key. What is a step is no key of its own."""
        what = f"{cls.what} {key!r} is not known"
        if key in TRANSFORMS:
            of = " of text" if ".text." in TRANSFORMS[key].__module__ else ""
            return f'{what}; it is a step{of}: write [[transform]] and below it name = "{key}", in Python {{"transform": [{{"name": "{key}"}}]}}'
        if key in ("steps", "transforms"):
            return f"{what}; write [[transform]] for each step"
        if key in STEP_OPTIONS:
            return f"{what}; give --{key.replace('_', '-')} to convert"
        return unknown(cls.what, key, declared_in(cls), "shardctl recipe schema")

    @property
    def renames(self) -> dict[str, str]:
        """The fields of records that have another name in the dataset."""
        named = self.chosen_fields or self._named_fields
        return {old: new for old, new in named.items() if old != new}

    @property
    def _named_fields(self) -> dict[str, str]:
        named = ((self.text_field, "text"), (self.label_field, "label"), (self.key_field, "key"))
        return {old: new for old, new in named if old is not None}

    @property
    def chosen_fields(self) -> dict[str, str]:
        """The fields of records that are kept, and the names that they get; empty if all are kept.

        Fields that other keys name are kept with them.
        """
        return {**parse_fields(self.fields), **self._named_fields} if self.fields else {}

    @property
    def label_source(self) -> str:
        """The name that the label has in records."""
        return self._source("label")

    @property
    def key_source(self) -> str | None:
        """The field of records that has the keys of samples; None: these are made of the file and
        the number of the record."""
        return self.key_field or next(
            (old for old, new in self.chosen_fields.items() if new == "key"), None
        )

    @property
    def undivided(self) -> GroupRule | None:
        """What no shares of splits divide: groups, else all frames of a file."""
        return self.group or (GroupRule("(?s)(.*)#") if self.frames == "all" else None)

    @property
    def typed_fields(self) -> pa.Schema | None:
        """The types of the fields, where they are given."""
        return parse_schema(self.schema) if self.schema else None

    @cached_property
    def record_reading(self) -> Reading:
        """How records are read."""
        image = self.image_field if self.kind == "image" else None
        lists = (step.list_field for step in self.batch_transforms if step.list_field)
        return Reading(
            FRAME if self.frames == "all" else self.record,
            self.encoding,
            self.columns,
            self.delimiter,
            self.label_source,
            image,
            format="" if self.format == UNDECIDED else self.format,
            only=tuple(self.chosen_fields),
            null_values=self.null_values,
            max_pixels=self.max_pixels,
            list_field=self._source(next(lists, "")),
            key=self.key_field,
        )

    def _source(self, name: str) -> str:
        """Return the name that a field has in records. Where the field of this name has another one
        in the dataset, and none has this, that is a name which no field has."""
        found = (old for old, new in self.renames.items() if new == name)
        return next(found, "\0" if name in self.renames else name)

    def with_json(self, fields: pa.Schema) -> pa.Schema:
        """Return the fields of records, those marked that steps take as JSON: they are strings,
        whatever is in them."""
        names = {self.renames.get(name, name) for name in fields.names}
        wanted = {
            self._source(name) for step in self.batch_transforms for name in step.json_fields(names)
        }
        marked = [
            pa.field(f.name, pa.string(), metadata={JSON: b""}) if f.name in wanted else f
            for f in fields
        ]
        return pa.schema(marked, fields.metadata)

    @property
    def image_source(self) -> str | None:
        """The field that is chosen as the image, None if none is."""
        return next((old for old, new in self.chosen_fields.items() if new == "image"), None)

    @classmethod
    def draft(cls, given: Json) -> Recipe:
        """Build a recipe whose kind need not be decided yet. Raises SettingError."""
        return super().parse(**given)

    @property
    def keep_truncated(self) -> bool:
        """Whether images that end too early are kept."""
        return self.truncated == "keep"

    def open_image(self, data: bytes, pixels_only: bool = False) -> Opened:
        """Open an image as the recipe says. Raises Rejection."""
        return open_image(data, self.max_pixels, self.keep_truncated, pixels_only, self.gray16)

    @property
    def image_transforms(self) -> tuple[ImageTransform, ...]:
        """The transforms of the image."""
        return tuple(step for step in self.transform if isinstance(step, ImageTransform))

    @property
    def moving(self) -> tuple[ImageTransform, ...]:
        """The transforms that move what is in the image."""
        return tuple(step for step in self.image_transforms if not step.in_place)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The steps that only reject images."""
        return tuple(step for step in self.transform if isinstance(step, Filter))

    @property
    def changes(self) -> tuple[Transform, ...]:
        """The transforms that may change a sample: all but the filters."""
        return tuple(step for step in self.transform if not isinstance(step, Filter))

    @property
    def parts(self) -> int:
        """How many samples the transforms make of one."""
        return math.prod(step.samples for step in self.transform)

    @property
    def samples_per_record(self) -> int:
        """How many samples are made of every record: its variants, and the parts of each."""
        return self.variants * self.parts

    @cached_property
    def sample_transforms(self) -> tuple[SampleTransform, ...]:
        """The user's own functions."""
        return tuple(step for step in self.transform if isinstance(step, SampleTransform))

    def check_sending(self) -> None:
        """Raise UsageError for a function that other processes cannot be sent."""
        for step in self.transform:
            if isinstance(step, Custom):
                step.check_sending()

    @property
    def models(self) -> tuple[GroupTransform, ...]:
        """Those of the user's own functions that are called on many samples."""
        return tuple(step for step in self.transform if isinstance(step, GroupTransform))

    @property
    def records_together(self) -> int:
        """How many records the models need together, so that their calls are as large as they may
        be; 1 without models."""
        return max(
            (max(1, model.batch // self.samples_per_record) for model in self.models), default=1
        )

    @property
    def batch_transforms(self) -> tuple[BatchTransform, ...]:
        """The transforms of whole batches of records."""
        return tuple(step for step in self.transform if isinstance(step, BatchTransform))

    @property
    def joins(self) -> bool:
        """Whether a sample may be of several records."""
        return any(step.joins for step in self.batch_transforms)

    @property
    def random(self) -> bool:
        """Whether the recipe draws random numbers."""
        return any(step.random for step in self.transform)

    @property
    def output_size(self) -> Size | None:
        """The (width, height) of every image where the transforms fix it."""
        return self.output_size_of(None)

    def output_size_of(self, size: Size | None) -> Size | None:
        """Return the (width, height) of every image where the transforms fix it, given that of all
        images before them."""
        for step in self.image_transforms:
            size = step.output_size(size)
        return size

    def rng(self, key: str, variant: int, draws: bool = True) -> Rng:
        """Return the generator of one sample, keyed by (seed, key, variant): the same in any worker
        and any order. Who `draws` nothing gets None."""
        if not draws:
            return None  # type: ignore[return-value]  # nobody looks at it
        return SampleRngs(self.seed).of(key, variant)

    def given(self) -> Json:
        """Return the keys whose values differ from their defaults, as plain data."""
        declared = declared_in(Recipe)
        return {
            key: value
            for key, value in self.to_json().items()
            if getattr(self, key) != declared[key].default
        }

    @property
    def files(self) -> dict[str, bytes]:
        """The files that its steps depend on, by the names that they have in the dataset."""
        return {name: data for step in self.transform for name, data in step.files.items()}

    @property
    def tables(self) -> list[str]:
        """The names of the tables that its steps need in the job's folder, and that become part of
        the dataset."""
        return [step.table for step in self.transform if step.table]

    @classmethod
    def without_functions(cls, record: Json, folder: Path) -> Recipe:
        """Build a recipe that makes no sample: what a person's functions are called is known, and
        none is imported."""
        return cls.from_json(record, folder, lambda step: step.name not in OWN)

    @classmethod
    def from_json(
        cls,
        record: Json,
        folder: Path | None = None,
        loads: Callable[[Transform], bool] = lambda step: True,
    ) -> Recipe:
        """Build and check a recipe, and import its functions; what is left out takes its default.

        `folder` has the `files` of a recipe that was made before: that of its dataset, or of its
        job. Only the steps that it `loads` are imported. Raises UsageError, InputError.
        """
        decided = {**record, "kind": "image"} if record.get("kind") in (None, UNDECIDED) else record
        recipe = cls.parse(**decided)
        steps = []
        for place, step in enumerate(recipe.transform):
            try:
                steps.append(step.loaded(folder) if loads(step) else step)
            except SettingError as error:
                found = each_of(error)
                raise_any([each.within("transform", place, owner=step.name) for each in found])
        loaded = replace(recipe, transform=tuple(steps))._with_text_duplicates()
        for misfit in loaded.misfits():  # a custom step whose target is a class has become a model
            raise misfit
        return loaded

    @classmethod
    def parse(cls, **given: Any) -> Recipe:
        """Build and check a recipe; functions are not imported. Raises SettingError with all that
        is wrong."""
        recipe, errors = cls.examined(given)
        raise_any(errors)
        assert recipe is not None, "what is wrong was raised"
        return recipe

    @classmethod
    def examined(cls, given: Json) -> tuple[Recipe | None, list[SettingError]]:
        """Build from what a recipe says; None if something is wrong, beside all that is.

        Functions are not imported. Whether the settings fit each other is looked at only if the
        kind and the steps are right.
        """
        values, errors = cls.values(given)
        if {"kind", "transform"} & {error.key[0] for error in errors if error.key}:
            return None, errors
        try:
            recipe = cls(**values)._decided()
        except UsageError as error:
            return None, errors + each_of(error)
        errors += recipe.misfits()
        return None if errors else recipe, errors

    @classmethod
    def values(cls, given: Json) -> tuple[Json, list[SettingError]]:
        """Return those of the given values that are right, and what is wrong. None says
        nothing."""
        # a manifest has None for what is left out
        said = {key: value for key, value in given.items() if value is not None}
        deep = [key for key in ("transform", "reading") if _is_deep(said.get(key))]
        values, errors = super().values({key: said[key] for key in said if key not in deep})
        problem = f"there are steps in steps, deeper than {DEEPEST}"
        return values, [*(SettingError(problem, key) for key in deep), *errors]

    def _decided(self) -> Recipe:
        """Return the recipe with what was left open."""
        images = self.kind == "image" or (self.kind == UNDECIDED and not self.batch_transforms)
        store = self.store
        if store is None and images:
            store = ImageEncoding.parse("jpeg:90" if self.changes or self.gray16 else "source")
        compression = self.compression
        if compression is None:
            # Encoded images do not shrink further, and raw pixels shrink by a seventh
            # (docs/dev/measurements.md): both are worth more where they can be read in
            # place. So are blocks of tokens (docs/text/packing.md): zstd makes them a quarter smaller, and
            # a hundred times slower at random. Text is a third to a quarter of its size under zstd.
            compression = Compression.parse("none" if images or self.joins else "zstd:3")
        return replace(self, store=store, compression=compression)

    @property
    def compares_texts(self) -> bool:
        """Whether a step needs to know which texts are duplicates of others."""
        return any(step.compares_texts for step in self.transform)

    def _with_text_duplicates(self) -> Recipe:
        """Return the recipe of texts with a step in place of the key `duplicates`, after the last
        step that changes texts."""
        if self.kind == "image" or self.duplicates.mode in ("keep", *OF_IMAGES):
            return self
        from shardctl.transforms.text.base import TextFilter, TextStep  # few recipes have it
        from shardctl.transforms.text.deduplicate import Deduplicate

        steps = self.transform
        changes = [
            number
            for number, step in enumerate(steps, 1)
            if isinstance(step, TextStep) and not isinstance(step, TextFilter)
        ]
        place = max(changes, default=0)
        step = Deduplicate.of_rule(self.duplicates)
        return replace(self, duplicates=KEEP_ALL, transform=(*steps[:place], step, *steps[place:]))

    def misfits(self) -> Iterator[SettingError]:
        """Yield what does not fit together, each with the key that says it."""
        if both := set(self.mask_fields) & set(self.unmoved):
            yield SettingError(
                f"{printable(min(both))} is among mask_fields and unmoved: leave one out",
                "unmoved",
            )
        yield from self._misfits_of_kind()
        yield from self._misfits_of_fields()
        if self.variants > 1 and not self.random:
            yield SettingError(
                "variants above 1 store the same sample: no step is random",
                "variants",
            )
        yield from self._misfits_of_store()
        for place, step in enumerate(self.reading):
            if self.kind not in (UNDECIDED, "image"):
                yield SettingError(f"these inputs are {self.kind}, not images", "reading", place)
            elif not isinstance(step, ImageTransform | Custom):
                yield SettingError(f"{step.name} does not change images", "reading", place)
            for problem in replace(self, transform=self.reading)._misfits_of_step(place):
                yield SettingError(problem, "reading", place)
        for place in range(len(self.transform)):
            for problem in self._misfits_of_step(place):
                yield SettingError(problem, "transform", place)

    def _misfits_of_kind(self) -> Iterator[SettingError]:
        """Yield what the kind of the inputs does not allow."""
        images, mode = self.kind in (UNDECIDED, "image"), self.duplicates.mode
        these = f"and these inputs are {'images' if images else self.kind}"
        if mode != "keep" and self.kind == "image" and self.record_reading.has_image_records:
            yield SettingError(
                f"duplicates {self.duplicates} compares image files, and these are records; "
                "leave it out",
                "duplicates",
            )
        elif (mode in OF_TEXTS and self.kind == "image") or (mode in OF_IMAGES and not images):
            compares, others = ("texts", "similar") if images else ("images", "near")
            yield SettingError(
                f"duplicates {self.duplicates} compares {compares}, {these}; use exact or {others}",
                "duplicates",
            )

    def _misfits_of_fields(self) -> Iterator[SettingError]:
        if self.text_field is not None and self.text_field == self.label_field:
            yield SettingError(
                f"{printable(self.text_field)} cannot be the text and the label", "label_field"
            )
        if self.image_field is None:
            return
        if self.kind == "image" and self.frames == "all":
            yield SettingError("frames is about files, and these inputs are tables", "frames")
        named = f"--image-field {printable(self.image_field)}"
        problem = ""
        if self.kind == "table" and self.image_field != NO_IMAGES:
            problem = "is for --kind image; in a table, all structs of bytes and path are images"
        elif self.kind == "text" or (self.kind == "image" and self.image_field == NO_IMAGES):
            problem = f"does not fit --kind {self.kind}; leave it out"
        if problem:
            yield SettingError(f"{named} {problem}", "image_field")

    def _misfits_of_store(self) -> Iterator[SettingError]:
        if self.store is None or self.kind not in (UNDECIDED, "image"):
            return  # of other kinds, `without_effect` says it
        name, problem = self.store.name, ""
        if name == "source" and (self.changes or self.gray16):
            what = self.changes[0].name if self.changes else "gray16"
            problem = f"keeps the original bytes, without {what}; use store jpeg:90 or raw"
        elif name == "raw" and self.output_size is None and not self.sample_transforms:
            problem = (
                "needs one size of all images: add a resize to WIDTHxHEIGHT or a crop (--crop 32)"
            )
        elif name == "none" and not self.sample_transforms:
            problem = "drops the images, and nothing (--transform) makes other fields of them"
        if problem:
            yield SettingError(f"store {name} {problem}", "store")

    def _misfits_of_step(self, place: int) -> Iterator[str]:
        """Yield what is wrong with a step beside the others."""
        before, (step, *after) = self.transform[:place], self.transform[place:]
        images = isinstance(step, ImageTransform | Filter)
        if images and self.kind not in (UNDECIDED, "image"):
            these = f"these inputs are {self.kind}; --kind image reads those that tables name"
            yield f"{step.name} is for images, and {these}"
        if images and self.kind == UNDECIDED and self.batch_transforms:
            yield f"{step.name} is for images, and {self.batch_transforms[0].name} for text"
        if isinstance(step, ImageTransform):
            several = [each.name for each in after if each.samples > 1]
            if step.samples > 1 and any(each.samples > 1 for each in before):
                yield f"{step.name}: only one step may make several samples of an image"
            elif step.random and several:
                yield f"{step.name} is random: put it after {several[0]}"
        if isinstance(step, BatchTransform):
            if self.sample_transforms:
                yield f"{step.name} cannot be used together with your own function"
            if step.is_last and after:
                yield f"{step.name} must be the last step; {after[0].name} comes after it"
            if self.kind == "image":
                yield f"{step.name} is for text and tables, and these inputs are images"
        if step.table:
            if step.table in [each.table for each in before]:
                yield f"{step.name} of the same unit is given twice; leave one out"
            made = [each.name for each in before if each.name in TOKEN_STEPS]
            if made:
                yield f"{step.name} must come before {made[0]}, which takes the whole text"
        own = any(isinstance(each, SampleTransform) for each in before)
        if own and not isinstance(step, SampleTransform):
            yield f"{step.name} must come before your own function"


KEYS = tuple(declared_in(Recipe))
"""The keys of a recipe file."""


def _is_deep(steps: Any) -> bool:
    """Return whether there are steps in steps, more than DEEPEST times."""
    level = [steps]
    for _ in range(2 * DEEPEST):  # a list of steps, and a step that has another list
        tables = [value.values() for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list | tuple)]
        level = [item for value in (*tables, *lists) for item in value]
    return bool(level)
