"""A recipe: what is done to every input, and how the result is stored. Files of recipes:
recipe_files/."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import UsageError
from shardctl.format.shard import Compression
from shardctl.images.codecs.deep_gray import GrayRange
from shardctl.images.codecs.image import ImageEncoding, Opened, open_image
from shardctl.images.geometry import Size
from shardctl.images.object_geometry import CENTRE
from shardctl.sources.format_table import FRAME, RECORDS
from shardctl.sources.formats import CHOSEN, GIVEN, JSON, Reading
from shardctl.sources.image_columns import NO_IMAGES
from shardctl.sources.splits import GroupRule
from shardctl.system.files import read_named
from shardctl.system.options import declared_in
from shardctl.system.text import printable, unknown
from shardctl.transforms.base import (
    BatchTransform,
    GroupTransform,
    ImageTransform,
    SampleTransform,
    Transform,
)
from shardctl.transforms.duplicates.rule import KEEP_ALL, OF_IMAGES, OF_TEXTS, DuplicateRule
from shardctl.transforms.filter import Filter
from shardctl.transforms.recipe_options import (
    FORMATS,
    FRAMES,
    KINDS,
    TRUNCATED,
    UNDECIDED,
    RecipeOptions,
)
from shardctl.transforms.settings import (
    PROBABILITY,
    Auto,
    Names,
    Optional,
    Parsed,
    Report,
    SettingError,
    Settings,
    SettingType,
    Text,
    Whole,
    Word,
    raise_it,
    setting,
    setting_as,
    settings_in,
)
from shardctl.transforms.shortcuts import STEP_OPTIONS
from shardctl.transforms.table import TOKEN_STEPS, TRANSFORMS, Steps
from shardctl.transforms.text.base import TextFilter, TextStep
from shardctl.transforms.text.deduplicate import Deduplicate

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
    pairs = [
        (part.partition("=") if "=" in part else (part, "", part))
        for part in text.split(",")
        if part.strip()
    ]
    found = {old.strip(): new.strip() for new, _, old in pairs}
    if (
        not found
        or "" in found
        or "" in found.values()
        or len(set(found.values())) < len(pairs)
        or len(found) < len(pairs)
    ):
        raise ValueError(
            "must be fields and their new names, each once, such as "
            "image=image/encoded,label=image/class/label"
        )
    return found


def _written_fields(text: str) -> str:
    """Return what fields are chosen, in one way."""
    return ",".join(f"{new}={old}" for old, new in parse_fields(text).items())


def _file_of_schema(path: Path) -> str:
    try:
        return read_named(path).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(
            f"schema {printable(str(path))}: neither name:type,… nor a file that can be read "
            f"({reason})"
        ) from None


def _written_schema(text: str) -> str:
    """Return what a schema says, in one way: a file may change, and two ways to write the same are
    no two datasets."""
    return ",".join(f"{f.name}:{_NAMES_OF_TYPES[f.type]}" for f in parse_schema(text))


@dataclass(frozen=True)
class Delimiter(SettingType[str]):
    """One character that is between the cells of a line; `tab` for a tab."""

    def read(self, value: Any) -> str:
        """Return the character."""
        text = {"tab": "\t", "\\t": "\t"}.get(value, value) if isinstance(value, str) else ""
        if len(text) != 1 or not text.isascii() or text in '"\r\n' or text.isalnum():
            raise ValueError("must be one character, such as ; or |, or tab")
        return text

    def schema(self) -> dict[str, Any]:
        """Return the schema of a character, and of `tab`."""
        return {"type": "string", "pattern": r"^([^\"\r\nA-Za-z0-9]|tab|\\t)$"}


@dataclass(frozen=True)
class KeptShare(SettingType["float | str"]):
    """A share of an area from 0 to 1, or `center`."""

    def read(self, value: Any) -> float | str:
        """Return the number, or the word."""
        try:
            return CENTRE if value == CENTRE else PROBABILITY.read(value)
        except ValueError:
            raise ValueError(f"must be a number from 0 to 1, or {CENTRE}") from None

    def schema(self) -> dict[str, Any]:
        """Return the schema of both."""
        return {"anyOf": [PROBABILITY.schema(), {"const": CENTRE}]}


DEEPEST = 16
"""How deep steps may be inside of other steps. The recipe of a dataset is not trusted: reading it
must end well."""


def _known_encoding(name: str) -> str:
    from shardctl.sources.formats.encodings import known_encoding

    return known_encoding(name)


_STORES = {"pattern": r"^(source|png|raw|none|(jpeg|webp)(:[0-9]{1,3})?)$"}
_GRAYS = {"pattern": r"^(range|[^:]+:[^:]+)$"}
_DUPLICATES = {"pattern": r"^(keep|exact|similar(:[0-9]{1,2})?|near(:[0-9.]+)?|line|paragraph)$"}
_COMPRESSIONS = {"pattern": "^(none|lz4|zstd(:[0-9]{1,2})?)$"}

_OPTIONS = declared_in(RecipeOptions)


_NOT_OF_RECIPES = frozenset(
    (
        "split",
        "labels",
        "shuffle",
        "workers",
        "shard_size",
        "samples_per_shard",
        "overwrite",
        "update",
    )
)
"""Options of convert that say nothing of what is done to an input."""


@dataclass(frozen=True)
class Recipe(Settings):
    """A checked recipe: its fields are the keys of a recipe file. `from_json` makes one, and
    decides what is left open.

    Then `store` is None for text and tables only. `variants` samples are made of every record.

    `text_field` and `label_field` name the fields of records that become `text` and `label`;
    `image_field` the one of a table that has the images (`auto`: it is to be found, None: images
    are files of their own), or for tables `none`: there is none. `schema` has the types of the
    fields where they need not be found.
    """

    name: ClassVar[str] = ""
    what: ClassVar[str] = "recipe key"
    kind: str = setting_as(_OPTIONS["kind"], Word(KINDS))
    store: ImageEncoding | None = setting_as(
        _OPTIONS["store"], Optional(Parsed(ImageEncoding.parse, _STORES))
    )
    compression: Compression = setting_as(
        _OPTIONS["compression"], Auto(Parsed(Compression.parse, _COMPRESSIONS))
    )
    seed: int = setting_as(_OPTIONS["seed"], Whole(0, 2**63 - 1))
    group: GroupRule | None = setting_as(
        _OPTIONS["group"], Optional(Parsed(GroupRule.parse)), later=True
    )
    variants: int = setting_as(_OPTIONS["variants"], Whole(1, 10_000))
    max_pixels: int = setting_as(_OPTIONS["max_pixels"], Whole(1, 2**40))
    truncated: str = setting_as(_OPTIONS["truncated"], Word(TRUNCATED))
    gray16: GrayRange | None = setting_as(
        _OPTIONS["gray16"], Optional(Parsed(GrayRange.parse, _GRAYS)), later=True
    )
    frames: str = setting_as(_OPTIONS["frames"], Word(FRAMES), later=True)
    duplicates: DuplicateRule = setting_as(
        _OPTIONS["duplicates"], Parsed(DuplicateRule.parse, _DUPLICATES), later=True
    )
    record: str = setting_as(_OPTIONS["record"], Word(RECORDS))
    encoding: str = setting_as(_OPTIONS["encoding"], Parsed(_known_encoding))
    columns: tuple[str, ...] = setting_as(_OPTIONS["columns"], Names())
    delimiter: str | None = setting_as(_OPTIONS["delimiter"], Optional(Delimiter()))
    null_values: tuple[str, ...] = setting_as(_OPTIONS["null_values"], Names(), later=True)
    text_field: str | None = setting_as(_OPTIONS["text_field"], Optional(Text()))
    label_field: str | None = setting_as(_OPTIONS["label_field"], Optional(Text()))
    key_field: str | None = setting_as(_OPTIONS["key_field"], Optional(Text()), later=True)
    image_field: str | None = setting_as(_OPTIONS["image_field"], Optional(Text()))
    format: str = setting_as(_OPTIONS["format"], Word(FORMATS), later=True)
    fields: str | None = setting_as(
        _OPTIONS["fields"], Optional(Parsed(_written_fields)), later=True
    )
    schema: str | None = setting_as(_OPTIONS["schema"], Optional(Parsed(_written_schema)))
    keep_objects: float | str = setting_as(_OPTIONS["keep_objects"], KeptShare(), later=True)
    unmoved: tuple[str, ...] = setting_as(_OPTIONS["unmoved"], Names(), later=True)
    mask_fields: tuple[str, ...] = setting_as(_OPTIONS["mask_fields"], Names(), later=True)
    transform: tuple[Transform, ...] = setting(
        Steps(), (), "The steps, in the order in which they are done."
    )

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """Say that there is no such key. What is a step is no key of its own."""
        if key in TRANSFORMS:
            short = (
                f"--{key.replace('_', '-')}"
                if key in STEP_OPTIONS
                else f"--step '{key} SETTING=VALUE'"
            )
            table = f'in a file, write [[transform]] and below it name = "{key}"'
            return f"{cls.what} {key!r} is not known; it is a step: give {short}, or {table}"
        if key.casefold() in (
            "step",
            "steps",
            "transforms",
            "augmentation",
            "augmentations",
            "augment",
        ):
            return (
                f"{cls.what} {key!r} is not known; the key of the steps is transform: a list, "
                "[[transform]] in a file"
            )
        if key in _NOT_OF_RECIPES or key in STEP_OPTIONS:
            return (
                f"{cls.what} {key!r} is not known; it is not a part of a recipe: give "
                f"--{key.replace('_', '-')} to convert"
            )
        return unknown(cls.what, key, settings_in(cls), "shardctl recipe schema")

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The steps."""
        return self.transform

    @property
    def renames(self) -> dict[str, str]:
        """The fields of records that have another name in the dataset."""
        named = (
            (self.text_field, "text"),
            (self.label_field, "label"),
            (self.key_field, "key"),
            *self.chosen_fields.items(),
        )
        return {old: new for old, new in named if old is not None and old != new}

    @property
    def chosen_fields(self) -> dict[str, str]:
        """The fields of records that are kept, and the names that they get; empty if all are kept.

        Fields that other keys name are kept with them.
        """
        if not self.fields:
            return {}
        named = ((self.text_field, "text"), (self.label_field, "label"), (self.key_field, "key"))
        return {**parse_fields(self.fields), **{old: new for old, new in named if old is not None}}

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
    def reading(self) -> Reading:
        """How records are read."""
        image = self.image_field if self.kind == "image" else None
        only, format_ = tuple(self.chosen_fields), "" if self.format == UNDECIDED else self.format
        return Reading(
            FRAME if self.frames == "all" else self.record,
            self.encoding,
            self.columns,
            self.delimiter,
            self.label_source,
            image,
            format=format_,
            only=only,
            null_values=self.null_values,
            max_pixels=self.max_pixels,
            list_field=self._source(
                next((step.list_field for step in self.batch_transforms if step.list_field), "")
            ),
        )

    def _source(self, name: str) -> str:
        """Return the name that a field has in records."""
        return next((old for old, new in self.renames.items() if new == name), name)

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

    @classmethod
    def reading_of(cls, given: dict[str, Any]) -> Reading:
        """Return how records are read by a recipe whose kind need not be decided yet. Raises
        SettingError."""
        return cls(**cls.values(given, raise_it)).reading

    @classmethod
    def image_source(cls, given: dict[str, Any]) -> str | None:
        """Return the field that a recipe chooses as the image, None if it chooses none. Raises
        SettingError."""
        chosen = cls(**cls.values(given, raise_it)).chosen_fields
        return next((old for old, new in chosen.items() if new == "image"), None)

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
        return tuple(step for step in self.transforms if isinstance(step, ImageTransform))

    @property
    def moving(self) -> tuple[ImageTransform, ...]:
        """The transforms that move what is in the image."""
        return tuple(step for step in self.image_transforms if not step.in_place)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The steps that only reject images."""
        return tuple(step for step in self.transforms if isinstance(step, Filter))

    @property
    def changes(self) -> tuple[Transform, ...]:
        """The transforms that may change a sample: all but the filters."""
        return tuple(step for step in self.transforms if not isinstance(step, Filter))

    @property
    def parts(self) -> int:
        """How many samples the transforms make of one."""
        return math.prod(step.samples for step in self.image_transforms)

    @property
    def samples_per_record(self) -> int:
        """How many samples are made of every record: its variants, and the parts of each."""
        return self.variants * self.parts

    @cached_property
    def sample_transforms(self) -> tuple[SampleTransform, ...]:
        """The user's own functions."""
        return tuple(step for step in self.transforms if isinstance(step, SampleTransform))

    @property
    def models(self) -> tuple[GroupTransform, ...]:
        """Those of the user's own functions that are called on many samples."""
        return tuple(step for step in self.transforms if isinstance(step, GroupTransform))

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
        return tuple(step for step in self.transforms if isinstance(step, BatchTransform))

    @property
    def joins(self) -> bool:
        """Whether a sample may be of several records."""
        return any(step.joins for step in self.batch_transforms)

    @property
    def random(self) -> bool:
        """Whether the recipe draws random numbers."""
        return any(step.random for step in self.transforms)

    @property
    def output_size(self) -> Size | None:
        """The (width, height) of every image where the transforms fix it."""
        size: Size | None = None
        for step in self.image_transforms:
            size = step.output_size(size)
        return size

    def rng(self, key: str, variant: int) -> np.random.Generator:
        """Return the generator of one sample, keyed by (seed, key, variant): the same in any worker
        and any order."""
        digest = xxhash.xxh3_128_intdigest(f"{self.seed}\0{variant}\0{key}".encode())
        return np.random.Generator(
            np.random.Philox(key=np.array([digest & (2**64 - 1), digest >> 64], np.uint64))
        )

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain data: what the manifest records and `from_json` reads."""
        return {
            key: field.metadata["kind"].write(getattr(self, key))
            for key, field in settings_in(Recipe).items()
            if not (field.metadata["later"] and getattr(self, key) == field.default)
        }

    def given(self) -> dict[str, Any]:
        """Return the keys whose values differ from their defaults, as plain data."""
        fields = settings_in(Recipe)
        return {
            key: value
            for key, value in self.to_json().items()
            if getattr(self, key) != fields[key].default
        }

    @property
    def files(self) -> dict[str, bytes]:
        """The files that its steps depend on, by the names that they have in the dataset."""
        return {name: data for step in self.transforms for name, data in step.files.items()}

    @property
    def tables(self) -> list[str]:
        """The names of the tables that its steps need in the job's folder, and that become part of
        the dataset."""
        return [step.table for step in self.transforms if step.table]

    @classmethod
    def from_json(cls, record: dict[str, Any], folder: Path | None = None) -> Recipe:
        """Build and check a recipe, and import its functions; what is left out takes its default.

        `folder` has the `files` of a recipe that was made before: that of its dataset, or of its
        job. Raises UsageError, InputError.
        """
        return cls._loaded(record, folder, lambda step: True)

    @classmethod
    def without_functions(cls, record: dict[str, Any], folder: Path) -> Recipe:
        """Build a recipe that makes no sample: what a person's functions are called is known, and
        none is imported."""
        return cls._loaded(record, folder, lambda step: step.name not in _OWN)

    @classmethod
    def _loaded(
        cls, record: dict[str, Any], folder: Path | None, loads: Callable[[Transform], bool]
    ) -> Recipe:
        decided = {**record, "kind": "image"} if record.get("kind") in (None, UNDECIDED) else record
        recipe = cls.parse(**decided)
        steps = []
        for place, step in enumerate(recipe.transforms):
            try:
                steps.append(step.loaded(folder) if loads(step) else step)
            except SettingError as error:
                raise error.within("transform", place) from None
        loaded = replace(recipe, transform=tuple(steps))._with_text_duplicates()
        for misfit in loaded.misfits():  # a custom step whose target is a class has become a model
            raise misfit
        return loaded

    @classmethod
    def checked(cls, given: dict[str, Any], report: Report) -> Recipe | None:
        """Build from what a recipe says; None if something is wrong, after telling `report` of all
        that is.

        Functions are not imported. Whether the settings fit each other is looked at only if the
        kind and the steps are right.
        """
        errors: list[SettingError] = []
        values = cls.values(given, errors.append)
        recipe = None
        if not {"kind", "transform"} & {error.key[0] for error in errors if error.key}:
            try:
                recipe = cls(**values)._decided()
                errors += recipe.misfits()
            except UsageError as error:
                errors.append(
                    error if isinstance(error, SettingError) else SettingError(str(error))
                )
        for each in errors:
            report(each)
        return None if errors else recipe

    @classmethod
    def values(cls, given: dict[str, Any], report: Report) -> dict[str, Any]:
        """Return those of the given values that are right, after telling `report` of the others.
        None says nothing."""
        # a manifest has None for what is left out
        said = {key: value for key, value in given.items() if value is not None}
        if _is_deep(said.get("transform")):
            del said["transform"]
            report(SettingError(f"there are steps in steps, deeper than {DEEPEST}", "transform"))
        return super().values(said, report)

    def _decided(self) -> Recipe:
        """Return the recipe with what was left open."""
        images = self.kind == "image" or (self.kind == UNDECIDED and not self.batch_transforms)
        store = self.store
        if store is None and images:
            store = ImageEncoding.parse("jpeg:90" if self.changes or self.gray16 else "source")
        compression = self.compression
        if compression is None:
            # Encoded images do not shrink further, and raw pixels shrink by a seventh
            # (docs/dev/measurements/commands.md): both are worth more where they can be read in
            # place. So are blocks of tokens (docs/text.md): zstd makes them a quarter smaller, and
            # a hundred times slower at random. Text is a third to a quarter of its size under zstd.
            compression = Compression.parse("none" if images or self.joins else "zstd:3")
        return replace(self, store=store, compression=compression)

    @property
    def compares_texts(self) -> bool:
        """Whether a step needs to know which texts are duplicates of others."""
        return any(isinstance(step, Deduplicate) for step in self.transform)

    def _with_text_duplicates(self) -> Recipe:
        """Return the recipe of texts with a step in place of the key `duplicates`, after the last
        step that changes texts."""
        if self.kind == "image" or self.duplicates.mode in ("keep", *OF_IMAGES):
            return self
        steps = self.transform
        changes = [
            isinstance(step, TextStep) and not isinstance(step, TextFilter) for step in steps
        ]
        place = max((number for number, changed in enumerate(changes, 1) if changed), default=0)
        step = Deduplicate.of_rule(self.duplicates)
        return replace(self, duplicates=KEEP_ALL, transform=(*steps[:place], step, *steps[place:]))

    def misfits(self) -> Iterator[SettingError]:
        """Yield what does not fit together, each with the key that says it."""
        if self.kind not in (UNDECIDED, "image"):
            if self.store is not None:
                yield SettingError(
                    f"store {self.store} is for images, and these inputs are {self.kind}", "store"
                )
            for key in self.given().keys() & {"mask_fields", "gray16", "frames"}:
                yield SettingError(f"{key} is about images, and these inputs are {self.kind}", key)
            for place, step in enumerate(self.transforms):
                if isinstance(step, ImageTransform | Filter):
                    yield _of_step(
                        place, f"{step.name} is for images, and these inputs are {self.kind}"
                    )
        if both := set(self.mask_fields) & set(self.unmoved):
            yield SettingError(
                f"{printable(min(both))} is among mask_fields and unmoved: leave one of them out",
                "unmoved",
            )
        yield from self._misfits_of_duplicates()
        yield from self._misfits_of_fields()
        if self.variants > 1 and not self.random:
            yield SettingError(
                "variants above 1 would store the same sample several times: nothing in the recipe "
                "is random",
                "variants",
            )
        if self.store and self.store.name == "source" and (self.changes or self.gray16):
            what = self.changes[0].name if self.changes else "gray16"
            yield SettingError(
                f"store source keeps the original bytes, so {what} cannot apply; use store "
                "jpeg:90, png, webp:80 or raw",
                "store",
            )
        if (
            self.store
            and self.store.name == "raw"
            and self.output_size is None
            and not self.sample_transforms
        ):
            yield SettingError(
                "store raw needs images of one size, and the recipe must name this size, even if "
                "all images already have it."
                " Add a resize to WIDTHxHEIGHT (--resize 32x32 for images of 32x32) or a crop "
                "(--crop 32)",
                "store",
            )
        if self.store and self.store.name == "none" and not self.sample_transforms:
            yield SettingError(
                "store none drops the images, and the recipe does not make another field of them. "
                "Add your own function or"
                " model (--transform), or store the images",
                "store",
            )
        yield from self._misfits_of_steps()

    def _misfits_of_duplicates(self) -> Iterator[SettingError]:
        mode, images = self.duplicates.mode, self.kind in (UNDECIDED, "image")
        if mode == "keep":
            return
        if self.reading.has_image_records and self.kind == "image":
            yield SettingError(
                f"duplicates {self.duplicates} compares images that are files of their own, and "
                "these inputs are records"
                " with images; leave it out",
                "duplicates",
            )
        elif self.kind == "image" and mode in OF_TEXTS:
            problem = (
                f"duplicates {self.duplicates} compares texts, and these inputs are images; "
                "use exact or similar"
            )
            yield SettingError(problem, "duplicates")
        elif not images and mode in OF_IMAGES:
            problem = (
                f"duplicates {self.duplicates} compares images, and these inputs are "
                f"{self.kind}; use exact or near"
            )
            yield SettingError(problem, "duplicates")

    def _misfits_of_steps(self) -> Iterator[SettingError]:
        several = [
            place
            for place, step in enumerate(self.transforms)
            if isinstance(step, ImageTransform) and step.samples > 1
        ]
        for place in several[1:]:
            name = self.transforms[place].name
            yield SettingError(
                "only one step may make several samples of each image",
                "transform",
                place,
                owner=name,
            )
        for place, step in enumerate(self.transforms[: several[0]] if several else ()):
            if isinstance(step, ImageTransform) and step.random:
                last = self.transforms[several[0]].name
                yield _of_step(
                    place,
                    f"{step.name} is random and must come after {last}, whose samples are parts of "
                    "the same image",
                )
        tables = [step.table for step in self.transforms]
        names = [step.name for step in self.transforms]
        for place, table in enumerate(tables):
            if table and table in tables[:place]:
                yield _of_step(
                    place, f"{names[place]} of the same unit is given twice; leave one of them out"
                )
            made = next((name for name in names[:place] if name in TOKEN_STEPS), None)
            if table and made is not None:
                yield _of_step(
                    place,
                    f"{names[place]} must come before {made}, whose tokens are those of the whole "
                    "text",
                )
        own = False
        for place, step in enumerate(self.transforms):
            if isinstance(step, BatchTransform) and self.sample_transforms:
                yield _of_step(place, f"{step.name} cannot be used together with your own function")
            if (
                isinstance(step, BatchTransform)
                and step.is_last
                and place < len(self.transforms) - 1
            ):
                yield _of_step(
                    place,
                    f"{step.name} must be the last step; {self.transforms[place + 1].name} comes "
                    "after it",
                )
            if isinstance(step, BatchTransform) and self.kind == "image":
                yield _of_step(
                    place,
                    f"{step.name} is for text and tables, and these inputs are images; leave it "
                    "out",
                )
            if (
                isinstance(step, ImageTransform | Filter)
                and self.kind == UNDECIDED
                and self.batch_transforms
            ):
                yield _of_step(
                    place,
                    f"{step.name} is for images, and {self.batch_transforms[0].name} for text and "
                    "tables",
                )
            if own and not isinstance(step, SampleTransform):
                yield _of_step(
                    place,
                    f"{step.name} must come before your own function, which works on what the "
                    "others have made",
                )
            own = own or isinstance(step, SampleTransform)

    def _misfits_of_fields(self) -> Iterator[SettingError]:
        if self.text_field is not None and self.text_field == self.label_field:
            yield SettingError(
                f"{printable(self.text_field)} cannot be the text and the label; name one field "
                "for each of them",
                "label_field",
            )
        if self.image_field is None:
            return
        if self.kind == "image" and self.frames == "all":
            yield SettingError(
                "frames is about images, and these inputs are tables of images", "frames"
            )
        if self.kind == "table" and self.image_field != NO_IMAGES:
            yield SettingError(
                f"--image-field {printable(self.image_field)} is for --kind image; in a table, all "
                "structs of bytes and path"
                " are images. With --image-field none, they are not",
                "image_field",
            )
        if self.kind == "text" or (self.kind == "image" and self.image_field == NO_IMAGES):
            yield SettingError(
                f"--image-field {printable(self.image_field)} does not fit --kind {self.kind}; "
                "leave it out",
                "image_field",
            )


KEYS = tuple(settings_in(Recipe))
"""The keys of a recipe file."""


def _is_deep(steps: Any) -> bool:
    """Return whether there are steps in steps, more than DEEPEST times."""
    level = [steps]
    for _ in range(2 * DEEPEST):  # a list of steps, and a step that has another list
        level = [
            item
            for value in level
            for item in (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list | tuple)
                else ()
            )
        ]
    return bool(level)


def _of_step(place: int, problem: str) -> SettingError:
    return SettingError(problem, "transform", place)


_OWN = ("custom", "model")
"""The names of the steps that call a person's code."""


def refuse_unnamed_functions(
    recipe: dict[str, Any], named: Iterable[str], shown: str, who: str
) -> None:
    """Raise UsageError if the recipe of a dataset has user functions that the caller did not name.
    `shown` is where it is."""
    unnamed = [target for target in user_functions(recipe) if target not in named]
    if unnamed:
        options = " ".join(f"--transform {printable(target)}" for target in unnamed)
        raise UsageError(
            f"{shown}: was made with user functions, and {who} runs no code only because the "
            "dataset names"
            f" it; check the code, and add {options}"
        )


def user_functions(recipe: dict[str, Any]) -> list[str]:
    """Return the names of the user functions in the recipe of a dataset, which is not trusted. None
    is imported."""
    steps = recipe.get("transform")
    steps = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return [str(step.get("target")) for step in steps if str(step.get("name")) in _OWN]
