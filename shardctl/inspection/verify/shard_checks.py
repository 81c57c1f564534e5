"""The checks of shards, and their table: a new check is a function, and a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Numbers, bytes_of, owners_of, sums_of
from shardctl.format.dataset_tables import MOST, ShardUnits
from shardctl.format.layout import ENCODED_IMAGE, image_lists
from shardctl.format.names import PLAN, shard_name
from shardctl.format.roles import Image, Mask, Roles, Tokens
from shardctl.format.token_columns import (
    DOCUMENT_COLUMNS,
    DOCUMENT_KEYS,
    DOCUMENT_LENGTHS,
    DOCUMENT_STARTS,
    LOSS_MASK,
    Rows,
    list_lengths,
    main_tokens,
    token_rows,
)
from shardctl.images.codecs.jpeg import jpeg_facts
from shardctl.inspection.verify.check import Block, RowFaults, Shard, ShardRecord
from shardctl.inspection.verify.result import CONVERT_AGAIN, REBUILD, Finding, error
from shardctl.system.text import counted


def wrong_keys(shard: Shard) -> Iterator[Finding]:
    """Yield the first key of a shard that is not the one of the plan."""
    if shard.record is None:
        return
    wrong = first_wrong_key(shard.record, [block.data for block in shard.keys])
    if wrong is not None:
        block = next(each for each in shard.keys if wrong < each.first + each.data.num_rows)
        key = block.data.column("key")[wrong - block.first].as_py()
        what = f"its row {wrong} has the key {key!r}, and {PLAN} another one"
        yield error("keys-differ", f"{what}; {REBUILD}", None, block.number, wrong)


def first_wrong_key(recorded: ShardRecord, blocks: Sequence[pa.RecordBatch]) -> int | None:
    """Return the first row of a shard that is not of a record that the plan gives it; None if there
    is none.

    `blocks` are all blocks of the shard, with the columns `key` and, if there are variants,
    `variant`.
    """
    units = recorded.units
    if not units or recorded.tells_no_keys:
        return None  # samples that shardctl.write wrote are of no unit
    first, parts = 0, [np.empty((3, 0), np.int64)]
    for block in blocks:
        if block.column("key").type != pa.string():
            return first
        place, record, right = _records_of(recorded, units, first, block)
        variant = _variant(recorded, block)
        right = right & (variant >= 0)
        if not recorded.by_functions:
            right &= variant < recorded.samples_per_record
        if not right.all():
            return first + int(np.argmin(right))
        parts.append(np.stack([place, record, variant]))
        first += block.num_rows
    return _first_repeated(units, np.concatenate(parts, axis=1))


def _records_of(
    recorded: ShardRecord, units: ShardUnits, first: int, block: pa.RecordBatch
) -> tuple[Numbers, Numbers, Bools]:
    """Return the units (their places) and the records that the rows of a block are of, and whether
    their keys say so, (n,) each. `first` is the row of the first one."""
    import pyarrow.compute as pc  # 30 ms, and `quick` reads no keys

    keys = block.column("key")
    rows, numbers = first + np.arange(len(keys)), number_at_end(keys)
    paths_of = recorded.stored.paths_of
    places = (
        units.places_in_order(rows) if units.in_order else _named(units, paths_of, keys, numbers)
    )
    begins, (starts, stops) = units.first[places], units.bounds
    whole = begins == 0
    record = np.where(whole, 0, numbers)
    paths = paths_of(units.file[places])
    of_many = pc.binary_join_element_wise(paths, pa.array(record).cast(pa.string()), "#")
    same = pc.equal(keys, pc.if_else(pa.array(whole), paths, of_many)).fill_null(False)
    right = whole | ((begins <= record) & (record < begins + units.records[places]))
    right &= (starts[places] <= rows) & (rows < stops[places])
    return places, record, right & same.to_numpy(zero_copy_only=False)


def _named(
    units: ShardUnits, paths_of: Callable[[Numbers], pa.Array], keys: pa.Array, numbers: Numbers
) -> Numbers:
    """Return the units that keys of files of many records name, by their places, (n,); any others
    where there are none."""
    import pyarrow.compute as pc

    files = np.unique(units.file)
    span = int((units.first + units.records).max()) + 1
    if span * len(files) >= MOST:
        return np.zeros(len(keys), np.int64)
    paths = pc.replace_substring_regex(keys, pattern="#[0-9]+$", replacement="")
    found = pc.index_in(paths, value_set=paths_of(files)).fill_null(0)
    order = np.lexsort((units.first, units.file))
    starts = np.searchsorted(files, units.file[order]) * span + units.first[order]
    wanted = np.asarray(found).astype(np.int64) * span + np.minimum(numbers, span - 1)
    places: Numbers = order[np.maximum(np.searchsorted(starts, wanted, side="right") - 1, 0)]
    return places


def _first_repeated(units: ShardUnits, rows: Numbers) -> int | None:
    """Return the first row of a record that an earlier row has, or that is behind a later record of
    its unit. `rows` (3, n) are the units, records and variants.

    Where rows were mixed, also the first row of a unit that has more rows than the plan says.
    """
    unit, record, variant = rows
    order = np.arange(len(unit)) if units.in_order else np.lexsort((variant, record, unit))
    unit, record, variant = rows[:, order]
    behind = (record[1:] < record[:-1]) | (
        (record[1:] == record[:-1]) & (variant[1:] <= variant[:-1])
    )
    wrong = np.flatnonzero((unit[1:] == unit[:-1]) & behind)
    if len(wrong):
        return int(order[wrong + 1].min())
    more = np.bincount(unit, minlength=len(units)) != units.samples
    return int(order[more[unit]].min()) if len(unit) and more.any() else None


def _variant(recorded: ShardRecord, block: pa.RecordBatch) -> Numbers:
    """Return the variants of rows, (n,): 0 where there are none, -1 where they are missing."""
    names = block.schema.names
    if "variant" not in dict(recorded.stored.manifest.schema):
        return np.zeros(block.num_rows, np.int64)
    if "variant" not in names or not pa.types.is_integer(block.schema.field("variant").type):
        return np.full(block.num_rows, -1)
    return np.from_dlpack(block.column("variant").fill_null(-1)).astype(np.int64)


def number_at_end(keys: pa.Array) -> Numbers:
    """Return the number that the last digits of each key make, at most 18 of them; 0 if there are
    none. (n,) int64.

    No Python object is made per key.
    """
    numbers = np.zeros(len(keys), np.int64)
    letters, offsets = bytes_of(keys)
    places, starts = offsets[1:] - 1, offsets[:-1]
    left = np.arange(len(keys))
    for power in range(18):
        left = left[places[left] - power >= starts[left]]
        digits = letters[places[left] - power] - np.uint8(48)  # below 0 is far above 9
        left, digits = left[digits <= 9], digits[digits <= 9]
        if not len(left):
            break
        numbers[left] += digits.astype(np.int64) * 10**power
    return numbers


OTHER_BUILD = "another build may read it (see `shardctl --version`), else convert without it"
MOST_PIXELS = 2**40
"""Largest stored image that is decoded: the conversion has had its own limit."""

UNDECODABLE = "does-not-decode"


def undecodable(shard: Shard, block: Block) -> Iterator[Finding]:
    """Yield every encoded image and every RLE of a block that does not decode.

    Raw pixels and text have no form that could be wrong. Without its dataset nothing says that a
    shard may have truncated images: there they are faults.
    """
    roles, schema = shard.own_roles, block.data.schema
    keep_truncated = (
        shard.record is not None and shard.record.manifest.recipe.get("truncated") == "keep"
    )
    encoded = [name for name in roles.images if schema.field(name).type.equals(ENCODED_IMAGE)]
    lists = image_lists(schema)
    for place, name in enumerate((*encoded, *lists)):
        role, column = roles.images.get(name, Image("source")), block.data.column(name)
        for row, value in enumerate(column if name in lists else column.field("bytes")):
            # that of a list stands for all its images
            number = (block.first + row) * (len(encoded) + len(lists)) + place
            images = _images_of(value) if name in lists else [("", value.as_py())]
            for which, data in images:
                if fault := _fault_of(data, role, keep_truncated, shard, number):
                    what = f"{picture(name, role)}{which} is as it was written, and does not decode"
                    yield block.fault(row, UNDECODABLE, f"{what}: {fault}; {OTHER_BUILD}")
    if roles.objects:
        from shardctl.inspection.verify.object_faults import undecodable_objects

        for row, what in undecodable_objects(block.data, roles):
            yield block.fault(row, UNDECODABLE, f"{what}; {CONVERT_AGAIN}")


def _images_of(value: pa.ListScalar) -> Iterator[tuple[str, bytes]]:
    """Yield the images of a list that have bytes, with their places: others may be elsewhere."""
    for number, image in enumerate(value.values or ()):
        if image.is_valid and (data := image["bytes"].as_py()) is not None:
            yield f"[{number}]", data


def picture(name: str, role: Image) -> str:
    """Return what messages call the image or mask in a field."""
    return f"the {role.name}" if name == role.name else f"the {role.name} {name}"


def _fault_of(
    data: bytes | None, role: Image, keep_truncated: bool, shard: Shard, number: int
) -> str | None:
    """Return why an image or a mask does not decode, None if it does. `number` is its number among
    those of the shard."""
    if number in shard.fatal:
        return shard.fatal[number]
    shard.progress.begin(number, stage="decode")
    fault = _decode_fault(data, role, keep_truncated)
    shard.progress.leave()
    return fault


def _decode_fault(data: bytes | None, role: Image, keep_truncated: bool) -> str | None:
    if data is None:
        # not every image need have a mask
        return None if isinstance(role, Mask) else "it is missing"
    from shardctl.images.codecs import image  # brings the decoders along, for 25 ms

    try:
        decode = image.decode_mask if isinstance(role, Mask) else image.decode
        decode(data, MOST_PIXELS, keep_truncated)
    except Rejection as rejection:
        return rejection.message
    return None


BAD_TOKENS, BAD_DOCUMENTS, BAD_LOSS_MASK = "bad-tokens", "bad-documents", "bad-loss-mask"


def wrong_tokens(shard: Shard, block: Block) -> Iterator[Finding]:
    """Yield the first fault of each kind and row of a block whose tokens are not as docs/format.md
    describes them."""
    found: dict[tuple[int, str], str] = {}
    for row, kind, what in _wrong_rows(block.data, shard.own_roles):
        found.setdefault((row, kind), what)
    for (row, kind), what in sorted(found.items()):
        yield block.fault(row, kind, f"{what}; {CONVERT_AGAIN}")


def _wrong_rows(block: pa.RecordBatch, roles: Roles) -> Iterator[tuple[int, str, str]]:
    """Yield the row of each fault in a block, its kind and its message."""
    main = main_tokens(roles)
    if main is None or not block.num_rows:
        return
    for name, role in roles.tokens.items():
        try:
            tokens = token_rows(block.column(name))
        except ValueError as error:
            yield 0, BAD_TOKENS, f"{name}: {error}"
            continue
        yield from _outside(tokens, role, name)
        if role.packed:
            for row, what in _wrong_documents(block, tokens, role):
                yield row, BAD_DOCUMENTS, what
        if name == main[0] and LOSS_MASK in block.schema.names:
            for row, what in _wrong_mask(block.column(LOSS_MASK), tokens, name):
                yield row, BAD_LOSS_MASK, what


def _outside(tokens: Rows, role: Tokens, name: str) -> Iterator[tuple[int, str, str]]:
    ids, size = tokens.values, role.vocabulary
    if size is None or not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < size):
        return
    for row, place in _first_of_each_row(tokens, (ids < 0) | (ids >= size)):
        what = f"has the token {ids[place]} at place {place - int(tokens.offsets[row])}"
        numbers = f"its vocabulary has the numbers 0 to {size - 1}"
        yield row, BAD_TOKENS, f"{name} {what}, and {numbers}"


def _wrong_documents(block: pa.RecordBatch, tokens: Rows, role: Tokens) -> RowFaults:
    missing = [name for name in DOCUMENT_COLUMNS if name not in block.schema.names]
    if missing:
        yield 0, f"its tokens are packed, without a column {' and '.join(missing)}"
        return
    keys = block.column(DOCUMENT_KEYS)
    try:
        lengths, starts = (
            token_rows(block.column(DOCUMENT_LENGTHS)),
            token_rows(block.column(DOCUMENT_STARTS)),
        )
        counts = list_lengths(keys)
    except (ValueError, pa.ArrowException) as error:
        yield 0, f"the columns of documents cannot be read: {error}"
        return
    for row in np.flatnonzero((lengths.lengths != counts) | (starts.lengths != counts)).tolist():
        several = f"{counts[row]} of {DOCUMENT_KEYS}, {lengths.lengths[row]} of {DOCUMENT_LENGTHS}"
        yield (
            row,
            f"has {several} and {starts.lengths[row]} of {DOCUMENT_STARTS}; there must be one for "
            "each document",
        )
    for row in np.flatnonzero(lengths.lengths == 0).tolist():
        yield row, "is a block without a document"
    for rows, name, least in ((lengths, DOCUMENT_LENGTHS, 1), (starts, DOCUMENT_STARTS, 0)):
        for row, place in _first_of_each_row(rows, rows.values < least):
            yield row, f"has {rows.values[place]} in {name}, and the least is {least}"
    filled = sums_of(np.maximum(lengths.values, 0), owners_of(lengths.lengths), block.num_rows)
    size = tokens.lengths
    for row in np.flatnonzero(filled > size).tolist():
        yield row, f"has documents of {filled[row]} tokens together in a block of {size[row]}"
    if role.pad is not None:
        within = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], size)
        wrong = (within >= np.repeat(filled, size)) & (tokens.values != role.pad)
        for row, place in _first_of_each_row(tokens, wrong):
            what = f"has the token {tokens.values[place]} behind its documents"
            yield row, f"{what}, where padding is {role.pad}"


def _wrong_mask(column: pa.Array, tokens: Rows, name: str) -> RowFaults:
    try:
        mask = token_rows(column)
    except ValueError as error:
        yield 0, f"{LOSS_MASK}: {error}"
        return
    for row in np.flatnonzero(mask.lengths != tokens.lengths).tolist():
        yield (
            row,
            f"{LOSS_MASK} has {mask.lengths[row]} numbers, and {name} has {tokens.lengths[row]}",
        )
    for row, place in _first_of_each_row(mask, (mask.values != 0) & (mask.values != 1)):
        yield row, f"{LOSS_MASK} has the number {mask.values[place]}, not 0 or 1"


def _first_of_each_row(rows: Rows, wrong: Bools) -> list[tuple[int, int]]:
    """Return each row that is wrong, with the first place that is: a row may have millions."""
    places = np.flatnonzero(wrong)
    of = np.searchsorted(rows.offsets, places, side="right") - 1
    found, first = np.unique(of, return_index=True)
    return list(zip(found.tolist(), places[first].tolist(), strict=True))


def other_facts(shard: Shard) -> Iterator[Finding]:
    """Yield what the footer of a shard says otherwise than its dataset."""
    if shard.record is None:
        return
    reader, entry = shard.reader, shard.record.entry
    if len(reader) != len(entry.block_rows):
        what = (
            f"it has {counted(len(reader), 'block')} where {len(entry.block_rows):,} were written"
        )
        yield error("blocks-differ", f"{what}; {REBUILD}")
    if tuple((f.name, str(f.type)) for f in reader.schema) != shard.record.manifest.schema:
        yield error("schema-differs", f"its columns are not those of the dataset; {REBUILD}")
    own = shard_name(reader.info["split"], reader.info["shard"])
    if own != entry.name:
        yield error("wrong-shard", f"this was written as {own}; {REBUILD}")


def other_bytes(shard: Shard) -> Iterator[Finding]:
    """Yield that the file does not have the bytes that were written. Raises OSError if it cannot be
    read."""
    if shard.record is not None and shard.sha256 != shard.record.entry.sha256:
        what = "its SHA-256 differs, outside the blocks: in the file's own metadata"
        yield error("wrong-checksum", f"{what}; {REBUILD}")


def not_plain(shard: Shard, block: Block) -> Iterator[Finding]:
    """Yield the images of a block that the loader takes for plain JPEG, and are not.

    Of the main images those that are recorded to be plain, and all images of a field that is stored
    as JPEG.
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
                what = f"{picture(name, roles.images[name])} is not the plain JPEG that it is said"
                why = f"{what} to be: the loader may give other pixels"
                yield block.fault(row, "not-plain", f"{why}; {CONVERT_AGAIN}")


def _said_plain(shard: Shard) -> dict[str, Bools | None]:
    """Return the fields with plain JPEG, each with the rows (rows,) of the shard where it is plain;
    None for all of them."""
    roles, recorded = shard.own_roles, None if shard.record is None else shard.record.plain
    stored_so = {
        name: None
        for name, role in roles.images.items()
        if role.is_plain and not isinstance(role, Mask)
    }
    if recorded is None or roles.main_image is None:
        return dict(stored_so)
    return {roles.main_image: recorded, **stored_so}


NO_SUCH_CLASS = "no-such-class"


def wrong_labels(shard: Shard, block: Block) -> Iterator[Finding]:
    """Yield every label of a block that is not the number of a class, where classes have names."""
    for name, classes in shard.roles.names.items():
        if name not in block.data.schema.names:
            continue
        labels = block.data.column(name)
        if not pa.types.is_integer(labels.type):
            if block.number == 0:
                what = f"{name} is of type {labels.type}, where classes have numbers"
                yield block.fault(0, NO_SUCH_CLASS, f"{what}; {CONVERT_AGAIN}")
            continue
        values = np.from_dlpack(labels.fill_null(0))
        for row in np.flatnonzero((values < 0) | (values >= len(classes))).tolist():
            what = (
                f"its {name} is {values[row]}, and the classes have the numbers 0 to "
                f"{len(classes) - 1}"
            )
            yield block.fault(row, NO_SUCH_CLASS, f"{what}; {CONVERT_AGAIN}")


def wrong_objects(shard: Shard, block: Block) -> Iterator[Finding]:
    """Yield the samples of a block whose objects are not as docs/annotations.md describes them,
    each with its first fault."""
    if shard.roles.objects:
        from shardctl.inspection.verify.object_faults import object_faults
        from shardctl.sources.annotations.base import BAD

        for row, what in object_faults(block.data, shard.roles):
            yield block.fault(row, BAD, f"{what}; {CONVERT_AGAIN}")


class ShardCheck(NamedTuple):
    """A row of the table: the lowest level that has the check, the name of what it looks at, and
    what finds its faults: in each block, or in the shard once all blocks were seen and are
    intact."""

    level: str
    name: str
    in_block: Callable[[Shard, Block], Iterable[Finding]] = lambda shard, block: ()
    in_shard: Callable[[Shard], Iterable[Finding]] = lambda shard: ()


SHARD_CHECKS = (
    ShardCheck("quick", "record", in_shard=other_facts),
    ShardCheck("full", "SHA-256", in_shard=other_bytes),
    ShardCheck("full", "labels", wrong_labels),
    ShardCheck("full", "objects", wrong_objects),
    ShardCheck("full", "keys", in_shard=wrong_keys),
    ShardCheck("deep", "decoding", undecodable),
    ShardCheck("deep", "plain JPEG", not_plain),
    ShardCheck("deep", "tokens", wrong_tokens),
)
"""All checks of a shard, in the order of their findings. A level is checked if those before it have
found nothing.

At `quick` no block is read, so that its checks are shown none. A shard without its dataset has no
table that tells how many samples it should have: there every block is read, and `full` is the
lowest level.
"""
