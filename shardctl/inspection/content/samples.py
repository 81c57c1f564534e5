"""Single samples: by their place, by their key, the first ones, those that match a condition; and what
is told of them and written into files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, InputError, StorageError, UsageError, first_line
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.dataset_tables import DatasetTables, RecordUnit, possible_names
from shardctl.format.layout import Layout
from shardctl.format.names import PLAN, shard_name
from shardctl.format.roles import Objects
from shardctl.format.tables import Reject, read_rejects
from shardctl.format.token_columns import packed_column
from shardctl.images.codecs.drawing import name_of, objects_line
from shardctl.images.codecs.image import ImageEncoding
from shardctl.inspection.content.blocks import (
    Shard,
    StoredBlock,
    StoredSample,
    Values,
    is_encoded_image,
    is_image,
    is_objects,
    some_blocks,
)
from shardctl.inspection.content.tokens import blocks_of_document, document_keys
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.pictures import askable_headers, facts_of, headers_of
from shardctl.loader.condition import Condition, kept_rows, parse_condition, quoted
from shardctl.system.files import make_folder, naming_the_path
from shardctl.system.folders import Folder
from shardctl.system.text import counted, printable, similar

DERIVED = {
    "index": pa.int64(),
    "split": pa.string(),
    "shard": pa.string(),
    "row": pa.int64(),
}
"""Names that a condition may use beside the columns and the headers of images. A column of the same
name takes precedence."""


def sample_at(shard: Shard, block: int | None, row: int) -> StoredSample:
    """Return a row of a shard; without `block` it is counted from the shard's first row. Raises
    UsageError, DatasetError.

    Of a shard of a dataset, the record has its place there and its source.
    """
    found = _sample_at(shard, block, row)
    return replace(found, source=_source(shard, found))


def _sample_at(shard: Shard, block: int | None, row: int) -> StoredSample:
    reader = shard.reader
    number, place = (block, row) if block is not None else _block_of(shard, row)
    if not 0 <= number < len(reader):
        raise UsageError(
            f"{shard.name}: no block {number:,}; it has {counted(len(reader), 'block')}"
        )
    placed = StoredBlock(shard, number)
    if not 0 <= place < placed.data.num_rows:
        raise UsageError(
            f"{shard.name}: no row {place:,} in block {number:,}; it has "
            f"{counted(placed.data.num_rows, 'row')}"
        )
    found = placed.record(place, reader.checked_block(number)[1])
    return replace(found, checksum=reader.stored_checksum(number))


def _block_of(shard: Shard, row: int) -> tuple[int, int]:
    """Return the block of a row, and its place there. What the dataset says of a shard spares
    reading the blocks before it."""
    left, entry, reader = row, shard.entry, shard.reader
    for number, rows in enumerate(
        entry.block_rows if entry is not None else (block.num_rows for block in reader.blocks())
    ):
        if left < rows:
            return number, left
        left -= rows
    raise UsageError(f"{reader.name}: no row {row:,}; it has {counted(row - left, 'row')}")


def _source(shard: Shard, found: StoredSample) -> str | None:
    """Return the path of the file that a record of a shard was made from; None if the tables do not
    say, or the shard is a lone one."""
    if shard.entry is None:
        return None
    stored = DatasetTables(shard.folder)
    with suppress(DatasetError):
        number = stored.shards.index_of(shard.name)
        if number is not None:
            file = stored.file_of_row(number, found.row, found.values.get("key"))
            return None if file is None else stored.source_of(file)
    return None


MOST_BLOCKS = 256
"""Blocks of tokens of one document that are shown: a document of 1 GB is in a hundred thousand."""


def samples_of_key(folder: Folder, key: str) -> list[StoredSample]:
    """Return the samples made of one record (several with variants).

    Where blocks have the tokens of several documents, these are the first MOST_BLOCKS blocks that
    have some of the document. Raises InputError, with near keys, for an unknown one, DatasetError
    if the dataset is damaged.
    """
    stored = DatasetTables(folder)
    packed = packed_column(stored.manifest.roles) is not None
    planned = bool(stored.files.num_rows) and not stored.manifest.has_own_keys
    places = stored.find(key) if planned else []
    rows: Iterable[tuple[int, int, str | None]] = ()
    if packed and (places or not planned):
        source = stored.source_of(places[0].file) if places else None
        blocks = blocks_of_document(stored, key, places or None)
        rows = ((shard, row, source) for shard, row in islice(blocks, MOST_BLOCKS))
    elif planned:
        rows = (
            (each.shard, row, stored.source_of(each.file))
            for each in places
            for row in stored.rows_with(key, each)
        )
    else:  # shardctl.write made it: its tables know no keys
        rows = (
            (shard, first + row, None)
            for shard, first, keys in stored.blocks_of_keys()
            for row in pc.indices_nonzero(pc.equal(keys, key)).to_pylist()
        )
    entries = ((stored.shards[shard], row, source) for shard, row, source in rows)
    records = [
        replace(_sample_at(Shard(folder, entry.path, entry), None, row), source=source)
        for entry, row, source in entries
    ]
    if records:
        return records
    if places:
        raise _why_no_sample(stored, key, places)
    raise InputError(f"{folder.shown()}: no key {printable(key)!r}{_near(stored, key, planned)}")


def _why_no_sample(stored: DatasetTables, key: str, places: list[RecordUnit]) -> Exception:
    """Return the error for a record that the plan has, and of which there is no sample."""
    shown, packed = printable(key), packed_column(stored.manifest.roles)
    rejects = read_rejects(stored.folder)
    why = next((reject.message for reject in rejects if _is_of(reject, key, places)), None)
    whole = [place.unit for place in places if place.unit.records <= 1]
    if why is None and any(unit.samples for unit in whole) and not packed:
        return DatasetError(
            f"{shown}: {PLAN} has a sample of it, and its shard has not; `shardctl verify` tells "
            "more"
        )
    if why is not None or any(unit.rejected for unit in whole):
        why = why or "the reason is not recorded"
        return DatasetError(f"{shown}: was rejected when the dataset was made ({why})")
    return InputError(
        f"{stored.folder.shown()}: no sample was made of {shown}: it is empty, or a step left it out"
    )


def _is_of(reject: Reject, key: str, places: list[RecordUnit]) -> bool:
    """Return whether a reject is that of a record: by its key, or as one of several of a unit that
    are rejected together."""
    if reject.key == key or reject.records == 1:
        return reject.key == key
    first = next(
        (number for path, number in possible_names(reject.key) if path == reject.source), 0
    )
    return any(
        place.file.path == reject.source and place.unit.first <= first <= place.record
        for place in places
    )


def _near(stored: DatasetTables, key: str, planned: bool) -> str:
    """Suggest keys that look alike, or that have the beginning of its name."""
    if planned:
        path, number = list(possible_names(key))[-1]
        record = f"#{number}" if number else ""
        alike = _alike(path, stored.paths.chunks)
        keys = [f"{other}{record}" for other in alike if other != path]
    elif packed_column(stored.manifest.roles) is not None:
        shards = (document_keys(stored.folder, entry.path) for entry in stored.shards)
        keys = _alike(key, (part.flatten() for part in chain.from_iterable(shards)))
    else:
        keys = _alike(key, (part for _, _, part in stored.blocks_of_keys()))
    if not keys:
        return f"; `shardctl inspect {stored.folder.shown()} --head 5` shows some"
    return f"; did you mean {' or '.join(map(printable, keys))}?"


def _alike(name: str, parts: Iterable[pa.Array]) -> list[str]:
    """Return up to 3 of many names that look like this one, or have the beginning of it."""
    stem = name.rpartition("/")[2].partition(".")[0][:6]
    alike: list[str] = []
    for part in parts:
        if not stem or len(alike) >= 1000:
            break
        alike += part.filter(pc.match_substring(part, stem)).slice(0, 200).to_pylist()
    distinct = list(dict.fromkeys(alike))  # every variant has the key of its record
    return similar(name, distinct, 3) or distinct[:3]


def head(place: DatasetLocation, split: str | None, count: int) -> Iterator[StoredSample]:
    """Yield the first samples of a dataset, of one of its splits, or of a lone shard. Raises
    UsageError, DatasetError."""
    for block in some_blocks(place, split):
        yield from (block.record(row) for row in range(min(block.data.num_rows, count)))
        count -= block.data.num_rows
        if count <= 0:
            return


def matching(place: DatasetLocation, split: str | None, text: str) -> Iterator[StoredSample]:
    """Yield the samples for which a condition holds. Blocks are read one after the other. Raises
    UsageError, DatasetError."""
    where: Condition | None = None
    for block in some_blocks(place, split):
        if where is None:
            layout = block.reader.layout
            where = parse_condition(text, _askable(layout), layout.roles.names)
        yield from (block.record(row) for row in _places(where, block))


def _askable(layout: Layout) -> pa.Schema:
    """Return the names that a condition may use: columns other than images, and derived values."""
    fields = {field.name: field.type for field in layout.columns if not is_image(field)}
    derived = {**DERIVED, **askable_headers(layout.roles)}
    return pa.schema(list({**fields, **derived, **fields}.items()))


def _places(where: Condition, block: StoredBlock) -> list[int]:
    """Return the rows of a block that match a condition."""
    columns = {name: _column(name, block) for name in where.columns}
    table = pa.table({**columns, _PLACE: pa.array(np.arange(block.data.num_rows))})
    try:
        return list(kept_rows(table, where.expression)[_PLACE].to_pylist())
    except pa.ArrowException as error:
        raise UsageError(
            f"--where {quoted(where.text)} cannot be computed: {first_line(error)}"
        ) from error


_PLACE = "__place__"


def _column(name: str, block: StoredBlock) -> pa.Array:
    """Return a column of a block, or a derived value."""
    roles = block.reader.layout.roles
    if name in block.data.schema.names and name not in roles.images:
        return block.data.column(name)
    rows = block.data.num_rows
    if name in ("row", "index"):
        before = block.entry.first if block.entry and name == "index" else 0
        return pa.array(np.arange(rows) + block.first + before)
    if name in ("shard", "split"):
        info = block.reader.info
        value = shard_name(info["split"], info["shard"]) if name == "shard" else str(info["split"])
        return pa.array([value] * rows, pa.string())
    image = name if name in roles.images else str(roles.main_image)
    headers = headers_of(
        Column.of(block.data.schema.field(image), roles.images[image]), block.data.column(image)
    )
    return headers if name == image else headers.field(name)


_MOST_FLOAT = float(np.finfo(np.float32).max)


def _plain(value: Any) -> Any:
    """Return the objects of a sample, or a part of them, as JSON has them: numbers of 32 bits in
    their shortest form, RLE as text."""
    if isinstance(value, float):
        narrow = np.float32(value) if abs(value) <= _MOST_FLOAT else np.float32(0)
        return float(str(narrow)) if float(narrow) == value else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def describe_value(value: Any) -> Any:
    """Return a stored value as plain data that is fit to print: for an image what it is, not its
    bytes."""
    if isinstance(value, np.ndarray):
        return {
            "shape": list(value.shape),
            "dtype": str(value.dtype),
            "mean": round(float(value.mean()), 2),
        }
    if is_encoded_image(value):
        facts = facts_of(value["bytes"])
        size = f"{facts['width']}x{facts['height']}"
        more = (
            {"error": facts["error"]}
            if "error" in facts
            else {n: facts.get(n) for n in ("format", "mode")} | {"size": size}
        )
        return {"bytes": facts["image_bytes"], "path": value["path"], **more}
    return _plain(value) if is_objects(value) else value


def plain_values(record: StoredSample, columns: Sequence[str] | None = None) -> Values:
    """Return a sample as plain data: for an image its format and size, not its bytes; after a label
    its name."""
    return {name: describe_value(value) for name, value in record.chosen_values(columns).items()}


def in_words(sample: Values, record: StoredSample) -> Values:
    """Return a sample for display: images and objects in a few words, the name of a label in
    brackets after its number."""
    shown = {name: _image_text(value) for name, value in sample.items()}
    shown |= {name: "missing" for name in record.images if name in shown and sample[name] is None}
    for name, role in record.roles.objects.items():
        if name in shown and (sample[name] is None or is_objects(sample[name])):
            shown[name] = objects_line(sample[name], role)
    for label, class_name in record.class_names.items():
        if f"{label}_name" in record.values or label not in shown:
            continue
        shown.pop(f"{label}_name", None)
        if class_name is not None:
            shown[label] = f"{sample[label]} ({class_name})"
    return shown


def _image_text(value: Any) -> Any:
    """Return the result of describe_value for an image in a few words; other values unchanged."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"shape", "dtype", "mean"}:
        return (
            f"{'x'.join(str(side) for side in value['shape'])} {value['dtype']}, mean "
            f"{value['mean']}"
        )
    if {"bytes", "path", "format", "size", "mode"} == set(value):
        if value["bytes"] is None:
            return "missing"
        return f"{value['format']} {value['size']} {value['mode']}, {value['bytes']:,} bytes"
    return value


def object_rows(objects: Values, role: Objects) -> tuple[list[str], list[list[Any]]]:
    """Return the objects of a sample as a table for people: its header, and a row for each
    object."""
    header = ["object", "category", "x", "y", "width", "height"]
    count = len(objects["bbox"])
    extra = [
        (said, values) for said, values in _more_of(objects) if len(values) == count and any(values)
    ]
    rows = []
    for number, (box, category) in enumerate(
        zip(objects["bbox"], objects["category"], strict=False)
    ):
        sides = ["" if side is None else float(f"{side:.6g}") for side in (box or [None] * 4)]
        name = "" if category is None else name_of(category, role.names)
        rows.append([number, name, *sides, *(values[number] for _, values in extra)])
    return header + [said for said, _ in extra], rows


def _more_of(objects: Values) -> Iterator[tuple[str, list[Any]]]:
    """Yield what else is known of objects: the name of a column, and a short value for each
    object."""
    yield (
        "area",
        [float(f"{area:.6g}") if area is not None else "" for area in objects.get("area") or ()],
    )
    for member, said in (
        ("iscrowd", "crowd"),
        ("difficult", "difficult"),
        ("truncated", "truncated"),
    ):
        yield said, [said if value else "" for value in objects.get(member) or ()]
    polygons = [
        f"{len(each)} ({sum(len(polygon or ()) for polygon in each) // 2} points)" if each else ""
        for each in objects.get("segmentation") or ()
    ]
    yield "polygons", polygons
    yield "RLE", ["RLE" if each else "" for each in objects.get("rle") or ()]
    points = [
        f"{sum(bool(point and point[2]) for point in each)} of {len(each)}" if each else ""
        for each in objects.get("keypoints") or ()
    ]
    yield "keypoints", points


SUFFIXES = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"RIFF": ".webp",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
}


def save(
    records: Iterable[StoredSample], folder: Path, columns: Sequence[str] | None = None
) -> list[Path]:
    """Write every record into `folder`, named by its key, and return the files.

    Existing files are never overwritten, and no link below `folder` is followed.

    `columns` are those that are written, None for all; the class of a label is written beside it,
    as `label_name`. Raises StorageError, and UsageError for an unknown column.
    """
    written: list[Path] = []
    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        name = _name(record)
        for field, suffix, content in _files(record.chosen_values(columns), record.images):
            path = folder / _named(name, field, suffix)
            with naming_the_path(path):
                make_folder(path.parent, folder)
                try:
                    with open(path, "xb") as file:
                        file.write(content)
                except FileExistsError:
                    raise StorageError(
                        f"{printable(path)}: exists already; give a folder that is new or empty"
                    ) from None
            written.append(path)
    return written


def _name(record: StoredSample) -> str:
    """Return where in the folder a record goes: its key without what could lead out of it, and its
    variant."""
    key = str(record.values.get("key", ""))
    parts = [
        part.replace("\\", "_").replace("\0", "_")
        for part in key.split("/")
        if part not in ("", ".", "..")
    ]
    name = "/".join(parts) or f"{record.shard}-{record.row}"
    variant = record.values.get("variant")
    return name if variant is None else f"{name}.{variant}"


def _files(values: Values, images: Sequence[str]) -> list[tuple[str, str, bytes]]:
    """Return the field, the suffix and the content of every file of a record; all that is not a
    file is JSON."""
    files, rest = [], {}
    for name, value in values.items():
        if (
            isinstance(value, np.ndarray)
            and value.dtype == np.uint8
            and (value.shape[2:] == (3,) or (value.ndim == 2 and name in images))
        ):
            files.append((name, ".png", ImageEncoding.parse("png").encode(value)))
        elif is_encoded_image(value):
            files.append((name, _suffix(value["bytes"], value["path"]), value["bytes"]))
        elif name == "text" and isinstance(value, str):
            files.append((name, ".txt", value.encode()))
        elif name != "key" and value is not None:
            rest[name] = _json_value(value)
    if rest:
        said = json.dumps(rest, ensure_ascii=False, default=_printable)
        files.append(("", ".json", f"{said}\n".encode()))
    return files


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return _plain(value) if is_objects(value) else value


def _named(name: str, field: str, suffix: str) -> str:
    """Return a file name: that of the input where it fits (photo.jpg), else with what it is
    (photo.jpg.png, 3.answer.txt)."""
    if field not in ("", "image", "text"):
        return f"{name}.{field}{suffix}"
    return name if field and name.lower().endswith(suffix) else f"{name}{suffix}"


def _suffix(data: bytes, path: str | None) -> str:
    """Return the suffix that the name had, else that of the format."""
    named = Path(path or "").suffix.lower()
    known = next((suffix for magic, suffix in SUFFIXES.items() if data.startswith(magic)), ".bin")
    return named if named and "/" not in named and "\0" not in named else known


def _printable(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
