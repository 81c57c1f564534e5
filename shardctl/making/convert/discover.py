"""What must be known of files before there is a plan: the kind of the samples, their units, and the
types of the fields of their records."""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.arrays import Bools, Numbers, numbers_of
from shardctl.format.names import GENERATIONS, MANIFEST, Json
from shardctl.format.roles import Mask
from shardctl.making.notices import notice
from shardctl.making.plan.labels import LABEL
from shardctl.making.plan.list_files import (
    idle_roots,
    is_labels_file,
    refuse_idle,
    why_nothing,
)
from shardctl.making.plan.listing import LabelRule, Listing
from shardctl.making.plan.plan import Units, UnitsInMaking
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.inputs import ByteRange, Found, PrePlanTask, scan
from shardctl.sources.export_description import (
    RESTORED,
    described,
    may_be_of_export,
    name_in_records,
)
from shardctl.sources.files import begin_of, changed
from shardctl.sources.format_table import BINARY_SUFFIXES, UNDECLARED_SUFFIXES
from shardctl.sources.formats import (
    DETECT,
    PIECE_BYTES,
    RECORD_BYTES,
    Cut,
    Format,
    Reading,
    ending_of,
    find_format,
    without_compression,
)
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.image_columns import AUTO, NO_IMAGES, without_doubt
from shardctl.sources.kinds import KINDS, Form, too_large
from shardctl.sources.label_table import DELIMITED_SUFFIXES
from shardctl.sources.types import Types
from shardctl.sources.walk import FoundFile, LeftOut
from shardctl.sources.walked import Walked
from shardctl.system.permutation import LazySequence, evenly_spaced
from shardctl.system.progress import Report
from shardctl.system.text import printable, some
from shardctl.transforms.recipe import Recipe

MOST_RANGES = 256
"""The most byte ranges that one task has: small files are looked at together."""

TYPED_UNITS, FEWEST_TYPED, TYPED_SHARE = 24, 8, 16
"""How many units are looked at for the types of all, where a format allows that: at most, at least,
and one of so many.

They come from all over the files. 24 units are 24 MiB. Of a file of 50 MB that is half, and takes
0.09 s of the 1.2 s of its conversion (2026-11-27). If another type is found later, the conversion
begins again: of few units, that costs little.
"""

DETECTED_FILES = 8
"""Files that are one record each whose encodings are shown: to detect one takes up to 0.1 s."""

TYPED_BYTES = 4 << 20
"""One task finds the types of units of so many bytes at most. With all 24 MiB in one task, one
worker takes 0.12 s, and the others wait (2026-11-27)."""

TYPED_RECORDS = 100_000
"""The most records that are looked at for that: a compressed file is one unit, however large it
is."""

FIRST_RECORDS = 1000
"""Records of the first unit whose fields keep their order; others come after them, by name."""


ROWS = 4096
"""Rows of the listing that are Python objects at a time."""

MOST_SAMPLED_LABELS = 1000
"""With more different labels in some units, it is likely that others have more."""


def group(sizes: Numbers, most: int, most_bytes: int) -> Numbers:
    """Return where tasks begin, and the end: small files of these sizes are looked at together, a
    large one alone."""
    ends = np.cumsum(sizes)
    starts = array("q", [0])
    while (start := starts[-1]) < len(sizes):
        before = int(ends[start - 1]) if start else 0
        fit = int(np.searchsorted(ends, before + most_bytes, side="right"))
        starts.append(max(start + 1, min(start + most, fit)))
    return np.frombuffer(starts, np.int64)


@dataclass(frozen=True)
class Discovery:
    """Looks at files in the engine's processes. `shuffled` asks for small units. `scanning` gets
    the ranges scanned, and all.

    What it holds of a file or a unit is numbers in arrays: there may be ten millions.
    """

    listing: Listing
    reading: Reading
    shuffled: bool
    engine: Engine
    scanning: Report = lambda done, total: None
    untyped: dict[int, Rejection] = field(default_factory=dict)
    """Why no types were found in a unit, by its number: the first one that was met, there may be
    millions."""
    _encodings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """In how many files an encoding was detected, and the first of them by its place in the
    listing."""

    def find_units(self, wanted: Bools | None = None) -> Units:
        """Cut the files into units; of files of many records only those that are `wanted` (files,),
        None: all of them.

        Raises InputError if they have no record.
        """
        listing = self.listing
        if listing.whole:
            sizes = numbers_of(listing.table["size"])
            zero, one = (np.broadcast_to(np.int64(value), len(sizes)) for value in (0, 1))
            texts = listing.kind.columns is not None
            large = np.flatnonzero(sizes > RECORD_BYTES).tolist() if texts else ()
            faults = dict.fromkeys(large, too_large())
            return Units(np.arange(len(sizes)), zero, sizes, zero, one, faults)
        made = UnitsInMaking()
        again = self._cut(self._pieces(made, wanted), made)
        if again:
            files = np.array(sorted(again), np.int64)
            sizes = numbers_of(listing.table["size"])[files]
            whole = _pieces(files, np.zeros_like(files), sizes)
            for file in self._cut(whole, made):
                made.add(file, [Cut(0, int(listing.table["size"][file].as_py()), 1, changed())])
        units = made.finish()
        if not len(units) and wanted is None:
            raise InputError(why_nothing(listing.roots, "table", listing.ignored))
        if wanted is None:
            of_file, count = numbers_of(listing.table["root"]), len(listing.roots)
            for number in set(idle_roots(count, of_file[units.file])).difference(
                idle_roots(count, of_file)
            ):
                refuse_idle(listing.roots[number], "table", Counter())
        return units

    def _pieces(self, made: UnitsInMaking, wanted: Bools | None) -> Units:
        """Return the pieces of the files, in order. Files that cannot be read are added to the
        units."""
        columns = file, offset, size = array("q"), array("q"), array("q")
        first = 0
        for batch in self.listing.table.select(
            ["path", "root", "size", "error", "message"]
        ).to_batches(max_chunksize=ROWS):
            for number, row in enumerate(batch.to_pylist(), first):
                if wanted is not None and not wanted[number]:
                    continue
                if row["error"]:
                    made.add(
                        number, [Cut(0, 0, 1, Rejection("plan", row["error"], row["message"]))]
                    )
                    continue
                for start, count in self._format(self._ending(row)).pieces(row["size"]):
                    file.append(number)
                    offset.append(start)
                    size.append(count)
            first += batch.num_rows
        return _pieces(*(np.frombuffer(column, np.int64) for column in columns))

    def _cut(self, pieces: Units, made: UnitsInMaking) -> list[int]:
        """Scan the pieces of files, and add the units. Return the files that must be scanned as one
        piece each."""
        again: list[int] = []
        # files of which some pieces are scanned: answers by place
        begun: dict[int, dict[int, Json]] = {}

        def take(start: int, task: PrePlanTask, found: Found) -> None:
            files = pieces.file[start : start + len(found)]
            firsts, ends = (
                np.searchsorted(pieces.file, files, side).tolist() for side in ("left", "right")
            )
            for number, (file, part, answer) in enumerate(
                zip(files.tolist(), task.things, found, strict=True)
            ):
                count = ends[number] - firsts[number]
                answers = begun.setdefault(file, {})
                answers[start + number - firsts[number]] = answer
                if len(answers) == count:
                    del begun[file]
                    in_order = [answers[place] for place in range(count)]
                    scan = in_order[0].get("scan")
                    if isinstance(scan, dict) and scan.get("folders"):
                        self.listing.inside[file] = scan["folders"]
                    if self.reading.encoding == DETECT and isinstance(scan, dict):
                        self._note_encoding(scan.get("encoding"), file)
                    cuts = self._joined(part.suffix, int(sizes[file]), in_order)
                    if cuts is None:
                        again.append(file)
                    else:
                        made.add(file, cuts)

        sizes = numbers_of(self.listing.table["size"])
        self._examine(pieces, take, typed=False)
        return again

    def find_types(self, units: Units, all_of_them: bool) -> Types | None:
        """Return the types of the fields of all records; None if no record can be read.

        Where the format tells a later value that does not fit, some units are enough, unless
        `all_of_them` are asked for.
        """
        numbers = units.readable()
        if not all_of_them and all(
            self._format(suffix).types_can_be_sampled for suffix in self.endings(units)
        ):
            count = min(TYPED_UNITS, max(FEWEST_TYPED, len(numbers) // TYPED_SHARE))
            spread = numbers[evenly_spaced(len(numbers), count)].tolist()
            # and the first in every folder: files beside them may say the names of classes
            group_of = self.listing.group[units.file[numbers]]
            folders = self.listing.folder_of_group[group_of]
            firsts = numbers[np.unique(folders, return_index=True)[1]].tolist()
            # Not np.union1d, which at its first call imports numpy.ma: 20 ms.
            chosen = np.array(sorted({*spread, *firsts}), np.int64)
            types = self.types_of(units, chosen, max(1, TYPED_RECORDS // max(1, len(chosen))))
            if types is None or len(types.labels() or ()) <= MOST_SAMPLED_LABELS:
                return types
        return self.types_of(units, numbers)

    def endings(self, units: Units) -> set[str]:
        """Return the endings of the names of the files that have units."""
        wanted = np.zeros(len(self.listing), bool)
        wanted[units.file] = True
        found: set[str] = set()
        first = 0
        for batch in self.listing.table.select(["path", "root"]).to_batches(max_chunksize=ROWS):
            rows = zip(
                batch.to_pylist(), wanted[first : first + batch.num_rows].tolist(), strict=True
            )
            found.update(self._ending(row) for row, is_wanted in rows if is_wanted)
            first += batch.num_rows
        return found

    def encodings(self) -> list[tuple[str, tuple[int, str]]]:
        """Return the encodings that were detected while units were found: in how many files, and
        the path of the first.

        Those of most files come first. Where every file is one record, some are read.
        """
        noted = self._encodings
        if self.listing.whole:
            from shardctl.sources.formats.encodings import DETECTED_BYTES, detect

            chosen = evenly_spaced(len(self.listing), DETECTED_FILES)
            for number, opened in zip(
                chosen, map(self.listing.opened, self.listing.rows_at(chosen)), strict=True
            ):
                with contextlib.suppress(OSError, Rejection):
                    self._note_encoding(detect(begin_of(opened, DETECTED_BYTES)), number)
        names = sorted(noted, key=lambda name: (-noted[name][0], noted[name][1]))
        paths = self.listing.paths_at(np.array([noted[name][1] for name in names], np.int64))
        return [(name, (noted[name][0], path)) for name, path in zip(names, paths, strict=True)]

    def _note_encoding(self, name: str | None, file: int) -> None:
        if name is None:
            return
        count, first = self._encodings.get(name, (0, file))
        self._encodings[name] = count + 1, min(first, file)

    def types_of(self, units: Units, numbers: Numbers, most: int | None = None) -> Types | None:
        """Return the types of some units, given by their numbers, or of the first `most` records of
        each.

        Fields whose declared types do not say it are looked at then. None if no unit can be read:
        `untyped` says why.
        """
        types = self._types_of(units, numbers, most)
        if types is None or not (undecided := types.undecided()):
            return types
        reading = replace(self.reading, looked=tuple(undecided))
        return replace(self, reading=reading)._types_of(units, numbers, most)

    def _types_of(self, units: Units, numbers: Numbers, most: int | None) -> Types | None:
        # The order of fields is that of the first records, then by name: the same whatever else is
        # looked at.
        numbers = np.concatenate([numbers[:1], numbers])
        columns = (units.file, units.offset, units.size, units.first, units.records)
        file, offset, size, first, records = (column[numbers] for column in columns)
        if most is not None:
            np.minimum(records, most, out=records)
        records[:1] = np.minimum(records[:1], FIRST_RECORDS)
        ranges = Units(file, offset, size, first, records, {})
        types: Types | None = None
        leftmost = 0

        def take(start: int, _: PrePlanTask, found: Found) -> None:
            nonlocal types, leftmost
            for number, answer in enumerate(found, start):
                if "fault" in answer and not self.untyped:
                    self.untyped[int(numbers[number])] = Rejection(*answer["fault"])
                elif "types" in answer:
                    these = answer["types"]
                    # types are joined in any order, but for the first of all
                    if types is None:
                        types, leftmost = these, number
                    elif number < leftmost:
                        types, leftmost = these.join(types), number
                    else:
                        types = types.join(these)

        self._examine(ranges, take, typed=True)
        return types

    def _ending(self, row: Json) -> str:
        """Return the ending that tells the format of a file of the listing."""
        return ending_of(row["path"], self.listing.opened(row))

    def _format(self, suffix: str) -> Format:
        return find_format(suffix, self.reading, self.shuffled)

    def ranges(self, units: Units, numbers: Numbers) -> list[ByteRange]:
        """Return units as work on their files, given by their numbers."""
        rows = zip(numbers.tolist(), self.listing.rows_at(units.file[numbers]), strict=True)
        return [self._range(units, number, row, typed=True) for number, row in rows]

    def _examine(
        self, units: Units, take: Callable[[int, PrePlanTask, Found], None], typed: bool
    ) -> None:
        """Have units, whose types are wanted, or pieces of files looked at. `take` gets the number
        of a task's first one, the task and what was found."""
        starts = group(units.size, MOST_RANGES, TYPED_BYTES if typed else PIECE_BYTES)
        look = partial(scan, reading=self.reading, shuffled=self.shuffled)
        begun: dict[int, PrePlanTask] = {}
        looked_at = 0

        def task(number: int) -> PrePlanTask:
            first, end = starts[number : number + 2].tolist()
            rows = zip(range(first, end), self.listing.rows_at(units.file[first:end]), strict=True)
            ranges = tuple(self._range(units, unit, row, typed) for unit, row in rows)
            begun[number] = PrePlanTask(ranges, look)
            return begun[number]

        def on_found(number: int, found: Found) -> None:
            nonlocal looked_at
            take(int(starts[number]), begun.pop(number), found)
            looked_at += len(found)
            self.scanning(looked_at, len(units))

        self.engine.examine(LazySequence(len(starts) - 1, task), on_found)

    def _range(self, units: Units, number: int, row: Json, typed: bool) -> ByteRange:
        """Return a unit as work on its file, by the row of that. Of a piece nothing is known."""
        offset, size = int(units.offset[number]), int(units.size[number])
        unit = (offset, size, 0, int(units.first[number]), int(units.records[number]))
        opened, ending = self.listing.opened(row), self._ending(row)
        return ByteRange(opened, ending, offset, size, unit if typed else None, row["mtime_ns"])

    def _joined(self, suffix: str, size: int, answers: list[Json]) -> list[Cut] | None:
        """Return the units of one file; None if it must be scanned as one piece."""
        fault = next((answer["fault"] for answer in answers if "fault" in answer), None)
        if fault is not None:
            return [Cut(0, size, 1, Rejection(*fault))]
        try:
            return self._format(suffix).join([answer["scan"] for answer in answers], size)
        except Rejection as rejection:
            return [Cut(0, size, 1, rejection)]


def _pieces(file: Numbers, offset: Numbers, size: Numbers) -> Units:
    """Return pieces of files: nothing is known of their records."""
    unknown = np.broadcast_to(np.int64(0), len(file))
    return Units(file, offset, size, unknown, unknown, {})


# --- what the sources hold: the kind of the samples, and whether images are in tables ---


LOOKED_AT = 64
"""Records of the first table that are looked at where it does not say the types of its columns."""


def settle_kind(
    given: Mapping[str, Any], walked: Walked, engine: Engine, labels: LabelRule
) -> tuple[Json, list[str]]:
    """Return the recipe as given, with what the sources decide, and notices. Raises InputError,
    UsageError.

    That is the kind where it is not given, and for images that come from tables `image_field`.
    Tables are sources of images where no file is an image, or where a field of them is named.
    Options that only tables have choose tables, but for labels files of images. Of tars it is also
    where keys and labels are.
    """
    for root in walked.roots:
        path = Path(root.text)
        if (path / MANIFEST).exists() and (path / GENERATIONS).exists():
            raise InputError(notice("a-dataset-already", sources=printable(root.text)))
    recipe = dict(given)
    notices = _settle_export(recipe, walked)
    is_open = recipe.get("kind") in (None, "auto")
    are_members = (
        not notices
        and recipe.get("kind") != "table"
        and not recipe.get("fields")
        and not recipe.get("schema")
    )
    draft, field = Recipe.draft(recipe), recipe.get("image_field")
    reading = draft.record_reading
    if is_open:
        recipe["kind"] = _kind_of(walked, reading, field, labels)
    elif (
        recipe["kind"] == "image"
        and field is None
        and (reading.format or _has_only_tables(walked, reading))
    ):
        recipe["image_field"] = draft.image_source or AUTO
    if not (is_open or are_members) or (
        recipe["kind"] != "table" and recipe.get("image_field") is None
    ):
        return recipe, notices
    types = _first_types(walked, reading, engine)
    if types is not None and not types.fields and len(walked) == 1:
        raise InputError(why_nothing(walked.roots, "table", Counter()))
    if is_open and recipe["kind"] == "table" and field is None:
        chosen = draft.image_source
        column = chosen or (None if types is None else without_doubt(types.found()))
        if column is not None:
            recipe |= {"kind": "image", "image_field": column}
        if column is not None and chosen is None:
            notices.append(
                f"the images are in the column {printable(column)}; --kind table keeps its values"
            )
    if are_members and types is not None:
        _settle_members(recipe, labels.mode, types)
    return recipe, notices


def _settle_members(recipe: Json, labels: str, types: Types) -> None:
    """Have the keys and the labels of tars be those that WebDataset names, or the folders of
    images, as on a disk."""
    from shardctl.sources.formats.webdataset import KEY  # only tars need it

    names = types.found().names
    if FOLDER not in names:
        return
    recipe |= {"key_field": KEY} if recipe.get("key_field") is None else {}
    if recipe.get("label_field") is not None or LABEL in names:
        return
    if labels == "auto" and "cls" in names:
        recipe["label_field"] = "cls"
    elif labels == "folder" or (labels == "auto" and {*(types.labels() or ())} - {"."}):
        recipe["label_field"] = FOLDER


def _settle_export(recipe: Json, walked: Walked) -> list[str]:
    """Have the keys, the kind and the image of an export be those of its dataset, where nothing
    else is wanted."""
    if not any(may_be_of_export(root.folder) for root in walked.roots):
        return []
    file = first_table(walked, Recipe.draft(recipe).record_reading)
    export = None if file is None else described(file.opened)
    if (
        export is None
        or export.to not in (*RESTORED, "parquet")
        or recipe.get("key_field")
        or recipe.get("fields")
    ):
        return []
    if export.to in RESTORED:
        recipe["key_field"] = "key"
    elif any(field.written != field.name for field in export.fields):
        recipe["fields"] = ",".join(f"{field.name}={field.written}" for field in export.fields)
    else:
        recipe["key_field"] = export.key
    if recipe.get("kind") in (None, "auto"):
        roles = export.layout.roles
        # a mask without its image
        main = None if isinstance(roles.get(roles.main_image or ""), Mask) else roles.main_image
        recipe["kind"] = (
            "table" if export.layout.kind == "image" and main is None else export.layout.kind
        )
        if recipe["kind"] == "image" and recipe.get("image_field") is None:
            recipe["image_field"] = next(
                name_in_records(f, export) for f in export.fields if f.name == main
            )
    return [
        "the sources are an export of shardctl: keys, classes and splits are those of its "
        "dataset (shardctl.json)"
    ]


def _kind_of(walked: Walked, reading: Reading, image_field: str | None, labels: LabelRule) -> str:
    if image_field not in (None, NO_IMAGES):
        return "image"
    if reading.format:
        return "table"
    table = None
    of_tables = bool(reading.columns) or (
        reading.delimiter is not None and _has_only_tables(walked, reading)
    )
    if of_tables or (reading.delimiter is not None and not labels.files):
        table = first_table(walked, reading, of_labels=of_tables)
    if table is not None:
        if (
            reading.columns
            and without_compression(ending_of(table.path, table.opened)) not in DELIMITED_SUFFIXES
        ):
            raise UsageError(
                f"--columns is for CSV files without a header, and {printable(table.path)} is "
                "none; --fields A,B keeps some fields"
            )
        return "table"
    return detect_kind(walked, reading)


def _has_only_tables(walked: Walked, reading: Reading) -> bool:
    """Return whether there are tables, and no file that may be an image."""
    may_be_images = walked.of_kind(KINDS["image"], reading, (Form.ONE, Form.MANY, Form.UNKNOWN))
    return next(may_be_images, None) is None and first_table(walked, reading) is not None


def _first_types(walked: Walked, reading: Reading, engine: Engine) -> Types | None:
    """Return the types of the first table, and the folders of the first members of a tar; None for
    a table of text."""
    file = first_table(walked, reading)
    if file is None or file.fault is not None:
        return None
    ending = ending_of(file.path, file.opened)
    if without_compression(ending) not in BINARY_SUFFIXES:
        return None
    # Its types are looked at where all files are: one of them may end the process. Of labels, only
    # folders need be read.
    unit = (
        0,
        file.size,
        0,
        1,
        LOOKED_AT if without_compression(ending) in UNDECLARED_SUFFIXES else 0,
    )
    look = partial(scan, reading=Reading(label=FOLDER, image=AUTO), shuffled=False)
    task = PrePlanTask([ByteRange(file.opened, ending, 0, file.size, unit)], look)
    answers: list[Any] = []
    engine.examine([task], lambda _, found: answers.extend(found))
    types: Types | None = answers[0].get("types")
    return types


def detect_kind(walked: Walked, reading: Reading) -> str:
    """Return the name of the first kind of which there is an input. Raises InputError if
    there is none of any."""
    sidecars, ignored = LeftOut(), Counter[str]()
    for kind in KINDS.values():
        for file in walked.of_kind(kind, reading, (Form.ONE, Form.MANY)):
            if not is_labels_file(file) and file.name.lower() != "readme.md":
                return kind.name
            if kind.name == "table" or not is_labels_file(file):  # which two kinds may take
                sidecars.add(file.path)
                ignored[file.suffix] -= 1
    # files that cannot be read decide only where no other file does
    for kind in KINDS.values():
        if next(walked.of_kind(kind, reading, (Form.UNKNOWN,)), None) is not None:
            return kind.name
    shown = [root.text for root in walked.roots]
    counts = np.bincount(walked.suffix, minlength=len(walked.suffixes)).tolist()
    ignored.update(
        {suffix or "no suffix": n for suffix, n in zip(walked.suffixes, counts, strict=True)}
    )
    ignored = +ignored  # those of which there are some
    if sidecars.count and not ignored:
        found = sidecars.counted("labels file", "labels files")
        raise InputError(f"{some(shown)}: holds only {found}; --kind table converts such files")
    raise InputError(why_nothing(walked.roots, " and no ".join(KINDS), ignored))


def first_table(walked: Walked, reading: Reading, of_labels: bool = True) -> FoundFile | None:
    """Return the first table, or None. Without `of_labels`, no labels file is."""
    tables = walked.of_kind(KINDS["table"], reading, (Form.MANY,))
    return next((each for each in tables if of_labels or not is_labels_file(each)), None)
