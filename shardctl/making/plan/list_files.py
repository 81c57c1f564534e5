"""The inputs among the files of a walk, with the labels files and annotations that are about them."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import Array, Bools, Numbers, column_of, numbers_of, table_rows
from shardctl.format.tables import FILE_FIELDS
from shardctl.making.notices import notice
from shardctl.making.plan.listing import LabelRule, Listing
from shardctl.sources import label_table
from shardctl.sources.annotations import PathTable, hint_of_format, read_annotations
from shardctl.sources.annotations.inputs import split_of_list, told_by_lists
from shardctl.sources.annotations.objects import OBJECTS, named_category, said_of_annotations
from shardctl.sources.annotations.unused import (
    Images,
    refuse_nested_records,
    warnings_of_unused,
)
from shardctl.sources.files import SourceRoot, resolved
from shardctl.sources.format_table import TABLE_SUFFIXES
from shardctl.sources.formats import Reading, without_compression
from shardctl.sources.kinds import Form, SampleKind
from shardctl.sources.label_table import LABEL_COLUMN, LabelTable, said_of_names
from shardctl.sources.sidecars import refuse_part_of_export
from shardctl.sources.walk import UNREACHABLE, FoundFile, LeftOut, is_hidden
from shardctl.sources.walked import (
    CHUNK_ROWS,
    LISTED_SCHEMA,
    WALKED_SCHEMA,
    Forms,
    Walked,
    roots_and_paths,
    walk_sources,
    write_scratch,
)
from shardctl.system.locations import join, name_of, parent_of, path_below
from shardctl.system.text import counted, first_repeated, printable, some

WALKED = "walked.arrow"

LABELS_FILES = label_table.LABELS_FILE_NAMES


class Appending:
    """Sources of which the inputs are added to a dataset, without a look at those that it has: its
    `files`, with their times of change (files,) int64, which are all one record each, or all many
    (`whole`). Raises InputError for sources whose labels are in files.

    `sources` are those of the dataset afterwards: those that it has, and the given ones that are in
    none of these.
    """

    def __init__(
        self,
        files: pa.Table,
        mtime_ns: Numbers,
        whole: bool,
        sources: Sequence[str],
        given: Sequence[SourceRoot],
        rule: LabelRule,
    ) -> None:
        if rule.mode == "file" or rule.annotations or "columns" in files.column_names:
            raise InputError(notice("append-with-labels"))
        unread = [pa.nulls(len(files), pa.string())] * 2
        known = files.select([name for name, _ in FILE_FIELDS]).columns
        self._known = pa.table([*known, column_of(mtime_ns), *unread], schema=LISTED_SCHEMA)
        self._whole, self.sources, self._before = whole, list(sources), len(sources)
        self._lies: list[tuple[int, str, bool]] = []
        """The source that each given one lies in, by its number, its path below that, "" for all of
        it, and whether it is a folder."""
        for root in given:
            lies = ((n, path_below(root.recorded, each)) for n, each in enumerate(self.sources))
            new = (len(self.sources), "")
            found, below = next(((n, path) for n, path in lies if path is not None), new)
            if found == len(self.sources):
                self.sources.append(root.recorded)
            if any(map(is_hidden, filter(None, below.split("/")))):
                hidden, source = printable(root.text), printable(self.sources[found])
                raise InputError(notice("append-hidden", given=hidden, source=source))
            self._lies.append((found, below, root.is_folder))

    def joined(self, new: Listing, scratch: Path) -> Listing:
        """Return a listing of the known files and the new ones, each once, in the order of a walk;
        its table is written into the folder `scratch`. Raises InputError."""
        if len(new) and new.whole != self._whole:
            one, other = (table["path"][0].as_py() for table in (new.table, self._known))
            raise _mixed(one, other, new.whole)
        both = pa.concat_tables([self._known, self._placed(new.table)])
        order, known = array("q"), len(self._known)
        runs = [*_folder_runs(both.slice(0, known), 0), *_folder_runs(both.slice(known), known)]
        for _, of_folder in groupby(sorted(runs), key=itemgetter(0)):
            parts = [np.arange(start, end) for _, start, end in of_folder]
            rows = np.concatenate(parts)
            # files that were given one by one are in any order
            is_sorted = len(parts) == 1 and (rows[0] < known or len(self._lies) == 1)
            order.frombytes((rows if is_sorted else self._merged(both, rows)).tobytes())
        rows = np.frombuffer(order, np.int64)
        table = write_scratch(scratch / "joined.arrow", LISTED_SCHEMA, _taken(both, rows))
        beside = [self._beside(file) for file in new.beside]
        lists = [self._beside(file) for file in new.lists]
        roots = tuple(map(SourceRoot, self.sources))  # some may be gone
        return replace(new, roots=roots, table=table, whole=self._whole, beside=beside, lists=lists)

    def _place(self, given: int, path: str) -> tuple[int, str]:
        """Return the source of the dataset that has a file of a given one, and its path there."""
        root, below, is_folder = self._lies[given]
        return root, f"{below}/{path}" if below and is_folder else below or path

    def _beside(self, file: FoundFile) -> FoundFile:
        root, path = self._place(file.root, file.path)
        return file._replace(root=root, path=path)

    def refuse_idle(self, walked: Walked, new: Listing, rule: LabelRule) -> None:
        """Raise InputError for a source that the dataset does not have and that gives nothing."""
        for number in idle_roots(len(walked.roots), numbers_of(new.table["root"])):
            if self._lies[number][0] >= self._before:
                _refuse_without_inputs(walked, number, rule, new.kind.name)

    def _placed(self, table: pa.Table) -> pa.Table:
        """Return listed files by their paths in the sources of the dataset."""
        batches = []
        for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
            places = list(map(self._place, batch["root"].to_pylist(), batch["path"].to_pylist()))
            roots = pa.array([root for root, _ in places], pa.int32())
            paths = [path for _, path in places]
            others = (batch[name] for name in LISTED_SCHEMA.names[2:])
            columns = [pa.array(paths, pa.string()), roots, *others]
            batches.append(pa.record_batch(columns, schema=LISTED_SCHEMA))
        return pa.Table.from_batches(batches, LISTED_SCHEMA)

    def _merged(self, table: pa.Table, rows: Numbers) -> Numbers:
        """Return rows of the files of one folder by their names, each file once."""
        files = table.take(pa.array(rows))
        names = files["path"].to_pylist()
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        states = np.stack([numbers_of(files[name])[order] for name in ("size", "mtime_ns")])
        again = np.array([False, *(names[n] == names[m] for n, m in pairwise(order.tolist()))])
        others = again[1:] & (np.diff(states) != 0).any(axis=0)
        if others.any():
            place = int(order[1:][others][0])
            opened = join(self.sources[files["root"][place].as_py()], names[place])
            raise InputError(notice("append-changed", file=printable(opened)))
        merged: Numbers = rows[order[~again]]
        return merged


def _folder_runs(table: pa.Table, first: int) -> Iterator[tuple[tuple[int, list[str]], int, int]]:
    """Yield files of one folder that follow each other in a table: the place of the folder in a
    walk, the first row, counted from `first` on, and the one after the last."""
    places = ((root, path.rpartition("/")[0]) for root, path in roots_and_paths(table))
    for (root, folder), run in groupby(places):
        end = first + sum(1 for _ in run)
        yield (root, folder.split("/") if folder else []), first, end
        first = end


def _taken(table: pa.Table, rows: Numbers) -> Iterator[pa.RecordBatch]:
    """Yield rows of a table in any order, in batches. Neighbours are mostly neighbours there."""
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        order = np.argsort(chunk)
        found = table_rows(table, chunk[order]).combine_chunks()
        yield from found.take(pa.array(np.argsort(order))).to_batches()


def _mixed(one: str, other: str, whole: bool) -> InputError:
    """Return why files of one record each (`whole`), and of many, are refused together."""
    many, single = (other, one) if whole else (one, other)
    return InputError(notice("mixed-files", many=printable(many), one=printable(single)))


def list_files(
    walked: Walked,
    kind: SampleKind,
    reading: Reading,
    rule: LabelRule,
    scratch: Path,
) -> Listing:
    """Return the list of the inputs among the files of a walk; there may be none. `scratch` is a
    folder for it. Raises InputError."""
    for root in walked.roots:
        if root.is_folder:
            refuse_part_of_export(root.text)
    listing = Listing(walked.table, kind, walked.roots)
    listing.notices, listing.beside = list(walked.notices), list(walked.beside)
    forms, masked = walked.forms(kind, reading), _masks_among(walked, rule)
    unreachable = _look_closer(walked, listing, reading, rule, masked, forms)
    forms[masked] = Form.NOTHING
    rows = np.flatnonzero(forms)  # Form.NOTHING is 0
    is_one, is_many = forms == Form.ONE, forms == Form.MANY
    if is_one.any() and is_many.any():
        one, many = (walked.table["path"][int(np.argmax(each))] for each in (is_one, is_many))
        raise _mixed(one.as_py(), many.as_py(), True)
    listing.whole = not is_many.any()
    if len(rows) < len(walked):
        chunks = (rows[start : start + CHUNK_ROWS] for start in range(0, len(rows), CHUNK_ROWS))
        taken = (each for chunk in chunks for each in table_rows(walked.table, chunk).to_batches())
        listing.table = write_scratch(scratch / "listed.arrow", WALKED_SCHEMA, taken)
    of_suffix = listing.ignored.items()
    tables = sum(count for name, count in of_suffix if without_compression(name) in TABLE_SUFFIXES)
    if kind.name == "text" and tables:
        listing.note("tables-left-out", files=counted(tables, "table"))
    if unreachable.count:
        files = unreachable.counted("file or folder", "files and folders")
        listing.note("unreachable", files=files)
    if rule.files:
        listing.side_files = [_explicit_side_file(file, walked.roots) for file in rule.files]
    if not rule.annotations:
        _take_lists(listing)
    return listing


def check_listing(listing: Listing, walked: Walked, reading: Reading, rule: LabelRule) -> None:
    """Refuse sources that give nothing, and warn of files beside images that nothing uses. Raises
    InputError."""
    wanted_kind = "table" if reading.image else listing.kind.name
    if not len(listing):
        if reading.format:
            sources = some([root.text for root in walked.roots])
            raise InputError(notice("none-of-the-format", sources=sources, format=reading.format))
        if {resolved(root.text) for root in walked.roots} <= {*map(resolved, rule.files)}:
            raise InputError(notice("labels-as-source", files=some(rule.files)))
        raise InputError(why_nothing(walked.roots, wanted_kind, listing.ignored))
    for number in idle_roots(len(walked.roots), numbers_of(listing.table["root"])):
        _refuse_without_inputs(walked, number, rule, wanted_kind)
    _tell_of_unused(listing, rule, walked)


def refuse_repeated(listing: Listing) -> None:
    """Raise InputError where two files have the same path. With one source, only names that are no
    UTF-8 may."""
    if len(listing.roots) == 1 and listing.table["error"].null_count == len(listing):
        return
    repeated, few = label_table.repeated(listing.hashes, listing.paths_at)
    if repeated:
        keys = counted(repeated, "key appears", "keys appear")
        raise InputError(notice("same-paths", keys=keys, names=some(few)))


def _look_closer(
    walked: Walked,
    listing: Listing,
    reading: Reading,
    rule: LabelRule,
    masked: Bools,
    forms: Forms,
) -> LeftOut:
    """Look at the files whose names do not say that they are inputs, and at labels files.

    `forms` (n,) gets what each is. The listing gets those that are no inputs. Return those of which
    it is not known what they are.
    """
    kind, unreachable = listing.kind, LeftOut()
    explicit = {resolved(given) for given in rule.files}
    names = tuple(map(name_of, explicit))
    takes_labels_files = rule.mode == "auto" and kind.takes_labels_files and reading.image is None
    is_other = (forms == Form.NOTHING) | (forms == Form.UNNAMED)
    is_other |= walked.are_called(names + (LABELS_FILES if takes_labels_files else ()))
    rows = np.flatnonzero(is_other & ~masked)
    for row, file in zip(rows.tolist(), walked.files(rows), strict=True):
        form = Form(forms[row])
        if form is Form.UNNAMED:
            # One that cannot be read might be an input: better a reject than nothing.
            form = kind.seen(file, reading)
        if takes_labels_files and is_labels_file(file):
            listing.side_files.append((file.opened, file.folder))
            form = Form.NOTHING
        elif explicit and file.path.endswith(names) and resolved(file.opened) in explicit:
            form = Form.NOTHING
        elif form is Form.NOTHING:
            listing.ignored[file.suffix or "no suffix"] += 1
            listing.unused.add(file)
            if kind.name == "image" and split_of_list(file.path) is not None:
                listing.lists.append(file)
            if file.fault and file.fault.error == UNREACHABLE:
                unreachable.add(file.opened)
        forms[row] = form
    return unreachable


def _masks_among(walked: Walked, rule: LabelRule) -> Bools:
    """Return which files are masks, (n,): these are images, and no inputs. A folder of masks has
    nothing else, unless the masks are told by the ends of their names, or lie beside their
    images."""
    found = np.zeros(len(walked), bool)
    if all(source.format != "masks" for source in rule.annotations):
        return found
    from shardctl.sources.annotations.masks import SUFFIX, is_mask  # most conversions have no masks

    given = [
        (resolved(source.path), dict(source.options).get(SUFFIX, ""))
        for source in rule.annotations
        if source.format == "masks"
    ]
    masks = [
        (number, f"{at}/" if at else "", end)
        for folder, end in given
        for number, root in enumerate(walked.roots)
        if root.is_folder and (at := path_below(folder, root.base)) is not None
    ]
    for row, (root, path) in enumerate(roots_and_paths(walked.table)):
        below = [(at, end) for n, at, end in masks if n == root and path.startswith(at)]
        found[row] = any((at and not end) or is_mask(path, end) for at, end in below)
    return found


def list_sources(
    roots: Sequence[SourceRoot], kind: SampleKind, reading: Reading, rule: LabelRule, scratch: Path
) -> Listing:
    """Walk the sources, list the inputs, and read their labels. `scratch` is a folder for it."""
    walked = walk_sources(roots, scratch / WALKED, lambda _: None)
    listing = list_files(walked, kind, reading, rule, scratch)
    check_listing(listing, walked, reading, rule)
    refuse_repeated(listing)
    read_labels(listing, rule, reading, scratch)
    return listing


def read_labels(listing: Listing, rule: LabelRule, reading: Reading, scratch: Path) -> None:
    """Read what labels files, annotations and lists of splits say of the inputs. `scratch` is a
    folder for it. Raises InputError, UsageError."""
    begun, said_before = time.time(), len(listing.notices)
    if listing.side_files:
        _read_labels_files(listing, rule, reading)
    if rule.annotations:
        _annotate(listing, rule, scratch)
    told = (each.splits for each in listing.annotations if each.splits is not None)
    listing.told = next(told, None)
    if listing.told is None and all(each.format != "imagenet" for each in rule.annotations):
        if rule.annotations:
            _take_lists(listing)
        listing.told = told_by_lists([file.opened for file in listing.lists])
    if listing.annotations:
        # it reads images, and most conversions have no annotations
        from shardctl.sources.annotations.finishing import settled

        frame, found_all = rule.annotation_rule.frame, listing.annotations
        listing.annotations = [settled(each, frame, listing.places_of) for each in found_all]
    listing.notices += said_of_annotations(listing.annotations, len(listing))
    listing.notices += [said for each in listing.annotations for said in each.notices]
    listing.note_label_states(begun, listing.notices[said_before:])


def _take_lists(listing: Listing) -> None:
    """Have lists of splits, val.txt, count among the files that decide what is read of others."""
    if listing.whole:
        listing.beside += listing.lists
    else:
        listing.lists.clear()


def _tell_of_unused(listing: Listing, rule: LabelRule, walked: Walked) -> None:
    """Warn of files beside images that look like annotations, and that nothing uses. Raises
    InputError."""
    if listing.kind.name != "image" or not listing.whole or rule.mode != "auto" or rule.annotations:
        return
    folder = numbers_of(listing.table["folder"])
    firsts = np.flatnonzero(np.diff(folder, prepend=-1))
    of_folders: dict[str, int] = {}
    for number, row in zip(folder[firsts].tolist(), firsts.tolist(), strict=True):
        of_folders.setdefault(walked.folders[number][0], row)
    images = Images(walked.roots, of_folders, listing.table)
    refuse_nested_records(chain.from_iterable(listing.unused.places.values()), images)
    listing.warnings += warnings_of_unused(listing.unused, images)


def _read_labels_files(listing: Listing, rule: LabelRule, reading: Reading) -> None:
    """Read the labels files. Raises InputError, and UsageError where objects are not of images."""
    try:
        # of records, these are fields
        of_files = reading if listing.whole else replace(reading, label=LABEL_COLUMN, key=None)
        side = label_table.load(listing.side_files, rule.drop, of_files, rule.like)
    except InputError as error:
        hint = hint_of_format(rule.files[0]) if rule.files else ""
        if hint:
            raise InputError(f"{error}; {hint}") from None
        raise
    listing.side, listing.side_rows = side, _rows_of_labels(listing, side, rule)
    listing.notices += side.notices
    of_images = listing.kind.name == "image"
    if of_images and listing.whole:
        # few inputs have a labels file
        from shardctl.sources.annotations.huggingface import take_objects, without_category

        if (category := named_category(side.columns.schema)) is not None:
            column, names = side.columns[OBJECTS], side.named.pop(f"{OBJECTS}.{category}", None)
            listing.side = side.without(OBJECTS)
            boxes = rule.annotation_rule
            taken = take_objects(column, listing.side_rows, boxes, side.shown, category, names)
            listing.annotations.append(taken)
        listing.notices += without_category(side.columns.schema, side.shown)
    listing.notices += said_of_names(listing.side.named)
    if of_images and not listing.whole and OBJECTS in listing.side.columns.column_names:
        raise _about_files(f"{listing.side.shown}: {OBJECTS}", listing)


def _about_files(what: str, listing: Listing) -> UsageError:
    """Return why annotations are refused beside inputs that are records."""
    inputs = "images in tables, or frames" if listing.kind.name == "image" else listing.kind.name
    return UsageError(notice("about-files", what=what, inputs=inputs))


def _annotate(listing: Listing, rule: LabelRule, scratch: Path) -> None:
    """Read the annotations. `scratch` is a folder for them. Raises InputError, and UsageError where the inputs are no images."""
    if listing.kind.name != "image" or not listing.whole:
        raise _about_files(f"--labels {rule.annotations[0]}", listing)
    inputs = PathTable(tuple(listing.roots), listing.table)
    listing.annotations += read_annotations(rule.annotations, inputs, rule.annotation_rule, scratch)
    columns = listing.side.columns.column_names if listing.side else []
    names = [*columns, *(f.name for each in listing.annotations for f in each.fields)]
    twice = first_repeated([*names, *([LABEL_COLUMN] if rule.mode == "folder" else [])])
    if twice is not None:
        raise UsageError(notice("annotated-twice", name=twice))


def is_labels_file(file: FoundFile) -> bool:
    """Return whether a file is a labels file by its name."""
    return file.name in LABELS_FILES


def _explicit_side_file(file: str, roots: Sequence[SourceRoot]) -> tuple[str, str]:
    """Return the labels file and the folder, relative to its source, that its names start from."""
    home = parent_of(resolved(file))
    below = (path_below(home, root.base) for root in roots if root.is_folder)
    return file, next(filter(None, below), "")


def why_nothing(roots: Sequence[SourceRoot], kind: str, ignored: Counter[str]) -> str:
    """Say why there is nothing to convert: no file, only empty ones, only `ignored` ones."""
    shown, is_file = some([root.text for root in roots]), len(roots) == 1 and not roots[0].is_folder
    if not ignored:
        return notice("no-records" if is_file else "no-files", sources=shown)
    held = ", ".join(f"{count:,} {printable(suffix)}" for suffix, count in ignored.most_common(4))
    among = "" if is_file else f" among its {counted(ignored.total(), 'file')} ({held})"
    suffix, which = ignored.most_common(1)[0][0], "no-inputs"
    if without_compression(suffix) in TABLE_SUFFIXES and kind in ("image", "text"):
        which = "tables-alone"
    elif suffix in (".zip", ".rar", ".7z"):
        which = "archives-alone"
    elif suffix in (".xlsx", ".xls", ".pkl", ".pickle", ".pt", ".mat", ".rds"):
        which = "objects-alone"
    return notice(which, sources=shown, kind=kind, among=among)


def idle_roots(count: int, used: Array) -> list[int]:
    """Return which of so many sources are not among the `used` ones."""
    return [number for number, times in enumerate(np.bincount(used, minlength=count)) if not times]


def refuse_idle(root: SourceRoot, kind: str, ignored: Counter[str]) -> NoReturn:
    """Raise InputError for a source that gives nothing beside others."""
    raise InputError(notice("idle-source", why=why_nothing([root], kind, ignored)))


def _refuse_without_inputs(walked: Walked, number: int, rule: LabelRule, kind: str) -> None:
    """Raise InputError for a source without inputs, but for one that has labels, or what describes
    files of others."""
    ignored: Counter[str] = Counter()
    explicit = set(map(resolved, rule.files))
    for file in walked.files(np.flatnonzero(numbers_of(walked.table["root"]) == number)):
        if (
            is_labels_file(file)
            or split_of_list(file.opened) is not None
            or resolved(file.opened) in explicit
        ):
            return
        ignored[file.suffix or "no suffix"] += 1
    if ignored or not walked.seen[number]:
        refuse_idle(walked.roots[number], kind, ignored)


def _rows_of_labels(listing: Listing, side: LabelTable, rule: LabelRule) -> Numbers:
    """Return each input's row of the labels files, -1 for none. Raises InputError if rows or inputs
    do not match."""
    found = PathTable(tuple(listing.roots), listing.table).by_path.find(
        side.names, side.shown, zip(side.files, map(len, side.names.chunks), strict=True)
    )
    rows, used = np.full(len(listing), -1, np.int64), found >= 0
    rows[found[used]] = np.flatnonzero(used)
    unnamed, unused = np.flatnonzero(rows < 0), np.flatnonzero(~used)
    if len(unused):
        names = some(side.names.take(pa.array(unused[:100])).to_pylist())
        total, shown = counted(len(side), "row"), side.shown
        what = notice("no-input-for", files=shown, count=len(unused), rows=total, names=names)
        if not used.any():
            inputs = some(listing.paths_at(np.arange(len(listing))[:3]))
            raise InputError(notice("no-row-of-an-input", what=what, inputs=inputs))
        if not rule.lenient:
            raise InputError(notice("rows-refused", what=what))
        listing.note("rows-skipped", what=what)
    if len(unnamed):
        inputs, names = counted(len(listing), "input"), some(listing.paths_at(unnamed[:100]))
        values = {"files": side.shown, "count": len(unnamed), "inputs": inputs, "names": names}
        if not rule.lenient:
            raise InputError(notice("no-row-for", **values))
        listing.note("inputs-without-row", **values)
    return rows
