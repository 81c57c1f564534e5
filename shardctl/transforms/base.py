"""The protocols of a step, and how the steps of images are grouped by what they touch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from PIL.Image import Image

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Numbers
from shardctl.format.roles import Role, Sample
from shardctl.images.codecs.image import Opened, upright
from shardctl.images.codecs.measures import SHARPNESS_SIDE
from shardctl.images.geometry import Look, Size
from shardctl.system.options import declared_in
from shardctl.transforms.picture import Picture
from shardctl.transforms.recipe_options import RECIPE_OPTIONS
from shardctl.transforms.settings import SettingError, Settings, shown_beside


@dataclass(frozen=True)
class Records:
    """Some records of one file.

    `batch` has the column `key` and the fields of the records. `file` is the number of their file
    in files.arrow; `numbers` (n,) int64 are those of the records in it, counted from 1, and 0 for a
    file that is one record. Together they name a record in the same way before there is a plan, and
    in every shard.
    """

    file: int
    numbers: Numbers
    batch: pa.RecordBatch

    def kept(self, rows: Bools) -> Records:
        """Return those of the records whose row is True in `rows`, (n,)."""
        if rows.all():
            return self
        return replace(self, numbers=self.numbers[rows], batch=self.batch.filter(pa.array(rows)))

    def without(self, faults: Iterable[Fault], reject: RejectRow) -> Records:
        """Return those of the records that have no fault; `reject` is told of the others."""
        kept = np.ones(len(self.numbers), bool)
        for row, why in faults:
            kept[row] = False
            reject(row, why)
        return self.kept(kept)

    def with_column(self, name: str, values: pa.Array) -> Records:
        """Return the records with a column in the place of the one of this name, or after the
        others."""
        return replace(self, batch=with_column(self.batch, name, values))


def with_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    """Return a batch with a column in the place of the one of this name, or after the others."""
    place = batch.schema.get_field_index(name)
    field = pa.field(name, values.type)
    if place < 0:
        return batch.append_column(field, values)
    return batch.set_column(place, field, values)


def type_of(schema: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a column, that of nulls where there is none of this name."""
    place = schema.get_field_index(name)
    return pa.null() if place < 0 else schema.field(place).type


class HeldMemoryError(MemoryError):
    """Memory ran out for work on many records that a step has held: none of them alone is to
    blame."""


Fault = tuple[int, Rejection]
"""The row of a record that is rejected, among those that a step was given, and why: at the stage
"filter" for a rule about it, "transform" where a step cannot be done."""

RejectRow = Callable[[int, Rejection], None]
"""Takes a fault."""


Counts = dict[str, Any]
"""What a step counts in a shard, by name: numbers that can be added up over shards."""


class BatchRun:
    """A batch transform at work in one shard: `work` makes records of records, and adds to what is
    `counted`. One that holds records back, and gives them with others, has its own methods."""

    def __init__(
        self, work: Callable[[Records, RejectRow, Counts], Iterable[Records]], *counted: str
    ) -> None:
        self._work, self._counts = work, dict.fromkeys(counted, 0)

    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return what is made of some records, in order. `reject` takes those of them that become
        nothing."""
        return self._work(records, reject, self._counts)

    def finish(self) -> Iterable[Records]:
        """Return what is made of the records that are still held, at the end of the shard."""
        return ()

    def counts(self) -> Counts:
        """Return what it has counted in its shard."""
        return self._counts


# as text: np.random takes 5 ms to import, and few recipes draw
Rng: TypeAlias = "np.random.Generator"
"""The generator of a sample. Steps that are not random do not look at it: they may get None, as
making one takes 20 microseconds."""

Range = tuple[float, float]
"""The lowest and the highest value of what is drawn evenly."""

EVERYTHING = frozenset(("boxes", "polygons", "keypoints", "masks"))
"""The annotations that a step may move."""


class Transform(Settings, ABC):
    """A step of a recipe: a frozen dataclass whose fields are the step's settings (settings.py)."""

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """Say that there is no such setting. In TOML, a key below a step is the step's."""
        if key in RECIPE_OPTIONS:
            return (
                f"{cls.what} {key!r} is one of the recipe; write it above the first [[transform]]"
            )
        return super().unknown_key(key)

    compares_texts: ClassVar[bool] = False
    """Whether it needs to know which texts are duplicates of others."""

    @property
    def random(self) -> bool:
        """Whether it draws from the generator that it is handed."""
        return False

    @property
    def samples(self) -> int:
        """How many samples it makes of one: the picture's `part` says which one is meant."""
        return 1

    def loaded(self, folder: Path | None = None) -> Transform:
        """Return the step that does the work, with what it needs imported or read: as a rule this
        one.

        `folder` has the `files` of a step that was loaded before: that of a dataset, or of a job.
        Raises UsageError if it cannot be used, InputError if a file cannot be read.
        """
        self.prepare()
        return self

    def prepare(self) -> None:
        """Find what the work needs, such as a package. Raises UsageError, InstallError."""

    @property
    def files(self) -> dict[str, bytes]:
        """The files that its work depends on, by name: they become part of the dataset, and
        `loaded` finds them there."""
        return {}

    @property
    def table(self) -> str:
        """The name of the table with what was found out about all records before the work was
        divided: it is in the job's folder, and becomes part of the dataset. "" if the step needs
        none."""
        return ""

    def versions(self) -> tuple[str, ...]:
        """Return the packages that decide what it makes, with their versions: "tokenizers
        0.23.3"."""
        return ()

    def notices(self, before: Sequence[Transform]) -> tuple[str, ...]:
        """Return what a person should know before it works, after the steps `before`: sentences
        without a full stop."""
        return ()

    def code_digest(self) -> str | None:
        """Return a digest of the code that does the work where it is not shardctl's own, else
        None."""
        return None


class ImageTransform(Transform):
    """Changes the image of a sample."""

    draws: ClassVar[bool] = False
    """Whether it draws more than whether it is done, which it is with the probability `p`."""

    @property
    def random(self) -> bool:
        """Whether it draws from the generator that it is handed."""
        p = getattr(self, "p", 1)
        return bool(p > 0 if self.draws else 0 < p < 1)

    @property
    def lazy(self) -> bool:
        """Whether it only changes where pixels come from, and needs none: the image need not be
        decoded yet."""
        return False

    @property
    def in_place(self) -> bool:
        """Whether every pixel stays in its place."""
        return False

    @property
    def moves(self) -> frozenset[str]:
        """The annotations that stay right beside an image that the step has changed."""
        return EVERYTHING

    @property
    def mirrors(self) -> bool:
        """Whether left and right may change places."""
        return False

    @abstractmethod
    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change the picture. `rng` is None if the step is not random."""

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the output where it does not depend on the image, given that of the
        step before."""
        return size


class ViewTransform(ImageTransform):
    """Chooses which part of an image is kept, and at what size."""

    lazy = True

    @abstractmethod
    def view(self, look: Look, rng: Rng) -> Look:
        """Return what is seen after the step, given what is seen before it."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change what is seen."""
        picture.look = self.view(picture.look, rng)


class PixelTransform(ImageTransform):
    """Changes the values of pixels, and neither their places nor their number."""

    in_place = True

    @abstractmethod
    def pixels(self, image: Image, rng: Rng) -> Image:
        """Return the changed RGB image, of the same size."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change the pixels."""
        picture.image = self.pixels(picture.image, rng)


class SampleTransform(Transform):
    """Makes samples of a sample, its image decoded to (height, width, 3) uint8."""

    random = True
    """A person's function may."""

    @property
    def draws(self) -> bool:
        """Whether `apply` needs a generator: making one takes 20 microseconds."""
        return True

    @cached_property
    def known_names(self) -> set[str]:
        """Names of fields that were checked already."""
        return set()

    @abstractmethod
    def apply(self, sample: Sample, rng: Rng) -> Sequence[Sample]:
        """Return none, one or many samples. `rng` is None if it draws nothing. Raises Rejection,
        which costs the record."""


class GroupTransform(SampleTransform):
    """Makes samples of several samples at a time, up to `batch`: a model. It draws no random
    numbers."""

    batch: int

    random = draws = False

    @abstractmethod
    def begin(self) -> None:
        """Make ready what does the work, once in each process. Raises UsageError."""

    @abstractmethod
    def apply_together(self, samples: list[Sample]) -> list[Sequence[Sample] | Rejection]:
        """Return for each sample none, one or many samples, or why it is rejected.

        Raises Rejection where the call failed, whichever of the samples is the reason.
        """

    def apply(self, sample: Sample, rng: Rng) -> Sequence[Sample]:
        """Return none, one or many samples, made of one alone. Raises Rejection."""
        (made,) = self.apply_together([sample])
        if isinstance(made, Rejection):
            raise made
        return made


class BatchTransform(Transform):
    """Makes records of records, a batch of them at a time, with no Python object per record: for
    text and tables."""

    @property
    def list_field(self) -> str:
        """The name of the field that a record is which is a list of JSON and no object; "" if there
        is none."""
        return ""

    def json_fields(self, names: Collection[str]) -> Collection[str]:
        """Return which of the fields of records it takes as the JSON that each record has, whatever
        others have."""
        return ()

    @property
    def joins(self) -> bool:
        """Whether a row that it makes may be of several records: then their labels, and columns of
        files, have no place."""
        return False

    @property
    def splits(self) -> bool:
        """Whether it may make several records of one: then the column `variant`, which it adds, has
        their numbers."""
        return False

    @property
    def is_last(self) -> bool:
        """Whether no step may come after it."""
        return self.joins or self.splits

    @abstractmethod
    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns that it makes of records with these, without `key` and `variant`.

        Raises InputError if it cannot.
        """

    def roles(self, given: Mapping[str, Role]) -> Mapping[str, Role]:
        """Return the roles of the columns that it makes of columns with these roles."""
        return given

    counted: ClassVar[tuple[str, ...]] = ()
    """The names of what it counts."""

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what does the work in one shard.

        `folder` is that of the job, with what was found beforehand; `roles` are those of the
        columns of the dataset.
        """
        return BatchRun(self.made, *self.counted)

    def made(self, records: Records, reject: RejectRow, counts: Counts) -> Iterable[Records]:
        """Return what it makes of some records, where it holds none back."""
        raise NotImplementedError


def drawn(p: float, rng: Rng) -> bool:
    """Return whether something with the probability `p` happens. What is certain takes no random
    number."""
    if p <= 0 or p >= 1:
        return p >= 1
    return bool(rng.random() < p)


def between(span: Range, rng: Rng) -> float:
    """Return a number drawn evenly from a span. A span of one number takes no random number."""
    low, high = span
    if low == high:
        return low
    return low + (high - low) * float(rng.random())


def whole(rng: Rng, low: int, high: int) -> int:
    """Draw a whole number from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def settings_of(step: Transform) -> dict[str, Any]:
    """Return a step as a recipe has it."""
    return {"name": step.name, **step.settings()}


Decoded = Callable[[], Image]
"""Gives the upright RGB picture, decoded when it is first asked for; a JPEG at a scale that is
enough for what is measured."""


class Limited(Settings):
    """Has limits, min… and max…, which are settings of a number or None."""

    def __post_init__(self) -> None:
        """Raise SettingError if it has none of its limits, or one is below the other."""
        names = [name for name in declared_in(type(self)) if name[:3] in ("min", "max")]
        limits = {name: getattr(self, name) for name in names}
        if all(limit is None for limit in limits.values()):
            raise SettingError(f"needs at least one of {', '.join(names)}")
        for name, most in limits.items():
            low = f"min{name[3:]}"
            least = limits.get(low)
            if least is not None and most is not None and least > most:
                raise SettingError(f"{name} {most:g} is under {low} {least:g}", name)


class Filter(Limited, Transform):
    """Rejects images that do not keep to a rule."""

    @abstractmethod
    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Raise Rejection (stage `filter`, the error is the filter's name) for an image that does
        not keep to the rule."""

    def _reject(self, why: str) -> Rejection:
        return Rejection("filter", self.name, why)

    def _check_limits(
        self, what: str, value: float, least: float | None, most: float | None
    ) -> None:
        """Raise Rejection for a value below `least` or above `most`."""
        if least is not None and value < least:
            raise self._reject(f"{what} {shown_beside(value, least)} is under {least:.15g}")
        if most is not None and value > most:
            raise self._reject(f"{what} {shown_beside(value, most)} is over {most:.15g}")


def judge(filters: Sequence[Filter], opened: Opened) -> None:
    """Raise Rejection for the first filter whose rule an image does not keep to (stage `filter`),
    or if it does not decode.

    It is decoded only for filters that look at its pixels, once for all of them.
    """
    decoded = cache(lambda: upright(opened, (SHARPNESS_SIDE, SHARPNESS_SIDE)))
    for each in filters:
        each.judge(opened, decoded)
