"""The steps of a recipe for whole Arrow batches of records: text and tables, with no Python object
per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import bytes_of, edges_of, items_of, texts_from
from shardctl.format.layout import Layout
from shardctl.format.roles import Role, Sample
from shardctl.sources.formats import Misfit, Numbers
from shardctl.transforms.base import BatchRun, BatchTransform, Counts, Records, type_of, with_column


def make_keys(path: str, numbers: Numbers) -> pa.Array:
    """Return the keys of records of one file by their numbers: (n,) string, path#N.

    Not by Arrow's kernels, which take 40 ms to import, and twice as long for 2,460 of them.
    """
    prefix, last = np.frombuffer(f"{path}#".encode(), np.uint8), int(numbers.max(initial=0))
    left = numbers.astype(np.uint32) if last < 1 << 32 else numbers
    places = 10 ** np.arange(len(str(last)))[::-1]
    rows = np.empty((len(left), len(prefix) + len(places)), np.uint8)
    rows[:, : len(prefix)] = prefix
    for place in range(rows.shape[1] - 1, len(prefix) - 1, -1):
        higher = left // 10
        rows[:, place] = left - higher * 10 + ord("0")
        left = higher
    sizes = len(prefix) + np.searchsorted(places[::-1], numbers, side="right")
    if sizes.min(initial=rows.shape[1]) < rows.shape[1]:  # without zeros at the beginning
        written = np.ones(rows.shape, bool)
        written[:, len(prefix) :] = numbers[:, None] >= places
        rows = rows[written]
    return texts_from(rows.reshape(-1), edges_of(sizes))


def with_class_folders(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same records with the last part of the folders in `label`, "" where there is
    none."""
    import pyarrow.compute as pc

    if "label" not in batch.schema.names:
        return batch
    labels = pc.replace_substring_regex(batch["label"], r"^\.$|.*/", "")
    return with_column(batch, "label", labels)


def encode_labels(batch: pa.RecordBatch, classes: tuple[str, ...]) -> pa.RecordBatch:
    """Return the same records with the numbers of their classes in `label`, null for none. Raises
    Misfit for another name."""
    import pyarrow.compute as pc

    names = batch["label"]
    known = pa.array(classes, pa.string())
    numbers = pc.coalesce(
        *(pc.index_in(each, known) for each in (names, pc.utf8_normalize(names, "NFC")))
    ).cast(pa.int64())
    empty = pc.sum(pc.equal(names, "")).as_py() or 0
    if numbers.null_count > names.null_count + empty:
        raise Misfit("a label that is not among the classes")
    return with_column(batch, "label", numbers)


def check_keys(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, Rejection]]:
    """Return records whose column `key` has their own keys, as strings, and why some rows are
    rejected, by row: without one."""
    keys = batch["key"].cast(pa.string())
    lacking = np.flatnonzero(np.asarray(keys.is_null())).tolist()
    why = "it has no key (--key-field); give it one, or convert without that option"
    wrong = dict.fromkeys(lacking, Rejection("decode", "no-key", why))
    return with_column(batch, "key", keys), wrong


def check_labels(
    batch: pa.RecordBatch, classes: Mapping[str, tuple[str, ...]]
) -> tuple[pa.RecordBatch, dict[int, Rejection]]:
    """Return records whose columns in `classes` have numbers of classes: null for -1, which stands
    for no label, and why some rows are rejected, by row: their number is that of no class.
    """
    import pyarrow.compute as pc

    wrong: dict[int, Rejection] = {}
    for name, names in classes.items():
        place = batch.schema.get_field_index(name)
        if place < 0 or not pa.types.is_integer(batch.schema.field(place).type):
            continue
        column = batch.column(place)
        if pa.types.is_signed_integer(column.type):
            column = pc.if_else(pc.equal(column, -1), pa.scalar(None, column.type), column)
            batch = batch.set_column(place, batch.schema.field(place), column)
        values = column.fill_null(0).to_numpy()
        for row in np.flatnonzero((values < 0) | (values >= len(names))).tolist():
            message = f"its {name} is {values[row]}, and the classes are 0 to {len(names) - 1}"
            wrong.setdefault(row, Rejection("decode", "unknown-class", message))
    return batch, wrong


class BatchPipeline:
    """The batch transforms of a recipe at work in one shard, one after the other.

    `folder` is that of the job, and `roles` are those of the columns of the dataset.
    """

    def __init__(
        self, steps: Sequence[BatchTransform], folder: Path, roles: Mapping[str, Role]
    ) -> None:
        self._stages = [
            (
                step.begin(folder, roles),
                {"name": step.name, "records": 0, "bytes": 0, "rejected": {}},
            )
            for step in steps
        ]

    def __bool__(self) -> bool:
        return bool(self._stages)

    def apply(self, records: Records, reject: RejectRecord) -> Iterator[Records]:
        """Yield what the transforms make of some records.

        `reject` is told of each record that becomes nothing.
        """
        return self._through(self._stages, records, reject)

    def finish(self) -> Iterator[Records]:
        """Yield what they still hold, each in its turn, so that the later ones get what the earlier
        ones gave."""
        for place, (run, _) in enumerate(self._stages):
            for held in run.finish():
                yield from self._through(self._stages[place + 1 :], held, _refuse_late)

    def counts(self) -> list[dict[str, Any]]:
        """Return what became of the records in each step, as plain data: the `records` and `bytes`
        (of their texts) that it was given, and those that each of its rules rejected."""
        return [{**counted, **run.counts()} for run, counted in self._stages]

    def _through(
        self, stages: list[tuple[BatchRun, Counts]], records: Records, reject: RejectRecord
    ) -> Iterator[Records]:
        if not records.batch.num_rows:
            return
        if not stages:
            yield records
            return
        run, counted = stages[0]
        sizes = np.zeros(len(records.numbers), np.int64)
        if pa.types.is_string(type_of(records.batch.schema, "text")):
            sizes = bytes_of(records.batch.column("text")).sizes
        counted["records"] += len(sizes)
        counted["bytes"] += int(sizes.sum())

        def reject_row(row: int, rejection: Rejection) -> None:
            found = counted["rejected"].setdefault(rejection.error, [0, 0])
            found[0] += 1
            found[1] += int(sizes[row])
            reject(int(records.numbers[row]), rejection)

        for made in run.apply(records, reject_row):
            yield from self._through(stages[1:], made, reject)


RejectRecord = Callable[[int, Rejection], None]
"""Takes the number of a record, and why it is rejected."""


def _refuse_late(record: int, rejection: Rejection) -> None:
    raise AssertionError(
        f"a step rejects record {record} of those that another one held back: {rejection}"
    )


def records_of_file(file: int, key: str, fields: Sample) -> Records:
    """Return the one record of a file, which is row `file` of files.arrow."""
    batch = pa.record_batch(
        {"key": pa.array([key]), **{name: pa.array([value]) for name, value in fields.items()}}
    )
    return Records(file, np.zeros(1, np.int64), batch)


def keyed(batch: pa.RecordBatch, path: str, numbers: Numbers) -> pa.RecordBatch:
    """Return records of one file with their keys in the column `key`, which comes first; it may be
    one of their own."""
    place = batch.schema.get_field_index("key")
    if place >= 0:
        return batch.select(["key", *(name for name in batch.schema.names if name != "key")])
    return batch.add_column(0, pa.field("key", pa.string()), make_keys(path, numbers))


def lay_out(
    batch: pa.RecordBatch,
    layout: Layout,
    label: int | None = None,
    columns: dict[str, Any] | None = None,
) -> pa.RecordBatch:
    """Return records, with their keys, as a block of a shard has them. `label` and `columns` are
    those of their file."""
    known = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, value in {**(columns or {}), **({} if label is None else {"label": label})}.items():
        known[name] = pa.repeat(pa.scalar(value, layout.columns.field(name).type), batch.num_rows)
    arrays = [
        _of_type(known[f.name], f.type) if f.name in known else pa.nulls(batch.num_rows, f.type)
        for f in layout.columns
    ]
    return pa.record_batch(arrays, schema=layout.columns)


def _of_type(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an array as it is; lists of the numbers of tensors as tensors."""
    if not isinstance(type_, pa.FixedShapeTensorType) or array.type == type_:
        return array
    values, missing = array, array.is_null() if array.null_count else None
    while pa.types.is_fixed_size_list(values.type):
        values = items_of(values)
    return pa.ExtensionArray.from_storage(
        type_, pa.FixedSizeListArray.from_arrays(values, type=type_.storage_type, mask=missing)
    )
