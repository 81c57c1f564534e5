"""How large the values of each column are, from some blocks all over a dataset."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.inspection.blocks import some_blocks
from shardctl.layout import ENCODED_IMAGE
from shardctl.manifest import Manifest
from shardctl.shard import Compression
from shardctl.token_columns import DOCUMENT_COLUMNS, packed_column

BLOCKS = 4
"""Default number of blocks that are read: a few milliseconds each."""

IMAGES = 256
"""Images whose headers are read: 40 microseconds each."""

BINS = 24


@dataclass(frozen=True)
class Distribution:
    """How some numbers are spread: of what, the least, the median, the most; a histogram of `edges` (n + 1), `counts` (n)."""

    what: str
    low: float
    median: float
    high: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ColumnStatistics:
    """What the values of a column take: bytes of one, before and after compression."""

    name: str
    type: str
    raw_bytes: float
    stored_bytes: float


@dataclass(frozen=True)
class Statistics:
    """What was found in `samples` samples of `blocks` blocks. `formats` counts those of encoded images.

    `faults` says of blocks that cannot be read why.
    """

    samples: int
    blocks: int
    columns: tuple[ColumnStatistics, ...]
    distributions: tuple[Distribution, ...]
    formats: dict[str, int]
    faults: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def statistics_of(target: Path, blocks: int = BLOCKS, split: str | None = None) -> Statistics:
    """Read up to `blocks` blocks of a dataset, of one of its splits, or of a lone shard.

    Raises DatasetError if not even its tables can be read, UsageError for a split that there is not.
    """
    looked_at: list[pa.RecordBatch] = []
    images: dict[str, None] = {}
    told_elsewhere = {"key"}
    faults: list[str] = []
    for block in some_blocks(target, split, blocks):
        try:
            looked_at.append(block.data)
            images |= dict.fromkeys(block.reader.layout.roles.images)
            if packed_column(block.reader.layout.roles) is not None:
                told_elsewhere |= set(DOCUMENT_COLUMNS)  # token_statistics.py tells how many documents there are
        except DatasetError as error:
            faults.append(str(error))
    compression = Compression.parse("none" if target.is_file() else str(Manifest.load(target).recipe.get("compression")))
    codec = compression.codec()
    samples = sum(block.num_rows for block in looked_at)
    columns: list[ColumnStatistics] = []
    distributions: list[Distribution] = []
    formats: Counter[str] = Counter()
    for place, field in enumerate(looked_at[0].schema if looked_at else ()):
        parts = [block.column(place) for block in looked_at]
        raw = sum(part.nbytes for part in parts)
        stored = sum(_stored(part, codec) for part in parts)
        columns.append(ColumnStatistics(field.name, str(field.type), round(raw / samples, 1), round(stored / samples, 1)))
        if field.name in images and field.type.equals(ENCODED_IMAGE):
            distributions += _image_sizes(field.name, parts, formats)
        elif field.name not in told_elsewhere and (lengths := _lengths(parts)) is not None:
            distributions.append(distribution(f"{field.name}, {_unit(field.type)}", lengths))
    of_formats = dict(formats.most_common())
    return Statistics(samples, len(looked_at), tuple(columns), tuple(distributions), of_formats, tuple(faults))


def _stored(column: pa.Array, codec: pa.Codec | None) -> int:
    """Return what a column takes in a file: each of its buffers is compressed by itself, if that makes it smaller."""
    if codec is None:
        return int(column.nbytes)
    sizes = [(buffer, buffer.size) for buffer in column.buffers() if buffer is not None]
    return sum(min(size, len(codec.compress(buffer, asbytes=True))) for buffer, size in sizes if size)


def _unit(type_: pa.DataType) -> str:
    return "bytes" if pa.types.is_string(type_) or pa.types.is_binary(type_) else "items"


def _lengths(parts: list[pa.Array]) -> npt.NDArray[Any] | None:
    """Return how long text, bytes and lists are; None for other columns."""
    type_ = parts[0].type
    small = pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_list(type_)
    if not small and not pa.types.is_large_list(type_):
        return None
    width = np.int32 if small else np.int64
    offsets = [np.frombuffer(part.buffers()[1], width)[part.offset : part.offset + len(part) + 1] for part in parts]
    return np.concatenate([np.diff(each)[_there(part)] for each, part in zip(offsets, parts, strict=True)])


def _there(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values are not missing, (n,)."""
    return np.asarray(column.is_valid()) if column.null_count else np.ones(len(column), bool)


def _image_sizes(field: str, parts: list[pa.StructArray], formats: Counter[str]) -> list[Distribution]:
    """Return the spread of width, height and stored bytes of some images of a field, and count their formats."""
    from shardctl.inspection.images import facts_of  # loads the decoders, which most datasets of text never need

    share = max(1, IMAGES // len(parts))
    facts = [facts_of(data.as_py()) for part in parts for data in part.slice(0, share).field("bytes") if data.is_valid]
    formats.update(str(fact["format"] or "unreadable") for fact in facts)
    found = []
    for name, what in (("width", f"{field} width"), ("height", f"{field} height"), ("image_bytes", f"{field}, bytes")):
        values = np.array([fact[name] for fact in facts if fact[name] is not None])
        if len(values):
            found.append(distribution(what, values))
    return found


def distribution(what: str, values: npt.NDArray[Any]) -> Distribution:
    """Return how numbers are spread; nothing of none."""
    if not len(values):
        return Distribution(what, 0, 0, 0, (), ())
    counts, edges = np.histogram(values, min(BINS, max(1, int(values.max() - values.min()))))
    spread = (float(values.min()), float(np.median(values)), float(values.max()))
    return Distribution(what, *spread, tuple(edges.round(1).tolist()), tuple(counts.tolist()))


def spread_of_counts(what: str, counter: Counter[int]) -> Distribution:
    """Return how whole numbers are spread: bins of one number each, or of several where there are too many."""
    if not counter:
        return Distribution(what, 0, 0, 0, (), ())
    values = np.array(sorted(counter))
    counts = np.array([counter[value] for value in values.tolist()])
    low, high = int(values[0]), int(values[-1])
    width = -(-(high + 1 - low) // BINS)
    bins = -(-(high + 1 - low) // width)
    binned = np.bincount((values - low) // width, counts, minlength=bins).astype(np.int64)
    edges = tuple(float(low + width * number) for number in range(bins + 1))
    up_to, total = np.cumsum(counts), int(counts.sum())
    middle = [float(values[np.searchsorted(up_to, place + 1)]) for place in ((total - 1) // 2, total // 2)]
    return Distribution(what, low, sum(middle) / 2, high, edges, tuple(binned.tolist()))
