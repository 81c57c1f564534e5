"""Steps that change characters of text: their Unicode form, their case, those that no one sees, and
what a regular expression finds.

They follow the tables of Unicode that Python has, so that what they make depends on its version.
"""

from __future__ import annotations

import unicodedata
from functools import partial
from html import unescape
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import Rejection
from shardctl.format.arrays import Bytes, Numbers, bytes_of
from shardctl.system.options import Flag, Number, Text, Whole, Word, setting
from shardctl.system.packages import needed
from shardctl.system.text import unknown
from shardctl.transforms.base import RejectRow
from shardctl.transforms.settings import NAMES, SettingError
from shardctl.transforms.text.base import TextStep, TextTransform, each_changed, version_of, where
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
        return each_changed(texts, partial(unicodedata.normalize, form))


class LowerCase(TextTransform, step="lower_case"):
    """Makes all letters lower case, as `str.lower` does."""

    made_by = ("unidata",)

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts in lower case."""
        if is_ascii(bytes_of(texts).data):
            return pc.ascii_lower(texts)
        return each_changed(texts, str.lower)


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

UNSEEN = (
    "script,style,noscript,template,iframe,object,metadata,desc,annotation,annotation-xml".split(
        ","
    )
)
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
        return where(
            texts, marked, _without_tags if self.tags else partial(each_changed, change=unescape)
        )


def _without_tags(texts: pa.Array) -> pa.Array:
    """Return the text that a browser shows, each block element on lines of its own."""
    lined = pc.replace_substring_regex(texts, rf"(?i)</?(?:{LINES})(?:[\s/][^<>]*)?>", "\n\\0")
    lined = pc.replace_substring_regex(lined, rf"(?i)<(?:{CELLS})(?:[\s/][^<>]*)?>", " \\0")
    parser = _parser()

    def without_tags(text: str) -> str:
        tree = parser(text)
        tree.strip_tags(UNSEEN)
        return "" if tree.root is None else tree.root.text().strip()

    return each_changed(lined, without_tags)


def _parser() -> Any:
    return needed("selectolax.lexbor", "text", "the step html").LexborHTMLParser


# --- what a regular expression finds ---

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = r"[0-9A-Fa-f]{1,4}"
_GAP = r"[ \x{a0}\x{202f}]"
_BETWEEN = r"[ \x{a0}\x{202f}.\x{2010}\x{2011}-]"  # also spaces and hyphens at which no line ends
_URL = r"[^\s<>\"\x{a0}\x{3000}-\x{303f}\x{ff00}-\x{ffef}]"

# Some scripts have no spaces between words, and none before an address: 请联系me@example.com谢谢. So
# their letters are never in one name with others. Where they stand alone before @, only an address
# of such letters alone is one. They are ranges, not names of scripts: RE2 compiles a pattern for
# every batch, and names take it twenty times as long.
_SPACED = (
    # marks, to Hebrew
    r"\x{300}-\x{37d}\x{37f}-\x{386}\x{388}-\x{559}\x{560}-\x{588}\x{591}-\x{5bd}\x{5bf}\x{5c1}-\x{5ea}"
    # Arabic, India's, Sinhala
    r"\x{610}-\x{61a}\x{620}-\x{669}\x{66e}-\x{6d3}\x{6d5}-\x{6ff}\x{750}-\x{963}\x{966}-\x{dff}"
    # to Greek
    r"\x{10a0}-\x{10fa}\x{10fc}-\x{10ff}\x{1200}-\x{1360}\x{1369}-\x{139f}\x{1c90}-\x{1cbf}\x{1f00}-\x{1fff}"
)
_CLOSE = (
    # Thai, Lao, Myanmar, Hangul, Khmer
    r"\x{e01}-\x{e4e}\x{e81}-\x{ece}\x{1000}-\x{1049}\x{1100}-\x{11ff}\x{1780}-\x{17d3}"
    r"\x{3041}-\x{30fa}\x{30fc}-\x{30ff}\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{ac00}-\x{d7a3}"
)
_NAME = r"A-Za-z0-9\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{24f}\x{1e00}-\x{1eff}" + _SPACED
# The last part of a domain is of ASCII, or of the script of the part before it: пример.рф, 例子.广告,
# but not a.com.Привет
_OWN_SCRIPT = rf"(?:[{_SPACED}0-9-]+\.)+[{_SPACED}]{{2,}}|(?:[{_CLOSE}0-9-]+\.)+[{_CLOSE}]{{2,}}"
_DOMAIN = rf"(?:(?:[{_NAME}-]+|[{_CLOSE}]+)\.)+(?:xn--[A-Za-z0-9-]+|[A-Za-z]{{2,}})|{_OWN_SCRIPT}"
# An apostrophe, as in o'neil@, sean.o'neil@ and so'neil@: one letter before it, or an initial and o
# or d. Others would take the quotes of code along, as in return'a@b.com', f'a@b.com' or b'a@b.com',
# and so would most other characters of RFC 5321.
_ELIDED = rf"(?:[{_NAME}][{_NAME}._%+-]*[._%+-]|\b)(?:[AC-EG-QSTV-Zac-eg-qstv-z]|[A-Za-z][DOdo])'"

PATTERNS = {
    "url": rf"(?i)\b(?:(?:https?|ftp)://|www\.){_URL}*[^\s<>\"\x{{a0}}\x{{3000}}-\x{{303f}}\x{{ff00}}-\x{{ffef}}.,;:!?')\]]",
    "email": rf"(?:{_ELIDED})?[{_NAME}][{_NAME}._%+-]*@(?:{_DOMAIN})|[{_CLOSE}]+@(?:{_OWN_SCRIPT})",
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
    "card": (
        # Visa, Mastercard, Discover
        r"\b(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|65\d\d)(?:[ -]?\d{4}){3}"
        r"|3[47]\d\d[ -]?\d{6}[ -]?\d{5})\b"  # American Express
    ),
    "ip": (
        rf"\b(?:{_OCTET}\.){{3}}{_OCTET}\b"
        rf"|\b(?:{_HEX}:){{7}}{_HEX}\b|\b(?:{_HEX}:){{1,6}}(?::{_HEX}){{1,6}}\b"
    ),
    "ssn": r"\b\d{3}-\d{2}-\d{4}\b",
    "phone": (
        rf"\+\d{{1,3}}(?:{_BETWEEN}?\(?\d{{1,4}}\)?|/\d{{3,4}}){{2,7}}\b"  # international
        rf"|(?:\(\d{{3}}\){_GAP}?|\b\d{{3}}{_BETWEEN})\d{{3}}{_BETWEEN}\d{{4}}\b"  # North America
    ),
}
"""What `redact` knows by name, in the order in which it is looked for: RE2's syntax, \\b and \\d
are of ASCII."""

PATTERNS_VERSION = 3
"""Raise it with every change of PATTERNS: the texts of a dataset that older patterns made are then
made again."""


class Redact(TextTransform, step="redact"):
    """Replaces what identifies a person or a place in the net by a placeholder: e-mail addresses,
    IP addresses and more."""

    patterns: tuple[str, ...] = setting(NAMES, ("email", "ip"), f"Which: {', '.join(PATTERNS)}.")
    placeholder: str = setting(
        Text(), "[NAME]", "What stands there instead; NAME in it becomes EMAIL, IP, …"
    )

    def __post_init__(self) -> None:
        for name in self.patterns:
            if name not in PATTERNS:
                raise SettingError(unknown("pattern", name, PATTERNS), "patterns")
        if not self.patterns:
            raise SettingError(f"needs patterns: some of {', '.join(PATTERNS)}", "patterns")

    def versions(self) -> tuple[str, ...]:
        """Return that of the patterns."""
        return (f"{self.name} {PATTERNS_VERSION}",)

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts with placeholders."""
        for name, pattern in PATTERNS.items():
            if name in self.patterns:
                placeholder = self.placeholder.replace("NAME", name.upper()).replace("\\", r"\\")
                # an @ is found in a tenth of the time that the pattern takes
                chosen = pc.match_substring(texts, "@" if name == "email" else "")
                texts = where(
                    texts,
                    chosen,
                    partial(pc.replace_substring_regex, pattern=pattern, replacement=placeholder),
                )
        return texts


ENGINES = ("auto", "re2", "regex")


class Replace(TextStep, step="replace"):
    """Replaces what a regular expression finds. RE2 does it where the pattern is valid there, else
    the package `regex`.

    RE2 takes time that grows with the text alone. `regex` has lookaround and references back, and
    may take for ever: a text for which it needs more than `time_limit` is rejected.
    """

    pattern: str = setting(Text(), help="The regular expression, for instance '[ ]+,'.")
    replacement: str = setting(
        Text(), "", "What stands there instead; \\1 is what the first group found."
    )
    engine: str = setting(
        Word(*ENGINES),
        "auto",
        "auto: RE2 if it takes the pattern. In RE2 \\w, \\d, \\s and \\b are of ASCII.",
    )
    time_limit: float = setting(
        Number(0, 3600, above=True), 10.0, "Most seconds for one text, for regex alone."
    )

    def __post_init__(self) -> None:
        if not self.pattern:
            raise SettingError("pattern must not be empty", "pattern")
        for key in ("pattern", "replacement"):
            if any(0xD800 <= ord(character) < 0xE000 for character in getattr(self, key)):
                raise SettingError(
                    f"{key} has half of a pair of surrogates (\\ud800 to \\udfff), which no text "
                    "has",
                    key,
                )
        refused = _refused_by_re2(self.pattern, self.replacement)
        if self.engine == "re2" and refused:
            raise SettingError(f"pattern is not valid for RE2: {refused}", "pattern")

    def prepare(self) -> None:
        """Try the pattern. Raises SettingError, InstallError."""
        if not self._by_re2:
            _compiled(self.pattern, self.replacement)

    @property
    def _by_re2(self) -> bool:
        return self.engine != "regex" and not _refused_by_re2(self.pattern, self.replacement)

    def versions(self) -> tuple[str, ...]:
        """Return that of the package that searches, where it is not part of pyarrow."""
        return () if self._by_re2 else (version_of("regex"),)

    def work(self, texts: pa.Array, reject: RejectRow) -> pa.Array:
        """Return the changed texts. Rejects those for which the time is not enough."""
        if self._by_re2:
            return pc.replace_substring_regex(texts, self.pattern, self.replacement)
        pattern, changed = _compiled(self.pattern, self.replacement), []
        for row, text in enumerate(texts.to_pylist()):
            try:
                changed.append(
                    pattern.sub(self.replacement, text, timeout=self.time_limit, concurrent=False)
                )
            except TimeoutError:
                changed.append("")
                why = (
                    f"the pattern {self.pattern!r} needs over {self.time_limit:g} s for this "
                    f"text of {len(text)} characters"
                )
                why += "; make it simpler, or raise time_limit"
                reject(row, Rejection("transform", "replace-time", why))
        return pa.array(changed, pa.string())


def _refused_by_re2(pattern: str, replacement: str) -> str:
    """Return why RE2 does not take a pattern; nothing if it does."""
    try:
        pc.replace_substring_regex(pa.array([""]), pattern, replacement)
    except pa.ArrowInvalid as error:
        return str(error)
    return ""


def _compiled(pattern: str, replacement: str) -> Any:
    """Return a pattern of the package regex. Raises SettingError if it is not one, or the
    replacement is not for it."""
    why = _refused_by_re2(pattern, replacement)
    refused = f" (RE2 refuses its pattern: {why})" if why else ""
    regex = needed("regex", "text", f"the step replace{refused}")
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise SettingError(
            f"pattern {pattern!r} is not a regular expression: {error}",
            "pattern",
        ) from None
    try:
        # Only a match shows what is wrong with a replacement; the empty alternative always does.
        regex.compile(f"(?:{pattern}\n)|").sub(replacement, "")
    except (regex.error, IndexError) as error:
        message = f"replacement {replacement!r} cannot be used: {error}"
        raise SettingError(message, "replacement") from None
    return compiled
