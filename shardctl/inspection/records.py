"""Single samples: by their place, by their key, the first ones, those that match a condition."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, UsageError
from shardctl.inspection.blocks import Placed, Record, Shard, all_blocks, is_image
from shardctl.inspection.images import facts_of, image_facts, is_encoded_image
from shardctl.manifest import (
    PLAN,
    REJECTS,
    REPAIR_ADVICE,
    SHARDS,
    Manifest,
    ShardEntry,
    ShardTable,
    open_checked_table,
    open_table,
    read_rejects,
)
from shardctl.shard import BlockFile, ShardReader, map_file
from shardctl.storage import printable
from shardctl.where import Where, first_line, kept_rows, parse_where, quoted

DERIVED = {
    "index": pa.int64(),
    "split": pa.string(),
    "shard": pa.string(),
    "row": pa.int64(),
    "width": pa.int64(),
    "height": pa.int64(),
    "image_bytes": pa.int64(),
}
"""Names that a condition may use beside the columns. A column of the same name takes precedence."""


def record_at(path: Path, block: int | None, row: int, entry: ShardEntry | None = None) -> Record:
    """Return a row of a shard; without `block` it is counted from the shard's first row. Raises UsageError, DatasetError.

    With the shard's entry in a dataset, the record has its place there and its source.
    """
    found = _record_at(path, block, row, entry)
    return replace(found, source=_source(path.parent, entry, found.row)) if entry is not None else found


def _record_at(path: Path, block: int | None, row: int, entry: ShardEntry | None) -> Record:
    shard = Shard(path, entry)
    reader = shard.reader
    number, place = (block, row) if block is not None else _block_of(reader, row)
    if not 0 <= number < len(reader):
        raise UsageError(f"{path.name}: no block {number}; it has {len(reader)}")
    placed = Placed(shard, number)
    if not 0 <= place < placed.data.num_rows:
        raise UsageError(f"{path.name}: no row {place} in block {number}; it has {placed.data.num_rows}")
    return replace(placed.record(place, reader.block_is_intact(number)), checksum=reader.stored_checksum(number))


def _block_of(reader: ShardReader, row: int) -> tuple[int, int]:
    left = row
    for number, block in enumerate(reader.blocks()):
        if left < block.num_rows:
            return number, left
        left -= block.num_rows
    raise UsageError(f"{reader.path.name}: no row {row}; it has {row - left}")


def _source(root: Path, entry: ShardEntry, row: int) -> str | None:
    """Return the path of the input that a row of a shard was made of; None if the plan does not say."""
    try:
        sources = Manifest.load(root).sources
        part = open_table(root / PLAN, columns=["source", "root", "row"]).slice(entry.first_input, entry.inputs)
        part.validate(full=True)
        (found,) = part.filter(pc.equal(part["row"], row)).to_pylist()
        return _path(sources[found["root"]], found["source"])
    except (DatasetError, pa.ArrowException, KeyError, ValueError, IndexError):
        return None


def _path(root: str, source: str) -> str:
    return root if Path(root).is_file() else f"{root}/{source}"


def record_of_key(root: Path, key: str) -> list[Record]:
    """Return the samples made of one input (several with variants). Raises UsageError, with near keys, for an unknown one."""
    manifest, table = Manifest.load(root), ShardTable(root / SHARDS)
    keys = open_checked_table(root / PLAN, ["key"])["key"]
    places = list(_places_of(keys, key, int(manifest.recipe.get("variants") or 1)))
    if not places:
        raise UsageError(f"{printable(str(root))}: no key {printable(key)!r}{_near(keys, key)}")
    records = []
    for place in places:
        row = _plan_row(root, keys, place)
        if row["outcome"] != "ok":
            why = next((r.message for r in read_rejects(root / REJECTS) if r.key == key), "the reason is not recorded")
            raise DatasetError(f"{printable(key)}: was rejected when the dataset was made ({why})")
        entry = table[row["shard"]]
        found = _record_at(root / entry.path, None, row["row"], entry)
        records.append(replace(found, source=_path(manifest.sources[row["root"]], row["source"])))
    return records


def _places_of(keys: pa.ChunkedArray, key: str, most: int) -> Iterator[int]:
    """Yield the rows of the plan that have a key. Each is one look through it, a tenth of a second in ten million."""
    start = 0
    for _ in range(most):
        place = pc.index(keys.slice(start), key).as_py()
        if place < 0:
            return
        yield start + place
        start += place + 1


def _plan_row(root: Path, keys: pa.ChunkedArray, place: int) -> dict[str, Any]:
    """Return a row of the plan, of which no more than the part that it is in is read."""
    ends = np.cumsum([len(chunk) for chunk in keys.chunks])
    number = int(np.searchsorted(ends, place, side="right"))
    part = BlockFile(root / PLAN, map_file).fetch(number)[0]
    try:
        part.validate(full=True)
        (row,) = part.slice(place - int(ends[number]) + part.num_rows, 1).to_pylist()
        return {name: row[name] for name in ("source", "root", "shard", "row", "outcome")}
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise DatasetError(f"{printable(str(root / PLAN))}: holds values that cannot be; {REPAIR_ADVICE}") from error


def _near(keys: pa.ChunkedArray, key: str) -> str:
    """Suggest keys that look alike, or that have the beginning of its name."""
    stem = key.rpartition("/")[2].partition(".")[0][:6]
    alike: list[str] = []
    for chunk in keys.chunks:
        if not stem or len(alike) >= 1000:
            break
        alike += chunk.filter(pc.match_substring(chunk, stem)).slice(0, 200).to_pylist()
    distinct = list(dict.fromkeys(alike))  # every variant has the key of its input
    close = difflib.get_close_matches(key, distinct, n=3, cutoff=0.5) or distinct[:3]
    return f"; did you mean {' or '.join(printable(k) for k in close)}?" if close else ""


def head(target: Path, split: str | None, count: int) -> Iterator[Record]:
    """Yield the first samples of a dataset, of one of its splits, or of a lone shard. Raises UsageError, DatasetError."""
    for block in all_blocks(target, split):
        yield from (block.record(place) for place in range(min(block.data.num_rows, count)))
        count -= block.data.num_rows
        if count <= 0:
            return


def matching(target: Path, split: str | None, text: str) -> Iterator[Record]:
    """Yield the samples for which a condition holds. Blocks are read one after the other. Raises UsageError, DatasetError."""
    where: Where | None = None
    for block in all_blocks(target, split):
        if where is None:
            where = parse_where(text, _askable(block.reader.schema), block.reader.layout.classes)
        yield from (block.record(place) for place in _places(where, block))


def _askable(schema: pa.Schema) -> pa.Schema:
    """Return the names that a condition may use: columns other than images, and derived values."""
    fields = [field for field in schema.remove_metadata() if not is_image(field)]
    images = any(is_image(field) for field in schema)
    taken = {field.name for field in fields}
    return pa.schema(
        fields
        + [
            pa.field(name, type_)
            for name, type_ in DERIVED.items()
            if name not in taken and (images or name not in ("width", "height", "image_bytes"))
        ]
    )


def _places(where: Where, block: Placed) -> list[int]:
    """Return the rows of a block that match a condition."""
    columns = {name: _column(name, block) for name in where.columns}
    table = pa.table({**columns, _PLACE: pa.array(np.arange(block.data.num_rows))})
    try:
        return list(kept_rows(table, where.expression)[_PLACE].to_pylist())
    except pa.ArrowException as error:
        raise UsageError(f"--where {quoted(where.text)} cannot be computed: {first_line(error)}") from error


_PLACE = "__place__"


def _column(name: str, block: Placed) -> pa.Array:
    """Return a column of a block, or a derived value."""
    if name in block.data.schema.names:
        return block.data.column(name)
    rows = block.data.num_rows
    if name == "row":
        return pa.array(np.arange(block.first, block.first + rows))
    if name == "index":
        return pa.array(np.arange(block.first, block.first + rows) + (block.entry.first if block.entry else 0))
    if name in ("shard", "split"):
        value = block.reader.path.name if name == "shard" else str(block.reader.info["split"])
        return pa.array([value] * rows, pa.string())
    return pa.array([facts[name] for facts in image_facts(block.data)], pa.int64())


def describe_value(value: Any) -> Any:
    """Return a stored value as plain data that is fit to print: for an image what it is, not its bytes."""
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "dtype": str(value.dtype), "mean": round(float(value.mean()), 2)}
    if is_encoded_image(value):
        facts = facts_of(value["bytes"])
        size = f"{facts['width']}x{facts['height']}"
        told = {"error": facts["error"]} if "error" in facts else {n: facts.get(n) for n in ("format", "mode")} | {"size": size}
        return {"bytes": facts["image_bytes"], "path": value["path"], **told}
    return value
