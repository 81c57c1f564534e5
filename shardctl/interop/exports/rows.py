"""The samples of a part as a form writes them: chosen, and converted column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.python_values import json_text
from shardctl.format.roles import Mask, Objects
from shardctl.interop.exports.base import ExportPart, Progress
from shardctl.interop.exports.images import encoder, upright
from shardctl.interop.exports.source import Source
from shardctl.sources.export_description import Field


def batches(
    source: Source, fields: Sequence[Field], part: ExportPart, progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Yield the samples of a part, with a column for each of `fields`, in their order and under
    their `written` names.

    A column of form `json` has JSON text, one of `png` or `jpeg:Q` encoded images; all others have
    the type of the dataset. Encoded images beside objects or masks are upright as they are stored:
    `turned` of the source counts those that EXIF turned. No batch is empty. Raises DatasetError for
    a damaged block, InputError for an image that cannot be encoded.
    """
    roles = source.exported.roles
    marked = any(isinstance(roles.get(field.name), Objects | Mask) for field in fields)
    turned = roles.images if marked else ()
    converters = [
        _upright(source, field) if field.name in turned else _converter(field.form)
        for field in fields
    ]
    for number in part.shards:
        for block, read in source.blocks(source.shard(number)):
            if block.num_rows:
                columns = [
                    convert(block.column(field.name))
                    for field, convert in zip(fields, converters, strict=True)
                ]
                yield pa.record_batch(columns, names=[field.written for field in fields])
            progress(read)


def _upright(source: Source, field: Field) -> Callable[[pa.Array], pa.Array]:
    written, is_mask = (
        _converter(field.form),
        isinstance(source.exported.roles.get(field.name), Mask),
    )
    if not source.exported.columns.field(field.name).type.equals(ENCODED_IMAGE):
        return written

    def convert(array: pa.Array) -> pa.Array:
        made, turned = upright(array, is_mask)
        source.turned += turned
        return written(made)

    return convert


def _converter(form: str) -> Callable[[pa.Array], pa.Array]:
    if form == "json":
        return json_text
    if form == "png" or form.startswith("jpeg:"):
        return encoder(form)
    return lambda array: array
