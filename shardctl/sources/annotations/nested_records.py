"""Records in JSON or Parquet beside images that name them, and have more than columns:
conversations, lists of images.

No labels option reads such a file. An image dataset without what it says would be a loss that
nobody sees, so it is refused.
"""

from __future__ import annotations

import json
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.sources.annotations.inputs import stem
from shardctl.sources.annotations.unused import MOST_FOLDERS, OF_IMAGES, PARQUET, Images
from shardctl.sources.files import begin_of, exists, local_copy
from shardctl.sources.walk import FoundFile
from shardctl.system.locations import follow, name_of, parent_of, path_below
from shardctl.system.text import printable

BEGIN_BYTES, MOST_RECORDS = 1 << 20, 100
"""How much of a file is looked at."""

LONGEST = 4096
"""Characters of a path, at most."""

_TAGS = re.compile(r"</?img>")
"""What some chats have around the name of an image within a text."""


def refuse_nested_records(files: Iterable[FoundFile], images: Images) -> None:
    """Raise InputError for a file of JSON records that name inputs, where an image or an object is
    in a list of its record."""
    for file in files:
        if file.suffix not in (".json", ".jsonl", ".json.gz", PARQUET):
            continue
        records = list(_records(file))
        named = [
            each for record in records for each in _texts(record) if _is_input(*each, file, images)
        ]
        # an id may be the name of its image without the ending
        named = list(filter(_has_ending, named)) or named
        nested = [each for each in named if len(each[0]) > 1]
        if nested or (
            named
            and any(_is_list_of_objects(value) for record in records for value in record.values())
        ):
            raise InputError(_sentence(file, *(nested or named)[0], images.roots[file.root].text))


def _sentence(file: FoundFile, path: tuple[str, ...], image: str, source: str) -> str:
    field, place = (
        f"--image-field {shlex.quote(printable(path[0]))}",
        printable(".".join(path).replace(".[]", "[]")),
    )
    found = follow(parent_of(file.opened), image)
    taken = file.opened if path_below(found, parent_of(file.opened)) or len(path) > 1 else source
    command = f"`shardctl convert {shlex.quote(printable(taken))} DST"
    if len(path) > 1:
        way = (
            f"images in lists or in texts are not read as samples yet, and {command}` converts "
            "the records without them"
        )
    elif exists(found):
        way = f"{command} {field}` makes a sample of each record that has an image"
    else:
        way = (
            f"to convert the records with {field}, write paths that lead to the images from its "
            "folder on"
        )
    return (
        f"{printable(file.opened)}: its records name images of the source ({place}: "
        f"{printable(image)}), and nothing uses them."
        f" For the images alone, use --labels none; {way}"
    )


def _records(file: FoundFile) -> Iterator[dict[str, Any]]:
    """Yield the first records of a table, an array of JSON, or of several objects, as far as they
    can be read."""
    if file.suffix == PARQUET:
        with suppress(pa.ArrowException, OSError, Rejection):
            yield from _rows(local_copy(file.opened))
        return
    try:
        data = begin_of(file.opened, BEGIN_BYTES)
        if file.suffix.endswith(".gz"):
            data = zlib.decompressobj(31).decompress(data, BEGIN_BYTES)
    except (OSError, Rejection, zlib.error):
        return
    text = data.decode("utf-8-sig", "replace").lstrip()
    found = list(islice(_values(text[1:] if text[:1] == "[" else text), MOST_RECORDS))
    if text[:1] == "[" or len(found) > 1:  # one object is not a list of records
        yield from (each for each in found if isinstance(each, dict))


def _rows(path: str) -> list[dict[str, Any]]:
    from pyarrow import parquet  # 40 ms to import, and few folders of images have tables

    with parquet.ParquetFile(path, pre_buffer=False) as table:
        texts = [f.name for f in table.schema_arrow if "binary" not in str(f.type)]
        rows: list[dict[str, Any]] = next(
            table.iter_batches(MOST_RECORDS, columns=texts), pa.table({})
        ).to_pylist()
        return rows


def _values(text: str) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), 0
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, _BETWEEN.match(text, place).end())  # type: ignore[union-attr]  # it matches
            yield value
    except (ValueError, RecursionError):
        return


_BETWEEN = re.compile(r"[\s,]*")


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the texts in a record, and parts of texts in tags, each with the names that lead to it:
    more than one if it is in a list or an object of the record, or in a tag."""
    if isinstance(value, str):
        first, *others = _TAGS.split(value)
        yield path, first
        yield from (((*path, "img"), each) for each in others)
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield from _texts(inner, (*path, name))
    for inner in value if isinstance(value, list) else ():
        yield from _texts(inner, (*path, "[]"))


def _is_input(path: tuple[str, ...], text: str, file: FoundFile, images: Images) -> bool:
    """Return whether a text is the path of an input, or ends with the name of one, whatever ending
    it has. An answer may be 2 beside 2.jpg: a text without an ending in a list or an object must
    have a folder."""
    if len(text) > LONGEST:
        return False
    name = text.encode(errors="replace").decode().replace("\\", "/")
    has_ending = _has_ending((path, name))
    names = [name, name_of(name)] if has_ending or len(path) == 1 else [name] * ("/" in name)
    folders = [file.folder, *images.folders[:MOST_FOLDERS]]
    return any(
        images.have(stem(each) if has_ending else each, folders, OF_IMAGES)
        for each in dict.fromkeys(names)
    )


def _has_ending(named: tuple[tuple[str, ...], str]) -> bool:
    return named[1].lower().endswith(OF_IMAGES)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)
