"""A recipe, from a TOML file or from options: what is done to every input, and how the result is stored."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.codecs.image import MAX_PIXELS, Store
from shardctl.errors import UsageError
from shardctl.geometry import Size
from shardctl.shard import Compression
from shardctl.sources.formats import CHOSEN, Reading
from shardctl.sources.image_columns import NO_IMAGES
from shardctl.sources.kinds import KINDS
from shardctl.storage import printable
from shardctl.transforms import BatchTransform, ImageTransform, SampleTransform, Transform, parse_step
from shardctl.transforms.base import settings_of
from shardctl.transforms.settings import SettingError, unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEYS = (
    *("kind", "store", "compression", "seed", "variants", "max_pixels", "truncated"),
    *("record", "encoding", "columns", "delimiter", "text_field", "label_field", "image_field", "schema", "transform"),
)
"""The keys of a recipe file."""


@dataclass(frozen=True)
class Recipe:
    """A checked recipe. `store` is None for text and tables. `variants` samples are made of every record.

    `text_field` and `label_field` name the fields of records that become `text` and `label`; `image_field` the one of a table
    that has the images (`auto`: it is to be found, None: images are files of their own), or for tables `none`: there is none.
    `schema` has the types of the fields where they need not be found.
    """

    kind: str
    store: Store | None
    compression: Compression
    transforms: tuple[Transform, ...] = ()
    seed: int = 0
    variants: int = 1
    max_pixels: int = MAX_PIXELS
    truncated: str = "reject"
    reading: Reading = field(default_factory=Reading)
    text_field: str | None = None
    label_field: str | None = None
    image_field: str | None = None
    schema: str | None = None

    @property
    def renames(self) -> dict[str, str]:
        """The fields of records that have another name in the dataset."""
        named = ((self.text_field, "text"), (self.label_field, "label"))
        return {old: new for old, new in named if old is not None and old != new}

    @property
    def fields(self) -> pa.Schema | None:
        """The types of the fields, where they are given."""
        return parse_schema(self.schema) if self.schema else None

    @staticmethod
    def reading_of(settings: dict[str, Any]) -> Reading:
        """Return how records are read by the settings of a recipe. Raises UsageError."""
        record, columns = str(settings.get("record") or "file"), settings.get("columns") or ()
        if record not in RECORDS:
            raise UsageError(f"record must be {', '.join(RECORDS[:-1])} or {RECORDS[-1]}; it is {record!r}")
        names = columns.split(",") if isinstance(columns, str) else list(columns)
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise UsageError(f"columns must be different names, such as id,text,label; they are {','.join(map(str, names))!r}")
        encoding = _encoding(str(settings.get("encoding") or "utf-8"))
        image = _name(settings, "image_field") if settings.get("kind") == "image" else None
        label = str(settings.get("label_field") or "label")
        return Reading(record, encoding, tuple(names), _delimiter(settings.get("delimiter")), label, image)

    @property
    def keep_truncated(self) -> bool:
        """Whether images that end too early are kept."""
        return self.truncated == "keep"

    @property
    def image_transforms(self) -> tuple[ImageTransform, ...]:
        """The transforms of the image."""
        return tuple(step for step in self.transforms if isinstance(step, ImageTransform))

    @property
    def parts(self) -> int:
        """How many samples the transforms make of one."""
        return math.prod(step.samples for step in self.image_transforms)

    @property
    def samples_per_record(self) -> int:
        """How many samples are made of every record: its variants, and the parts of each."""
        return self.variants * self.parts

    @property
    def sample_transforms(self) -> tuple[SampleTransform, ...]:
        """The user's own functions."""
        return tuple(step for step in self.transforms if isinstance(step, SampleTransform))

    @property
    def batch_transforms(self) -> tuple[BatchTransform, ...]:
        """The transforms of whole batches of records."""
        return tuple(step for step in self.transforms if isinstance(step, BatchTransform))

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
        """Return the generator of one sample, keyed by (seed, key, variant): the same in any worker and any order."""
        digest = xxhash.xxh3_128_intdigest(f"{self.seed}\0{variant}\0{key}".encode())
        return np.random.Generator(np.random.Philox(key=np.array([digest & (2**64 - 1), digest >> 64], np.uint64)))

    def settings(self) -> dict[str, Any]:
        """Return the recipe as plain data: what the manifest records and `from_settings` reads."""
        return {
            "kind": self.kind,
            "store": str(self.store) if self.store else None,
            "compression": str(self.compression),
            "seed": self.seed,
            "variants": self.variants,
            "max_pixels": self.max_pixels,
            "truncated": self.truncated,
            "record": self.reading.record,
            "encoding": self.reading.encoding,
            "columns": list(self.reading.columns),
            "delimiter": self.reading.delimiter,
            "text_field": self.text_field,
            "label_field": self.label_field,
            "image_field": self.image_field,
            "schema": self.schema,
            "transform": [settings_of(step) for step in self.transforms],
        }

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Recipe:
        """Build and check a recipe; what is left out takes its default. Raises UsageError."""
        for key in settings:
            if key not in KEYS:
                raise SettingError(f"the recipe: {unknown('key', key, KEYS)}", key)
        steps = settings.get("transform") or []
        if not isinstance(steps, list):
            raise SettingError("the recipe's transforms must be tables, each under its own [[transform]]", "transform")
        transforms = tuple(_transform(number, step) for number, step in enumerate(steps))
        kind = settings.get("kind") or "image"
        store = _store(kind, settings.get("store"), transforms)
        recipe = cls(
            kind=kind,
            store=store,
            compression=_compression(store, str(settings.get("compression") or "auto")),
            transforms=transforms,
            seed=_whole(settings, "seed", 0, 0, 2**63 - 1),
            variants=_whole(settings, "variants", 1, 1, 10_000),
            max_pixels=_whole(settings, "max_pixels", MAX_PIXELS, 1, 2**40),
            truncated=str(settings.get("truncated") or "reject"),
            reading=cls.reading_of(settings),
            text_field=_name(settings, "text_field"),
            label_field=_name(settings, "label_field"),
            image_field=_name(settings, "image_field"),
            schema=_written_schema(_name(settings, "schema")),
        )
        recipe._check()
        return recipe

    def _check(self) -> None:
        if self.truncated not in ("reject", "keep"):
            raise UsageError(f"truncated must be reject or keep; it is {self.truncated!r}")
        if self.kind != "image" and self.image_transforms:
            raise UsageError(f"{self.image_transforms[0].name} is for images, and these inputs are {self.kind}")
        self._check_image_field()
        if self.text_field is not None and self.text_field == self.label_field:
            raise UsageError(f"{printable(self.text_field)} cannot be the text and the label; name one field for each of them")
        if self.variants > 1 and not self.random:
            raise UsageError("variants above 1 would store the same sample several times: nothing in the recipe is random")
        if self.store and self.store.name == "source" and self.transforms:
            raise UsageError(
                f"store source keeps the original bytes, so {self.transforms[0].name} cannot apply;"
                " use store jpeg:90, png, webp:80 or raw"
            )
        if self.store and self.store.name == "raw" and self.output_size is None and not self.sample_transforms:
            raise UsageError(
                "store raw needs every image to have the same size, and the recipe must say which, even if all images already"
                " have it: add a resize to WIDTHxHEIGHT (--resize 32x32 for images of 32x32) or a crop (--crop 32)"
            )
        several = [place for place, step in enumerate(self.image_transforms) if step.samples > 1]
        if len(several) > 1:
            raise UsageError(f"{self.image_transforms[several[1]].name}: only one transform may make several samples of each")
        early = next((step for step in self.image_transforms[: several[0]] if step.random), None) if several else None
        if early is not None:
            name = self.image_transforms[several[0]].name
            raise UsageError(f"{early.name} is random and must come after {name}, whose samples are parts of the same image")
        if self.batch_transforms and self.sample_transforms:
            raise UsageError(f"{self.batch_transforms[0].name} cannot be used together with your own function")
        if self.kind == "image" and self.batch_transforms:
            raise UsageError(f"{self.batch_transforms[0].name} is for text and tables, and these inputs are images")
        for place, step in enumerate(self.transforms):
            own = any(isinstance(s, SampleTransform) for s in self.transforms[:place])
            if own and not isinstance(step, SampleTransform):
                raise UsageError(f"{step.name} must come before your own function, which works on what the others have made")

    def _check_image_field(self) -> None:
        if self.image_field is None:
            return
        if self.kind == "table" and self.image_field != NO_IMAGES:
            raise UsageError(
                f"--image-field {printable(self.image_field)} is for --kind image; as a table, all structs of bytes and path"
                " are images, and with --image-field none no field is"
            )
        if self.kind == "text" or (self.kind == "image" and self.image_field == NO_IMAGES):
            raise UsageError(f"--image-field {printable(self.image_field)} does not fit --kind {self.kind}; leave it out")


RECORDS = ("file", "line", "paragraph")

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
            raise UsageError(f"schema {part.strip()!r} is not of the form name:type with one of {', '.join(FIELD_TYPES)}")
        fields.append(pa.field(name.strip(), FIELD_TYPES[type_.strip()]))
    if not fields or len({f.name for f in fields}) < len(fields):
        raise UsageError(f"schema {text!r} must have at least one field, and each name once")
    return pa.schema(fields, {CHOSEN: b""})


def _file_of_schema(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"schema {printable(str(path))}: neither name:type,… nor a file that can be read ({reason})") from None


def _written_schema(text: str | None) -> str | None:
    """Return what a schema says, in one way: a file may change, and two ways to write the same are no two datasets."""
    return None if text is None else ",".join(f"{f.name}:{_NAMES_OF_TYPES[f.type]}" for f in parse_schema(text))


def _delimiter(value: Any) -> str | None:
    if value is None:
        return None
    text = {"tab": "\t", "\\t": "\t"}.get(str(value), str(value))
    if len(text) != 1 or not text.isascii() or text in '"\r\n' or text.isalnum():
        raise UsageError(f"delimiter must be one character, such as ; or |, or tab; it is {text!r}")
    return text


def _encoding(name: str) -> str:
    from shardctl.sources.formats.encodings import known_encoding

    return known_encoding(name)


def _name(settings: dict[str, Any], key: str) -> str | None:
    value = settings.get(key)
    return None if value is None else str(value)


def load_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe file: the settings as plain data, not yet checked. Raises UsageError."""
    shown = printable(str(path))
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return settings
    except FileNotFoundError:
        raise UsageError(f"{shown}: no such recipe file") from None
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{shown}: not a TOML file that can be read ({error})") from error


def recipe_toml(settings: dict[str, Any]) -> str:
    """Return the settings in the format of a recipe file."""
    lines = [
        f"{name} = {_toml(settings[name])}" for name in KEYS if name != "transform" and settings.get(name) not in (None, [])
    ]
    for step in settings.get("transform") or []:
        lines += ["", "[[transform]]", *(f"{name} = {_toml(value)}" for name, value in step.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return a string or a number as TOML writes it, which is as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def refuse_unnamed_functions(settings: dict[str, Any], named: Iterable[str], root: Path, who: str) -> None:
    """Raise UsageError if the recipe of a dataset has user functions that the caller did not name."""
    unnamed = [target for target in user_functions(settings) if target not in named]
    if unnamed:
        shown = " ".join(f"--transform {printable(target)}" for target in unnamed)
        raise UsageError(
            f"{printable(str(root))}: was made with user functions, and {who} runs no code only because the dataset names"
            f" it; check the code, and add {shown}"
        )


def user_functions(settings: dict[str, Any]) -> list[str]:
    """Return the names of the user functions in the recipe of a dataset, which is not trusted. None is imported."""
    steps = settings.get("transform")
    steps = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return [str(step.get("target")) for step in steps if str(step.get("name")) == "custom"]


def _transform(number: int, step: Any) -> Transform:
    try:
        return parse_step(step)
    except SettingError as error:
        raise error.within("transform", number) from None


def _store(kind: str, text: Any, transforms: tuple[Transform, ...]) -> Store | None:
    if kind not in KINDS:
        raise UsageError(f"kind {kind!r} is not known; there are {', '.join(KINDS)}")
    if kind != "image":
        if text is not None:
            raise UsageError(f"store {text} is for images, and these inputs are {kind}")
        return None
    if text is not None:
        return Store.parse(str(text))
    return Store.parse("jpeg:90" if transforms else "source")


def _compression(store: Store | None, text: str) -> Compression:
    if text != "auto":
        return Compression.parse(text)
    # Encoded images do not shrink further, and raw pixels shrink by a seventh (docs/performance.md): both are worth
    # more where they can be read in place. Text is a third to a quarter of its size under zstd.
    return Compression.parse("none" if store else "zstd:3")


def _whole(settings: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} must be a whole number from {low} to {high}; it is {value!r}")
    return value
