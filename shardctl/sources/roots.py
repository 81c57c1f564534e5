"""The sources of a conversion, as they were given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardctl.sources import files
from shardctl.system.locations import is_stored, is_url, name_of, normal, parent_of
from shardctl.system.stores import parts_of


@dataclass(frozen=True)
class SourceRoot:
    """A source: a folder of inputs, or one input, by the text of its location as messages have
    it."""

    text: str

    @classmethod
    def of(cls, source: str | Path) -> SourceRoot:
        """Return a source that a person has named. Raises UsageError for what is no URL of a
        store."""
        if is_url(source):
            parts_of(str(source))
        return cls(normal(str(source)))

    @cached_property
    def is_stored(self) -> bool:
        """Whether it is on an object store."""
        return is_stored(self.text)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder. Raises StoreError, as a store is asked once."""
        return files.is_folder(self.text)

    @property
    def name(self) -> str:
        """The last part of where it is."""
        return name_of(self.recorded)

    @property
    def recorded(self) -> str:
        """Its absolute path, or its URL, as a dataset records it: links above its last part are
        followed, that one is not."""
        if self.is_stored:
            return self.text
        path = Path(self.text)
        return str(
            path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()
        )

    @property
    def folder(self) -> str:
        """The folder of its inputs: it, or the one that it lies in."""
        return self.text if self.is_folder else parent_of(self.text)

    @property
    def base(self) -> str:
        """The folder that paths of inputs are relative to, by its absolute path, links followed, or
        its URL."""
        return resolved(self.folder)


def resolved(text: str) -> str:
    """Return a location with links followed; on a store there are none. Raises ValueError for a
    name with a null byte."""
    return text if is_stored(text) else os.path.realpath(text)


def folder_of(source: str) -> str:
    """Return the folder that the paths of a source's files are relative to, as a dataset records
    it; it may be gone."""
    text = normal(source)
    is_file = (
        not files.is_folder(text) and files.exists(text)
        if is_stored(text)
        else Path(text).is_file()
    )
    return parent_of(text) if is_file else text
