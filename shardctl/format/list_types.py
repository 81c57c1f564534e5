"""Arrow's types of lists."""

from __future__ import annotations

import pyarrow as pa


def is_list(type_: pa.DataType) -> bool:
    """Return whether a type is one of lists, of one length or of any. Views of lists are not."""
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    )


def leaf_of(type_: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the type of the values in lists, and in lists in them, and in how many lists each
    is."""
    depth = 0
    while is_list(type_):
        depth, type_ = depth + 1, type_.value_type
    return type_, depth
