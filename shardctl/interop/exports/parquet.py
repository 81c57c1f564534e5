"""Parquet as Hugging Face datasets reads it: data/SPLIT-00000-of-00007.parquet, with its features
in the schema.

LitData's ParquetLoader reads the same files: litdata/SPLIT/index.json lists those of a split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.roles import Roles
from shardctl.format.shard import HUGGINGFACE_KEY
from shardctl.interop.exports.base import (
    Column,
    ColumnEncoding,
    Done,
    Export,
    PartResult,
    Source,
    Work,
)
from shardctl.sources.export_description import Field
from shardctl.sources.formats.columns import plain_type, rows_of_tensors
from shardctl.system.files import FileFacts, StreamedFile, replacing

FOLDER = "data"
GROUP_BYTES = 100_000_000
"""Uncompressed bytes of a row group at most: what Hugging Face writes. Its viewer refuses larger
ones."""

GROUP_IMAGES = 1000
"""Rows of a row group at most where there are images. A reader of one row reads the whole group."""

GROUP_ROWS = 1 << 20


@dataclass(frozen=True)
class Parquet(Export):
    """A .parquet for each shard. Columns of encoded images are not compressed, which would gain
    nothing."""

    compression: str = "zstd"

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written. Raw images become PNG, which Hugging Face knows, and other
        tensors nested lists."""
        if (form := column.image_form()) is not None:
            return ColumnEncoding(column.target, form)
        type_ = nested(column.type)
        return ColumnEncoding(
            column.target, "value", None if _is_held(type_) else f"Parquet has no type for {type_}"
        )

    def write(self, work: Work) -> PartResult:
        """Write one file, which has no rows if no sample was chosen of the shard."""
        from pyarrow import parquet

        name = f"{FOLDER}/{work.split}-{work.number:05d}-of-{work.of:05d}.parquet"
        schema = written_schema(work.source, work.fields)
        images = [field.name for field in schema if field.type.equals(ENCODED_IMAGE)]
        with replacing(work.path(name), StreamedFile) as sink:
            # The codec is given by leaf: pyarrow takes no default beside a dict of them.
            codecs = dict.fromkeys(_leaves(schema), self.compression)
            codecs |= {f"{image}.bytes": "none" for image in images}
            writer = parquet.ParquetWriter(
                pa.PythonFile(sink, mode="w"),
                schema,
                compression=codecs,
                write_page_index=True,
                write_page_checksum=True,
                use_dictionary=[
                    leaf for leaf in _leaves(schema) if leaf.rpartition(".")[0] not in images
                ],
            )
            with writer:
                rows = 0
                for group in _groups(
                    work.batches(),
                    schema,
                    GROUP_IMAGES if images else GROUP_ROWS,
                ):
                    writer.write_table(group, row_group_size=len(group))
                    rows += len(group)
        return PartResult(rows, {name: sink.facts})

    def finish(self, done: Done) -> dict[str, FileFacts]:
        """Write litdata/SPLIT/index.json: the list of files with which LitData reads them in this
        order."""
        config = {
            **dict.fromkeys("chunk_bytes,chunk_size,compression,data_spec,encryption".split(",")),
            "data_format": [str(field.type) for field in written_schema(done.source, done.fields)],
            "item_loader": "ParquetLoader",
        }
        made: dict[str, bytes] = {}
        for split, of_split in done.of_splits():
            chunks = [
                {
                    "chunk_bytes": facts.bytes,
                    "chunk_size": each.samples,
                    "dim": None,
                    "filename": file.removeprefix(f"{FOLDER}/"),
                }
                for each in of_split
                if each.samples
                for file, facts in each.files.items()
            ]
            if chunks:
                index = {"chunks": chunks, "config": config, "updated_at": "0"}
                name = f"litdata/{split}/index.json"
                made[name] = json.dumps(index, sort_keys=True).encode()
        return done.write(made)


def nested(type_: pa.DataType) -> pa.DataType:
    """Return the type in which a column is written.

    Tensors are nested lists of fixed length, and large lists (of 64-bit offsets) are lists: Hugging
    Face has neither.
    """
    if pa.types.is_large_list(type_) or pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(nested(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([child.with_type(nested(child.type)) for child in type_])
    return plain_type(type_) if isinstance(type_, pa.FixedShapeTensorType) else type_


def written_schema(source: Source, fields: Sequence[Field]) -> pa.Schema:
    """Return the schema of the files, with the features for Hugging Face."""
    columns, roles = [], {}
    for field in fields:
        type_ = source.type_of(field.name)
        role = source.exported.roles.get(field.name)
        if field.form == "json":
            type_, role = pa.string(), None
        elif field.form != "value":
            type_ = ENCODED_IMAGE
        else:
            role = None if isinstance(type_, pa.FixedShapeTensorType) else role
            type_ = nested(type_)
        columns.append(pa.field(field.written, type_))
        if role is not None:
            roles[field.written] = role
    layout = Layout(source.exported.kind, pa.schema(columns), Roles(roles))
    features = layout.huggingface_features()
    return layout.columns.with_metadata(
        {HUGGINGFACE_KEY: json.dumps({"info": {"features": features}})}
    )


def _groups(given: Iterator[pa.RecordBatch], schema: pa.Schema, most: int) -> Iterator[pa.Table]:
    """Yield the rows of a file in groups of at most GROUP_BYTES and `most` rows; a larger row has a
    group of its own."""
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in given:
        flat = pa.record_batch(
            [
                _flattened(column, field.type)
                for column, field in zip(batch.columns, schema, strict=True)
            ],
            schema,
        )
        for piece in _pieces(flat, most):
            if held and (size + piece.nbytes > GROUP_BYTES or rows + piece.num_rows > most):
                yield pa.Table.from_batches(held, schema)
                held, size, rows = [], 0, 0
            held.append(piece)
            size, rows = size + piece.nbytes, rows + piece.num_rows
    if held:
        yield pa.Table.from_batches(held, schema)


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces that fit into a row group, as far as one row does."""
    if batch.num_rows == 1 or (batch.nbytes <= GROUP_BYTES and batch.num_rows <= most):
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half), most)
    yield from _pieces(batch.slice(half), most)


def _flattened(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a column in the type in which it is written (`nested`)."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        return rows_of_tensors(column)
    return column if column.type.equals(type_) else column.cast(type_)


def _is_held(type_: pa.DataType) -> bool:
    """Return whether Parquet has a type for it: tried out on no values."""
    from pyarrow import parquet

    schema = pa.schema([("value", type_)])
    try:
        with parquet.ParquetWriter(pa.BufferOutputStream(), schema) as writer:
            writer.write_table(schema.empty_table())
    except (pa.ArrowException, NotImplementedError):
        return False
    return True


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the paths of the columns that a Parquet file has for a schema."""
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    with parquet.ParquetWriter(sink, schema):
        pass
    found = parquet.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [found.column(place).path for place in range(len(found.names))]
