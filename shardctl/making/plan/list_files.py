"""One walk over the sources: the inputs, with the labels files and annotations that are about them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import Array, Numbers, column_of, hash_names, numbers_of
from shardctl.format.names import MANIFEST
from shardctl.format.tables import open_table
from shardctl.making.plan.listing import CHUNK_ROWS, LISTING_SCHEMA, Group, LabelRule, Listing
from shardctl.making.plan.plan import why_unread
from shardctl.sources import label_table
from shardctl.sources.annotations import PathTable, hint_of_format, read_annotations
from shardctl.sources.annotations.huggingface import named_category, take_objects, without_category
from shardctl.sources.annotations.inputs import split_of_list, told_by_lists
from shardctl.sources.annotations.objects import OBJECTS, said_of_annotations
from shardctl.sources.annotations.unused import (
    Images,
    Unused,
    refuse_nested_records,
    warnings_of_unused,
)
from shardctl.sources.files import SourceRoot, begins_ahead, resolved
from shardctl.sources.format_table import TABLE_SUFFIXES
from shardctl.sources.formats import Reading, without_compression
from shardctl.sources.kinds import Form, SampleKind, is_unnamed
from shardctl.sources.label_table import LabelTable, said_of_names
from shardctl.sources.sidecars import SplitOf, declared_splits, inputs_among, refuse_part_of_export
from shardctl.sources.splits import may_name_a_split
from shardctl.sources.walk import (
    UNREACHABLE,
    FoundFile,
    LeftOut,
    is_hidden,
    order_in_walk,
    suffix_of,
    walk,
)
from shardctl.system.files import naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_stored, name_of, parent_of, path_below, within
from shardctl.system.machine import collector_waits
from shardctl.system.text import counted, first_repeated, printable, some

SIDECAR_SUFFIXES = frozenset(name[name.rfind(".") :] for name in label_table.LABELS_FILE_NAMES)


class Appending:
    """Sources of which the inputs are added to a dataset, without a look at those that it has: its
    `files`, with their times of change (files,) int64, all inputs of one `form`. Raises InputError
    for sources whose labels are in files.

    `sources` are those of the dataset afterwards: those that it has, and the given ones that are in
    none of these.
    """

    def __init__(
        self,
        files: pa.Table,
        mtime_ns: Numbers,
        form: Form,
        sources: Sequence[str],
        given: Sequence[SourceRoot],
        rule: LabelRule,
    ) -> None:
        self._files, self._mtime_ns, self._form = files, mtime_ns, form
        if rule.mode == "file" or rule.annotations or "columns" in files.column_names:
            raise InputError(
                "--append cannot tell what labels files and annotations say of earlier inputs; "
                "use --update"
            )
        self.sources = list(sources)
        self._given: list[tuple[int, str, SourceRoot]] = []
        """Each with the number of the source that it lies in, and the path below that, "" for all
        of it."""
        for root in given:
            lies = ((n, path_below(root.recorded, each)) for n, each in enumerate(self.sources))
            new = (len(self.sources), "")
            found, below = next(((n, path) for n, path in lies if path is not None), new)
            if found == len(self.sources):
                self.sources.append(root.recorded)
            if any(map(is_hidden, filter(None, below.split("/")))):
                raise InputError(
                    f"{printable(root.text)}: is in a hidden folder of "
                    f"{printable(self.sources[found])}; rename it"
                )
            self._given.append((found, below, root))

    def _known(self) -> Iterator[tuple[Form, FoundFile]]:
        """Yield the files of the dataset, in the order of a walk."""
        first, begins = 0, list(map(within, self.sources))
        for batch in self._files.to_batches(max_chunksize=CHUNK_ROWS):
            columns = (batch.column(name).to_pylist() for name in ("path", "root", "size"))
            times = self._mtime_ns[first : first + len(batch)].tolist()
            for path, root, size, time_ns in zip(*columns, times, strict=True):
                folder, _, name = path.rpartition("/")
                opened, suffix = f"{begins[root]}{path}", suffix_of(name)
                yield (
                    self._form,
                    FoundFile(root, path, opened, folder, suffix, size, time_ns, None),
                )
            first += len(batch)

    def walk(self, notice: Callable[[str], None]) -> Iterator[FoundFile]:
        """Yield the files in the given sources, by their paths in the sources of the dataset, in
        the order of these."""
        for number, below, root in sorted(self._given, key=lambda each: each[:2]):
            for file in walk([root], notice):
                if not root.is_folder and below:
                    folder, path = below.rpartition("/")[0], below
                else:
                    folder = "/".join(part for part in (below, file.folder) if part)
                    path = f"{below}/{file.path}" if below else file.path
                yield file._replace(root=number, path=path, folder=folder)

    def joined(self, wanted: Iterator[tuple[Form, FoundFile]]) -> Iterator[tuple[Form, FoundFile]]:
        """Yield the known files and the wanted ones of the walk, each once, in the order of a walk.
        Raises InputError."""
        last: FoundFile | None = None
        merged = heapq.merge(self._known(), wanted, key=lambda each: order_in_walk(each[1]))
        for form, file in merged:
            if last is None or (last.root, last.path) != (file.root, file.path):
                yield form, file
            elif (last.size, last.mtime_ns) != (file.size, file.mtime_ns):
                raise InputError(
                    f"{printable(file.opened)}: has changed, and --append only adds; use --update"
                )
            last = file


@dataclass
class Others:
    """What a walk finds that is no input: the labels files, with the folders that their names begin
    from; `lists` that may name the images of splits; `unused` ones, which may be annotations.
    `ignored` counts them, and `unreachable` those of which it is not known what they are."""

    side_files: list[tuple[str, str]] = field(default_factory=list)
    lists: list[FoundFile] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    unreachable: LeftOut = field(default_factory=LeftOut)
    unused: Unused = field(default_factory=Unused)


def list_files(
    roots: Sequence[SourceRoot],
    kind: SampleKind,
    reading: Reading,
    rule: LabelRule,
    path: Path,
    found: Callable[[int], None],
    known: Appending | None = None,
) -> Listing:
    """Walk the sources and write a row per file to `path`; `found` is called with the number of
    files now and then.

    Where files are `known`, no others are walked but those that it gives. Raises InputError:
    nothing to convert, repeated paths, labels that do not match the files.
    """
    notices, others = list[str](), Others()
    groups: dict[Group, int] = {}
    forms: dict[Form, str] = {}
    beside: list[FoundFile] = []
    for root in roots:
        if root.is_folder:
            refuse_part_of_export(root.text)
    found_files = walked(roots, notices.append) if known is None else known.walk(notices.append)
    files = inputs_among(found_files, notices.append, beside)
    if any(source.format == "masks" for source in rule.annotations):
        files = _without_masks(files, rule, roots)
    wanted = wanted_files(files, kind, reading, rule, others)
    if known is not None:
        wanted = known.joined(wanted)
    # A scratch file: it need not outlive the process, so it is neither synced nor renamed.
    with (
        naming_the_path(path),
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, LISTING_SCHEMA) as writer,
    ):
        count, split_of = 0, declared_splits()
        # it would look at all files of a chunk again and again: 1.2 of 8 microseconds for each
        with collector_waits():
            while chunk := list(islice(wanted, CHUNK_ROWS)):
                writer.write_batch(_listing_batch(chunk, groups, forms, split_of))
                count += len(chunk)
                found(count)
    ignored = others.ignored
    tables = sum(ignored[name] for name in ignored if without_compression(name) in TABLE_SUFFIXES)
    wanted_kind = "table" if reading.image else kind.name
    if count == 0 and reading.format:
        raise InputError(
            f"{some([root.text for root in roots])}: holds no {reading.format}; --format is the "
            "format of the inputs"
        )
    if count == 0:
        raise InputError(why_nothing(roots, wanted_kind, ignored))
    table = open_table(LocalFolder(path.parent), path.name, LISTING_SCHEMA)
    listing = Listing(table, kind, roots, Form.MANY not in forms, list(groups), ignored)
    listing.notices = notices
    if kind.name == "text" and tables:
        listing.note("tables-left-out", files=counted(tables, "table"))
    if others.unreachable.count:
        unreachable = others.unreachable.counted("file or folder", "files and folders")
        listing.note("unreachable", files=unreachable)
    for number in idle_roots(len(roots), numbers_of(table["root"])):
        _refuse_without_inputs(roots[number], rule, wanted_kind)
    repeated, few = label_table.repeated(listing.hashes, listing.paths_at)
    if repeated:
        keys = "1 key appears" if repeated == 1 else f"{repeated:,} keys appear"
        raise InputError(
            f"{keys} twice, among them {some(few)}: keys are paths below their source; give the "
            "folder that contains all sources"
        )
    side_files = others.side_files
    if rule.files:
        side_files = [_explicit_side_file(file, roots) for file in rule.files]
    if side_files and known is not None:
        raise InputError(
            f"{printable(side_files[0][0])}: labels files name all inputs, and --append reads "
            "new ones alone; use --update"
        )
    if side_files:
        _read_labels(listing, side_files, rule, reading)
    elif rule.drop:
        raise UsageError(
            f"--drop-columns {','.join(rule.drop)}: there is no labels file; --fields names the "
            "fields of records to keep"
        )
    if rule.annotations:
        _annotate(listing, rule, path.parent)
    listing.told = next(
        (each.splits for each in listing.annotations if each.splits is not None), None
    )
    # val.txt
    if (
        listing.told is None
        and listing.whole
        and all(source.format != "imagenet" for source in rule.annotations)
    ):
        listing.told = told_by_lists([file.opened for file in others.lists])
        beside += others.lists
    listing.beside = [f"{file.root} {file.path} {file.size} {file.mtime_ns}" for file in beside]
    if listing.annotations:
        # it reads images, and most conversions have no annotations
        from shardctl.sources.annotations.finishing import settled

        frame, found_all = rule.annotation_rule.frame, listing.annotations
        listing.annotations = [settled(each, frame, listing.places_of) for each in found_all]
    listing.notices += said_of_annotations(listing.annotations, len(listing))
    listing.notices += [said for each in listing.annotations for said in each.notices]
    if known is None:
        tell_of_unused(listing, rule, others.unused)
    return listing


def tell_of_unused(listing: Listing, rule: LabelRule, unused: Unused) -> None:
    """Warn of files beside images that look like annotations, and that nothing uses. Raises
    InputError."""
    if listing.kind.name != "image" or not listing.whole or rule.mode != "auto" or rule.annotations:
        return
    folders = list(dict.fromkeys(group.folder for group in listing.groups))
    images = Images(listing.roots, folders, listing.table, listing.hashes)
    refuse_nested_records(chain.from_iterable(unused.places.values()), images)
    listing.warnings += warnings_of_unused(unused, images)


def _read_labels(
    listing: Listing, side_files: list[tuple[str, str]], rule: LabelRule, reading: Reading
) -> None:
    """Read the labels files. Raises InputError, and UsageError where objects are not of images."""
    try:
        side = label_table.load(side_files, rule.drop, reading)
    except InputError as error:
        hint = hint_of_format(rule.files[0]) if rule.files else ""
        if hint:
            raise InputError(f"{error}; {hint}") from None
        raise
    listing.side, listing.side_rows = side, _rows_of_labels(listing, side, rule)
    listing.notices += side.notices
    of_images = listing.kind.name == "image"
    if of_images and listing.whole:
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


def walked(roots: Sequence[SourceRoot], notice: Callable[[str], None]) -> Iterator[FoundFile]:
    """Yield the files under the sources; where these are on a store, what must be looked into is
    fetched ahead."""
    files = walk(roots, notice)
    if not any(root.is_stored for root in roots):
        return files

    return begins_ahead(
        files, lambda file: file.opened if is_unnamed(file) and is_stored(file.opened) else None
    )


def inputs_of(roots: Sequence[SourceRoot]) -> Iterator[FoundFile]:
    """Yield the files under the sources that may be inputs, and say nothing of the others."""
    return inputs_among(walked(roots, lambda _: None), None, [])


def _about_files(what: str, listing: Listing) -> UsageError:
    """Return why annotations are refused beside inputs that are records."""
    inputs = "images in tables, or frames" if listing.kind.name == "image" else listing.kind.name
    return UsageError(f"{what} is about files that are images each, and the inputs are {inputs}")


def _annotate(listing: Listing, rule: LabelRule, scratch: Path) -> None:
    """Read the annotations. `scratch` is a folder for them. Raises InputError, and UsageError where the inputs are no images."""
    if listing.kind.name != "image" or not listing.whole:
        raise _about_files(f"--labels {rule.annotations[0]}", listing)
    inputs = PathTable(tuple(listing.roots), listing.table)
    listing.annotations += read_annotations(rule.annotations, inputs, rule.annotation_rule, scratch)
    columns = listing.side.columns.column_names if listing.side else []
    names = [*columns, *(f.name for each in listing.annotations for f in each.fields)]
    twice = first_repeated(names)
    if twice is not None:
        raise InputError(
            f"the labels file and the annotations both give {twice}; --drop-columns {twice} helps"
        )
    if rule.mode == "folder" and "label" in names:
        raise UsageError("--labels folder and the annotations both give label; use one of them")


def _without_masks(
    files: Iterator[FoundFile], rule: LabelRule, roots: Sequence[SourceRoot]
) -> Iterator[FoundFile]:
    """Yield the files that are no masks: these are images, and no inputs. A folder of masks has
    nothing else, unless the masks are told by the ends of their names, or lie beside their images.
    """
    from shardctl.sources.annotations.masks import SUFFIX, is_mask  # most conversions have no masks

    given = [
        (resolved(source.path), dict(source.options).get(SUFFIX, ""))
        for source in rule.annotations
        if source.format == "masks"
    ]
    masks = [
        (number, f"{at}/" if at else "", end)
        for folder, end in given
        for number, root in enumerate(roots)
        if root.is_folder and (at := path_below(folder, root.base)) is not None
    ]
    for file in files:
        below = [(at, end) for n, at, end in masks if n == file.root and file.path.startswith(at)]
        if not any((at and not end) or is_mask(file.path, end) for at, end in below):
            yield file


def wanted_files(
    files: Iterator[FoundFile], kind: SampleKind, reading: Reading, rule: LabelRule, others: Others
) -> Iterator[tuple[Form, FoundFile]]:
    """Yield the files that belong to the kind, with what they are to it; note the others."""
    explicit = {resolved(given) for given in rule.files}
    names = tuple(map(name_of, explicit))
    takes_labels_files = rule.mode == "auto" and kind.takes_labels_files and reading.image is None
    for file in files:
        if takes_labels_files and is_labels_file(file):
            others.side_files.append((file.opened, file.folder))
        elif explicit and file.path.endswith(names) and resolved(file.opened) in explicit:
            continue
        # One that cannot be read might be an input: better a reject than nothing.
        elif (form := kind.form(file, reading)) is not Form.NOTHING:
            yield form, file
        else:
            others.ignored[file.suffix or "no suffix"] += 1
            others.unused.add(file)
            if kind.name == "image" and split_of_list(file.path) is not None:
                others.lists.append(file)
            if file.fault and file.fault.error == UNREACHABLE:
                others.unreachable.add(file.opened)


def is_labels_file(file: FoundFile) -> bool:
    """Return whether a file is a labels file by its name."""
    return (
        file.suffix in SIDECAR_SUFFIXES
        and file.path.rpartition("/")[2] in label_table.LABELS_FILE_NAMES
    )


def _listing_batch(
    chunk: list[tuple[Form, FoundFile]],
    groups: dict[Group, int],
    forms: dict[Form, str],
    split_of: SplitOf,
) -> pa.RecordBatch:
    """Return rows of the table. `forms` gets a path of every form of file. Raises InputError if
    there are two."""
    of_files, files = zip(*chunk, strict=True)
    roots, paths, opened, folders, _, sizes, mtimes, faults = zip(*files, strict=True)
    group, number = list[int](), 0
    last: Form | None = None
    of_folder: str | None = None
    for form, path, place_on_disk, folder in zip(of_files, paths, opened, folders, strict=True):
        if form is not last:
            last = form
            forms.setdefault(form, path)
        if form is Form.MANY:
            name, declared = path.rpartition("/")[2], split_of(path, place_on_disk)
            stem = name[: len(name) - len(suffix_of(name))] if declared is None else declared
            if declared is None and folder and not may_name_a_split(stem):
                stem = ""
            own = Group(folder, stem, declared is not None)
            number, of_folder = groups.setdefault(own, len(groups)), None
        elif folder is not of_folder:
            # files of a folder come together, with one object for its path
            number, of_folder = groups.setdefault(Group(folder, ""), len(groups)), folder
        group.append(number)
    if len(forms) > 1 and {Form.ONE, Form.MANY} <= forms.keys():
        raise InputError(
            f"the sources mix files of many records ({printable(forms[Form.MANY])}) and of one "
            f"each ({printable(forms[Form.ONE])}), which have other fields; convert them into "
            "two datasets"
        )
    columns = zip((paths, roots, sizes, mtimes, group), LISTING_SCHEMA, strict=False)
    arrays = [pa.array(values, f.type) for values, f in columns]
    arrays += [column_of(hash_names(paths)), *why_unread(faults, len(paths))]
    return pa.record_batch(arrays, schema=LISTING_SCHEMA)


def _explicit_side_file(file: str, roots: Sequence[SourceRoot]) -> tuple[str, str]:
    """Return the labels file and the folder, relative to its source, that its names start from."""
    there = resolved(file)
    for root in roots:
        if path_below(there, resolved(root.text)) is not None:
            return file, (path_below(parent_of(there), root.base) or "") if root.is_folder else ""
    return file, ""


def why_nothing(roots: Sequence[SourceRoot], kind: str, ignored: Counter[str]) -> str:
    """Say why there is nothing to convert: no file, only empty ones, only `ignored` ones."""
    shown, is_file = some([root.text for root in roots]), len(roots) == 1 and not roots[0].is_folder
    if not ignored:
        nothing = "has no records" if is_file else "holds no files, or only empty ones"
        return f"{shown}: {nothing}; nothing to convert"
    if any(not each.is_stored and (Path(each.text) / MANIFEST).exists() for each in roots):
        return (
            f"{shown}: is a dataset of shardctl already (`shardctl inspect` shows it); to make "
            "it again, give its sources"
        )
    held = ", ".join(f"{count:,} {printable(suffix)}" for suffix, count in ignored.most_common(4))
    among = "" if is_file else f" among its {counted(ignored.total(), 'file')} ({held})"
    suffix = ignored.most_common(1)[0][0]
    remedy = "`shardctl help inputs` has the endings of all files that are read"
    if without_compression(suffix) in TABLE_SUFFIXES and kind in ("image", "text"):
        remedy = "--kind table converts tables"
    elif suffix in (".zip", ".rar", ".7z"):
        remedy = "unpack archives first, then convert the folder"
    return f"{shown}: no {kind}{among}; {remedy}"


def idle_roots(count: int, used: Array) -> list[int]:
    """Return which of so many sources are not among the `used` ones."""
    return [number for number, times in enumerate(np.bincount(used, minlength=count)) if not times]


def refuse_idle(root: SourceRoot, kind: str, ignored: Counter[str]) -> NoReturn:
    """Raise InputError for a source that gives nothing beside others."""
    raise InputError(f"{why_nothing([root], kind, ignored)}. Leave this source out")


def _refuse_without_inputs(root: SourceRoot, rule: LabelRule, kind: str) -> None:
    """Raise InputError for a source without inputs, but for one that has labels, or what describes
    files of others."""
    ignored: Counter[str] = Counter()
    explicit = set(map(resolved, rule.files))
    for file in inputs_of([root]):
        if (
            is_labels_file(file)
            or split_of_list(file.opened) is not None
            or resolved(file.opened) in explicit
        ):
            return
        ignored[file.suffix or "no suffix"] += 1
    if ignored or not any(True for _ in walk([root], lambda _: None)):
        refuse_idle(root, kind, ignored)


def _rows_of_labels(listing: Listing, side: LabelTable, rule: LabelRule) -> Numbers:
    """Return each input's row of the labels files, -1 for none. Raises InputError if rows or inputs
    do not match."""
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no labels file

    found = PathTable(tuple(listing.roots), listing.table).by_path.find(
        side.names, side.shown, zip(side.files, map(len, side.names.chunks), strict=True)
    )
    rows, used = np.full(len(listing), -1, np.int64), found >= 0
    rows[found[used]] = np.flatnonzero(used)
    unnamed, unused = np.flatnonzero(rows < 0), np.flatnonzero(~used)
    if len(unused):
        name = "names a file that is" if len(unused) == 1 else "name files that are"
        what = (
            f"{side.shown}: {len(unused):,} of {counted(len(side), 'row')} {name} not there, or of "
            "another split"
        )
        example = f"({some(side.names.take(pa.array(unused[:100])).to_pylist())})"
        if not rule.lenient:
            fix = "fix the file"
            first = side.names[int(unused[0])].as_py()
            if pc.any(pc.starts_with(listing.table["path"], f"{first}.")).as_py():
                fix = f"write the names with their endings, as {printable(first)}.jpg"
            raise InputError(f"{what} {example}; {fix}, or use --lenient-labels to skip such rows")
        if not used.any():
            raise InputError(f"{what} {example}: no input would have a label; fix the file")
        listing.note("rows-skipped", what=f"{what} {example}")
    if len(unnamed):
        what = f"{side.shown}: no row for {len(unnamed):,} of {counted(len(listing), 'input')}"
        example = f"({some(listing.paths_at(unnamed[:100]))})"
        if not rule.lenient:
            raise InputError(
                f"{what} {example}; add rows, or use --lenient-labels to leave them empty"
            )
        listing.note("inputs-without-row", what=f"{what} {example}")
    return rows
