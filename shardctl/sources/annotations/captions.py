"""Captions: a file of text or JSON for each image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Source, fault, no_options
from shardctl.sources.annotations.inputs import Inputs, stem
from shardctl.sources.annotations.per_image import (
    Beside,
    Digest,
    files_in,
    match_files,
    read_small,
    refuse_no_match,
    said_of_others,
    walked,
)
from shardctl.sources.files import fetch_all
from shardctl.sources.label_table import some
from shardctl.sources.walk import FoundFile, suffix_of
from shardctl.system.locations.text import name_of
from shardctl.system.text import printable

SUFFIXES = (".txt", ".json")


class Captions:
    """Text files (the whole text is the caption) or JSON files of the same name as the image, beside it or in a folder."""

    name: ClassVar[str] = "captions"
    needs_path: ClassVar[bool] = False

    def check_option(self, name: str, value: str) -> None:
        """Raise UsageError: it has none."""
        no_options(self, name)

    def read(self, sources: Sequence[Source], inputs: Inputs, rule: AnnotationRule, scratch: Path) -> Annotations:
        """Read all files. One that is wrong rejects its image."""
        if len(sources) > 1:
            raise UsageError("give --labels captions:PATH once, with the folder that has all captions")
        matched, lost = _matched(sources[0].path, inputs)
        digest, faults = Digest(), dict[int, Rejection]()
        fetch_all(file.opened for file in matched)
        captions: list[list[str]] = []
        several = False
        for file in matched:
            found: str | list[str] | None = []
            try:
                data = read_small(file.opened)
                digest.add(str(file.row), data)
                found = parse(data, suffix_of(name_of(file.opened)))
            except (OSError, ValueError) as error:
                faults[file.row] = fault(f"{file.shown}: {error.strerror if isinstance(error, OSError) else error}")
            several = several or (isinstance(found, list) and file.row not in faults)
            captions.append([found] if isinstance(found, str) else found or [])
        rows = np.full(len(inputs), -1, np.int64)
        rows[[file.row for file in matched]] = np.arange(len(matched))
        if several:
            field, column = pa.field("captions", pa.list_(pa.string())), pa.array(captions, pa.list_(pa.string()))
        else:
            field = pa.field("caption", pa.string())
            column = pa.array([each[0] if each else None for each in captions], pa.string())
        said = said_of_others(lost, len(inputs) - len(matched), inputs, "caption", "it is null there")
        return Annotations(pa.table({field.name: column}), rows, (field,), (digest.hex(),), faults=faults, notices=tuple(said))


def _matched(path: str, inputs: Inputs) -> tuple[list[Beside], list[FoundFile]]:
    """Return the files of a folder with their images; those that lie beside their images where no folder is given."""
    if path:
        found = files_in(path, SUFFIXES, "captions")
        matched, lost = match_files(found, inputs, printable(path))
        refuse_no_match(matched, found, inputs, path, "captions")
        return matched, lost
    roots = [root.folder for root in inputs.roots]
    matched, _ = match_files([file for root in roots for file in walked(root, SUFFIXES, "captions")], inputs, some(roots))
    if not matched:
        example = inputs.paths_at([0])[0]
        raise InputError(f"no image has a caption beside it (for {example}: {stem(example)}.txt or .json)")
    return matched, []


def parse(data: bytes, suffix: str) -> str | list[str] | None:
    """Return the caption of a file, or its captions. None: it is empty. Raises ValueError for what is neither."""
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
        value = value.get("captions", value.get("caption"))
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) for each in strings):
        raise ValueError("it has no caption: a string, or a list of strings, alone or as caption or captions of an object")
    try:
        "".join(strings).encode()
    except UnicodeEncodeError:
        raise ValueError("it has an incomplete character (half of a surrogate pair, such as \\ud83d)") from None
    return value  # type: ignore[no-any-return]  # it was checked
