"""Which inputs count as the same: what a recipe says."""

from __future__ import annotations

from dataclasses import dataclass

from shardctl.errors import UsageError

DISTANCE, MOST_DISTANCE = 7, 16
"""How many of 64 bits may differ in the hashes of images that are alike: by default, and at most."""


@dataclass(frozen=True)
class DuplicateRule:
    """Which images count as the same: `keep` none, `exact` those of the same bytes, `similar` those that look alike, with
    `distance` bits of their hashes that differ at most.
    """

    mode: str = "keep"
    distance: int = 0

    @classmethod
    def parse(cls, text: str) -> DuplicateRule:
        """Read keep, exact, similar or similar:DISTANCE. Raises UsageError."""
        mode, mark, distance = text.partition(":")
        if mode in ("keep", "exact") and not mark:
            return cls(mode)
        if mode == "similar" and not mark:
            return cls(mode, DISTANCE)
        if mode == "similar" and distance.isascii() and distance.isdecimal() and int(distance) <= MOST_DISTANCE:
            return cls(mode, int(distance))
        raise UsageError(
            f"duplicates must be keep, exact, similar or similar:DISTANCE, with a distance of 0 to {MOST_DISTANCE} bits; it is"
            f" {text!r}"
        )

    def __str__(self) -> str:
        return f"{self.mode}:{self.distance}" if self.mode == "similar" else self.mode


KEEP_ALL = DuplicateRule()
