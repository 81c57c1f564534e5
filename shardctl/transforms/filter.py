"""What all filters have in common: steps that reject images, and change none."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache

from PIL import Image

from shardctl.errors import Rejection
from shardctl.images.codecs.image import Opened, upright
from shardctl.images.codecs.measures import SHARPNESS_SIDE
from shardctl.transforms.base import Transform
from shardctl.transforms.limits import shown_beside
from shardctl.transforms.settings import SettingError

Decoded = Callable[[], Image.Image]
"""Gives the upright RGB picture, decoded when it is first asked for; a JPEG at a scale that is
enough for what is measured."""


class Filter(Transform):
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

    def _refuse_nothing(self) -> None:
        """Raise SettingError if no limit is given, or the largest is below the smallest."""
        limits = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]  # it is
        if all(limit is None for limit in limits.values()):
            raise SettingError(f"needs at least one of {', '.join(limits)}")
        for name, most in limits.items():
            least = limits["min" + name[3:]] if name.startswith("max") else None
            if least is not None and most is not None and least > most:
                raise SettingError(f"{name} {most:g} is under min{name[3:]} {least:g}", name)


def judge(filters: Sequence[Filter], opened: Opened) -> None:
    """Raise Rejection for the first filter whose rule an image does not keep to (stage `filter`),
    or if it does not decode.

    It is decoded only for filters that look at its pixels, once for all of them.
    """
    decoded = cache(lambda: upright(opened, (SHARPNESS_SIDE, SHARPNESS_SIDE)))
    for each in filters:
        each.judge(opened, decoded)
