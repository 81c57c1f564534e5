"""The check that a shard is the one that its dataset records: its blocks, its columns, its name, its bytes.

A shard without its dataset has nothing to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardctl.format.names import shard_name
from shardctl.inspection.verify.check import Fault, Shard
from shardctl.inspection.verify.finding import REBUILD
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


def other_bytes(shard: Shard) -> Iterator[Fault]:
    """Yield that the file has not the bytes that were written. Raises OSError if it cannot be read."""
    if shard.record is not None and hash_file(shard.reader.folder, shard.reader.name) != shard.record.entry.sha256:
        what = "its SHA-256 differs, outside the blocks: in the file's own metadata"
        yield Fault("wrong-checksum", f"{what}; {REBUILD}")
