"""What every kind of source can do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sample import Sample
from shardctl.sources.walk import FoundFile


class Input(NamedTuple):
    """One raw thing: a byte range of a file, which becomes one sample (or one per variant).

    `source` is the path relative to the root, `/` between its parts; `offset` and `size` are in bytes, `mtime_ns` is the
    file's. `folder` is where folder labels come from. `lines_of` is the stem of a file of lines, whose name may name a
    split, and "" for whole files. `label` is the place in the source's `labels`, -1 for none. `fault` is set where it is
    already known that the input cannot be converted.
    """

    key: str
    source: str
    root: int
    offset: int
    size: int
    mtime_ns: int
    folder: str
    lines_of: str
    label: int
    fault: Rejection | None


class Source(Protocol):
    """One kind of input."""

    kind: str

    def takes(self, file: FoundFile) -> bool | None:
        """Return whether a file belongs to this kind; None if it may, and cannot be read to see whether it does."""
        ...

    def inputs(self, file: FoundFile) -> Iterable[Input]:
        """Return the inputs in a file, in order."""
        ...

    def parse(self, data: bytes, source: str) -> Sample:
        """Turn the bytes of one input into the fields of a sample. Raises Rejection (stages `read`, `decode`)."""
        ...

    def columns(self) -> pa.Schema | None:
        """Return the columns that `parse` fills, known once all inputs have been listed. None: one image."""
        ...

    def labels(self) -> Sequence[str] | None:
        """Return the class names that the inputs bring, known once all have been listed. None: they bring none."""
        ...

    def notices(self) -> list[str]:
        """Return notices for the user about the listed inputs."""
        ...


def file_input(file: FoundFile) -> Input:
    """Return the input that is a whole file."""
    root, path, _, folder, _, size, mtime_ns, fault = file
    return tuple.__new__(Input, (path, path, root, 0, size, mtime_ns, folder, "", -1, fault))  # half the time of Input(…)
