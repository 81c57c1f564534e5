"""The protocols of a step, and how the steps of images are grouped by what they touch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from PIL import Image

from shardctl.errors import Rejection
from shardctl.format.roles import Role, Sample
from shardctl.images.geometry import Look, Size
from shardctl.transforms.picture import Picture
from shardctl.transforms.records import BatchRun
from shardctl.transforms.settings import Settings

# as text: np.random takes 5 ms to import, and few recipes draw
Rng: TypeAlias = "np.random.Generator | None"
"""The generator of a sample; None for steps that are not random, as making one takes 20
microseconds."""

EVERYTHING = frozenset(("boxes", "polygons", "keypoints", "masks"))
"""The annotations that a step may move."""


class Transform(Settings, ABC):
    """A step of a recipe: a frozen dataclass whose fields are the step's settings (settings.py)."""

    @property
    def random(self) -> bool:
        """Whether it draws from the generator that it is handed."""
        return False

    def loaded(self, folder: Path | None = None) -> Transform:
        """Return the step that does the work, with what it needs imported or read: as a rule this
        one.

        `folder` has the `files` of a step that was loaded before: that of a dataset, or of a job.
        Raises UsageError if it cannot be used, InputError if a file cannot be read.
        """
        return self

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

    def notices(self) -> tuple[str, ...]:
        """Return what a person should know before it works: sentences without a full stop."""
        return ()

    def code_digest(self) -> str | None:
        """Return a digest of the code that does the work where it is not shardctl's own, else
        None."""
        return None


class ImageTransform(Transform):
    """Changes the image of a sample."""

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

    @property
    def samples(self) -> int:
        """How many samples it makes of one: the picture's `part` says which one is meant."""
        return 1

    @abstractmethod
    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change the picture. `rng` is None if the step is not random."""

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the output where it does not depend on the image, given that of the
        step before."""
        return size


class ViewTransform(ImageTransform):
    """Chooses which part of an image is kept, and at what size."""

    @property
    def lazy(self) -> bool:
        """It needs no pixels."""
        return True

    @abstractmethod
    def view(self, look: Look, rng: Rng) -> Look:
        """Return what is seen after the step, given what is seen before it."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change what is seen."""
        picture.look = self.view(picture.look, rng)


class PixelTransform(ImageTransform):
    """Changes the values of pixels, and neither their places nor their number."""

    @property
    def in_place(self) -> bool:
        """They stay."""
        return True

    @abstractmethod
    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Return the changed RGB image, of the same size."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change the pixels."""
        picture.image = self.pixels(picture.image, rng)


class SampleTransform(Transform):
    """Makes samples of a sample, its image decoded to (height, width, 3) uint8."""

    @property
    def random(self) -> bool:
        """Whether it draws random numbers; a person's function may."""
        return True

    @property
    def draws(self) -> bool:
        """Whether `apply` needs a generator: making one takes 20 microseconds."""
        return True

    @abstractmethod
    def apply(self, sample: Sample, rng: Rng) -> Sequence[Sample]:
        """Return none, one or many samples. `rng` is None if it draws nothing. Raises Rejection,
        which costs the record."""


class GroupTransform(SampleTransform):
    """Makes samples of several samples at a time, up to `batch`: a model. It draws no random
    numbers."""

    batch: int

    @property
    def random(self) -> bool:
        """It draws nothing."""
        return False

    @property
    def draws(self) -> bool:
        """It needs no generator."""
        return False

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

    @abstractmethod
    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what does the work in one shard.

        `folder` is that of the job, with what was found beforehand; `roles` are those of the
        columns of the dataset.
        """


def drawn(p: float, rng: Rng) -> bool:
    """Return whether something with the probability `p` happens. What is certain takes no random
    number."""
    if p <= 0 or p >= 1:
        return p >= 1
    assert rng is not None, "a random step is handed a generator"
    return bool(rng.random() < p)


def between(span: tuple[float, float], rng: Rng) -> float:
    """Return a number drawn evenly from a span. A span of one number takes no random number."""
    low, high = span
    if low == high:
        return low
    assert rng is not None, "a random step is handed a generator"
    return low + (high - low) * float(rng.random())


def settings_of(step: Transform) -> dict[str, Any]:
    """Return a step as a recipe has it."""
    return {"name": step.name, **step.settings()}
