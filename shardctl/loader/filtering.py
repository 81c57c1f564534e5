"""Which samples of a selection match a condition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import UsageError, first_line
from shardctl.format.arrays import Numbers
from shardctl.loader.blocks.batch import BatchReader, columns_of
from shardctl.loader.blocks.pictures import HEADER_FIELDS, askable_headers, headers_of
from shardctl.loader.condition import kept_rows, parse_condition, quoted
from shardctl.loader.stream import Selection

_PLACE = "__place__"
"""The column that holds the result."""


def matching(selection: Selection, predicate: str | pc.Expression) -> Numbers:
    """Return the numbers of the samples that match a condition (Dataset.filter), (n,). Raises
    UsageError."""
    layout = selection.shards.layout
    columns = [
        c.name for c in columns_of(selection.shards, None) if not c.shape and not c.is_encoded_image
    ]
    derived: list[str] = []
    said = quoted(str(predicate))
    if isinstance(predicate, str):
        # a column of the same name takes precedence
        askable = {"index": pa.int64(), "split": pa.string(), **askable_headers(layout.roles)}
        askable |= {name: layout.columns.field(name).type for name in columns}
        schema = pa.schema(list(askable.items()))
        where = parse_condition(predicate, schema, layout.roles.names, "filter")
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


def _matching(
    selection: Selection, predicate: pc.Expression, columns: list[str], derived: list[str]
) -> Iterator[int]:
    shards = selection.shards
    roles = shards.layout.roles
    # by name that the condition uses, the column of images whose headers it is taken from
    images = {name: name for name in derived if name in roles.images}
    if roles.main_image is not None:
        images |= {name: roles.main_image for name in derived if name in HEADER_FIELDS}
    read = columns_of(shards, [*columns, *dict.fromkeys(images.values())] or ["key"])
    by_name = {column.name: column for column in read}
    samples = BatchReader(shards, read)
    for begin, end in pairwise(selection.starts().tolist()):
        places = selection.samples(np.arange(begin, end))
        stored = samples.table(places)
        found = {name: stored.column(name) for name in columns}
        headers = {
            of: headers_of(by_name[of], stored.column(of).combine_chunks())
            for of in set(images.values())
        }
        for name, of in images.items():
            found[name] = headers[of] if name == of else headers[of].field(name)
        if "index" in derived:
            found["index"] = pa.array(np.arange(begin, end))
        if "split" in derived:  # these samples are in one block, so in one split
            split = shards.split_of(int(places[0]))
            found["split"] = pa.array([split] * len(places), pa.string())
        found[_PLACE] = pa.array(places)
        yield from kept_rows(pa.table(found), predicate).column(_PLACE).to_pylist()
