"""Reading the files of a job, and telling one that cannot be read from a source that does not
answer.

Objects of sources on a store are asked for before they are needed: a worker knows which inputs
follow. Each request takes some ten milliseconds before its first byte comes, so that many are on
their way at the same time. Inputs that are one record each come into memory, others to the disk
(sources/files.py). While an object is waited for, the work is on no input: one that is large takes
its time. What went wrong shows when it is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection, SourceGoneError
from shardctl.format.names import Json
from shardctl.making.shards.job import Job, PlannedUnit
from shardctl.sources import files
from shardctl.sources.annotations.base import MASK_FILE
from shardctl.sources.files import (
    REQUESTS,
    Version,
    local_copy,
    local_version,
    read,
    read_file,
    stretch_of,
    version_of,
)
from shardctl.sources.format_table import PLAIN_TEXTS
from shardctl.sources.formats import (
    RECORD_BYTES,
    Misfit,
    Reading,
    Unit,
    check_file,
    copy_to_read,
    find_format,
)
from shardctl.system.files import check_ordinary, naming_the_path, open_ordinary
from shardctl.system.locations import follow, is_stored
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE, WorkerProgress
from shardctl.system.stores.base import PIECE
from shardctl.system.text import format_bytes, printable

NO_ANSWER = frozenset(
    {
        errno.EIO,
        errno.ENXIO,
        errno.ENODEV,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
    }
)
"""What the system says where a disk or a server does not answer. It says the same of a single bad
sector."""

OTHERS = 3
"""How many other inputs are tried, far from each other, before a source counts as gone: bad sectors
lie side by side."""

OTHER_BYTES = 1 << 16
"""How much of another input is read."""


AHEAD_BYTES = 64 << 20
"""Bytes that are asked for ahead, or one object if it has more."""

AHEAD_ITEMS = 256
"""Inputs, or units of them, that are looked at ahead."""

EXPECTED_BYTES = 1 << 20
"""What is taken for the size of an object that is not known: that of a large photo."""

T = TypeVar("T")


class ReadRequest(NamedTuple):
    """An object by its URL, its size in bytes, and the number of its version (0: whichever there
    is).

    `whole`: it is one record, and comes into memory. Where the size is only expected, up to `most`
    bytes are fetched.
    """

    url: str
    size: int
    version: int
    whole: bool
    most: int = 0


_came: dict[str, Future[bytes]] = {}
"""What is in memory, of the item that is worked on."""


def take(url: str, size: int, version: int = 0) -> bytes:
    """Return the bytes of an object: those that came ahead, else it is asked for now.

    Raises Rejection (changed), OSError, SourceGoneError.
    """
    future = _came.pop(url, None)
    return read(url, size, version) if future is None else future.result()


def prefetched(
    items: Iterable[T], requests_of: Callable[[T], Sequence[ReadRequest]]
) -> Iterator[T]:
    """Yield items when what they want of a store is there; that of the following ones is on its
    way."""
    waiting: deque[tuple[T, int, list[tuple[ReadRequest, Future[bytes]]]]] = deque()
    ahead, fetched_last = 0, ""

    def arrived() -> Iterator[T]:
        nonlocal ahead
        item, size, asked = waiting.popleft()
        wait([future for _, future in asked])
        ahead -= size
        came = {each.url: future for each, future in asked if each.whole}
        _came.update(came)
        yield item
        for url in came:
            _came.pop(url, None)

    try:
        for item in items:
            # Units of one file follow each other: it is fetched once.
            wants = [
                each
                for each in requests_of(item)
                if is_stored(each.url) and (each.whole or each.url != fetched_last)
            ]
            size = sum(each.size for each in wants)
            while waiting and (ahead + size > AHEAD_BYTES or len(waiting) >= AHEAD_ITEMS):
                yield from arrived()
            ahead += size
            fetched_last = next((each.url for each in wants if not each.whole), fetched_last)
            pool = _pool(os.getpid())
            asked = [(each, pool.submit(_fetch, each)) for each in wants]
            waiting.append((item, size, asked))
        while waiting:
            yield from arrived()
    finally:
        for _, _, asked in waiting:
            for _, future in asked:
                future.cancel()


def _fetch(request: ReadRequest) -> bytes:
    if request.whole:
        return read(request.url, request.most or request.size, request.version)
    local_copy(request.url, request.version)
    return b""


@lru_cache(1)
def _pool(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS, thread_name_prefix="shardctl-fetch")


def read_whole(job: Job, planned: PlannedUnit) -> bytes:
    """Return the bytes of a file that is one record.

    Raises Rejection (stages `plan`, `read`), SourceGoneError if the whole source has gone away or
    does not answer.
    """
    _, unit, _, file, fault, _ = planned
    if fault is not None:
        raise fault
    path = job.path_of(file)
    try:  # as `reading` does, which takes a third as long as to read a small file
        return read_listed(path, unit.size, None if job.recorded else file.mtime_ns)
    except OSError as error:
        raise _unreadable(job, planned, error) from error


def read_listed(path: str, size: int, version: int | None) -> bytes:
    """Return the bytes of a file that was listed with this size and this version; None: whichever
    there is now. Raises Rejection if it has changed since, OSError, SourceGoneError."""
    if is_stored(path):
        return take(path, size, version or 0)
    data, status = read_file(path, size)
    found = len(data), status.st_size, status.st_mtime_ns
    if version is not None and found != (size, size, version):
        raise files.changed()
    return data


@contextlib.contextmanager
def reading(job: Job, planned: PlannedUnit) -> Iterator[None]:
    """Turn what goes wrong while a unit is read within the block into a Rejection, or
    SourceGoneError if its source is gone."""
    if planned.fault is not None:
        raise planned.fault
    try:
        yield
    except OSError as error:
        raise _unreadable(job, planned, error) from error


def _unreadable(
    job: Job, planned: PlannedUnit, error: OSError, beside: str = "", path: str = ""
) -> Rejection:
    """Return the rejection of a unit that cannot be read, or whose record names a file `beside`
    at a path that cannot be. Raises SourceGoneError if its source is gone."""
    reason, shown = error.strerror or error, printable(path or job.path_of(planned.file))
    missing = isinstance(error, FileNotFoundError)
    if missing and job.recorded and not beside:
        return Rejection("read", "gone", f"its source is gone ({shown})")
    job.bases[planned.file.root].check()
    if beside and (missing or isinstance(error, NotADirectoryError)):
        fault = "gone" if job.recorded else "vanished"
        return Rejection("read", fault, f"{beside} is not there ({shown})")
    if missing:
        return Rejection("read", "vanished", "it was deleted after the files were listed")
    if error.errno in NO_ANSWER:
        _look_at_others(job, planned, error)
    if job.recorded and not beside:
        message = f"its source cannot be read ({shown}: {error})"
    else:
        message = f"{beside} cannot be read ({reason})".strip()
    return Rejection("read", "unreadable", message)


def request_beside(url: str) -> ReadRequest:
    """Return the object that `read_beside` reads."""
    return ReadRequest(url, EXPECTED_BYTES, 0, True, RECORD_BYTES + 1)


def read_beside(
    job: Job, planned: PlannedUnit, path: str, shown: str, what: str = "image"
) -> bytes:
    """Return the bytes of a file that a record of a unit names. `shown` is its name in messages,
    `what` it is.

    Raises Rejection (stage `read`) also if it is larger than a record may be, SourceGoneError if
    the whole source has gone away or does not answer.
    """
    try:
        if is_stored(path):
            data, size = take(path, RECORD_BYTES + 1), 0
        else:
            data, status = read_file(path, RECORD_BYTES + 1)
            size = status.st_size
        if len(data) > RECORD_BYTES:
            message = (
                f"its {what} {printable(shown)} has {format_bytes(size or version_of(path)[0])}, and at "
                f"most {format_bytes(RECORD_BYTES)} are read; make it smaller"
            )
            raise Rejection("read", "too-large", message)
        return data
    except OSError as error:
        beside = f"its {what} {printable(shown)}"
        raise _unreadable(job, planned, error, beside, path) from error


def state_of(job: Job, planned: PlannedUnit, path: str) -> Version:
    """Return the state of a file of many records that lies at a path of this machine, where it or
    its copy is.

    Raises Rejection if it is not as it was when it was listed, OSError.
    """
    check_ordinary(path)
    found, listed = local_version(path), (planned.file.size, planned.file.mtime_ns)
    if found[:2] != listed and not (job.recorded or job.bases[planned.file.root].is_stored):
        raise changed(job, planned)
    return found


def changed(job: Job, planned: PlannedUnit) -> Rejection:
    """Return the rejection of a unit that is not what it was when it was listed, or when the
    dataset was made."""
    if job.recorded:
        return Rejection(
            "read", "changed", f"its source has changed ({printable(job.path_of(planned.file))})"
        )
    return files.changed()


def check_digest(job: Job, planned: PlannedUnit, digest: int) -> None:
    """Raise Rejection if a unit is not what a finished dataset was made from."""
    if job.recorded and planned.digest is not None and digest != planned.digest:
        raise changed(job, planned)


def compare_reads(
    job: Job, number: int, attempt: int, progress: WorkerProgress, given_up: bool
) -> None:
    """See whether a source answers, after an input of it could not be read in time: read another
    one, then this again.

    `attempt`, from 0, chooses the other one; where there is none, the input itself takes its place.
    An input that is `given_up` is not read again. Raises SourceGoneError; a read that does not
    return is the pool's to notice.
    """
    others = _other_units(job, job.planned_at(number))
    other = int(others[attempt % len(others)]) if len(others) else number
    for which, stage in ((other, "compare"), (number, "read")):
        if stage == "compare" or not given_up:
            progress.begin(which, stage=stage)
            planned = job.planned_at(which)
            path = job.path_of(planned.file)
            with contextlib.suppress(Rejection), reading(job, planned):  # whatever the bytes are
                _read_range(path, planned.unit.offset, planned.unit.size)
    progress.leave()


def _other_units(job: Job, planned: PlannedUnit) -> npt.NDArray[np.int64]:
    """Return units of the same root in other files, those that come later first: they are not in
    memory yet.

    Where one file holds all units, they are the others in that file. Empty ones are left out: to
    read nothing shows nothing.
    """
    file, size = job.plan["file"].to_numpy(), job.plan["size"].to_numpy()
    able = (size > 0) & (job.files["root"].to_numpy()[file] == planned.file.root)
    number = job.plan["file"][planned.number].as_py()
    others = np.flatnonzero(able & (file != number))
    if not len(others):
        others = np.flatnonzero(able & (job.plan["offset"].to_numpy() != planned.unit.offset))
    return np.roll(others, -int(np.searchsorted(others, planned.number)))


def _look_at_others(job: Job, planned: PlannedUnit, error: OSError) -> None:
    """Raise SourceGoneError if nothing else of the same root can be read either, with the same kind
    of error: no other unit, or where there is none, no part of this one."""
    path, unit, shown = job.path_of(planned.file), planned.unit, printable(planned.file.path)
    others = _other_units(job, planned)
    tried = [
        (job.path_of(other.file), other.unit.offset, other.unit.size, printable(other.file.path))
        for other in map(job.planned_at, others[:: max(1, -(-len(others) // OTHERS))].tolist())
    ]
    if not tried and unit.records > 1:
        part = unit.size // OTHERS
        tried = [(path, unit.offset + number * part, part, shown) for number in range(OTHERS)]
    silent = None
    for path, offset, size, name in tried:
        try:
            _read_range(path, offset, min(size, OTHER_BYTES))
            return
        except OSError as problem:
            if problem.errno in NO_ANSWER:
                silent = name
    if silent is not None:
        raise SourceGoneError(
            f"{printable(job.bases[planned.file.root].path)}: the source does not respond: "
            f"{' and '.join(dict.fromkeys((shown, silent)))} cannot be read ({error.strerror}); "
            "check its disk or server"
        )


def _read_range(path: str, offset: int, size: int) -> None:
    """Read some bytes of a file, and not from the page cache, which answers even when the disk does
    not. Raises OSError."""
    if is_stored(path):
        stretch_of(path, offset, min(size, PIECE))
        return
    with open_ordinary(path) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(offset)
        while size > 0 and (data := file.read(min(size, 1 << 20))):
            size -= len(data)


def digest_of(data: bytes) -> int:
    """Return the XXH3-64 of an input's bytes: how a later run knows whether the input is still the
    same."""
    return xxhash.xxh3_64_intdigest(data)


def mask_path(job: Job, planned: PlannedUnit) -> str | None:
    """Return the path or the URL of the mask file of an image, None if it has none."""
    where = planned.file.columns.get(MASK_FILE)
    return where and follow(job.bases[planned.file.root].path, where["path"])


def read_mask(job: Job, planned: PlannedUnit) -> dict[str, Any] | None:
    """Return the mask file of an image as the column `mask` has it, None if it has none. Raises
    Rejection, SourceGoneError."""
    path = mask_path(job, planned)
    if path is None:
        return None
    where = planned.file.columns[MASK_FILE]
    return {"bytes": read_beside(job, planned, path, where["name"], "mask"), "path": where["name"]}


def prefetched_units(job: Job, units: Iterable[PlannedUnit]) -> Iterable[PlannedUnit]:
    """Return the same units, each of which can be read at once when it is its turn."""
    return prefetched(units, lambda planned: requests_of(job, planned)) if job.on_store else units


def requests_of(job: Job, planned: PlannedUnit) -> Sequence[ReadRequest]:
    """Return what a unit is read from."""
    path, file = job.path_of(planned.file), planned.file
    if planned.fault is not None:
        return ()
    version = job.version_of(file)
    if not job.whole:
        return (ReadRequest(path, file.size, version, False),)
    wanted = ReadRequest(path, planned.unit.size, version, True)
    mask = mask_path(job, planned)
    return (wanted,) if mask is None else (wanted, request_beside(mask))


# --- what is found out about files before there is a plan: their units, the types of their fields, and
# some records ---


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
"""What was found in each part: {"scan": …}, {"types": Types} or {"fault": [stage, error, message]}; of
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
        return {"types": form.types(path, Unit(*part.unit), reading)}
    if part.offset == 0 and part.suffix in PLAIN_TEXTS:
        # it imports compressions, which few files need
        from shardctl.sources.formats.content import refuse_other_content

        with open_ordinary(path) as file:
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
    note = check_file(part.suffix, path) if unit.first == 1 else None
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
