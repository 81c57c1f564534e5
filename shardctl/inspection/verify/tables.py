"""The checks of the files beside the shards. Those of Arrow tables run in a process of their
own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Numbers, hash_names
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.dataset_location import AnyDataset
from shardctl.format.dataset_tables import MOST, DatasetTables, open_files
from shardctl.format.generations import instead_of_manifest
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    CHECKSUMS,
    FILES,
    MANIFEST,
    PLAN,
    REJECTS,
    SHARDS,
    STAGING,
    UPDATE,
    job_of_generation,
)
from shardctl.format.on_store import DatasetOnStore
from shardctl.format.tables import (
    BRING_BACK,
    REPAIR_ADVICE,
    ShardTable,
    open_checked_table,
    read_checksums,
    read_rejects,
)
from shardctl.inspection.verify.result import MEND, MISSING, Finding, error, reading, unreadable
from shardctl.system.files import exists, write_atomically
from shardctl.system.folders import Folder, LocalFolder, hash_file
from shardctl.system.job_folder import JOB
from shardctl.system.text import printable

MOVE_AWAY = "if it is lost, move it away, and `shardctl repair` makes a new one"


LEADS_OUT = r"(^|/)\.{0,2}(/|$)|\x00"
"""What no path below a source has: parts that are empty, . or .., and NUL."""


def check_manifest(folder: AnyDataset) -> tuple[Manifest | None, list[Finding]]:
    """Read the manifest, and its copy beside the tables: that alone of an earlier generation.
    Damage is a finding; raises DatasetError if there is no dataset at all."""
    copy, data, of_copy = _read_copy(folder)
    manifest, findings = _read_manifest(folder, copy is not None)
    if copy is None:
        return manifest, findings if manifest is None else [*findings, *of_copy]
    if manifest is None and isinstance(folder, DatasetOnStore):
        # those read it who check the tables
        write_atomically(folder.work / MANIFEST, data)
    if manifest is not None and manifest.generation.number != copy.generation.number:
        return copy, findings
    # how many generations are kept may be changed later
    same = manifest is None or manifest.keeping(0) == copy.keeping(0)
    if not same or not _is_as_written(data):
        what = f"{MANIFEST} and {folder.places.tables}{MANIFEST} have other bytes; {MEND}"
        findings.append(error("damaged-manifest", what))
    return manifest or copy, findings


def _read_copy(folder: AnyDataset) -> tuple[Manifest | None, bytes, list[Finding]]:
    """Return the copy of the manifest, its bytes, and what is wrong with it. Format 2 has none."""
    name = f"{folder.places.tables}{MANIFEST}"
    if not job_of_generation(folder.places.tables):
        return None, b"", []
    try:
        data = folder.read(name)
        return Manifest.parse(data, folder.shown(name)), data.to_pybytes(), []
    except FileNotFoundError:
        found = error(MISSING, f"{name} is missing; {MEND}")
    except OSError as fault:
        found = unreadable(name, fault, MEND)
    except DatasetError as problem:
        found = error("damaged-manifest", f"{problem}; {MEND}")
    return None, b"", [found]


def _read_manifest(folder: AnyDataset, is_copied: bool) -> tuple[Manifest | None, list[Finding]]:
    """Return the manifest right in the folder of the dataset, and what is wrong with it. Only a
    whole copy brings it back."""
    root = LocalFolder(folder.root, folder.url) if isinstance(folder, DatasetFolder) else folder
    here, tables = root.local, folder.places.tables
    instead = instead_of_manifest(tables)
    remedy = MOVE_AWAY if is_copied else instead
    try:
        manifest = Manifest.load(root)
        data = root.read(MANIFEST).to_pybytes()
    except OSError as fault:
        return None, [unreadable(MANIFEST, fault, remedy)]
    except DatasetError as problem:
        why = problem.__context__
        if isinstance(why, NotADirectoryError) or (here is not None and not exists(here)):
            raise
        if isinstance(why, FileNotFoundError):
            if here is not None and any((here / STAGING).glob(f"*/{JOB}")):
                raise  # it says so: a conversion that is not finished
            if not tables or folder.stat(f"{tables}{MANIFEST}") is None:
                if here is not None:
                    raise  # it says what this is instead
                raise DatasetError(f"{folder.shown()}: lacks {MANIFEST}; {instead}") from None
            what = f"{MANIFEST} is missing, but the rest of a dataset exists"
            return None, [error("missing-manifest", f"{what}; {MEND if is_copied else instead}")]
        if isinstance(why, OSError):
            return None, [unreadable(MANIFEST, why, remedy)]
        said = str(problem) if is_copied else str(problem).replace(REPAIR_ADVICE, instead)
        return None, [error("damaged-manifest", said)]
    if _is_as_written(data):
        return manifest, []
    what = f"{MANIFEST} has the right content in other bytes; {MEND}"
    return manifest, [error("damaged-manifest", what)]


def _is_as_written(data: bytes) -> bool:
    """Return whether these are the bytes of a manifest, and not others of the same content."""
    return json.dumps(json.loads(data), indent=1).encode() + b"\n" == data


def check_file(folder: Folder, manifest: Manifest, name: str, level: str) -> list[Finding]:
    """Compare one of the files beside the shards with what the manifest says of it."""
    facts = manifest.update if name == UPDATE else manifest.files[name]
    if facts is None:
        return []
    remedy = BRING_BACK if name in manifest.given_files else MEND
    if name == PLAN and manifest.generation.number > 1:
        remedy = REPAIR_ADVICE  # an update keeps units in their shards, which nothing else says

    def compare() -> Iterator[Finding]:
        found = folder.stat(name)
        if found is not None and found.size != facts.bytes:
            what = f"{name} has {found.size} bytes, the manifest says {facts.bytes}"
            yield error("wrong-size", f"{what}; {remedy}")
        elif level == "quick":
            folder.read(name, 0, 1)  # for the OSError of a file that may not, or cannot, be read
        elif hash_file(folder, name) != facts.sha256:
            yield error("wrong-checksum", f"{name} is damaged: its SHA-256 differs; {remedy}")

    return reading(folder, name, remedy, compare)


def check_shard_table(folder: Folder, manifest: Manifest) -> Iterator[Finding]:
    """Compare shards.arrow with the manifest. Raises DatasetError, as the other checks do."""
    table = ShardTable(folder)
    entries = list(table)
    said = (manifest.shards, manifest.samples, manifest.bytes, manifest.inputs, manifest.rejected)
    names = ("rows", "bytes", "inputs", "rejected")
    counted = (len(entries), *(sum(getattr(entry, name) for entry in entries) for name in names))
    if said != counted:
        what = f"{MANIFEST} says {said} shards, samples, bytes, inputs, rejects; {SHARDS} {counted}"
        yield error("counts-differ", f"{what}; {MEND}")
    start = 0
    for split in manifest.splits:
        own = entries[start : start + split.shards]
        start += split.shards
        of_split = (len(own), sum(entry.rows for entry in own), sum(entry.bytes for entry in own))
        if {entry.split for entry in own} - {split.name} or of_split != (
            split.shards,
            split.samples,
            split.bytes,
        ):
            yield error(
                "counts-differ",
                f"{MANIFEST} and {SHARDS} have different shards of {split.name}; {MEND}",
            )
    if table.records_jpegs or manifest.jpeg is not None:
        yield from _compare_jpegs(manifest, table)
    if start != len(entries):
        yield error("counts-differ", f"{MANIFEST} and {SHARDS} have different splits; {MEND}")
    if min(len(set(table.paths)), len(set(table.names))) != len(entries):
        yield error("counts-differ", f"{SHARDS} has the same file for several shards; {MEND}")


def _compare_jpegs(manifest: Manifest, table: ShardTable) -> Iterator[Finding]:
    """Compare what shards.arrow says of images as JPEG with the manifest. Images themselves are
    compared by a deep check."""
    try:
        counts = table.read_jpegs().counts()
    except DatasetError as problem:
        yield error("jpeg-differs", str(problem))
        return
    if manifest.jpeg is None or {name: manifest.jpeg[name] for name in counts} != counts:
        yield error(
            "jpeg-differs",
            f"{MANIFEST} says {manifest.jpeg} of JPEG images; {SHARDS} {counts}; {MEND}",
        )


def check_checksums(folder: Folder, manifest: Manifest) -> Iterator[Finding]:
    """Compare SHA256SUMS with the table of shards."""
    try:
        sums, table = read_checksums(folder), ShardTable(folder)
    except DatasetError as problem:
        yield error("damaged-checksums", f"{problem}; {MEND}")
        return
    for entry in table:
        if sums.get(entry.path) != entry.sha256:
            yield error(
                "checksums-differ", f"{CHECKSUMS} and {SHARDS} disagree on it; {MEND}", entry.name
            )
    listed = {entry.path for entry in table} | set(manifest.files) - {CHECKSUMS}
    for name in sorted(set(sums) ^ listed):
        yield error(
            "checksums-differ",
            f"{CHECKSUMS} and {SHARDS} list different files: {printable(name)}; {MEND}",
        )


def check_rejects(folder: Folder, manifest: Manifest) -> Iterator[Finding]:
    """Read every line of rejects.jsonl."""
    count = sum(reject.records for reject in read_rejects(folder))
    if count != manifest.rejected:
        yield error(
            "rejects-differ",
            f"{REJECTS} has {count} rejected records, {MANIFEST} says {manifest.rejected}; {MEND}",
        )


def check_files(folder: Folder, manifest: Manifest) -> Iterator[Finding]:
    """Look at every value of the table of files: paths, each of them once, below sources that there
    are."""
    import pyarrow.compute as pc  # 30 ms to import, and `quick` does not look at them

    open_checked_table(folder, FILES)
    files = open_files(folder)
    if any(files[name].null_count for name in ("path", "root", "size")):
        yield error("files-differ", f"{FILES} lacks values; {MEND}")
        return
    for batch in files.select(["path"]).to_batches():
        wrong = pc.match_substring_regex(batch.column(0), LEADS_OUT)
        if pc.any(wrong).as_py():
            path = printable(batch.column(0).filter(wrong)[0].as_py())
            yield error(
                "files-differ", f"{FILES} has a path that is not below a source, {path!r}; {MEND}"
            )
            return
    roots, sizes = (pc.min_max(files[name]).as_py() for name in ("root", "size"))
    most_roots = len(manifest.sources) or MOST  # an older shardctl may have lost them in a repair
    if files.num_rows and (
        roots["min"] < 0
        or roots["max"] >= most_roots
        or not 0 <= sizes["min"] <= sizes["max"] < MOST
    ):
        yield error(
            "files-differ",
            f"{FILES} names sources that {MANIFEST} lacks, or impossible sizes; {MEND}",
        )
    if (twice := _first_duplicate(files["path"])) is not None:
        yield error("duplicate-key", f"{FILES} has this path twice; {MEND}", key=twice)


def _first_duplicate(paths: pa.ChunkedArray) -> str | None:
    """Return a path that is repeated."""
    hashes = np.concatenate(
        [np.empty(0, np.uint64), *(hash_names(chunk.to_pylist()) for chunk in paths.chunks)]
    )
    order = np.sort(hashes)
    for twice in order[1:][order[1:] == order[:-1]].tolist():
        alike: list[str] = [
            paths[place].as_py() for place in np.flatnonzero(hashes == twice).tolist()
        ]
        if len(set(alike)) < len(alike):
            return next(path for path in alike if alike.count(path) > 1)
    return None


def check_plan(folder: Folder, _manifest: Manifest) -> Iterator[Finding]:
    """Compare the plan with the tables of shards and files: what units there are, and what became
    of them."""
    stored = DatasetTables(folder)
    whole: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
    parts: dict[str, list[Numbers]] = {}
    for number, entry in enumerate(stored.shards):
        units = stored.units(number)
        is_whole = units.first == 0
        whole.append(units.file[is_whole & (units.samples + units.rejected > 0)].astype(np.int32))
        if not is_whole.all():
            parts.setdefault(entry.split, []).append(
                np.stack([units.file, units.first, units.records])[:, ~is_whole]
            )
    files = np.sort(np.concatenate(whole))
    for place in np.flatnonzero(files[1:] == files[:-1])[:1].tolist():
        yield _twice(stored, int(files[place]), 0)
    for of_split in parts.values():  # a unit whose records are drawn is in a shard of every split
        file, first, records = np.concatenate(of_split, axis=1)
        order = np.lexsort((first, file))
        file, first, records = file[order], first[order], records[order]
        again = (file[1:] == file[:-1]) & (first[1:] < first[:-1] + records[:-1])
        for place in np.flatnonzero(again)[:1].tolist():
            yield _twice(stored, int(file[place]), int(first[place + 1]))


def _twice(stored: DatasetTables, file: int, record: int) -> Finding:
    return error("duplicate-key", f"{PLAN} has it twice; {MEND}", key=stored.file(file).key(record))


class TableCheck(NamedTuple):
    """A row of the table: the lowest level that has the check, the check, the files that it reads,
    and the kind of the finding that they cannot be used, which ends the check."""

    level: str
    check: Callable[[Folder, Manifest], Iterable[Finding]]
    reads: frozenset[str]
    unusable: str

    def findings(self, folder: Folder, manifest: Manifest) -> Iterator[Finding]:
        """Yield what the check finds."""
        try:
            yield from self.check(folder, manifest)
        except DatasetError as problem:
            yield error(self.unusable, str(problem))


OF_SHARDS = "table of shards"

TABLE_CHECKS = {
    OF_SHARDS: TableCheck("quick", check_shard_table, frozenset({SHARDS}), "unreadable-table"),
    "checksums": TableCheck(
        "full", check_checksums, frozenset({CHECKSUMS, SHARDS}), "damaged-checksums"
    ),
    "rejects": TableCheck("full", check_rejects, frozenset({REJECTS}), "damaged-rejects"),
    "files": TableCheck("full", check_files, frozenset({FILES}), "unreadable-table"),
    "plan": TableCheck("full", check_plan, frozenset({FILES, PLAN, SHARDS}), "plan-differs"),
}
"""All checks that read the content of the files beside the shards, in the order of their
findings."""
