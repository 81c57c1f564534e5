"""The step that divides Chinese text into words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.errors import InstallError
from shardctl.system.packages import to_install
from shardctl.transforms.settings import Flag, SettingError, Text, Word, setting
from shardctl.transforms.text.base import TextTransform
from shardctl.transforms.text.packages import version_of

LANGUAGES = ("zh",)
HAN = r"\p{Han}"
NOT_BLANK = r"[^\s\x0b\x1c-\x1f\x{85}\p{Z}]"
PRIVATE = range(0xF0000, 0xFFFFE)
"""Code points for private use: one that is not in the texts marks the ends of words while they are
looked at."""


@dataclass(frozen=True)
class Segment(TextTransform):
    """Puts a space between the words of Chinese texts, as jieba finds them.

    Only where a Chinese character is on at least one side, and white space on none: other languages
    stay what they are, and no character is lost. With a separator that is not in a text, taking it
    out gives the text back.
    """

    name: ClassVar[str] = "segment"
    language: str = setting(Word(LANGUAGES), "zh", "The language.")
    new_words: bool = setting(
        Flag(), True, "Find words that are not in the dictionary too (a hidden Markov model)."
    )
    separator: str = setting(Text(), " ", "What is put between words.")

    def __post_init__(self) -> None:
        if not self.separator:
            raise SettingError("separator must not be empty", "separator")

    def loaded(self, folder: Path | None = None) -> Segment:
        """Return this step, having found the package. Raises InstallError."""
        _rjieba()
        return self

    def versions(self) -> tuple[str, ...]:
        """Return that of the package, which has the dictionary."""
        return (version_of("rjieba"),)

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts with spaces between words."""
        import pyarrow.compute as pc

        chinese = pc.match_substring_regex(texts, HAN)
        if not chinese.true_count:
            return texts
        given = texts.filter(chinese)
        cut, mark = _rjieba().cut, _unused_character(given)
        divided = pa.array(
            [mark.join(cut(text, self.new_words)) for text in given.to_pylist()], pa.string()
        )
        # A mark stays at first where no white space is beside it, then where a Chinese character
        # is.
        separator = self.separator.replace("\\", r"\\")
        for pattern in (rf"({HAN}){mark}({NOT_BLANK})", rf"({NOT_BLANK}){mark}({HAN})"):
            divided = pc.replace_substring_regex(divided, pattern, rf"\1{separator}\2")
            # a word of one character has two marks
            divided = pc.replace_substring_regex(divided, pattern, rf"\1{separator}\2")
        divided = pc.replace_substring(divided, mark, "")
        return (
            divided
            if chinese.true_count == len(texts)
            else pc.replace_with_mask(texts, chinese, divided)
        )


def _unused_character(texts: pa.Array) -> str:
    import pyarrow.compute as pc

    return next(
        chr(point) for point in PRIVATE if not pc.match_substring(texts, chr(point)).true_count
    )


def _rjieba() -> Any:
    try:
        import rjieba
    except ImportError:
        raise InstallError(
            f"the step segment needs rjieba: pip install {to_install('chinese')}"
        ) from None
    return rjieba
