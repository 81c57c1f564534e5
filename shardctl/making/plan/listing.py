"""The list of files: one walk over the sources, written as a table on disk with a row per file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.format.arrays import Bools, Hashes, Numbers, hash_names, numbers_of, table_rows
from shardctl.making.notices import notice
from shardctl.sources.annotations import (
    AnnotationRule,
    Annotations,
    PathTable,
    Source,
    parse_source,
)
from shardctl.sources.annotations.inputs import ToldSplits
from shardctl.sources.files import SourceRoot
from shardctl.sources.kinds import SampleKind
from shardctl.sources.label_table import LabelTable
from shardctl.system.arguments import contradiction
from shardctl.system.locations import name_of, normal, within

CHUNK_ROWS = 65536
"""Rows of a table that are in memory at a time."""


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
            raise contradiction(f"--labels {others[0]}", f"--labels {others[1]}")
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

    `table` has a row for each file (LISTING_SCHEMA, perhaps without hashes), memory-mapped. `roots`
    are the sources. `whole` says that every file is one record; else all have many. The
    table has the index of each file's group in `groups`. `side_rows` is each file's row of the
    labels files, -1 where no row names it: (n,) int64. `beside` names the files that decide what is
    read of others, each with its size and time of change. `told` are the splits that annotations or
    lists tell of. `inside` are the folders named as splits within files, by file, once these are
    cut. `warnings` say what should be looked at before the work begins. Where the list was made from the table of a
    dataset, `rows_before` has the digest of that, and the row of each file in it, -1 for a new one:
    (n,) int64.
    """

    table: pa.Table
    kind: SampleKind
    roots: Sequence[SourceRoot]
    whole: bool
    groups: list[Group]
    ignored: Counter[str]
    side: LabelTable | None = None
    side_rows: Numbers | None = None
    annotations: list[Annotations] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    told: ToldSplits | None = None
    inside: dict[int, list[str]] = field(default_factory=dict)
    rows_before: tuple[str, Numbers] | None = None

    @property
    def digest_beside(self) -> str:
        """What stands for the files that decide what is read of others, "" if there are none."""
        beside = "\0".join(sorted(self.beside)).encode()
        return xxhash.xxh3_128_hexdigest(beside) if beside else ""

    def note(self, which: str, **values: object) -> None:
        """Add a notice (making/notices.py)."""
        self.notices.append(notice(which, **values))

    def fresh(self) -> Listing:
        """Return the same for a plan, which adds notices to it and may take columns from its labels
        files."""
        return replace(self, notices=list(self.notices), warnings=list(self.warnings))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def hashes(self) -> Hashes:
        """A 64-bit hash of every path, in the order of the walk. (n,) uint64."""
        if "hash" in self.table.column_names:
            return numbers_of(self.table["hash"])
        batches = self.table.select(["path"]).to_batches(max_chunksize=CHUNK_ROWS)
        paths = (batch.column(0).to_pylist() for batch in batches)
        return np.concatenate([np.empty(0, np.uint64), *map(hash_names, paths)])

    @property
    def root_names(self) -> list[str]:
        """The last part of the path of every source, for a file without its suffix."""
        return [
            root.name if root.is_folder else Path(name_of(root.text)).stem for root in self.roots
        ]

    def opened(self, row: dict[str, Any]) -> str:
        """Return the path or the URL by which a file of the table can be opened."""
        folder, root = self._folders[row["root"]]
        return root if folder is None else f"{folder}{row['path']}"

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
