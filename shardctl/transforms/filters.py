"""Steps that reject images: too small, too blurred, of too long ago. They look at the upright source image, as it is before
any step changes it, wherever in the recipe they stand."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from functools import cache
from typing import Any, ClassVar

from PIL import Image

from shardctl.codecs.image import Opened, upright
from shardctl.codecs.measures import SHARPNESS_SIDE, blur_score, taken_at, uniformity
from shardctl.errors import Rejection
from shardctl.transforms.base import Transform
from shardctl.transforms.settings import Kind, Number, Optional, SettingError, Whole, Word, setting

Decoded = Callable[[], Image.Image]
"""Gives the upright RGB picture, decoded when it is first asked for; a JPEG at a scale that is enough for what is measured."""

MOST_SIDE, MOST_AREA = 1 << 31, 1 << 40


class When(Kind[datetime]):
    """A day, 2020-12-31, or a time of a day, 2020-12-31T23:59:59. There is no time zone, since EXIF has none."""

    def read(self, value: Any) -> datetime:
        """Return the time; that of a day is its beginning."""
        try:
            when = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            when = None
        if isinstance(when, date) and not isinstance(when, datetime):
            when = datetime.combine(when, time())
        if not isinstance(when, datetime) or when.tzinfo is not None:
            raise ValueError("must be a day such as 2020-12-31, or a time such as 2020-12-31T23:59:59, without a time zone")
        return when

    def write(self, value: datetime) -> str:
        """Return it as text, without a time that is the beginning of a day."""
        return (value.date() if value.time() == time() else value).isoformat()

    def schema(self) -> dict[str, Any]:
        """Return the schema of such a text."""
        return {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+)?$"}


class Filter(Transform):
    """Rejects images that do not keep to a rule."""

    @abstractmethod
    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Raise Rejection (stage `filter`, the error is the filter's name) for an image that does not keep to the rule."""

    def _reject(self, why: str) -> Rejection:
        return Rejection("filter", self.name, why)

    def _check_limits(self, what: str, value: float, least: float | None, most: float | None) -> None:
        """Raise Rejection for a value below `least` or above `most`."""
        if least is not None and value < least:
            raise self._reject(f"{what} {_shown(value, least)} is under {least:.15g}")
        if most is not None and value > most:
            raise self._reject(f"{what} {_shown(value, most)} is over {most:.15g}")

    def _refuse_nothing(self) -> None:
        """Raise SettingError if no limit is given, or the largest is below the smallest."""
        limits = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]  # it is
        if all(limit is None for limit in limits.values()):
            raise SettingError(f"needs one of {', '.join(limits)}")
        for name, most in limits.items():
            least = limits["min" + name[3:]] if name.startswith("max") else None
            if least is not None and most is not None and least > most:
                raise SettingError(f"{name} {most:g} is under min{name[3:]} {least:g}", name)


def judge(filters: Sequence[Filter], opened: Opened) -> None:
    """Raise Rejection for the first filter whose rule an image does not keep to (stage `filter`), or if it does not decode.

    It is decoded only for filters that look at its pixels, once for all of them.
    """
    decoded = cache(lambda: upright(opened, (SHARPNESS_SIDE, SHARPNESS_SIDE)))
    for each in filters:
        each.judge(opened, decoded)


@dataclasses.dataclass(frozen=True)
class FilterSize(Filter):
    """Reject images whose width or height is not within limits, in pixels."""

    name: ClassVar[str] = "filter_size"
    min_width: int | None = setting(Optional(Whole(1, MOST_SIDE)), None, "Least width.")
    min_height: int | None = setting(Optional(Whole(1, MOST_SIDE)), None, "Least height.")
    max_width: int | None = setting(Optional(Whole(1, MOST_SIDE)), None, "Largest width.")
    max_height: int | None = setting(Optional(Whole(1, MOST_SIDE)), None, "Largest height.")

    def __post_init__(self) -> None:
        self._refuse_nothing()

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Look at the size."""
        width, height = opened.size
        self._check_limits("width", width, self.min_width, self.max_width)
        self._check_limits("height", height, self.min_height, self.max_height)


@dataclasses.dataclass(frozen=True)
class FilterAspect(Filter):
    """Reject images whose width divided by their height is not within limits."""

    name: ClassVar[str] = "filter_aspect"
    min: float | None = setting(Optional(Number(0, above=True)), None, "Least width / height.")
    max: float | None = setting(Optional(Number(0, above=True)), None, "Largest width / height.")

    def __post_init__(self) -> None:
        self._refuse_nothing()

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Look at the shape."""
        self._check_limits("width / height", opened.size[0] / opened.size[1], self.min, self.max)


@dataclasses.dataclass(frozen=True)
class FilterArea(Filter):
    """Reject images whose area, width x height, is not within limits, in pixels."""

    name: ClassVar[str] = "filter_area"
    min: int | None = setting(Optional(Whole(1, MOST_AREA)), None, "Least area.")
    max: int | None = setting(Optional(Whole(1, MOST_AREA)), None, "Largest area.")

    def __post_init__(self) -> None:
        self._refuse_nothing()

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Look at the size."""
        self._check_limits("area", opened.size[0] * opened.size[1], self.min, self.max)


@dataclasses.dataclass(frozen=True)
class FilterBlur(Filter):
    """Reject blurred images: the variance of the Laplacian of their grey values, at a short side of 256 pixels, is small."""

    name: ClassVar[str] = "filter_blur"
    min: float = setting(Number(0), 100.0, "Least sharpness.")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Measure the sharpness."""
        self._check_limits("sharpness", blur_score(decoded()), self.min, None)


@dataclasses.dataclass(frozen=True)
class FilterUniform(Filter):
    """Reject images of nearly one brightness: the standard deviation of their grey values, 0 to 127.5, is small."""

    name: ClassVar[str] = "filter_uniform"
    min: float = setting(Number(0, 127.5), 10.0, "Least standard deviation.")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Measure the contrast."""
        self._check_limits("standard deviation of grey", uniformity(decoded()), self.min, None)


@dataclasses.dataclass(frozen=True)
class FilterDate(Filter):
    """Reject images that were taken too early or too late, as their EXIF block says (DateTimeOriginal, else DateTime)."""

    name: ClassVar[str] = "filter_date"
    after: datetime | None = setting(Optional(When()), None, "First day, or time, that is kept.")
    before: datetime | None = setting(Optional(When()), None, "First day, or time, that is not kept any more.")
    undated: str = setting(Word(("keep", "reject")), "keep", "What becomes of images without a date.")

    def __post_init__(self) -> None:
        if self.after is None and self.before is None:
            raise SettingError("filter_date needs one of after, before")
        if self.after is not None and self.before is not None and self.after >= self.before:
            raise SettingError("filter_date: before must be later than after", "before")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Read the date."""
        taken = taken_at(opened)
        if taken is None:
            if self.undated == "reject":
                raise self._reject("its EXIF block has no date, or it has none")
        elif self.after is not None and taken < self.after:
            raise self._reject(f"taken {taken.isoformat()}, which is before {When().write(self.after)}")
        elif self.before is not None and taken >= self.before:
            raise self._reject(f"taken {taken.isoformat()}, which is not before {When().write(self.before)}")


def _shown(value: float, limit: float) -> str:
    """Return a number with 4 digits, or as many as show on which side of a limit it is."""
    if isinstance(value, int):
        return str(value)
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(text for text in texts if (float(text) < limit) == (value < limit) and (float(text) > limit) == (value > limit))
