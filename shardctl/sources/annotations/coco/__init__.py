"""COCO: instances, keypoints and captions, from one file or several that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from shardctl.sources.annotations.base import AnnotationRule, Annotations, Source, no_options
from shardctl.sources.annotations.coco.categories import joined_categories
from shardctl.sources.annotations.coco.images import find_inputs
from shardctl.sources.annotations.coco.joining import Joined
from shardctl.sources.annotations.coco.reading import read_file
from shardctl.sources.annotations.inputs import Inputs, none_among_inputs


class Coco:
    """The JSON files of the COCO datasets and of the many tools that write such."""

    name: ClassVar[str] = "coco"
    needs_path: ClassVar[bool] = True

    def check_option(self, name: str, value: str) -> None:
        """Raise UsageError: it has none."""
        no_options(self, name)

    def read(self, sources: Sequence[Source], inputs: Inputs, rule: AnnotationRule, scratch: Path) -> Annotations:
        """Read all files. Objects of the same id and image in several of them are one object."""
        files = [read_file(source.path, scratch / f"coco-{number}") for number, source in enumerate(sources)]
        notices = [notice for file in files for notice in find_inputs(file, inputs)]
        if not any((file.rows >= 0).any() for file in files):
            raise none_among_inputs(files[0].shown, files[0].names)
        marking = [file for file in files if file.objects is not None and (len(file.objects) or file.captions is None)]
        captioning = [file for file in files if file.captions is not None]
        categories, said = joined_categories(marking)
        table = Joined(marking, captioning, categories, inputs, rule)
        notices += [*said, *table.notices]
        return table.write(scratch / "coco.arrow", [file.digest for file in files], notices)
