"""COCO: instances, keypoints and captions, from one file or several that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from shardctl.errors import InputError
from shardctl.sources.annotations.base import AnnotationFormat, AnnotationRule, Annotations, Source
from shardctl.sources.annotations.coco.file import CocoFile, joined_categories
from shardctl.sources.annotations.coco.joining import Joined
from shardctl.sources.annotations.coco.reading import read_file
from shardctl.sources.annotations.inputs import (
    Inputs,
    Place,
    ToldSplits,
    none_among_inputs,
    said_of_absent,
    stem,
)
from shardctl.sources.annotations.objects import said_of_others_in
from shardctl.sources.files import resolved
from shardctl.sources.label_table import some
from shardctl.sources.splits import split_word
from shardctl.system.locations import name_of, parent_of
from shardctl.system.text import printable


class Coco(AnnotationFormat):
    """The JSON files of the COCO datasets and of the many tools that write such."""

    name: ClassVar[str] = "coco"
    takes_several: ClassVar[bool] = True

    def read(
        self, sources: Sequence[Source], inputs: Inputs, rule: AnnotationRule, scratch: Path
    ) -> Annotations:
        """Read all files. Objects of the same id and image in several of them are one object."""
        files = [
            read_file(source.path, scratch / f"coco-{number}")
            for number, source in enumerate(sources)
        ]
        notices = [notice for file in files for notice in find_inputs(file, inputs)]
        if not any((file.rows >= 0).any() for file in files):
            raise none_among_inputs(files[0].shown, files[0].names)
        marking = [
            file
            for file in files
            if file.objects is not None and (len(file.objects) or file.captions is None)
        ]
        captioning = [file for file in files if file.captions is not None]
        categories, role, said = joined_categories(marking)
        table = Joined(marking, captioning, categories, role, inputs, rule)
        notices += [*said, *table.notices]
        written = table.write(scratch / "coco.arrow", [file.digest for file in files], notices)
        return replace(written, splits=_splits_of(files))


def _splits_of(files: Sequence[CocoFile]) -> ToldSplits | None:
    """Return the splits that names of files tell of, instances_train.json and instances_val.json;
    None where it is one."""
    places: dict[str, list[Place]] = {}
    for file in files:
        if (word := split_word(stem(name_of(file.opened)))) is not None:
            places.setdefault(word.word, []).append(file.rows[file.rows >= 0])
    return ToldSplits(some([file.shown for file in files]), places) if len(places) > 1 else None


def find_inputs(file: CocoFile, inputs: Inputs) -> list[str]:
    """Find the input of each image of a file. Raises InputError for images of one id, and for two
    of one input."""
    ordered = file.images[file.order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        one, other = (file.names[int(file.order[again[0] + more])].as_py() for more in (0, 1))
        raise InputError(
            f"{file.shown}: the images {printable(one)} and {printable(other)} have the same id "
            f"{int(ordered[again[0]])};"
            " give each image an id of its own"
        )
    told, first = (file.opened, len(file.names)), (resolved(parent_of(file.opened)), file.names)
    file.rows = inputs.by_path.find(file.names, file.shown, [told], [first])
    return [
        *said_of_others_in(file.shown, file.others),
        *said_of_absent(file.shown, file.names, file.rows),
    ]
