"""Reading the files of a job, and telling one that cannot be read from a source that does not
answer."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from shardctl.errors import Rejection, SourceGoneError
from shardctl.making.shards import prefetch
from shardctl.making.shards.job import Job
from shardctl.making.shards.planned import PlannedUnit
from shardctl.making.shards.prefetch import ReadRequest
from shardctl.sources import files
from shardctl.sources.annotations.masks import MASK_FILE
from shardctl.sources.files import read_part, size_of
from shardctl.sources.formats import RECORD_BYTES
from shardctl.system.locations import follow, is_stored
from shardctl.system.processes.worker_state import WorkerProgress
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
        if job.roots[file.root].is_stored:
            return prefetch.take(path, unit.size, job.version_of(file))
        data, status = read_file(path, unit.size)
    except OSError as error:
        raise _unreadable(job, planned, error) from (
            None if isinstance(error, FileNotFoundError) else error
        )
    if not job.recorded and (status.st_mtime_ns != file.mtime_ns or len(data) != unit.size):
        raise changed(job, planned)
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
        raise _unreadable(job, planned, error) from (
            None if isinstance(error, FileNotFoundError) else error
        )


def _unreadable(job: Job, planned: PlannedUnit, error: OSError) -> Rejection:
    """Return the rejection of a unit that cannot be read. Raises SourceGoneError if its source is
    gone."""
    path = job.path_of(planned.file)
    if isinstance(error, FileNotFoundError):
        if job.recorded:
            return Rejection("read", "gone", f"its source is gone ({printable(path)})")
        job.check_root(planned.file)
        return Rejection("read", "vanished", "it was deleted after the files were listed")
    job.check_root(planned.file)
    if error.errno in NO_ANSWER:
        _look_at_others(job, planned, error)
    if job.recorded:
        return Rejection(
            "read", "unreadable", f"its source cannot be read ({printable(path)}: {error})"
        )
    return Rejection("read", "unreadable", f"cannot be read ({error.strerror or error})")


def request_beside(url: str) -> ReadRequest:
    """Return the object that `read_beside` reads."""
    return ReadRequest(url, prefetch.EXPECTED_BYTES, 0, True, RECORD_BYTES + 1)


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
            data = prefetch.take(path, RECORD_BYTES + 1)
            size = len(data) if len(data) <= RECORD_BYTES else size_of(path)
        else:
            size = os.stat(path).st_size  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
        if size > RECORD_BYTES:
            limit = format_bytes(RECORD_BYTES)
            message = (
                f"its {what} {printable(shown)} has {format_bytes(size)}, and at most "
                f"{limit} are read; make it smaller"
            )
            raise Rejection("read", "too-large", message)
        return data if is_stored(path) else read_file(path, RECORD_BYTES)[0]
    except (FileNotFoundError, NotADirectoryError):
        job.check_root(planned.file)
        error = "gone" if job.recorded else "vanished"
        raise Rejection(
            "read", error, f"its {what} {printable(shown)} is not there ({printable(path)})"
        ) from None
    except OSError as error:
        job.check_root(planned.file)
        if error.errno in NO_ANSWER:
            _look_at_others(job, planned, error)
        reason = error.strerror or error
        raise Rejection(
            "read", "unreadable", f"its {what} {printable(shown)} cannot be read ({reason})"
        ) from error


State = tuple[int, int, int]
"""The size of a file, when it was changed last, in ns, and its number in the file system."""


def state_of(job: Job, planned: PlannedUnit, path: str) -> State:
    """Return the state of a file of many records that lies at a path of this machine, where it or
    its copy is.

    Raises Rejection if it is not as it was when it was listed, OSError.
    """
    found = _state(path)
    if job.roots[planned.file.root].is_stored:
        return found
    if not job.recorded and found[:2] != (planned.file.size, planned.file.mtime_ns):
        raise changed(job, planned)
    return found


def check_state(job: Job, planned: PlannedUnit, path: str, before: State) -> None:
    """Raise Rejection if a file has changed while it was read."""
    # what was fetched is never written to
    if not job.roots[planned.file.root].is_stored and _state(path) != before:
        raise changed(job, planned)


def _state(path: str) -> State:
    status = os.stat(path)  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not an ordinary file")
    return status.st_size, status.st_mtime_ns, status.st_ino


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
    progress.begin(other, stage="compare")
    _read_again(job, job.planned_at(other))
    if not given_up:
        progress.begin(number)
        _read_again(job, job.planned_at(number))
    progress.leave()


def _read_again(job: Job, planned: PlannedUnit) -> None:
    """Read a unit's bytes from the disk, whatever they are."""
    with contextlib.suppress(Rejection), reading(job, planned):
        _forget(job.path_of(planned.file))
        _read_range(job.path_of(planned.file), planned.unit.offset, planned.unit.size)


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
            _forget(path)
            _read_range(path, offset, min(size, OTHER_BYTES))
            return
        except OSError as problem:
            if problem.errno in NO_ANSWER:
                silent = name
    if silent is not None:
        raise SourceGoneError(
            f"{printable(job.roots[planned.file.root].path)}: the source does not respond: "
            f"{' and '.join(dict.fromkeys((shown, silent)))} cannot be read ({error.strerror}); "
            "check its disk or server"
        )


def _forget(path: str) -> None:
    """Drop a file from the page cache, which answers even when the disk does not."""
    if hasattr(os, "posix_fadvise") and not is_stored(path):
        with contextlib.suppress(OSError):
            descriptor = open_at_once(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _read_range(path: str, offset: int, size: int) -> None:
    if is_stored(path):
        read_part(path, offset, size)
        return
    with open(path, "rb", buffering=0, opener=open_at_once) as file:
        file.seek(offset)
        while size > 0 and (data := file.read(min(size, 1 << 20))):
            size -= len(data)


def read_file(path: str, size: int) -> tuple[bytes, os.stat_result]:
    """Return `size` bytes of a file, or the part of them that exists, and the file's state after
    the last byte was read.

    It is never more than the file has, whatever the plan says. Raises OSError.
    """
    # a file object of Python takes as long as to read a small file
    file = open_at_once(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file")
        data = _read_fully(file, min(size, status.st_size))
        return data, os.fstat(file)
    finally:
        os.close(file)


def _read_fully(file: int, count: int) -> bytes:
    """Return the next `count` bytes, or those up to the end of the file: one read may return fewer,
    2 GiB at most."""
    data = os.read(file, count) if count > 0 else b""
    if len(data) >= count:
        return data
    parts = [data]
    while parts[-1] and (count := count - len(parts[-1])):
        parts.append(os.read(file, count))
    return b"".join(parts)


def open_at_once(path: str, flags: int) -> int:
    """Open without blocking: if the file is a pipe, an ordinary open would wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def digest_of(data: bytes) -> int:
    """Return the XXH3-64 of an input's bytes: how a later run knows whether the input is still the
    same."""
    return xxhash.xxh3_64_intdigest(data)


def mask_path(job: Job, planned: PlannedUnit) -> str | None:
    """Return the path or the URL of the mask file of an image, None if it has none."""
    where = (planned.file.columns or {}).get(MASK_FILE)
    return where and follow(job.roots[planned.file.root].path, where["path"])


def read_mask(job: Job, planned: PlannedUnit) -> dict[str, Any] | None:
    """Return the mask file of an image as the column `mask` has it, None if it has none. Raises
    Rejection, SourceGoneError."""
    path = mask_path(job, planned)
    if path is None:
        return None
    where = (planned.file.columns or {})[MASK_FILE]
    return {"bytes": read_beside(job, planned, path, where["name"], "mask"), "path": where["name"]}


def digest_with(data: bytes, mask: dict[str, Any]) -> int:
    """Return the digest of a unit that is an image and its mask."""
    return digest_of(
        digest_of(data).to_bytes(8, "little") + digest_of(mask["bytes"]).to_bytes(8, "little")
    )


def prefetched_units(job: Job, units: Iterable[PlannedUnit]) -> Iterable[PlannedUnit]:
    """Return the same units, each of which can be read at once when it is its turn."""
    return (
        prefetch.prefetched(units, lambda planned: requests_of(job, planned))
        if job.on_store
        else units
    )


def requests_of(job: Job, planned: PlannedUnit) -> Sequence[ReadRequest]:
    """Return what a unit is read from."""
    path, file = job.path_of(planned.file), planned.file
    if planned.fault is not None:
        return ()
    version = job.version_of(file)
    if job.fields is not None:
        return (ReadRequest(path, file.size, version, False),)
    wanted = ReadRequest(path, planned.unit.size, version, True)
    mask = mask_path(job, planned)
    return (wanted,) if mask is None else (wanted, request_beside(mask))
