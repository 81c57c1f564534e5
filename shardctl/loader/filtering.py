"""Which samples of a selection match a condition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import UsageError
from shardctl.format.arrays import Indices
from shardctl.format.roles import Roles
from shardctl.loader.blocks.batch import BatchReader, columns_of
from shardctl.loader.blocks.pictures import HEADER_FIELDS, askable_headers, headers_of
from shardctl.loader.condition import first_line, kept_rows, parse_condition, quoted
from shardctl.loader.stream import Selection

_PLACE = "__place__"
"""The column that holds the result."""

_PLACE_FIELDS = {"index": pa.int64(), "split": pa.string()}
"""What a condition can ask of any sample. A column of the same name takes precedence."""


def matching(selection: Selection, predicate: str | pc.Expression) -> Indices:
    """Return the numbers of the samples that match a condition (Dataset.filter), (n,). Raises
    UsageError."""
    layout = selection.shards.layout
    columns = [
        c.name for c in columns_of(selection.shards, None) if not c.shape and not c.is_encoded_image
    ]
    derived: list[str] = []
    said = quoted(str(predicate))
    if isinstance(predicate, str):
        askable = _askable(
            pa.schema([layout.columns.field(name) for name in columns]), layout.roles
        )
        where = parse_condition(predicate, askable, layout.roles.names, "filter")
        columns = [name for name in columns if name in where.columns]
        derived = [name for name in where.columns if name not in columns]
        predicate = where.expression
    elif not isinstance(predicate, pc.Expression):
        raise UsageError(
            "filter takes a condition as text, such as 'label == 3', or an expression of Arrow; "
            f"it is {said}"
        )
    try:
        with selection.shards.in_turn(selection.chosen):
            return np.fromiter(_matching(selection, predicate, columns, derived), np.int64)
    except (pa.ArrowException, KeyError, TypeError) as error:
        reason = first_line(error)
        among = ", ".join([*columns, *derived])
        raise UsageError(
            f"filter {said} cannot be computed from the columns {among}: {reason}"
        ) from error


def _askable(columns: pa.Schema, roles: Roles) -> pa.Schema:
    """Return the names that a condition may use: these columns, the place of a sample, and the
    fields of image headers."""
    known = {**_PLACE_FIELDS, **askable_headers(roles)}
    return pa.schema(
        [
            *columns,
            *(pa.field(name, type_) for name, type_ in known.items() if name not in columns.names),
        ]
    )


def _matching(
    selection: Selection, predicate: pc.Expression, columns: list[str], derived: list[str]
) -> Iterator[int]:
    shards = selection.shards
    images = _images_for(derived, shards.layout.roles)
    read = columns_of(shards, [*columns, *dict.fromkeys(images.values())] or ["key"])
    by_name = {column.name: column for column in read}
    samples = BatchReader(shards, read)
    starts = selection.starts()
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        places = selection.samples(np.arange(begin, end))
        table = samples.table(places)
        if images:
            headers = {
                name: headers_of(by_name[name], table.column(name).combine_chunks())
                for name in set(images.values())
            }
            of_images = {
                name: headers[of] if name == of else headers[of].field(name)
                for name, of in images.items()
            }
            table = pa.table({**{name: table.column(name) for name in columns}, **of_images})
        if "index" in derived:
            table = table.append_column("index", pa.array(np.arange(begin, end)))
        if "split" in derived:  # these samples are in one block, so in one split
            split = shards.split_of(int(places[0]))
            table = table.append_column("split", pa.array([split] * len(places), pa.string()))
        yield from (
            kept_rows(table.append_column(_PLACE, pa.array(places)), predicate)
            .column(_PLACE)
            .to_pylist()
        )


def _images_for(derived: list[str], roles: Roles) -> dict[str, str]:
    """Return, by name that a condition uses, the column of images whose headers it is taken
    from."""
    found = {name: name for name in derived if name in roles.images}
    if roles.main_image is not None:
        found |= {name: roles.main_image for name in derived if name in HEADER_FIELDS}
    return found
