"""What the members of WebDataset's samples are, by the last part of their names: numbers, texts,
JSON, arrays, or bytes."""

from __future__ import annotations

import io
import re
import warnings
from tokenize import TokenError
from typing import Any

from shardctl.errors import Rejection
from shardctl.sources.formats.found_values import whole_array
from shardctl.sources.jsonl import parse_value
from shardctl.system.text import printable

NUMBERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
TEXTS = frozenset(("txt", "text", "transcript"))
JSONS = frozenset(("json", "jsn"))
ARRAYS = frozenset(("npy",))
PICKLES = frozenset(("pyd", "pkl", "pickle", "pth", "pt"))
"""The last parts of names that the package webdataset gives a meaning to. All others are bytes."""

_WHOLE = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")


def value_of(field: str, data: bytes) -> Any:
    """Return the value of a member. Raises Rejection (stage `decode`) if it is not what its name
    says."""
    ending = field.rpartition(".")[2]
    if ending in NUMBERS:
        return _number(field, data)
    if ending in TEXTS:
        return _text(field, data)
    if ending in JSONS:
        return _json(field, data)
    if ending in ARRAYS:
        return array_in(data, f"its member {printable(field)}")
    if ending in PICKLES:
        message = (
            f"its member {printable(field)} is a pickle, which can run any code when it is "
            "read; use .json or .npy"
        )
        raise Rejection("decode", "pickle", message)
    return data


def _number(field: str, data: bytes) -> int:
    if not _WHOLE.fullmatch(data):
        shown = printable(data[:40].decode("utf-8", "replace"))
        message = (
            f"its member {printable(field)} must be a whole number; it is {shown}. Fix it, "
            "or name it .txt"
        )
        raise Rejection("decode", "not-a-number", message)
    return int(data)


def _text(field: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"its member {printable(field)} is not UTF-8 at byte {error.start}; recode it"
        raise Rejection("decode", "not-utf8", message) from None


def _json(field: str, data: bytes) -> Any:
    try:
        return parse_value(data)
    except Rejection as rejection:
        message = f"its member {printable(field)}: {rejection.message}"
        raise Rejection(rejection.stage, rejection.error, message) from None


_NPY_FAULTS = (
    ValueError,
    TypeError,
    OverflowError,
    EOFError,
    SyntaxError,
    TokenError,
    RecursionError,
    MemoryError,
    KeyError,
)
"""What numpy raises for headers that are none: it evaluates them as literals of Python."""


def array_in(data: bytes, what: str) -> Any:
    """Return the array in the bytes of an .npy file. Nothing is unpickled, and no memory is taken
    beyond them.

    Raises Rejection.
    """
    from numpy.lib import format as npy

    stream = io.BytesIO(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote
            version = npy.read_magic(stream)
            read_header = (
                npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            )
            shape, _, dtype = read_header(stream)
            size = dtype.itemsize
            for length in shape:
                size *= length
            if dtype.hasobject or size != len(data) - stream.tell():
                raise ValueError(
                    "objects" if dtype.hasobject else "its size is not that of its shape"
                )
            stream.seek(0)
            array = whole_array(npy.read_array(stream, allow_pickle=False))
    except _NPY_FAULTS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Rejection(
            "decode",
            "not-npy",
            f"{what} is not an array of numpy that can be read ({printable(reason)})",
        ) from None
    if array.dtype.kind not in "iufb":
        raise Rejection(
            "decode", "not-npy", f"{what} is an array of {array.dtype}; arrays of numbers are read"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)
