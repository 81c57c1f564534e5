"""The lists of files that Hugging Face's `save_to_disk` writes."""

from __future__ import annotations

from shardctl.sources.formats.beside import is_beside, is_name, json_in
from shardctl.sources.walk import FoundFile
from shardctl.system.text import printable


def first_missing_file(file: FoundFile) -> str | None:
    """Return a sentence about the first file that a state.json lists and that does not exist, None
    if there is none."""
    record = json_in(file)
    listed = record.get("_data_files") if isinstance(record, dict) else None
    names = (
        [each.get("filename") for each in listed if isinstance(each, dict)]
        if isinstance(listed, list)
        else []
    )
    lost = [
        name
        for name in names
        if isinstance(name, str) and is_name(name) and not is_beside(file, name)
    ]
    return (
        f"{printable(file.opened)} lists {printable(lost[0])}, which is not there; get it"
        if lost
        else None
    )
