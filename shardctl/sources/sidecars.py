"""Files that describe others, or repeat them, and are no inputs themselves: indexes, lists of
features, copies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TypeVar

from shardctl.errors import InputError
from shardctl.format.names import CHECKSUMS
from shardctl.sources.export_description import (
    DEEPEST,
    DESCRIPTION,
    Description,
    from_root,
    located,
    loose_names,
    may_be_of_export,
)
from shardctl.sources.files import SourceRoot, exists, version_of
from shardctl.sources.format_table import INPUT_FORMATS, Sidecar
from shardctl.sources.formats import import_attribute
from shardctl.sources.formats.beside import FAULTS_OF_JSON, is_beside, json_in
from shardctl.sources.walk import FolderFiles, FoundFile, LeftOut
from shardctl.system.locations import folders_above, join, normal, parent_of, path_below
from shardctl.system.text import counted, printable

_Found = TypeVar("_Found")

_OWN = (
    Sidecar((".json",), r"shardctl\.json", keys=(frozenset(("format", "to")),)),
    Sidecar(("",), re.escape(CHECKSUMS)),
)
"""The files of an export of shardctl that describe its other files."""


def _by_ending(pairs: Iterable[tuple[Iterable[str], _Found]]) -> dict[str, list[_Found]]:
    """Return a dictionary by ending of the pairs' second parts."""
    found: dict[str, list[_Found]] = {}
    for endings, each in pairs:
        for ending in endings:
            found.setdefault(ending, []).append(each)
    return found


_SIDECARS = _by_ending(
    (sidecar.endings, (sidecar, re.compile(sidecar.name, re.DOTALL)))
    for sidecar in (*_OWN, *(sidecar for row in INPUT_FORMATS for sidecar in row.sidecars))
)
_SIDECAR_NAMES = {
    ending: re.compile("|".join(f"(?:{sidecar.name})" for sidecar, _ in rules), re.DOTALL)
    for ending, rules in _SIDECARS.items()
}
"""Whether a name is that of any sidecar with this ending: one look tells it of nearly all files."""

_EXCLUSIONS = _by_ending(
    (endings, rule) for row in INPUT_FORMATS for endings, rule in [row.excluded] if endings
)
_FOLDERS = _by_ending(
    (row.folder[0], (re.compile(row.folder[1]), row.folder[2]))
    for row in INPUT_FORMATS
    if row.folder is not None
)

_FAILURES = ".parquet"
"""The ending of tables of img2dataset."""

_NUMBERED = tuple(f"{ending}-" for row in INPUT_FORMATS if row.of_tfds for ending in row.endings)
"""How the endings of numbered files begin."""

_SPLIT_FILE = re.compile(r"^(\w+)-(\w+)\.[a-z_]+-\d+-of-\d+$")
"""How TFDS names a file: DATASET-SPLIT.FORMAT-NUMBER-of-ALL."""


SplitOf = Callable[[str, str], str | None]
"""Returns the split of a file, by its name and by what it is opened; None if nothing tells it."""


def declared_splits() -> SplitOf:
    """Return what tells in one walk which split a file is in because a shardctl.json or a
    dataset_info.json of TFDS says so."""
    in_export = cache(may_be_of_export)

    def split_of(name: str, opened: str) -> str | None:
        folder = parent_of(opened)
        if in_export(folder) and (of_export := located(opened)) is not None:
            export, below = of_export
            return export.split_of(below)
        found = _SPLIT_FILE.match(name) if "-of-" in name else None
        return found[2] if found and found[2] in _splits_beside(folder, found[1]) else None

    return split_of


@lru_cache(64)
def _splits_beside(folder: str, dataset: str) -> frozenset[str]:
    """Return the splits of a dataset in a folder of TFDS, none where it is no such folder."""
    try:
        record = json_in(join(folder, "dataset_info.json"))
        splits = record["splits"] if record["name"] == dataset else ()
        return frozenset(str(split["name"]) for split in splits)
    except FAULTS_OF_JSON:
        return frozenset()


def inputs_among(
    folders: Iterable[FolderFiles],
    roots: Sequence[SourceRoot],
    notice: Callable[[str], None],
    beside: list[FoundFile],
) -> Iterator[FolderFiles]:
    """Yield the files that may be inputs, and leave out those that describe or repeat others.

    Those that decide what is read of others are added to `beside`: lists of features, indexes, the
    tokens of Megatron. Raises InputError where such a file lists others that are not there: they
    would be missing silently.
    """
    named = {normal(root.text) for root in roots if not root.is_folder}
    series, left_out, tables, lost = Counter[_Series](), dict[str, LeftOut](), 0, list[str]()

    def is_input(file: FoundFile) -> bool:
        nonlocal tables
        name = file.name
        if file.suffix in _FOLDERS and (standing := _file_of_folder(file)) is not None:
            return file.opened == standing
        if (sidecar := _sidecar_of(name, file)) is not None:
            if sidecar.use != "nothing":
                beside.append(file)
            if sidecar.missing and (sentence := import_attribute(sidecar.missing)(file)):
                lost.append(f"{MISSING}{sentence}")
            if name == DESCRIPTION:
                _refuse_other_files(file.opened)
            return False
        if file.fault is not None:
            return True
        rules = (import_attribute(rule)(file, name) for rule in _EXCLUSIONS.get(file.suffix, ()))
        if why := next(filter(None, rules), None):
            left_out.setdefault(why, LeftOut()).add(file.path)
            return False
        if name.endswith(_FAILURES):
            tar = f"{name.removesuffix(_FAILURES)}.tar"
            # a table that a person names is left out only if they name its tar too
            if is_beside(file, tar) and (
                roots[file.root].is_folder or join(parent_of(file.opened), tar) in named
            ):
                tables += 1
                return False
        return True

    for files in folders:
        for name in files.names:
            if "-of-" in name and (match := _OF_SERIES.match(name)):
                series[files.folder, match[1], match[4] or "", int(match[3])] += 1
        yield files.without({n for n in _depending(files) if not is_input(files.file(n))})
    for why, these in left_out.items():
        notice(f"left out: {these.counted('file', 'files')}: {why}")
    for (folder, stem, ending, wanted), found in series.items():
        if found < wanted:
            within = f"{folder}/" if folder else ""
            shown = printable(f"{within}{stem}-…-of-{wanted:05d}{ending}")
            lost.append(
                f"{MISSING}of the {wanted:,} files {shown} {found:,} are there; get the others"
            )
    for sentence in lost:
        notice(sentence)
    if tables:
        notice(
            f"left out: {counted(tables, 'table')} of img2dataset beside tars, with what could "
            "not be downloaded"
        )


def _depending(files: FolderFiles) -> list[int]:
    """Return the places of the files that may be no inputs because of others in their folder: few,
    of millions."""
    names = dict[str, re.Pattern[str]]()
    for suffix in set(files.suffixes):
        of_folder = (path for path, _ in _FOLDERS.get(suffix, ()))
        if (
            any(path.search(f"{files.opened}0{suffix}") for path in of_folder)
            or suffix in _EXCLUSIONS
            or suffix == _FAILURES
            or suffix.startswith(_NUMBERED)
        ):
            names[suffix] = _ANY
        elif suffix in _SIDECAR_NAMES:
            names[suffix] = _SIDECAR_NAMES[suffix]
    if not names:
        return []
    return [
        place
        for place, (name, suffix) in enumerate(zip(files.names, files.suffixes, strict=True))
        if (pattern := names.get(suffix)) is not None and pattern.fullmatch(name) is not None
    ]


_ANY = re.compile(r"(?s).*")


def _file_of_folder(file: FoundFile) -> str | None:
    """Return the path of the file that stands for the folder that a file is in, None if the folder
    is not one input."""
    for path, name in _FOLDERS[file.suffix] if file.fault is None else ():
        found: str | None = import_attribute(name)(file) if path.search(file.opened) else None
        if found is not None:
            return found
    return None


def _sidecar_of(name: str, file: FoundFile) -> Sidecar | None:
    """Return what a file is beside others, None for one that may be an input."""
    # nearly all
    if file.suffix not in _SIDECARS or _SIDECAR_NAMES[file.suffix].fullmatch(name) is None:
        return None
    for sidecar, pattern in _SIDECARS[file.suffix]:
        match = pattern.fullmatch(name)
        if match is None or (file.fault is not None and sidecar.use == "describes"):
            continue
        # Match.expand takes 5 µs: it parses the name each time
        group = match[1] if match.lastindex else ""
        others = [other.replace(r"\1", group) for other in sidecar.beside]
        if others and not any(is_beside(file, other) for other in others):
            continue
        with suppress(*FAULTS_OF_JSON):
            there = set(json_in(file.opened).keys() if sidecar.keys else ())
            if not sidecar.keys or any(keys <= there for keys in sidecar.keys):
                return sidecar
    return None


def refuse_part_of_export(folder: str) -> None:
    """Raise InputError for a folder in an export, of whose splits files of one sample each are
    lost, labels among them."""
    absolute = from_root(folder)
    above = next(
        (each for each in folders_above(absolute)[:DEEPEST] if exists(join(each, DESCRIPTION))),
        None,
    )
    if above is None:
        return
    try:
        export = Description.load(above)
        below = path_below(absolute, above) or "."
        if export.loose is None:
            return
        splits = export.loose.splits_in(below)
        for name in loose_names(above, export) if splits else ():
            if export.loose.split_of(name) in splits:
                _size_of(join(above, name), join(above, DESCRIPTION))
    except (OSError, ValueError):  # without SHA256SUMS nothing is known of them
        return


def _refuse_other_files(description: str) -> None:
    """Raise InputError if an export lists files that are not there, or that have another size."""
    folder = parent_of(description)
    try:
        export = Description.load(folder)
    except (OSError, ValueError):
        return
    for name, facts in export.files.items():
        size = _size_of(join(folder, name), description)  # checked: it stays in the folder
        if size != facts.bytes:
            raise _another_size(join(folder, name), f"has {size:,} bytes", facts.bytes)
    try:
        sizes = sum(
            _size_of(join(folder, name), description) for name in loose_names(folder, export)
        )
    except (OSError, ValueError):
        raise InputError(
            f"{printable(folder)}: its {CHECKSUMS} is lost or changed; get it again, or move {DESCRIPTION} away"
        ) from None
    if export.loose is not None and sizes != export.loose.bytes:
        raise _another_size(
            folder,
            f"its files of one sample each have {sizes:,} bytes (`shardctl verify` names damaged ones)",
            export.loose.bytes,
        )


def _size_of(file: str, description: str) -> int:
    """Return the size of a file that a description lists. Raises InputError if it is not there."""
    try:
        return version_of(file)[0]
    except OSError:
        raise InputError(
            f"{printable(description)}: lists {printable(file)}, which is not there; get it"
        ) from None


def _another_size(file: str, what: str, wanted: int) -> InputError:
    return InputError(
        f"{printable(file)}: {what}, but {DESCRIPTION} says {wanted:,}; get it again, or move {DESCRIPTION} away"
    )


MISSING = "missing: "
"""What a notice begins with that is about shards which should be there."""

_OF_SERIES = re.compile(r"^(.*?)-(\d{3,})-of-(\d{3,})(\..*)?$")


_Series = tuple[str, str, str, int]
"""Files that say in their names how many there are of them, NAME-00000-of-00008: their folder, what
is before and behind that, and how many."""
