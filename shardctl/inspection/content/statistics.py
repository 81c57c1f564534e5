"""How large the values of each column are, from some blocks all over a dataset."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Roles
from shardctl.format.shard import Compression
from shardctl.format.token_columns import DOCUMENT_COLUMNS, packed_column
from shardctl.inspection.content.blocks import some_blocks
from shardctl.inspection.content.images import facts_of
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


@dataclass(frozen=True)
class Statistics:
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

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def statistics_of(
    place: DatasetLocation, blocks: int = BLOCKS, split: str | None = None
) -> Statistics:
    """Read up to `blocks` blocks of a dataset, of one of its splits, or of a lone shard.

    Raises DatasetError if not even its tables can be read, UsageError for a split that there is
    not.
    """
    compression = Compression.parse(
        "none" if place.lone else str(Manifest.load(place.folder).recipe.get("compression"))
    )
    tally = _Tally(
        compression.codec(),
        images=max(1, IMAGES // max(1, sum(1 for _ in some_blocks(place, split, blocks)))),
    )
    faults: list[str] = []
    for block in some_blocks(place, split, blocks):
        try:
            tally.add(block.data, block.reader.layout.roles)
        except DatasetError as error:
            faults.append(str(error))
    return tally.result(faults)


class _Tally:
    """What was counted so far, a block at a time: nothing of a block stays, and different lengths
    are few."""

    def __init__(self, codec: pa.Codec | None, images: int) -> None:
        self._codec, self._images = codec, images
        self._samples = self._blocks = 0
        self._types: dict[str, pa.DataType] = {}
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._counts: dict[str, dict[str, Counter[Any]]] = {}
        self._formats: Counter[str] = Counter()

    def add(self, block: pa.RecordBatch, roles: Roles) -> None:
        """Count a block."""
        # token_statistics.py does
        counted_elsewhere = {"key", *(DOCUMENT_COLUMNS if packed_column(roles) is not None else ())}
        self._samples += block.num_rows
        self._blocks += 1
        for field, column in zip(block.schema, block.columns, strict=True):
            self._types.setdefault(field.name, field.type)
            self._bytes[field.name, "raw"] += column.nbytes
            self._bytes[field.name, "stored"] += _stored(column, self._codec)
            spreads = self._counts.setdefault(field.name, {})
            if field.name in roles.images and field.type.equals(ENCODED_IMAGE):
                self._add_images(column, field.name, spreads)
            elif field.name not in counted_elsewhere and (lengths := _lengths(column)) is not None:
                values, counts = np.unique(lengths, return_counts=True)
                spread = spreads.setdefault(f"{field.name}, {_unit(field.type)}", Counter())
                spread.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def _add_images(
        self, column: pa.StructArray, field: str, spreads: dict[str, Counter[Any]]
    ) -> None:
        """Count width, height, stored bytes and formats of some images of a field."""
        facts = [
            facts_of(data.as_py())
            for data in column.slice(0, self._images).field("bytes")
            if data.is_valid
        ]
        self._formats.update(str(fact["format"] or "unreadable") for fact in facts)
        for name, what in (
            ("width", f"{field} width"),
            ("height", f"{field} height"),
            ("image_bytes", f"{field}, bytes"),
        ):
            known = Counter(fact[name] for fact in facts if fact[name] is not None)
            if known:
                spreads.setdefault(what, Counter()).update(known)

    def result(self, faults: list[str]) -> Statistics:
        """Return all of it, with what was wrong with blocks."""
        columns = []
        for name, type_ in self._types.items():
            raw, stored = (
                round(self._bytes[name, which] / self._samples, 1) for which in ("raw", "stored")
            )
            columns.append(ColumnStatistics(name, str(type_), raw, stored))
        distributions = [
            distribution(what, counter)
            for each in self._counts.values()
            for what, counter in each.items()
        ]
        of_formats = dict(self._formats.most_common())
        return Statistics(
            self._samples,
            self._blocks,
            tuple(columns),
            tuple(distributions),
            of_formats,
            tuple(faults),
        )


def _stored(column: pa.Array, codec: pa.Codec | None) -> int:
    """Return what a column takes in a file: each of its buffers is compressed by itself, if that
    makes it smaller."""
    if codec is None:
        return int(column.nbytes)
    sizes = [(buffer, buffer.size) for buffer in column.buffers() if buffer is not None]
    return sum(
        min(size, len(codec.compress(buffer, asbytes=True))) for buffer, size in sizes if size
    )


def _unit(type_: pa.DataType) -> str:
    return "bytes" if pa.types.is_string(type_) or pa.types.is_binary(type_) else "items"


def _lengths(column: pa.Array) -> npt.NDArray[Any] | None:
    """Return how long text, bytes and lists are; None for other columns."""
    type_ = column.type
    small = pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_list(type_)
    if not small and not pa.types.is_large_list(type_):
        return None
    offsets = np.frombuffer(column.buffers()[1], np.int32 if small else np.int64)
    return np.asarray(
        np.diff(offsets[column.offset : column.offset + len(column) + 1])[_there(column)]
    )


def _there(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values are not missing, (n,)."""
    return np.asarray(column.is_valid()) if column.null_count else np.ones(len(column), bool)


def distribution(what: str, counter: Counter[Any]) -> Distribution:
    """Return how numbers are spread, given how often there is each; nothing of none."""
    if not counter:
        return Distribution(what, 0, 0, 0, (), ())
    values, counts = _sorted_counts(counter)
    binned, edges = np.histogram(
        values, min(BINS, max(1, int(values[-1] - values[0]))), weights=counts
    )
    spread = (float(values[0]), _median(values, counts), float(values[-1]))
    return Distribution(
        what, *spread, tuple(edges.round(1).tolist()), tuple(binned.astype(np.int64).tolist())
    )


def _sorted_counts(counter: Counter[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    values = np.array(sorted(counter))
    return values, np.array([counter[value] for value in values.tolist()], np.int64)


def _median(values: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> float:
    """Return the median of numbers, of which `values` are sorted and `counts` says how often there
    is each."""
    up_to, total = np.cumsum(counts), int(counts.sum())
    middle = [
        float(values[np.searchsorted(up_to, place + 1)]) for place in ((total - 1) // 2, total // 2)
    ]
    return sum(middle) / 2


def spread_of_counts(what: str, counter: Counter[int]) -> Distribution:
    """Return how whole numbers are spread: bins of one number each, or of several where there are
    too many."""
    if not counter:
        return Distribution(what, 0, 0, 0, (), ())
    values, counts = _sorted_counts(counter)
    low, high = int(values[0]), int(values[-1])
    width = -(-(high + 1 - low) // BINS)
    bins = -(-(high + 1 - low) // width)
    binned = np.bincount((values - low) // width, counts, minlength=bins).astype(np.int64)
    edges = tuple(float(low + width * number) for number in range(bins + 1))
    return Distribution(what, low, _median(values, counts), high, edges, tuple(binned.tolist()))
