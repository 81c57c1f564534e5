"""Steps that replace what a regular expression finds in texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.errors import InstallError
from shardctl.transforms.settings import Names, Number, SettingError, Text, Word, setting, unknown
from shardctl.transforms.text.base import Fault, Report, TextStep, TextTransform
from shardctl.transforms.text.packages import version_of

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = r"[0-9A-Fa-f]{1,4}"
_URL = r"[^\s<>\"\x{a0}\x{3000}-\x{303f}\x{ff00}-\x{ffef}]"

PATTERNS = {
    "url": rf"(?i)\b(?:(?:https?|ftp)://|www\.){_URL}*[^\s<>\"\x{{a0}}\x{{3000}}-\x{{303f}}\x{{ff00}}-\x{{ffef}}.,;:!?')\]]",
    "email": r"[A-Za-z0-9][A-Za-z0-9._%+-]*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}",
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
    "card": (
        r"\b(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|65\d\d)(?:[ -]?\d{4}){3}"  # Visa, Mastercard, Discover
        r"|3[47]\d\d[ -]?\d{6}[ -]?\d{5})\b"  # American Express
    ),
    "ip": (
        rf"\b(?:{_OCTET}\.){{3}}{_OCTET}\b"
        rf"|\b(?:{_HEX}:){{7}}{_HEX}\b|\b(?:{_HEX}:){{1,6}}(?::{_HEX}){{1,6}}\b"
    ),
    "ssn": r"\b\d{3}-\d{2}-\d{4}\b",
    "phone": (
        r"\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,5}\b"  # international
        r"|(?:\(\d{3}\) ?|\b\d{3}[ .-])\d{3}[ .-]\d{4}\b"  # North America
    ),
}
"""What `redact` knows by name, in the order in which it is looked for: RE2's syntax, \\b and \\d are of ASCII."""


@dataclass(frozen=True)
class Redact(TextTransform):
    """Replaces what identifies a person or a place in the net by a placeholder: e-mail addresses, IP addresses and more."""

    name: ClassVar[str] = "redact"
    patterns: tuple[str, ...] = setting(Names(), ("email", "ip"), f"Which: {', '.join(PATTERNS)}.")
    placeholder: str = setting(Text(), "[NAME]", "What stands there instead; NAME in it becomes EMAIL, IP, …")

    def __post_init__(self) -> None:
        for name in self.patterns:
            if name not in PATTERNS:
                raise SettingError(unknown("pattern", name, PATTERNS), "patterns")
        if not self.patterns:
            raise SettingError(f"needs patterns: some of {', '.join(PATTERNS)}", "patterns")

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts with placeholders."""
        import pyarrow.compute as pc

        for name, pattern in PATTERNS.items():
            if name in self.patterns:
                placeholder = self.placeholder.replace("NAME", name.upper()).replace("\\", r"\\")
                texts = pc.replace_substring_regex(texts, pattern, placeholder)
        return texts


ENGINES = ("auto", "re2", "regex")


@dataclass(frozen=True)
class Replace(TextStep):
    """Replaces what a regular expression finds. RE2 does it where the pattern is valid there, else the package `regex`.

    RE2 takes time that grows with the text alone. `regex` has lookaround and references back, and may take for ever: a text
    for which it needs more than `time_limit` is rejected.
    """

    name: ClassVar[str] = "replace"
    pattern: str = setting(Text(), doc="The regular expression, for instance '[ ]+,'.")
    replacement: str = setting(Text(), "", "What stands there instead; \\1 is what the first group found.")
    engine: str = setting(
        Word(ENGINES), "auto", "auto: RE2 if it takes the pattern. In RE2 \\w, \\d, \\s and \\b are of ASCII."
    )
    time_limit: float = setting(Number(0, 3600, above=True), 10.0, "Most seconds for one text, for regex alone.")

    def __post_init__(self) -> None:
        if not self.pattern:
            raise SettingError("pattern must not be empty", "pattern")
        for key in ("pattern", "replacement"):
            if any(0xD800 <= ord(character) < 0xE000 for character in getattr(self, key)):
                raise SettingError(f"{key} has half of a pair of surrogates (\\ud800 to \\udfff), which no text has", key)
        refused = _refused_by_re2(self.pattern, self.replacement)
        if self.engine == "re2" and refused:
            raise SettingError(f"pattern is not valid for RE2: {refused}", "pattern")

    def loaded(self, folder: Path | None = None) -> Replace:
        """Return this step, having tried the pattern. Raises SettingError, InstallError."""
        if not self._by_re2:
            _compiled(self.pattern, self.replacement)
        return self

    @property
    def _by_re2(self) -> bool:
        return self.engine != "regex" and not _refused_by_re2(self.pattern, self.replacement)

    def versions(self) -> tuple[str, ...]:
        """Return that of the package that searches, where it is not part of pyarrow."""
        return () if self._by_re2 else (version_of("regex"),)

    def work(self, texts: pa.Array, report: Report) -> pa.Array:
        """Return the changed texts. Rejects those for which the time is not enough."""
        import pyarrow.compute as pc

        if self._by_re2:
            return pc.replace_substring_regex(texts, self.pattern, self.replacement)
        pattern, changed = _compiled(self.pattern, self.replacement), []
        for row, text in enumerate(texts.to_pylist()):
            try:
                changed.append(pattern.sub(self.replacement, text, timeout=self.time_limit, concurrent=False))
            except TimeoutError:
                changed.append("")
                why = f"the pattern {self.pattern!r} needs over {self.time_limit:g} s for this text of {len(text)} characters"
                report(Fault(row, "replace-time", f"{why}; make it simpler, or raise time_limit", "transform"))
        return pa.array(changed, pa.string())


def _refused_by_re2(pattern: str, replacement: str) -> str:
    """Return why RE2 does not take a pattern; nothing if it does."""
    import pyarrow.compute as pc

    try:
        pc.replace_substring_regex(pa.array([""]), pattern, replacement)
    except pa.ArrowInvalid as error:
        return str(error)
    return ""


def _compiled(pattern: str, replacement: str) -> Any:
    """Return a pattern of the package regex. Raises SettingError if it is not one, or the replacement is not for it."""
    try:
        import regex
    except ImportError:
        why = _refused_by_re2(pattern, replacement)
        reason = f"RE2 does not take the pattern ({why}), and the package regex is missing" if why else "it needs regex"
        raise InstallError(f"the step replace: {reason}: pip install 'shardctl[text]'") from None
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise SettingError(f"pattern {pattern!r} is no regular expression: {error}", "pattern", owner=Replace.name) from None
    for number, name in re.findall(r"(?<!\\)(?:\\)*\\(?:(\d+)|g<(\w+)>)", replacement):
        group = number or name
        if (int(group) > compiled.groups) if group.isdecimal() else (group not in compiled.groupindex):
            raise SettingError(
                f"replacement refers to the group {group}, and the pattern has none", "replacement", owner=Replace.name
            )
    try:
        # Only a match shows what is wrong with a replacement; the empty alternative always does.
        regex.compile(f"(?:{pattern}\n)|").sub(replacement, "")
    except (regex.error, IndexError) as error:
        message = f"replacement {replacement!r} cannot be used: {error}"
        raise SettingError(message, "replacement", owner=Replace.name) from None
    return compiled
