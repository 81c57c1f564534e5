"""One shard, with or without its dataset: its blocks, their checksums, the bytes of its columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shardctl.errors import UsageError
from shardctl.format.shard import ShardReader
from shardctl.format.tables import ShardEntry, ShardTable
from shardctl.system.html import in_notebook, rows_in_notebook
from shardctl.system.locations.folder import Folder, FolderHere
from shardctl.system.text import counted, format_bytes


@dataclass(frozen=True)
class BlockFacts:
    """One block of a shard. `intact` is None if its checksum was not computed."""

    block: int
    rows: int
    raw_bytes: int
    checksum: str | None
    intact: bool | None

    @property
    def checked(self) -> str:
        """What is known of its checksum, in words."""
        return {None: "not checked", True: "holds", False: "DIFFERS"}[self.intact]


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

    def __repr__(self) -> str:
        """Return how much there is, for display."""
        return (
            f"<shardctl.ShardOverview {self.name!r}: {self.size}; columns "
            f"{', '.join(name for name, _ in self.columns)}>"
        )

    def _repr_html_(self) -> str:
        """Return the columns and the blocks, for a notebook."""
        columns = [(name, type_, self.column_bytes.get(name, 0)) for name, type_ in self.columns]
        blocks = [
            (each.block, each.rows, each.raw_bytes, each.checksum, each.checked)
            for each in self.blocks
        ]
        return in_notebook(
            f"{self.name}: {self.size}",
            rows_in_notebook("", columns, ("column", "type", "uncompressed bytes")),
            rows_in_notebook(
                "blocks", blocks, ("block", "rows", "uncompressed bytes", "checksum", "")
            ),
        )

    @property
    def size(self) -> str:
        """How much there is, in words."""
        samples = (
            f"{counted(self.samples, 'sample')} of split {self.split} in "
            f"{counted(len(self.blocks), 'block')}"
        )
        return f"{samples}, {format_bytes(self.bytes)}, {format_bytes(self.raw_bytes)} uncompressed"


def describe_shard(folder: Folder, name: str, check: bool = False) -> ShardOverview:
    """Describe one shard file, with no need of its dataset; `check` computes the checksums. Raises
    DatasetError."""
    reader = ShardReader(folder, name)
    blocks, column_bytes, samples, raw = [], Counter[str](), 0, 0
    for number, block in enumerate(reader.blocks()):
        intact = reader.block_is_intact(number) if check else None
        blocks.append(
            BlockFacts(number, block.num_rows, block.nbytes, reader.stored_checksum(number), intact)
        )
        samples += block.num_rows
        raw += block.nbytes
        for field, column in zip(reader.schema, block.columns, strict=True):
            column_bytes[field.name] += column.nbytes
    columns = tuple((f.name, str(f.type)) for f in reader.schema)
    split = str(reader.info["split"])
    return ShardOverview(
        name, split, samples, reader.bytes, raw, columns, dict(column_bytes), tuple(blocks)
    )


def find_shard(folder: FolderHere, name: str) -> ShardEntry:
    """Return the shard of a dataset by its file name or its number. Raises UsageError if there is
    none."""
    table = ShardTable(folder)
    number = int(name) if name.isdecimal() else table.index_of(name)
    if number is None or number >= len(table):
        raise UsageError(
            f"{folder.shown()}: no shard {name!r}; it has {counted(len(table), 'shard')}, from "
            f"{table[0].path}"
        )
    return table[number]


def column_bytes(folder: FolderHere, split: str | None = None) -> dict[str, int]:
    """Add up the bytes of every column before compression, reading every shard of a dataset, or of
    one split."""
    total: Counter[str] = Counter()
    for entry in ShardTable(folder):
        if split in (None, entry.split):
            total.update(describe_shard(folder, entry.path).column_bytes)
    return dict(total)
