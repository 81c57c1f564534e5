"""Which inputs count as the same: what a recipe says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from shardctl.errors import UsageError

DISTANCE, MOST_DISTANCE = 7, 16
"""How many of 64 bits may differ in the hashes of images that are alike: by default, and at
most."""

SIMILARITY, LEAST_SIMILARITY = 0.8, 0.3
"""Which share of the word sequences of two texts is the same where they are nearly alike: by
default, and at least."""


OF_IMAGES = ("similar",)
OF_TEXTS = ("near", "line", "paragraph")
"""The rules that are for images, or for texts, alone."""


@dataclass(frozen=True)
class DuplicateRule:
    """Which images or texts count as the same: `keep` none, `exact` those of the same bytes or the
    same text.

    Of images, `similar` are those that look alike, with `distance` bits of their hashes that differ
    at most. Of texts, `near` are those that have nearly the same words, with a similarity of
    `threshold` or more; `line` and `paragraph` compare lines and paragraphs.
    """

    mode: str = "keep"
    distance: int = 0
    threshold: float = 0.0

    @classmethod
    def parse(cls, text: str) -> DuplicateRule:
        """Read keep, exact, similar, similar:BITS, near, near:SHARE, line or paragraph. Raises
        UsageError."""
        mode, mark, number = text.partition(":")
        if mode in ("keep", "exact", "line", "paragraph") and not mark:
            return cls(mode)
        with suppress(ValueError):
            if mode == "similar":
                distance = int(number) if mark else DISTANCE
                if 0 <= distance <= MOST_DISTANCE:
                    return cls(mode, distance)
            if mode == "near":
                threshold = float(number) if mark else SIMILARITY
                if LEAST_SIMILARITY <= threshold <= 1:
                    return cls(mode, threshold=threshold)
        raise UsageError(
            f"duplicates must be keep, exact, similar, similar:BITS (0 to {MOST_DISTANCE}), "
            f"near, near:SHARE ({LEAST_SIMILARITY} to 1), line or paragraph; it is {text!r}"
        )

    def __str__(self) -> str:
        if self.mode == "near":
            return f"near:{self.threshold:g}"
        return f"{self.mode}:{self.distance}" if self.mode == "similar" else self.mode


KEEP_ALL = DuplicateRule()
