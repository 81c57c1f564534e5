"""Steps that are made of others: one of several, some of the time, or all in order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shardctl.geometry import Size
from shardctl.transforms.base import EVERYTHING, ImageTransform, Rng, Transform, drawn, settings_of
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import PROBABILITY, Kind, Numbers, Optional, SettingError, setting
from shardctl.transforms.table import parse_step, schema_of_steps


class Steps(Kind[tuple[ImageTransform, ...]]):
    """A list of steps of images, each with its `name` and its settings."""

    def read(self, value: Any) -> tuple[ImageTransform, ...]:
        """Return the steps."""
        if not isinstance(value, list | tuple) or not value:
            raise ValueError('must be a list of steps, as in [{name = "hflip"}, {name = "vflip"}]')
        steps = []
        for number, given in enumerate(value):
            try:
                step = parse_step(given)
            except SettingError as error:
                raise error.within(number) from None
            if not isinstance(step, ImageTransform):
                raise SettingError(f"{step.name} cannot be inside another step", number)
            if step.samples > 1:
                raise SettingError(f"{step.name} makes several samples, and cannot be inside another step", number)
            steps.append(step)
        return tuple(steps)

    def write(self, value: tuple[Transform, ...]) -> list[dict[str, Any]]:
        """Return the steps as a recipe has them."""
        return [settings_of(step) for step in value]

    def schema(self) -> dict[str, Any]:
        """Return the schema of a list of steps."""
        return {"type": "array", "items": schema_of_steps(), "minItems": 1}


@dataclass(frozen=True)
class Composite(ImageTransform):
    """A step that does some of its `steps`."""

    steps: tuple[ImageTransform, ...] = setting(Steps(), doc="The steps.")

    @property
    def lazy(self) -> bool:
        """Whether no step needs pixels."""
        return all(step.lazy for step in self.steps)

    @property
    def moves(self) -> frozenset[str]:
        """What all of the steps can move."""
        return EVERYTHING.intersection(*(step.moves for step in self.steps))

    @property
    def mirrors(self) -> bool:
        """Whether any step does."""
        return any(step.mirrors for step in self.steps)

    @property
    def random(self) -> bool:
        """Whether any step does."""
        return any(step.random for step in self.steps)

    @abstractmethod
    def chosen(self, rng: Rng) -> Sequence[ImageTransform]:
        """Return the steps that are done to this picture."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Do the steps that are chosen."""
        for step in self.chosen(rng):
            step.apply(picture, rng)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the output if it is the same whatever is chosen."""
        sizes = {step.output_size(size) for step in self.steps}
        return sizes.pop() if len(sizes) == 1 else None


@dataclass(frozen=True)
class InOrder(Composite):
    """All steps, in order: for a place where one step is expected."""

    name: ClassVar[str] = "sequence"

    def chosen(self, rng: Rng) -> Sequence[ImageTransform]:
        """Return all."""
        return self.steps

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size that comes out of the last step."""
        for step in self.steps:
            size = step.output_size(size)
        return size


@dataclass(frozen=True)
class Maybe(Composite):
    """All steps together, in order, with a probability; else none of them."""

    name: ClassVar[str] = "maybe"
    p: float = setting(PROBABILITY, 0.5, "Probability of the steps.")

    @property
    def random(self) -> bool:
        """Whether it is drawn, or a step is."""
        return 0 < self.p < 1 or super().random

    def chosen(self, rng: Rng) -> Sequence[ImageTransform]:
        """Return all or none."""
        return self.steps if drawn(self.p, rng) else ()

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the output if the steps keep it, or are certain."""
        after = size
        for step in self.steps:
            after = step.output_size(after)
        return after if after == size or self.p >= 1 else None


@dataclass(frozen=True)
class Choice(Composite):
    """One of the steps, drawn with equal probabilities or by `weights`."""

    name: ClassVar[str] = "choice"
    weights: tuple[float, ...] | None = setting(Optional(Numbers(None, 0.0)), None, "How often each is taken, by the others.")

    def __post_init__(self) -> None:
        if self.weights is not None and (len(self.weights) != len(self.steps) or not sum(self.weights) > 0):
            raise SettingError(f"choice: weights must have a number for each of the {len(self.steps)} steps", "weights")

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    def chosen(self, rng: Rng) -> Sequence[ImageTransform]:
        """Draw one."""
        assert rng is not None, "a random step is handed a generator"
        edges = np.cumsum(self.weights or [1.0] * len(self.steps))
        return (self.steps[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))],)
