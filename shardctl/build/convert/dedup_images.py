"""Which image files of a conversion are duplicates of others, found before there is a plan: so
workers do not matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardctl.build.convert.discover import Discovery, group
from shardctl.build.plan.listing import Listing
from shardctl.build.plan.units import Units
from shardctl.build.shards.image_hashes import SILENT, ImageHashTask, ListedFile
from shardctl.build.shards.inputs import OTHERS
from shardctl.build.shards.planned import Root
from shardctl.build.shards.scan import Found
from shardctl.errors import SourceGoneError
from shardctl.system.sequences import LazySequence
from shardctl.system.text import counted, printable
from shardctl.transforms.duplicates.pictures import (
    Places,
    Repeats,
    distances,
    first_of_equal,
    first_of_similar,
)
from shardctl.transforms.recipe import Recipe

FILES, FILE_BYTES = 64, 32 << 20
"""The most files that one task looks at, and about how many bytes."""

NO_ANSWERS = frozenset((("read", SILENT), ("read", "timed-out")))
"""Faults of a file that may be those of its source."""


def without_repeats(
    discovery: Discovery,
    units: Units,
    recipe: Recipe,
    roots: Sequence[Root],
    comparing: Callable[[int], None] = lambda inputs: None,
) -> Units:
    """Return the units with those marked that are duplicates of others by the rule of a recipe.

    Files that cannot be read, and images that do not decode, that a filter of the recipe rejects or
    whose annotations are wrong, are not compared: they become rejects later. `comparing` is told
    how many files have been looked at. Raises SourceGoneError if a source has gone away or does not
    answer.
    """
    if recipe.duplicates.mode == "keep":
        return units
    search = _Search(discovery, recipe, roots, comparing)
    return replace(
        units, repeats=search.exact() if recipe.duplicates.mode == "exact" else search.similar()
    )


@dataclass(frozen=True)
class _Hashed:
    """Files that have a hash, by their places in the listing, in order: (n,) int64; and the hashes,
    (n, 2) uint64."""

    files: Places
    hashes: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Search:
    discovery: Discovery
    recipe: Recipe
    roots: Sequence[Root]
    comparing: Callable[[int], None]

    def exact(self) -> Repeats:
        """Find the files of the same bytes. Only those are read of whose size there are several."""
        listing = self.discovery.listing
        sizes = listing.table["size"].to_numpy()
        readable = np.flatnonzero((sizes > 0) & _readable(listing))
        _, size_of, count = np.unique(sizes[readable], return_inverse=True, return_counts=True)
        hashed = self._hashed(readable[count[size_of] > 1], "bytes")
        first = first_of_equal(hashed.hashes)
        kept = np.unique(first[first != np.arange(len(first))])
        whole = np.isin(hashed.files[first], self._hashed(hashed.files[kept], "decodes").files)
        return self._repeats(hashed.files[whole], hashed.files[first][whole], None)

    def similar(self) -> Repeats:
        """Find the images that look like others."""
        listing = self.discovery.listing
        readable = np.flatnonzero(_readable(listing))
        hashed = self._hashed(readable, "picture")
        hashes = hashed.hashes[:, 1]
        first = first_of_similar(hashes, self.recipe.duplicates.distance)
        return self._repeats(hashed.files, hashed.files[first], distances(hashes, hashes[first]))

    def _repeats(
        self, files: Places, kept_for: Places, apart: npt.NDArray[np.uint8] | None
    ) -> Repeats:
        """Return what is known of some files as what is known of all."""
        count = len(self.discovery.listing)
        of_all = np.arange(count)
        of_all[files] = kept_for
        apart_of_all = None
        if apart is not None:
            apart_of_all = np.zeros(count, np.uint8)
            apart_of_all[files] = apart
        return Repeats(self.recipe.duplicates, of_all, apart_of_all, self.discovery.paths)

    def _hashed(self, files: Places, what: str) -> _Hashed:
        """Have files hashed in the engine's processes."""
        table = self.discovery.listing.table
        sizes, times = (table[name].to_numpy()[files] for name in ("size", "mtime_ns"))
        starts = group(sizes, FILES, FILE_BYTES)
        hashes = np.zeros((len(files), 2), np.uint64)
        has_hash = np.zeros(len(files), bool)
        silent: list[int] = []
        looked_at = 0

        def hashing(number: int) -> ImageHashTask:
            rows = slice(*starts[number : number + 2].tolist())
            listed = zip(
                self.discovery.opened(files[rows]),
                sizes[rows].tolist(),
                times[rows].tolist(),
                strict=True,
            )
            recipe = self.recipe
            return ImageHashTask(
                tuple(map(ListedFile._make, listed)),
                what,
                recipe.max_pixels,
                recipe.keep_truncated,
                recipe.filters,
                recipe.gray16,
            )

        def on_found(number: int, found: Found) -> None:
            nonlocal looked_at
            for row, answer in enumerate(found, int(starts[number])):
                if (value := answer.get("hash")) is not None:
                    # one by one: an array of both would be one of floats
                    hashes[row, 0] = value >> 64
                    hashes[row, 1] = value & (1 << 64) - 1
                    has_hash[row] = True
                elif "fault" in answer and tuple(answer["fault"][:2]) in NO_ANSWERS:
                    silent.append(row)
            looked_at += len(found)
            self.comparing(looked_at)

        self.discovery.engine.examine(LazySequence(len(starts) - 1, hashing), on_found)
        self._check_sources(files[sorted(silent)])
        return _Hashed(files[has_hash], hashes[has_hash])

    def _check_sources(self, silent: Places) -> None:
        """Raise SourceGoneError if a source is gone, or gave no answer for several files: their
        duplicates would be kept."""
        for root in self.roots:
            root.check()
        if len(silent) > OTHERS:
            path = printable(self.discovery.paths(silent[:1])[0])
            raise SourceGoneError(
                f"the source does not respond: {counted(len(silent), 'file')} cannot be read, "
                f"among them {path}; check its disk"
                " or server"
            )


def _readable(listing: Listing) -> npt.NDArray[np.bool_]:
    """Return which files of a listing have no fault yet, nor have their annotations: (n,)."""
    readable: npt.NDArray[np.bool_] = listing.table["error"].is_null().to_numpy().copy()
    for each in listing.annotations:
        readable[list(each.faults)] = False
    return readable
