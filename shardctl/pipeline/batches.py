"""The steps of a recipe for whole Arrow batches of records: text and tables, with no Python object per record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from shardctl.layout import Layout
from shardctl.sources.formats import Misfit, Numbers
from shardctl.transforms import BatchRun, BatchTransform


def make_keys(path: str, numbers: Numbers) -> pa.Array:
    """Return the keys of records of one file by their numbers: (n,) string, path#N."""
    import pyarrow.compute as pc  # 40 ms to import, and images do not need it

    return pc.binary_join_element_wise(pa.scalar(path), pa.array(numbers).cast(pa.string()), "#")


def encode_labels(batch: pa.RecordBatch, classes: tuple[str, ...]) -> pa.RecordBatch:
    """Return the same records with the numbers of their classes in `label`, null for none. Raises Misfit for another name."""
    import pyarrow.compute as pc

    place = batch.schema.get_field_index("label")
    names = batch.column(place)
    numbers = pc.index_in(names, value_set=pa.array(classes, pa.string())).cast(pa.int64())
    empty = pc.sum(pc.equal(names, "")).as_py() or 0
    if numbers.null_count > names.null_count + empty:
        raise Misfit("a label that is not among the classes")
    return batch.set_column(place, pa.field("label", pa.int64()), numbers)


class BatchPipeline:
    """The batch transforms of a recipe at work in one shard, one after the other."""

    def __init__(self, steps: Sequence[BatchTransform]) -> None:
        self._runs = [step.begin() for step in steps]

    def apply(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what the transforms make of some records: a batch with `key` and their fields."""
        return self._through(self._runs, batch)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what they still hold, each in its turn, so that the later ones get what the earlier ones gave."""
        for place, run in enumerate(self._runs):
            for held in run.finish():
                yield from self._through(self._runs[place + 1 :], held)

    def _through(self, runs: list[BatchRun], batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not runs:
            yield batch
            return
        for made in runs[0].apply(batch):
            yield from self._through(runs[1:], made)


def keyed(batch: pa.RecordBatch, path: str, numbers: Numbers) -> pa.RecordBatch:
    """Return records of one file with their keys in the column `key`, which comes first."""
    return batch.add_column(0, pa.field("key", pa.string()), make_keys(path, numbers))


def lay_out(
    batch: pa.RecordBatch, layout: Layout, label: int | None = None, columns: dict[str, Any] | None = None
) -> pa.RecordBatch:
    """Return records, with their keys, as a block of a shard has them. `label` and `columns` are those of their file."""
    known = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, value in {**(columns or {}), **({} if label is None else {"label": label})}.items():
        known[name] = pa.repeat(pa.scalar(value, layout.columns.field(name).type), batch.num_rows)
    arrays = [known[f.name] if f.name in known else pa.nulls(batch.num_rows, f.type) for f in layout.columns]
    return pa.record_batch(arrays, schema=layout.columns)
