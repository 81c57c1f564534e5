"""Steps that change characters of text: their Unicode form, their case, and those that no one sees.

They follow the tables of Unicode that Python has, so that what they make depends on its version.
"""

from __future__ import annotations

import unicodedata
from html import unescape
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.format.arrays import Bytes, Numbers, bytes_of
from shardctl.system.options import Flag, Whole, Word, setting
from shardctl.system.packages import needed
from shardctl.transforms.text.base import TextTransform, version_of, where
from shardctl.transforms.text.words import NEWLINE, Words, is_ascii, texts_of_kept

FORMS = ("NFC", "NFKC", "NFD", "NFKD")

CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x{80}-\x{9f}"
"""All of category Cc but tab and newline, and but the carriage return, which becomes a newline."""

FORMATS = r"\p{Cf}"


class Normalize(TextTransform, step="normalize"):
    """Brings texts into a Unicode normalization form (UAX #15)."""

    unicode: str = setting(
        Word(*FORMS),
        "NFC",
        "NFC: composed. NFD: decomposed. NFKC, NFKD: and without compatibility characters, as ﬁ or "
        "full width.",
    )

    made_by = ("unidata",)

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


class LowerCase(TextTransform, step="lower_case"):
    """Makes all letters lower case, as `str.lower` does."""

    made_by = ("unidata",)

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts in lower case."""
        if is_ascii(bytes_of(texts).data):
            return pc.ascii_lower(texts)
        return pa.array([text.lower() for text in texts.to_pylist()], pa.string())


class ControlCharacters(TextTransform, step="control_characters"):
    """Removes control characters (category Cc) but tabs and newlines; the ends of lines \\r\\n and
    \\r become \\n."""

    formats: bool = setting(
        Flag(),
        False,
        "Remove format characters (Cf) too, some of which emoji and Indic scripts need.",
    )

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts without them."""
        if (bytes_of(texts).data == 0x0D).any():
            texts = pc.replace_substring_regex(texts, "\r\n?", "\n")
        return pc.replace_substring_regex(
            texts, f"[{CONTROLS}{FORMATS if self.formats else ''}]+", ""
        )


SPACE = 0x20
RETURN = 0x0D


class Whitespace(TextTransform, step="whitespace"):
    """Makes runs of white space one space, removes it at the edges of lines and texts, and limits
    blank lines."""

    blank_lines: int = setting(Whole(0, 1000), 1, "Most blank lines that follow each other.")
    one_line: bool = setting(
        Flag(), False, "Make newlines spaces too, so that each text is one line."
    )

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts with tidy white space. Lines end at \\n, \\r\\n or \\r, and then at
        \\n."""
        words = Words(texts)
        data, offsets = words.bytes
        if not len(data):
            return texts
        # What is before the first word of a text, and after its last, goes. A gap is between two
        # words of one text; nearly all are one space or one newline, and stay.
        gaps = np.flatnonzero(np.diff(words.text) == 0)
        starts, ends = words.ends[gaps], words.starts[gaps + 1]
        fine = data[starts] == SPACE
        if not self.one_line:
            fine |= data[starts] == NEWLINE
        odd = ~(fine & (ends - starts == 1))
        edges = int(words.spaces.sum()) - int((ends - starts).sum())
        if not odd.any() and not edges:
            return texts
        keep = ~words.spaces
        keep[starts[~odd]] = True
        starts, ends = starts[odd], ends[odd]
        newlines = (
            np.zeros(len(starts), np.int64) if self.one_line else _line_ends(data, starts, ends)
        )
        kept = np.maximum(1, np.minimum(newlines, self.blank_lines + 1))
        out = np.where(newlines > 0, NEWLINE, SPACE).astype(np.uint8)
        data = data.copy()
        for place in range(int(kept.max(initial=0))):
            wide = kept > place
            places = starts[wide] + place
            keep[places], data[places] = True, out[wide]
        return texts_of_kept(data, keep, offsets)


def _line_ends(data: Bytes, starts: Numbers, ends: Numbers) -> Numbers:
    """Return how many lines end in each stretch of white space, (n,)."""
    places = np.flatnonzero(data == NEWLINE)
    if (data == RETURN).any():
        returns = np.flatnonzero(data == RETURN)
        alone = np.append(data, SPACE)[returns + 1] != NEWLINE
        places = np.sort(np.concatenate([places, returns[alone]]))
    return np.searchsorted(places, ends) - np.searchsorted(places, starts)


LINES = (
    "address|article|aside|blockquote|br|caption|center|dd|details|dialog|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]"
    "|header|hgroup|hr|legend|li|main|nav|ol|optgroup|option|p|pre|section|select|summary|table|tbody|tfoot|thead|title|tr|ul"
)
"""Elements of which browsers show each on lines of its own (HTML standard, section 15.3, and
options of lists)."""

CELLS = "td|th"

UNSEEN = [
    "script",
    "style",
    "noscript",
    "template",
    "iframe",
    "object",
    "metadata",
    "desc",
    "annotation",
    "annotation-xml",
]
"""Elements whose content is no text of the page. The last four are of pictures and formulas, of
which other text is."""


class Html(TextTransform, step="html"):
    """Takes HTML out of texts: tags, comments, scripts and styles go, character references (&amp;)
    become characters."""

    tags: bool = setting(
        Flag(), True, "Take tags out; false: only make character references characters."
    )

    def prepare(self) -> None:
        """Find the parser. Raises InstallError."""
        if self.tags:
            _parser()

    def versions(self) -> tuple[str, ...]:
        """Return that of the parser, and of what is text: 1 had none of that in pictures and
        formulas."""
        return (version_of("selectolax"), "html 2") if self.tags else ()

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts without markup. Those without any < and & stay what they are."""
        marked = pc.match_substring_regex(texts, "[<&]" if self.tags else "&")
        if self.tags:
            return where(texts, marked, _without_tags)
        return where(texts, marked, lambda some: [unescape(text) for text in some.to_pylist()])


def _without_tags(texts: pa.Array) -> list[str]:
    """Return the text that a browser shows, each block element on lines of its own."""
    lined = pc.replace_substring_regex(texts, rf"(?i)</?(?:{LINES})(?:[\s/][^<>]*)?>", "\n\\0")
    lined = pc.replace_substring_regex(lined, rf"(?i)<(?:{CELLS})(?:[\s/][^<>]*)?>", " \\0")
    parser, found = _parser(), []
    for text in lined.to_pylist():
        tree = parser(text)
        tree.strip_tags(UNSEEN)
        root = tree.root
        found.append(root.text().strip() if root is not None else "")
    return found


def _parser() -> Any:
    return needed("selectolax.lexbor", "text", "the step html").LexborHTMLParser
