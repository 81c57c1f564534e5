"""The files beside the shards: manifest.json, shards.arrow, rejects.jsonl, SHA256SUMS. docs/format.md, section 2."""

from __future__ import annotations

import hashlib
import json
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.shard import FORMAT_VERSION, Layout, field_names, refuse_other_version
from shardctl.storage import exists, is_file, printable, replacing, write_atomically

MANIFEST = "manifest.json"
PLAN = "plan.arrow"
SHARDS = "shards.arrow"
REJECTS = "rejects.jsonl"
CHECKSUMS = "SHA256SUMS"
STAGING = ".shardctl"
"""The folder inside a dataset's folder that holds everything until the commit."""

REPLACED = "replaced.json"
"""In the folder of a job whose dataset is taking its place: the names of the files that it replaces."""

MANIFEST_LIMIT = 256 << 20
"""Bytes of the largest manifest that is read. The names of a million classes take 30 MB."""

REPAIR_ADVICE = "`shardctl repair` repairs it if possible"

TABLES = (PLAN, SHARDS, REJECTS)
"""The files of a dataset that are neither shards, nor the manifest, nor the list of checksums."""


def shard_name(split: str, shard: int, shards: int) -> str:
    """Return the file name of a shard: train-00000-of-00016.arrow."""
    return f"{split}-{shard:05d}-of-{shards:05d}.arrow"


@dataclass(frozen=True)
class SplitFacts:
    """One split, in the manifest's order, which is the order of the whole dataset."""

    name: str
    samples: int
    shards: int
    bytes: int


@dataclass(frozen=True)
class FileFacts:
    """The size in bytes and the SHA-256 (hex) of one file of the dataset."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """manifest.json: written last, by rename, so that its presence makes the dataset exist.

    `seconds` is how long the conversion took, None if that was not measured as a whole (it was resumed) or not recorded.
    `class_counts` has the samples of each class by split, None if there are no classes or it was not recorded.
    `environment` has the versions of the libraries, by name; None if it was not recorded (by an older shardctl).
    """

    kind: str
    samples: int
    shards: int
    bytes: int
    inputs: int
    rejected: int
    splits: tuple[SplitFacts, ...]
    schema: tuple[tuple[str, str], ...]
    fields: dict[str, Any]
    recipe: dict[str, Any]
    settings: dict[str, Any]
    fingerprint: str
    fingerprint_parts: dict[str, str]
    sources: tuple[str, ...]
    files: dict[str, FileFacts]
    created: str
    shardctl_version: str
    dropped: int = 0
    seconds: float | None = None
    class_counts: dict[str, list[int]] | None = None
    environment: dict[str, str] | None = None

    def to_json(self) -> str:
        """Return the file's bytes, digest included."""
        record = asdict(self)
        record["schema"] = [{"name": name, "type": type_} for name, type_ in self.schema]
        record = {"format": "shardctl", "format_version": FORMAT_VERSION, **record}
        record["digest"] = _digest(record)
        return json.dumps(record, indent=1) + "\n"

    @classmethod
    def load(cls, root: Path) -> Manifest:
        """Read the manifest of the dataset in `root`. Raises DatasetError."""
        path = root / MANIFEST
        shown = printable(str(path))
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # reading a pipe may never end
                raise DatasetError(f"{shown}: not an ordinary file; {REPAIR_ADVICE}")
            if status.st_size > MANIFEST_LIMIT:
                raise DatasetError(f"{shown}: too large to be a manifest")
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DatasetError(_why_no_manifest(root)) from None
        except NotADirectoryError:
            raise DatasetError(f"{printable(str(root))}: a file, not the folder of a dataset") from None
        except OSError as error:
            why = error.strerror or error
            raise DatasetError(f"{shown}: cannot be read ({why}); check the path, its permissions and its disk") from error
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{shown}: cannot be read ({error}); {REPAIR_ADVICE}") from error
        return cls.from_record(record, shown)

    @classmethod
    def from_record(cls, record: Any, shown: str) -> Manifest:
        """Check and take over what the JSON says; `shown` is the path for messages. Raises DatasetError."""
        if not isinstance(record, dict) or record.get("format") != "shardctl":
            raise DatasetError(f"{shown}: not the manifest of a shardctl dataset")
        refuse_other_version(record.get("format_version"), record.get("shardctl_version"), shown)
        if record.pop("digest", None) != _digest(record):
            raise DatasetError(f"{shown}: damaged, its content does not match its digest; {REPAIR_ADVICE}")
        try:
            return cls._checked(record)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise DatasetError(f"{shown}: not as docs/format.md describes a manifest ({error!r})") from error

    @classmethod
    def _checked(cls, record: dict[str, Any]) -> Manifest:
        """Build the manifest from an untrusted record."""
        added: dict[str, Any] = {"dropped": 0, "seconds": None, "class_counts": None, "environment": None}
        known = {name: record.get(name, added[name]) if name in added else record[name] for name in cls.__dataclass_fields__}
        known["splits"] = tuple(SplitFacts(**split) for split in record["splits"])
        known["schema"] = tuple((column["name"], column["type"]) for column in record["schema"])
        known["sources"] = tuple(record["sources"])
        known["files"] = {name: FileFacts(facts["bytes"], facts["sha256"]) for name, facts in record["files"].items()}
        manifest = cls(**known)
        counts = [manifest.samples, manifest.shards, manifest.bytes, manifest.inputs, manifest.rejected, manifest.dropped]
        counts += [number for split in manifest.splits for number in (split.samples, split.shards, split.bytes)]
        counts += [facts.bytes for facts in manifest.files.values()]
        _expect(all(type(count) is int and count >= 0 for count in counts), "counts are whole numbers")
        counted = manifest.class_counts is None or are_class_counts(manifest.class_counts, manifest.fields)
        _expect(counted, "classes are counted by split")
        _expect(manifest.environment is None or are_versions(manifest.environment), "versions are strings")
        _expect(manifest.seconds is None or 0 <= float(manifest.seconds) < 1e12, "seconds are seconds")
        texts = [manifest.kind, manifest.fingerprint, *manifest.sources, *(part for pair in manifest.schema for part in pair)]
        texts += [manifest.created, manifest.shardctl_version, *(facts.sha256 for facts in manifest.files.values())]
        texts += manifest.fingerprint_parts.values()
        _expect(all(type(text) is str for text in texts), "names and digests are strings")
        _expect(manifest.fingerprint == "" or is_file_name(manifest.fingerprint), "the fingerprint is hex digits")
        _expect(all(is_file_name(split.name) for split in manifest.splits), "splits have plain names")
        _expect(are_file_names(manifest.files), "files lie in the dataset's folder")
        tables = (manifest.recipe, manifest.settings, manifest.fingerprint_parts)
        _expect(all(type(table) is dict for table in tables), "recipe and settings are objects")
        _expect(set(TABLES) | {CHECKSUMS} <= set(manifest.files), "all tables are listed")
        Layout.from_json(manifest.kind, manifest.fields, pa.schema([]))
        return manifest

    def layout(self, columns: pa.Schema) -> Layout:
        """Return what the fields are; `columns` is the schema of any shard, without metadata."""
        return Layout.from_json(self.kind, self.fields, columns)


def are_class_counts(counts: Any, fields: dict[str, Any]) -> bool:
    """Return whether this has a whole number for every class, by split."""
    names = fields.get("label", {}).get("names") or []
    return isinstance(counts, dict) and all(
        isinstance(of_split, list)
        and len(of_split) == len(names)
        and all(type(count) is int and count >= 0 for count in of_split)
        for of_split in counts.values()
    )


def are_versions(versions: Any) -> bool:
    """Return whether this has a string for every name."""
    return isinstance(versions, dict) and all(type(version) is str for version in versions.values())


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def is_file_name(name: Any) -> bool:
    """Return whether this is the name of a file right inside the dataset's folder, and nothing that leads out of it."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def are_file_names(names: Iterable[str]) -> bool:
    """Return whether all of these, which are strings, are names of files right inside the dataset's folder. Fast for many."""
    together = set(names)
    return together.isdisjoint(("", ".", "..")) and not set("/\\\0").intersection("".join(together))


def refuse_part_of_dataset(path: Path) -> None:
    """Raise DatasetError if a path that should be a shard is another file of a dataset."""
    if path.name in (MANIFEST, CHECKSUMS, *TABLES) and is_file(path):
        what = "a table of a dataset" if path.name in TABLES else "a file about a dataset"
        shown, folder = printable(str(path)), printable(str(path.parent))
        raise DatasetError(f"{shown}: {what}, not a shard; give the folder of the dataset, {folder}")


def _digest(record: dict[str, Any]) -> str:
    """Return the SHA-256 of the record as compact JSON with sorted keys and without its own digest."""
    text = json.dumps({k: v for k, v in record.items() if k != "digest"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _why_no_manifest(root: Path) -> str:
    shown = printable(str(root))
    if not exists(root):
        return f"{shown}: no such dataset"
    if any((root / STAGING).glob(f"*/{REPLACED}")):
        return f"{shown}: its files are being replaced; if no shardctl is running, `shardctl repair` completes it"
    if (root / STAGING).exists():
        return (
            f"{shown}: an unfinished conversion; run the same `shardctl convert` again: it completes it, or says why it cannot"
        )
    return f"{shown}: not a dataset (it has no {MANIFEST})"


MAKING_KEY = b"shardctl"
"""Metadata of shards.arrow that says how the dataset was made."""

SHARDS_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("raw_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("first", pa.int64()),
        ("first_input", pa.int64()),
        ("inputs", pa.int64()),
        ("block_rows", pa.list_(pa.int32())),
    ]
)


@dataclass(frozen=True)
class ShardEntry:
    """One row of shards.arrow. `first` is the global index of its first sample, `first_input` its first plan row."""

    split: str
    path: str
    rows: int
    bytes: int
    raw_bytes: int
    sha256: str
    first: int
    first_input: int
    inputs: int
    block_rows: tuple[int, ...]


@dataclass(frozen=True)
class Making:
    """How a dataset was made, as far as that is the same for every copy of it: what repair needs if the manifest is lost.

    `layout` is that of the shards, `fields` what the manifest says of them. No paths, no times.
    """

    layout: dict[str, Any]
    fields: dict[str, Any]
    recipe: dict[str, Any]
    settings: dict[str, Any]
    parts: dict[str, str]


def write_shard_table(path: Path, entries: Iterable[ShardEntry], making: Making) -> None:
    """Write shards.arrow: one row per shard, in the order of the dataset."""
    rows = [asdict(entry) for entry in entries]
    schema = SHARDS_SCHEMA.with_metadata({MAKING_KEY: json.dumps(asdict(making))})
    with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
        for start in range(0, len(rows), 65536):
            writer.write_batch(pa.RecordBatch.from_pylist(rows[start : start + 65536], schema=schema))


class ShardTable:
    """shards.arrow, memory-mapped: which shard holds which samples.

    `first`, `rows`, `sizes` and `raw_sizes` (bytes) and `block_counts` are int64 arrays of one number per shard,
    `block_rows` has one number per block of all shards. Raises DatasetError if the table contradicts itself or names
    files outside of the dataset's folder.
    """

    def __init__(self, path: Path) -> None:
        self._table = open_table(path, SHARDS_SCHEMA)
        shown = printable(str(path))
        _validate(self._table, shown)
        blocks = self._table["block_rows"].combine_chunks()
        offsets = np.from_dlpack(blocks.offsets)
        # Not blocks.flatten(), which imports pyarrow.compute: 40 ms of the time to open a dataset.
        flat = blocks.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        if any(column.null_count for column in self._table.columns) or flat.null_count:
            raise DatasetError(f"{shown}: contradicts itself, values are missing; {REPAIR_ADVICE}")
        self.first: npt.NDArray[np.int64] = self._numbers("first")
        self.rows: npt.NDArray[np.int64] = self._numbers("rows")
        self.sizes: npt.NDArray[np.int64] = self._numbers("bytes")
        self.raw_sizes: npt.NDArray[np.int64] = self._numbers("raw_bytes")
        self.block_rows: npt.NDArray[Any] = np.from_dlpack(flat)
        self.block_counts: npt.NDArray[np.int64] = np.diff(offsets).astype(np.int64)
        if not are_file_names(self.names):
            raise DatasetError(f"{shown}: names a shard outside of the dataset's folder")
        if not len(self) or not self._is_consistent():
            raise DatasetError(f"{shown}: contradicts itself, its counts do not add up; {REPAIR_ADVICE}")

    def _numbers(self, column: str) -> Any:
        # Not to_numpy, which imports pandas where that is installed: 0.3 s of the time to the first batch.
        return np.from_dlpack(self._table[column].combine_chunks())

    def _is_consistent(self) -> bool:
        inputs, first_input = self._numbers("inputs"), self._numbers("first_input")
        numbers = (self.rows, inputs, self.sizes, self.raw_sizes)
        if any(column.min() < 0 or column.max() > 2**62 for column in numbers):
            return False
        in_blocks = np.concatenate([[0], np.cumsum(self.block_rows, dtype=np.int64)])
        ends = np.concatenate([[0], np.cumsum(self.block_counts)])
        return (
            np.array_equal(self.first, np.cumsum(self.rows) - self.rows)
            and np.array_equal(first_input, np.cumsum(inputs) - inputs)
            and np.array_equal(in_blocks[ends[1:]] - in_blocks[ends[:-1]], self.rows)
            and bool((in_blocks[1:] > in_blocks[:-1]).all())
        )

    def __len__(self) -> int:
        """Return the number of shards."""
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> ShardEntry:
        """Return the entry of one shard."""
        (row,) = self._table.slice(index, 1).to_pylist()
        return ShardEntry(**{**row, "block_rows": tuple(row["block_rows"])})

    def __iter__(self) -> Iterator[ShardEntry]:
        """Yield the entries in order, a few thousand in memory at a time."""
        for batch in self._table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                yield ShardEntry(**{**row, "block_rows": tuple(row["block_rows"])})

    @property
    def making(self) -> Making:
        """How the dataset was made. Raises DatasetError if the table does not say."""
        try:
            return Making(**json.loads((self._table.schema.metadata or {})[MAKING_KEY]))
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(f"{SHARDS} does not say how the dataset was made ({error!r})") from error

    @cached_property
    def names(self) -> list[str]:
        """The file names of all shards."""
        return list(self._table["path"].to_pylist())

    def index_of(self, name: str) -> int | None:
        """Return the number of the shard with this file name, None if there is none."""
        return self.names.index(name) if name in self.names else None


def _refuse_pipes(path: Path) -> None:
    """Raise DatasetError if there is something else than a file: reading a pipe may never end."""
    if exists(path) and not is_file(path):
        raise DatasetError(f"{printable(str(path))}: not an ordinary file; {REPAIR_ADVICE}")


def open_table(path: Path, schema: pa.Schema | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Memory-map one of the dataset's Arrow tables, or some columns of it. Raises DatasetError.

    Text and list columns of an untrusted file need open_checked_table before they are used.
    """
    shown = printable(str(path))
    _refuse_pipes(path)
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table = table if columns is None else table.select(columns)
        table.validate()
        names = field_names(table.schema)
    except FileNotFoundError:
        raise DatasetError(f"{shown}: missing; {REPAIR_ADVICE}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(f"{shown}: not a readable Arrow file; {REPAIR_ADVICE}") from error
    except KeyError as error:
        raise DatasetError(f"{shown}: does not have the columns that docs/format.md gives it ({error})") from error
    if schema is not None and (names != schema.names or not table.schema.equals(schema)):
        raise DatasetError(f"{shown}: does not have the columns that docs/format.md gives it")
    return table


def open_checked_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Memory-map a table, or some columns of it, and look at every value, so that none can lead astray. Raises DatasetError."""
    table, shown = open_table(path, columns=columns), printable(str(path))
    if any(_holds_times(field.type) for field in table.schema):  # of which not every value is one in Python
        raise DatasetError(f"{shown}: does not have the columns that docs/format.md gives it")
    _validate(table, shown)
    return table


def _holds_times(type_: pa.DataType) -> bool:
    return pa.types.is_temporal(type_) or any(_holds_times(type_.field(i).type) for i in range(type_.num_fields))


def _validate(table: pa.Table, shown: str) -> None:
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError(f"{shown}: holds values that cannot be; {REPAIR_ADVICE}") from error


def write_checksums(path: Path, sums: Iterable[tuple[str, str]]) -> str:
    """Write SHA256SUMS from (file name, SHA-256) pairs, sorted by name, and return its own SHA-256."""
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(sums)]
    return write_atomically(path, "".join(lines).encode())


def read_checksums(path: Path) -> dict[str, str]:
    """Read SHA256SUMS: file name to SHA-256. Raises DatasetError."""
    _refuse_pipes(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: sha256 for sha256, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise DatasetError(f"{printable(str(path))}: cannot be read as a list of checksums ({error})") from error


@dataclass(frozen=True)
class Reject:
    """One line of rejects.jsonl: an input that was not converted, and why."""

    source: str
    key: str
    stage: str
    error: str
    message: str


def read_rejects(path: Path) -> Iterator[Reject]:
    """Yield the lines of rejects.jsonl one at a time. Raises DatasetError."""
    _refuse_pipes(path)
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                reject = Reject(**json.loads(line))
                _expect(all(type(value) is str for value in vars(reject).values()), "all of it is text")
                yield reject
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DatasetError(f"{printable(str(path))}: cannot be read as a list of rejects ({error}); {REPAIR_ADVICE}") from error


def count_reasons(path: Path) -> tuple[dict[str, int], tuple[Reject, ...]]:
    """Count a rejects.jsonl by "stage: error", most frequent first, and return the first reject of each."""
    reasons: Counter[str] = Counter()
    examples: dict[str, Reject] = {}
    for reject in read_rejects(path):
        reason = f"{reject.stage}: {reject.error}"
        reasons[reason] += 1
        examples.setdefault(reason, reject)
    counted = dict(reasons.most_common())
    return counted, tuple(examples[reason] for reason in counted)
