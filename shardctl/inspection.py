"""What is in a dataset: the whole, a shard, a block, a row, a key. Plain data for the command line to draw."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.codecs import image
from shardctl.errors import DatasetError, Rejection, UsageError
from shardctl.manifest import (
    PLAN,
    REJECTS,
    SHARDS,
    Manifest,
    Reject,
    ShardEntry,
    ShardTable,
    count_reasons,
    open_checked_table,
    read_rejects,
)
from shardctl.shard import ENCODED_IMAGE, ShardReader
from shardctl.storage import printable


@dataclass(frozen=True)
class Overview:
    """A dataset as a whole. `classes` counts the samples of each, `ratio` is uncompressed bytes / stored bytes.

    `reasons` counts the rejects by stage and error, `rejects` has one of each.
    """

    manifest: Manifest
    raw_bytes: int
    shard_bytes: tuple[int, int, int]
    classes: dict[str, int] | None
    reasons: dict[str, int]
    rejects: tuple[Reject, ...]

    @property
    def ratio(self) -> float:
        """How much smaller compression made the blocks."""
        return self.raw_bytes / max(1, self.manifest.bytes)

    def record(self) -> dict[str, Any]:
        """Return everything as plain data, for --json."""
        m = self.manifest
        return {
            "kind": m.kind,
            "samples": m.samples,
            "shards": m.shards,
            "bytes": m.bytes,
            "raw_bytes": self.raw_bytes,
            "compression_ratio": round(self.ratio, 3),
            "shard_bytes": dict(zip(("min", "median", "max"), self.shard_bytes, strict=True)),
            "rejected": m.rejected,
            "reject_reasons": self.reasons,
            "reject_examples": [vars(reject) for reject in self.rejects],
            "splits": [vars(split) for split in m.splits],
            "classes": self.classes,
            "schema": [{"name": name, "type": type_} for name, type_ in m.schema],
            "fields": m.fields,
            "recipe": m.recipe,
            "settings": m.settings,
            "fingerprint": m.fingerprint,
            "sources": list(m.sources),
            "created": m.created,
            "shardctl_version": m.shardctl_version,
        }


@dataclass(frozen=True)
class BlockFacts:
    """One block of a shard. `intact` is None where its checksum was not computed."""

    block: int
    rows: int
    raw_bytes: int
    checksum: str | None
    intact: bool | None


@dataclass(frozen=True)
class ShardOverview:
    """One shard, with or without its dataset."""

    name: str
    split: str
    samples: int
    bytes: int
    raw_bytes: int
    columns: tuple[tuple[str, str], ...]
    column_bytes: dict[str, int]
    blocks: tuple[BlockFacts, ...]


@dataclass(frozen=True)
class Record:
    """One sample and where it lies. `values` are as they are stored; `source` is None for a lone shard."""

    shard: str
    block: int
    row: int
    index: int | None
    source: str | None
    intact: bool
    values: dict[str, Any]


def overview(root: Path) -> Overview:
    """Describe a whole dataset. Reads the manifest and the tables, no shard. Raises DatasetError."""
    manifest = Manifest.load(root)
    table = ShardTable(root / SHARDS)
    sizes, raw = [], 0
    for entry in table:
        sizes.append(entry.bytes)
        raw += entry.raw_bytes
    reasons, examples = count_reasons(root / REJECTS)
    spread = (min(sizes), int(np.median(sizes)), max(sizes)) if sizes else (0, 0, 0)
    return Overview(manifest, raw, spread, _class_counts(root, manifest), reasons, examples)


def _class_counts(root: Path, manifest: Manifest) -> dict[str, int] | None:
    """Count the samples of every class, from the plan: it has the labels without the images."""
    names = manifest.fields.get("label", {}).get("names")
    if names is None:
        return None
    plan = open_checked_table(root / PLAN).select(["label", "outcome"])
    counts = np.zeros(len(names) + 1, np.int64)
    for batch in plan.to_batches():
        kept = batch.filter(pc.equal(batch.column("outcome"), "ok"))
        labels = kept.column("label").fill_null(-1).to_numpy()
        counts += np.bincount(labels + 1, minlength=len(names) + 1)
    counted = dict(zip(names, counts[1:].tolist(), strict=True))
    return counted if counts[0] == 0 else {**counted, "(no label)": int(counts[0])}


def describe_shard(path: Path, check: bool = False) -> ShardOverview:
    """Describe one shard file, with no need of its dataset; `check` computes the checksums. Raises DatasetError."""
    reader = ShardReader(path)
    blocks, column_bytes, samples, raw = [], Counter[str](), 0, 0
    for number, block in enumerate(reader.blocks()):
        intact = reader.block_is_intact(number) if check else None
        blocks.append(BlockFacts(number, block.num_rows, block.nbytes, reader.stored_checksum(number), intact))
        samples += block.num_rows
        raw += block.nbytes
        for field, column in zip(reader.schema, block.columns, strict=True):
            column_bytes[field.name] += column.nbytes
    columns = tuple((f.name, str(f.type)) for f in reader.schema)
    split = str(reader.info["split"])
    return ShardOverview(path.name, split, samples, reader.bytes, raw, columns, dict(column_bytes), tuple(blocks))


def find_shard(root: Path, name: str) -> ShardEntry:
    """Return the shard of a dataset by its file name or its number. Raises UsageError where there is none."""
    table = ShardTable(root / SHARDS)
    number = int(name) if name.isdecimal() else table.index_of(name)
    if number is None or number >= len(table):
        raise UsageError(f"{printable(str(root))}: no shard {name!r}; it has {len(table)}, from {table[0].path}")
    return table[number]


def record_at(path: Path, block: int | None, row: int, entry: ShardEntry | None = None) -> Record:
    """Return a row of a shard; without `block` it is counted from the shard's first row. Raises UsageError, DatasetError."""
    reader = ShardReader(path)
    number, place = (block, row) if block is not None else _block_of(reader, row)
    if not 0 <= number < len(reader):
        raise UsageError(f"{path.name}: no block {number}; it has {len(reader)}")
    data = reader.block(number)
    if not 0 <= place < data.num_rows:
        raise UsageError(f"{path.name}: no row {place} in block {number}; it has {data.num_rows}")
    values = {f.name: _plain(data.column(f.name), place) for f in reader.schema}
    before = sum(reader.block(earlier).num_rows for earlier in range(number)) + place
    return Record(
        shard=path.name,
        block=number,
        row=before,
        index=entry.first + before if entry else None,
        source=None,
        intact=reader.block_is_intact(number),
        values=values,
    )


def _block_of(reader: ShardReader, row: int) -> tuple[int, int]:
    for number, block in enumerate(reader.blocks()):
        if row < block.num_rows:
            return number, row
        row -= block.num_rows
    raise UsageError(f"{reader.path.name}: no row {row}, it ends before that")


def _plain(column: pa.Array, place: int) -> Any:
    """Return one value as it is stored: raw images as (height, width, 3) arrays, encoded ones as bytes and path."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        return column.slice(place, 1).to_numpy_ndarray()[0]
    return column[place].as_py()


def record_of_key(root: Path, key: str) -> list[Record]:
    """Return the samples made of one input (several with variants). Raises UsageError, with near keys, for an unknown one."""
    manifest = Manifest.load(root)
    plan, table = open_checked_table(root / PLAN), ShardTable(root / SHARDS)
    rows = plan.filter(pc.equal(plan["key"], key))
    if rows.num_rows == 0:
        raise UsageError(f"{printable(str(root))}: no key {printable(key)!r}{_near(plan, key)}")
    records = []
    for row in rows.select(["source", "root", "shard", "row", "outcome"]).to_pylist():
        if row["outcome"] != "ok":
            why = next((r.message for r in read_rejects(root / REJECTS) if r.key == key), "the reason is not recorded")
            raise DatasetError(f"{printable(key)}: was rejected when the dataset was made ({why})")
        entry = table[row["shard"]]
        record = record_at(root / entry.path, None, row["row"], entry)
        source = _source_path(manifest.sources[row["root"]], row["source"])
        records.append(Record(**{**vars(record), "source": source}))
    return records


def _source_path(root: str, source: str) -> str:
    return root if Path(root).is_file() else f"{root}/{source}"


def _near(plan: pa.Table, key: str) -> str:
    """Suggest keys that look alike, or that end alike."""
    name = key.rpartition("/")[2]
    alike = [k for batch in plan.select(["key"]).to_batches() for k in _alike(batch.column(0), name)][:1000]
    close = difflib.get_close_matches(key, alike, n=3, cutoff=0.5) or alike[:3]
    return f"; did you mean {' or '.join(printable(k) for k in close)}?" if close else ""


def _alike(keys: pa.Array, name: str) -> list[str]:
    stem = name.partition(".")[0][:6]
    return list(keys.filter(pc.match_substring(keys, stem)).slice(0, 200).to_pylist()) if stem else []


def head(root: Path, split: str | None, count: int, columns: list[str] | None) -> list[dict[str, Any]]:
    """Return the first samples of a dataset or of one of its splits, as they are stored."""
    manifest = Manifest.load(root)
    if split is not None and split not in [facts.name for facts in manifest.splits]:
        raise UsageError(f"no split {split!r}; there are {', '.join(facts.name for facts in manifest.splits)}")
    names = [name for name, _ in manifest.schema]
    unknown = [name for name in columns or () if name not in names]
    if unknown:
        raise UsageError(f"no column {', '.join(unknown)}; there are {', '.join(names)}")
    samples: list[dict[str, Any]] = []
    for entry in ShardTable(root / SHARDS):
        if len(samples) >= count:
            break
        if split is None or entry.split == split:
            samples += shard_head(root / entry.path, count - len(samples), columns)
    return samples


def shard_head(path: Path, count: int, columns: list[str] | None) -> list[dict[str, Any]]:
    """Return the first samples of one shard, as they are stored."""
    samples: list[dict[str, Any]] = []
    for block in ShardReader(path).blocks():
        names = columns or block.schema.names
        for place in range(min(block.num_rows, count - len(samples))):
            samples.append({name: _plain(block.column(name), place) for name in names})
        if len(samples) >= count:
            break
    return samples


def describe_value(value: Any) -> Any:
    """Return a stored value as plain data that is fit to print: for an image what it is, not its bytes."""
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "dtype": str(value.dtype), "mean": round(float(value.mean()), 2)}
    if isinstance(value, dict) and set(value) == {f.name for f in ENCODED_IMAGE}:
        return {"bytes": len(value["bytes"]), "path": value["path"], **_image_facts(value["bytes"])}
    return value


def _image_facts(data: bytes) -> dict[str, Any]:
    try:
        opened = image.open_image(data, max_pixels=2**62)
    except Rejection as rejection:
        return {"error": rejection.message}
    return {"format": opened.image.format, "mode": opened.image.mode, "size": f"{opened.size[0]}x{opened.size[1]}"}


def column_bytes(root: Path) -> dict[str, int]:
    """Add up the bytes of every column before compression, reading every shard."""
    total: Counter[str] = Counter()
    for entry in ShardTable(root / SHARDS):
        total.update(describe_shard(root / entry.path).column_bytes)
    return dict(total)
