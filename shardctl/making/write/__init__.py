"""Datasets of samples that are made in Python: the same shards, tables and commit as those of a
conversion, and no source."""

from __future__ import annotations

import hashlib
import pickle
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    UsageError,
    explaining_interrupts,
)
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST, STAGING
from shardctl.format.shard import FORMAT_VERSION
from shardctl.format.tables import MADE_BY
from shardctl.making.commit import publish
from shardctl.making.commit.generations import settle
from shardctl.making.commit.staging import discard, jobs_in, refuse_to_lose_job
from shardctl.making.options import check_if_running
from shardctl.making.paths import check_destination, check_writable
from shardctl.making.shards.job import NEW_FOLDER
from shardctl.making.write.fields import Fields, WriteSchema, roles_of
from shardctl.making.write.parts import Part, PartsJob, make_and_join, workers_for
from shardctl.making.write.samples import Names, classes_of, elements_of, is_indexed, named
from shardctl.making.write.writer import (
    NumberedSample,
    ShardLimits,
    Splits,
    WrittenSplit,
    finish,
    in_order,
    new_folder,
    refuse_bad_names,
    refuse_repeated,
    write_samples,
)
from shardctl.system import file_lease
from shardctl.system.arguments import names as names_of
from shardctl.system.arguments import whole_number
from shardctl.system.files import naming_the_path, remove_tree
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.locations import is_url
from shardctl.system.packages import refuse_while_importing
from shardctl.system.text import printable
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

    `samples` yields dicts of field name to value, in the order of the dataset. They are taken one
    at a time. A dict of split names gives such an iterable for each split. Datasets of PyTorch,
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
    check_if_running(if_running)
    if whole_number("workers", workers) < 0:
        raise UsageError(f"workers must be 0 or more; they are {workers}")
    calls = _calls(samples, parts, split, workers)
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
    given = WriteSchema(schema, classes, store, compression, roles_of(roles))
    if is_url(dst):
        raise UsageError(
            f"{printable(str(dst))}: shardctl.write writes to folders; write to one, and upload it"
        )
    target = check_destination(Path(dst), [])
    check_writable(target)
    _refuse_existing(target, overwrite)
    waiting: Callable[[str], None] | None = (lambda owner: None) if if_running == "wait" else None
    with file_lease.hold(target / STAGING, waiting) as held:
        publish.recover(target)
        _refuse_existing(target, overwrite)
        if isinstance(calls, tuple):
            manifest = _write_parts(target, *calls, names, given, limits, workers, overwrite, held)
        else:
            manifest = _write_at_once(target, calls, names, given, limits, held)
        settle(target)  # none of the dataset before
    sizes = manifest.samples, manifest.shards, manifest.bytes
    return WriteResult(*sizes, round(time.monotonic() - began, 3), manifest.fingerprint)


Make = Callable[[Any], Iterable[Any]]

Streams = list[tuple[Splits, Any]]
"""Samples that are taken one after the other, with the splits that they may be in."""


def _calls(
    samples: Any, parts: Any, split: str | None, workers: int
) -> tuple[Make, list[Part]] | Streams:
    """Return what makes the samples: a function and what it is called with, or streams. Raises
    UsageError where the arguments do not fit."""
    streams: Streams = [(Splits.parse("train" if split is None else split), samples)]
    given = samples if parts is None else parts
    if isinstance(given, Mapping):
        if split is not None:
            raise UsageError("split= and a dict of splits contradict each other; use one of them")
        refuse_bad_names(list(given))
        streams = [(Splits((name,)), each) for name, each in given.items()]
    elif parts is not None:
        streams = [(streams[0][0], parts)]
    if parts is not None:
        if any(
            isinstance(each, str | bytes) or not isinstance(each, Iterable) for _, each in streams
        ):
            raise UsageError(
                "parts= is a list of arguments of the function, or a dict of such lists by split"
            )
        if not callable(samples):
            raise UsageError(
                "with parts=, samples is a function that yields the samples of a part; it is "
                f"{describe(samples)}"
            )
        made = [Part(each, which) for which, several in streams for each in several]
        if not made:
            raise UsageError("parts= is empty; give an argument for each call")
        return samples, made
    if not streams:
        raise UsageError(
            "there is no split; give an iterable of samples, or a dict with one for each split"
        )
    if not workers:
        return streams
    if not all(is_indexed(each) for _, each in streams):
        raise UsageError("workers= needs parts=: give a function, and its arguments in parts=")
    before = np.cumsum([0, *(len(each) for _, each in streams)]).tolist()
    stretches = [
        Part(
            (place, first, min(first + INDEXED_AT_A_TIME, len(each))), which, before[place] + first
        )
        for place, (which, each) in enumerate(streams)
        for first in range(0, len(each), INDEXED_AT_A_TIME)
    ]
    return Stretches([each for _, each in streams]), stretches


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not overwrite and (target / MANIFEST).exists():
        raise DatasetError(f"{printable(str(target))}: holds a dataset; overwrite=True replaces it")


def _write_at_once(
    target: Path,
    streams: Streams,
    names: Names,
    given: WriteSchema,
    limits: ShardLimits,
    held: file_lease.Lease,
) -> Manifest:
    """Write the samples of streams, and put the dataset in its place. Nothing is left where that
    fails."""
    stream = _stream(streams, names)
    first = list(islice(stream, FIRST_SAMPLES))
    if not first:
        raise InputError("there is no sample to write")
    fields = Fields([sample for sample, _, _ in first], given)
    with new_folder(target) as new:
        written = write_samples(new, fields, given, limits, chain(first, stream))
        order = [name for splits, _ in streams for name in splits.names]
        manifest = _finish(new, fields, in_order(written, order), given, limits)
        held.check()
        publish.publish(new, target)
    return manifest


def _finish(
    new: Path, fields: Fields, written: list[WrittenSplit], given: WriteSchema, limits: ShardLimits
) -> Manifest:
    """Write the tables and the manifest of shards that are there. Raises InputError if two samples
    have the same key."""
    entries = [entry for each in written for entry in each.entries]
    refuse_repeated(
        np.concatenate([each.hashes for each in written]),
        [new / entry.path for entry in entries],
        [name for name in fields.layout.columns.names if name == "variant"],
    )
    class_counts = {each.split: each.labels.tolist() for each in written} if given.classes else None
    settings = {"made_by": MADE_BY, "shard_size": limits.bytes, "samples_per_shard": limits.samples}
    return finish(
        new, fields.final_layout, entries, given.compression_of(fields), settings, class_counts
    )


def _stream(streams: Streams, names: Names) -> Iterator[NumberedSample]:
    """Yield the samples of all streams. Raises InputError if one of several has none."""
    count = 0
    for splits, samples in streams:
        before = count
        for sample in named(elements_of(samples), names, before):
            yield sample, count, splits
            count += 1
        if count == before and len(streams) > 1:
            raise InputError(
                f"the split {splits.names[0]} has no sample; leave it out, or give it some"
            )


def _write_parts(
    target: Path,
    make: Make,
    parts: list[Part],
    names: Names,
    given: WriteSchema,
    limits: ShardLimits,
    workers: int,
    overwrite: bool,
    held: file_lease.Lease,
) -> Manifest:
    """Write the samples of parts, going on where an earlier call was stopped, and put the dataset
    in its place."""
    identity = identity_of(make, parts, (names, given, limits))
    folder = target / STAGING / f"{WRITE_PREFIX}{identity or secrets.token_hex(8)}"
    for other in jobs_in(target / STAGING):
        if other != folder:
            if not overwrite and JobFolder(other).is_begun():
                refuse_to_lose_job(LocalFolder(other), None)
            discard(other)
    job_folder, new = JobFolder(folder), folder / NEW_FOLDER
    job = PartsJob(job_folder, make, parts, names, given, limits)
    with workers_for(job, workers) as do:
        (fields,) = do(PartsJob.look, [(FIRST_SAMPLES if given.schema is None else FEW_SAMPLES,)])
        record = {"written": identity, "parts": len(parts), "layout": fields.layout.to_json()}
        with naming_the_path(folder):
            if job_folder.is_begun() and job_folder.record() != record:
                if not overwrite:
                    raise InputError(
                        "the first samples differ from those of the stopped call; overwrite=True "
                        "starts over"
                    )
                discard(folder)
            if new.exists():
                remove_tree(new, target)  # what a killed process has put together in part
        job_folder.make_folders(NEW_FOLDER)
        job_folder.save(record)
        written = make_and_join(job, fields, do, identity is not None)
    written = in_order(written, [name for part in parts for name in part.splits.names])
    manifest = _finish(new, fields, written, given, limits)
    held.check()
    publish.publish(new, target)
    return manifest


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
        digest.update(f"{__version__} {FORMAT_VERSION} {pa.__version__}".encode())
        pickle.Pickler(SimpleNamespace(write=digest.update), protocol=5).dump(
            (make, list(parts), options)
        )
    except Exception:  # noqa: BLE001 - a person's objects may raise anything when they are pickled
        return None
    return digest.hexdigest()[:16]
