"""Columns of Parquet and Arrow files as columns of a dataset: plain types, values that do not
change, nothing unchecked."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from shardctl.errors import Rejection, first_line
from shardctl.format.arrays import Bools, Numbers, is_binary, is_list, is_text, items_of
from shardctl.format.token_columns import list_offsets
from shardctl.sources.files import fill
from shardctl.sources.formats.base import (
    RECORD_BYTES,
    Choose,
    ColumnMisfit,
    Digest,
    Misfit,
    Parsed,
    is_given,
    is_json,
    json_texts,
    keep_open,
    refused,
    take_kept,
)
from shardctl.sources.formats.found_values import Rejects, is_chosen, too_large
from shardctl.sources.types import Classes, with_parts, without_nulls
from shardctl.system.files import open_ordinary
from shardctl.system.text import first_repeated, printable

BATCH_ROWS = 4096
"""Rows of a batch at most."""

BATCH_BYTES = 4 << 20
"""About how many bytes a batch has at most, unless one row has more."""

_HASHED = 1 << 20


def batch_rows(rows: int, size: int) -> int:
    """Return how many rows a batch has where so many rows have about `size` bytes."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(1, size)))


_MOST_IN_LISTS = 2**31 - 1
"""Values of all lists of an array whose places have 32 bits."""


def check_columns(names: list[str], schema: pa.Schema) -> None:
    """Raise Misfit if a file has a column that `schema` does not have and nobody chose to leave
    out."""
    strange = next((name for name in names if schema.get_field_index(name) < 0), None)
    if strange is not None and not is_chosen(schema):
        raise Misfit(f"the column {printable(strange)} is not one of those that were found")


def check_names(names: list[str]) -> None:
    """Raise Rejection if two columns have the same name."""
    twice = first_repeated(names)
    if twice is not None:
        raise refused(
            "repeated-column", f"two columns have the name {printable(twice)}; rename one"
        )


# --- types ---


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that holds the same values and that every reader of Arrow files opens.

    Dictionaries, run ends and extensions become what they stand for, views and large strings plain,
    maps lists of structs, tensors lists in lists of their shape.
    """
    if isinstance(type_, pa.FixedShapeTensorType) and type_.shape:
        plain = plain_type(type_.value_type)
        for size in reversed(_shape_of(type_)):
            plain = pa.list_(plain, size)
        return plain
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type)
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if types.is_string_view(type_) or types.is_large_string(type_):
        return pa.string()
    if types.is_binary_view(type_) or types.is_large_binary(type_):
        return pa.binary()
    if types.is_map(type_):
        return plain_type(_list_of_pairs(type_))
    return with_parts(type_, plain_type)


def _list_of_pairs(type_: pa.MapType) -> pa.DataType:
    """Return a map as a list of structs: the layout is the same, only the name is another."""
    return pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)]))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns with plain types. Raises Rejection if two have the same name."""
    check_names(schema.names)
    return pa.schema([(f.name, plain_type(f.type)) for f in schema], schema.metadata)


HUGGING_FACE = b"huggingface"
"""In the metadata of a schema: JSON with the types that Hugging Face datasets gives to columns."""


def class_names(metadata: dict[bytes, bytes] | None) -> Classes:
    """Return the names of the classes of columns, as Hugging Face datasets writes them into the
    metadata of a schema.

    Those inside of lists and structs are named by their path: objects.category. What cannot be read
    names no classes: anybody may have written it.
    """
    try:
        labels = dict(_named("", json.loads((metadata or {})[HUGGING_FACE])["info"]["features"]))
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return {
        name: tuple(names)
        for name, names in labels.items()
        if isinstance(names, list)
        and all(isinstance(each, str) for each in names)
        and len(set(names)) == len(names)
    }


def _named(path: str, feature: Any) -> Iterator[tuple[str, Any]]:
    """Yield the paths of the labels in a feature, with their names."""
    if isinstance(feature, list):  # a list of such, in old files
        for each in feature:
            yield from _named(path, each)
    elif isinstance(feature, dict):
        kind = feature.get("_type")
        if kind == "ClassLabel":
            yield path, feature["names"]
        elif isinstance(kind, str):
            yield from _named(path, feature.get("feature"))
        else:
            for name, inner in feature.items():
                yield from _named(f"{path}.{name}" if path else name, inner)


def not_a_file(kind: str, error: Exception) -> Rejection:
    """Return why a file is rejected that is none of its kind (Parquet, Arrow), given what went
    wrong. Raises `error` itself if it is the disk's."""
    reason = _reason(error)
    if "crypted" in reason:
        return refused("encrypted", "an encrypted Parquet file; decrypt it first")
    article = "an" if kind == "Arrow" else "a"
    return refused(
        f"not-{kind.lower()}",
        f"not {article} {kind} file that can be read ({reason}); it is damaged, or has a wrong ending",
    )


def fitted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an array with another type and the same values. Raises Misfit if a value would
    change."""
    if array.type.equals(type_):
        return array
    try:
        return _fitted(array, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Misfit(
            f"values of type {array.type} do not fit {type_} ({first_line(error)})"
        ) from error


def _fitted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    array = _decoded(array)
    own = array.type
    if own.equals(type_):
        return array
    if types.is_null(own) or array.null_count == len(array):
        return pa.nulls(len(array), type_)
    if types.is_struct(own) and types.is_struct(type_):
        return _fitted_struct(array, type_)
    if is_list(own) and is_list(type_):
        return _fitted_list(array, type_)
    text = (pa.string(), pa.large_string())
    if type_ in text and own not in text:
        return _as_json(array).cast(type_)
    if types.is_boolean(own) != types.is_boolean(type_):
        raise ColumnMisfit(f"values of type {own} do not fit {type_} (a boolean is not a number)")
    if (own in text) != (type_ in text):
        raise ColumnMisfit(
            f"values of type {own} do not fit {type_} (text is not read as something else)"
        )
    cast = array.cast(type_)
    widened = (
        types.is_floating(own) and types.is_floating(type_) and type_.bit_width >= own.bit_width
    )
    if not widened and not _same(cast.cast(own), array):
        raise pa.ArrowInvalid("a value would change")
    return cast


def _same(one: pa.Array, other: pa.Array) -> bool:
    """Return whether all values are equal; NaN is equal to NaN."""
    if one.equals(other):
        return True
    if not types.is_floating(one.type):
        return False
    import pyarrow.compute as pc  # 20 ms to import, and most columns have the type that is wanted

    equal = pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return one.is_null().equals(other.is_null()) and bool(pc.all(equal).as_py())


def _decoded(array: pa.Array) -> pa.Array:
    """Return the values of dictionaries, run ends, extensions and views."""
    own = array.type
    if isinstance(own, pa.FixedShapeTensorType) and own.shape:
        return rows_of_tensors(array)
    if isinstance(own, pa.BaseExtensionType):
        return _decoded(array.storage)
    if types.is_dictionary(own):
        words = _decoded(array.dictionary)  # Arrow takes no values out of a dictionary of views
        return pa.DictionaryArray.from_arrays(array.indices, words).dictionary_decode()
    if types.is_run_end_encoded(own):
        import pyarrow.compute as pc

        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, _decoded(array.values)).slice(
            array.offset, len(array)
        )
        return pc.run_end_decode(runs)
    if types.is_string_view(own) or types.is_binary_view(own):
        return array.cast(plain_type(own))
    if types.is_map(own):
        return array.cast(_list_of_pairs(own))
    # Not array.cast(): it takes the places of views for those of lists, and loses values (pyarrow
    # 26).
    if types.is_list_view(own):
        import pyarrow.compute as pc

        # views may share their values
        if (pc.sum(pc.list_value_length(array)).as_py() or 0) > _MOST_IN_LISTS:
            raise pa.ArrowInvalid("the lists of one batch have more values than a column holds")
        return _list_of(array, array.flatten(), pa.list_(own.value_type))
    if types.is_large_list_view(own):
        return _list_of(array, array.flatten(), pa.large_list(own.value_type))
    return array


def _shape_of(type_: pa.FixedShapeTensorType) -> list[int]:
    """Return the shape of tensors as they are read: the permutation tells how they lie in
    memory."""
    return [type_.shape[place] for place in type_.permutation or range(len(type_.shape))]


def rows_of_tensors(array: pa.Array) -> pa.Array:
    """Return tensors as lists in lists."""
    own, shape = array.type, _shape_of(array.type)
    values = items_of(array.storage)
    if own.permutation:
        size = array.storage.type.list_size
        places = np.arange(size).reshape(own.shape).transpose(own.permutation).reshape(-1)
        rows = np.arange(len(array))[:, None] * size
        values = values.take(pa.array((rows + places).reshape(-1)))
    values = nested(values, shape)
    type_ = pa.list_(values.type, shape[0])
    return pa.FixedSizeListArray.from_arrays(values, type=type_, mask=_mask_of(array))


def nested(values: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Return values as lists in lists: the rows of an array of this shape where its first length is
    that of the rows."""
    for length in reversed(shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    return values


def _list_of(array: pa.Array, values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return lists like those of `array` (a list or a map) over other values, those of its slice
    alone."""
    large = types.is_large_list(type_)
    edges = pa.array(list_offsets(array), pa.int64() if large else pa.int32())
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(
        edges, values, type=type_, mask=_mask_of(array)
    )


def _mask_of(array: pa.Array) -> pa.Array | None:
    """Return which values are null; None if there are none of these."""
    return array.is_null() if array.null_count else None


def _fitted_list(array: pa.Array, type_: pa.DataType) -> pa.Array:
    own = array.type
    if not types.is_fixed_size_list(type_):
        return _list_of(array, _fitted(array.flatten(), type_.value_type), type_)
    if not types.is_fixed_size_list(own) or own.list_size != type_.list_size:
        raise pa.ArrowInvalid("lists may have other lengths")
    values = _fitted(items_of(array), type_.value_type)
    return pa.FixedSizeListArray.from_arrays(values, type=type_, mask=_mask_of(array))


def _fitted_struct(array: pa.Array, type_: pa.DataType) -> pa.Array:
    own = {f.name: part for f, part in zip(array.type, array.flatten(), strict=True)}
    strange = next((name for name in own if type_.get_field_index(name) < 0), None)
    if strange is not None or len(own) < array.type.num_fields:
        raise pa.ArrowInvalid(f"the field {strange} is not one of those that were found")
    columns = [
        _fitted(own[f.name], f.type) if f.name in own else pa.nulls(len(array), f.type)
        for f in type_
    ]
    mask = _mask_of(array)
    if not columns:
        return pa.array([{}] * len(array), type_, mask=None if mask is None else np.asarray(mask))
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)


def _as_json(array: pa.Array) -> pa.Array:
    """Return JSON text for values that are no strings. Raises ArrowInvalid for those that JSON
    cannot hold."""
    try:
        texts = [
            value
            if value is None or isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)
            for value in array.to_pylist()
        ]
    except (TypeError, ValueError) as error:
        raise pa.ArrowInvalid(f"not all of it can be JSON text: {error}") from None
    return pa.array(texts, pa.string())


# --- reading ---


class _Continued:
    """The batches of a part of a file, of which `passed` rows were read; `rest` is what is left of
    the last batch."""

    def __init__(self, key: tuple[Any, ...], batches: Generator[pa.RecordBatch]) -> None:
        self.key, self.batches, self.close = key, batches, batches.close
        self.passed = 0
        self.rest: pa.RecordBatch | None = None


def rows_of(
    key: tuple[Any, ...],
    open_batches: Callable[[], Generator[pa.RecordBatch]],
    skip: int,
    count: int,
) -> Iterator[pa.RecordBatch]:
    """Yield rows `skip` to `skip + count` of a part of a file. Where it is not read to its end, the
    next unit goes on there and decodes nothing again.

    `key` names the part; it must hold what changes when the file does (`local_version`), and ends with
    the names of the columns.
    """
    current = take_kept(key, skip) or _Continued(key, open_batches())
    end = skip + count
    while current.passed < end:
        batch = current.rest if current.rest is not None else next(current.batches, None)
        if batch is None:
            raise refused("changed", "the file has fewer rows than it says; make it again")
        first, stop = max(0, skip - current.passed), min(len(batch), end - current.passed)
        current.rest = batch.slice(stop) if stop < len(batch) else None
        current.passed += stop
        if first < stop:
            yield batch.slice(first, stop - first)
    keep_open(current)


def parsed(
    batch: pa.RecordBatch, first: int, schema: pa.Schema, choose: Choose | None
) -> Iterator[Parsed]:
    """Yield rows of a file, of which the first has the number `first`, with the columns of
    `schema`, and checked.

    A row with a value that is not valid (text that is no UTF-8), or that is too large, is rejected.
    Raises Misfit, ArrowInvalid.
    """
    numbers = np.arange(first, first + len(batch))
    batch, numbers, rejects = _valid_rows(batch, numbers)  # before anything follows its offsets
    if choose is not None:
        wanted = choose(numbers)
        numbers, batch = numbers[wanted], _chosen(batch, wanted)
        if rejects:
            ours = choose(np.array([number for number, _ in rejects], np.int64))
            rejects = list(compress(rejects, ours))
    parts = [(batch, numbers)]
    if (size := _bytes_of(batch)) > RECORD_BYTES:
        parts, large = _rows_apart(batch, numbers)
        rejects = sorted([*rejects, *large])
    elif len(batch) > 1 and size > 2 * BATCH_BYTES:  # rows are larger than the average of the file
        half = len(batch) // 2
        parts = [(batch.slice(0, half), numbers[:half]), (batch.slice(half), numbers[half:])]
    for part, own in parts:
        yield Parsed(own, fitted_batch(part, schema), rejects)
        rejects = []


def _bytes_of(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a batch has; long values of dictionaries count wherever they
    are."""
    total = int(batch.nbytes)
    for column in batch.columns:
        if (
            types.is_dictionary(column.type)
            and column.dictionary.nbytes * len(column) > RECORD_BYTES
        ):
            total += int(_row_bytes(column).sum())
    return total


def _row_bytes(column: pa.Array) -> Numbers:
    """Return about how many bytes each value has, (n,)."""
    words = _decoded(column.dictionary) if types.is_dictionary(column.type) else None
    if words is not None and (is_text(words.type) or is_binary(words.type)):
        import pyarrow.compute as pc

        return np.asarray(pc.binary_length(words).take(column.indices).fill_null(0)).astype(
            np.int64
        )
    return np.array([column.slice(row, 1).nbytes for row in range(len(column))], np.int64)


def _rows_apart(
    batch: pa.RecordBatch, numbers: Numbers
) -> tuple[list[tuple[pa.RecordBatch, Numbers]], Rejects]:
    """Return the rows of a large batch one by one, after a part without any, and those that are too
    large to be read as rejects."""
    parts, rejects = [(batch.slice(0, 0), numbers[:0])], []
    sizes = np.sum([_row_bytes(column) for column in batch.columns], axis=0)
    for row, size in enumerate(sizes.tolist()):
        if size > RECORD_BYTES:
            rejects.append((int(numbers[row]), too_large(size)))
        else:
            parts.append((batch.slice(row, 1), numbers[row : row + 1]))
    return parts, rejects


def fitted_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, string for null; those that are missing are null. Raises
    Misfit."""

    def fit(column: pa.Array, field: pa.Field, out: pa.Field) -> pa.Array:
        try:
            if is_json(field):
                column = json_texts(map(_without_nulls, column.to_pylist()))
            if is_given(schema) and types.is_string(out.type) and not _may_be_text(column):
                raise ColumnMisfit(f"values of type {column.type} do not fit {out.type}")
            return fitted(fitted(column, field.type), out.type)
        except Misfit as error:
            raise type(error)(f"the column {printable(field.name)}: {error}") from error

    return with_columns(batch, schema, fit)


def with_columns(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    fit: Callable[[pa.Array, pa.Field, pa.Field], pa.Array],
) -> pa.RecordBatch:
    """Return the columns of `schema`, string for null; those that are missing are null. `fit` gives
    the others, for a field of `schema`, and that field with string for null."""
    whole = without_nulls(schema)
    columns = [
        pa.nulls(len(batch), out.type)
        if (place := batch.schema.get_field_index(field.name)) < 0
        else fit(batch.column(place), field, out)
        for field, out in zip(schema, whole, strict=True)
    ]
    return pa.record_batch(columns, schema=whole)


def _without_nulls(value: Any) -> Any:
    """Return a value without what is null in objects: Arrow has there what another record has."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _may_be_text(array: pa.Array) -> bool:
    type_ = plain_type(array.type)
    return bool(types.is_string(type_) or types.is_binary(type_) or array.null_count == len(array))


def _valid_rows(batch: pa.RecordBatch, numbers: Numbers) -> tuple[pa.RecordBatch, Numbers, Rejects]:
    """Return the rows whose values are valid, their numbers, and the others as rejects.

    Raises ArrowInvalid if the arrays themselves are damaged.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        of_all = error
        batch.validate()
    else:
        return batch, numbers, []
    valid, rejects = np.ones(len(batch), bool), []
    for row in range(len(batch)):
        try:
            batch.slice(row, 1).validate(full=True)
        except pa.ArrowInvalid as error:
            reason = first_line(error)
            valid[row] = False
            name, advice = "invalid-value", "write the file again"
            if "utf8" in reason.lower():
                name, advice = "not-utf8", "write it as UTF-8 or as bytes"
            rejects.append((int(numbers[row]), Rejection("decode", name, f"{reason}; {advice}")))
    if not rejects:  # what the arrays say of all rows together is wrong
        raise of_all
    return _chosen(batch, valid), numbers[valid], rejects


def _chosen(batch: pa.RecordBatch, wanted: Bools) -> pa.RecordBatch:
    """Return the wanted rows of a batch."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2).tolist()
    # neighbours, or none, need no copy, nor Arrow's kernels, which take 40 ms to import with
    # numpy.ma
    if len(edges) <= 1:
        first, end = edges[0] if edges else (0, 0)
        return batch.slice(first, end - first)
    try:
        return batch.filter(pa.array(wanted))
    except pa.ArrowNotImplementedError:  # of views and run ends
        return pa.concat_batches(
            [batch.slice(0, 0), *(batch.slice(first, end - first) for first, end in edges)]
        )


def hash_ranges(path: str, ranges: Iterable[tuple[int, int]], digest: Digest) -> None:
    """Give ranges of a file, (offset, size) each, to a digest. Raises Rejection if the file is
    shorter, OSError."""
    view = memoryview(bytearray(_HASHED))
    with open_ordinary(path) as file:
        for start, size in ranges:
            for offset in range(start, start + size, _HASHED):
                part = view[: start + size - offset]
                fill(file.fileno(), offset, part)
                digest.update(part)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        raise error
    return first_line(error).removesuffix(".")


def damaged(what: str, error: Exception | str) -> Rejection:
    """Return the rejection of what cannot be read. Raises `error` itself if it is the disk's."""
    reason = error if isinstance(error, str) else _reason(error)
    message = f"{what} cannot be read ({printable(reason)}); it is damaged, get it again"
    return refused("damaged", message)


FAULTS = (
    pa.ArrowException,
    OSError,
    ValueError,
    OverflowError,
    KeyError,
    IndexError,
    TypeError,
    RecursionError,
)
"""What pyarrow raises for files that are damaged."""
