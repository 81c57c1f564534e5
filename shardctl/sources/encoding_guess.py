"""A guess at the encoding of a text that is not UTF-8, for what a message advises: nothing is
decoded with it.

Of short texts it is right more often than charset-normalizer, which `--encoding detect` asks
(formats/encodings.py): 36 of 36 recorded ones against 30, and 79 of 91 translations of the
Declaration of Human Rights against 53 (2026-11-28).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from shardctl.sources.formats.encodings import doubtful_lines, marked_encoding
from shardctl.system.text import printable

LEAST = 0.5
"""A guess needs this share of the common characters that ordinary text has."""

_LEVEL = 0.05
"""Encodings whose scores differ by no more than this are equally likely: the one with fewer errors
wins, then the one that is more common."""


@dataclass(frozen=True)
class Script:
    """Texts that are written alike: the encodings for them, the common ones first, each with the
    name that people know it by.

    In ordinary text, the share `share` of the characters that are not ASCII are among the `common`
    ones. With `accents` such characters stand alone among ASCII letters; without, they make whole
    words. `known` gives more characters, which a list of names has: an encoding, and a range of
    first bytes of its characters of two bytes.
    """

    encodings: tuple[tuple[str, str], ...]
    common: frozenset[str]
    share: float
    accents: bool = False
    known: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Guess:
    """An encoding that a file may be in: Python's name of it, the name that people know, and how a
    line of the file reads."""

    name: str
    known: str
    line: str


_KANA = frozenset(map(chr, range(0x3041, 0x30FF)))

_SIGNS = frozenset("\u00a0°«»\u2018\u2019“”„\u2013—…©®§·€£")

_WESTERN = (("cp1252", "Latin-1 or Windows-1252 (Western European)"),)
_WESTERN_LETTERS = (
    "éèêëàâçîïôöùûüœæÉÈÊÀÂÇÎÔ",  # French
    "äöüßÄÖÜéèëïàáêâôû",  # German, Dutch
    "åäöæøéÅÄÖÆØÉüòà",  # Danish, Norwegian, Swedish
    "áðéíóúýþæöøÁÐÉÍÓÚÝÞÆÖØ",  # Icelandic, Faroese
    "äõöüÄÕÖÜšžŠŽ",  # Estonian, Finnish
    "áéíóúñüÁÉÍÓÚÑ¿¡ªºàèìòùïçÀÈÌÒÙÇ",  # Spanish, Catalan, Italian
    "áâãàçéêíóôõúüÁÂÃÀÇÉÊÍÓÔÕÚªº",  # Portuguese
)
_CENTRAL = (
    ("iso8859_2", "ISO-8859-2 (Central European)"),
    ("cp1250", "Windows-1250 (Central European)"),
)
_CENTRAL_LETTERS = (
    "ąćęłńóśźżĄĆĘŁŃÓŚŹŻ",  # Polish
    "áčďéěíňóřšťúůýžäľĺôŕÁČĎÉĚÍŇÓŘŠŤÚŮÝŽĽ",  # Czech, Slovak
    "áéíóöőúüűÁÉÍÓÖŐÚÜŰ",  # Hungarian
    "ăâîşţĂÂÎŞŢ",  # Romanian
    "čćđšžČĆĐŠŽ",  # Croatian, Slovene
    "čćěłńóřšśźžČĆŁŃŘŠŚŹŽ",  # Sorbian
)

_SCRIPTS = (
    Script(
        (("gb18030", "GBK (Chinese)"),),
        frozenset(
            "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多"
            "经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日，。、“”"
        ),
        0.4,
        known=("gb2312", 0xB0, 0xD7),
    ),
    Script(
        (("big5", "Big5 (Chinese)"), ("big5hkscs", "Big5-HKSCS (Chinese)")),
        frozenset(
            "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家種事成方多"
            "經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日，。、「」"
        ),
        0.4,
        known=("big5", 0xA4, 0xC6),
    ),
    Script(
        (("cp932", "Shift-JIS (Japanese)"), ("euc_jp", "EUC-JP (Japanese)")),
        _KANA | frozenset("、。「」日本人年大国"),
        0.5,
        known=("euc_jp", 0xB0, 0xCF),
    ),
    Script(
        (("cp949", "EUC-KR (Korean)"), ("johab", "Johab (Korean)")),
        frozenset(
            "이다의는에을를가고하은로지도사기한들리인나자시어아대서그있해전부여정수보과와일만게라스원으상장제조주구용신국등성문것생학면되동"
        ),
        0.45,
        known=("euc_kr", 0xB0, 0xC8),
    ),
    *(
        Script(_WESTERN, frozenset(letters) | _SIGNS, 0.98, accents=True)
        for letters in _WESTERN_LETTERS
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
    *(
        Script(_CENTRAL, frozenset(letters) | _SIGNS, 0.98, accents=True)
        for letters in _CENTRAL_LETTERS
    ),
    Script(
        (("cp1254", "Windows-1254 (Turkish)"),),
        frozenset("ığşçöüİŞÇÖÜĞâîû") | _SIGNS,
        0.98,
        accents=True,
    ),
    Script(
        (("cp1253", "Windows-1253 (Greek)"), ("iso8859_7", "ISO-8859-7 (Greek)")),
        frozenset("αοιετσνηυρπκμλςήίάόέύώδγ"),
        0.85,
    ),
    Script((("cp1255", "Windows-1255 (Hebrew)"),), frozenset("יוהלארתבמשנםעדקחפגכ"), 0.85),
    Script(
        (("cp1256", "Windows-1256 (Arabic)"), ("iso8859_6", "ISO-8859-6 (Arabic)")),
        frozenset("المينرتوبسعدهقفحجكةأ"),
        0.85,
    ),
    Script((("cp874", "TIS-620 (Thai)"),), frozenset("านรอกเงยลมวสทดตคปจบหพใชขไแะีิัุ่้"), 0.9),
)


def guess_encoding(data: bytes) -> Guess | None:
    """Return the encoding that a file beginning with `data` is likely in; None if it does not look
    like text."""
    if (marked := marked_encoding(data)) is not None:
        name = marked.replace("_", "-")
        line = next(
            filter(
                str.strip,
                data[: 4 * _SHOWN_BYTES].decode(marked, "replace").lstrip("\ufeff").splitlines(),
            ),
            "",
        )
        return Guess(name, name.upper(), _shown(line))
    sample = doubtful_lines(data)
    if not sample or sample.count(0):
        return None
    scores = [
        (*_score(sample, name, script), name, known)
        for script in _SCRIPTS
        for name, known in script.encodings
    ]
    top = max(score for score, *_ in scores)
    if top < LEAST:
        return None
    # Of those that are equally likely, the one with fewer errors, then the one that is more common.
    *_, name, known = min(
        (each for each in scores if each[0] >= top - _LEVEL), key=lambda each: each[1]
    )
    line = next(
        (line for line in sample.decode(name, "replace").split("\n") if not line.isascii()), ""
    )
    return Guess(name, known, _shown(line))


_NAMES = 0.8
"""The score of characters that are common ones of a script, and not in the proportion of sentences:
a list of names."""

_SHOWN_BYTES = 240

_SHOWN = 60
"""Characters of a line that are shown."""


def _shown(line: str) -> str:
    """Return a line as a message may have it: a part of it, from a little before its first
    character that is not ASCII on."""
    place = next((place for place, char in enumerate(line) if not char.isascii()), 0)
    line = line[max(0, place - _SHOWN // 3) :].strip()
    return printable(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")


_WORDS = re.compile(r"[A-Za-z]?[^\x00-\x7f]+[A-Za-z]?")
"""Characters that are not ASCII, with the ASCII letters beside them."""

_NOT_IN_WORDS = ("Cc", "Co", "Cn", "So")
"""Categories of characters that show a wrong guess: controls, unassigned ones, frames, what stands
for an error."""

_LONGEST_ACCENTS = 2
"""So many letters with accents follow each other at most."""


def _score(sample: bytes, encoding: str, script: Script) -> tuple[float, int]:
    """Return how much a text looks like one of a script, 0 to 1, if it is decoded so; and how many
    characters no text has."""
    total = common = names = odd = 0
    known = _characters(*script.known) if script.known else frozenset[str]()
    for found in _WORDS.finditer(sample.decode(encoding, "replace")):
        run = found[0]
        chars = [char for char in run if not char.isascii()]
        total += len(chars)
        odd += sum(unicodedata.category(char) in _NOT_IN_WORDS for char in chars)
        odd += sum(one.islower() and other.isupper() for one, other in pairwise(run))
        if (
            len(chars) <= _LONGEST_ACCENTS
            if script.accents
            else len(chars) > 1 or len(run) == 1 or script.known
        ):
            common += sum(char in script.common for char in chars)
            names += sum(char in known or char in script.common for char in chars)
    if not total:
        return 0.0, odd
    likely = max(
        min(1.0, common / total / script.share),
        _NAMES * names / total if names * 10 >= total * 8 else 0.0,
    )
    return max(0.0, likely - 2 * odd / total), odd


@cache
def _characters(encoding: str, first: int, last: int) -> frozenset[str]:
    """Return the characters of two bytes whose first one is in a range."""
    pairs = (bytes((one, two)) for one in range(first, last + 1) for two in range(0x40, 0xFF))
    return frozenset(
        char
        for pair in pairs
        if len(char := pair.decode(encoding, "ignore")) == 1 and not char.isascii()
    )
