"""The tables of a dataset: files, units, shards, rejects, checksums. docs/format.md, section 2."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Array, Numbers, edges_of, numbers_of
from shardctl.format.counts import JpegRecord
from shardctl.format.names import (
    CHECKSUMS,
    PLAN,
    REJECTS,
    SHARDS,
    Json,
    are_paths_inside,
    number_in_format_2,
    shard_name,
)
from shardctl.format.shard import ShardFacts, field_names
from shardctl.system.files import naming_the_path, replacing
from shardctl.system.folders import Folder
from shardctl.system.text import printable


@contextlib.contextmanager
def new_table(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Yield a writer for a table of a job or a dataset, which is complete in the end or not there."""
    with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
        yield writer


BRING_BACK = "copy the right one into the dataset's folder"
"""What to do about a lost file of a dataset that came from outside, for messages."""

PRUNED = "pruned"
"""The error, in rejects.jsonl, of records whose samples a person has taken out of the dataset: no
update brings them back."""

PRUNED_BY = ("prune", PRUNED, "taken out of the dataset by `shardctl prune`")
"""Stage, error and message of the reject of such a record."""

REPAIR_ADVICE = "`shardctl repair` repairs it if possible"


def expect(holds: bool, what: str) -> None:
    """Raise ValueError, saying what should have been, unless it holds."""
    if not holds:
        raise ValueError(what)


MAKING_KEY = b"shardctl"
"""Metadata of shards.arrow that says how the dataset was made."""

JPEG_KEY = b"shardctl.jpeg"
"""Metadata of shards.arrow that says which images are plain JPEG, where the original bytes are
kept."""

SHARDS_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("number", pa.int32()),
        ("path", pa.string()),
        ("units", pa.int64()),
        ("inputs", pa.int64()),
        ("rejected", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("raw_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("block_rows", pa.list_(pa.int32())),
    ]
)

_FORMAT_2 = pa.schema([field for field in SHARDS_SCHEMA if field.name != "number"])
"""Before format 3, the number of a shard was in its name alone."""

UNIT_FIELDS = (
    ("file", pa.int32()),
    ("offset", pa.int64()),
    ("size", pa.int64()),
    ("skip", pa.int64()),
    ("first", pa.int64()),
    ("records", pa.int64()),
)
"""What a plan says of a unit before it is read: a stretch of a file, and which of its records are
meant."""

PLAN_SCHEMA = pa.schema(
    [
        *UNIT_FIELDS,
        ("shard", pa.int32()),
        ("first_row", pa.int64()),
        ("samples", pa.int64()),
        ("rejected", pa.int64()),
        ("digest", pa.uint64()),
    ]
)
"""The columns of plan.arrow: a unit, and what became of it."""

FILE_FIELDS = (("path", pa.string()), ("root", pa.int32()), ("size", pa.int64()))
"""The columns of files.arrow. `label` and `columns`, where labels are known of files, come after
them."""


@dataclass(frozen=True)
class ShardEntry:
    """One row of shards.arrow, and where it begins: `first` is the index of its first sample in the
    dataset, `first_unit` its first row of plan.arrow.

    `number` is that within its split, `path` that of its file (Places). It has `units` rows of the
    plan. Of `inputs` records, `rejected` became no sample; `rows` samples were made.
    """

    split: str
    number: int
    path: str
    units: int
    inputs: int
    rejected: int
    rows: int
    bytes: int
    raw_bytes: int
    sha256: str
    block_rows: Sequence[int]
    first: int = 0
    first_unit: int = 0

    @classmethod
    def of_written(cls, split: str, number: int, path: str, facts: ShardFacts) -> ShardEntry:
        """Return the entry of a shard whose samples had no source: it has no units, and each of its
        rows counts as a record."""
        return cls(split, number, path, units=0, inputs=facts.rows, rejected=0, **vars(facts))

    @property
    def name(self) -> str:
        """What the shard is called: train-00000."""
        return shard_name(self.split, self.number)

    @property
    def facts(self) -> ShardFacts:
        """What is known of the file alone."""
        return ShardFacts(self.rows, self.bytes, self.raw_bytes, self.sha256, self.block_rows)

    def row(self) -> Json:
        """Return the row of shards.arrow."""
        return {name: getattr(self, name) for name in SHARDS_SCHEMA.names}


@dataclass(frozen=True)
class Making:
    """How a dataset was made, as far as that is the same for every copy of it.

    `layout` is that of the shards, `fields` what the manifest says of them, `records` how files of
    many records were read (None where a file is one record). No paths, no times.
    """

    layout: Json
    fields: Json
    recipe: Json
    settings: Json
    parts: dict[str, str]
    records: Json | None = None


MADE_BY = "shardctl.write"
"""What the settings of a dataset say under `made_by` that shardctl.write wrote."""


def is_written(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings of a manifest are those of a dataset that shardctl.write wrote:
    it has no source."""
    return settings.get("made_by") == MADE_BY


SHARD_ROWS = 65536
"""Rows of a batch of shards.arrow."""

SPOOLED_ROWS = 256
"""Rows of a ShardSpool that are in memory. SHARD_ROWS is a multiple of it."""


class ShardSpool:
    """Takes the rows of shards.arrow in the order of the dataset, and keeps them in a nameless file
    in `folder`.

    What shards.arrow begins with is known only when the last shard is, and a shard may have
    thousands of blocks: the rows of 100,000 shards would take half a gigabyte of memory. Leave it
    to close the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with naming_the_path(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), SHARDS_SCHEMA)
        self._rows: list[Json] = []

    def __enter__(self) -> ShardSpool:
        return self

    def __exit__(self, *_: object) -> None:
        # a disk that is full says so when there is something to write for good
        with contextlib.suppress(OSError):
            self._file.close()

    def add(self, entry: ShardEntry) -> None:
        """Add a shard."""
        self._rows.append(entry.row())
        if len(self._rows) == SPOOLED_ROWS:
            self._spool()

    def _spool(self) -> None:
        with naming_the_path(self._folder):
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=SHARDS_SCHEMA))
        self._rows.clear()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, some hundreds at a time. Nothing can be added any more."""
        if self._rows:
            self._spool()
        with naming_the_path(self._folder):
            self._file.seek(0)
            yield from pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))

    def sums(self) -> Iterator[tuple[str, str]]:
        """Yield the path of every shard, as SHA256SUMS has it, and its SHA-256."""
        for batch in self.batches():
            paths = (f"{UP}{path}" for path in batch["path"].to_pylist())
            yield from zip(paths, batch["sha256"].to_pylist(), strict=True)

    def write_table(self, path: Path, making: Making, jpegs: JpegRecord | None = None) -> None:
        """Write shards.arrow."""
        metadata = {MAKING_KEY: json.dumps(asdict(making))}
        if jpegs is not None:
            metadata[JPEG_KEY] = json.dumps(jpegs.to_json())
        schema = SHARDS_SCHEMA.with_metadata(metadata)
        batches = self.batches()
        with new_table(path, schema) as writer:
            while held := list(islice(batches, SHARD_ROWS // SPOOLED_ROWS)):
                writer.write_table(
                    pa.Table.from_batches(held)
                    .combine_chunks()
                    .replace_schema_metadata(schema.metadata)
                )


class ShardTable:
    """shards.arrow, memory-mapped: which shard holds which samples.

    `first`, `first_unit`, `rows`, `inputs`, `units`, `sizes` and `raw_sizes` (bytes) and
    `block_counts` are int64 arrays of one number per shard, `block_rows` has one number per block
    of all shards. Raises DatasetError if the table contradicts itself or names files outside of the
    dataset's folder.
    """

    def __init__(self, folder: Folder, unfinished: pa.Table | None = None) -> None:
        """`unfinished` has the rows of shards of a dataset that is not complete."""
        self._table = unfinished or _shards_of(folder)
        shown = folder.shown(SHARDS)
        _validate(self._table, shown)
        blocks = self._table["block_rows"].combine_chunks()
        offsets = np.from_dlpack(blocks.offsets)
        # Not blocks.flatten(), which imports pyarrow.compute: 40 ms of the time to open a dataset.
        flat = blocks.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        if any(column.null_count for column in self._table.columns) or flat.null_count:
            raise DatasetError(f"{shown}: contradicts itself, values are missing; {REPAIR_ADVICE}")
        self.rows: Numbers = numbers_of(self._table["rows"])
        self.inputs: Numbers = numbers_of(self._table["inputs"])
        self.units: Numbers = numbers_of(self._table["units"])
        self.sizes: Numbers = numbers_of(self._table["bytes"])
        self.raw_sizes: Numbers = numbers_of(self._table["raw_bytes"])
        self.block_rows: Array = np.from_dlpack(flat)
        self.block_counts: Numbers = np.diff(offsets).astype(np.int64)
        if not are_paths_inside(self.paths):
            raise DatasetError(f"{shown}: names a shard outside of the dataset's folder")
        if not len(self) or not self._is_consistent():
            raise DatasetError(
                f"{shown}: contradicts itself, its counts do not add up; {REPAIR_ADVICE}"
            )
        self.first: Numbers = np.cumsum(self.rows) - self.rows
        self.first_unit: Numbers = np.cumsum(self.units) - self.units

    def _is_consistent(self) -> bool:
        others = (numbers_of(self._table[name]) for name in ("rejected", "number"))
        numbers = (self.rows, self.inputs, self.units, self.sizes, self.raw_sizes, *others)
        if any(column.min() < 0 or column.max() > 2**62 for column in numbers):
            return False
        if self.block_rows.min(initial=1) <= 0:
            return False
        ends = edges_of(self.block_rows)
        return np.array_equal(np.diff(ends[edges_of(self.block_counts)]), self.rows)

    def __len__(self) -> int:
        """Return the number of shards."""
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> ShardEntry:
        """Return the entry of one shard."""
        return self._entry(index, self._table.slice(index, 1).to_pylist()[0])

    def __iter__(self) -> Iterator[ShardEntry]:
        """Yield the entries in order, a few thousand in memory at a time."""
        batches = self._table.to_batches(max_chunksize=4096)
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, row in enumerate(rows):
            yield self._entry(number, row)

    def _entry(self, number: int, row: Json) -> ShardEntry:
        first, unit = int(self.first[number]), int(self.first_unit[number])
        return ShardEntry(**row, first=first, first_unit=unit)

    @property
    def making(self) -> Making:
        """How the dataset was made. Raises DatasetError if the table does not say."""
        try:
            return Making(**json.loads((self._table.schema.metadata or {})[MAKING_KEY]))
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{SHARDS} does not say how the dataset was made ({error!r})"
            ) from error

    @property
    def records_jpegs(self) -> bool:
        """Whether the table says what the main images are as JPEG."""
        return JPEG_KEY in (self._table.schema.metadata or {})

    def read_jpegs(self) -> JpegRecord:
        """Return what the images are as JPEG, in the order of the dataset.

        Raises DatasetError if that is not recorded, or damaged.
        """
        try:
            return JpegRecord.from_json(
                json.loads((self._table.schema.metadata or {})[JPEG_KEY]), int(self.rows.sum())
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DatasetError(
                f"{SHARDS} does not say what its images are as JPEG ({error!r}); {REPAIR_ADVICE}"
            ) from error

    @cached_property
    def jpegs(self) -> JpegRecord | None:
        """What the images are as JPEG, in the order of the dataset; None if that is not recorded,
        or damaged."""
        try:
            return self.read_jpegs() if self.records_jpegs else None
        except DatasetError:
            return None

    @cached_property
    def paths(self) -> list[str]:
        """The paths of all shards."""
        return list(self._table["path"].to_pylist())

    @cached_property
    def names(self) -> list[str]:
        """What all shards are called."""
        each = (self._table[name].to_pylist() for name in ("split", "number"))
        return list(map(shard_name, *each))

    def digests(self, shards: slice) -> list[str]:
        """Return the SHA-256 of these shards."""
        return list(self._table["sha256"][shards].to_pylist())

    def index_of(self, name: str) -> int | None:
        """Return the place of the shard that is called so, or has this path; None if there is
        none."""
        for names in (self.names, self.paths):
            if name in names:
                return names.index(name)
        return None


def _shards_of(folder: Folder) -> pa.Table:
    """Memory-map shards.arrow, with the columns of format 3. Raises DatasetError."""
    table = open_table(folder, SHARDS)
    if "number" not in table.column_names:
        table = _known(table, _FORMAT_2, folder.shown(SHARDS))
        try:
            numbers = pa.array(map(number_in_format_2, table["path"].to_pylist()), pa.int32())
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise DatasetError(
                f"{folder.shown(SHARDS)}: holds values that cannot be; {REPAIR_ADVICE}"
            ) from error
        table = table.add_column(1, SHARDS_SCHEMA.field("number"), numbers)
    return _known(table, SHARDS_SCHEMA, folder.shown(SHARDS))


UP = "../../"
"""The way from the folder of a generation to that of its dataset, where SHA256SUMS is."""


def _refuse_pipes(folder: Folder, name: str) -> None:
    """Raise DatasetError if there is something else than a file: reading a pipe may never end."""
    found = folder.stat(name)
    if found is not None and found.kind not in ("file", "link"):
        raise DatasetError(f"{folder.shown(name)}: not an ordinary file; {REPAIR_ADVICE}")


def open_table(
    folder: Folder,
    name: str,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Memory-map one of the dataset's Arrow tables, or some columns of it. Raises DatasetError.

    Text and list columns of an untrusted file need open_checked_table before they are used.
    """
    shown = folder.shown(name)
    _refuse_pipes(folder, name)
    try:
        # Not `folder.open`: what that maps reads as zeros where the disk fails, which is seen in a
        # shard by its checksums only.
        table = pa.ipc.open_file(pa.memory_map(str(folder.path(name)))).read_all()
        table = table if columns is None else table.select(columns)
        table.validate()
        field_names(table.schema)  # raises for one that is no text
    except FileNotFoundError:
        raise DatasetError(f"{shown}: missing; {REPAIR_ADVICE}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(f"{shown}: not a readable Arrow file; {REPAIR_ADVICE}") from error
    except KeyError as error:
        raise _other_columns(shown) from error
    return table if schema is None else _known(table, schema, shown)


def _known(table: pa.Table, schema: pa.Schema, shown: str) -> pa.Table:
    """Return the columns of a schema: there may be others, of a later version. Raises
    DatasetError."""
    try:
        table = table.select(schema.names)
    except (KeyError, pa.ArrowException, ValueError) as error:
        raise _other_columns(shown) from error
    if not table.schema.equals(schema):
        raise _other_columns(shown)
    return table


def _other_columns(shown: str) -> DatasetError:
    return DatasetError(f"{shown}: not the columns that `shardctl help format` gives it")


def open_checked_table(folder: Folder, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Memory-map a table, or some columns of it, and look at every value, so that none can lead
    astray. Raises DatasetError."""
    table, shown = open_table(folder, name, columns=columns), folder.shown(name)
    # of which not every value is one in Python
    if any(_holds_times(field.type) for field in table.schema):
        raise _other_columns(shown)
    _validate(table, shown)
    return table


def _holds_times(type_: pa.DataType) -> bool:
    return pa.types.is_temporal(type_) or any(
        _holds_times(type_.field(i).type) for i in range(type_.num_fields)
    )


def _validate(table: pa.Table, shown: str) -> None:
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError(f"{shown}: holds values that cannot be; {REPAIR_ADVICE}") from error


def write_checksums(
    path: Path, sums: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]] = ()
) -> str:
    """Write SHA256SUMS from (file name, SHA-256) pairs, sorted by name, and return its own SHA-256.

    `others` come after them, in the order that they are given in: there may be more than fit into
    memory.
    """
    # half the memory of pairs: there may be 100,000
    ordered = sorted(f"{name}\0{sha256}" for name, sha256 in sums)
    pairs = chain((both.split("\0") for both in ordered), others)
    lines = (f"{sha256}  {name}\n" for name, sha256 in pairs)
    with replacing(path) as sink:
        while some := list(islice(lines, 1024)):
            sink.write("".join(some).encode())
    return sink.sha256


def read_checksums(folder: Folder) -> dict[str, str]:
    """Read SHA256SUMS: the SHA-256 of each file, by its name or the path of a shard. Raises
    DatasetError."""
    _refuse_pipes(folder, CHECKSUMS)
    try:
        lines = folder.read(CHECKSUMS).to_pybytes().decode().splitlines()
        pairs = (line.split("  ", 1) for line in lines)
        return {name.removeprefix(UP): sha256 for sha256, name in pairs}
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{folder.shown(CHECKSUMS)}: cannot be read as a list of checksums ({error})"
        ) from error


@dataclass(frozen=True)
class Reject:
    """One line of rejects.jsonl: a record that became no sample, and why; or `records` of them from
    this one on."""

    source: str
    key: str
    stage: str
    error: str
    message: str
    records: int = 1

    @property
    def number(self) -> int:
        """The number of the record in its file, 0 where the file is one."""
        digits = self.key.removeprefix(self.source).removeprefix("#")
        return int(digits) if digits.isdecimal() else 0

    def line(self) -> bytes:
        """Return the line. A number of records is written only where there are several."""
        # asdict takes longer than all the rest, and there may be millions
        record = dict(vars(self))
        if self.records == 1:
            del record["records"]
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def pruned_reject(source: str, record: int) -> Reject:
    """Return the reject of a record that a person has taken out of the dataset."""
    key = f"{source}#{record}" if record else source
    return Reject(source, key, *PRUNED_BY)


def read_rejects(folder: Folder, name: str = REJECTS) -> Iterator[Reject]:
    """Yield the lines of rejects.jsonl, or of such a list of another name, one at a time. Raises
    DatasetError."""
    _refuse_pipes(folder, name)
    try:
        with open(folder.path(name), encoding="utf-8") as file:
            for line in file:
                reject = Reject(**json.loads(line))
                texts = (reject.source, reject.key, reject.stage, reject.error, reject.message)
                expect(all(type(text) is str for text in texts), "all of it is text")
                expect(type(reject.records) is int and reject.records > 0, "records are counted")
                yield reject
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DatasetError(
            f"{folder.shown(name)}: cannot be read as a list of rejects ({error}); {REPAIR_ADVICE}"
        ) from error


def taken(rejects: Iterator[Reject], records: int) -> Iterator[Reject]:
    """Yield the next rejects, which stand for so many records. Raises DatasetError if there are not
    so many."""
    while records > 0:
        reject = next(rejects, None)
        if reject is None or reject.records > records:
            raise DatasetError(
                f"{REJECTS} and {PLAN} contradict each other; convert again with --overwrite"
            )
        records -= reject.records
        yield reject


def failures(reasons: Mapping[str, int]) -> dict[str, int]:
    """Return those of counted reasons that nobody asked for: all but filters, duplicates, and what
    a user took or left out."""
    wanted = ("plan: duplicate", f"prune: {PRUNED}", "transform: left-out")
    return {
        reason: count
        for reason, count in reasons.items()
        if not reason.startswith("filter: ") and reason not in wanted
    }


def count_reasons(rejects: Iterable[Reject]) -> tuple[dict[str, int], tuple[Reject, ...]]:
    """Count rejects by "stage: error", most frequent first, and return the first reject of each."""
    reasons: Counter[str] = Counter()
    examples: dict[str, Reject] = {}
    for reject in rejects:
        reason = f"{reject.stage}: {reject.error}"
        reasons[reason] += reject.records
        examples.setdefault(reason, reject)
    counted = dict(reasons.most_common())
    return counted, tuple(examples[reason] for reason in counted)


def reason_lines(reasons: Mapping[str, int], examples: Iterable[Reject]) -> list[str]:
    """Say how many inputs were rejected for which reason, each with an example, as `count_reasons`
    returns them."""
    return [
        f"  {count:,}  {reason}; for instance {printable(example.key)}: "
        f"{printable(example.message)}"
        for (reason, count), example in zip(reasons.items(), examples, strict=True)
    ]


def of_several(records: int) -> str:
    """Return what is added to the message of a reject that stands for several records."""
    return f" (and {records - 1} records after it)" if records > 1 else ""
