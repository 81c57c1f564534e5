"""The checks of shards, and their table. A new check is one module beside this one, and one row here; small ones are here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.names import shard_name
from shardctl.format.roles import Mask
from shardctl.images.codecs.jpeg import jpeg_facts
from shardctl.inspection.verify.check import Block, CheckOf, Fault, Shard, by_block, without_blocks
from shardctl.inspection.verify.decoding import picture, undecodable
from shardctl.inspection.verify.finding import CONVERT_AGAIN, REBUILD
from shardctl.inspection.verify.planned_keys import KeyCheck
from shardctl.inspection.verify.tokens import wrong_tokens
from shardctl.system.locations.folder import hash_file
from shardctl.system.text import counted


def other_facts(shard: Shard) -> Iterator[Fault]:
    """Yield what the footer of a shard says otherwise than its dataset."""
    if shard.record is None:
        return
    reader, entry = shard.reader, shard.record.entry
    if len(reader) != len(entry.block_rows):
        what = f"it has {counted(len(reader), 'block')} where {len(entry.block_rows):,} were written"
        yield Fault("blocks-differ", f"{what}; {REBUILD}")
    if tuple((f.name, str(f.type)) for f in reader.schema) != shard.record.manifest.schema:
        yield Fault("schema-differs", f"its columns are not those of the dataset; {REBUILD}")
    own = shard_name(reader.info["split"], reader.info["shard"])
    if own != entry.path:
        yield Fault("wrong-shard", f"this was written as {own}; give it its name back, or {REBUILD}")


class OtherBytes:
    """Whether the file has the bytes that were written.

    It is read when the check begins, from its beginning to its end: a disk gives it faster so than as mapped blocks, which are
    in the page cache then. A cold dataset of 2.6 GiB took 3.5 s the other way round, and takes 2.7 s (2026-11-27).
    """

    def __init__(self, shard: Shard) -> None:
        self._record, self._sha256, self._fault = shard.record, "", None
        if self._record is not None:
            try:
                self._sha256 = hash_file(shard.reader.folder, shard.reader.name)
            except OSError as fault:
                self._fault = fault

    def look(self, block: Block) -> None:
        """Leave out the block."""

    def faults(self) -> Iterator[Fault]:
        """Yield that the bytes are others. Raises OSError if the file cannot be read."""
        if self._fault is not None:
            raise self._fault
        if self._record is not None and self._sha256 != self._record.entry.sha256:
            what = "its SHA-256 differs, outside the blocks: in the file's own metadata"
            yield Fault("wrong-checksum", f"{what}; {REBUILD}")


def not_plain(shard: Shard, block: Block) -> Iterator[Fault]:
    """Yield the images of a block that the loader takes for plain JPEG, and are not.

    Of the main images those that are recorded to be plain, and all images of a field that is stored as JPEG.
    """
    roles = shard.own_roles
    for name, rows in _said_plain(shard).items():
        if not block.data.schema.field(name).type.equals(ENCODED_IMAGE):
            continue
        images = block.data.column(name).field("bytes")
        of_block = None if rows is None else rows[block.first : block.first + len(images)]
        for row in range(len(images)) if of_block is None else np.flatnonzero(of_block).tolist():
            data = images[row].as_py()
            facts = None if data is None else jpeg_facts(data)
            if facts is None or not facts.plain:
                what = f"{picture(name, roles.images[name])} is not the plain JPEG that it is said to be"
                yield block.fault(row, "not-plain", f"{what}: the loader may give other pixels; {CONVERT_AGAIN}")


def _said_plain(shard: Shard) -> dict[str, npt.NDArray[np.bool_] | None]:
    """Return the fields with plain JPEG, each with the rows (rows,) of the shard where it is plain; None for all of them."""
    roles, recorded = shard.own_roles, None if shard.record is None else shard.record.plain
    stored_so = {name: None for name, role in roles.images.items() if role.is_plain and not isinstance(role, Mask)}
    if recorded is None or roles.main_image is None:
        return dict(stored_so)
    return {roles.main_image: recorded, **stored_so}


NO_SUCH_CLASS = "no-such-class"


class LabelCheck:
    """The labels of one shard: where classes have names, a label is the number of one.

    They are kept up to the last block, since faults come field by field.
    """

    def __init__(self, shard: Shard) -> None:
        self._names = shard.roles.names
        self._blocks: list[Block] = []

    def look(self, block: Block) -> None:
        """Keep the labels of a block."""
        if self._names:
            self._blocks.append(block.with_columns({"key", *self._names}))

    def faults(self) -> Iterator[Fault]:
        """Yield every label that is not the number of a class."""
        for name, classes in self._names.items():
            if self._blocks and name in self._blocks[0].data.schema.names:
                yield from _unnamed(name, classes, self._blocks)


def _unnamed(name: str, classes: Sequence[str], blocks: list[Block]) -> Iterator[Fault]:
    for block in blocks:
        labels = block.data.column(name)
        if not pa.types.is_integer(labels.type):
            what = f"{name} is of type {labels.type}, where classes have numbers"
            yield block.fault(0, NO_SUCH_CLASS, f"{what}; {CONVERT_AGAIN}")
            return
        values = np.from_dlpack(labels.fill_null(0))
        for row in np.flatnonzero((values < 0) | (values >= len(classes))).tolist():
            what = f"its {name} is {values[row]}, and the classes have the numbers 0 to {len(classes) - 1}"
            yield block.fault(row, NO_SUCH_CLASS, f"{what}; {CONVERT_AGAIN}")


def wrong_objects(shard: Shard, block: Block) -> Iterator[Fault]:
    """Yield the samples of a block whose objects are not as docs/annotations.md describes them, each with its first fault."""
    if shard.roles.objects:
        from shardctl.inspection.verify import object_faults  # brings the modules of the loader along, for 70 ms
        from shardctl.sources.annotations.base import BAD

        for row, what in object_faults.wrong_objects(block.data, shard.roles):
            yield block.fault(row, BAD, f"{what}; {CONVERT_AGAIN}")


class ShardCheck(NamedTuple):
    """A row of the table: the lowest level that has the check, the name of what it looks at, and the check."""

    level: str
    name: str
    check: CheckOf


SHARD_CHECKS = (
    ShardCheck("quick", "record", without_blocks(other_facts)),
    ShardCheck("full", "SHA-256", OtherBytes),
    ShardCheck("full", "labels", LabelCheck),
    ShardCheck("full", "objects", by_block(wrong_objects)),
    ShardCheck("full", "keys", KeyCheck),
    ShardCheck("deep", "decoding", by_block(undecodable)),
    ShardCheck("deep", "plain JPEG", by_block(not_plain)),
    ShardCheck("deep", "tokens", by_block(wrong_tokens)),
)
"""All checks of a shard, in the order of their findings. A level is checked if those before it have found nothing.

At `quick` no block is read, so that its checks are shown none. A shard without its dataset has no table that tells how many
samples it should have: there every block is read, and `full` is the lowest level.
"""
