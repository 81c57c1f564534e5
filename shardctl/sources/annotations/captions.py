"""Captions: a file of text or JSON for each image, or one file with a line for each caption."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Faults, Source, rows_of
from shardctl.sources.annotations.inputs import (
    PathTable,
    none_among_inputs,
    reading,
    said_of_absent,
    stem,
)
from shardctl.sources.annotations.objects import Others, others_in, said_of_others_in
from shardctl.sources.annotations.per_image import (
    Digest,
    Found,
    match_all,
    match_files,
    read_each,
    said_of_others,
    walked,
)
from shardctl.sources.files import is_folder, local_copy
from shardctl.sources.label_table import FILE_COLUMNS
from shardctl.sources.walk import suffix_of
from shardctl.system.files import ordinary, sha256_of
from shardctl.system.locations import name_of
from shardctl.system.text import printable, some

SUFFIXES = (".txt", ".json")


def read(
    sources: Sequence[Source], inputs: PathTable, _rule: AnnotationRule, _scratch: Path
) -> Annotations:
    """Read all files. One that is wrong rejects its image."""
    path = sources[0].path
    faults: Faults = {}
    of_files = path == "" or is_folder(path)
    found, several, digest, notices = (
        _of_files(path, inputs, faults) if of_files else _of_lines(path, inputs)
    )
    rows = rows_of(list(found), len(inputs))
    values: list[Any] = list(found.values())
    column = pa.field("captions", pa.list_(pa.string()))
    if not several:
        column = pa.field("caption", pa.string())
        values = [each[0] if each else None for each in values]
    notices += said_of_others([], found, inputs, "caption", "it is null there")
    table = pa.table({column.name: pa.array(values, column.type)})
    return Annotations(table, rows, (column,), (digest,), faults=faults, notices=notices)


Read = tuple[dict[int, list[str]], bool, str, list[str]]
"""The captions by input, in the order of the inputs; whether an image may have several; the digest
of what was read, and notices."""


def _of_files(path: str, inputs: PathTable, faults: Faults) -> Read:
    matched, lost = _matched(path, inputs)
    digest, others, captions, several = Digest(), Others(), dict[int, list[str]](), False

    def parsed(row: int, data: bytes) -> str | list[str] | None:
        return parse(data, suffix_of(name_of(matched[row])), others)

    for row, found in read_each(matched, digest, faults, parsed):
        several |= isinstance(found, list)
        captions[row] = [found] if isinstance(found, str) else found or []
    notices = [
        *said_of_others(lost, range(len(inputs)), inputs, "caption", ""),
        *said_of_others_in("JSON files", others),
    ]
    return captions, several, digest.hex(), notices


NAMES, TEXTS = (*FILE_COLUMNS, "image_name"), ("caption", "comment", "text")
"""What the columns of a file of captions are called: the first that is there counts. Without these,
a line is NAME#NUMBER, a tab and a text."""

_NUMBER = re.compile(r"#\d+$")


def _of_lines(path: str, inputs: PathTable) -> Read:
    """Read a file with a line for each caption, as Flickr8k and Flickr30k have it. Raises
    InputError."""
    shown, of_name, others = printable(path), dict[str, list[str]](), Others()
    with reading(path):
        with open(local_copy(path), encoding="utf-8-sig", newline="", opener=ordinary) as file:
            begin = file.readline()
            file.seek(0)
            mark = next((mark for mark in "\t|" if mark in begin), ",")
            lines = csv.reader(
                file, delimiter=mark, quoting=csv.QUOTE_MINIMAL if mark == "," else csv.QUOTE_NONE
            )
            columns = [cell.strip() for cell in next(lines, [])]
            own = [next(filter(columns.__contains__, known), "") for known in (NAMES, TEXTS)]
            if not all(own):
                if len(columns) != 2 or not _NUMBER.search(columns[0]):
                    raise InputError(
                        f"{shown}: its first line has neither {NAMES[0]} and {TEXTS[0]} nor NAME#NUMBER"
                    )
                of_name[_NUMBER.sub("", columns[0])] = [columns[1]]
            name, text = map(columns.index, own) if all(own) else (0, 1)
            for cells in filter(None, lines):
                if len(cells) != len(columns):
                    raise InputError(
                        f"{shown}, line {lines.line_num}: {len(cells)} cells, and the first line "
                        f"has {len(columns)}"
                    )
                said = [cell.strip() for cell in cells]
                of_name.setdefault(_NUMBER.sub("", said[name]), []).append(said[text])
                known = (columns[name], columns[text])
                others.update(others_in(dict(zip(columns, said, strict=True)), known, "caption"))
        digest = sha256_of(Path(local_copy(path)))
    names = pa.array(of_name, pa.large_string())
    rows = inputs.by_path.of_file(names, path)
    if not (rows >= 0).any():
        raise none_among_inputs(shown, names)
    texts, order = list(of_name.values()), np.argsort(rows, kind="stable").tolist()
    captions = {int(rows[place]): texts[place] for place in order if rows[place] >= 0}
    notices = [*said_of_absent(shown, names, rows), *said_of_others_in(shown, others)]
    return captions, any(len(each) > 1 for each in texts), digest, notices


def _matched(path: str, inputs: PathTable) -> Found:
    """Return the files of a folder with their images; those that lie beside their images where no
    folder is given."""
    if path:
        found = walked(path, SUFFIXES, "captions")
        return match_all(found, inputs, path, "captions", ".json or .txt")
    roots = list(dict.fromkeys(root.folder for root in inputs.roots))
    matched, _ = match_files(
        [file for root in roots for file in walked(root, SUFFIXES, "captions")], inputs, some(roots)
    )
    if not matched:
        example = inputs.paths_at([0])[0]
        raise InputError(
            f"no image has a caption beside it (for {example}: {stem(example)}.txt or .json)"
        )
    return matched, []


def parse(data: bytes, suffix: str, others: Others) -> str | list[str] | None:
    """Return the caption of a file, or its captions. None: it is empty. Raises ValueError for what
    is neither.

    What a JSON object says beside is counted in `others`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}; recode the file") from None
    if suffix.lower() == ".txt":
        return text.strip() or None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if isinstance(value, dict):
        taken = "caption" if value.get("captions") is None else "captions"
        others.update(others_in(value, (taken,), "image"))
        value = value.get(taken)
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) for each in strings):
        raise ValueError(
            "it has no caption: a string, or a list of strings, alone or as caption or captions of "
            "an object"
        )
    try:
        "".join(strings).encode()
    except UnicodeEncodeError:
        raise ValueError(
            "it has an incomplete character (half of a surrogate pair, such as \\ud83d)"
        ) from None
    return value  # type: ignore[no-any-return]  # it was checked
