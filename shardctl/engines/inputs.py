"""Reading the inputs of a job, and telling an input that cannot be read from a source that does not answer."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.job import Job
from shardctl.engines.samples import Root, open_at_once, read_input, read_recorded
from shardctl.errors import Rejection, SourceGoneError
from shardctl.storage import printable

NO_ANSWER = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN})
"""What the system says where a disk or a server does not answer. It says the same of a single bad sector."""

OTHERS = 3
"""How many other inputs are tried, far from each other, before a source counts as gone: bad sectors lie side by side."""

OTHER_BYTES = 1 << 16
"""How much of another input is read."""


def read_planned(job: Job, number: int, row: dict[str, Any]) -> bytes:
    """Return the bytes of one input, `row` `number` of the job's plan.

    Raises Rejection (stages `plan`, `read`), SourceGoneError if the whole source has gone away or does not answer.
    """
    try:
        return _reader(job)(job.roots, row)
    except Rejection as rejection:
        cause = rejection.__cause__
        if isinstance(cause, OSError) and cause.errno in NO_ANSWER:
            _look_at_others(job, number, row, cause)
        raise


def compare_reads(job: Job, number: int, attempt: int, crumb: Breadcrumb, given_up: bool) -> None:
    """See whether a source answers, after an input of it could not be read in time: read another one, then this again.

    `attempt`, from 0, chooses the other one; where there is none, the input itself takes its place. An input that is `given_up`
    is not read again. Raises SourceGoneError; a read that does not return is the pool's to notice.
    """
    row = _row(job, number)
    others = _other_inputs(job, number, row)
    other = int(others[attempt % len(others)]) if len(others) else number
    crumb.drop(other, "compare")
    _forget(job, _row(job, other))
    with contextlib.suppress(Rejection):
        read_planned(job, other, _row(job, other))
    if not given_up:
        crumb.drop(number)
        _forget(job, row)
        with contextlib.suppress(Rejection):
            read_planned(job, number, row)
    crumb.leave()


def _reader(job: Job) -> Callable[[tuple[Root, ...], dict[str, Any]], bytes]:
    return read_recorded if "digest" in job.plan.column_names else read_input


def _row(job: Job, number: int) -> dict[str, Any]:
    row: dict[str, Any] = job.plan.slice(number, 1).to_pylist()[0]
    return row


def _path(job: Job, row: dict[str, Any]) -> str:
    return f"{job.roots[row['root']].path}/{row['source']}"


def _other_inputs(job: Job, number: int, row: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Return the inputs of the same root in other files, those that come later first: they are not in memory yet.

    Where one file holds all inputs, they are the others in that file. Empty ones are left out: to read nothing shows nothing.
    """
    import pyarrow.compute as pc  # 40 ms, and hardly ever needed

    plan = job.plan
    able = pc.and_(pc.equal(plan["root"], row["root"]), pc.greater(plan["size"], 0))
    others = np.flatnonzero(pc.and_(able, pc.not_equal(plan["source"], row["source"])))
    if not len(others):
        others = np.flatnonzero(pc.and_(able, pc.not_equal(plan["offset"], row["offset"])))
    return np.roll(others, -int(np.searchsorted(others, number)))


def _look_at_others(job: Job, number: int, row: dict[str, Any], error: OSError) -> None:
    """Raise SourceGoneError if no other input of the same root can be read either, with the same kind of error."""
    others = _other_inputs(job, number, row)
    silent = None
    for other in others[:: max(1, -(-len(others) // OTHERS))]:
        compared = _row(job, int(other))
        try:
            _forget(job, compared)
            with open(_path(job, compared), "rb", buffering=0, opener=open_at_once) as file:
                file.seek(compared["offset"])
                file.read(min(compared["size"], OTHER_BYTES))
            return
        except OSError as problem:
            if problem.errno in NO_ANSWER:
                silent = compared
    if silent is not None:
        raise SourceGoneError(
            f"{printable(job.roots[row['root']].path)}: the source does not respond: {printable(row['key'])} cannot be read"
            f" ({error.strerror}), and {printable(silent['key'])} cannot either; check its disk or server"
        )


def _forget(job: Job, row: dict[str, Any]) -> None:
    """Drop a file from the page cache, which answers even when the disk does not."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            descriptor = open_at_once(_path(job, row), os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
