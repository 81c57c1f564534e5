"""A part of a conversion, of several that machines build on their own."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardctl.errors import UsageError

MOST_PARTS = 1_000_000


@dataclass(frozen=True)
class Part:
    """Part `number` of `parts` of a conversion, counted from 0. `typed` is how the user wrote it,
    "" where nobody did."""

    number: int
    parts: int
    typed: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read I/N, where I counts from 1 to N, or from 0 to N-1: part 0 is part N. Raises
        UsageError."""
        number, slash, parts = str(text).partition("/")
        if not (
            slash
            and number.isascii()
            and number.isdecimal()
            and parts.isascii()
            and parts.isdecimal()
        ):
            raise UsageError(f"a part is I/N, for instance 2/8; it is {text!r}")
        if not 1 <= int(parts) <= MOST_PARTS or int(number) > int(parts):
            raise UsageError(
                f"there is no part {text}: N is 1 to {MOST_PARTS:,}, and I from 1 to N or from 0 "
                "to N-1"
            )
        return cls((int(number) - 1) % int(parts), int(parts), f"{int(number)}/{int(parts)}")

    @property
    def name(self) -> str:
        """I/N, where I counts from 1: the same name for the same part, however it was written."""
        return f"{self.number + 1}/{self.parts}"

    def __str__(self) -> str:
        return self.typed or self.name
