"""The units of a job, in the order in which they are worked on: those of sources on a store are
fetched ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardctl.build.shards import prefetch
from shardctl.build.shards.inputs import request_beside
from shardctl.build.shards.job import Job
from shardctl.build.shards.mask_files import mask_path
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.prefetch import ReadRequest
from shardctl.system.locations import is_stored


def prefetched_units(job: Job, units: Iterable[PlannedUnit]) -> Iterable[PlannedUnit]:
    """Return the same units, each of which can be read at once when it is its turn."""
    return (
        prefetch.prefetched(units, lambda planned: requests_of(job, planned))
        if job.on_store
        else units
    )


def requests_of(job: Job, planned: PlannedUnit) -> Sequence[ReadRequest]:
    """Return the objects that a unit is read from."""
    path, file = job.path_of(planned.file), planned.file
    if planned.fault is not None or not is_stored(path):
        return ()
    version = job.version_of(file)
    if job.fields is not None:
        return (ReadRequest(path, file.size, version, False),)
    wanted = ReadRequest(path, planned.unit.size, version, True)
    mask = mask_path(job, planned)
    return (wanted,) if mask is None or not is_stored(mask) else (wanted, request_beside(mask))
