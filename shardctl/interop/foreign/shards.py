"""Shards of other tools: which files they are, how many records they have, and of which types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from shardctl.build.convert.discover import Discovery
from shardctl.build.options import INPUT_TIMEOUT
from shardctl.build.plan.listing import LabelRule, Listing, first_file, list_files
from shardctl.build.plan.plan import Units
from shardctl.build.shards.engines.local import Engine, local_engine
from shardctl.errors import InputError, UsageError
from shardctl.format.names import MANIFEST, SHARDS, STAGING
from shardctl.format.shard import INFO_KEY
from shardctl.sources.endings import ending_of, without_compression
from shardctl.sources.format_table import CONTAINER_SUFFIXES, FORMAT_NAMES, PLAIN_TEXTS
from shardctl.sources.formats import Reading
from shardctl.sources.formats.arrow import FILE_MAGIC
from shardctl.sources.kinds import KINDS, Form
from shardctl.sources.roots import SourceRoot
from shardctl.sources.walk import suffix_of
from shardctl.system.files import check_ordinary, is_file
from shardctl.system.processes.pool import Limits
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable

LIMITS = Limits(seconds=INPUT_TIMEOUT)

_ARROW = frozenset(FORMAT_NAMES["arrow"])
_OTHERS = {
    *CONTAINER_SUFFIXES,
    *(ending for endings in FORMAT_NAMES.values() for ending in endings),
} - _ARROW
"""The endings of files that cannot be shards of shardctl."""


def is_foreign(path: Path) -> bool:
    """Return whether a path is that of shards of another tool: a file, or a folder without a
    manifest that has some.

    Shards of shardctl whose manifest is lost are its own.
    """
    try:
        if path.is_file():
            return not (path.parent / MANIFEST).exists() and _is_of_others(path.name, str(path))
        if not path.is_dir() or any((path / name).exists() for name in (MANIFEST, SHARDS, STAGING)):
            return False
        found = first_file([SourceRoot(str(path))], KINDS["table"], Reading(), (Form.MANY,))
        return found is not None and _is_of_others(found.path, found.opened)
    except InputError:  # an index that lists what is not there
        return True
    except OSError:
        return False


def refuse_text(path: Path) -> None:
    """Raise UsageError for a file of text, which is neither a shard nor checked as one. Those of a
    dataset are others."""
    ending = without_compression(suffix_of(path.name))
    if ending in PLAIN_TEXTS and is_file(path) and not (path.parent / MANIFEST).exists():
        shown = printable(str(path))
        raise UsageError(
            f"{shown}: is text ({ending}) and no shard; `shardctl convert` says which of its "
            "records are bad"
        )


def _is_of_others(name: str, opened: str) -> bool:
    ending = without_compression(ending_of(name, opened))
    return ending in _OTHERS or (ending in _ARROW and not _is_own(opened))


def _is_own(path: str) -> bool:
    """Return whether an Arrow file is a shard of shardctl, or is too damaged to tell."""
    try:
        check_ordinary(path)
        with pa.OSFile(path) as file:
            start = file.read(len(FILE_MAGIC))
            file.seek(0)
            with (
                pa.ipc.open_file(file)
                if start == FILE_MAGIC
                else pa.ipc.open_stream(file) as reader
            ):
                return INFO_KEY in (reader.schema.metadata or {})
    except (pa.ArrowException, OSError, ValueError):
        return True


@dataclass(frozen=True)
class Shards:
    """The files of another tool, and their units."""

    listing: Listing
    units: Units
    discovery: Discovery

    @property
    def formats(self) -> dict[str, int]:
        """How many files there are of each format."""
        names = {
            ending: name for name, endings in reversed(FORMAT_NAMES.items()) for ending in endings
        }
        found: Counter[str] = Counter()
        for batch in self.listing.table.select(["path", "root"]).to_batches():
            for row in batch.to_pylist():
                ending = without_compression(ending_of(row["path"], self.listing.opened(row)))
                found[names.get(ending, ending.removeprefix("."))] += 1
        return dict(found.most_common())


@contextmanager
def open_shards(path: Path, workers: int | str) -> Iterator[tuple[Shards, Engine]]:
    """List the files at a path, and find their units, in processes that may be used on. Raises
    InputError."""
    with scratch_folder() as scratch:
        reading = Reading()
        engine = local_engine(workers, LIMITS)
        try:
            rule = LabelRule.parse("none")
            listing = list_files(
                [SourceRoot(str(path))],
                KINDS["table"],
                reading,
                rule,
                scratch / "listing.arrow",
                lambda _: None,
            )
            discovery = Discovery(listing, reading, False, engine)
            yield Shards(listing, discovery.find_units(), discovery), engine
        finally:
            engine.close()
