"""The files of an unfinished conversion in the staging folder, and resuming it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.build.plan.fingerprint import difference
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.job import DONE_FOLDER, NEW_FOLDER, Job, Root
from shardctl.build.shards.marker import ShardMarker, read_finished
from shardctl.errors import DatasetError, UsageError
from shardctl.format.lazy_folder.files import is_file
from shardctl.format.names import JOB, REPLACED
from shardctl.system.files import PARTIAL, is_folder, naming_the_path, refuse_link, remove_tree
from shardctl.system.lease.file_lease import LEASE
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe

REPAIR_PREFIX = "repair-"
"""Prefix of the working folders of repair, in the staging folder. No repair resumes another one, except if that one has
begun to replace the dataset."""

_JOB_NAME = re.compile(r"([0-9a-f]{32}(-update)?|(repair|write)-[0-9a-f]+)(\.[0-9a-f]{8})*")
"""The names of folders of jobs: a fingerprint, or what a repair or shardctl.write calls itself; and those of discarded ones."""


def is_job_name(name: str) -> bool:
    """Return whether the folder of a job may have this name."""
    return _JOB_NAME.fullmatch(name) is not None


def jobs_in(staging: Path) -> list[Path]:
    """Return the folders in a staging folder that have the name of a job. Nothing else there is ever deleted: it is a person's.

    Raises OSError.
    """
    return sorted(path for path in staging.iterdir() if is_job_name(path.name) and is_folder(path))


def is_given_up(staging: Path) -> bool:
    """Return whether a staging folder has nothing but what a killed process was deleting: discarded jobs, and its lease."""
    with contextlib.suppress(OSError):
        discarded = {path.name for path in jobs_in(staging) if path.suffix}
        return is_folder(staging) and set(os.listdir(staging)) <= {LEASE, *discarded}
    return False


def record_of(folder: Path) -> dict[str, Any]:
    """Return what job.json says, unchecked. Raises OSError, ValueError."""
    return dict(json.loads((folder / JOB).read_bytes()))


def unfinished(folder: Path, roots: tuple[Root, ...], recipe: Recipe) -> DatasetJob | None:
    """Return the job that was begun in `folder` with this recipe, for the sources as they are now; None if none was.

    Writes nothing.
    """
    if not (folder / JOB).exists():
        return None
    try:
        return replace(DatasetJob.load(folder, recipe), roots=roots)
    except (DatasetError, UsageError):
        return None  # of a version whose jobs are other ones: as if it were another conversion's


def go_on(job: Job) -> None:
    """Prepare to resume an unfinished job."""
    clear_partial_files(job)
    job.save()


def clear_partial_files(job: Job) -> None:
    """Delete the incomplete files of killed workers."""
    _delete_partial(job, lambda name: True)


def clear_partial_files_of(job: Job, chosen: npt.NDArray[np.bool_]) -> None:
    """Delete the incomplete files of killed workers, of these shards alone: (shards,)."""
    names = set()
    for shard in np.flatnonzero(chosen).tolist():
        names |= {path(shard).name for path in (job.shard_path, job.marker_path, job.rejects_path)}
    _delete_partial(job, lambda name: name in names)


def _delete_partial(job: Job, wanted: Callable[[str], bool]) -> None:
    """Delete what was to become files with these names."""
    with naming_the_path(job.folder):
        for made in (NEW_FOLDER, DONE_FOLDER):
            for left in (job.folder / made).glob(f"*{PARTIAL}"):
                if wanted(left.name.rsplit(".", 2)[0]):
                    left.unlink(missing_ok=True)


def finished_shards(job: Job, chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[int, ShardMarker]]:
    """Yield those of the chosen shards (shards,) that are finished, each with the content of its marker."""
    for shard in marked_shards(job):
        if chosen[shard] and (done := read_finished(job, shard)):
            yield shard, done


def marked_shards(job: Job) -> list[int]:
    """Return the shards that have a marker, in their order. It is not read: where the power failed, it may be torn."""
    stems = (name.removesuffix(".arrow") for name in os.listdir(job.folder / DONE_FOLDER) if name.endswith(".arrow"))
    return sorted(int(stem) for stem in stems if stem.isdecimal() and int(stem) < job.shards)


def how_far(staging: Path) -> tuple[int, int] | None:
    """Return how many shards of the unfinished conversion are done, and how many it has; None if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it may end, or give way to another one, meanwhile
        for found in filter(is_file, staging.glob(f"*/{JOB}")):
            shards = sum(split["shards"] for split in json.loads(found.read_bytes())["splits"])
            return sum(1 for _ in (found.parent / DONE_FOLDER).glob("*.arrow")), shards
    return None


def begin(job: Job) -> None:
    """Make the folders of a job that begins. Its plan is there already; job.json, saved last, makes it one to go on from."""
    with naming_the_path(job.folder):
        for made in (NEW_FOLDER, DONE_FOLDER):
            (job.folder / made).mkdir()
        job.write_files()
    job.save()


def refuse_to_lose(staging: Path, folder: Path, parts: dict[str, str], recipe: Recipe) -> None:
    """Raise DatasetError if a job that begins in `folder` would throw away finished shards of another one.

    The job in `folder` itself counts as another one where this version of shardctl cannot go on with it. Writes nothing.
    """
    if not staging.exists() or unfinished(folder, (), recipe) is not None:
        return
    with naming_the_path(staging):
        for entry in sorted(staging.iterdir()):
            if (entry / JOB).exists():
                refuse_to_lose_job(entry, parts)


def make_room(staging: Path, folder: Path) -> None:
    """Clear the staging folder for a job that begins in `folder`."""
    with naming_the_path(staging):
        for job in jobs_in(staging):
            discard(job)
        folder.mkdir()


def discard(folder: Path) -> None:
    """Take away the folder of a job. What says that there is a job goes first: half of a folder is none to go on from.

    What says that its dataset takes its place goes when the name says that it is discarded. It is renamed before it is deleted:
    a worker whose parent was killed may still write files by the old path. Raises OSError, and StorageError if the folder, or
    the one that it lies in, is a link.
    """
    refuse_link(folder.parent)
    refuse_link(folder)
    (folder / JOB).unlink(missing_ok=True)
    discarded = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    folder.rename(discarded)
    (discarded / REPLACED).unlink(missing_ok=True)
    remove_tree(discarded, folder.parent.parent)


def refuse_to_lose_job(folder: Path, parts: dict[str, str] | None) -> None:
    """Raise DatasetError if the job in a folder has finished shards, and is another one than that of a fingerprint's `parts`.

    Its recipe is not read: it may name anybody's function. Without `parts` it is that of a conversion, and this is none.
    """
    done = sum(1 for each in (folder / DONE_FOLDER).glob("*") if not each.name.endswith(PARTIAL))
    what, made, other = "shards", "", "of another version of shardctl"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        record = json.loads((folder / JOB).read_bytes())
        if "written" in record and done and parts is None and record["written"] is not None:
            raise DatasetError(
                f"{printable(str(folder.parent.parent))}: holds {done:,} of {int(record['parts']):,} parts that an earlier call"
                " of shardctl.write made with other arguments or other code; overwrite=True begins anew"
            )
        if "written" in record:
            if record["written"] is None:
                return  # nothing can go on with it
            what, made, other = "parts", f" of {int(record['parts']):,}", "by shardctl.write"
        elif parts is None:
            other = "by shardctl convert"
        elif record["parts"] != parts:
            other = f"that differs in its {difference(record['parts'], parts)}"
            made = f" of {sum(split['shards'] for split in record['splits'])}"
    if done:
        raise DatasetError(
            f"{printable(str(folder.parent.parent))}: holds an unfinished conversion {other}, of which {done}{made} {what} are"
            " done; run its own command again, with its versions, to complete it, or use --overwrite to start over"
        )
