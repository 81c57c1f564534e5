"""Files that describe others, or repeat them, and are no inputs themselves: indexes, lists of features, copies."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.names import CHECKSUMS
from shardctl.sources.export_description import DEEPEST, DESCRIPTION, Description, located, loose_names, may_be_of_export
from shardctl.sources.remote.remote_files import exists, is_brought, local, version_of
from shardctl.sources.small_files import read_small
from shardctl.sources.walk import FoundFile, LeftOut, suffix_of
from shardctl.system.text import counted, printable

MOST_BYTES = 64 << 20
"""The largest file that is looked at: an index of 100,000 shards."""

_KEYS: dict[str, tuple[frozenset[str], ...]] = {
    "index.json": (frozenset(("shards", "version")), frozenset(("chunks", "config"))),
    "features.json": (frozenset(("featuresDict",)), frozenset(("sequence",)), frozenset(("pythonClassName",))),
    "dataset_info.json": (frozenset(("features",)), frozenset(("splits",)), frozenset(("builder_name",)), frozenset(("name",))),
    "state.json": (frozenset(("_data_files",)),),
    "dataset_dict.json": (frozenset(("splits",)),),
    "shardctl.json": (frozenset(("format", "to")),),
}
"""Names of files that describe others, and keys of which such a file has all of one set: MosaicML Streaming and LitData, TFDS,
Hugging Face, and exports of shardctl."""

_STATS = re.compile(r"^(\d+)_stats\.json$")
_COPY = re.compile(r"^(.*\.mds)\.(zstd|zst|gz|bz2|br|snappy)$")
_SHARD = re.compile(r"\.mds(\.(zstd|zst|gz|bz2|br|snappy))?$")


_SUFFIXES = frozenset(
    ("", ".bin", ".json", ".txt", ".parquet", ".mds", ".zstd", ".br", ".snappy", ".mds.zst", ".mds.gz", ".mds.bz2", ".mdb")
)
"""The endings of files that may describe or repeat others."""

_OF_LANCE = frozenset((".lance", ".manifest", ".txn", ".arrow", ".bin", ".json", ".idx"))
"""The endings of files in a folder of Lance, of which one stands for all: the manifest of the newest version."""

_SPLIT_FILE = re.compile(r"^(\w+)-(\w+)\.[a-z_]+-\d+-of-\d+$")
"""How TFDS names a file: DATASET-SPLIT.FORMAT-NUMBER-of-ALL."""


class DeclaredSplits:
    """Tells which split a file is in because a shardctl.json or a dataset_info.json of TFDS says so. It is for one walk."""

    def __init__(self) -> None:
        self._in_exports: dict[str, bool] = {}

    def of(self, path: str, opened: str) -> str | None:
        """Return the split of a file, None if nothing tells it."""
        folder = os.path.dirname(opened)  # noqa: PTH120 - see pyproject.toml on Path in what is done per unit
        in_export = self._in_exports.get(folder)
        if in_export is None:
            in_export = self._in_exports.setdefault(folder, may_be_of_export(folder))
        if in_export and (of_export := located(opened)) is not None:
            export, name = of_export
            return export.split_of(name)
        found = _SPLIT_FILE.match(path.rpartition("/")[2])
        return found[2] if found and found[2] in _splits_beside(folder, found[1]) else None


@lru_cache(64)
def _splits_beside(folder: str, dataset: str) -> frozenset[str]:
    """Return the splits of a dataset in a folder of TFDS, none where it is no such folder."""
    path = Path(folder, "dataset_info.json")
    try:
        record = json.loads(read_small(path, MOST_BYTES))
        return frozenset(str(split["name"]) for split in record["splits"]) if record["name"] == dataset else frozenset()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def inputs_among(
    files: Iterator[FoundFile], notice: Callable[[str], None] | None, beside: list[FoundFile]
) -> Iterator[FoundFile]:
    """Yield the files that may be inputs, and leave out those that describe or repeat others.

    Those that decide what is read of others are added to `beside`: lists of features, indexes, the tokens of Megatron.
    Without `notice`, nothing is said of them, they are not read for what to say, and exports may lack files. Raises InputError
    where such a file lists others that are not there: they would be missing silently.
    """
    copies, unlisted = LeftOut(), LeftOut()
    failed, series = _Failures(), _Series()
    for file in files:
        series.add(file)
        if file.suffix in _OF_LANCE and (manifest := _manifest_of_lance(file)) is not None:
            if file.opened == manifest:
                yield file
            continue
        if file.suffix not in _SUFFIXES and not file.suffix.startswith(_NUMBERED):  # nearly all: there may be millions
            yield file
            continue
        name = file.path.rpartition("/")[2]
        if file.fault is None and _describes(name, file):
            beside.append(file)
            if name == "index.json":
                _refuse_missing_shards(file)
            elif name == "state.json":
                series.add_listed(file)
            elif name == DESCRIPTION and notice is not None:
                _refuse_other_files(Path(file.opened))
        elif name == "lock.mdb" and _is_beside(file, "data.mdb"):  # it changes when the file is opened, and has no data
            continue
        elif file.suffix == ".bin" and _is_beside(file, f"{name[: -len('.bin')]}.idx"):
            beside.append(file)
        elif file.fault is None and (match := _COPY.match(name)) and _is_beside(file, match[1]):
            copies.add(file.path)
        elif file.fault is None and _SHARD.search(name) and not _is_listed(file, name):
            unlisted.add(file.path)
        elif file.fault is None and name.endswith(".parquet") and _is_beside(file, f"{name[: -len('.parquet')]}.tar"):
            if notice is not None:
                failed.add(file)
        else:
            yield file
    if notice is None:
        return
    if copies.count:
        notice(f"left out: {copies.counted('compressed copy', 'compressed copies')}: the shards are there uncompressed too")
    if unlisted.count:
        notice(f"left out: {unlisted.counted('shard', 'shards')}: index.json does not list them")
    for sentence in series.missing():
        notice(sentence)
    failed.tell(notice)


def depends_on_others(name: str) -> bool:
    """Return whether `inputs_among` may leave out a file with this name because of others in its folder."""
    suffix = suffix_of(name)
    return suffix in _SUFFIXES or suffix in _OF_LANCE or suffix.startswith(_NUMBERED)


def _manifest_of_lance(file: FoundFile) -> str | None:
    """Return the manifest that stands for the folder of Lance that a file is in, None for a file that is in none."""
    folder = os.path.basename(os.path.dirname(file.opened))  # noqa: PTH119, PTH120 - see pyproject.toml
    if file.fault is not None or not (folder.startswith("_") or file.suffix == ".lance" or "/_indices/" in file.opened):
        return None
    from shardctl.sources.formats.lance import folder_of, newest_in

    if is_brought(file.opened):
        if folder == "_versions" and file.suffix == ".manifest":
            raise InputError(f"{printable(file.opened)}: a dataset of Lance is not read from a store; copy it to a disk first")
        return None

    found = folder_of(file.opened)
    return None if found is None else str(newest_in(found))


def _describes(name: str, file: FoundFile) -> bool:
    """Return whether a file describes others."""
    if name in _KEYS:
        keys = _top_keys(file)
        return any(wanted <= keys for wanted in _KEYS[name])
    if name == CHECKSUMS:
        return True
    if name.endswith(".labels.txt"):
        return _is_beside(file, "features.json")
    stats = _STATS.match(name)
    return stats is not None and (_is_beside(file, f"{stats[1]}.tar") or _is_beside(file, f"{stats[1]}.parquet"))


def _top_keys(file: FoundFile) -> frozenset[str]:
    record = _json_in(file)
    return frozenset(record) if isinstance(record, dict) else frozenset()


def _json_in(file: FoundFile) -> Any:
    if file.size > MOST_BYTES:
        return None
    try:
        return json.loads(read_small(file.opened, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _is_beside(file: FoundFile, name: str) -> bool:
    return exists(os.path.join(os.path.dirname(file.opened), name))  # noqa: PTH120 - see pyproject.toml


def _is_listed(file: FoundFile, name: str) -> bool:
    from shardctl.sources.formats.mds import INDEX, listed_in

    listed = listed_in(Path(file.opened).with_name(INDEX))
    return not listed or name in listed


def _refuse_missing_shards(file: FoundFile) -> None:
    """Raise InputError if an index of MDS lists a shard that is not there, compressed or not."""
    record = _json_in(file)
    shards = record.get("shards") if isinstance(record, dict) else None
    for shard in shards if isinstance(shards, list) else ():
        parts = [shard.get(part) for part in ("raw_data", "zip_data")] if isinstance(shard, dict) else []
        names = [part["basename"] for part in parts if isinstance(part, dict) and isinstance(part.get("basename"), str)]
        if names and not any(_is_name(name) and _is_beside(file, name) for name in names):
            shown = " or ".join(map(printable, names))
            raise InputError(
                f"{printable(file.opened)}: lists {shown}, which is not there; get it, or give the shards themselves as sources"
            )


def refuse_part_of_export(folder: Path) -> None:
    """Raise InputError for a folder in an export, of whose splits files of one sample each are lost, labels among them."""
    absolute = folder.absolute()
    above = next((each for each in absolute.parents[:DEEPEST] if exists(each / DESCRIPTION)), None)
    if above is None:
        return
    try:
        export = Description.load(above)
        splits = set() if export.loose is None else export.loose.splits_in(absolute.relative_to(above).as_posix())
        for name in loose_names(above, export) if splits else ():
            if export.loose is not None and export.loose.split_of(name) in splits:
                _size_of(above / name, above / DESCRIPTION)
    except (OSError, ValueError):  # without SHA256SUMS nothing is known of them
        return


def _refuse_other_files(description: Path) -> None:
    """Raise InputError if an export lists files that are not there, or that have another size."""
    folder = description.parent
    try:
        export = Description.load(folder)
    except (OSError, ValueError):
        return
    for name, facts in export.files.items():
        size = _size_of(folder / name, description)  # checked: it stays in the folder
        if size != facts.bytes:
            raise _another_size(folder / name, f"has {size:,} bytes", facts.bytes)
    try:
        sizes = sum(_size_of(folder / name, description) for name in loose_names(folder, export))
    except (OSError, ValueError):
        raise InputError(
            f"{printable(str(folder))}: its {CHECKSUMS} is lost or changed, and {DESCRIPTION} does not list its files of one"
            f" sample each; get it again, or move {DESCRIPTION} away to read what is there"
        ) from None
    if export.loose is not None and sizes != export.loose.bytes:
        what = f"its files of one sample each have {sizes:,} bytes (`shardctl verify` names those that are damaged)"
        raise _another_size(folder, what, export.loose.bytes)


def _size_of(path: Path, description: Path) -> int:
    """Return the size of a file that a description lists. Raises InputError if it is not there."""
    try:
        return version_of(str(path))[0]
    except OSError:
        raise InputError(f"{printable(str(description))}: lists {printable(str(path))}, which is not there; get it") from None


def _another_size(path: Path, what: str, wanted: int) -> InputError:
    return InputError(
        f"{printable(str(path))}: {what}, and {DESCRIPTION} says {wanted:,}; get it again, or move {DESCRIPTION} away to read"
        " what is there"
    )


def _is_name(name: str) -> bool:
    return "/" not in name and "\0" not in name and name not in ("", ".", "..")


MISSING = "missing: "
"""What a notice begins with that is about shards which should be there."""

_NUMBERED = (".tfrecord-", ".array_record-")

_OF_SERIES = re.compile(r"^(.*?)-(\d{3,})-of-(\d{3,})(\..*)?$")


class _Series:
    """Files that say in their names how many there are of them, NAME-00000-of-00008, or that a state.json lists."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str, int], int] = {}
        self._lost: list[str] = []

    def add(self, file: FoundFile) -> None:
        """Count a file that is one of several."""
        if "-of-" not in file.path:
            return
        match = _OF_SERIES.match(file.path.rpartition("/")[2])
        if match is not None:
            of_series = (file.folder, match[1], match[4] or "", int(match[3]))
            self._found[of_series] = self._found.get(of_series, 0) + 1

    def add_listed(self, file: FoundFile) -> None:
        """Look for the files that a state.json of Hugging Face lists."""
        record = _json_in(file)
        listed = record.get("_data_files") if isinstance(record, dict) else None
        names = [each.get("filename") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        lost = [name for name in names if isinstance(name, str) and _is_name(name) and not _is_beside(file, name)]
        if lost:
            self._lost.append(f"{MISSING}{printable(file.opened)} lists {printable(lost[0])}, which is not there; get it")

    def missing(self) -> Iterator[str]:
        """Yield a sentence for each series that is not whole."""
        yield from self._lost
        for (folder, stem, suffix, wanted), found in self._found.items():
            if found < wanted:
                shown = printable(
                    f"{folder}/{stem}-…-of-{wanted:05d}{suffix}" if folder else f"{stem}-…-of-{wanted:05d}{suffix}"
                )
                yield f"{MISSING}of the {wanted:,} files {shown} {found:,} are there; get the others, or go on without them"


class _Failures:
    """What the tables of img2dataset beside its tars say of samples that it could not get."""

    def __init__(self) -> None:
        self._files = self._failed = self._samples = 0
        self._reasons: dict[str, int] = {}

    def add(self, file: FoundFile) -> None:
        """Count the samples of one table that are in no tar."""
        self._files += 1
        try:
            samples, reasons = _failures_in(file.opened)
        except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):  # it tells no more than its name
            return
        self._samples += samples
        for reason, count in reasons.items():
            self._failed += count
            self._reasons[reason] = self._reasons.get(reason, 0) + count

    def tell(self, notice: Callable[[str], None]) -> None:
        """Say how many there are, and why most of them could not be got."""
        if not self._files:
            return
        tables = counted(self._files, "table", "tables")
        if not self._failed:
            notice(f"left out: {tables} of img2dataset beside tars of the same name")
            return
        reason = max(self._reasons, key=lambda each: self._reasons[each])
        notice(
            f"left out: {tables} of img2dataset beside tars of the same name; by what they say {self._failed:,} of"
            f" {self._samples:,} samples could not be downloaded ({self._reasons[reason]:,} of them: {printable(reason)})"
        )


def _failures_in(path: str) -> tuple[int, dict[str, int]]:
    """Return how many samples a table of img2dataset has, and how many of them failed for each reason.

    Raises OSError, ArrowException, KeyError, ValueError, TypeError for what is no such table.
    """
    import pyarrow.compute as pc
    from pyarrow import parquet

    table = parquet.ParquetFile(local(path)).read(columns=["status", "error_message"])
    failed = table.filter(pc.not_equal(table["status"].cast(pa.string()), "success"))
    reasons: dict[str, int] = {}
    for each in pc.value_counts(failed["error_message"].cast(pa.string())).to_pylist():
        reason = "no reason given" if each["values"] is None else each["values"][:80]
        reasons[reason] = reasons.get(reason, 0) + each["counts"]
    return table.num_rows, reasons
