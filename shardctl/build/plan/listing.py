"""The list of files: one walk over the sources, written as a table on disk with a row per file."""

from __future__ import annotations

import heapq
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.build.notices import notice
from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import column_of
from shardctl.format.names import MANIFEST
from shardctl.format.tables import open_table
from shardctl.sources import label_table
from shardctl.sources.annotations import (
    AnnotationRule,
    Annotations,
    Inputs,
    Source,
    hint_of_format,
    parse_source,
    read_annotations,
)
from shardctl.sources.annotations.base import InputPlace
from shardctl.sources.annotations.counting import said_of_annotations
from shardctl.sources.annotations.huggingface import named_category, take_objects, without_category
from shardctl.sources.annotations.nested_records import refuse_nested_records
from shardctl.sources.annotations.objects import OBJECTS
from shardctl.sources.annotations.told_splits import ToldSplits, split_of_list, told_by_lists
from shardctl.sources.annotations.unused import Images, Unused, warnings_of_unused
from shardctl.sources.files import SourceRoot, begins_ahead, resolved, version_of
from shardctl.sources.format_table import TABLE_SUFFIXES
from shardctl.sources.formats import Reading, without_compression
from shardctl.sources.kinds import Form, SampleKind, is_unnamed
from shardctl.sources.label_table import LabelTable, said_of_names, some
from shardctl.sources.sidecars import DeclaredSplits, inputs_among, refuse_part_of_export
from shardctl.sources.splits import may_name_a_split
from shardctl.sources.walk import UNREACHABLE, FoundFile, LeftOut, order_in_walk, suffix_of, walk
from shardctl.system.files import naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import (
    common,
    is_stored,
    name_of,
    normal,
    parent_of,
    path_below,
    within,
)
from shardctl.system.machine import collector_waits
from shardctl.system.text import counted, first_repeated, printable

CHUNK_ROWS = 65536
"""Rows of a table that are in memory at a time."""

SIDECAR_SUFFIXES = frozenset(name[name.rfind(".") :] for name in label_table.SIDECAR_NAMES)

LISTING_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("root", pa.int32()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("group", pa.int32()),
        ("hash", pa.uint64()),
        ("error", pa.string()),
        ("message", pa.string()),
    ]
)


@dataclass(frozen=True)
class LabelRule:
    """Where labels and annotations of images come from.

    `mode` is `auto`, `none`, `folder`, or `file`; then `files` has the labels files. With
    `lenient`, the files and the inputs may differ. `drop` names columns of the files that are left
    out. `annotation_rule` says how `annotations` are read. `classes` has the names of all classes
    in the order of their numbers, if the user pins them.
    """

    mode: str
    files: tuple[str, ...] = ()
    lenient: bool = False
    drop: tuple[str, ...] = ()
    annotations: tuple[Source, ...] = ()
    annotation_rule: AnnotationRule = field(default_factory=AnnotationRule)
    classes: tuple[str, ...] | None = None

    @classmethod
    def parse(
        cls,
        given: str | Path | Iterable[str | Path],
        lenient: bool = False,
        drop: Iterable[str] = (),
        annotation_rule: AnnotationRule | None = None,
    ) -> LabelRule:
        """Read what `--labels` says, once or more: one of the words, or the path of a file; and
        sources of annotations.

        Annotations alone are all labels that are wanted: nothing else is looked for. `drop` may be
        one string: a,b,c. Raises UsageError.
        """
        dropped = tuple(drop.split(",") if isinstance(drop, str) else drop)
        rule = annotation_rule or AnnotationRule()
        texts = [str(given)] if isinstance(given, str | Path) else [str(text) for text in given]
        sources = [(text, parse_source(text)) for text in texts]
        annotations = tuple(source for _, source in sources if source is not None)
        others = [text for text, source in sources if source is None]
        words = [text for text in others if text in ("auto", "none", "folder")]
        if words and len(others) > 1:
            raise UsageError(
                f"--labels {others[0]} and --labels {others[1]} contradict each other; use one of "
                "them"
            )
        rule.check(annotations)
        mode = words[0] if words else "file" if others else "none" if annotations else "auto"
        return cls(
            mode, () if words else tuple(map(normal, others)), lenient, dropped, annotations, rule
        )

    def record(self) -> str | list[str]:
        """Return what `parse` reads, as plain data."""
        texts = [*(self.files or (self.mode,)), *map(str, self.annotations)]
        return texts if len(texts) > 1 else texts[0]


class Group(NamedTuple):
    """The files of one folder; or one file of many records, whose name without its ending is `stem`
    ("" for other files).

    Such a file has a group of its own only where its name may be that of a split: right below a
    source, or with a split word. `is_split` says that `stem` is the name of its split, as a file
    beside it has it.
    """

    folder: str
    stem: str
    is_split: bool = False


@dataclass
class Listing:
    """The result of the walk: a table of files on disk, and facts about them as a whole.

    `roots` are the sources. `whole` says that every file is one record; else all have many. The
    table has the index of each file's group in `groups`. `side_rows` is each file's row of the
    labels files, -1 where no row names it: (n,) int64. `beside` names the files that decide what is
    read of others, each with its size and time of change. `told` are the splits that annotations or
    lists tell of. `inside` are the folders named as splits within files, by file, once these are
    cut. `split_by` says what names the splits, once somebody has looked (splits.py). `warnings` say
    what should be looked at before the work begins.
    """

    path: Path
    kind: SampleKind
    roots: Sequence[SourceRoot]
    whole: bool
    groups: list[Group]
    ignored: Counter[str]
    side: LabelTable | None = None
    side_rows: npt.NDArray[np.int64] | None = None
    annotations: list[Annotations] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    told: ToldSplits | None = None
    inside: dict[int, list[str]] = field(default_factory=dict)
    split_by: str | None = None

    @cached_property
    def table(self) -> pa.Table:
        """The files, memory-mapped, one row each (LISTING_SCHEMA)."""
        return open_table(LocalFolder(self.path.parent), self.path.name, LISTING_SCHEMA)

    @property
    def digest_beside(self) -> str:
        """What stands for the files that decide what is read of others, "" if there are none."""
        return (
            xxhash.xxh3_128_hexdigest("\0".join(sorted(self.beside)).encode())
            if self.beside
            else ""
        )

    def fresh(self) -> Listing:
        """Return the same for a plan, which adds notices to it and may take columns from its labels
        files."""
        return replace(self, notices=list(self.notices), warnings=list(self.warnings))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """A 64-bit hash of every path, in the order of the walk. (n,) uint64."""
        return self.table["hash"].to_numpy()  # type: ignore[no-any-return]  # pyarrow is untyped

    @property
    def root_names(self) -> list[str]:
        """The last part of the path of every source, for a file without its suffix."""
        return [
            root.name if root.is_folder else Path(name_of(root.text)).stem for root in self.roots
        ]

    def opened(self, row: dict[str, object]) -> str:
        """Return the path or the URL by which a file of the table can be opened."""
        folder, root = self._folders[int(str(row["root"]))]
        return root if folder is None else f"{folder}{row['path']}"

    def places_of(self, rows: Sequence[int]) -> list[InputPlace]:
        """Return where some files are."""
        found = self.table.select(["path", "root"]).take(pa.array(rows, pa.int64())).to_pylist()
        bases = [root.base for root in self.roots]
        return [InputPlace(self.opened(row), bases[row["root"]]) for row in found]

    @cached_property
    def _folders(self) -> list[tuple[str | None, str]]:
        """How the names of files of each source begin, None if it is a file; and the source
        itself."""
        return [(within(root.text) if root.is_folder else None, root.text) for root in self.roots]

    def paths_at(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Return the paths of some files."""
        column = self.table["path"]  # not its take(), which imports pyarrow.compute: 40 ms
        return [column[row].as_py() for row in rows.tolist()]

    @cached_property
    def told_sets(self) -> tuple[dict[str, npt.NDArray[np.bool_]], list[str], bool]:
        """What annotations or lists tell of the inputs of each split (ToldSplits.found). Raises
        InputError."""
        return (
            self.told.found(Inputs(tuple(self.roots), self.table)) if self.told else ({}, [], False)
        )

    @cached_property
    def total_bytes(self) -> int:
        """The bytes of all files together."""
        return int(np.sum(self.table["size"].to_numpy()))


_KNOWN_SCHEMA = pa.schema([field for field in LISTING_SCHEMA if field.name != "hash"])


@dataclass(kw_only=True)
class KnownListing(Listing):
    """A list of files that is made from the table of a dataset. `dataset` is the digest of the
    dataset.

    `files` has the path and the root of each file. `before` has its row in the dataset's table, or
    -1 for a new file. `sizes` and `mtime_ns` are as they are now. All three are (n,) int64.
    `folders` are in the order of the files, and `counts` says how many files are in each.
    """

    dataset: str
    files: pa.Table
    before: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    mtime_ns: npt.NDArray[np.int64]
    folders: Sequence[str]
    counts: Sequence[int]

    @cached_property
    def table(self) -> pa.Table:
        """The files, one row each: as that of Listing, without hashes, and in the batches of
        `files`."""
        numbers = {group.folder: number for number, group in enumerate(self.groups)}
        groups = np.repeat(
            np.array([numbers[folder] for folder in self.folders], np.int32), self.counts
        )
        batches, first = [], 0
        for batch in self.files.select(["path", "root"]).to_batches():
            here, nothing = (
                slice(first, first + batch.num_rows),
                pa.nulls(batch.num_rows, pa.string()),
            )
            found = (column_of(numbers[here]) for numbers in (self.sizes, self.mtime_ns, groups))
            batches.append(
                pa.record_batch([*batch.columns, *found, nothing, nothing], schema=_KNOWN_SCHEMA)
            )
            first += batch.num_rows
        return pa.Table.from_batches(batches, _KNOWN_SCHEMA)

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """A 64-bit hash of every path, in the order of the walk. (n,) uint64."""
        paths = (
            batch.column(0).to_pylist()
            for batch in self.files.select(["path"]).to_batches(max_chunksize=CHUNK_ROWS)
        )
        return np.concatenate([np.empty(0, np.uint64), *map(label_table.hash_names, paths)])


@dataclass(frozen=True)
class KnownFiles:
    """Files that need not be looked at again: `files` gives them, in the order of a walk, and all
    are inputs of one `form`.

    `walk` gives other files, as sources.walk.walk does; those of them that are known must be as
    they were.
    """

    form: Form
    files: Callable[[], Iterator[FoundFile]]
    walk: Callable[[Callable[[str], None]], Iterator[FoundFile]]

    def joined(self, wanted: Iterator[tuple[Form, FoundFile]]) -> Iterator[tuple[Form, FoundFile]]:
        """Yield the known files and the wanted ones of the walk, each once, in the order of a walk.
        Raises InputError."""
        known = ((self.form, file) for file in self.files())
        last: FoundFile | None = None
        for form, file in heapq.merge(known, wanted, key=lambda each: order_in_walk(each[1])):
            if last is None or (last.root, last.path) != (file.root, file.path):
                yield form, file
            elif (last.size, last.mtime_ns) != (file.size, file.mtime_ns):
                raise InputError(
                    f"{printable(file.opened)}: has changed since it was converted, and --append "
                    "only adds; use --update"
                )
            last = file


def list_files(
    roots: Sequence[SourceRoot],
    kind: SampleKind,
    reading: Reading,
    rule: LabelRule,
    path: Path,
    found: Callable[[int], None],
    known: KnownFiles | None = None,
) -> Listing:
    """Walk the sources and write a row per file to `path`; `found` is called with the number of
    files now and then.

    Where files are `known`, no others are walked but those that it gives. Raises InputError:
    nothing to convert, repeated paths, labels that do not match the files.
    """
    notices: list[str] = []
    side_files: list[tuple[str, str]] = []
    lists: list[FoundFile] = []
    ignored: Counter[str] = Counter()
    wanted_kind = "table" if reading.image else kind.name
    groups: dict[Group, int] = {}
    unreachable = LeftOut()
    forms: dict[Form, str] = {}
    beside: list[FoundFile] = []
    for root in roots:
        if root.is_folder:
            refuse_part_of_export(root.text)
    walked = _walked(roots, notices.append) if known is None else known.walk(notices.append)
    files = inputs_among(walked, notices.append, beside)
    if any(source.format == "masks" for source in rule.annotations):
        files = _without_masks(files, rule, roots)
    unused = Unused()
    wanted = wanted_files(
        files, kind, reading, rule, side_files, lists, ignored, unreachable, unused
    )
    if known is not None:
        wanted = known.joined(wanted)
    # A scratch file: it need not outlive the process, so it is neither synced nor renamed.
    with (
        naming_the_path(path),
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, LISTING_SCHEMA) as writer,
    ):
        count, splits = 0, DeclaredSplits()
        # it would look at all files of a chunk again and again: 1.2 of 8 microseconds for each
        with collector_waits():
            while chunk := list(islice(wanted, CHUNK_ROWS)):
                writer.write_batch(_listing_batch(chunk, groups, forms, splits))
                count += len(chunk)
                found(count)
    tables = sum(
        count for suffix, count in ignored.items() if without_compression(suffix) in TABLE_SUFFIXES
    )
    if kind.name == "text" and tables:
        notices.append(notice("tables-left-out", files=counted(tables, "table")))
    if unreachable.count:
        found_out = unreachable.counted("file or folder", "files and folders")
        notices.append(notice("unreachable", files=found_out))
    if rule.files:
        side_files = [_explicit_side_file(file, roots) for file in rule.files]
    if count == 0:
        if reading.format:
            raise InputError(
                f"{some([root.text for root in roots])}: holds no {reading.format}; --format is "
                "the format of the inputs: leave"
                " it out; `shardctl export` writes other formats"
            )
        raise InputError(why_nothing(roots, wanted_kind, ignored))
    listing = Listing(path, kind, roots, Form.MANY not in forms, list(groups), ignored)
    for number in idle_roots(len(roots), listing.table["root"].to_numpy()):
        _refuse_without_inputs(roots[number], rule, wanted_kind)
    listing.notices = notices
    _refuse_repeated_paths(listing)
    if side_files and known is not None:
        shown = printable(side_files[0][0])
        raise InputError(
            f"{shown}: labels files name all inputs, and --append looks at new ones alone; use "
            "--update"
        )
    if side_files:
        try:
            listing.side = label_table.load(side_files, rule.drop, reading)
        except InputError as error:
            hint = hint_of_format(rule.files[0]) if rule.files else ""
            if hint:
                raise InputError(f"{error}; {hint}") from None
            raise
        listing.notices += listing.side.notices
        listing.side_rows = _rows_of_labels(listing, listing.side, rule)
        if kind.name == "image" and listing.whole:
            side = listing.side
            if (category := named_category(side.columns.schema)) is not None:
                column, names = side.columns[OBJECTS], side.named.pop(f"{OBJECTS}.{category}", None)
                listing.side = side.without(OBJECTS)
                taken = take_objects(
                    column, listing.side_rows, rule.annotation_rule, side.shown, category, names
                )
                listing.annotations.append(taken)
            listing.notices += without_category(side.columns.schema, side.shown)
        listing.notices += said_of_names(listing.side.named)
        if (
            kind.name == "image"
            and not listing.whole
            and OBJECTS in listing.side.columns.column_names
        ):
            raise _about_files(f"{listing.side.shown}: {OBJECTS}", listing)
    elif rule.drop:
        lines = (
            "; of the fields of the inputs, name those to keep with --fields A,B"
            if not listing.whole
            else ""
        )
        raise UsageError(
            f"--drop-columns {','.join(rule.drop)}: it takes columns of a labels file, and there "
            f"is none{lines}"
        )
    if rule.annotations:
        _annotate(listing, rule)
    listing.told = next(
        (each.splits for each in listing.annotations if each.splits is not None), None
    )
    # val.txt
    if (
        listing.told is None
        and listing.whole
        and all(source.format != "imagenet" for source in rule.annotations)
    ):
        listing.told = told_by_lists([file.opened for file in lists])
        beside += lists
    listing.beside = [f"{file.root} {file.path} {file.size} {file.mtime_ns}" for file in beside]
    if listing.annotations:
        # it reads images, and most conversions have no annotations
        from shardctl.sources.annotations.frames import settled

        frame = rule.annotation_rule.frame
        listing.annotations = [
            settled(each, frame, listing.places_of) for each in listing.annotations
        ]
    listing.notices += said_of_annotations(listing.annotations, len(listing))
    listing.notices += [notice for each in listing.annotations for notice in each.notices]
    if (
        kind.name == "image"
        and listing.whole
        and known is None
        and rule.mode == "auto"
        and not rule.annotations
    ):
        images = Images(roots, [group.folder for group in groups], listing.table, listing.hashes)
        refuse_nested_records(chain.from_iterable(unused.places.values()), images)
        listing.warnings += warnings_of_unused(unused, images)
    return listing


def _walked(roots: Sequence[SourceRoot], notice: Callable[[str], None]) -> Iterator[FoundFile]:
    """Yield the files under the sources; where these are on a store, what must be looked into is
    fetched ahead."""
    files = walk(roots, notice)
    if not any(root.is_stored for root in roots):
        return files

    def looked_into(file: FoundFile) -> str | None:
        return file.opened if is_unnamed(file) and is_stored(file.opened) else None

    return begins_ahead(files, looked_into)


def _about_files(what: str, listing: Listing) -> UsageError:
    """Return why annotations are refused beside inputs that are records."""
    inputs = "images in tables, or frames" if listing.kind.name == "image" else listing.kind.name
    return UsageError(f"{what} is about files that are images each, and the inputs are {inputs}")


def _annotate(listing: Listing, rule: LabelRule) -> None:
    """Read the annotations. Raises InputError, and UsageError where the inputs are no images."""
    if listing.kind.name != "image" or not listing.whole:
        raise _about_files(f"--labels {rule.annotations[0]}", listing)
    inputs = Inputs(tuple(listing.roots), listing.table)
    listing.annotations += read_annotations(
        rule.annotations, inputs, rule.annotation_rule, listing.path.parent
    )
    columns = listing.side.columns.column_names if listing.side else []
    names = [*columns, *(f.name for each in listing.annotations for f in each.fields)]
    twice = first_repeated(names)
    if twice is not None:
        raise InputError(
            f"the labels file and the annotations both give {twice}; use --drop-columns {twice}, "
            "or one of them"
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
        if not any(
            file.root == root
            and file.path.startswith(at)
            and ((at and not end) or is_mask(file.path, end))
            for root, at, end in masks
        ):
            yield file


def wanted_files(
    files: Iterator[FoundFile],
    kind: SampleKind,
    reading: Reading,
    rule: LabelRule,
    side_files: list[tuple[str, str]],
    lists: list[FoundFile],
    ignored: Counter[str],
    unreachable: LeftOut,
    unused: Unused,
) -> Iterator[tuple[Form, FoundFile]]:
    """Yield the files that belong to the kind, with what they are to it; note the labels files and
    lists, count the others.

    `lists` are those that may name the images of splits. A few of the others go to `unused`: they
    may be annotations. Those of the others that are `unreachable` are counted apart: what they are
    is not known, and may be a folder.
    """
    explicit = {resolved(given) for given in rule.files}
    names = tuple(map(name_of, explicit))
    sidecars = (
        SIDECAR_SUFFIXES
        if rule.mode == "auto" and kind.has_sidecars and reading.image is None
        else frozenset[str]()
    )
    for file in files:
        if file.suffix in sidecars and _is_sidecar(file):
            side_files.append((file.opened, file.folder))
        elif explicit and file.path.endswith(names) and resolved(file.opened) in explicit:
            continue
        # One that cannot be read might be an input: better a reject than nothing.
        elif (form := kind.form(file, reading)) is not Form.NOTHING:
            yield form, file
        else:
            ignored[file.suffix or "no suffix"] += 1
            unused.add(file)
            if kind.name == "image" and split_of_list(file.path) is not None:
                lists.append(file)
            if file.fault and file.fault.error == UNREACHABLE:
                unreachable.add(file.opened)


def _is_sidecar(file: FoundFile) -> bool:
    return (
        file.suffix in SIDECAR_SUFFIXES
        and file.path.rpartition("/")[2] in label_table.SIDECAR_NAMES
    )


def _listing_batch(
    chunk: list[tuple[Form, FoundFile]],
    groups: dict[Group, int],
    forms: dict[Form, str],
    splits: DeclaredSplits,
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
            number, of_folder = (
                groups.setdefault(_group_of(path, place_on_disk, folder, splits), len(groups)),
                None,
            )
        elif folder is not of_folder:
            # files of a folder come together, with one object for its path
            number, of_folder = groups.setdefault(Group(folder, ""), len(groups)), folder
        group.append(number)
    _refuse_two_forms(forms)
    hashes = label_table.hash_names(paths)
    errors = [fault.error if fault else None for fault in faults] if any(faults) else faults
    messages = [fault.message if fault else None for fault in faults] if any(faults) else faults
    columns = (paths, roots, sizes, mtimes, group, hashes, errors, messages)
    arrays = [
        column_of(values) if isinstance(values, np.ndarray) else pa.array(values, f.type)
        for values, f in zip(columns, LISTING_SCHEMA, strict=True)
    ]
    return pa.record_batch(arrays, schema=LISTING_SCHEMA)


def _group_of(path: str, opened: str, folder: str, splits: DeclaredSplits) -> Group:
    """Return the group of a file of many records."""
    split = splits.of(path, opened)
    if split is not None:
        return Group(folder, split, True)
    stem = _stem(path)
    return Group(folder, stem if not folder or may_name_a_split(stem) else "")


def _stem(path: str) -> str:
    """Return the name of a file without its ending."""
    name = path.rpartition("/")[2]
    return name[: len(name) - len(suffix_of(name))]


def _refuse_two_forms(forms: dict[Form, str]) -> None:
    """Raise InputError if some files are one record, and others have many: their fields differ."""
    if Form.ONE in forms and Form.MANY in forms:
        raise InputError(
            f"the sources mix files of many records ({printable(forms[Form.MANY])}) and files that "
            "are one record each"
            f" ({printable(forms[Form.ONE])}), which have different fields; convert them into two "
            "datasets"
        )


def _explicit_side_file(file: str, roots: Sequence[SourceRoot]) -> tuple[str, str]:
    """Return the labels file and the folder, relative to its source, that its names start from."""
    there = resolved(file)
    for root in roots:
        if path_below(there, resolved(root.text)) is not None:
            return file, (path_below(parent_of(there), root.base) or "") if root.is_folder else ""
    return file, ""


def why_nothing(roots: Sequence[SourceRoot], kind: str, ignored: Counter[str]) -> str:
    """Say why there is nothing to convert: no file, only empty ones, only `ignored` ones."""
    shown = some([root.text for root in roots])
    if not ignored and kind != "image":
        nothing = (
            _nothing_in(roots[0].text)
            if len(roots) == 1 and not roots[0].is_folder
            else "holds no files, or only empty ones"
        )
        return f"{shown}: {nothing}; nothing to convert"
    if not ignored:
        return f"{shown}: holds no files"
    if len(roots) == 1 and not roots[0].is_folder:
        return f"{shown}: no {kind}; {_remedy(roots, ignored)}"
    if any(not each.is_stored and (Path(each.text) / MANIFEST).exists() for each in roots):
        shows = "`shardctl inspect` shows it, `shardctl export` writes it in another form"
        return (
            f"{shown}: is a dataset of shardctl already: {shows}; to make it again, give its "
            "sources"
        )
    held = ", ".join(f"{count:,} {printable(suffix)}" for suffix, count in ignored.most_common(4))
    return (
        f"{shown}: no {kind} among its {counted(ignored.total(), 'file')} ({held}); "
        f"{_remedy(roots, ignored)}"
    )


def idle_roots(count: int, used: npt.NDArray[Any]) -> list[int]:
    """Return which of so many sources are not among the `used` ones."""
    return [number for number, times in enumerate(np.bincount(used, minlength=count)) if not times]


def refuse_idle(root: SourceRoot, kind: str, ignored: Counter[str]) -> NoReturn:
    """Raise InputError for a source that gives nothing beside others."""
    raise InputError(
        f"{why_nothing([root], kind, ignored)}. To convert the other sources, leave this one out"
    )


def _refuse_without_inputs(root: SourceRoot, rule: LabelRule, kind: str) -> None:
    """Raise InputError for a source without inputs, but for one that has labels, or what describes
    files of others."""
    ignored: Counter[str] = Counter()
    explicit = set(map(resolved, rule.files))
    for file in inputs_among(_walked([root], lambda _: None), None, []):
        if (
            _is_sidecar(file)
            or split_of_list(file.opened) is not None
            or resolved(file.opened) in explicit
        ):
            return
        ignored[file.suffix or "no suffix"] += 1
    if ignored or not any(True for _ in walk([root], lambda _: None)):
        refuse_idle(root, kind, ignored)


_ARCHIVES = {".zip": "unzip {0} -d {1}", ".rar": "unrar x {0}", ".7z": "7z x {0}"}
"""Archives that are not read, and the commands that unpack them."""

_PLAIN_TEXTS = frozenset((".log", ".text", ".asc", ".tex", ".rst", ".srt"))
"""Endings of texts that are not read as such."""


_FRAMES = "ffmpeg -i FILE -vf fps=1 frames/%06d.jpg"
_UNREAD = {
    ".beton": "files of FFCV are not read; convert the images that they were made from",
    **dict.fromkeys(
        (".mp4", ".avi", ".mov", ".mkv", ".webm"),
        f"videos are not read; make images of them first: {_FRAMES}",
    ),
    **dict.fromkeys(
        (".wav", ".mp3", ".flac", ".ogg"),
        "sounds are not read as files; put them into tars (WebDataset) or tables",
    ),
    **dict.fromkeys(
        (".pt", ".pth", ".pkl", ".pickle"),
        "files of pickle run code when they are read; save the data as .npz",
    ),
}
"""Endings of files that are not read, and what to do about them."""


def _remedy(roots: Sequence[SourceRoot], ignored: Counter[str]) -> str:
    """Say what may be done where no file can be converted: what most of them are decides."""
    root = Path(roots[0].text)
    suffix = ignored.most_common(1)[0][0]
    if without_compression(suffix) in TABLE_SUFFIXES:
        return "--kind table converts tables"
    if suffix in _ARCHIVES:
        name = root.name if len(roots) == 1 and not roots[0].is_folder else f"FILE{suffix}"
        stem = name.removesuffix(suffix)
        return (
            "unpack archives first: "
            f"{_ARCHIVES[suffix].format(printable(name), printable(stem))}; then convert the "
            "folder"
        )
    if suffix.endswith((".gz", ".bz2", ".xz", ".zst")):
        return (
            "files of this format are not read compressed; decompress them first, for "
            f"instance: gunzip FILE{suffix}"
        )
    if suffix in _UNREAD:
        return _UNREAD[suffix]
    if suffix == ".bin" and any(
        not each.is_stored and Path(each.text, "index.json").is_file() for each in roots
    ):
        return "chunks of LitData are not read; convert the files that they were made from"
    if suffix in _PLAIN_TEXTS:
        return f"texts are read if their names end in .txt or .md: rename *{suffix} to *.txt"
    return (
        "images are found by their ending or content, text by .txt or .jsonl, tables by .csv, "
        ".parquet, .tar and the like"
    )


def _nothing_in(file: str) -> str:
    """Say what a file is that has no records."""
    if not version_of(file)[0]:
        return "is empty"
    return (
        "has a header and no rows"
        if suffix_of(name_of(file)) in (".csv", ".tsv")
        else "has no records"
    )


def detect_kind(roots: Sequence[SourceRoot], kinds: Iterable[SampleKind], reading: Reading) -> str:
    """Return the name of the first of the kinds of which there is an input. Raises InputError if
    there is none of any."""
    candidates = list(kinds)
    present: set[str] = set()
    # of files that cannot be read: they decide only where no other file does
    possible: set[str] = set()
    ignored: Counter[str] = Counter()
    sidecars = LeftOut()
    for file in inputs_among(_walked(roots, lambda _: None), None, []):
        forms = {candidate.name: candidate.form(file, reading) for candidate in candidates}
        taker = next((name for name, form in forms.items() if form in (Form.ONE, Form.MANY)), None)
        if taker == candidates[0].name:
            return taker
        if taker is None:
            ignored[file.suffix or "no suffix"] += 1
            possible |= {name for name, form in forms.items() if form is Form.UNKNOWN}
        elif _is_sidecar(file) or file.path.rpartition("/")[2].lower() == "readme.md":
            sidecars.add(file.path)
        else:
            present.add(taker)
    for candidate in candidates:
        if candidate.name in (present or possible):
            return candidate.name
    if sidecars.count and not ignored:
        found = sidecars.counted("labels file", "labels files")
        raise InputError(
            f"{some([root.text for root in roots])}: holds only {found}; --kind table converts "
            "such files"
        )
    raise InputError(
        why_nothing(roots, " and no ".join(candidate.name for candidate in candidates), ignored)
    )


def first_file(
    roots: Sequence[SourceRoot],
    kind: SampleKind,
    reading: Reading,
    wanted: Collection[Form],
    of_labels: bool = True,
) -> FoundFile | None:
    """Return the first file that is one of `wanted` to a kind, or None. Without `of_labels`, no
    labels file is."""
    files = inputs_among(_walked(roots, lambda _: None), None, [])
    return next(
        (
            each
            for each in files
            if kind.form(each, reading) in wanted and (of_labels or not _is_sidecar(each))
        ),
        None,
    )


def _refuse_repeated_paths(listing: Listing) -> None:
    count, few = label_table.repeated(listing.hashes, listing.paths_at)
    if count:
        keys = "1 key appears" if count == 1 else f"{count:,} keys appear"
        raise InputError(
            f"{keys} twice, among them {some(few)}: a key is the path below its source, so sources "
            "with files of the same path"
            f" cannot be converted together; {_common_source(listing.roots)}"
        )
    lower = np.empty(len(listing), np.uint64)
    place = 0
    for batch in listing.table.select(["path"]).to_batches():
        lower[place : place + batch.num_rows] = label_table.hash_names(
            _lower(batch.column(0).to_pylist())
        )
        place += batch.num_rows
    alike, _ = label_table.repeated(lower, lambda rows: _lower(listing.paths_at(rows)))
    if alike:
        differ = "1 key differs" if alike == 1 else f"{alike:,} keys differ"
        listing.notices.append(notice("alike-but-case", keys=differ))


def _common_source(roots: Sequence[SourceRoot]) -> str:
    """Say which folder has all sources, as a shell takes it: relative if they were given so."""
    found = common([root.recorded for root in roots])
    if not found:
        return "copy them into one folder"
    if not is_stored(found) and not any(os.path.isabs(root.text) for root in roots):  # noqa: PTH117 - see pyproject.toml
        found = os.path.relpath(found)
    return (
        "give what contains them all as the only source: shardctl convert "
        f"{shlex.quote(printable(found))} DST"
    )


def _lower(keys: list[str]) -> list[str]:
    """Return keys in lower case, all in one go: no name holds the character that is between
    them."""
    return "\0".join(keys).lower().split("\0") if keys else []


def _rows_of_labels(listing: Listing, side: LabelTable, rule: LabelRule) -> npt.NDArray[np.int64]:
    """Return each input's row of the labels files, -1 for none. Raises InputError if rows or inputs
    do not match."""
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no labels file

    found = Inputs(tuple(listing.roots), listing.table).by_path.find(
        side.names, side.shown, zip(side.files, map(len, side.names.chunks), strict=True)
    )
    rows, used = np.full(len(listing), -1, np.int64), found >= 0
    rows[found[used]] = np.flatnonzero(used)
    unnamed, unused = np.flatnonzero(rows < 0), np.flatnonzero(~used)
    if len(unused):
        name = "names a file that is" if len(unused) == 1 else "name files that are"
        what = (
            f"{side.shown}: {len(unused):,} of {counted(len(side), 'row')} {name} not there, "
            "or "
            "of another split"
        )
        example = f"({some(side.names.take(pa.array(unused[:100])).to_pylist())})"
        if not rule.lenient:
            first = side.names[int(unused[0])].as_py()
            is_stem = pc.any(pc.starts_with(listing.table["path"], f"{first}.")).as_py()
            fix = (
                f"write the names with their endings, as {printable(first)}.jpg"
                if is_stem
                else "fix the file"
            )
            raise InputError(f"{what} {example}; {fix}, or use --lenient-labels to skip such rows")
        if not used.any():
            raise InputError(f"{what} {example}: no input would have a label; fix the file")
        listing.notices.append(notice("rows-skipped", what=f"{what} {example}"))
    if len(unnamed):
        what = f"{side.shown}: no row for {len(unnamed):,} of {counted(len(listing), 'input')}"
        example = f"({some(listing.paths_at(unnamed[:100]))})"
        if not rule.lenient:
            raise InputError(
                f"{what} {example}; add rows, or use --lenient-labels to leave their columns empty"
            )
        listing.notices.append(notice("inputs-without-row", what=f"{what} {example}"))
    return rows
