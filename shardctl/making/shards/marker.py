"""What a worker tells of a shard: how far it is, and the marker of a finished one, with what became
of its units. On a dataset on a store, how both get there, and the job from there."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, astuple, dataclass
from operator import add, neg
from pathlib import Path

import pyarrow as pa

from shardctl.format.counts import JpegRecord
from shardctl.format.names import DATA, STAGING, Json
from shardctl.format.shard import ShardFacts
from shardctl.format.tables import PLAN_SCHEMA
from shardctl.format.update_state import ShardCounts
from shardctl.making.shards.job import RECIPE_FOLDER, Job
from shardctl.system.file_lease import PARTS
from shardctl.system.files import make_folder, replacing
from shardctl.system.job_folder import DONE_FOLDER, JobFolder
from shardctl.system.stores import client_of
from shardctl.system.stores.base import Entry, Store


@dataclass(frozen=True)
class WorkDone:
    """Work done since the last report: records of the plan, samples made, records rejected, and
    bytes read."""

    records: int = 0
    samples: int = 0
    rejected: int = 0
    bytes: int = 0

    def __add__(self, other: WorkDone) -> WorkDone:
        return WorkDone(*map(add, astuple(self), astuple(other)))

    def __neg__(self) -> WorkDone:
        return WorkDone(*map(neg, astuple(self)))


MARKER_SCHEMA = pa.schema([*PLAN_SCHEMA][PLAN_SCHEMA.get_field_index("first_row") :])
"""What became of each unit of a shard: its samples are among the rows from `first_row` on, how many
samples and rejects came of it, and its digest."""


@dataclass(frozen=True)
class ShardMarker:
    """A finished shard, as its marker records it: it lies at `path` in the folder of the dataset.

    Of `inputs` records `rejected` became no sample. `units` has MARKER_SCHEMA. `jpegs` is what its
    images are as JPEG, None where that is not recorded. `first_frames` of its images are the first
    of several frames.
    """

    path: str
    facts: ShardFacts
    inputs: int
    rejected: int
    counts: ShardCounts
    units: pa.Table
    jpegs: JpegRecord | None = None
    first_frames: int = 0


def read_finished(job: Job, shard: int) -> ShardMarker | None:
    """Return what the marker of a shard says, None if the shard is not finished.

    Markers are written after their shard. Where the power failed, one may still be there without
    it, or be torn itself. On an object store each is there whole, and only after its shard.
    """
    try:
        done = read_marker(job.marker_path(shard))
        path, planned = job.shards_root / done.path, job.planned_shard(shard)
        whole = done.path == planned.path(done.facts.sha256)
        whole = whole and (bool(job.url) or path.stat().st_size == done.facts.bytes)
        whole = whole and (bool(job.url) or bool(done.rejected) == job.rejects_path(shard).exists())
    except (
        OSError,
        pa.ArrowException,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
    ):
        return None
    return done if whole and done.units.num_rows == planned.units else None


def read_marker(path: Path) -> ShardMarker:
    """Read what a finished shard's marker says."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    record = json.loads(table.schema.metadata[b"done"])
    facts, jpegs = ShardFacts(**record["facts"]), record["jpegs"]
    record |= {
        "facts": facts,
        "counts": ShardCounts.of_row(record["counts"]),
        "units": table.replace_schema_metadata(),
        "jpegs": jpegs and JpegRecord.from_json(jpegs, facts.rows),
    }
    return ShardMarker(**record)


def rows_made(path: Path) -> int:
    """Return how many samples a finished shard has, by its marker: without a look at its units."""
    return int(record_of_marker(path)["facts"]["rows"])


def record_of_marker(path: Path) -> Json:
    """Return what a marker says of its shard, without what became of the units, unchecked."""
    metadata = pa.ipc.open_file(pa.memory_map(str(path))).schema.metadata
    return dict(json.loads(metadata[b"done"]))


def marker_bytes(done: ShardMarker) -> bytes:
    """Return the marker of a finished shard."""
    jpegs = done.jpegs and done.jpegs.to_json()
    record = {**vars(done), "facts": asdict(done.facts), "jpegs": jpegs}
    record["counts"] = done.counts.row()
    units = record.pop("units")
    schema = MARKER_SCHEMA.with_metadata({"done": json.dumps(record)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(units)
    return bytes(sink.getvalue())


def upload_shard(job: Job, shard: int, path: str, marker: bytes) -> None:
    """Put a finished shard on the store from its path, its marker last, and take the shard away
    here. Raises StoreError.

    Raises BusyError where another process has taken over: its shards must stay, also if the sources
    have changed since.
    """
    from shardctl.system.store_lease import LeaseToken  # few conversions write to a store

    rejects, done = job.rejects_path(shard), done_folder(job.folder)
    store, sign = client_of(job.url), LeaseToken(**json.loads((job.folder / SIGN).read_bytes()))
    sign.check(store)
    store.put(path, job.shards_root / path)
    if rejects.exists():
        store.put(f"{done}{rejects.name}", rejects)
    sign.check(store)
    store.put(f"{done}{job.marker_path(shard).name}", marker)
    (job.shards_root / path).unlink()


SIGN = "sign.json"
"""The file in the folder of a job on this machine that tells its workers for whom they work: see
LeaseToken."""


def fetch_job(url: str, folder: Path) -> None:
    """Bring the job with the name of a folder, which is made, from where a dataset's is on a store.
    Raises StoreError."""
    folder.mkdir(parents=True)
    make_folders(folder)
    store, state = client_of(url), state_folder(folder)
    for page in store.pages(state):
        for entry in page:
            name = entry.name.removeprefix(state)
            if not name.startswith((f"{DONE_FOLDER}/", f"{PARTS}/")):
                fetch_file(store, entry, folder / name)
    trust_no_place(JobFolder(folder), url)


def make_folders(folder: Path) -> None:
    """Make the folders of a job that builds its shards apart."""
    JobFolder(folder).make_folders(RECIPE_FOLDER)
    make_folder(folder / DATA, folder)


def fetch_file(store: Store, found: Entry, path: Path) -> None:
    """Bring a file, which may be large. Raises StoreError."""
    with replacing(path) as sink:
        for piece in store.pieces(found):
            sink.write(piece)


def trust_no_place(folder: JobFolder, url: str) -> None:
    """Write into job.json where the dataset is that it was fetched from: a copy of it may say
    another place."""
    # whoever reads it says that it is none
    with contextlib.suppress(OSError, ValueError, TypeError):
        folder.save({**folder.record(), "url": url})


def state_folder(job: Path) -> str:
    """Return where the state of a job, by its folder here, is on the store: a key, with a / at its
    end."""
    return f"{STAGING}/{job.name}/"


def done_folder(job: Path) -> str:
    """Return where the markers of a job are on the store."""
    return f"{state_folder(job)}{DONE_FOLDER}/"
