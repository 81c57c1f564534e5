"""A guess at the encoding of a text that is not UTF-8, for what a message advises: nothing is decoded with it.

`--encoding detect` (formats/encodings.py) is better, and needs a package; this one is always there.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise

from shardctl.sources.formats.encodings import doubtful_lines, marked_encoding

LEAST = 0.5
"""A guess needs this share of the common characters that ordinary text has."""

_LEVEL = 0.05
"""Encodings whose scores differ by no more than this are equally likely: the one with fewer errors wins, then the one
that is more common."""


@dataclass(frozen=True)
class Script:
    """Texts that are written alike: the encodings for them, the common ones first, each with the name that people know it by.

    Of the characters that are not ASCII, `share` are among the `common` ones in ordinary text. `accents` says that they stand
    alone among ASCII letters; those of other scripts make whole words.
    """

    encodings: tuple[tuple[str, str], ...]
    common: frozenset[str]
    share: float
    accents: bool = False


_KANA = frozenset(map(chr, range(0x3041, 0x30FF)))

_SCRIPTS = (
    Script(
        (("gb18030", "GBK (Chinese)"),),
        frozenset(
            "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多"
            "经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日，。、“”"
        ),
        0.4,
    ),
    Script(
        (("big5", "Big5 (Chinese)"), ("big5hkscs", "Big5-HKSCS (Chinese)")),
        frozenset(
            "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家種事成方多"
            "經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日，。、「」"
        ),
        0.4,
    ),
    Script(
        (("cp932", "Shift-JIS (Japanese)"), ("euc_jp", "EUC-JP (Japanese)")), _KANA | frozenset("、。「」日本人年大国"), 0.5
    ),
    Script(
        (("cp949", "EUC-KR (Korean)"), ("johab", "Johab (Korean)")),
        frozenset(
            "이다의는에을를가고하은로지도사기한들리인나자시어아대서그있해전부여정수보과와일만게라스원으상장제조주구용신국등성문것생학면되동"
        ),
        0.45,
    ),
    Script(
        (("cp1252", "Latin-1 or Windows-1252 (Western European)"),),
        frozenset("éèêëàâäáãåæçíìîïñóòôöõøúùûüßÉÀÄÖÜÅØ\u00a0°«»\u2018\u2019“”\u2013—…"),
        0.9,
        accents=True,
    ),
    Script(
        (
            ("cp1251", "Windows-1251 (Cyrillic)"),
            ("koi8_r", "KOI8-R (Russian)"),
            ("iso8859_5", "ISO-8859-5 (Cyrillic)"),
            ("cp866", "CP866 (Cyrillic)"),
            ("mac_cyrillic", "Mac Cyrillic"),
        ),
        frozenset("оеаинтсрвлкмдпуяыьгзбйхіј"),
        0.85,
    ),
    Script(
        (("iso8859_2", "ISO-8859-2 (Central European)"), ("cp1250", "Windows-1250 (Central European)")),
        frozenset("ąćęłńóśźżáčďéěíňřšťúůýžőűöüôľăâîşţđßŠČŽŁŚŻ"),
        0.9,
        accents=True,
    ),
    Script((("cp1254", "Windows-1254 (Turkish)"),), frozenset("ığşçöüİŞÇÖÜâ"), 0.95, accents=True),
    Script(
        (("cp1253", "Windows-1253 (Greek)"), ("iso8859_7", "ISO-8859-7 (Greek)")), frozenset("αοιετσνηυρπκμλςήίάόέύώδγ"), 0.85
    ),
    Script((("cp1255", "Windows-1255 (Hebrew)"),), frozenset("יוהלארתבמשנםעדקחפגכ"), 0.85),
    Script((("cp1256", "Windows-1256 (Arabic)"),), frozenset("المينرتوبسعدهقفحجكةأ"), 0.85),
    Script((("cp874", "TIS-620 (Thai)"),), frozenset("านรอกเงยลมวสทดตคปจบหพใชขไแะีิัุ่้"), 0.9),
)


def guess_encoding(data: bytes) -> tuple[str, str] | None:
    """Return Python's name of the encoding that a file beginning with `data` is likely in, and the name that people know.

    None where nothing is likely. `data` may end in the middle of a character.
    """
    marked = marked_encoding(data)
    if marked is not None:
        return marked.replace("_", "-"), marked.replace("_", "-").upper()
    sample = doubtful_lines(data)
    if not sample or sample.count(0):
        return None
    scored = [(*_score(sample, name, script), (name, known)) for script in _SCRIPTS for name, known in script.encodings]
    best = max(score for score, _, _ in scored)
    alike = [(odd, pair) for score, odd, pair in scored if score >= best - _LEVEL]
    return min(alike, key=lambda each: each[0])[1] if best >= LEAST else None


_WORDS = re.compile(r"[A-Za-z]?[^\x00-\x7f]+[A-Za-z]?")
"""Characters that are not ASCII, with the ASCII letters beside them."""

_NOT_IN_WORDS = ("Cc", "Co", "Cn", "So")
"""Categories of characters that show a wrong guess: controls, unassigned ones, frames, what stands for an error."""

_LONGEST_ACCENTS = 2
"""So many letters with accents follow each other at most."""


def _score(sample: bytes, encoding: str, script: Script) -> tuple[float, int]:
    """Return how much a text looks like one of a script, 0 to 1, if it is decoded so; and how many characters no text has."""
    total = common = odd = 0
    for found in _WORDS.finditer(sample.decode(encoding, "replace")):
        run = found[0]
        chars = [char for char in run if not char.isascii()]
        total += len(chars)
        odd += sum(unicodedata.category(char) in _NOT_IN_WORDS for char in chars)
        odd += sum(one.islower() and other.isupper() for one, other in pairwise(run))
        if len(chars) <= _LONGEST_ACCENTS if script.accents else len(chars) > 1 or len(run) == 1:
            common += sum(char in script.common for char in chars)
    return (max(0.0, min(1.0, common / total / script.share) - 2 * odd / total) if total else 0.0), odd
