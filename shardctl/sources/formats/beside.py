"""What formats ask about the other files in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shardctl.sources.export_description import DEEPEST, DESCRIPTION
from shardctl.sources.files import exists, read_small
from shardctl.sources.walk import FoundFile
from shardctl.system.locations import beside, join, parent_of
from shardctl.system.text import printable

MOST_BYTES = 64 << 20
"""The largest file that is looked at: an index of 100,000 shards."""

FAULTS_OF_JSON = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What it raises to read JSON that anybody may have written, where it is not as it should be."""


def is_beside(file: FoundFile, name: str) -> bool:
    """Return whether a file with this name is in the folder of a file."""
    return exists(beside(file.opened, name))


def of_export(path: str) -> Iterator[str]:
    """Yield where the shardctl.json of the export that a file may be of would lie, as
    InputFormat.companions has it."""
    for depth in range(DEEPEST + 1):
        place = f"{'../' * depth}{DESCRIPTION}"
        yield place
        if exists(join(parent_of(path), place)):
            return


def json_in(file: str) -> Any:
    """Return the value in a JSON file of at most MOST_BYTES. Raises what FAULTS_OF_JSON has."""
    return json.loads(read_small(file, MOST_BYTES))


def is_name(name: str) -> bool:
    """Return whether an entry of an index is a plain file name: the file is in the folder of the
    index."""
    return "/" not in name and "\0" not in name and name not in ("", ".", "..")


def first_missing_file(file: FoundFile) -> str | None:
    """Return a sentence about the first file that a state.json lists and that does not exist, None
    if there is none."""
    try:
        names = [str(each["filename"]) for each in json_in(file.opened)["_data_files"]]
    except FAULTS_OF_JSON:
        return None
    lost = (name for name in names if is_name(name) and not is_beside(file, name))
    if (name := next(lost, None)) is None:
        return None
    return f"{printable(file.opened)} lists {printable(name)}, which is not there; get it"
