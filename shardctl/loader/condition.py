"""Conditions on samples, as users write them: `label == "cat" and width > 500`. Parsed by Python's
own parser, never run.

What is allowed: names of columns, numbers, strings, True, False, None; == != < <= > >=, `in` and
`not in` with a list, `is None` and `is not None`; and, or, not; + - * /; len(column),
lower(column), contains(column, "part"), startswith(column, "part"), endswith(column, "part"). A
part of a column is written with a dot: box.width.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import UsageError, first_line
from shardctl.format.arrays import is_list, is_number, is_text
from shardctl.system.text import lacks, printable, similar

_COMPARE: dict[type[ast.cmpop], tuple[Callable[[Any, Any], Any], type[ast.cmpop], int, bool]] = {
    ast.Eq: (operator.eq, ast.Eq, 0, False),
    ast.NotEq: (operator.ne, ast.NotEq, 0, True),
    ast.Lt: (operator.lt, ast.Gt, 1, True),
    ast.LtE: (operator.le, ast.GtE, 0, False),
    ast.Gt: (operator.gt, ast.Lt, 0, True),
    ast.GtE: (operator.ge, ast.LtE, 1, False),
}
"""How values are compared; the same with the sides exchanged; which of the `_ends` around a number a
value is compared with in its place, and what holds where there is none."""
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_CONSTANT = (ast.Constant, ast.UnaryOp)
_TESTS: dict[str, Callable[[Any, str], Any]] = {
    "contains": pc.match_substring,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
}

DEEPEST = 50
"""How deep a condition may be nested: Python's parser allows more than its own stack, and no real
condition needs it."""

LONGEST = 1000
"""Most comparisons and operations: Arrow goes through them by recursion, and 10,000 overflow the
stack of the thread."""

_NUMBER = re.compile(r"-?\d{1,18}(\.\d+)?")

_KINDS: dict[type | None, str] = {float: "a number", str: "text", bool: "True or False"}

_IN_PYTHON = {
    "&&": "and",
    "||": "or",
    "!": "not",
    "null": "None",
    "true": "True",
    "false": "False",
    "class": "label",
    "like": 'startswith(column, "text") or contains(column, "text")',
}
"""How what other languages have is written here."""

_SHOWN = 200
"""Most characters of a condition that a message repeats."""


@dataclass(frozen=True)
class Condition:
    """A condition: the Arrow expression, and the columns that it looks at."""

    text: str
    expression: pc.Expression
    columns: tuple[str, ...]


def parse_condition(
    text: str, schema: pa.Schema, classes: Mapping[str, Sequence[str]], option: str = "--where"
) -> Condition:
    """Read a condition on the columns of `schema`. `classes` has, by field of labels, the names of
    its values.

    `option` is the name of the option, for messages.

    Raises UsageError: not a condition, a column that there is not, a value that does not fit.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python would print its opinion of "\\d" to stderr
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)
        said = error.msg if isinstance(error, SyntaxError) else first_line(error)
        reason = "it is nested too deep" if deep else said
        if re.search("[^<>=!]=[^=]", text):
            reason = "compare with =="
        if other := re.search(r"&&|\|\||!(?!=)|\b(like|LIKE|class|AND|OR|NOT)\b", text):
            word = other[0].lower()
            reason = f"for {other[0]} write {_IN_PYTHON.get(word, word)}"
        raise UsageError(
            f"{option} {quoted(text)} is not a condition ({reason}); one is: label == 3 and "
            "width > 500"
        ) from None
    reader = _Reader(text, schema, classes, option)
    try:
        expression = reader.condition(tree, 0)
    except RecursionError:
        raise UsageError(f"{option} {quoted(text)} cannot be read: it is nested too deep") from None
    except ValueError as error:
        # a number of so many digits that Python refuses to write it into a message
        raise UsageError(f"{option} {quoted(text)} cannot be read: {first_line(error)}") from None
    where = Condition(text, expression, tuple(dict.fromkeys(reader.columns)))
    _check(where, schema, option)
    return where


def kept_rows(table: pa.Table, expression: pc.Expression) -> pa.Table:
    """Return the rows of a table for which an expression is true. Raises ArrowException if it does
    not fit the columns.

    Everything happens in the calling thread. `Table.filter` gives an expression to Arrow's threads,
    which may be the last to release a column that numpy owns: where Python is about to exit at that
    moment, the process is aborted.
    """
    from pyarrow import acero  # 0.3 s to import: it fetches pandas, where that is installed

    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("filter", acero.FilterNodeOptions(expression)),
    ]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


def _check(where: Condition, schema: pa.Schema, option: str) -> None:
    """Raise UsageError if the condition does not fit the types: found on a table without rows."""
    names = list(where.columns)
    try:
        kept_rows(
            pa.table({name: pa.nulls(0, schema.field(name).type) for name in names}),
            where.expression,
        )
    except (pa.ArrowException, TypeError, ValueError):
        types = ", ".join(
            f"{name} is {_KINDS.get(kind_of(t), t)}"
            for name in names
            for t in [schema.field(name).type]
        )
        raise UsageError(
            f"{option} {quoted(where.text)} does not fit the columns ({types}): compare numbers with "
            "numbers and text with text"
        ) from None


def kind_of(type_: pa.DataType) -> type | None:
    """Return what a column of this type is compared with: float (any number), str, bool; None for
    other types."""
    if is_number(type_):
        return float
    if is_text(type_):
        return str
    return bool if pa.types.is_boolean(type_) else None


def quoted(text: str) -> str:
    """Return a condition as messages repeat it: in quotes, and no more than its beginning."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


_Value = tuple[Any, pa.DataType]
"""An expression, and the type of its values: that of nothing where it is not known."""


class _Reader:
    """Turns Python's syntax tree of a condition into an Arrow expression."""

    def __init__(
        self, text: str, schema: pa.Schema, classes: Mapping[str, Sequence[str]], option: str
    ) -> None:
        self._schema, self._classes, self._where = schema, classes, f"{option} {quoted(text)}"
        self._parts = 0
        self.columns: list[str] = []

    def _count(self, depth: int) -> None:
        """Note one more comparison or operation. Raises UsageError if there are too many, or too
        deep ones."""
        self._parts += 1
        if self._parts > LONGEST:
            raise self._refused(
                f"it has more than {LONGEST:,} operations; write index in [1, 5, 7]"
            )
        if depth > DEEPEST:
            raise self._refused("it is nested too deep")

    def condition(self, node: ast.expr, depth: int) -> Any:
        """Return what is true or false of a sample."""
        if depth > DEEPEST:
            raise self._refused("it is nested too deep")
        if isinstance(node, ast.BoolOp):
            join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
            return reduce(join, [self.condition(part, depth + 1) for part in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.condition(node.operand, depth + 1)
        if isinstance(node, ast.Compare):
            # 3 < width < 5 is both
            sides = pairwise([node.left, *node.comparators])
            return reduce(
                operator.and_,
                [
                    self._compared(sign, *pair, depth + 1)
                    for sign, pair in zip(node.ops, sides, strict=True)
                ],
            )
        self._count(depth)
        return self._value(node, depth)[0]

    def _compared(self, sign: ast.cmpop, left: ast.expr, right: ast.expr, depth: int) -> Any:
        self._count(depth)
        if isinstance(sign, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused("`is` goes with None only; compare with ==")
            there = pc.is_null(self._value(left, depth)[0])
            return there if isinstance(sign, ast.Is) else ~there
        if isinstance(sign, ast.In | ast.NotIn):
            found, value = self._among(left, right, depth)
            return found if isinstance(sign, ast.In) else ~found & value.is_valid()
        compare = type(sign)
        if isinstance(left, _CONSTANT) and not isinstance(right, _CONSTANT):
            left, right, compare = right, left, _COMPARE[compare][1]
        value, type_ = self._value(left, depth)
        if isinstance(right, _CONSTANT):
            constant = self._constant(right, left)
            self._check_kind(left, type_, constant)
            if kind_of(type_) is float:
                return _against(compare, value, type_, constant)
            return _COMPARE[compare][0](value, pc.scalar(constant))
        other, other_type = self._value(right, depth)
        sides, types = [value, other], [type_, other_type]
        if type_ != other_type and _are_numbers(types):
            whole = pa.decimal128(20) if pa.uint64() in types else pa.int64()
            sides = _alike(sides, whole if _common(types) == pa.int64() else pa.float64())
        return _COMPARE[compare][0](*sides)

    def _among(self, left: ast.expr, right: ast.expr, depth: int) -> tuple[Any, Any]:
        """Return whether a value is one of a list, and the value."""
        if not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise self._refused("`in` goes with a list, as in label in [1, 2]")
        constants = [self._constant(item, left) for item in right.elts]
        if len(set(map(_kind_of_constant, constants))) > 1:
            raise self._refused("a list must be of one kind: numbers, strings, or True and False")
        value, type_ = self._value(left, depth)
        for constant in constants:
            self._check_kind(left, type_, constant)
        if kind_of(type_) is not float or not constants:
            return value.isin(pa.array(constants)), value
        ends = [_ends(constant, type_) for constant in constants]
        values = pa.array([below for below, above in ends if below == above], _wide(type_))
        # Of zeros, Arrow finds only those of the same sign.
        value = value.cast(_wide(type_)) + 0.0 if pa.types.is_floating(type_) else value
        return value.isin(values), value

    def _check_kind(self, column: ast.expr, type_: pa.DataType, value: Any) -> None:
        """Raise UsageError where values of one kind are compared with a constant of another
        kind."""
        kind = kind_of(type_)
        if kind in (None, _kind_of_constant(value)):
            return
        better = _KINDS[kind]
        if kind is str:
            better = repr(str(value))
        elif kind is float and isinstance(value, str) and _NUMBER.fullmatch(value):
            better = value
        raise self._refused(
            f"{ast.unparse(column)} is {_KINDS[kind]}; compare it with {better}, not with {value!r}"
        )

    def _constant(self, node: ast.expr, beside: ast.expr) -> Any:
        """Return a number, a string or a truth value; the name of a class is its number if it is
        compared with labels."""
        try:
            value = ast.literal_eval(node)
        except ValueError:
            value = None
        if not isinstance(value, int | float | str):
            raise self._refused(f"{ast.unparse(node)} is not a number or a string")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self._refused(
                f"a whole number is too large; columns hold {-(2**63)} to {2**63 - 1}"
            )
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            raise self._refused(f"{value!r} is not text: it holds half of a surrogate pair")
        classes = self._classes.get(beside.id) if isinstance(beside, ast.Name) else None
        if classes and isinstance(value, str):
            if value not in classes:
                raise UsageError(f"{self._where}: {lacks('class', value, classes)}")
            return classes.index(value)
        return value

    def _value(self, node: ast.expr, depth: int) -> _Value:
        """Return what has a value: a column, a part of one, a number, a sum, a length."""
        if isinstance(node, ast.Name | ast.Attribute):
            path, type_ = self._column(node)
            return pc.field(*path), type_
        if isinstance(node, ast.Constant) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        ):
            constant = pa.scalar(self._constant(node, node))
            return pc.scalar(constant), constant.type
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            self._count(depth)
            values = [self._value(side, depth + 1) for side in (node.left, node.right)]
            sides, types = [side for side, _ in values], [type_ for _, type_ in values]
            type_ = pa.null()
            if _are_numbers(types):
                type_ = pa.float64() if isinstance(node.op, ast.Div) else _common(types)
                sides = _alike(sides, type_)
            return _ARITHMETIC[type(node.op)](*sides), type_
        if isinstance(node, ast.Call):
            return self._function(node, depth)
        raise self._refused(f"{ast.unparse(node)} is not allowed")

    def _column(self, node: ast.expr) -> tuple[tuple[str, ...], pa.DataType]:
        """Return the path of a column, or of a part of one, and its type."""
        if isinstance(node, ast.Attribute):
            path, type_ = self._column(node.value)
            if not _has_part(type_, node.attr):
                raise UsageError(f"{self._where}: {path[0]} has no part {node.attr!r}")
            return (*path, node.attr), type_.field(node.attr).type
        if not isinstance(node, ast.Name):
            raise self._refused(f"{ast.unparse(node)} is not allowed")
        name, names = node.id, self._schema.names
        if name in names:
            self.columns.append(name)
            return (name,), self._schema.field(name).type
        if name.lower() in _IN_PYTHON:
            raise self._refused(f"for {name} write {_IN_PYTHON[name.lower()]}")
        parts = [f"{column.name}.{name}" for column in self._schema if _has_part(column.type, name)]
        if parts:
            raise UsageError(
                f"{self._where}: no column {name!r}; did you mean {' or '.join(parts)}?"
            )
        text = "" if similar(name, names) else f"; if it is a text, write it in quotes: '{name}'"
        raise UsageError(f"{self._where}: {lacks('column', name, names)}{text}")

    def _function(self, node: ast.Call, depth: int) -> _Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        arguments = node.args
        if name in _TESTS:
            part = arguments[1] if len(arguments) == 2 else None
            if not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
                raise self._refused(
                    f'{name}() takes a column and a string, as in {name}(text, "part")'
                )
            found = self._value(arguments[0], depth + 1)[0]
            return _TESTS[name](found, self._constant(part, part)), pa.bool_()
        if name not in ("len", "lower") or len(arguments) != 1 or node.keywords:
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("len", "lower", *_TESTS):
                inside = ", ".join(map(ast.unparse, [node.func.value, *arguments]))
                raise self._refused(f"write functions as in {node.func.attr}({inside})")
            raise self._refused(
                f"{ast.unparse(node.func)}() is not one of len, lower, {', '.join(_TESTS)}"
            )
        value, type_ = self._value(arguments[0], depth + 1)
        if name == "lower":
            return pc.utf8_lower(value), type_
        length = pc.list_value_length if is_list(type_) else pc.utf8_length
        return length(value), pa.int64()

    def _refused(self, why: str) -> UsageError:
        said = printable(why)
        shown = said if len(said) <= _SHOWN else f"…{said[-_SHOWN:]}"  # the reason is at the end
        return UsageError(f"{self._where} cannot be read: {shown}")


def _kind_of_constant(value: Any) -> type:
    return float if type(value) is int else type(value)


def _are_numbers(types: Sequence[pa.DataType]) -> bool:
    return all(kind_of(type_) is float for type_ in types)


def _wide(type_: pa.DataType) -> pa.DataType:
    """Return the type in which numbers of a type are compared: Arrow itself would take the
    narrowest one of both."""
    return type_ if pa.types.is_integer(type_) else pa.float64()


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type in which numbers of these types are computed with."""
    return pa.int64() if all(map(pa.types.is_integer, types)) else pa.float64()


def _alike(sides: Sequence[Any], type_: pa.DataType) -> list[Any]:
    """Return values with one type. Whole numbers beyond 2**53 are rounded as floats, as in
    Python."""
    return [side.cast(type_, safe=pa.types.is_integer(type_)) for side in sides]


def _ends(number: float, type_: pa.DataType) -> tuple[float | None, float | None]:
    """Return the values of a type around a number: the largest that is not above it, the smallest
    that is not below it."""
    if not pa.types.is_integer(type_):
        near = float(number)
        below, above = (math.nextafter(near, end) for end in (-math.inf, math.inf))
        return near if near <= number else below, near if near >= number else above
    bits = type_.bit_width - pa.types.is_signed_integer(type_)
    low, high = (-(2**bits) if pa.types.is_signed_integer(type_) else 0), 2**bits - 1
    number = min(max(number, low - 1), high + 1)
    below, above = math.floor(number), math.ceil(number)
    return None if below < low else min(below, high), None if above > high else max(above, low)


def _against(compare: type[ast.cmpop], value: Any, type_: pa.DataType, number: float) -> Any:
    """Return how values compare with a number, exactly."""
    function, _, place, otherwise = _COMPARE[compare]
    value, ends = value.cast(_wide(type_)), _ends(number, type_)
    is_equality = compare in (ast.Eq, ast.NotEq)
    if ends[place] is None or (is_equality and ends[0] != ends[1]):
        nothing = value < value  # null of null
        return ~nothing if otherwise else nothing
    return function(value, pc.scalar(pa.scalar(ends[place], _wide(type_))))


def _has_part(type_: pa.DataType, part: str) -> bool:
    return bool(pa.types.is_struct(type_) and type_.get_field_index(part) >= 0)
