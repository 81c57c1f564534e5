"""Lines of JSON, and the Arrow types that hold them without loss."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from shardctl.errors import Rejection
from shardctl.system.text import first_repeated, printable

DEEPEST = 60
"""Levels of lists and objects in a column. Arrow writes and reads files with up to 64."""

MOST_LEVELS = 500
"""Levels of lists and objects in a line that is read at all."""

MOST_NAMES = 1000
"""Different names that the objects of a field have together, where it is a struct: with names of
their own in all records, a struct would grow with the square of the records."""

EXACT_IN_FLOAT = 2**53
"""Whole numbers beyond this are rounded where they become float64."""

NULL_WORDS = frozenset(
    r"NA,N/A,n/a,na,<NA>,#N/A,NULL,Null,null,None,none,NaN,nan,?,-,\N".split(",")
)
"""What people write into a cell of a table that has no value. shardctl takes none of them for that
unless it is told to."""

SHOWN_DIGITS = 40
"""Characters of a number that a message shows."""

_JSON_NAMES: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}
"""What a value of JSON is called that is no object."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a pair of surrogates, as JSON writes it."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = first_repeated([name for name, _ in pairs])
        raise ValueError(f"the name {printable(twice)} appears twice in one object")
    return value


def _decimal(text: str) -> float:
    """Return a decimal as float64. Raises Rejection where float64 has nothing near it: only
    infinity, or 0."""
    value = float(text)
    if math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
        shown = text if len(text) <= SHOWN_DIGITS else f"{text[:SHOWN_DIGITS]}…"
        raise Rejection(
            "decode",
            "out-of-range",
            f"holds {shown}, which is outside the range of float64; write it as text, in quotes",
        )
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_CHECKED_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_decimal)

ALIKE = bytes.maketrans(b"123456789E+", b"000000000e-")
"""Makes all digits of decimals zeros, and their exponents alike."""

_MANY_DIGITS = b"0" * 300


def _may_be_out_of_range(line: bytes) -> bool:
    """Return whether a decimal of a line may be outside the range of float64: it has an exponent,
    or very many digits.

    Only such lines pay for a call per decimal. A regular expression would take longer than parsing
    the line.
    """
    alike = line.translate(ALIKE)
    return b"0e0" in alike or b"0e-0" in alike or _MANY_DIGITS in alike


def parse_line(line: bytes, list_field: str = "") -> dict[str, Any]:
    """Parse one line as a JSON object, or as a list that is the only field of one. Raises Rejection
    (stage `decode`)."""
    value = parse_value(line)
    if list_field and isinstance(value, list):
        return {list_field: value}
    if not isinstance(value, dict):
        of_array = ""
        if isinstance(value, list):
            of_array = "; if that is all of the file, give its name the ending .json"
        raise Rejection(
            "decode",
            "not-an-object",
            f"a JSON object is needed, this line is {_JSON_NAMES[type(value)]}{of_array}",
        )
    return value


def parse_value(line: bytes) -> Any:
    """Parse one value of JSON. Raises Rejection (stage `decode`)."""
    try:
        decoder = _CHECKED_DECODER if _may_be_out_of_range(line) else _DECODER
        value = decoder.decode(line.decode())
        if _SURROGATE.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Rejection(
            "decode", "not-utf8", f"not UTF-8 at byte {error.start} of the line; recode the file"
        ) from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise Rejection(
            "decode",
            "lone-surrogate",
            f"holds {half}, half of a pair that is one character; fix the line",
        ) from None
    except ValueError as error:
        why = str(error)
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg}, at character {error.pos + 1} of the line"
        raise Rejection("decode", "not-json", f"not a line of JSON ({why})") from None
    except RecursionError:
        raise _too_deep() from None
    # Python reads 900 levels or 20,000 by its version, and Arrow's own recursion has no limit but
    # the stack.
    if line.count(b"[") + line.count(b"{") > MOST_LEVELS and _is_deeper(value, MOST_LEVELS):
        raise _too_deep()
    return value


def _too_deep() -> Rejection:
    return Rejection(
        "decode",
        "too-deep",
        f"lists and objects are nested deeper than {MOST_LEVELS} levels; fix the line",
    )


def _is_deeper(value: Any, levels: int) -> bool:
    parts = [value]
    for _ in range(levels + 1):
        nested = [part for part in parts if isinstance(part, dict | list)]
        parts = [
            part for each in nested for part in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(nested)


def null_label_notice(words: Sequence[str], counts: str) -> str:
    """Say which words for a missing value name classes; `counts` says of how many rows."""
    named = " and ".join(map(printable, words))
    are = "is a class" if len(words) == 1 else "are classes"
    return f"{named} {are}{counts}; if they are missing labels, use --null-values {printable(','.join(words))}"
