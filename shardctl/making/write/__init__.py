"""Datasets of samples that are made in Python: the same shards, tables and commit as those of a
conversion, and no source.

Where a function makes samples part by part, several processes make parts, and each part that is
done stays done. The folder of the job is in the staging folder of the dataset, named by what stands
for the call:

    job.json               what the call is, and the layout: the job can be gone on with
    parts/00012/data/      the shards of a part, numbered from 0
    done/00012.json        the part is done: its shards
"""

from __future__ import annotations

import hashlib
import pickle
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import (
    NOTHING_WRITTEN,
    DatasetError,
    InputError,
    ShardctlError,
    UsageError,
    WorkerError,
    explaining_interrupts,
)
from shardctl.format.manifest import Manifest
from shardctl.format.names import DATA, MANIFEST, STAGING, are_paths_inside
from shardctl.format.shard import SHARD_VERSION
from shardctl.format.shard_copy import Run, copy_shard
from shardctl.format.tables import MADE_BY, ShardEntry
from shardctl.making.commit.commit import NewGeneration, making_generation, sweep, upgrade_format_2
from shardctl.making.commit.jobs import discard, id_of_job, refuse_to_discard_job
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.options import IF_RUNNING
from shardctl.making.paths import check_destination, check_writable
from shardctl.making.plan.splits import check_split_name
from shardctl.making.write.fields import Fields, Names, ShardLimits, WriteSchema, roles_of
from shardctl.making.write.writer import (
    NumberedSample,
    Splits,
    WrittenSplit,
    classes_of,
    elements_of,
    finish,
    is_indexed,
    named,
    part_of,
    refuse_repeated,
    write_samples,
)
from shardctl.system.arguments import contradiction, whole_number
from shardctl.system.arguments import names as names_of
from shardctl.system.files import make_folder, naming_the_path, remove_tree, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.locations import is_url
from shardctl.system.packages import refuse_while_importing
from shardctl.system.processes.channel import Ended
from shardctl.system.processes.forked_pool import ForkedPool
from shardctl.system.text import counted, printable
from shardctl.transforms.custom import code_digest
from shardctl.transforms.values import describe
from shardctl.version import __version__

FIRST_SAMPLES = 1024
"""How many samples are looked at for the types of their fields, where no schema is given."""

FEW_SAMPLES = 16
"""How many samples of parts are looked at where a schema is given: for how images are kept. They
are made again later."""

INDEXED_AT_A_TIME = 4096
"""Samples of a dataset by index that are a part: what is lost when its process is killed."""

WRITE_PREFIX = "write-"
"""Prefix of the working folders of writes by parts, in the staging folder."""


@dataclass(frozen=True)
class WriteResult:
    """What `write` wrote: how many samples, shards and bytes (of the shards), in how many
    seconds."""

    samples: int
    shards: int
    bytes: int
    seconds: float
    fingerprint: str


@explaining_interrupts(NOTHING_WRITTEN)
def write(
    dst: str | Path,
    samples: Any,
    schema: pa.Schema | None = None,
    *,
    parts: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    split: str | None = None,
    workers: int = 0,
    fields: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    roles: Mapping[str, str | Mapping[str, Any]] | None = None,
    store: str | None = None,
    compression: str = "auto",
    shard_size: int | None = None,
    samples_per_shard: int | None = None,
    overwrite: bool = False,
    if_running: str = "wait",
) -> WriteResult:
    """Write samples from Python as a dataset, with the same files and the same commit as `convert`.

    `samples` yields dicts of field name to value, in the order of the dataset. All have the same
    fields; None is no value. They are taken one at a time. A dict of split names gives such an iterable for each split. Datasets of PyTorch,
    TensorFlow and Hugging Face work too. Tensors and pictures become arrays, and names of classes
    are taken over. If samples are tuples, `fields` names their values. With `parts`, `samples` is a
    function that yields the samples of one of them, such as a file: `write("out", read,
    parts=paths, workers=8)`. Then `workers` processes make the parts. They are forked from this
    process; with 0, this process makes the parts. A PyTorch dataset with indices is divided into
    parts too. If the call is stopped, finished parts stay, and the same call continues. `split` is
    the name of a split, or shares that are drawn by the key: "train=0.9,val=0.1". `key` names a
    sample. Without it samples are numbered: 000000000, 000000001; in parts, each part is numbered:
    00000-000000000. Two samples cannot have the same key, also in different splits, unless a field
    `variant` tells them apart. A repeated key is found when all samples are written. `image` is an
    encoded image (its bytes are kept) or pixels, (H, W, 3) uint8. `store` is the form of pixels:
    `raw` (the default; one shape for all), `png`, `jpeg:90`, `webp:80`. With `classes`, their
    names, `label` is a name or a number. `roles` names the fields that belong to places in the
    image, so that the loader moves them with it. `"objects"` is a dict of lists with an item for
    each object: bbox (x, y, width, height in pixels), category and others. `"mask"` is (H, W) uint8
    or uint16, or the bytes of a PNG. A role can have facts too: `{"role": "objects", "names":
    ["cat", "dog"]}`. Lists of whole numbers can be `{"role": "tokens", "vocabulary": 50257, "eos":
    50256}`. `schema` gives the Arrow type of every field; without it, types are found in the first
    1,024 samples. No value is changed, times and time zones included: a value that does not fit its
    column is an error. Only places of objects are rounded to float32. If `schema` has float32 or
    float16, Python's floats are rounded to it. A shard has `shard_size` bytes (by default 128 MiB)
    or `samples_per_shard`.

    `dst` appears only when it is complete. Raises InputError for a sample that cannot be written,
    UsageError, StorageError, BusyError, and DatasetError if there is a dataset and `overwrite` is
    not set. If the code that makes samples raises, this becomes an InputError that names the
    sample. If it was raised in this process, the exception is its cause.
    """
    refuse_while_importing("write")
    began = time.monotonic()
    limits = ShardLimits.of(shard_size, samples_per_shard)
    IF_RUNNING.check("if_running", if_running)
    if whole_number("workers", workers) < 0:
        raise UsageError(f"workers must be 0 or more; they are {workers}")
    make, made_of = _calls(samples, parts, split, workers)
    names: Names = names_of("fields", fields) if fields is not None else None
    if names is not None and len(set(names)) < len(names):
        raise UsageError(f"fields= names a field twice: {', '.join(names)}")
    if schema is not None and not isinstance(schema, pa.Schema):
        raise UsageError(f"schema is a pyarrow.Schema; it is {describe(schema)}")
    if classes is not None:
        classes = names_of("classes", classes)
    classes = (
        tuple(classes) if classes else None if schema is not None else classes_of(samples, names)
    )
    given = WriteSchema(names, schema, classes, store, compression, roles_of(roles), limits)
    if is_url(dst):
        raise UsageError(
            f"{printable(dst)}: shardctl.write writes to folders; write to one, and upload it"
        )
    target = check_destination(dst, [])
    check_writable(target)
    _refuse_existing(target, overwrite)
    waiting = (lambda owner: None) if if_running == "wait" else None
    place = Target(LocalFolder(target))
    with place.lease(waiting) as held:
        sweep(place, held)
        _refuse_existing(target, overwrite)
        with suppress(DatasetError):  # a damaged one gives way as it is
            upgrade_format_2(place, held)
        if make is None:
            manifest = _write_at_once(place, held, made_of, given)
        else:
            manifest = _write_parts(place, held, make, made_of, given, workers, overwrite)
    sizes = manifest.samples, manifest.shards, manifest.bytes
    return WriteResult(*sizes, round(time.monotonic() - began, 3), manifest.fingerprint)


Make = Callable[[Any], Iterable[Any]]


def _calls(
    samples: Any, parts: Any, split: str | None, workers: int
) -> tuple[Make | None, list[Part]]:
    """Return what makes the samples: a function and what it is called with; or None, and what
    yields them. Raises UsageError where the arguments do not fit."""
    given = samples if parts is None else parts
    streams = [Part(given, Splits.parse("train" if split is None else split))]
    if isinstance(given, Mapping):
        if split is not None:
            raise contradiction("split=", "a dict of splits")
        for name in given:
            check_split_name(name)
        streams = [Part(each, Splits((name,))) for name, each in given.items()]
    if parts is not None:
        if any(
            isinstance(each.given, str | bytes) or not isinstance(each.given, Iterable)
            for each in streams
        ):
            raise UsageError(
                "parts= is a list of arguments of the function, or of such lists by split"
            )
        if not callable(samples):
            raise UsageError(
                "with parts=, samples is a function that yields those of a part; it is "
                f"{describe(samples)}"
            )
        made = [Part(each, several.splits) for several in streams for each in several.given]
        if not made:
            raise UsageError("parts= is empty; give an argument for each call")
        return samples, made
    if not streams:
        raise UsageError("there is no split; give samples, or a dict of samples by split")
    if not workers:
        return None, streams
    datasets = [each.given for each in streams]
    if not all(map(is_indexed, datasets)):
        raise UsageError("workers= needs parts=: give a function, and its arguments in parts=")
    before = np.cumsum([0, *map(len, datasets)]).tolist()
    stretches = [
        Part((place, first, min(first + INDEXED_AT_A_TIME, count)), which, before[place] + first)
        for place, (count, which) in enumerate((len(each.given), each.splits) for each in streams)
        for first in range(0, count, INDEXED_AT_A_TIME)
    ]
    return Stretches(datasets), stretches


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not overwrite and (target / MANIFEST).exists():
        raise DatasetError(f"{printable(target)}: holds a dataset; overwrite=True replaces it")


def _write_at_once(
    target: Target, held: WriteLease, streams: list[Part], given: WriteSchema
) -> Manifest:
    """Write the samples of streams, and commit them. Nothing is left where that fails."""
    stream = _stream(streams, given.names)
    first = list(islice(stream, FIRST_SAMPLES))
    if not first:
        raise InputError("there is no sample to write")
    fields = Fields([sample for sample, _, _ in first], given)
    with making_generation(target, held) as new:
        written = write_samples(new.root, new.id, fields, chain(first, stream))
        new.shards.extend(entry.path for each in written for entry in each.entries)
        return _finish(new, fields, written, streams)


def _finish(
    new: NewGeneration, fields: Fields, written: list[WrittenSplit], parts: list[Part]
) -> Manifest:
    """Commit shards that are there, with the splits in the order of these parts. Raises InputError
    if two samples have the same key."""
    names = [name for part in parts for name in part.splits.names]
    written.sort(key=lambda each: names.index(each.split))
    entries = [entry for each in written for entry in each.entries]
    refuse_repeated(
        np.concatenate([each.hashes for each in written]),
        new.root,
        [entry.path for entry in entries],
        [name for name in fields.layout.columns.names if name == "variant"],
    )
    given, counts = fields.given, {each.split: each.labels.tolist() for each in written}
    settings = {
        "made_by": MADE_BY,
        "shard_size": given.limits.bytes,
        "samples_per_shard": given.limits.samples,
    }
    class_counts = counts if given.classes else None
    return finish(new, fields.final_layout, entries, fields.compression, settings, class_counts)


def _stream(streams: list[Part], names: Names) -> Iterator[NumberedSample]:
    """Yield the samples of all streams. Raises InputError if one of several has none."""
    count = 0
    for each in streams:
        before = count
        for sample in named(elements_of(each.given), names, before):
            yield sample, count, each.splits
            count += 1
        if count == before and len(streams) > 1:
            raise InputError(
                f"the split {each.splits.names[0]} has no sample; leave it out, or give it some"
            )


def _write_parts(
    target: Target,
    held: WriteLease,
    make: Make,
    parts: list[Part],
    given: WriteSchema,
    workers: int,
    overwrite: bool,
) -> Manifest:
    """Write the samples of parts, going on where an earlier call was stopped, and commit them."""
    identity, root = identity_of(make, parts, given), target.folder.root
    folder = root / STAGING / f"{WRITE_PREFIX}{identity or secrets.token_hex(8)}"
    others = [other for other in target.jobs() if other != folder]
    for other in others:
        if not overwrite and JobFolder(other).is_begun():
            refuse_to_discard_job(LocalFolder(other), None)
    sweep(target, held, [other.name for other in others])
    job_folder = JobFolder(folder)
    new = NewGeneration(target, held, folder, id_of_job(folder) or secrets.token_hex(4))
    job = PartsJob(job_folder, root, new.id, make, parts, given)
    with workers_for(job, workers) as do:
        (fields,) = do(PartsJob.look, [(FIRST_SAMPLES if given.schema is None else FEW_SAMPLES,)])
        layout = fields.layout.to_json()
        record = {"written": identity, "parts": len(parts), "layout": layout, "id": new.id}
        with naming_the_path(folder):
            if job_folder.is_begun() and job_folder.record() != record:
                if not overwrite:
                    raise InputError(
                        "the first samples differ from those of the stopped call; overwrite=True "
                        "starts over"
                    )
                discard(folder)
        job_folder.make_folders(PARTS_FOLDER)
        make_folder(root / DATA, root)
        job_folder.save(record)
        written = make_and_join(job, fields, do, identity is not None)
    return _finish(new, fields, written, parts)


# --- what stands for a call of `write` by parts: the same call goes on with the parts that are done
# ---


@dataclass(frozen=True)
class Stretches:
    """Makes the samples of datasets by index, from one index to another."""

    datasets: Sequence[Any]

    def __call__(self, part: tuple[int, int, int]) -> Iterator[Any]:
        """Yield the samples of a stretch: the number of the dataset, the first index and the one
        behind the last."""
        place, first, end = part
        return (self.datasets[place][index] for index in range(first, end))


def identity_of(make: Make, parts: Sequence[Any], options: Any) -> str | None:
    """Return what stands for a call: its arguments, the code that makes the samples, and the
    versions that write them.

    None where nothing can tell: objects that cannot be pickled, code without a file.
    """
    codes = [type(dataset) for dataset in make.datasets] if isinstance(make, Stretches) else [make]
    digest = hashlib.sha256()  # a pickled dataset may be as large as the memory
    try:
        for code in codes:
            found = code_digest(
                f"{getattr(code, '__module__', '')}:{getattr(code, '__qualname__', '')}", code
            )
            if found is None:
                return None
            digest.update(found.encode())
        digest.update(f"{__version__} {SHARD_VERSION} {pa.__version__}".encode())
        pickle.Pickler(SimpleNamespace(write=digest.update), protocol=5).dump(
            (make, list(parts), options)
        )
    except Exception:  # noqa: BLE001 - a person's objects may raise anything when they are pickled
        return None
    return digest.hexdigest()[:16]


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
            printable(self.given)
            if isinstance(self.given, str | Path | int)
            else describe(self.given)
        )
        return f"part {number:,} ({shown}): "


@dataclass(frozen=True)
class PartsJob:
    """What makes the parts, and the `root` of the dataset that they are put together in; `id` is in
    the names of what it writes there."""

    folder: JobFolder
    root: Path
    id: str
    make: Make
    parts: Sequence[Part]
    given: WriteSchema

    def _samples(self, number: int) -> Iterator[NumberedSample]:
        """Yield the samples of a part. One without a key gets one that does not depend on other
        parts. Raises InputError."""
        part = self.parts[number]
        first = part.first or 0
        made = named(part_of(self.make, part.given), self.given.names, first, part.where(number))
        for place, sample in enumerate(made, first):
            if isinstance(sample, dict):
                key = f"{_name(number)}-{place:09d}" if part.first is None else f"{place:09d}"
                sample = {"key": key, **sample}
            yield sample, place, part.splits

    def look(self, count: int) -> Fields:
        """Return the fields of the first samples. Raises InputError if there is none."""
        samples = map(self._samples, range(len(self.parts)))
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
            (folder / DATA).mkdir(parents=True)
        where = self.parts[number].where(number)
        written = write_samples(folder, self.id, fields, self._samples(number), where)
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
        to = self.root, self.id, fields.layout, split, number, fields.compression
        copied = copy_shard(*to, runs)
        return ShardEntry.of_written(split, number, copied.path, copied.facts)

    @cached_property
    def _splits(self) -> set[str]:
        return {name for part in self.parts for name in part.splits.names}

    def is_done(self, number: int) -> bool:
        """Return whether a part was made, by this run or an earlier one."""
        return self.folder.marker(_name(number)).exists()

    def written(self, fields: Fields, number: int) -> Iterator[WrittenSplit]:
        """Yield the shards of a part that is done, by their paths below the folder of the job;
        `fields` take its shapes.

        Raises DatasetError if something else is said of the part than what was made of it.
        """
        record = self.folder.read_marker(_name(number))
        names = [entry["path"] for each in record["splits"] for entry in each["entries"]]
        if (
            not are_paths_inside(names)
            or not {each["split"] for each in record["splits"]} <= self._splits
        ):
            marker = printable(self.folder.marker(_name(number)))
            raise DatasetError(f"{marker}: not written by shardctl; delete it, and call again")
        for shape in record["shapes"]:
            fields.remember(tuple(shape))
        folder = Path(PARTS_FOLDER, _name(number))
        for each in record["splits"]:
            entries = tuple(
                ShardEntry(**{**entry, "path": str(folder / entry["path"])})
                for entry in each["entries"]
            )
            split, labels = each["split"], np.array(each["labels"], np.int64)
            hashes = np.fromfile(self.folder.path / folder / f"{split}.keys", np.uint64)
            yield WrittenSplit(split, entries, hashes, labels)


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
                "a process ended within a part: it was killed (out of memory?), or its code "
                "ended it"
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
        said = "the same call begins anew, as its code may differ"
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
        if size + entry.bytes > job.given.limits.bytes:
            if held:
                yield held
            held, rows, size = [], 0, 0
        while left:
            count = min(left, job.given.limits.samples - rows)
            folder = LocalFolder(job.folder.path)
            held.append(Run(folder, entry, first, count))
            first, left, rows = first + count, left - count, rows + count
            if rows == job.given.limits.samples:
                yield held
                held, rows, size = [], 0, 0
        size += entry.bytes
    if held:
        yield held
