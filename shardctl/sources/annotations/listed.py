"""The images of a conversion, as a look at what nothing uses sees them: their names, and a few of each folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.sources.label_table import hash_names
from shardctl.sources.roots import SourceRoot
from shardctl.sources.splits import named_as_splits
from shardctl.system.dataclass import dataclass
from shardctl.system.locations.text import join
from shardctl.system.sequences import evenly_spaced

SUFFIXES = tuple(
    suffix for each in (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff") for suffix in (each, each.upper())
)
"""How names of images end."""

MOST_FOLDERS = 64
"""Folders of which a few images are kept, and in which a name is looked for."""

SOME = 16
"""Images of each folder that are kept."""


class Listed(NamedTuple):
    """An image: its name in its folder, and where it can be opened."""

    name: str
    opened: str


@dataclass(frozen=True)
class Images:
    """The inputs: `roots` are the sources, `folders` those that have images. `table` has the `path`, the `root` and the `group`
    of each image, its place in `folders`; `hashes` are those of the paths, (n,) uint64."""

    roots: Sequence[SourceRoot]
    folders: Sequence[str]
    table: pa.Table
    hashes: npt.NDArray[np.uint64]

    @cached_property
    def have_class_folders(self) -> bool:
        """Whether the folders give the images their classes, as `--labels auto` does where there are no other labels."""
        names = sorted({folder.rpartition("/")[2] for folder in self.folders} - {""})
        return len(names) > 1 and len(named_as_splits(names)) < len(names)

    @cached_property
    def _sorted(self) -> npt.NDArray[np.uint64]:
        """The hashes in their order: there may be millions, and names are looked for thousands of times."""
        return np.sort(self.hashes)

    def are_there(self, paths: Sequence[str]) -> list[bool]:
        """Return of each path whether an input has it."""
        if not paths or not len(self.hashes):
            return [False] * len(paths)
        wanted = hash_names(paths)
        places = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return (self._sorted[places] == wanted).tolist()  # type: ignore[no-any-return]  # numpy does not say of what

    def are_images(self, names: Sequence[str]) -> list[bool]:
        """Return of each path without an ending whether an image is called so."""
        there = self.are_there([f"{name}{suffix}" for name in names for suffix in SUFFIXES])
        return [any(there[at : at + len(SUFFIXES)]) for at in range(0, len(there), len(SUFFIXES))]

    def folder_of(self, name: str, folder: str) -> str | None:
        """Return the folder of an image that is called so, with an ending or without; `folder` if it has one, None for none."""
        folders = list(dict.fromkeys([folder, *self.folders[:MOST_FOLDERS]]))
        names = [name, *(f"{name}{suffix}" for suffix in SUFFIXES)]
        there = self.are_there([joined(each, one) for each in folders for one in names])
        return next((folders[place // len(names)] for place, found in enumerate(there) if found), None)

    @cached_property
    def some(self) -> list[list[Listed]]:
        """A few images of each of the first folders, evenly apart."""
        rows = list(self._some_rows())
        found = self._at(sorted(row for each in rows for row in each))
        return [[found[row] for row in each] for each in rows]

    def _some_rows(self) -> Iterator[list[int]]:
        """Yield a few rows of each of the first folders. Rows of one folder lie in few runs: it is walked as a whole."""
        runs: list[list[tuple[int, int]]] = [[] for _ in self.folders[:MOST_FOLDERS]]
        first = 0
        for chunk in self.table["group"].chunks:
            groups = chunk.to_numpy()
            starts = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
            for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
                if groups[start] < len(runs):
                    runs[groups[start]].append((first + start, end - start))
            first += len(groups)
        for of_folder in runs:
            ends = np.cumsum([length for _, length in of_folder]).tolist()
            wanted = evenly_spaced(ends[-1] if ends else 0, SOME)
            run = 0
            rows = []
            for place in wanted:
                while place >= ends[run]:
                    run += 1
                start, length = of_folder[run]
                rows.append(start + place - (ends[run] - length))
            yield rows

    def _at(self, rows: Sequence[int]) -> dict[int, Listed]:
        """Return the images of some rows, which are in order."""
        found: dict[int, Listed] = {}
        first = 0
        for batch in self.table.select(["root", "path"]).to_batches():  # not of the whole table: Arrow may copy it
            roots, paths = batch.columns
            for row in rows:  # not batch.take(), which imports pyarrow.compute: 40 ms
                if first <= row < first + len(batch):
                    root, path = roots[row - first].as_py(), paths[row - first].as_py()
                    found[row] = Listed(path.rpartition("/")[2], join(self.roots[root].text, path))
            first += len(batch)
        return found


def joined(folder: str, name: str) -> str:
    """Return the path of a file in a folder, which may be the source itself."""
    return f"{folder}/{name}" if folder else name
