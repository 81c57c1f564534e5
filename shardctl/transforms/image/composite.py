"""Steps that are made of others: one of several, some of the time, or all in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardctl.images.geometry import Size
from shardctl.system.options import setting
from shardctl.transforms.base import EVERYTHING, ImageTransform, Rng, drawn
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import PROBABILITY, Checked, NumberList, SettingError, raise_any
from shardctl.transforms.table import STEPS


def _inside(value: Any) -> tuple[ImageTransform, ...]:
    """Return steps each of which changes the image and makes one sample of each."""
    steps = STEPS.read(value)
    if not steps:
        raise ValueError("must have at least one step")
    inside = [step for step in steps if isinstance(step, ImageTransform) and step.samples == 1]
    raise_any(
        [
            SettingError(f"{step.name} cannot be inside another step", number)
            for number, step in enumerate(steps)
            if step not in inside
        ]
    )
    return tuple(inside)


STEPS_INSIDE = Checked(_inside, {**STEPS.schema(), "minItems": 1}, STEPS.write)


class InOrder(ImageTransform, step="sequence"):
    """All steps, in order: for a place where one step is expected."""

    steps: tuple[ImageTransform, ...] = setting(STEPS_INSIDE, help="The steps.")

    @property
    def lazy(self) -> bool:
        """Whether no step needs pixels."""
        return all(step.lazy for step in self.steps)

    @property
    def in_place(self) -> bool:
        """Whether pixels stay in their places in all steps."""
        return all(step.in_place for step in self.steps)

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
        """Whether it is drawn, or a step is."""
        return super().random or any(step.random for step in self.steps)

    def chosen(self, rng: Rng) -> Sequence[ImageTransform]:
        """Return the steps that are done to this picture."""
        return self.steps

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Do the steps that are chosen."""
        for step in self.chosen(rng):
            step.apply(picture, rng)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size that comes out of the last step."""
        for step in self.steps:
            size = step.output_size(size)
        return size


class Maybe(InOrder, step="maybe"):
    """All steps together, in order, with a probability; else none of them."""

    p: float = setting(PROBABILITY, 0.5, "Probability of the steps.")

    def chosen(self, rng: Rng) -> Sequence[ImageTransform]:
        """Return all or none."""
        return self.steps if drawn(self.p, rng) else ()

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the output if the steps keep it, or are certain."""
        after = super().output_size(size)
        return after if after == size or self.p >= 1 else None


class Choice(InOrder, step="choice"):
    """One of the steps, drawn with equal probabilities or by `weights`."""

    weights: tuple[float, ...] | None = setting(
        NumberList(None, 0.0), None, "How often each is taken, by the others."
    )

    def __post_init__(self) -> None:
        if self.weights is not None and (
            len(self.weights) != len(self.steps) or not sum(self.weights) > 0
        ):
            raise SettingError(
                f"weights must have a number for each of the {len(self.steps)} steps", "weights"
            )

    draws = True

    def chosen(self, rng: Rng) -> Sequence[ImageTransform]:
        """Draw one."""
        edges = np.cumsum(self.weights or [1.0] * len(self.steps))
        return (self.steps[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))],)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the output if it is the same whichever is done."""
        sizes = {step.output_size(size) for step in self.steps}
        return sizes.pop() if len(sizes) == 1 else None
