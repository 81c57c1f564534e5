"""The images that annotations are about, found by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.images.codecs.image import SUFFIXES
from shardctl.sources.label_table import hash_names
from shardctl.sources.roots import SourceRoot, resolved
from shardctl.sources.walk import suffix_of
from shardctl.system.dataclass import dataclass
from shardctl.system.locations.text import join, name_of, parent_of, path_below
from shardctl.system.text import printable

AT_ONCE = 65536
"""Names that are Python objects at a time."""


class Match(NamedTuple):
    """The input of each name, -1 for none, (n,) int64; and whether its whole path was meant, or only its last part fits."""

    rows: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Inputs:
    """The listed images. `table` has the `path` of each, relative to its source, and the number of its `root`."""

    roots: tuple[SourceRoot, ...]
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def paths_at(self, rows: npt.NDArray[np.int64] | Sequence[int]) -> list[str]:
        """Return the paths of some inputs."""
        return list(self.table["path"].take(pa.array(rows, pa.int64())).to_pylist())

    @cached_property
    def by_path(self) -> Finder:
        """Finds inputs by their whole names."""
        return Finder(self._chunks(lambda path: path), self.paths_at)

    @cached_property
    def by_stem(self) -> Finder:
        """Finds inputs by their names without the ending."""
        return Finder(self._chunks(stem), lambda rows: [stem(path) for path in self.paths_at(rows)])

    def _chunks(self, name_of: Callable[[str], str]) -> Iterable[list[str]]:
        for batch in self.table.select(["path"]).to_batches(max_chunksize=AT_ONCE):
            yield [name_of(path) for path in batch.column(0).to_pylist()]

    def below(self, text: str) -> str | None:
        """Return where something lies below one of the sources, as paths of inputs are written; None if below none of them."""
        try:
            there = resolved(text)
        except ValueError:  # a name with a null byte, which no file has
            return None
        return next((found for base in self.bases if (found := path_below(there, base)) is not None), None)

    def in_folder(self, folder: str) -> npt.NDArray[np.bool_]:
        """Return which inputs are in a folder or below, (n,)."""
        import pyarrow.compute as pc  # 40 ms to import, and most conversions do not ask

        there, paths, roots = resolved(folder), self.table["path"], self.table["root"].to_numpy()
        found = np.zeros(len(self), bool)
        for number, base in enumerate(self.bases):
            below = "" if path_below(base, there) is not None else path_below(there, base)
            if below is not None:
                found |= (roots == number) & np.asarray(pc.starts_with(paths, f"{below}/" if below else ""))
        return found

    def named(self, names: Sequence[str], folder: str) -> npt.NDArray[np.int64]:
        """Return the input of each name in a file of a folder, -1 for none: all with the endings of images, or all without.

        A name is a path from that folder on, else one as `Finder.find` takes it. Raises InputError.
        """
        names = [name.replace("\\", "/") for name in names]
        finder = self.by_path if suffix_of(name_of(names[0])) in SUFFIXES else self.by_stem
        paths = [join(folder, name) for name in names]
        folders = {above: self.below(above) for above in set(map(parent_of, paths))}
        below = ((folders[parent_of(path)], name_of(path)) for path in paths)
        rows = finder.exact(["" if above is None else f"{above}/{name}".removeprefix("/") for above, name in below])
        left = np.flatnonzero(rows < 0)
        rows[left] = finder.find([names[place].lstrip("./") for place in left.tolist()]).rows
        return rows

    @cached_property
    def bases(self) -> list[str]:
        """The folder of each source that paths of its inputs are relative to."""
        return [root.base for root in self.roots]


def stem(path: str) -> str:
    """Return a path without the ending of its name."""
    dot = path.rfind(".")
    return path[:dot] if dot > path.rfind("/") + 1 else path


class Finder:
    """Finds names among many: by the whole of them, or by their last part where only one has it. 16 bytes for each name."""

    def __init__(
        self, chunks: Iterable[list[str]], names_at: Callable[[npt.NDArray[np.int64] | Sequence[int]], list[str]]
    ) -> None:
        self._names_at = names_at
        whole, last = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for names in chunks:
            whole.append(hash_names(names))
            last.append(hash_names(_last_part(name) for name in names))
        self._whole, self._last = _Sorted(np.concatenate(whole)), _Sorted(np.concatenate(last))

    def exact(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the place of each name, -1 for those that are not there. Raises InputError for one that is there twice."""
        rows = np.full(len(names), -1, np.int64)
        for number, found in self._fitting(self._whole, names, lambda name: name):
            if len(found) > 1:
                raise _ambiguous(names[number], [name for _, name in found])
            rows[number] = found[0][0]
        return rows

    def find(self, names: Sequence[str]) -> Match:
        """Return the place of each name: of the one that is the same, else of the only one with the same last part.

        Of several with that last part, the one that ends with all of the name is meant. Raises InputError where that leaves
        more than one, or none of several.
        """
        rows = self.exact(names)
        exact = rows >= 0
        left = np.flatnonzero(~exact).tolist()
        for place, found in self._fitting(self._last, [names[number] for number in left], _last_part):
            number = left[place]
            if len(found) > 1:
                ending = [(row, name) for row, name in found if name.endswith(f"/{names[number]}")]
                if len(ending) != 1:
                    raise _ambiguous(names[number], [name for _, name in ending or found])
                found = ending
            rows[number] = found[0][0]
        return Match(rows, exact)

    def _fitting(
        self, hashes: _Sorted, wanted: Sequence[str], part: Callable[[str], str]
    ) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Yield the number of each wanted name of which a part is there, and the (place, name) of all that have it."""
        for start in range(0, len(wanted), AT_ONCE):
            parts = [part(name) for name in wanted[start : start + AT_ONCE]]
            numbers, places = hashes.places(hash_names(parts))
            found: dict[int, list[tuple[int, str]]] = {}
            for number, place, name in zip(numbers.tolist(), places.tolist(), self._names_at(places), strict=True):
                if part(name) == parts[number]:
                    found.setdefault(start + number, []).append((place, name))
            yield from found.items()


class _Sorted:
    """Hashes in order, and the place of each before they were sorted."""

    def __init__(self, hashes: npt.NDArray[np.uint64]) -> None:
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def places(self, wanted: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return every pair of a wanted hash, by its number, and a place that has it."""
        first, end = (np.searchsorted(self._hashes, wanted, side) for side in ("left", "right"))
        numbers = np.repeat(np.arange(len(wanted)), end - first)
        within = np.arange(len(numbers)) - np.repeat(np.cumsum(end - first) - (end - first), end - first)
        return numbers, self._order[np.repeat(first, end - first) + within]


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _ambiguous(name: str, found: Sequence[str]) -> InputError:
    both = " and ".join(printable(each) for each in found[:2])
    return InputError(
        f"the annotations name {printable(name)}, which may be {both}; give paths below the source in the annotations, or"
        " convert one folder at a time"
    )
