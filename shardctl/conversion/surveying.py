"""What must be known of files before there is a plan: their units, and the types of the fields of their records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardctl.engines.base import Engine
from shardctl.engines.survey import Stretch, Survey
from shardctl.errors import InputError, Rejection
from shardctl.listing import Listing, why_nothing
from shardctl.sources.formats import DETECT, PIECE_BYTES, RECORD_BYTES, Cut, Format, Numbers, Reading, find_format
from shardctl.sources.kinds.text import too_large
from shardctl.sources.types import Types
from shardctl.sources.walk import COMPRESSED, suffix_of
from shardctl.spread import spread
from shardctl.units import Units

STRETCHES = 256
"""The most stretches that one survey has: small files are looked at together."""

TYPED_UNITS = 24
"""Units, from all over the files, whose types are taken for those of all where a format allows that. They are 24 MiB."""

DETECTED_FILES = 8
"""Files that are one record each whose encodings are shown: to detect one takes up to 0.1 s."""

TYPED_RECORDS = 100_000
"""The most records that are looked at for that: a compressed file is one unit, however large it is."""

FIRST_RECORDS = 1000
"""Records of the first unit whose fields keep their order; others come after them, by name."""

MOST_SAMPLED_LABELS = 1000
"""With more different labels in some units, it is likely that others have more."""


@dataclass(frozen=True)
class Surveyor:
    """Looks at files in the engine's processes. `shuffled` asks for small units."""

    listing: Listing
    reading: Reading
    shuffled: bool
    engine: Engine
    _encodings: dict[int, str] = field(default_factory=dict)

    def find_units(self) -> Units:
        """Cut the files into units. Raises InputError if they have no record."""
        listing = self.listing
        if listing.whole:
            sizes = listing.table["size"].to_numpy()
            return Units.of_whole_files(sizes, self._too_large(sizes))
        faults, pieces = self._pieces()
        scans: dict[int, list[Any]] = {}
        for (file, _), answer in zip(pieces, self._look_at([stretch for _, stretch in pieces]), strict=True):
            scans.setdefault(file, []).append(answer)
        cuts: dict[int, list[Cut] | None] = {file: [Cut(0, 0, 1, fault)] for file, fault in faults.items()}
        sizes, paths = listing.table["size"].to_numpy(), self._paths(scans)
        for file, answers in scans.items():
            if self.reading.encoding == DETECT and "scan" in answers[0]:
                self._encodings[file] = answers[0]["scan"]["encoding"]
            cuts[file] = self._joined(paths[file], int(sizes[file]), answers)
        again = [file for file, cut in cuts.items() if cut is None]
        whole = [Stretch(paths[file], _suffix(paths[file]), 0, int(sizes[file])) for file in again]
        for file, answer in zip(again, self._look_at(whole), strict=True):
            cuts[file] = self._joined(paths[file], int(sizes[file]), [answer])
        units = Units.of_cuts((file, cuts[file] or []) for file in sorted(cuts))
        if not len(units):
            raise InputError(why_nothing(listing.roots, listing.kind.name, listing.ignored))
        return units

    def _too_large(self, sizes: Numbers) -> dict[int, Rejection]:
        """Return the files of text that are too large to be one record, by number."""
        if self.listing.kind.columns is None:
            return {}
        return dict.fromkeys(np.flatnonzero(sizes > RECORD_BYTES).tolist(), too_large())

    def find_types(self, units: Units, all_of_them: bool) -> Types | None:
        """Return the types of the fields of all records; None if no record can be read.

        Where the format tells a later value that does not fit, some units are enough, unless `all_of_them` are asked for.
        """
        paths = self._paths(np.unique(units.file).tolist())
        numbers = [number for number in range(len(units)) if number not in units.faults]
        if not all_of_them and all(self._format(_suffix(path)).types_can_be_sampled for path in set(paths.values())):
            chosen = [numbers[place] for place in spread(len(numbers), TYPED_UNITS)]
            types = self._types_of(units, paths, chosen, max(1, TYPED_RECORDS // max(1, len(chosen))))
            if types is None or len(types.labels() or ()) <= MOST_SAMPLED_LABELS:
                return types
        return self._types_of(units, paths, numbers)

    def encodings(self) -> dict[str, str]:
        """Return the encodings of files, by path, that were detected while units were found. Of whole files, some are read."""
        if self.listing.whole:
            return self._encodings_of_whole_files()
        shown = self.listing.paths_at(np.array(list(self._encodings), np.int64))
        return dict(zip(shown, self._encodings.values(), strict=True))

    def _encodings_of_whole_files(self) -> dict[str, str]:
        from shardctl.sources.formats.encodings import DETECTED_BYTES, detect

        found = {}
        rows = np.array(spread(len(self.listing), DETECTED_FILES), np.int64)
        for path, opened in zip(self.listing.paths_at(rows), self._paths(rows.tolist()).values(), strict=True):
            with contextlib.suppress(OSError, Rejection), open(opened, "rb") as file:
                found[path] = detect(file.read(DETECTED_BYTES))
        return found

    def largest_stream(self) -> tuple[str, int]:
        """Return the path and the size of the largest compressed file of many records; "" and 0 if there is none."""
        sizes = self.listing.table["size"].to_numpy()
        if self.listing.whole or not len(sizes):
            return "", 0
        row = int(np.argmax(sizes))
        path = self.listing.paths_at(np.array([row]))[0]
        return (path, int(sizes[row])) if _suffix(path).endswith(tuple(COMPRESSED)) else ("", 0)

    def first_fields(self, units: Units) -> list[str]:
        """Return the names of the fields of the first unit that can be read; none if there is no such unit."""
        paths = self._paths(np.unique(units.file).tolist())
        numbers = [number for number in range(len(units)) if number not in units.faults][:1]
        types = self._types_of(units, paths, numbers)
        return [] if types is None else types.found().names

    def _types_of(self, units: Units, paths: dict[int, str], numbers: list[int], most: int | None = None) -> Types | None:
        """Return the types of some units, or of the first `most` records of each."""
        stretches = []
        for number in numbers:
            path, offset, size = paths[int(units.file[number])], int(units.offset[number]), int(units.size[number])
            records = int(units.records[number])
            unit = (offset, size, 0, int(units.first[number]), records if most is None else min(records, most))
            stretches.append(Stretch(path, _suffix(path), offset, size, unit))
        if stretches and stretches[0].unit is not None:
            # The order of fields is that of the first records, then by name: the same whatever else is looked at.
            *of_unit, records = stretches[0].unit
            stretches.insert(0, replace(stretches[0], unit=(*of_unit, min(records, FIRST_RECORDS))))
        types: Types | None = None
        for answer in self._look_at(stretches):
            if "types" in answer:
                found = Types.from_json(answer["types"])
                types = found if types is None else types.join(found)
        return types

    def _format(self, suffix: str) -> Format:
        return find_format(suffix, self.reading, self.shuffled)

    def _paths(self, files: Iterable[int]) -> dict[int, str]:
        """Return the paths by which some of the files are opened."""
        wanted = np.array(sorted(files), np.int64)
        found: dict[int, str] = {}
        first = 0
        for batch in self.listing.table.select(["path", "root"]).to_batches():
            here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
            rows = batch.take(here - first).to_pylist()
            found |= {number: self.listing.opened(row) for number, row in zip(here.tolist(), rows, strict=True)}
            first += batch.num_rows
        return found

    def _pieces(self) -> tuple[dict[int, Rejection], list[tuple[int, Stretch]]]:
        """Return the files that cannot be read, by number, and the pieces of the others in order, each with its file."""
        faults: dict[int, Rejection] = {}
        pieces: list[tuple[int, Stretch]] = []
        for number, row in enumerate(_rows(self.listing)):
            if row["error"]:
                faults[number] = Rejection("plan", row["error"], row["message"])
            else:
                path, suffix = self.listing.opened(row), _suffix(row["path"])
                pieces += [(number, Stretch(path, suffix, *piece)) for piece in self._format(suffix).pieces(row["size"])]
        return faults, pieces

    def _look_at(self, stretches: list[Stretch]) -> list[Any]:
        """Return what was found in each stretch. Small ones are looked at together, a large one alone."""
        surveys: list[Survey] = []
        held: list[Stretch] = []
        size = 0
        for stretch in stretches:
            if held and (len(held) == STRETCHES or size + stretch.size > PIECE_BYTES):
                surveys.append(Survey(tuple(held), self.reading, self.shuffled))
                held, size = [], 0
            held.append(stretch)
            size += stretch.size
        if held:
            surveys.append(Survey(tuple(held), self.reading, self.shuffled))
        return [answer for found in self.engine.survey(surveys) for answer in found]

    def _joined(self, path: str, size: int, answers: list[dict[str, Any]]) -> list[Cut] | None:
        """Return the units of one file; None if it must be scanned as one piece."""
        fault = next((answer["fault"] for answer in answers if "fault" in answer), None)
        if fault is not None:
            return [Cut(0, size, 1, Rejection(*fault))]
        try:
            return self._format(_suffix(path)).join([answer["scan"] for answer in answers], size)
        except Rejection as rejection:
            return [Cut(0, size, 1, rejection)]


def _rows(listing: Listing) -> Iterator[dict[str, Any]]:
    for batch in listing.table.select(["path", "root", "size", "error", "message"]).to_batches():
        yield from batch.to_pylist()


def _suffix(path: str) -> str:
    return suffix_of(path.rpartition("/")[2])
