"""Text in any encoding, decoded strictly: bytes that are no text in it are found and named, never
replaced."""

from __future__ import annotations

import codecs
import re
import threading
import unicodedata
from array import array
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from shardctl.errors import Rejection, UsageError
from shardctl.sources.formats.base import BOMS, DETECT, OTHER_ENCODING, looks_wide, unmarked_wide
from shardctl.sources.values import is_utf8
from shardctl.system.packages import needed
from shardctl.system.text import did_you_mean, printable

UNDECODED = b"\xff"
"""What stands in UTF-8 for bytes that could not be decoded. It is no UTF-8, so that the record with
it is rejected."""

DETECTED_BYTES = 16 << 20
"""How much of the beginning of a file is looked at to find its encoding. What comes after it is
still decoded strictly."""

SAMPLE_BYTES = 64 << 10
"""How much text charset-normalizer gets: the lines with bytes over 127. It takes about 0.1 s."""

_ESCAPES = {
    b"\x1b$)C": "iso2022_kr",
    b"\x1b$B": "iso2022_jp",
    b"\x1b$@": "iso2022_jp",
    b"\x1b(J": "iso2022_jp",
}
"""How encodings of 7 bits switch to other characters: their files would pass for UTF-8."""

_WIDER = {"gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "shift_jis": "cp932"}
"""What files are in that are said to be in the older, smaller encoding."""

_DETECTED = """
    gb18030 big5 big5hkscs cp932 shift_jis euc_jp euc_kr cp949 johab cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256
    cp1257 latin_1 iso8859_2 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_9 iso8859_15 koi8_r koi8_u cp866 cp855
    mac_cyrillic tis_620 cp874 cp437 cp850 cp852 cp862 cp864
""".split()
"""What charset-normalizer chooses from. With all that Python has, rare encodings win over common
ones in short texts."""

_NOT_FOR_FILES = frozenset(
    "idna,punycode,unicode-escape,raw-unicode-escape,undefined,mbcs,oem".split(",")
)
"""Codecs of Python that no text file is in, or that are not strict, or that not every machine
has."""


_COMMON = tuple(
    (
        "utf-8,utf-16,utf-32,latin-1,cp1252,ascii,gbk,gb2312,gb18030,big5,shift_jis,cp932,euc_jp,euc_kr"
    ).split(",")
)
"""Encodings that a message suggests."""


def known_encoding(name: str) -> str:
    """Return Python's own name of an encoding, or `detect`. Raises UsageError if it is none of text
    files."""
    if name == DETECT:
        return DETECT
    try:
        codec = codecs.lookup(name)
        own = codec.name
        if own == "utf-7":
            raise UsageError(
                "encoding utf-7 is not read; recode the files with iconv -f UTF-7 -t UTF-8"
            )
        if own.replace("_", "-") in _NOT_FOR_FILES or not getattr(codec, "_is_text_encoding", True):
            raise LookupError
    except (LookupError, ValueError):
        near = did_you_mean(name, _COMMON) or ";"
        known = "utf-8, utf-16, gb18030, big5, cp932, latin-1 and others of Python, or detect"
        raise UsageError(
            f"encoding {printable(name)}: there is no such encoding{near} known are {known}"
        ) from None
    return "utf-8" if own == "utf-8-sig" else own


def resolve(encoding: str, start: bytes) -> tuple[str, int]:
    """Return which encoding a file is in that begins with `start` (4 bytes or more), and the size
    of its byte order mark.

    A byte order mark counts for more than the encoding that was named, as in browsers. For a file
    in UTF-8 the size is 0: the mark is the same in the decoded text, and left to the format. Raises
    Rejection (stage `decode`), UsageError.
    """
    named = known_encoding(encoding)
    boms = [
        pair for pair in BOMS if not named.startswith("utf-16") or not pair[1].startswith("utf-32")
    ]
    own, size = next(((own, len(mark)) for mark, own in boms if start.startswith(mark)), ("", 0))
    if (own or named) == "utf-8":
        return "utf-8", 0
    if named == "utf-8":
        family = own[:6].upper()
        raise Rejection(
            "decode",
            "not-utf8",
            f"not UTF-8: it has the byte order mark of {family}; use --encoding {family.lower()}",
        )
    if own:
        return own, size
    if named in ("utf-16", "utf-32"):
        raise Rejection(
            "decode",
            "no-byte-order-mark",
            f"it has no byte order mark; use --encoding {named}-le or {named}-be",
        )
    return named, 0


def decode_text(data: bytes, encoding: str) -> str:
    """Return the text of a whole file, without its byte order mark. Raises Rejection (stage
    `decode`), which names the byte."""
    # millions of small files
    if encoding == "utf-8" and data[:1] < b"\xef" and not data.startswith(codecs.BOM_UTF32_BE):
        if wide := unmarked_wide(data):
            raise looks_wide("decode", wide)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise undecoded(encoding, error.start) from None
    if encoding == DETECT:
        encoding = detect(data[:DETECTED_BYTES], len(data) <= DETECTED_BYTES)
    own, mark = resolve(encoding, data[:4])
    if data.startswith(codecs.BOM_UTF8):
        mark = len(codecs.BOM_UTF8)
    try:
        return data[mark:].decode(own)
    except UnicodeDecodeError as error:
        raise undecoded(own, error.start + mark) from None


def undecoded(encoding: str, position: int | None, where: str = "") -> Rejection:
    """Return why a text is rejected that has bytes, the first of them at `position`, that are none
    in its encoding."""
    at = "" if position is None else f" at byte {position}{where}"
    if encoding == "utf-8":
        return Rejection("decode", "not-utf8", f"not UTF-8{at}; {OTHER_ENCODING}")
    return Rejection(
        "decode",
        "wrong-encoding",
        f"not {encoding}{at}; name its encoding with --encoding, or mend the file",
    )


_FOUND = threading.local()
"""Where the decoder of this thread found bytes that it could not decode (`starts`), in the bytes
that it was working on."""


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Note the place, put U+DCFF there, and go on one byte (or code unit) further, so that no line
    end is swallowed."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _FOUND.starts.append(error.start)
    return "\udcff", error.end if error.encoding.lower().startswith("utf") else error.start + 1


def _mark_surrogates(error: UnicodeError) -> tuple[bytes, int]:
    """Write a half of a surrogate pair as the byte that is no UTF-8: those of `_mark` and any that
    a codec let through."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return UNDECODED * (error.end - error.start), error.end


codecs.register_error("shardctl.mark", _mark)
codecs.register_error("shardctl.mark-surrogates", _mark_surrogates)


class Transcoder:
    """Turns bytes in some encoding into UTF-8, a stretch at a time; the byte FF stands where bytes
    could not be decoded.

    `undecoded` has the place, counted from the first byte, of each FF that was given, in order.
    """

    def __init__(self, encoding: str, position: int) -> None:
        self.undecoded = array("q")
        self._decoder = codecs.getincrementaldecoder(encoding)("shardctl.mark")
        self._position = position  # of the next byte

    def feed(self, data: bytes, final: bool = False) -> bytes:
        """Return the text of these bytes, as far as its characters are complete; all of it at the
        end."""
        waiting = len(self._decoder.getstate()[0])
        _FOUND.starts = []
        text = self._decoder.decode(data, final)
        base = self._position - waiting
        self.undecoded.extend(base + start for start in _FOUND.starts)
        self._position += len(data)
        return text.encode("utf-8", "shardctl.mark-surrogates")


def detect(data: bytes, whole: bool = True) -> str:
    """Return the encoding of a file that begins with `data`, up to DETECTED_BYTES of it, or is all
    of it (`whole`).

    The same bytes give the same answer. Looked at are a byte order mark, NUL bytes as in UTF-16 and
    UTF-32, escape sequences, whether all is UTF-8; else charset-normalizer judges the lines with
    bytes over 127. Raises Rejection (stage `decode`) if it finds none, InstallError.
    """
    from_bytes = needed("charset_normalizer", "detect", "--encoding detect").from_bytes
    if found := marked_encoding(data):
        return found
    if is_utf8(data, whole):
        return "utf-8"
    if not whole:
        data = data[: data.rfind(b"\n") + 1] or data  # half a character at the end fits no encoding
    best = from_bytes(doubtful_lines(data), cp_isolation=_DETECTED, enable_fallback=False).best()
    if best is None:
        raise Rejection(
            "decode",
            "unknown-encoding",
            "its encoding could not be found; name it with --encoding, or recode the file",
        )
    own = codecs.lookup(best.encoding).name
    return _WIDER.get(own, own)


def marked_encoding(data: bytes) -> str | None:
    """Return the encoding that a byte order mark, NUL bytes or escape sequences show; None where
    there are none of these."""
    marked = next((own for mark, own in BOMS if data.startswith(mark)), None)
    if found := marked or _by_zeros(data) or unmarked_wide(data):
        return found
    if b"\x1b" not in data or not data.isascii():
        return None
    return next((own for escape, own in _ESCAPES.items() if escape in data), None)


def _by_zeros(data: bytes) -> str | None:
    """Tell UTF-16 and UTF-32 without a byte order mark by where their NUL bytes are: text in UTF-8
    hardly has any."""
    sample = data[:SAMPLE_BYTES]
    units = len(sample) // 4
    if not units or sample.count(0) * 16 < len(sample):
        return None
    zeros = [sample[place : units * 4 : 4].count(0) for place in range(4)]
    if zeros[3] == units and zeros[2] * 2 > units:
        return "utf-32-le"
    if zeros[0] == units and zeros[1] * 2 > units:
        return "utf-32-be"
    even, odd = zeros[0] + zeros[2], zeros[1] + zeros[3]
    return "utf-16-le" if odd > 4 * even else "utf-16-be" if even > 4 * odd else None


def doubtful_lines(data: bytes) -> bytes:
    """Return up to SAMPLE_BYTES of the lines with bytes over 127, from the first one that is not
    UTF-8 on."""
    lines: list[bytes] = []
    size = 0
    for line in data.split(b"\n"):
        if not line.isascii() and (lines or not is_utf8(line)):
            lines.append(_up_to(line, SAMPLE_BYTES))
            size += len(lines[-1])
            if size >= SAMPLE_BYTES:
                break
    return b"\n".join(lines)


def _up_to(line: bytes, size: int) -> bytes:
    """Cut a long line after a space or a sign below the digits, which are no second half of a
    character in any encoding."""
    if len(line) <= size:
        return line
    cut = max(line.rfind(sign, 0, size) for sign in (b" ", b",", b".", b"/"))
    return line[: cut + 1] if cut > size // 2 else line[:size]


LEAST = 0.5
"""A guess needs this share of the common characters that ordinary text has."""

_LEVEL = 0.05
"""Encodings whose scores differ by no more than this are equally likely: the one with fewer errors
wins, then the one that is more common."""


class Script(NamedTuple):
    """Texts that are written alike: the encodings for them, the common ones first, each with the
    name that people know it by.

    In ordinary text, the share `share` of the characters that are not ASCII are among the `common`
    ones. With `accents` such characters stand alone among ASCII letters; without, they make whole
    words. `known` gives more characters, which a list of names has: an encoding, and a range of
    first bytes of its characters of two bytes.
    """

    encodings: dict[str, str]
    common: str
    share: float
    accents: bool = False
    known: tuple[str, int, int] | None = None


class Guess(NamedTuple):
    """An encoding that a file may be in: Python's name of it, the name that people know, and how a
    line of the file reads."""

    name: str
    known: str
    line: str


_KANA = "".join(map(chr, range(0x3041, 0x30FF)))

_SIGNS = "\u00a0°«»\u2018\u2019“”„\u2013—…©®§·€£"

_WESTERN = {"cp1252": "Latin-1 or Windows-1252 (Western European)"}
_WESTERN_LETTERS = (
    "éèêëàâçîïôöùûüœæÉÈÊÀÂÇÎÔ",  # French
    "äöüßÄÖÜéèëïàáêâôû",  # German, Dutch
    "åäöæøéÅÄÖÆØÉüòà",  # Danish, Norwegian, Swedish
    "áðéíóúýþæöøÁÐÉÍÓÚÝÞÆÖØ",  # Icelandic, Faroese
    "äõöüÄÕÖÜšžŠŽ",  # Estonian, Finnish
    "áéíóúñüÁÉÍÓÚÑ¿¡ªºàèìòùïçÀÈÌÒÙÇ",  # Spanish, Catalan, Italian
    "áâãàçéêíóôõúüÁÂÃÀÇÉÊÍÓÔÕÚªº",  # Portuguese
)
_CENTRAL = {
    "iso8859_2": "ISO-8859-2 (Central European)",
    "cp1250": "Windows-1250 (Central European)",
}
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
        {"gb18030": "GBK (Chinese)"},
        "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日，。、“”",
        0.4,
        known=("gb2312", 0xB0, 0xD7),
    ),
    Script(
        {"big5": "Big5 (Chinese)", "big5hkscs": "Big5-HKSCS (Chinese)"},
        "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家種事成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日，。、「」",
        0.4,
        known=("big5", 0xA4, 0xC6),
    ),
    Script(
        {"cp932": "Shift-JIS (Japanese)", "euc_jp": "EUC-JP (Japanese)"},
        _KANA + "、。「」日本人年大国",
        0.5,
        known=("euc_jp", 0xB0, 0xCF),
    ),
    Script(
        {"cp949": "EUC-KR (Korean)", "johab": "Johab (Korean)"},
        "이다의는에을를가고하은로지도사기한들리인나자시어아대서그있해전부여정수보과와일만게라스원으상장제조주구용신국등성문것생학면되동",
        0.45,
        known=("euc_kr", 0xB0, 0xC8),
    ),
    *(Script(_WESTERN, letters + _SIGNS, 0.98, accents=True) for letters in _WESTERN_LETTERS),
    Script(
        {
            "cp1251": "Windows-1251 (Cyrillic)",
            "koi8_r": "KOI8-R (Russian)",
            "iso8859_5": "ISO-8859-5 (Cyrillic)",
            "cp866": "CP866 (Cyrillic)",
            "mac_cyrillic": "Mac Cyrillic",
        },
        "оеаинтсрвлкмдпуяыьгзбйхіј",
        0.85,
    ),
    *(Script(_CENTRAL, letters + _SIGNS, 0.98, accents=True) for letters in _CENTRAL_LETTERS),
    Script({"cp1254": "Windows-1254 (Turkish)"}, "ığşçöüİŞÇÖÜĞâîû" + _SIGNS, 0.98, accents=True),
    Script(
        {"cp1253": "Windows-1253 (Greek)", "iso8859_7": "ISO-8859-7 (Greek)"},
        "αοιετσνηυρπκμλςήίάόέύώδγ",
        0.85,
    ),
    Script({"cp1255": "Windows-1255 (Hebrew)"}, "יוהלארתבמשנםעדקחפגכ", 0.85),
    Script(
        {"cp1256": "Windows-1256 (Arabic)", "iso8859_6": "ISO-8859-6 (Arabic)"},
        "المينرتوبسعدهقفحجكةأ",
        0.85,
    ),
    Script({"cp874": "TIS-620 (Thai)"}, "านรอกเงยลมวสทดตคปจบหพใชขไแะีิัุ่้", 0.9),
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
        for name, known in script.encodings.items()
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
    ordinary = frozenset(script.common)
    known = ordinary | _characters(*script.known) if script.known else ordinary
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
            common += sum(char in ordinary for char in chars)
            names += sum(char in known for char in chars)
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
