"""The check of one shard. It runs in a separate process, since damaged bytes may crash it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.lazy_folder.files import is_regular_file, sha256_of, size_of_file
from shardctl.format.manifest import Manifest
from shardctl.format.names import PLAN, shard_name
from shardctl.format.roles import Image, Mask, Roles
from shardctl.format.shard import ShardReader
from shardctl.format.tables import ShardEntry
from shardctl.images.codecs import image
from shardctl.images.codecs.jpeg import jpeg_facts
from shardctl.inspection.verify.finding import Finding, error, reading, unreadable
from shardctl.inspection.verify.provenance import ShardContent
from shardctl.inspection.verify.tokens import wrong_tokens
from shardctl.sources.annotations.base import BAD
from shardctl.system.processes.progress_slot import WorkerProgress

Place = tuple[int, int, str | None, str]
"""A block, a row in the shard, its key, and what is wrong there."""

REBUILD = "`shardctl repair` builds it again from the sources"
OTHER_BUILD = "another build may read it (`shardctl --version` names this one), else convert without it"
CONVERT_AGAIN = "convert the sources again with --overwrite"
MOST_PIXELS = 2**40
"""Largest stored image that is decoded: the conversion has had its own limit."""


class ShardCheck:
    """The check of one shard of a dataset, at one level.

    `content` is what the plan says of its rows; None if it cannot be read or is not needed. `fatal` has the images, as they
    are counted in the shard, that ended the process that decoded them, each with what happened. `plain` (rows,) tells which of
    the main images are recorded to be plain JPEG, None if that is not recorded.
    """

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        entry: ShardEntry,
        content: ShardContent | None,
        progress: WorkerProgress,
        fatal: dict[int, str],
        plain: npt.NDArray[np.bool_] | None,
    ) -> None:
        self._plain = plain
        self._path, self._manifest, self._entry = root / entry.path, manifest, entry
        self._progress, self._fatal = progress, fatal
        self._content = content

    def findings(self, level: str) -> Iterator[Finding]:
        """Check the shard at a level. That it is missing or cannot be read is a finding too."""
        missing = error("missing-shard", f"the shard is missing; {REBUILD}", self._entry.path)
        if not is_regular_file(self._path):
            yield missing
            return
        check = {"quick": self._quick, "full": self._full, "deep": self._deep}[level]()
        yield from reading(missing, "the shard", REBUILD, check)

    def _quick(self) -> Iterator[Finding]:
        """Compare the file's size, and what it says of itself, with the dataset. Reads its footer."""
        entry = self._entry
        reader = yield from _open(self._path, entry)
        if reader is None:
            return
        if len(reader) != len(entry.block_rows):
            yield self._error("blocks-differ", f"it has {len(reader)} blocks where {len(entry.block_rows)} were written")
        if tuple((f.name, str(f.type)) for f in reader.schema) != self._manifest.schema:
            yield self._error("schema-differs", "its columns are not those of the dataset")
        own = shard_name(reader.info["split"], reader.info["shard"])
        if own != entry.path:
            yield error("wrong-shard", f"this was written as {own}; give it its name back, or {REBUILD}", entry.path)

    def _full(self) -> Iterator[Finding]:
        """Compare every byte with its checksums, and the keys with the plan."""
        found = list(self._quick())
        yield from found
        if found:
            return
        kept: list[pa.RecordBatch] = []
        marked: list[Place] = []
        damaged = list(self._damaged_blocks(ShardReader(self._path), kept, marked))
        # Of a mapped file, what the system cannot read looks like zeros. Only a plain read raises OSError.
        sha256 = sha256_of(self._path)
        yield from damaged
        if damaged:
            return
        if sha256 != self._entry.sha256:
            yield self._error("wrong-checksum", "its SHA-256 differs, outside the blocks: in the file's own metadata")
        for block, row, key, what in _unnamed_labels(kept, self._manifest.roles):
            yield error("no-such-class", what, self._entry.path, block, row, *self._of(row, key))
        for block, row, key, what in marked:
            yield error(BAD, what, self._entry.path, block, row, *self._of(row, key))
        yield from self._wrong_keys(kept)

    def _deep(self) -> Iterator[Finding]:
        """Do all that `full` does, decode every sample, and look at every token."""
        found = list(self._full())
        yield from found
        if not found:
            keep = self._manifest.recipe.get("truncated") == "keep"
            faults = list(_undecodable(ShardReader(self._path), keep, self._progress, self._fatal))
            if faults:
                sha256_of(self._path)  # raises OSError where it is the disk that has failed, since `full` read it
            for block, row, key, fault in faults:
                yield error("does-not-decode", fault, self._entry.path, block, row, *self._of(row, key))
            for block, row, key, fault in _not_plain(ShardReader(self._path), self._plain):
                yield error("not-plain", fault, self._entry.path, block, row, *self._of(row, key))
            for kind, (block, row, key, fault) in _wrong_tokens(ShardReader(self._path)):
                yield error(kind, fault, self._entry.path, block, row, *self._of(row, key))

    def _error(self, kind: str, what: str) -> Finding:
        return error(kind, f"{what}; {REBUILD}", self._entry.path)

    def _damaged_blocks(self, reader: ShardReader, kept: list[pa.RecordBatch], marked: list[Place]) -> Iterator[Finding]:
        """Yield the damaged blocks.

        Of each of the others the keys and labels are added to `kept`, the samples whose objects are wrong to `marked`.
        """
        first = 0
        for block, rows in enumerate(self._entry.block_rows):
            data, wrong = _read_block(reader, block)
            if data is not None:
                kept.append(_names_and_labels(data, self._manifest.roles))
                marked += _wrong_objects(data, self._manifest.roles, block, first)
                if data.num_rows != rows:
                    wrong = "rows-differ", f"the block has {data.num_rows} rows where {rows} were written"
            if wrong:
                kind, what = wrong
                held = self._content.span(first, rows) if self._content else f"rows {first} to {first + rows - 1}"
                yield error(kind, f"{what}; it holds {held}; {REBUILD}", self._entry.path, block, first, *self._of(first))
            first += rows

    def _wrong_keys(self, kept: list[pa.RecordBatch]) -> Iterator[Finding]:
        """Compare the keys of the shard with those that the plan gives it."""
        if self._content is None:
            return
        wrong = self._content.first_wrong_key(kept)
        if wrong is not None:
            row, key = wrong
            block = int(np.searchsorted(np.cumsum(self._entry.block_rows), row, side="right"))
            what = f"its row {row} has the key {key!r}, {PLAN} has another key for it"
            yield error("keys-differ", f"{what}; {REBUILD}", self._entry.path, block, row, *self._content.of(row))

    def _of(self, row: int, key: str | None = None) -> tuple[str | None, str | None]:
        """Return the key and the source of a row, as far as the plan is there to tell; its `key` if that is known."""
        return self._content.of(row, key) if self._content is not None else (key, None)


def _open(path: Path, entry: ShardEntry) -> Generator[Finding, None, ShardReader | None]:
    """Yield what is wrong with the file as a whole, and return its reader if there is nothing.

    Raises OSError if the file cannot be read.
    """
    size = size_of_file(path)
    if size != entry.bytes:
        yield error("wrong-size", f"it has {size} bytes where {entry.bytes} were written; {REBUILD}", entry.path)
        return None
    try:
        return ShardReader(path)
    except DatasetError as problem:
        sha256_of(path)  # raises OSError where it is not the content that is wrong
        yield error("unreadable-shard", f"{problem}; {REBUILD}", entry.path)
        return None


def check_lone_shard(path: Path, level: str, progress: WorkerProgress, fatal: dict[int, str]) -> tuple[int, list[Finding]]:
    """Check one shard without its dataset; return its number of samples, those in damaged blocks left out.

    There is no table to tell how many it should have, so that every block is read, at `quick` too.
    """
    try:
        samples, findings = _lone_shard(path, level, progress, fatal)
        if findings:
            sha256_of(path)  # raises OSError where it is not the content that is wrong
    except OSError as fault:
        return 0, [unreadable(path.name, fault, "nothing else is known of a shard without its dataset", path.name)]
    return samples, findings


def _lone_shard(path: Path, level: str, progress: WorkerProgress, fatal: dict[int, str]) -> tuple[int, list[Finding]]:
    try:
        reader = ShardReader(path)
    except DatasetError as problem:
        return 0, [error("unreadable-shard", str(problem), path.name)]
    samples, findings, kept = 0, [], []
    marked: list[Place] = []
    for block in range(len(reader)):
        data, wrong = _read_block(reader, block)
        if data is not None:
            marked += _wrong_objects(data, reader.layout.roles, block, samples)
            samples += data.num_rows
            kept.append(_names_and_labels(data, reader.layout.roles))
        if wrong:
            findings.append(error(*wrong, path.name, block))
    if not findings:
        unnamed = _unnamed_labels(kept, reader.layout.roles)
        findings += [error("no-such-class", what, path.name, block, row, key) for block, row, key, what in unnamed]
        findings += [error(BAD, what, path.name, block, row, key) for block, row, key, what in marked]
    if level == "deep" and not findings:
        # Only the manifest knows whether truncated images were accepted: here they are findings.
        for block, row, key, fault in _undecodable(reader, False, progress, fatal):
            findings.append(error("does-not-decode", fault, path.name, block, row, key))
        for block, row, key, fault in _not_plain(reader, None):
            findings.append(error("not-plain", fault, path.name, block, row, key))
        for kind, (block, row, key, fault) in _wrong_tokens(reader):
            findings.append(error(kind, fault, path.name, block, row, key))
    return samples, findings


def _undecodable(reader: ShardReader, keep_truncated: bool, progress: WorkerProgress, fatal: dict[int, str]) -> Iterator[Place]:
    """Yield the block, the row in the shard, the key and the fault of every encoded image and every RLE that does not decode.

    Raw pixels and text have no form that could be wrong.
    """
    roles, types = reader.layout.roles.images, reader.schema
    images = {name: role for name, role in roles.items() if types.field(name).type.equals(ENCODED_IMAGE)}
    first = 0
    for number, block in enumerate(reader.blocks()):
        for place, (name, role) in enumerate(images.items()):
            for inside, data in enumerate(block.column(name).field("bytes")):
                row = first + inside
                fault = _fault_of(data.as_py(), role, keep_truncated, progress, fatal, row * len(images) + place)
                if fault:
                    what = f"{_picture(name, role)} has not changed since it was written, and does not decode"
                    yield number, row, _text(block.column("key")[inside]), f"{what}: {fault}; {OTHER_BUILD}"
        yield from _undecodable_objects(block, reader.layout.roles, number, first)
        first += block.num_rows


def _not_plain(reader: ShardReader, recorded: npt.NDArray[np.bool_] | None) -> Iterator[Place]:
    """Yield the block, the row in the shard, the key and the fault of images that the loader takes for plain JPEG, and are not.

    Of the main images those that are `recorded` (rows,) to be plain, and all images of a field that is stored as JPEG.
    """
    roles = reader.layout.roles
    known: dict[str, npt.NDArray[np.bool_] | None] = {
        name: None for name, role in roles.images.items() if role.is_plain and not isinstance(role, Mask)
    }
    if recorded is not None and roles.main_image is not None:
        known = {roles.main_image: recorded, **known}
    first = 0
    for number, block in enumerate(reader.blocks() if known else ()):
        for name, rows in known.items():
            if not block.schema.field(name).type.equals(ENCODED_IMAGE):
                continue
            images = block.column(name).field("bytes")
            for inside in range(len(images)) if rows is None else np.flatnonzero(rows[first : first + len(images)]).tolist():
                data = images[inside].as_py()
                facts = None if data is None else jpeg_facts(data)
                if facts is None or not facts.plain:
                    what = f"{_picture(name, roles.images[name])} is not the plain JPEG that it is said to be"
                    key = _text(block.column("key")[inside])
                    yield number, first + inside, key, f"{what}: the loader may give other pixels; {CONVERT_AGAIN}"
        first += block.num_rows


def _picture(name: str, role: Image) -> str:
    return f"the {role.name}" if name == role.name else f"the {role.name} {name}"


def _fault_of(
    data: bytes | None, role: Image, keep_truncated: bool, progress: WorkerProgress, fatal: dict[int, str], place: int
) -> str | None:
    """Return why an image or a mask does not decode, None if it does. `place` is its number among those of the shard."""
    if place in fatal:
        return fatal[place]
    progress.begin(place, stage="decode")
    fault = _decode_fault(data, role, keep_truncated)
    progress.leave()
    return fault


def _names_and_labels(block: pa.RecordBatch, roles: Roles) -> pa.RecordBatch:
    return block.select([name for name in block.schema.names if name in ("key", "variant") or name in roles.names])


def _wrong_objects(block: pa.RecordBatch, roles: Roles, number: int, first: int) -> Iterator[Place]:
    """Yield the samples of a block whose objects are wrong. `first` is the row in the shard of the block's first sample."""
    if roles.objects:
        from shardctl.inspection.verify.objects import wrong_objects  # brings the modules of the loader along, for 70 ms

        yield from _places(wrong_objects(block, roles), block, number, first)


def _undecodable_objects(block: pa.RecordBatch, roles: Roles, number: int, first: int) -> Iterator[Place]:
    """Yield the samples of a block whose objects have masks that cannot be decoded, as above."""
    if roles.objects:
        from shardctl.inspection.verify.objects import undecodable_objects

        yield from _places(undecodable_objects(block, roles), block, number, first)


def _places(faults: Iterable[tuple[int, str]], block: pa.RecordBatch, number: int, first: int) -> Iterator[Place]:
    """Yield where the faults of some rows of a block are."""
    for row, what in faults:
        yield number, first + row, _text(block.column("key")[row]), f"{what}; {CONVERT_AGAIN}"


def _wrong_tokens(reader: ShardReader) -> Iterator[tuple[str, Place]]:
    """Yield the samples of a shard whose tokens, documents or loss masks are wrong, each with the kind of the finding."""
    roles, first = reader.layout.roles, 0
    for number, block in enumerate(reader.blocks() if roles.tokens else ()):
        for row, kind, what in wrong_tokens(block, roles):
            yield from ((kind, place) for place in _places([(row, what)], block, number, first))
        first += block.num_rows


def _unnamed_labels(blocks: list[pa.RecordBatch], roles: Roles) -> Iterator[Place]:
    """Yield the block, the row in the shard, the key and the fault of every label that is not the number of a class.

    Such a shard is what was written: an older shardctl did not look at the labels that a function set.
    """
    for name, classes in roles.names.items():
        if blocks and name in blocks[0].schema.names:
            yield from _unnamed_in(name, classes, blocks)


def _unnamed_in(name: str, classes: Sequence[str], blocks: list[pa.RecordBatch]) -> Iterator[Place]:
    row = 0
    for number, block in enumerate(blocks):
        labels, keys = block.column(name), block.column("key")
        if not pa.types.is_integer(labels.type):
            yield number, row, _text(keys[0]), f"{name} is of type {labels.type}, where classes have numbers; {CONVERT_AGAIN}"
            return
        values = np.from_dlpack(labels.fill_null(0))
        for place in np.flatnonzero((values < 0) | (values >= len(classes))):
            what = f"its {name} is {values[place]}, and the classes have the numbers 0 to {len(classes) - 1}"
            yield number, row + int(place), _text(keys[int(place)]), f"{what}; {CONVERT_AGAIN}"
        row += len(labels)


def _text(value: pa.Scalar) -> str | None:
    key = value.as_py()
    return key if isinstance(key, str) else None


def _read_block(reader: ShardReader, block: int) -> tuple[pa.RecordBatch | None, tuple[str, str] | None]:
    """Return a block if it is intact, else the kind and the description of what is wrong with it."""
    try:
        data, intact = reader.checked_block(block)
    except DatasetError as problem:
        return None, ("unreadable-block", str(problem))
    if not intact:
        return None, ("wrong-checksum", "the block is damaged: its checksum differs")
    return data, None


def _decode_fault(data: bytes | None, role: Image, keep_truncated: bool) -> str | None:
    if data is None:
        return None if isinstance(role, Mask) else "it is missing"  # not every image need have a mask
    try:
        decode = image.decode_mask if isinstance(role, Mask) else image.decode
        decode(data, MOST_PIXELS, keep_truncated)
    except Rejection as rejection:
        return rejection.message
    return None
