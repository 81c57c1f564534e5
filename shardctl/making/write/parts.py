"""Samples that a function makes part by part: several processes make parts, and each part that is
done stays done.

The folder of the job is in the staging folder of the dataset, named by what stands for the call:

    job.json               what the call is, and the layout: the job can be gone on with
    parts/00012/           the shards of a part, numbered from 0
    done/00012.json        the part is done: its shards
    new/                   the dataset, put together of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import DatasetError, InputError, ShardctlError, WorkerError
from shardctl.format.names import is_file_name, shard_name
from shardctl.format.shard_copy import Run, copy_shard
from shardctl.format.tables import ShardEntry
from shardctl.making.shards.job import NEW_FOLDER
from shardctl.making.write.fields import Fields, WriteSchema
from shardctl.making.write.samples import Names, named, part_of
from shardctl.making.write.writer import (
    NumberedSample,
    ShardLimits,
    Splits,
    WrittenSplit,
    write_samples,
)
from shardctl.system.files import naming_the_path, remove_tree, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.processes.channel import Ended
from shardctl.system.processes.forked_pool import ForkedPool
from shardctl.system.text import counted, printable
from shardctl.transforms.values import describe

PARTS_FOLDER = "parts"


@dataclass(frozen=True)
class Part:
    """What a function is given to make some samples of, and the splits of these."""

    given: Any
    splits: Splits
    first: int | None = None
    """The number of its first sample, where samples are numbered through all parts; else each part
    has numbers of its own."""

    def where(self, number: int) -> str:
        """Return what messages about it begin with."""
        if self.first is not None:
            return ""
        shown = (
            printable(str(self.given))
            if isinstance(self.given, str | Path | int)
            else describe(self.given)
        )
        return f"part {number:,} ({shown}): "


def samples_of_part(
    make: Callable[[Any], Iterable[Any]], number: int, part: Part, names: Names
) -> Iterator[NumberedSample]:
    """Yield the samples of a part. One without a key gets one that does not depend on other parts.
    Raises InputError."""
    first = part.first or 0
    made = named(part_of(make, part.given), names, first, part.where(number))
    for place, sample in enumerate(made, first):
        if isinstance(sample, dict):
            key = f"{number:05d}-{place:09d}" if part.first is None else f"{place:09d}"
            sample = {"key": key, **sample}
        yield sample, place, part.splits


@dataclass(frozen=True)
class PartsJob:
    """What makes the parts, and the folder in which they are put together."""

    folder: JobFolder
    make: Callable[[Any], Iterable[Any]]
    parts: Sequence[Part]
    names: Names
    given: WriteSchema
    limits: ShardLimits

    def look(self, count: int) -> Fields:
        """Return the fields of the first samples. Raises InputError if there is none."""
        samples = (
            samples_of_part(self.make, number, part, self.names)
            for number, part in enumerate(self.parts)
        )
        first = [sample for sample, _, _ in islice(chain.from_iterable(samples), count)]
        if not first:
            raise InputError("there is no sample to write: no part has one")
        return Fields(first, self.given)

    def make_part(self, fields: Fields, number: int) -> None:
        """Write the shards of a part, and then that it is done. Raises InputError, StorageError."""
        folder = self.folder.path / PARTS_FOLDER / _name(number)
        with naming_the_path(folder):
            if folder.exists():
                remove_tree(folder, self.folder.path)  # of a process that was killed
            folder.mkdir(parents=True)
        part = self.parts[number]
        samples = samples_of_part(self.make, number, part, self.names)
        where = part.where(number)
        written = write_samples(folder, fields, self.given, self.limits, samples, where)
        for each in written:
            write_atomically(folder / f"{each.split}.keys", each.hashes.tobytes())
        record = {
            "shapes": sorted(fields.shapes),
            "splits": [
                {
                    "split": each.split,
                    "entries": [asdict(entry) for entry in each.entries],
                    "labels": each.labels.tolist(),
                }
                for each in written
            ],
        }
        self.folder.mark_done(_name(number), record)

    def copy(self, fields: Fields, split: str, number: int, runs: Sequence[Run]) -> ShardEntry:
        """Put a shard of the dataset together of runs of rows of the parts' shards. Raises
        DatasetError, StorageError."""
        path = self.folder.path / NEW_FOLDER / shard_name(split, number)
        compression = self.given.compression_of(fields)
        copied = copy_shard(path, fields.layout, split, number, compression, runs)
        return ShardEntry.of_written(split, path.name, copied.facts)

    @cached_property
    def _splits(self) -> set[str]:
        return {name for part in self.parts for name in part.splits.names}

    def is_done(self, number: int) -> bool:
        """Return whether a part was made, by this run or an earlier one."""
        return self.folder.marker(_name(number)).exists()

    def written(self, fields: Fields, number: int) -> list[WrittenSplit]:
        """Return the shards of a part that is done, by their paths below the folder of the job;
        `fields` take its shapes.

        Raises DatasetError if something else is said of the part than what was made of it.
        """
        record = self.folder.read_marker(_name(number))
        names = [entry["path"] for each in record["splits"] for entry in each["entries"]]
        if (
            not all(map(is_file_name, names))
            or not {each["split"] for each in record["splits"]} <= self._splits
        ):
            marker = printable(str(self.folder.marker(_name(number))))
            raise DatasetError(f"{marker}: not written by shardctl; delete it, and call again")
        for shape in record["shapes"]:
            fields.remember(tuple(shape))
        folder = Path(PARTS_FOLDER, _name(number))
        found = []
        for each in record["splits"]:
            entries = tuple(
                ShardEntry(
                    **{
                        **entry,
                        "path": str(folder / entry["path"]),
                        "block_rows": tuple(entry["block_rows"]),
                    }
                )
                for entry in each["entries"]
            )
            hashes = np.frombuffer(
                (self.folder.path / folder / f"{each['split']}.keys").read_bytes(), np.uint64
            )
            found.append(
                WrittenSplit(each["split"], entries, hashes, np.array(each["labels"], np.int64))
            )
        return found


def _name(number: int) -> str:
    """Return the name of a part: of its folder, and of its marker."""
    return f"{number:05d}"


Do = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], list[Any]]
"""Returns what a method of the job returns for each task. Raises what it raises, WorkerError if a
process ends meanwhile."""


@contextmanager
def workers_for(job: PartsJob, workers: int) -> Iterator[Do]:
    """Yield what calls methods of a job: in so many processes, or in this one for 0.

    The processes are forked: the function may be any, also one that no other process can import.
    This process never calls it then: libraries with threads of their own do not work in a fork of a
    process that has used them.
    """
    if not workers:
        yield lambda method, tasks: [method(job, *task) for task in tasks]
        return
    pool = ForkedPool(lambda task: task[0](job, *task[1:]), workers)

    def do(method: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            return pool.run([(method, *task) for task in tasks])
        except Ended:
            raise WorkerError(
                "a process ended in the middle of a part: it was killed (out of memory?), or its "
                "code ended it"
            ) from None

    try:
        yield do
    finally:
        pool.close()


def make_and_join(job: PartsJob, fields: Fields, do: Do, goes_on: bool) -> list[WrittenSplit]:
    """Make the parts that are not done, put them together in the folder for the dataset, and return
    its shards.

    Raises InputError, StorageError, WorkerError, all with how many parts are done, if the same call
    `goes_on` with them.
    """
    left = [(fields, number) for number in range(len(job.parts)) if not job.is_done(number)]
    try:
        do(PartsJob.make_part, left)
    except (KeyboardInterrupt, ShardctlError) as error:
        done = sum(map(job.is_done, range(len(job.parts))))
        said = "the same call begins anew: nothing tells whether its code is the same"
        if goes_on:
            parts = counted(len(job.parts), "part")
            said = f"{done:,} of {parts} done; the same call goes on with the others"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {said}") from error
        raise type(error)(f"{error} ({said})") from error
    by_split: dict[str, list[WrittenSplit]] = {}
    for number in range(len(job.parts)):
        for each in job.written(fields, number):
            by_split.setdefault(each.split, []).append(each)
    copies = {split: list(_copies(job, written)) for split, written in by_split.items()}
    tasks = [
        (fields, split, number, runs)
        for split, several in copies.items()
        for number, runs in enumerate(several)
    ]
    made = iter(do(PartsJob.copy, tasks))
    return [
        WrittenSplit(
            split,
            tuple(islice(made, len(copies[split]))),
            np.concatenate([each.hashes for each in written]),
            np.sum([each.labels for each in written], axis=0),
        )
        for split, written in by_split.items()
    ]


def _copies(job: PartsJob, written: list[WrittenSplit]) -> Iterator[list[Run]]:
    """Put the shards of the parts together: full ones stay, and what is left over of parts is
    joined until a shard is full."""
    held, rows, size = list[Run](), 0, 0
    for entry in (entry for each in written for entry in each.entries):
        first, left = 0, entry.rows
        if size + entry.bytes > job.limits.bytes:
            if held:
                yield held
            held, rows, size = [], 0, 0
        while left:
            count = min(left, job.limits.samples - rows)
            folder = LocalFolder(job.folder.path)
            held.append(Run(folder, entry.path, entry.block_rows, first, count))
            first, left, rows = first + count, left - count, rows + count
            if rows == job.limits.samples:
                yield held
                held, rows, size = [], 0, 0
        size += entry.bytes
    if held:
        yield held
