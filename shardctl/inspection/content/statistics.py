"""How large the values of each column are, from some blocks all over a dataset."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.format.arrays import Array
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.manifest import Manifest
from shardctl.format.shard import Compression
from shardctl.format.token_columns import DOCUMENT_COLUMNS, list_lengths, packed_column
from shardctl.inspection.content.blocks import StoredBlock, blocks_and_share, count_blocks
from shardctl.loader.blocks.pictures import facts_of
from shardctl.system.report import Table
from shardctl.system.text import format_bytes

BLOCKS = 4
"""Default number of blocks that are read: a few milliseconds each."""

IMAGES = 256
"""Images whose headers are read: 40 microseconds each."""

BINS = 24

WORD_BYTES = 16
"""How long texts of short words are, such as modes of images, is not shown."""


@dataclass(frozen=True)
class Distribution:
    """How some numbers are spread: of what, the least, the median, the most; a histogram of `edges`
    (n + 1), `counts` (n)."""

    what: str
    low: float
    median: float
    high: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def says_something(self) -> bool:
        """Whether it is worth showing: the numbers differ, and are not lengths of short words, such
        as modes of images."""
        return self.low < self.high and not (
            self.what.endswith(", bytes") and self.high < WORD_BYTES
        )

    def table(self, unit: str) -> Table:
        """Return the bins, each with how many `unit` are in it."""
        share = self.high <= 1 and "share" in self.what
        written = f"{{:{'.1%' if share else ',.0f'}}}".format
        named = format_bytes if self.what.endswith(", bytes") else written
        whole = not share and all(edge == int(edge) for edge in self.edges)
        pairs = [(low, high - whole) for low, high in itertools.pairwise(self.edges)]
        names = [
            named(low) if low == high else f"{named(low)} to {named(high)}" for low, high in pairs
        ]
        exact = share or self.median == int(self.median) or self.median >= 1000
        median = written(self.median) if exact else f"{self.median:.1f}"
        spread = f"{written(self.low)} to {written(self.high)}, {median} at the median"
        return Table(
            list(zip(names, self.counts, strict=True)),
            (self.what, unit),
            bars=(1,),
            line=f"{self.what}: {spread}",
        )


@dataclass(frozen=True)
class ColumnStatistics:
    """What the values of a column take: bytes of one, before and after compression."""

    name: str
    type: str
    raw_bytes: float
    stored_bytes: float


class Recorded:
    """What can be printed as plain data: all that a dataclass has."""

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # each is a dataclass


@dataclass(frozen=True)
class Statistics(Recorded):
    """What was found in `samples` samples of `blocks` blocks. `formats` counts those of encoded
    images.

    `faults` says of blocks that cannot be read why.
    """

    samples: int
    blocks: int
    columns: tuple[ColumnStatistics, ...]
    distributions: tuple[Distribution, ...]
    formats: dict[str, int]
    faults: tuple[str, ...]


def statistics_of(
    place: DatasetLocation, blocks: int = BLOCKS, split: str | None = None
) -> Statistics:
    """Read up to `blocks` blocks of a dataset, of one of its splits, or of a lone shard. Nothing of
    a block stays in memory, and different lengths are few.

    Raises DatasetError if not even its tables can be read, UsageError for a split that there is
    not.
    """
    codec = Compression.parse(
        "none" if place.lone else str(Manifest.load(place.folder).recipe.get("compression"))
    ).codec()
    found, images = blocks_and_share(place, split, blocks, IMAGES)
    seen, sizes, formats = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    types: dict[str, pa.DataType] = {}
    spreads: dict[str, Counter[Any]] = {}

    def count(block: StoredBlock) -> None:
        data, roles = block.data, block.reader.layout.roles
        # tokens.py counts documents
        elsewhere = {"key", *(DOCUMENT_COLUMNS if packed_column(roles) is not None else ())}
        seen.update(samples=data.num_rows, blocks=1)
        for field, column in zip(data.schema, data.columns, strict=True):
            name = field.name
            types.setdefault(name, field.type)
            sizes[name, "raw"] += column.nbytes
            sizes[name, "stored"] += _stored(column, codec)
            if name in roles.images and field.type.equals(ENCODED_IMAGE):
                some = column.slice(0, images).field("bytes")
                facts = [facts_of(each.as_py()) for each in some if each.is_valid]
                formats.update(str(fact["format"] or "unreadable") for fact in facts)
                for what, said in _OF_IMAGES.items():
                    numbers = [fact[what] for fact in facts if fact[what] is not None]
                    spreads.setdefault(f"{name}{said}", Counter()).update(numbers)
            elif name not in elsewhere:
                for unit, lengths in _lengths(column):
                    add_numbers(spreads.setdefault(f"{name}, {unit}", Counter()), lengths)

    faults = count_blocks(found, count)
    columns = []
    for name, type_ in types.items():
        each = (round(sizes[name, which] / seen["samples"], 1) for which in ("raw", "stored"))
        columns.append(ColumnStatistics(name, str(type_), *each))
    return Statistics(
        seen["samples"],
        seen["blocks"],
        tuple(columns),
        tuple(distribution(what, counter) for what, counter in spreads.items()),
        dict(formats.most_common()),
        faults,
    )


_OF_IMAGES = {"width": " width", "height": " height", "image_bytes": ", bytes"}
"""What the headers of images say, and how a distribution of it is called behind their column."""


def _stored(column: pa.Array, codec: pa.Codec | None) -> int:
    """Return what a column takes in a file: each of its buffers is compressed by itself, if that
    makes it smaller."""
    if codec is None:
        return int(column.nbytes)
    sizes = [(buffer, buffer.size) for buffer in column.buffers() if buffer is not None]
    return sum(
        min(size, len(codec.compress(buffer, asbytes=True))) for buffer, size in sizes if size
    )


def _lengths(column: pa.Array) -> Iterator[tuple[str, Array]]:
    """Yield in what text, bytes and lists are measured, and how long they are; nothing of other
    columns."""
    there = column.drop_null() if column.null_count else column
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield "items", list_lengths(there)
    elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        yield "bytes", np.asarray(pc.binary_length(there))


def add_numbers(counter: Counter[Any], numbers: Array) -> None:
    """Count some numbers."""
    values, counts = np.unique(numbers, return_counts=True)
    counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def distribution(what: str, counter: Counter[Any], edges: Array | None = None) -> Distribution:
    """Return how numbers are spread, given how often there is each; nothing of none.

    `edges` are those of the bins; what is above is in the last one. Without them there are up to
    BINS.
    """
    if not counter:
        return Distribution(what, 0, 0, 0, (), ())
    values, counts = map(np.array, zip(*sorted(counter.items()), strict=True))
    low, high = float(values[0]), float(values[-1])
    if edges is None:
        bins = min(BINS, max(1, int(high - low)))
        binned, edges = np.histogram(values, bins, weights=counts)
        edges = edges.round(1)
    else:
        binned, _ = np.histogram(np.minimum(values, edges[-1]), edges, weights=counts)
    total = int(counts.sum())
    middle = np.searchsorted(np.cumsum(counts), [(total + 1) // 2, total // 2 + 1])
    median = float(values[middle].mean())
    shown = tuple(map(float, edges))
    return Distribution(what, low, median, high, shown, tuple(binned.astype(np.int64).tolist()))


def spread_of_counts(what: str, counter: Counter[int]) -> Distribution:
    """Return how whole numbers are spread: bins of one number each, or of several where there are
    too many."""
    low, end = min(counter, default=0), max(counter, default=0) + 1
    width = -(-(end - low) // BINS)
    return distribution(what, counter, np.arange(low, end + width, width))
