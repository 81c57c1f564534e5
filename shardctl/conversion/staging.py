"""What an unfinished conversion has left in the staging folder, and going on from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shardctl.engines.job import DONE_FOLDER, JOB, NEW_FOLDER, Job
from shardctl.engines.samples import Root
from shardctl.engines.task import Done, read_finished
from shardctl.errors import DatasetError
from shardctl.manifest import differing
from shardctl.storage import PARTIAL, naming_the_path, printable


def unfinished(folder: Path, roots: tuple[Root, ...]) -> Job | None:
    """Return the job that was begun in `folder`, for the same sources as they are now; None where none was."""
    if not (folder / JOB).exists():
        return None
    job = replace(Job.load(folder), roots=roots)
    clear_partial_files(job)
    job.save()
    return job


def clear_partial_files(job: Job) -> None:
    """Take away the files that workers were killed over."""
    with naming_the_path(job.folder):
        for made in (NEW_FOLDER, DONE_FOLDER):
            for left in (job.folder / made).glob(f"*{PARTIAL}"):
                left.unlink(missing_ok=True)


def finished_shards(job: Job) -> Iterator[tuple[int, Done]]:
    """Give the shards that are finished, each with what its marker says."""
    for name in sorted(os.listdir(job.folder / DONE_FOLDER)):
        stem = name.partition(".")[0]
        if stem.isdecimal() and (done := read_finished(job, int(stem))):
            yield int(stem), done


def begin(job: Job) -> None:
    """Make the folders of a job that begins. Its plan is there already; job.json, saved last, makes it one to go on from."""
    with naming_the_path(job.folder):
        for made in (NEW_FOLDER, DONE_FOLDER):
            (job.folder / made).mkdir()
    job.save()


def make_room(staging: Path, folder: Path, parts: dict[str, str], overwrite: bool) -> None:
    """Clear the staging folder for a job that begins in `folder`.

    Raises DatasetError where that would throw away finished shards of another conversion, unless `overwrite` says so.
    """
    with naming_the_path(staging):
        for entry in sorted(staging.iterdir()):
            if not entry.is_dir():
                continue
            if not overwrite and (entry / JOB).exists():
                _refuse_to_lose(Job.load(entry), parts)
            shutil.rmtree(entry)
        folder.mkdir()


def _refuse_to_lose(job: Job, parts: dict[str, str]) -> None:
    done = sum(1 for _ in finished_shards(job))
    if done:
        raise DatasetError(
            f"{printable(str(job.folder.parent.parent))}: holds an unfinished conversion made from other"
            f" {differing(job.parts, parts)}, of which {done} of {job.shards} shards are done; run its own command again"
            " to complete it, or use --overwrite to start over"
        )
