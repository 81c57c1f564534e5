"""Steps that change characters of text: their Unicode form, their case, and those that no one sees.

They follow the tables of Unicode that Python has, so that what they make depends on its version.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.format.arrays import bytes_of
from shardctl.transforms.settings import Flag, Word, setting
from shardctl.transforms.text.base import TextTransform
from shardctl.transforms.text.characters import is_ascii
from shardctl.transforms.text.packages import unidata

FORMS = ("NFC", "NFKC", "NFD", "NFKD")

CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x{80}-\x{9f}"
"""All of category Cc but tab and newline, and but the carriage return, which becomes a newline."""

FORMATS = r"\p{Cf}"


@dataclass(frozen=True)
class Normalize(TextTransform):
    """Brings texts into a Unicode normalization form (UAX #15)."""

    name: ClassVar[str] = "normalize"
    unicode: str = setting(
        Word(FORMS),
        "NFC",
        "NFC: composed. NFD: decomposed. NFKC, NFKD: and without compatibility characters, as ﬁ or "
        "full width.",
    )

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """Say that there is no such setting. In other libraries the step of this name is for
        images."""
        if key in ("mean", "std"):
            return (
                f"setting {key!r} is not known: this step is for texts; the loader normalizes "
                "images (normalize=…)"
            )
        return super().unknown_key(key)

    def versions(self) -> tuple[str, ...]:
        """Return that of Python's tables of Unicode."""
        return (unidata(),)

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts in the form."""
        data = bytes_of(texts).data
        if is_ascii(data):
            return texts
        # A part of a text in a form is in the form too; Python's check of all at once takes a tenth
        # of the time of the work.
        form: Any = self.unicode
        if unicodedata.is_normalized(form, data.tobytes().decode()):
            return texts
        return pa.array(
            [unicodedata.normalize(form, text) for text in texts.to_pylist()], pa.string()
        )


@dataclass(frozen=True)
class LowerCase(TextTransform):
    """Makes all letters lower case, as `str.lower` does."""

    name: ClassVar[str] = "lower_case"

    def versions(self) -> tuple[str, ...]:
        """Return that of Python's tables of Unicode."""
        return (unidata(),)

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts in lower case."""
        import pyarrow.compute as pc

        if is_ascii(bytes_of(texts).data):
            return pc.ascii_lower(texts)
        return pa.array([text.lower() for text in texts.to_pylist()], pa.string())


@dataclass(frozen=True)
class ControlCharacters(TextTransform):
    """Removes control characters (category Cc) but tabs and newlines; the ends of lines \\r\\n and
    \\r become \\n."""

    name: ClassVar[str] = "control_characters"
    formats: bool = setting(
        Flag(),
        False,
        "Remove format characters (Cf) too, such as byte order marks. Emoji and Indic scripts need "
        "some.",
    )

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts without them."""
        import pyarrow.compute as pc

        if (bytes_of(texts).data == 0x0D).any():
            texts = pc.replace_substring_regex(texts, "\r\n?", "\n")
        return pc.replace_substring_regex(
            texts, f"[{CONTROLS}{FORMATS if self.formats else ''}]+", ""
        )
