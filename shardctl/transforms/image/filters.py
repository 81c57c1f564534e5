"""Steps that reject images: too small, too blurred, of too long ago. They look at the upright
source image, as it is before any step changes it, wherever in the recipe they stand."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any

from shardctl.images.codecs.image import Opened
from shardctl.images.codecs.measures import blur_score, taken_at, uniformity
from shardctl.system.options import Number, Whole, Word, setting
from shardctl.transforms.base import Decoded, Filter
from shardctl.transforms.settings import Checked, SettingError

_SIDE, _AREA = Whole(1, 1 << 31), Whole(1, 1 << 40)


def _time(value: Any) -> datetime:
    """Return a time; that of a day is its beginning."""
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        when = None
    if isinstance(when, date) and not isinstance(when, datetime):
        when = datetime.combine(when, time())
    if not isinstance(when, datetime) or when.tzinfo is not None:
        raise ValueError(
            "must be a day such as 2020-12-31, or a time such as 2020-12-31T23:59:59, without "
            "a time zone"
        )
    return when


def _written(when: datetime) -> str:
    """Return a time as text, without one that is the beginning of a day."""
    return (when.date() if when.time() == time() else when).isoformat()


WHEN = Checked(
    _time,
    {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+)?$"},
    _written,
)
"""A day, 2020-12-31, or a time of a day, 2020-12-31T23:59:59. There is no time zone, since EXIF has
none."""


class FilterSize(Filter, step="filter_size"):
    """Reject images whose width or height is not within limits, in pixels."""

    min_width: int | None = setting(_SIDE, None, "Least width.")
    min_height: int | None = setting(_SIDE, None, "Least height.")
    max_width: int | None = setting(_SIDE, None, "Largest width.")
    max_height: int | None = setting(_SIDE, None, "Largest height.")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Look at the size."""
        width, height = opened.size
        self._check_limits("width", width, self.min_width, self.max_width)
        self._check_limits("height", height, self.min_height, self.max_height)


class FilterAspect(Filter, step="filter_aspect"):
    """Reject images whose width divided by their height is not within limits."""

    min: float | None = setting(Number(0, above=True), None, "Least width / height.")
    max: float | None = setting(Number(0, above=True), None, "Largest width / height.")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Look at the shape."""
        self._check_limits("width / height", opened.size[0] / opened.size[1], self.min, self.max)


class FilterArea(Filter, step="filter_area"):
    """Reject images whose area, width x height, is not within limits, in pixels."""

    min: int | None = setting(_AREA, None, "Least area.")
    max: int | None = setting(_AREA, None, "Largest area.")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Look at the size."""
        self._check_limits("area", opened.size[0] * opened.size[1], self.min, self.max)


class FilterBlur(Filter, step="filter_blur"):
    """Reject blurred images: the variance of the Laplacian of their grey values, at a short side of
    256 pixels, is small."""

    min: float = setting(Number(0), 100.0, "Least sharpness.")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Measure the sharpness."""
        self._check_limits("sharpness", blur_score(decoded()), self.min, None)


class FilterUniform(Filter, step="filter_uniform"):
    """Reject images of nearly one brightness: the standard deviation of their grey values, 0 to
    127.5, is small."""

    min: float = setting(Number(0, 127.5), 10.0, "Least standard deviation.")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Measure the contrast."""
        self._check_limits("standard deviation of grey", uniformity(decoded()), self.min, None)


class FilterDate(Filter, step="filter_date"):
    """Reject images that were taken too early or too late, as their EXIF block says
    (DateTimeOriginal, else DateTime)."""

    after: datetime | None = setting(WHEN, None, "First day, or time, that is kept.")
    before: datetime | None = setting(WHEN, None, "First day, or time, that is not kept any more.")
    undated: str = setting(Word("keep", "reject"), "keep", "What becomes of images without a date.")

    def __post_init__(self) -> None:
        if self.after is None and self.before is None:
            raise SettingError("needs after or before, or both")
        if self.after is not None and self.before is not None and self.after >= self.before:
            raise SettingError("before must be later than after", "before")

    def judge(self, opened: Opened, decoded: Decoded) -> None:
        """Read the date."""
        taken = taken_at(opened)
        if taken is None:
            if self.undated == "reject":
                raise self._reject("its EXIF block has no date, or it has none")
        elif self.after is not None and taken < self.after:
            raise self._reject(f"taken {taken.isoformat()}, which is before {_written(self.after)}")
        elif self.before is not None and taken >= self.before:
            raise self._reject(
                f"taken {taken.isoformat()}, which is not before {_written(self.before)}"
            )
