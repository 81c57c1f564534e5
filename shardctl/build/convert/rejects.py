"""Rejected inputs: whether there are too many of them, and copies of them for inspection."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.build.convert.conversion_plan import is_failing
from shardctl.build.convert.result import count_rejects
from shardctl.build.options import reject_limit
from shardctl.build.plan.listing import Listing
from shardctl.build.shards.probe import Probe
from shardctl.errors import Rejection, SourceGoneError, StorageError, TooManyRejectsError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, PLAN, REJECTS
from shardctl.format.tables import PLAN_SCHEMA, Reject, failures, open_table, read_rejects
from shardctl.sources.files import begin_of, local_copy
from shardctl.sources.formats.encodings import SAMPLE_BYTES, doubtful_lines, marked_encoding
from shardctl.sources.formats.streams import compression_of, decompressed
from shardctl.sources.kinds.text import LINES
from shardctl.sources.walk import suffix_of
from shardctl.system.dataclass import dataclass
from shardctl.system.files import (
    PARTIAL,
    READ_CHUNK,
    copy_file,
    make_folder,
    naming_the_path,
    ordinary,
    refuse_link,
    replacing,
    sha256_of,
)
from shardctl.system.locations.local import LocalFolder
from shardctl.system.locations.text import is_stored
from shardctl.system.text import counted, printable

COPIES = ".shardctl-copies"
"""The file, in the folder of the copies, that tells which ones were made here. No walk over sources finds a hidden file."""

OF_TEXT = frozenset(("not-utf8", "wrong-encoding", "not-json", "no-byte-order-mark"))
"""Errors of texts that may be in another encoding."""


def refuse_many_rejects(folder: LocalFolder, manifest: Manifest, most: str | int | None) -> None:
    """Raise TooManyRejectsError if a finished dataset has more rejects than `most` (`N` or `P%` of the inputs) allows."""
    if manifest.rejected > reject_limit(most, manifest.inputs):
        rejects = count_rejects(manifest.rejected, manifest.inputs)
        raise TooManyRejectsError(
            f"{folder.shown()}: the dataset is complete, with {rejects}, more than --max-rejects allows; {REJECTS} has"
            " the reasons"
        )


def refuse_failing(probe: Probe, listing: Listing) -> None:
    """Raise TooManyRejectsError if more than half of the inputs that were tried beforehand cannot be converted."""
    if not is_failing(probe):
        return
    failed = failures(probe.reasons)
    count = sum(failed.values())
    reason = next(iter(failed))
    example = next(each for each in probe.examples if f"{each.stage}: {each.error}" == reason)
    of_all = f"the {counted(probe.records, 'input')} that were tried" if probe.records > 1 else "1 input that was tried"
    most = "" if failed[reason] == count else f" Most frequent ({failed[reason]:,}): {reason}."
    encoding = _advice_on_encoding(example, listing)
    why = example.message.partition(";")[0] if encoding else example.message
    others = "To convert what is left anyway" if count < probe.records else "To convert others, if there are any that can be"
    raise TooManyRejectsError(
        f"{count:,} of {of_all} cannot be converted, and nothing was written.{most} For instance {printable(example.key)}:"
        f" {printable(why)}.{encoding} {others}: --max-rejects 100%"
    )


def _advice_on_encoding(reject: Reject, listing: Listing) -> str:
    """Say which encoding the file of a rejected text seems to be in, "" if that is not why it is rejected."""
    if not may_be_encoding(reject, listing):
        return ""
    if (found := likely_encoding(reject, listing)) is not None:
        return f" The file looks like {found.known}: add --encoding {found.name}. A line reads then: '{found.line}'."
    return "" if reject.error == "not-json" else " Give its encoding with --encoding (detect tries to find it)."


def may_be_encoding(reject: Reject, listing: Listing) -> bool:
    """Return whether a text may be rejected because its file is in another encoding."""
    return reject.error in OF_TEXT and listing.kind.name != "image"


def likely_encoding(reject: Reject, listing: Listing) -> Guess | None:
    """Return the encoding that the file of a reject is likely in; None where none is, or it cannot be read any more."""
    place = listing.table["path"].index(pa.scalar(reject.source)).as_py()
    with contextlib.suppress(OSError, Rejection, SourceGoneError):
        opened = listing.opened(listing.table.slice(place, 1).to_pylist()[0])
        return guess_encoding(_beginning(opened))
    return None


def _beginning(path: str) -> bytes:
    """Return the first bytes of a text, decompressed. Raises OSError, Rejection, SourceGoneError."""
    start = begin_of(path, SAMPLE_BYTES)
    way = compression_of(start)
    if way is None:
        return start
    with open(local_copy(path), "rb") as file:
        return next(decompressed(file, way), b"")[:SAMPLE_BYTES]


def copy_rejects(dataset: LocalFolder, bases: tuple[str, ...], folder: Path) -> int:
    """Copy the inputs that a dataset rejected to `folder`, under their own paths, and return how many there are.

    A file that is one record is copied whole; of a file of lines its rejected ones are put together in a file of the same
    name; of other files of many records all is copied. What cannot be read is left out. rejects.jsonl goes along. Raises
    StorageError if `folder` cannot be written, or has a file that would be replaced and is no copy from before.
    """
    copied = 0
    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
        copies = _Copies(folder)
        copies.claim(folder / REJECTS, sha256_of(dataset.path(REJECTS)), str(dataset.path(REJECTS)))
        begun: set[Path] = set()
        rejects = _RejectedRecords(dataset.path(REJECTS))
        with _joining(copies) as joined:
            for row in _rejected_units(dataset):
                source, place = f"{bases[row['root']]}/{row['path']}", folder / row["path"]
                records = rejects.of_unit(row)
                if ".." in Path(row["path"]).parts:
                    continue
                make_folder(place.parent, folder)  # a link may lead back to the sources
                with contextlib.suppress(_UnreadableError):
                    if suffix_of(place.name) in LINES and row["first"]:
                        _append(source, row, records, place, joined)
                    elif place not in begun:
                        _copy(source, place, copies)
                    begun.add(place)
                    copied += row["rejected"]
        copy_file(dataset.path(REJECTS), folder / REJECTS)
    return copied


class _Copies:
    """The folder of the copies. A file in COPIES has the SHA-256 of each, so that the same command may replace them again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._marks = folder, folder / COPIES
        self._known = set(_read_marks(self._marks))

    def claim(self, place: Path, sha256: str, source: str) -> None:
        """Note that a copy of `source` with this SHA-256 takes a place.

        Raises StorageError if something is there that is neither the same, nor a copy from before, nor another name of
        `source`: it may be a person's only copy.
        """
        name = place.relative_to(self._folder).as_posix()
        if os.path.lexists(place) and not _is_other_name(place, source):
            there = sha256_of(place)
            if there != sha256 and (name, there) not in self._known:
                raise StorageError(
                    f"{printable(str(place))}: no copy that --copy-rejects has made, or it was changed since, and a copy is to"
                    " go there; move it away, or give another folder"
                )
        if (name, sha256) not in self._known:
            self._known.add((name, sha256))
            with naming_the_path(self._marks), open(self._marks, "a", opener=_ours) as marks:
                marks.write(json.dumps({"path": name, "sha256": sha256}) + "\n")


def _is_other_name(place: Path, source: str) -> bool:
    """Return whether this is a hard link to a file, which stays under its own name."""
    if is_stored(source):
        return False
    with contextlib.suppress(OSError):
        return place.samefile(source) and place.resolve() != Path(source).resolve() and place.lstat().st_nlink > 1
    return False


def _ours(path: str, flags: int) -> int:
    """Open a file that is no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _read_marks(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and SHA-256 of the copies of earlier calls. A line that is none is of a call that was killed."""
    if not os.path.lexists(path):
        return
    refuse_link(path)
    with open(path, "rb", opener=ordinary) as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                yield record["path"], record["sha256"]


@contextlib.contextmanager
def _joining(copies: _Copies) -> Iterator[dict[Path, tuple[Path, str]]]:
    """Yield a dict to which files of lines are added, each with its input, by their places, which they take in the end."""
    joined: dict[Path, tuple[Path, str]] = {}
    try:
        yield joined
        for place, (partial, source) in joined.items():
            copies.claim(place, sha256_of(partial), source)
            partial.replace(place)
    except BaseException:
        for partial, _ in joined.values():
            with contextlib.suppress(OSError):  # the fault above is the one to tell of
                partial.unlink(missing_ok=True)
        raise


class _RejectedRecords:
    """The numbers of the rejected records of each unit, asked for in the order of the plan."""

    def __init__(self, path: Path) -> None:
        self._rejects = read_rejects(LocalFolder(path.parent), path.name)

    def of_unit(self, row: dict[str, Any]) -> set[int]:
        """Return the numbers of as many rejects as a unit has."""
        records: set[int] = set()
        left = row["rejected"]
        while left > 0 and (reject := next(self._rejects, None)):
            number = reject.key.rpartition("#")[2] if row["first"] else "0"
            first = int(number) if number.isdecimal() else 0
            records.update(range(first, first + reject.records))
            left -= reject.records
        return records


def _rejected_units(dataset: LocalFolder) -> Iterator[dict[str, Any]]:
    """Yield the units that have rejected records, with the path and the root of their files."""
    import pyarrow.compute as pc  # 40 ms that only this needs

    files = open_table(dataset, FILES).select(["path", "root"])
    for batch in open_table(dataset, PLAN, PLAN_SCHEMA).to_batches(max_chunksize=65536):
        for row in batch.filter(pc.greater(batch.column("rejected"), 0)).to_pylist():
            yield {**row, **files.slice(row["file"], 1).to_pylist()[0]}


class _UnreadableError(Exception):
    """An input cannot be read, which is no fault of the folder that its copy goes to."""


def _copy(source: str, place: Path, copies: _Copies) -> None:
    """Copy a file. A copy from before is replaced, not written into: it may be a hard link to the source."""
    with replacing(place) as sink:
        for data in _chunks(source, 0, None):
            sink.write(data)
        sink.sync()
        copies.claim(place, sink.sha256, source)


def _append(source: str, row: dict[str, Any], records: set[int], place: Path, joined: dict[Path, tuple[Path, str]]) -> None:
    """Add the rejected lines of a unit to the file that takes `place`."""
    lines = b"".join(_chunks(source, row["offset"], row["size"])).split(b"\n")
    if place not in joined:
        joined[place] = place.with_name(f"{place.name}.{secrets.token_hex(4)}{PARTIAL}"), source
    with open(joined[place][0], "ab") as out:
        for number, line in enumerate(lines, row["first"] - row["skip"]):
            if number in records:
                out.write(line + b"\n")


def _chunks(source: str, offset: int, size: int | None) -> Iterator[bytes]:
    """Yield the bytes of a file, or of a part of it."""
    try:
        path = Path(local_copy(source))
        if not path.is_file():  # to open a pipe would wait for a writer
            raise FileNotFoundError
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            while data := file.read(READ_CHUNK if size is None else min(size, READ_CHUNK)):
                yield data
                size = None if size is None else size - len(data)
    except (OSError, Rejection) as error:
        raise _UnreadableError from error


# --- a guess at the encoding of a text that is not UTF-8, for what a message advises: nothing is decoded with it ---
#
# Of short texts it is right more often than charset-normalizer, which `--encoding detect` asks (formats/encodings.py): 36 of
# 36 recorded ones against 30, and 79 of 91 translations of the Declaration of Human Rights against 53 (2026-11-28).

LEAST = 0.5
"""A guess needs this share of the common characters that ordinary text has."""

_LEVEL = 0.05
"""Encodings whose scores differ by no more than this are equally likely: the one with fewer errors wins, then the one
that is more common."""


@dataclass(frozen=True)
class Script:
    """Texts that are written alike: the encodings for them, the common ones first, each with the name that people know it by.

    Of the characters that are not ASCII, `share` are among the `common` ones in ordinary text. `accents` says that they stand
    alone among ASCII letters; those of other scripts make whole words. `known` is where the characters are that a list of names
    has too: an encoding, and the first bytes of those of two.
    """

    encodings: tuple[tuple[str, str], ...]
    common: frozenset[str]
    share: float
    accents: bool = False
    known: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Guess:
    """An encoding that a file may be in: Python's name of it, the name that people know, and how a line of the file reads."""

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
_CENTRAL = (("iso8859_2", "ISO-8859-2 (Central European)"), ("cp1250", "Windows-1250 (Central European)"))
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
    *(Script(_WESTERN, frozenset(letters) | _SIGNS, 0.98, accents=True) for letters in _WESTERN_LETTERS),
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
    *(Script(_CENTRAL, frozenset(letters) | _SIGNS, 0.98, accents=True) for letters in _CENTRAL_LETTERS),
    Script((("cp1254", "Windows-1254 (Turkish)"),), frozenset("ığşçöüİŞÇÖÜĞâîû") | _SIGNS, 0.98, accents=True),
    Script(
        (("cp1253", "Windows-1253 (Greek)"), ("iso8859_7", "ISO-8859-7 (Greek)")), frozenset("αοιετσνηυρπκμλςήίάόέύώδγ"), 0.85
    ),
    Script((("cp1255", "Windows-1255 (Hebrew)"),), frozenset("יוהלארתבמשנםעדקחפגכ"), 0.85),
    Script(
        (("cp1256", "Windows-1256 (Arabic)"), ("iso8859_6", "ISO-8859-6 (Arabic)")), frozenset("المينرتوبسعدهقفحجكةأ"), 0.85
    ),
    Script((("cp874", "TIS-620 (Thai)"),), frozenset("านรอกเงยลมวสทดตคปจบหพใชขไแะีิัุ่้"), 0.9),
)


def guess_encoding(data: bytes) -> Guess | None:
    """Return the encoding that a file beginning with `data` is likely in; None if it does not look like text."""
    if (marked := marked_encoding(data)) is not None:
        name = marked.replace("_", "-")
        line = next(filter(str.strip, data[: 4 * _SHOWN_BYTES].decode(marked, "replace").lstrip("\ufeff").splitlines()), "")
        return Guess(name, name.upper(), _shown(line))
    sample = doubtful_lines(data)
    if not sample or sample.count(0):
        return None
    scores = [(*_score(sample, name, script), name, known) for script in _SCRIPTS for name, known in script.encodings]
    top = max(score for score, *_ in scores)
    if top < LEAST:
        return None
    # Of those that are equally likely, the one with fewer errors, then the one that is more common.
    *_, name, known = min((each for each in scores if each[0] >= top - _LEVEL), key=lambda each: each[1])
    line = next((line for line in sample.decode(name, "replace").split("\n") if not line.isascii()), "")
    return Guess(name, known, _shown(line))


_NAMES = 0.8
"""The score of characters that are common ones of a script, and not in the proportion of sentences: a list of names."""

_SHOWN_BYTES = 240

_SHOWN = 60
"""Characters of a line that are shown."""


def _shown(line: str) -> str:
    """Return a line as a message may have it: a part of it, from a little before its first character that is not ASCII on."""
    place = next((place for place, char in enumerate(line) if not char.isascii()), 0)
    line = line[max(0, place - _SHOWN // 3) :].strip()
    return printable(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")


_WORDS = re.compile(r"[A-Za-z]?[^\x00-\x7f]+[A-Za-z]?")
"""Characters that are not ASCII, with the ASCII letters beside them."""

_NOT_IN_WORDS = ("Cc", "Co", "Cn", "So")
"""Categories of characters that show a wrong guess: controls, unassigned ones, frames, what stands for an error."""

_LONGEST_ACCENTS = 2
"""So many letters with accents follow each other at most."""


def _score(sample: bytes, encoding: str, script: Script) -> tuple[float, int]:
    """Return how much a text looks like one of a script, 0 to 1, if it is decoded so; and how many characters no text has."""
    total = common = names = odd = 0
    known = _characters(*script.known) if script.known else frozenset[str]()
    for found in _WORDS.finditer(sample.decode(encoding, "replace")):
        run = found[0]
        chars = [char for char in run if not char.isascii()]
        total += len(chars)
        odd += sum(unicodedata.category(char) in _NOT_IN_WORDS for char in chars)
        odd += sum(one.islower() and other.isupper() for one, other in pairwise(run))
        if len(chars) <= _LONGEST_ACCENTS if script.accents else len(chars) > 1 or len(run) == 1 or script.known:
            common += sum(char in script.common for char in chars)
            names += sum(char in known or char in script.common for char in chars)
    if not total:
        return 0.0, odd
    likely = max(min(1.0, common / total / script.share), _NAMES * names / total if names * 10 >= total * 8 else 0.0)
    return max(0.0, likely - 2 * odd / total), odd


@cache
def _characters(encoding: str, first: int, last: int) -> frozenset[str]:
    """Return the characters of two bytes whose first one is in a range."""
    pairs = (bytes((one, two)) for one in range(first, last + 1) for two in range(0x40, 0xFF))
    return frozenset(char for pair in pairs if len(char := pair.decode(encoding, "ignore")) == 1 and not char.isascii())
