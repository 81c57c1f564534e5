"""The steps of a recipe for whole Arrow batches of records: text and tables, with no Python object
per record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import bytes_of
from shardctl.format.layout import Layout
from shardctl.format.roles import Role, Sample
from shardctl.sources.formats import Misfit, Numbers
from shardctl.transforms.base import BatchRun, BatchTransform, Records


def make_keys(path: str, numbers: Numbers) -> pa.Array:
    """Return the keys of records of one file by their numbers: (n,) string, path#N."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(f"{path}#", pa.array(numbers).cast(pa.string()), "")


def with_class_folders(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same records with the last part of the folders in `label`, "" where there is
    none."""
    import pyarrow.compute as pc

    place = batch.schema.get_field_index("label")
    if place < 0:
        return batch
    labels = pc.replace_substring_regex(batch[place], r"^\.$|.*/", "")
    return batch.set_column(place, "label", labels)


def encode_labels(batch: pa.RecordBatch, classes: tuple[str, ...]) -> pa.RecordBatch:
    """Return the same records with the numbers of their classes in `label`, null for none. Raises
    Misfit for another name."""
    import pyarrow.compute as pc

    place = batch.schema.get_field_index("label")
    names = batch.column(place)
    known = pa.array(classes, pa.string())
    numbers = pc.coalesce(
        *(pc.index_in(each, known) for each in (names, pc.utf8_normalize(names, "NFC")))
    ).cast(pa.int64())
    empty = pc.sum(pc.equal(names, "")).as_py() or 0
    if numbers.null_count > names.null_count + empty:
        raise Misfit("a label that is not among the classes")
    return batch.set_column(place, pa.field("label", pa.int64()), numbers)


def check_keys(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, Rejection]]:
    """Return records whose column `key` has their own keys, as strings, and why some rows are
    rejected, by row: without one."""
    place = batch.schema.get_field_index("key")
    keys = batch.column(place).cast(pa.string())
    wrong: dict[int, Rejection] = {}
    if keys.null_count:
        why = "it has no key (--key-field); give it one, or convert without that option"
        for row in np.flatnonzero(~np.asarray(keys.is_valid())).tolist():
            wrong[row] = Rejection("decode", "no-key", why)
    return batch.set_column(place, pa.field("key", pa.string()), keys), wrong


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
        self._stages = [_Stage(step.name, step.begin(folder, roles)) for step in steps]

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
        for place, stage in enumerate(self._stages):
            for held in stage.run.finish():
                yield from self._through(self._stages[place + 1 :], held, _refuse_late)

    def counts(self) -> list[dict[str, Any]]:
        """Return what became of the records in each step, as plain data."""
        return [stage.counts() for stage in self._stages]

    def _through(
        self, stages: list[_Stage], records: Records, reject: RejectRecord
    ) -> Iterator[Records]:
        if not records.batch.num_rows:
            return
        if not stages:
            yield records
            return
        for made in stages[0].apply(records, reject):
            yield from self._through(stages[1:], made, reject)


RejectRecord = Callable[[int, Rejection], None]
"""Takes the number of a record, and why it is rejected."""


def _refuse_late(record: int, rejection: Rejection) -> None:
    raise AssertionError(
        f"a step rejects record {record} of those that another one held back: {rejection}"
    )


class _Stage:
    """A step at work. It counts `records` and `bytes` (of their texts) that it was given, and
    those that each of its rules rejected."""

    def __init__(self, name: str, run: BatchRun) -> None:
        self.name, self.run = name, run
        self._records = self._bytes = 0
        self._rejected = defaultdict[str, list[int]](lambda: [0, 0])

    def counts(self) -> dict[str, Any]:
        """Return what became of the records, as plain data."""
        rejected = dict(self._rejected)
        counts = {"records": self._records, "bytes": self._bytes, "rejected": rejected}
        return {"name": self.name, **counts, **self.run.counts()}

    def apply(self, records: Records, reject: RejectRecord) -> Iterable[Records]:
        """Do the step, and count what becomes of the records."""
        sizes = _text_sizes(records.batch)
        self._records += len(sizes)
        self._bytes += int(sizes.sum())

        def reject_row(row: int, rejection: Rejection) -> None:
            found = self._rejected[rejection.error]
            found[0] += 1
            found[1] += int(sizes[row])
            reject(int(records.numbers[row]), rejection)

        return self.run.apply(records, reject_row)


def _text_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of the text of each record, (n,); 0 where there is none."""
    place = batch.schema.get_field_index("text")
    if place < 0 or not pa.types.is_string(batch.schema.field(place).type):
        return np.zeros(batch.num_rows, np.int64)
    return bytes_of(batch.column(place)).sizes


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
        return batch.select(
            [place, *(other for other in range(batch.num_columns) if other != place)]
        )
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
        size = values.type.list_size
        values = values.values.slice(values.offset * size, len(values) * size)
    return pa.ExtensionArray.from_storage(
        type_, pa.FixedSizeListArray.from_arrays(values, type=type_.storage_type, mask=missing)
    )
