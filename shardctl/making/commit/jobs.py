"""The jobs of a dataset that are unfinished: their folders, and what is done of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import Bools
from shardctl.format.manifest import Manifest
from shardctl.format.names import DATA
from shardctl.making.plan.fingerprint import difference
from shardctl.making.shards.job import RECIPE_FOLDER, DatasetJob, Job, SourceBase
from shardctl.making.shards.marker import ShardMarker, read_finished, record_of_marker
from shardctl.system.files import is_file, is_folder, make_folder, naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import DONE_FOLDER, JOB, JobFolder
from shardctl.transforms.recipe import Recipe

REPAIR_PREFIX = "repair-"
"""Prefix of the working folders of what no process can go on with: a repair, `prune`. The id of the
job comes after it."""

_JOB_NAME = re.compile(r"([0-9a-f]{32}(-update)?|(repair|write)-[0-9a-f]+)(\.[0-9a-f]{8})*")
"""The names of folders of jobs: a fingerprint, or what a repair or shardctl.write calls itself; and
those of discarded ones."""


def is_job_name(name: str) -> bool:
    """Return whether the folder of a job may have this name."""
    return _JOB_NAME.fullmatch(name) is not None


def jobs_in(staging: Path) -> list[Path]:
    """Return the folders in a staging folder that have the name of a job. Nothing else there is
    ever deleted: it is a person's.

    Raises OSError.
    """
    return sorted(path for path in staging.iterdir() if is_job_name(path.name) and is_folder(path))


def unfinished(folder: Path, bases: tuple[SourceBase, ...], recipe: Recipe) -> DatasetJob | None:
    """Return the job that was begun in `folder` with this recipe, for the sources as they are now;
    None if none was.

    Writes nothing.
    """
    if not JobFolder(folder).is_begun():
        return None
    try:
        return replace(DatasetJob.load(LocalFolder(folder), recipe), bases=bases)
    except (DatasetError, UsageError):
        return None  # of a version whose jobs are other ones: as if it were another conversion's


def id_of_job(folder: Path) -> str:
    """Return the id of the job in a folder, "" if it has none."""
    if folder.name.startswith(REPAIR_PREFIX):
        return folder.name.removeprefix(REPAIR_PREFIX)
    return JobFolder(folder).id


def has_made(folder: Path, there: Manifest | None) -> bool:
    """Return whether the dataset `there` is what the job in a folder has made."""
    return there is not None and there.job != "" and there.job == id_of_job(folder)


def is_resumable(folder: Path, there: Manifest | None) -> bool:
    """Return whether a process may go on with the job in a folder, where the dataset `there` is: not
    if it brings another one up to date."""
    if folder.suffix or folder.name.startswith(REPAIR_PREFIX) or not JobFolder(folder).is_begun():
        return False
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        before = JobFolder(folder).record()["digest_before"]
        return not before or (there is not None and there.samples_digest == before)
    return True


def shards_made(folder: Path, markers: Iterable[str] | None = None) -> list[str]:
    """Return the paths of the shards that the job in a folder has finished, as these of its markers
    name them; None: all. A marker that is torn names none."""
    job, made = JobFolder(folder), list[str]()
    # it may not have begun
    with naming_the_path(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for marker in job.markers() if markers is None else markers:
            stem, _, ending = marker.partition(".")
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, pa.ArrowException):
                if ending == "arrow":
                    made.append(record_of_marker(job.marker(stem, ".arrow"))["path"])
    return made


_PARTIAL = re.compile(r".+-[0-9]{5,}\.([0-9a-f]{8})\.[0-9a-f]{8}\.partial")


def job_of_partial(path: str) -> str:
    """Return the id of the job that was writing a shard; "" if this is no such file."""
    found = _PARTIAL.fullmatch(path)
    return found[1] if found else ""


def clear_partial_files(job: Job, chosen: Bools | None = None) -> None:
    """Delete the incomplete files of killed workers: of all shards, or of the chosen ones alone,
    (shards,)."""
    names = set()
    for shard in [] if chosen is None else np.flatnonzero(chosen).tolist():
        paths = (job.unfinished_path(shard), job.marker_path(shard), job.rejects_path(shard))
        names |= {path.name for path in paths}

    def is_wanted(name: str) -> bool:
        return chosen is None or name in names

    def of_job(name: str) -> bool:
        return name.endswith(f".{job.id}") and is_wanted(name)

    folder = JobFolder(job.folder)
    folder.delete_partial_files(job.shards_root / DATA, of_job)
    folder.delete_partial_files(job.folder / DONE_FOLDER, is_wanted)


def finished_shards(job: Job, chosen: Bools) -> Iterator[tuple[int, ShardMarker]]:
    """Yield those of the chosen shards (shards,) that are finished, each with the content of its
    marker."""
    for shard in marked_shards(job):
        if chosen[shard] and (done := read_finished(job, shard)):
            yield shard, done


def marked_shards(job: Job) -> list[int]:
    """Return the shards that have a marker, in their order. It is not read: where the power failed,
    it may be torn."""
    stems = (
        name.removesuffix(".arrow")
        for name in JobFolder(job.folder).markers()
        if name.endswith(".arrow")
    )
    return sorted(int(stem) for stem in stems if stem.isdecimal() and int(stem) < job.shards)


def how_far(staging: Path) -> tuple[int, int] | None:
    """Return how many shards of the unfinished conversion are done, and how many it has; None if
    there is none."""
    # it may end, or give way to another one, meanwhile
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for found in filter(is_file, staging.glob(f"*/{JOB}")):
            folder = JobFolder(found.parent)
            shards = sum(split["shards"] for split in folder.record()["splits"])
            return sum(name.endswith(".arrow") for name in folder.markers()), shards
    return None


def begin(job: Job) -> None:
    """Make the folders of a job that begins. Its plan is there already; job.json, saved last, makes
    it one to go on from."""
    JobFolder(job.folder).make_folders(RECIPE_FOLDER)
    make_folder(job.shards_root / DATA, job.shards_root)
    with naming_the_path(job.folder):
        job.write_recipe_files()
    job.save()


def refuse_to_discard(
    staging: LocalFolder, folder: Path, parts: dict[str, str], recipe: Recipe
) -> None:
    """Raise DatasetError if a job that begins in `folder` would throw away finished shards of
    another one.

    The job in `folder` itself counts as another one where this version of shardctl cannot go on
    with it. Writes nothing.
    """
    if not staging.root.exists() or unfinished(folder, (), recipe) is not None:
        return
    with naming_the_path(staging.root):
        for name in sorted(staging.names()):
            if JobFolder(staging.path(name)).is_begun():
                refuse_to_discard_job(staging.below(name), parts)


def discard(folder: Path) -> None:
    """Take away the folder of a job. Raises OSError, and StorageError if the folder, or the one
    that it lies in, is a link."""
    JobFolder(folder).discard(folder.parent.parent)


def refuse_to_discard_job(folder: LocalFolder, parts: dict[str, str] | None) -> None:
    """Raise DatasetError if the job in a folder has finished shards, and is another one than that
    of a fingerprint's `parts`.

    Its recipe is not read: it may name anybody's function. Without `parts` it is that of a
    conversion, and this is none.
    """
    job, done, shown = JobFolder(folder.root), 0, folder.above.above.shown()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it has not begun
        done = sum(not name.endswith(".jsonl") for name in job.markers())  # these are rejects
    what, made, other = "shards", "", "of another version of shardctl"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        record = job.record()
        if "written" in record and done and parts is None and record["written"] is not None:
            raise DatasetError(
                f"{shown}: holds {done:,} of {int(record['parts']):,} parts of a call of "
                "shardctl.write with other arguments or code; overwrite=True starts over"
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
            f"{shown}: holds an unfinished conversion {other}: {done:,}{made} {what} are done. "
            "Use --overwrite, or complete it by the same command with the same "
            f"versions{job.command}"
        )
