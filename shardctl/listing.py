"""What there is to convert: one walk over the sources, written as a table on disk with a row per input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.manifest import open_table
from shardctl.sources import FoundFile, Input, Source, labels, walk
from shardctl.sources.labels import SideTable, some
from shardctl.storage import naming_the_path, printable

CHUNK_ROWS = 65536
"""Rows of a table that are in memory at a time."""

LISTING_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("source", pa.string()),
        ("root", pa.int32()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("folder", pa.int32()),
        ("hash", pa.uint64()),
        ("error", pa.string()),
        ("message", pa.string()),
    ]
)


@dataclass(frozen=True)
class LabelRule:
    """Where labels come from: `auto`, `none`, `folder`, or `file` with the path of a labels file.

    `lenient` lets a labels file and the inputs differ.
    """

    mode: str
    file: Path | None = None
    lenient: bool = False

    @classmethod
    def parse(cls, text: str, lenient: bool = False) -> LabelRule:
        """Read what `--labels` says: one of the words, or else the path of a file."""
        return cls(text, None, lenient) if text in ("auto", "none", "folder") else cls("file", Path(text), lenient)

    def __str__(self) -> str:
        return str(self.file) if self.file is not None else self.mode


@dataclass
class Listing:
    """What the walk found: a table of inputs on disk and the little that is known about them as a whole."""

    path: Path
    kind: str
    columns: pa.Schema | None
    folders: list[str]
    side: SideTable | None
    ignored: Counter[str]
    notices: list[str] = field(default_factory=list)

    @cached_property
    def table(self) -> pa.Table:
        """The inputs, memory-mapped, one row each (LISTING_SCHEMA)."""
        return open_table(self.path, LISTING_SCHEMA)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """A 64-bit hash of every key, in the order of the walk. (n,) uint64."""
        return self.table["hash"].to_numpy()  # type: ignore[no-any-return]  # pyarrow is untyped

    @cached_property
    def total_bytes(self) -> int:
        """The bytes of all inputs together."""
        return int(np.sum(self.table["size"].to_numpy()))


def list_inputs(roots: list[Path], source: Source, rule: LabelRule, path: Path, found: Callable[[int], None]) -> Listing:
    """Walk the sources and write a row per input to `path`; `found` hears the number of inputs now and then.

    Raises InputError: nothing to convert, keys that stand twice, labels that do not match the inputs.
    """
    notices: list[str] = []
    side_files: list[tuple[Path, str]] = []
    ignored: Counter[str] = Counter()
    folders: dict[str, int] = {}
    wanted = _wanted_files(walk(roots, notices.append), source, rule, side_files, ignored)
    # A scratch file: it need not outlive the process, so it is neither synced nor renamed.
    with naming_the_path(path), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, LISTING_SCHEMA) as writer:
        count = 0
        while chunk := list(islice(wanted, CHUNK_ROWS)):
            writer.write_batch(_listing_batch(chunk, folders))
            count += len(chunk)
            found(count)
    if rule.file is not None:
        side_files = [_explicit_side_file(rule.file, roots)]
    if count == 0:
        raise InputError(_why_nothing(roots, source.kind, ignored))
    side = labels.load(side_files) if side_files else None
    listing = Listing(path, source.kind, source.columns(), list(folders), side, ignored, notices + source.notices())
    _refuse_duplicate_keys(listing)
    if side:
        _compare_with_labels(listing, side, rule)
    return listing


def _wanted_files(
    files: Iterator[FoundFile],
    source: Source,
    rule: LabelRule,
    side_files: list[tuple[Path, str]],
    ignored: Counter[str],
) -> Iterator[Input]:
    """Give the inputs of the files that belong to the kind; note the labels files, count the others."""
    explicit = str(rule.file.resolve()) if rule.file is not None else None
    for file in files:
        name = file.path.rpartition("/")[2]
        if name in labels.SIDECAR_NAMES and rule.mode == "auto":
            side_files.append((Path(file.opened), file.folder))
        elif explicit and name == Path(explicit).name and str(Path(file.opened).resolve()) == explicit:
            continue
        elif source.takes(file):
            yield from source.inputs(file)
        else:
            ignored[file.suffix or "no suffix"] += 1


def _listing_batch(chunk: list[Input], folders: dict[str, int]) -> pa.RecordBatch:
    keys, sources, roots, offsets, sizes, mtimes, names, faults = zip(*chunk, strict=True)
    columns = [
        keys,
        sources,
        roots,
        offsets,
        sizes,
        mtimes,
        [folders.setdefault(name, len(folders)) for name in names],
        labels.hash_names(keys),
        [fault.error if fault else None for fault in faults],
        [fault.message if fault else None for fault in faults],
    ]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, LISTING_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=LISTING_SCHEMA)


def _explicit_side_file(path: Path, roots: list[Path]) -> tuple[Path, str]:
    """Return the labels file and the folder, relative to its source, that its names start from."""
    for root in roots:
        if path.resolve().is_relative_to(root.resolve()):
            folder = path.resolve().parent.relative_to(root.resolve()) if root.is_dir() else Path()
            return path, "" if folder == Path() else folder.as_posix()
    return path, ""


def _why_nothing(roots: list[Path], kind: str, ignored: Counter[str]) -> str:
    shown = some([str(root) for root in roots])
    if not ignored:
        return f"{shown}: holds no files"
    held = ", ".join(f"{count} {printable(suffix)}" for suffix, count in ignored.most_common(4))
    known = "images are known by name or content, text by .txt or .jsonl"
    return f"{shown}: no {kind} among its {ignored.total()} files ({held}); {known}"


def detect_kind(roots: list[Path], sources: Iterable[Source]) -> str:
    """Return the first of the kinds of which there is an input. Raises InputError where there is none of any."""
    candidates = list(sources)
    present: dict[str, bool] = {}
    ignored: Counter[str] = Counter()
    for file in walk(roots, lambda _: None):
        taker = next((candidate for candidate in candidates if candidate.takes(file)), None)
        if taker is candidates[0]:
            return taker.kind
        if taker is None:
            ignored[file.suffix or "no suffix"] += 1
        elif file.path.rpartition("/")[2] not in labels.SIDECAR_NAMES:
            present[taker.kind] = True
    if present:
        return next(iter(present))
    raise InputError(_why_nothing(roots, " and no ".join(candidate.kind for candidate in candidates), ignored))


def _refuse_duplicate_keys(listing: Listing) -> None:
    order = np.sort(listing.hashes)
    twice = order[1:][order[1:] == order[:-1]]
    if len(twice):
        names = _keys_with(listing, np.unique(twice[:100]))
        raise InputError(
            f"{len(twice)} keys stand twice, among them {some(names)}: a key is the path below its source, so give sources"
            " whose files have different paths, or their common parent folder"
        )
    lower = np.empty(len(listing), np.uint64)
    place = 0
    for batch in listing.table.select(["key"]).to_batches():
        keys = batch.column(0).to_pylist()
        lower[place : place + len(keys)] = labels.hash_names([key.lower() for key in keys])
        place += len(keys)
    lower.sort()
    alike = int(np.sum(lower[1:] == lower[:-1]))
    if alike:
        listing.notices.append(
            f"{alike} keys differ from another only by case; they are kept apart here, but would collide on a disk that"
            " ignores case"
        )


def _keys_with(listing: Listing, hashes: npt.NDArray[np.uint64]) -> list[str]:
    rows = np.flatnonzero(np.isin(listing.hashes, hashes))[:100]
    return sorted({listing.table["key"][int(row)].as_py() for row in rows})


def _compare_with_labels(listing: Listing, side: SideTable, rule: LabelRule) -> None:
    rows = side.rows_of(listing.hashes)
    unnamed = np.flatnonzero(rows < 0)
    unused = np.setdiff1d(np.arange(len(side.files)), rows)
    if len(unused):
        what = f"{side.shown}: {len(unused)} of {len(side.files)} rows name files that are not there"
        example = f"({some([side.files[i] for i in unused[:100]])})"
        if not rule.lenient:
            raise InputError(f"{what} {example}; mend the file, or use --lenient-labels to pass over those rows")
        listing.notices.append(f"{what}; passed over")
    if len(unnamed):
        what = f"{side.shown}: no row for {len(unnamed)} of {len(listing)} inputs"
        example = f"({some([listing.table['key'][int(i)].as_py() for i in unnamed[:100]])})"
        if not rule.lenient:
            raise InputError(f"{what} {example}; add them, or use --lenient-labels to leave their columns empty")
        listing.notices.append(f"{what}; their columns are empty")
