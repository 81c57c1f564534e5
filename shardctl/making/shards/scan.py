"""What is found out about files before there is a plan: their units, the types of their fields, and some records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.format.names import Json
from shardctl.making.shards.inputs import ReadRequest, prefetched
from shardctl.sources.format_table import PLAIN_TEXTS
from shardctl.sources.formats import (
    Misfit,
    Reading,
    Unit,
    check_file,
    copy_to_read,
    find_format,
    note_on,
)
from shardctl.sources.types import Types
from shardctl.system.files import naming_the_path, ordinary
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE, WorkerProgress


@dataclass
class PrePlanTask:
    """Work on some things, one after the other, that is done before there is a plan.

    `look(thing, progress)` says what was found in one, where the progress slot has its number; it
    sets the stage where that is not `read`. It raises Rejection, OSError, MemoryError. It is a
    function of a module, or a partial of one: it goes to other processes.
    """

    things: Sequence[Any]
    look: Callable[[Any, WorkerProgress], Json]

    def requests(self, number: int) -> Sequence[ReadRequest]:
        """Return what a thing is read from: what it is, or says."""
        thing = self.things[number]
        return (thing if isinstance(thing, ReadRequest) else thing.request,)

    def finish(self, found: Found) -> None:
        """All have been looked at, but for those that are lost: add to what was found in them, if
        there is more."""


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes of a file: a piece to scan, or a unit whose types are wanted (`unit`).
    `suffix` tells its format.

    `opened` is its path or its URL; `version` is the number of that of an object on a store, 0
    where it does not matter.
    """

    opened: str
    suffix: str
    offset: int
    size: int
    unit: tuple[int, ...] | None = None
    version: int = 0

    @property
    def request(self) -> ReadRequest:
        """What is read where it is on a store."""
        return ReadRequest(self.opened, self.size, self.version, False)

    def path_to_read(self) -> str:
        """Return a path at which the file can be read now. Raises as `copy_to_read` does."""
        return copy_to_read(self.opened, self.suffix, self.version)


Found = list[Any]
"""What was found in each part: {"scan": …}, {"types": …} or {"fault": [stage, error, message]}; of
files {"hash": …}."""


@dataclass(frozen=True)
class ExamineTask:
    """A task before there is a plan, its place among others, and what is `lost` of it: what ends
    every process that looks at it."""

    number: int
    task: PrePlanTask
    lost: dict[int, Rejection]


def run_task(task: PrePlanTask, progress: WorkerProgress, lost: Mapping[int, Rejection]) -> Found:
    """Look at everything. `lost` are those that end every process that looks at them."""
    found: Found = []
    for number in prefetched(range(len(task.things)), task.requests):
        progress.begin(number)
        try:
            if number in lost:
                raise lost[number]
            found.append(task.look(task.things[number], progress))
        except Rejection as rejection:
            found.append({"fault": [rejection.stage, rejection.error, rejection.message]})
        except OSError as error:
            found.append(
                {"fault": ["read", "unreadable", f"cannot be read ({error.strerror or error})"]}
            )
        except MemoryError:
            found.append({"fault": ["read", "out-of-memory", OUT_OF_MEMORY_MESSAGE]})
        progress.leave()
    task.finish(found)
    return found


def scan(part: ByteRange, _progress: WorkerProgress, reading: Reading, shuffled: bool) -> Json:
    """Scan a part, or find the types of its fields."""
    path = part.path_to_read()
    form = find_format(part.suffix, reading, shuffled)
    if part.unit is not None:
        types: Types = form.types(path, Unit(*part.unit), reading)
        return {"types": types.packed()}
    if part.offset == 0 and part.suffix in PLAIN_TEXTS:
        # it imports compressions, which few files need
        from shardctl.sources.formats.content import refuse_other_content

        with open(path, "rb", buffering=0, opener=ordinary) as file:
            refuse_other_content(file.read(16))
    return {"scan": form.scan(path, part.offset, part.size, reading)}


MOST_REJECTS = 1000
"""Rejected records of a unit that are named; the others are counted."""


def read_all(part: ByteRange, _progress: WorkerProgress) -> Json:
    """Read a unit, each record with the types that its own unit needs. Raises Rejection, OSError.

    Found is {"records": …, "rejects": […], "more": …, "note": …}. A reject is [number, error,
    message], `more` counts those that are not named, `note` is [kind, message] or None.
    """
    path, reading, unit = part.path_to_read(), Reading(), _unit_of(part)
    note = None
    if unit.first == 1:
        check_file(part.suffix, path)
        note = note_on(part.suffix, path)
    form = find_format(part.suffix, reading)
    schema = form.types(path, unit, reading).found()
    records, rejects = 0, list[list[Any]]()
    try:
        for parsed in form.read(path, unit, reading, schema, None, xxhash.xxh3_64()):
            records += len(parsed.numbers) + len(parsed.rejects)
            rejects += [[number, why.error, why.message] for number, why in parsed.rejects]
    except Misfit as misfit:
        rejects.append([unit.first + records, "other-type", str(misfit)])
    more = max(0, len(rejects) - MOST_REJECTS)
    return {"records": unit.records, "rejects": rejects[:MOST_REJECTS], "more": more, "note": note}


def read_some(
    part: ByteRange,
    _progress: WorkerProgress,
    reading: Reading,
    wanted: Sequence[int],
    out: str,
    schema: pa.Schema,
) -> Json:
    """Write the wanted records of a unit into a new Arrow file. Raises Rejection, OSError,
    StorageError.

    `wanted` are their numbers, increasing, `schema` their columns, as `Types.found` gives them. The
    file has one column more, with the numbers of the records (int64). Found is {"rows": …,
    "reject": …}, the first reject being a sentence or None.
    """
    form, left = find_format(part.suffix, reading), len(wanted)
    choose = partial(np.isin, test_elements=np.array(wanted, np.int64))
    rows, reject = 0, None
    with ExitStack() as stack:
        writer = cache(lambda kind: stack.enter_context(pa.ipc.new_file(out, kind)))
        try:
            for parsed in form.read(
                part.path_to_read(), _unit_of(part), reading, schema, choose, xxhash.xxh3_64()
            ):
                batch = parsed.batch.append_column("number", pa.array(parsed.numbers))
                with naming_the_path(Path(out)):  # its faults are none of the file that is read
                    writer(batch.schema).write(batch)
                rows += batch.num_rows
                reject = reject or next((str(rejection) for _, rejection in parsed.rejects), None)
                left -= len(parsed.numbers) + len(parsed.rejects)
                if left <= 0:
                    break
        except Misfit as misfit:
            raise Rejection("read", "other-type", str(misfit)) from misfit
        with naming_the_path(Path(out)):
            stack.close()
    return {"rows": rows, "reject": reject}


def _unit_of(part: ByteRange) -> Unit:
    assert part.unit is not None, "units are read, and not pieces"
    return Unit(*part.unit)
