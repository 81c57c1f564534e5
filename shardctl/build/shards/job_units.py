"""The units of a job, in the order in which they are worked on: those of sources on a store are fetched ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardctl.build.shards import prefetch
from shardctl.build.shards.inputs import beside
from shardctl.build.shards.job import Job, Planned
from shardctl.build.shards.mask_files import mask_path
from shardctl.build.shards.prefetch import Wanted
from shardctl.sources.remote import remote_files


def ahead(job: Job, units: Iterable[Planned]) -> Iterable[Planned]:
    """Return the same units, each of which can be read at once when it is its turn."""
    return prefetch.along(units, lambda planned: wanted_of(job, planned)) if job.on_store else units


def wanted_of(job: Job, planned: Planned) -> Sequence[Wanted]:
    """Return the objects that a unit is read from."""
    path, file = job.path_of(planned.file), planned.file
    if planned.fault is not None or not remote_files.is_brought(path):
        return ()
    version = job.version_of(file)
    if job.fields is not None:
        return (Wanted(path, file.size, version, False),)
    wanted = Wanted(path, planned.unit.size, version, True)
    mask = mask_path(job, planned)
    return (wanted,) if mask is None or not remote_files.is_brought(mask) else (wanted, beside(mask))
