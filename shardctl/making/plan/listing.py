"""The list of inputs: its table, the groups of its files, and what labels files and annotations say."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import ShardctlError
from shardctl.format.arrays import Bools, Hashes, Numbers, hash_column, numbers_of, table_rows
from shardctl.format.names import Json
from shardctl.making.notices import notice
from shardctl.sources.annotations import (
    AnnotationRule,
    Annotations,
    PathTable,
    Source,
    parse_source,
)
from shardctl.sources.annotations.inputs import ToldSplits
from shardctl.sources.annotations.unused import Unused
from shardctl.sources.export_description import from_root
from shardctl.sources.files import SourceRoot, local_copy
from shardctl.sources.kinds import SampleKind
from shardctl.sources.label_table import LIKE_LABELS, LabelTable
from shardctl.sources.sidecars import declared_splits
from shardctl.sources.splits import may_name_a_split
from shardctl.sources.walk import FoundFile, have_changed, states_of, suffix_of
from shardctl.sources.walked import roots_and_paths
from shardctl.system.arguments import contradiction
from shardctl.system.files import sha256_of
from shardctl.system.locations import is_stored, name_of, normal, within


@dataclass(frozen=True)
class LabelRule:
    """Where labels and annotations of images come from.

    `mode` is `auto`, `none`, `folder`, or `file`; then `files` has the labels files. With
    `lenient`, the files and the inputs may differ. `drop` names columns of the files that are left
    out. `annotation_rule` says how `annotations` are read. `classes` has the names of all classes
    in the order of their numbers, if the user pins them. A column of labels files has the labels
    if its name is one of `like`.
    """

    mode: str
    files: tuple[str, ...] = ()
    lenient: bool = False
    drop: tuple[str, ...] = ()
    annotations: tuple[Source, ...] = ()
    annotation_rule: AnnotationRule = field(default_factory=AnnotationRule)
    classes: tuple[str, ...] | None = None
    like: frozenset[str] = LIKE_LABELS

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
            raise contradiction(f"--labels {others[0]}", f"--labels {others[1]}")
        rule.check(annotations)
        mode = words[0] if words else "file" if others else "none" if annotations else "auto"
        return cls(
            mode, () if words else tuple(map(normal, others)), lenient, dropped, annotations, rule
        )

    def record(self) -> str | list[str]:
        """Return what `parse` reads, as plain data, with absolute paths."""
        files = [SourceRoot(file).recorded for file in self.files]
        texts = [*(files or [self.mode]), *map(str, map(_recorded, self.annotations))]
        return texts if len(texts) > 1 else texts[0]


def moved_labels(labels: Any, before: Sequence[str], now: Sequence[str]) -> Any:
    """Return labels as a manifest records them, those below sources of `before` below where these
    are now."""
    if isinstance(labels, list):
        return [moved_labels(each, before, now) for each in labels]
    for old, new in zip(before, now, strict=False):
        labels = str(labels).replace(f"{old}/", f"{new}/")
    return labels


def _recorded(source: Source) -> Source:
    return replace(source, path=SourceRoot(source.path).recorded) if source.path else source


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


def _group_of(folder: str, name: str, declared: str | None) -> Group:
    """Return the group of a file of many records; it is `declared` in which split it is."""
    stem = name[: len(name) - len(suffix_of(name))] if declared is None else declared
    if declared is None and folder and not may_name_a_split(stem):
        stem = ""
    return Group(folder, stem, declared is not None)


CLOCK_SECONDS = 2
"""How much earlier a time of change may be than the change: some file systems count in two
seconds."""


@dataclass
class Listing:
    """The inputs: a table of files on disk, and facts about them as a whole.

    `table` has a row for each file (WALKED_SCHEMA; LISTED_SCHEMA where files are appended), memory-mapped. `roots` are the sources. `whole`
    says that every file is one record; else all have many. `ignored` counts the other files by
    their endings. `side_files` are the labels files, each with the folder that its names start
    from, and `side_rows` has the row of each input in them, -1 where no row names it: (n,) int64.
    `lists` may name the images of splits. `beside` are the files that decide what is read of
    others, `unused` those that may be annotations. `told` are the splits that annotations or lists
    tell of. `inside` are the folders named as splits within files, by file, once these are cut.
    `label_states` are as `note_label_states` says. `warnings` say what should be looked at before
    the work begins.
    """

    table: pa.Table
    kind: SampleKind
    roots: Sequence[SourceRoot]
    whole: bool = True
    ignored: Counter[str] = field(default_factory=Counter)
    side_files: list[tuple[str, str]] = field(default_factory=list)
    lists: list[FoundFile] = field(default_factory=list)
    side: LabelTable | None = None
    side_rows: Numbers | None = None
    annotations: list[Annotations] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    beside: list[FoundFile] = field(default_factory=list)
    unused: Unused = field(default_factory=Unused)
    told: ToldSplits | None = None
    inside: dict[int, list[str]] = field(default_factory=dict)
    label_states: Json = field(default_factory=dict)

    @property
    def beside_states(self) -> list[str]:
        """The files that decide what is read of others, each with its size and time of change."""
        return sorted(
            f"{each.root} {each.path} {each.size} {each.mtime_ns}" for each in self.beside
        )

    @property
    def digest_beside(self) -> str:
        """What stands for the files that decide what is read of others, "" if there are none."""
        beside = "\0".join(self.beside_states).encode()
        return xxhash.xxh3_128_hexdigest(beside) if beside else ""

    @property
    def label_digests(self) -> list[str]:
        """The digests of what was read of labels files, annotations and lists, in hex."""
        of_side, of_lists = self.side and self.side.digests, self.told and self.told.digests
        of_annotations = (digest for each in self.annotations for digest in each.digests)
        return [*(of_side or ()), *of_annotations, *(of_lists or ())]

    def note_label_states(self, begun: float, said: list[str]) -> None:
        """Note the digests of labels files, in which states the files are that annotations were
        read of, and the notices of that; reading has begun at this time. Nothing is noted if one
        may have changed since, or is on a store."""
        places = [from_root(place) for each in self.annotations for place in each.places]
        if any(map(is_stored, places)):
            return
        has_read = places or self.side is not None
        if has_read and not have_changed(places, begun - CLOCK_SECONDS):
            files = [] if self.side is None else list(self.side.digests)
            self.label_states = {
                "files": files,
                "places": places,
                "states": states_of(places),
                "notices": said,
            }

    def labels_are(self, recorded: Json) -> bool:
        """Return whether labels files and annotations are as they were when a dataset was made, by
        what was noted then."""
        if not recorded:
            return False
        with suppress(OSError, ShardctlError):  # who reads them says what is wrong
            files = [sha256_of(Path(local_copy(file))) for file, _ in self.side_files]
            states = states_of(recorded["places"])
            return bool((files, states) == (recorded["files"], recorded["states"]))
        return False

    def note(self, which: str, **values: object) -> None:
        """Add a notice (making/notices.py)."""
        self.notices.append(notice(which, **values))

    def fresh(self) -> Listing:
        """Return the same for a plan, which adds notices to it and may take columns from its labels
        files."""
        made = copy(self)
        made.notices, made.warnings = list(self.notices), list(self.warnings)
        return made

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def hashes(self) -> Hashes:
        """A 64-bit hash of every path, in the order of the walk. (n,) uint64."""
        return hash_column(self.table["path"])

    @property
    def groups(self) -> list[Group]:
        """The groups of files, in the order of the walk."""
        return self._grouped[0]

    @property
    def group(self) -> Numbers:
        """The place of the group of each file in `groups`, (n,) int32."""
        return self._grouped[1]

    @cached_property
    def _grouped(self) -> tuple[list[Group], Numbers]:
        groups: dict[Group, int] = {}
        numbers, of_folder, split_of = array("i"), Group("/", ""), declared_splits()
        for root, path in roots_and_paths(self.table):
            folder, _, name = path.rpartition("/")
            if not self.whole:
                declared = split_of(name, self._place(root, path))
                of_folder = _group_of(folder, name, declared)
            elif folder != of_folder.folder:
                of_folder = Group(folder, "")
            numbers.append(groups.setdefault(of_folder, len(groups)))
        return list(groups), np.array(numbers, np.int32)

    @property
    def root_names(self) -> list[str]:
        """The last part of the path of every source, for a file without its suffix."""
        return [
            root.name if root.is_folder else Path(name_of(root.text)).stem for root in self.roots
        ]

    def opened(self, row: dict[str, Any]) -> str:
        """Return the path or the URL by which a file of the table can be opened."""
        return self._place(row["root"], row["path"])

    def _place(self, root: int, path: str) -> str:
        folder, source = self._folders[root]
        return source if folder is None else f"{folder}{path}"

    def rows_at(self, rows: Sequence[int] | Numbers) -> list[dict[str, Any]]:
        """Return some rows of the table, with what is needed to open the files."""
        files, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        found = table_rows(self.table.select(["path", "root", "mtime_ns"]), files).to_pylist()
        return [found[place] for place in places.tolist()]

    def places_of(self, rows: Sequence[int]) -> list[tuple[str, str]]:
        """Return by what some files are opened, and the folders of their sources."""
        bases = [root.base for root in self.roots]
        return [(self.opened(row), bases[row["root"]]) for row in self.rows_at(rows)]

    @cached_property
    def _folders(self) -> list[tuple[str | None, str]]:
        """How the names of files of each source begin, None if it is a file; and the source
        itself."""
        return [(within(root.text) if root.is_folder else None, root.text) for root in self.roots]

    def paths_at(self, rows: Numbers) -> list[str]:
        """Return the paths of some files."""
        column = self.table["path"]  # not its take(), which imports pyarrow.compute: 40 ms
        return [column[row].as_py() for row in rows.tolist()]

    @cached_property
    def told_sets(self) -> tuple[dict[str, Bools], list[str], bool]:
        """What annotations or lists tell of the inputs of each split (ToldSplits.found). Raises
        InputError."""
        if not self.told:
            return {}, [], False
        return self.told.found(PathTable(tuple(self.roots), self.table))

    @cached_property
    def folder_of_group(self) -> Numbers:
        """The number of the folder of each group, in the order of the walk: (groups,) int64."""
        numbers: dict[str, int] = {}
        found = [numbers.setdefault(group.folder, len(numbers)) for group in self.groups]
        return np.array(found, np.int64)

    @cached_property
    def total_bytes(self) -> int:
        """The bytes of all files together."""
        return int(np.sum(numbers_of(self.table["size"])))
