"""The files beside the shards: manifest.json, shards.arrow, rejects.jsonl, SHA256SUMS. docs/format.md, section 2."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.shard import FORMAT_VERSION, Layout
from shardctl.storage import printable, replacing, write_atomically

MANIFEST = "manifest.json"
PLAN = "plan.arrow"
SHARDS = "shards.arrow"
REJECTS = "rejects.jsonl"
CHECKSUMS = "SHA256SUMS"
STAGING = ".shardctl"
"""The folder inside a dataset's folder that holds everything until the commit."""

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
    """manifest.json: written last, by rename, so that its presence makes the dataset exist."""

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
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DatasetError(_why_no_manifest(root)) from None
        except NotADirectoryError:
            raise DatasetError(f"{printable(str(root))}: a file, not the folder of a dataset") from None
        except (OSError, ValueError) as error:
            raise DatasetError(f"{shown}: cannot be read ({error}); run `shardctl verify`") from error
        if not isinstance(record, dict) or record.get("format") != "shardctl":
            raise DatasetError(f"{shown}: not the manifest of a shardctl dataset")
        if record.get("format_version") != FORMAT_VERSION:
            version = record.get("format_version")
            raise DatasetError(f"{shown}: format version {version}; this shardctl reads version {FORMAT_VERSION}")
        if record.pop("digest", None) != _digest(record):
            raise DatasetError(f"{shown}: damaged, its content does not match its digest")
        return cls._from_record(record)

    @classmethod
    def _from_record(cls, record: dict[str, Any]) -> Manifest:
        known = {name: record[name] for name in cls.__dataclass_fields__}
        known["splits"] = tuple(SplitFacts(**split) for split in record["splits"])
        known["schema"] = tuple((column["name"], column["type"]) for column in record["schema"])
        known["sources"] = tuple(record["sources"])
        known["files"] = {name: FileFacts(**facts) for name, facts in record["files"].items()}
        return cls(**known)

    def layout(self, columns: pa.Schema) -> Layout:
        """Return what the fields are; `columns` is the schema of any shard, without metadata."""
        return Layout.from_json(self.kind, self.fields, columns)


def differing(parts: dict[str, str], others: dict[str, str]) -> str:
    """Name the parts of two fingerprints that differ: "inputs and recipe"."""
    return " and ".join(name for name in others if parts.get(name) != others[name])


def _digest(record: dict[str, Any]) -> str:
    """Return the SHA-256 of the record as compact JSON with sorted keys and without its own digest."""
    text = json.dumps({k: v for k, v in record.items() if k != "digest"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _why_no_manifest(root: Path) -> str:
    shown = printable(str(root))
    if not root.exists():
        return f"{shown}: no such dataset"
    if (root / STAGING).exists():
        return f"{shown}: an unfinished conversion; run the same `shardctl convert` again to complete it"
    return f"{shown}: not a dataset (it has no {MANIFEST})"


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


def write_shard_table(path: Path, entries: Iterable[ShardEntry]) -> None:
    """Write shards.arrow: one row per shard, in the order of the dataset."""
    rows = [asdict(entry) for entry in entries]
    with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), SHARDS_SCHEMA) as writer:
        for start in range(0, len(rows), 65536):
            writer.write_batch(pa.RecordBatch.from_pylist(rows[start : start + 65536], schema=SHARDS_SCHEMA))


class ShardTable:
    """shards.arrow, memory-mapped: which shard holds which samples.

    `first` and `rows` are int64 arrays of one number per shard.
    """

    def __init__(self, path: Path) -> None:
        self._table = open_table(path, SHARDS_SCHEMA)
        self.first: npt.NDArray[np.int64] = self._table["first"].to_numpy()
        self.rows: npt.NDArray[np.int64] = self._table["rows"].to_numpy()

    def __len__(self) -> int:
        """Return the number of shards."""
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> ShardEntry:
        """Return the entry of one shard."""
        (row,) = self._table.slice(index, 1).to_pylist()
        return ShardEntry(**{**row, "block_rows": tuple(row["block_rows"])})

    def __iter__(self) -> Iterator[ShardEntry]:
        """Give the entries in order, a few thousand in memory at a time."""
        for batch in self._table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                yield ShardEntry(**{**row, "block_rows": tuple(row["block_rows"])})

    @cached_property
    def names(self) -> list[str]:
        """The file names of all shards."""
        return list(self._table["path"].to_pylist())

    def index_of(self, name: str) -> int | None:
        """Return the number of the shard with this file name, None where there is none."""
        return self.names.index(name) if name in self.names else None


def open_table(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Memory-map one of the dataset's Arrow tables. Raises DatasetError."""
    shown = printable(str(path))
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate()
    except FileNotFoundError:
        raise DatasetError(f"{shown}: missing; run `shardctl verify` on the dataset") from None
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{shown}: not a readable Arrow file; run `shardctl verify` on the dataset") from error
    if schema is not None and not table.schema.equals(schema):
        raise DatasetError(f"{shown}: does not have the columns that docs/format.md gives it")
    return table


def write_checksums(path: Path, sums: Iterable[tuple[str, str]]) -> str:
    """Write SHA256SUMS from (file name, SHA-256) pairs, sorted by name, and return its own SHA-256."""
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(sums)]
    return write_atomically(path, "".join(lines).encode())


def read_checksums(path: Path) -> dict[str, str]:
    """Read SHA256SUMS: file name to SHA-256. Raises DatasetError."""
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
    """Give the lines of rejects.jsonl one at a time."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield Reject(**json.loads(line))
