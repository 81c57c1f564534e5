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
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import UsageError
from shardctl.format.arrays import is_list
from shardctl.system.text import did_you_mean, lacks, printable, similar

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
_CONSTANT = (ast.Constant, ast.UnaryOp)
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
_ENDS: dict[type[ast.cmpop], tuple[int, bool]] = {
    ast.Eq: (0, False),
    ast.NotEq: (0, True),
    ast.Lt: (1, True),
    ast.LtE: (0, False),
    ast.Gt: (0, True),
    ast.GtE: (1, False),
}
"""Which of the `_ends` around a number a value is compared with in its place, and what holds where
there is none."""
_TESTS: dict[str, Callable[[Any, str], Any]] = {
    "contains": lambda column, part: pc.match_substring(column, part),
    "startswith": lambda column, part: pc.starts_with(column, part),
    "endswith": lambda column, part: pc.ends_with(column, part),
}

DEEPEST = 50
"""How deep a condition may be nested: Python's parser allows more than its own stack, and no real
condition needs it."""

LONGEST = 1000
"""Most comparisons and operations: Arrow goes through them by recursion, and 10,000 overflow the
stack of the thread."""

_NUMBER = re.compile(r"-?\d{1,18}(\.\d+)?")

_KINDS: dict[type | None, str] = {float: "a number", str: "text", bool: "True or False"}

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
        reason = "it is nested too deep" if deep else first_line(error)
        if re.search("[^<>=!]=[^=]", text):
            reason = "compare with =="
        raise UsageError(
            f"{option} {quoted(text)} is not a condition ({reason}); write for instance: label == "
            "3 and width > 500"
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
        ("table_source", acero.TableSourceNodeOptions(table)),
        ("filter", acero.FilterNodeOptions(expression)),
    ]
    return acero.Declaration.from_sequence([acero.Declaration(*step) for step in steps]).to_table(
        use_threads=False
    )


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
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return float
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return str
    return bool if pa.types.is_boolean(type_) else None


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return (said.splitlines() or [type(error).__name__])[0]


def quoted(text: str) -> str:
    """Return a condition as messages repeat it: in quotes, and no more than its beginning."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


class _Reader:
    """Turns Python's syntax tree of a condition into an Arrow expression."""

    def __init__(
        self, text: str, schema: pa.Schema, classes: Mapping[str, Sequence[str]], option: str
    ) -> None:
        self._text, self._schema, self._classes, self._option = text, schema, classes, option
        self._parts = 0
        self.columns: list[str] = []

    def _count(self) -> None:
        """Note one more comparison or operation. Raises UsageError if there are too many."""
        self._parts += 1
        if self._parts > LONGEST:
            raise self._refused(
                f"it has more than {LONGEST:,} comparisons and operations; write index in [1, 5, 7]"
            )

    def condition(self, node: ast.expr, depth: int) -> Any:
        """Return what is true or false of a sample."""
        if depth > DEEPEST:
            raise self._refused("it is nested too deep")
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(part, depth + 1) for part in node.values]
            joined = parts[0]
            for part in parts[1:]:
                joined = joined & part if isinstance(node.op, ast.And) else joined | part
            return joined
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.condition(node.operand, depth + 1)
        if isinstance(node, ast.Compare):
            return self._comparison(node, depth)
        self._count()
        if isinstance(node, ast.Call):
            return self._test(node, depth)
        return self._value(node, depth)

    def _comparison(self, node: ast.Compare, depth: int) -> Any:
        """Return a chain of comparisons: 3 < width < 5 is both."""
        sides = [node.left, *node.comparators]
        chain = None
        for operator, left, right in zip(node.ops, sides[:-1], sides[1:], strict=True):
            part = self._compared(operator, left, right, depth + 1)
            chain = part if chain is None else chain & part
        return chain

    def _compared(self, operator: ast.cmpop, left: ast.expr, right: ast.expr, depth: int) -> Any:
        self._count()
        if isinstance(operator, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused("`is` goes with None only")
            there = pc.is_null(self._value(left, depth))
            return there if isinstance(operator, ast.Is) else ~there
        if isinstance(operator, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple | ast.Set):
                raise self._refused("`in` goes with a list, as in label in [1, 2]")
            constants = [self._constant(item, left) for item in right.elts]
            kinds = {float if type(constant) is int else type(constant) for constant in constants}
            if len(kinds) > 1:
                raise self._refused(
                    "the values of a list must be of one kind: numbers, strings, or True and False"
                )
            value, type_ = self._value(left, depth), self._number_type(left)
            for constant in constants:
                self._check_kind(left, constant)
            if type_ is None or kinds != {float}:
                values = pa.array(constants)
            else:
                ends = [_ends(constant, type_) for constant in constants]
                values = pa.array([below for below, above in ends if below == above], _wide(type_))
                # Of zeros, Arrow finds only those of the same sign.
                value = value.cast(_wide(type_)) + 0.0 if pa.types.is_floating(type_) else value
            return (
                value.isin(values)
                if isinstance(operator, ast.In)
                else ~value.isin(values) & value.is_valid()
            )
        compare = type(operator)
        if isinstance(left, _CONSTANT) and not isinstance(right, _CONSTANT):
            left, right, compare = right, left, _MIRRORED.get(compare, compare)
        value, type_ = self._value(left, depth), self._number_type(left)
        if isinstance(right, _CONSTANT):
            constant = self._constant(right, left)
            self._check_kind(left, constant)
            is_number = type_ is not None and not isinstance(constant, bool | str)
            return (
                _against(compare, value, type_, constant)
                if is_number
                else _COMPARE[compare](value, pc.scalar(constant))
            )
        sides, other = [value, self._value(right, depth)], self._number_type(right)
        if type_ is not None and other is not None and type_ != other:
            whole = pa.decimal128(20) if pa.uint64() in (type_, other) else pa.int64()
            sides = _alike(sides, whole if _common([type_, other]) == pa.int64() else pa.float64())
        return _COMPARE[compare](*sides)

    def _check_kind(self, column: ast.expr, value: Any) -> None:
        """Raise UsageError where a column of one kind is compared with a constant of another
        kind."""
        kind = (
            kind_of(self._type(self._path(column)))
            if isinstance(column, ast.Name | ast.Attribute)
            else None
        )
        if kind is None or kind is (float if type(value) is int else type(value)):
            return
        better = f"with {_KINDS[kind]}"
        if kind is str:
            better = f"with {str(value)!r}"
        elif kind is float and isinstance(value, str) and _NUMBER.fullmatch(value):
            better = f"with {value}"
        raise self._refused(
            f"{ast.unparse(column)} is {_KINDS[kind]}; compare it {better}, not with {value!r}"
        )

    def _number_type(self, node: ast.expr) -> pa.DataType | None:
        """Return the type of the numbers of what has a value, which was read already; None if it
        has others."""
        if isinstance(node, ast.Name | ast.Attribute):
            type_ = self._type(self._path(node))
            return type_ if kind_of(type_) is float else None
        if isinstance(node, ast.BinOp):
            types = [self._number_type(node.left), self._number_type(node.right)]
            return (
                None
                if None in types
                else pa.float64()
                if isinstance(node.op, ast.Div)
                else _common(types)
            )
        if isinstance(node, ast.Call):
            return pa.int64() if isinstance(node.func, ast.Name) and node.func.id == "len" else None
        value = node.operand if isinstance(node, ast.UnaryOp) else node
        given = type(value.value) if isinstance(value, ast.Constant) else None
        return pa.int64() if given is int else pa.float64() if given is float else None

    def _constant(self, node: ast.expr, beside: ast.expr) -> Any:
        """Return a number, a string or a truth value; the name of a class is its number if it is
        compared with labels."""
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
        if not isinstance(inner, ast.Constant) or not isinstance(
            inner.value, int | float | str | bool
        ):
            raise self._refused(f"{ast.unparse(node)} is not a number or a string")
        value = -inner.value if negative and not isinstance(inner.value, str) else inner.value
        self._check_constant(value)
        classes = self._classes.get(beside.id) if isinstance(beside, ast.Name) else None
        if classes and isinstance(value, str):
            if value not in classes:
                raise UsageError(
                    f"{self._option} {quoted(self._text)}: no class "
                    f"{value!r}{did_you_mean(value, classes, 2)}"
                )
            return classes.index(value)
        return value

    def _check_constant(self, value: float | str) -> None:
        """Raise UsageError for what no column can hold."""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self._refused(
                f"a whole number is too large; columns hold {-(2**63)} to {2**63 - 1}"
            )
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise self._refused(f"{value!r} is not text: it holds half of a surrogate pair")

    def _value(self, node: ast.expr, depth: int) -> Any:
        """Return what has a value: a column, a part of one, a number, a sum, a length."""
        if depth > DEEPEST:
            raise self._refused("it is nested too deep")
        if isinstance(node, ast.Name):
            return self._column((node.id,))
        if isinstance(node, ast.Attribute):
            return self._column(self._path(node))
        if isinstance(node, ast.Constant) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        ):
            return pc.scalar(self._constant(node, node))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            self._count()
            sides = [self._value(node.left, depth + 1), self._value(node.right, depth + 1)]
            type_ = self._number_type(node)
            return _ARITHMETIC[type(node.op)](*(sides if type_ is None else _alike(sides, type_)))
        if isinstance(node, ast.Call):
            return self._function(node, depth)
        raise self._refused(f"{ast.unparse(node)} is not allowed")

    def _path(self, node: ast.expr) -> tuple[str, ...]:
        if isinstance(node, ast.Attribute):
            return (*self._path(node.value), node.attr)
        if isinstance(node, ast.Name):
            return (node.id,)
        raise self._refused(f"{ast.unparse(node)} is not allowed")

    def _column(self, path: tuple[str, ...]) -> Any:
        name = path[0]
        if name not in self._schema.names:
            names = self._schema.names
            parts = [
                f"{column.name}.{name}" for column in self._schema if _has_part(column.type, name)
            ]
            where = f"{self._option} {quoted(self._text)}"
            if parts:
                raise UsageError(f"{where}: no column {name!r}; did you mean {' or '.join(parts)}?")
            text = (
                f"; if it is a text, write it in quotes: '{name}'"
                if not similar(name, names)
                else ""
            )
            raise UsageError(f"{where}: {lacks('column', name, names)}{text}")
        self.columns.append(name)
        self._type(path)
        return pc.field(*path)

    def _type(self, path: tuple[str, ...]) -> pa.DataType:
        """Return the type of a column, or of a part of one. Raises UsageError for a part that there
        is not."""
        name, *inner = path
        type_ = self._schema.field(name).type
        for part in inner:
            if not _has_part(type_, part):
                raise UsageError(
                    f"{self._option} {quoted(self._text)}: {name} has no part {part!r}"
                )
            type_ = type_.field(part).type
        return type_

    def _function(self, node: ast.Call, depth: int) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in ("len", "lower") or len(node.args) != 1 or node.keywords:
            raise self._refused(
                f"{ast.unparse(node.func)}() is not one of len, lower, {', '.join(_TESTS)}"
            )
        value = self._value(node.args[0], depth + 1)
        if name == "lower":
            return pc.utf8_lower(value)
        if not isinstance(node.args[0], ast.Name | ast.Attribute):
            raise self._refused("len() takes a column, or a part of one")
        type_ = self._type(self._path(node.args[0]))
        return pc.list_value_length(value) if is_list(type_) else pc.utf8_length(value)

    def _test(self, node: ast.Call, depth: int) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _TESTS:
            return self._function(node, depth)
        if (
            len(node.args) != 2
            or not isinstance(node.args[1], ast.Constant)
            or not isinstance(node.args[1].value, str)
        ):
            raise self._refused(f'{name}() takes a column and a string, as in {name}(text, "part")')
        self._check_constant(node.args[1].value)
        return _TESTS[name](self._value(node.args[0], depth + 1), node.args[1].value)

    def _refused(self, why: str) -> UsageError:
        said = printable(why)
        shown = said if len(said) <= _SHOWN else f"…{said[-_SHOWN:]}"  # the reason is at the end
        return UsageError(f"{self._option} {quoted(self._text)} cannot be read: {shown}")


def _wide(type_: pa.DataType) -> pa.DataType:
    """Return the type in which numbers of a type are compared: Arrow itself would take the
    narrowest one of both."""
    return type_ if pa.types.is_integer(type_) else pa.float64()


def _common(types: Sequence[pa.DataType | None]) -> pa.DataType:
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
    value, (place, otherwise), ends = value.cast(_wide(type_)), _ENDS[compare], _ends(number, type_)
    is_equality = compare in (ast.Eq, ast.NotEq)
    if ends[place] is None or (is_equality and ends[0] != ends[1]):
        nothing = value < value  # null of null
        return ~nothing if otherwise else nothing
    return _COMPARE[compare](value, pc.scalar(pa.scalar(ends[place], _wide(type_))))


def _has_part(type_: pa.DataType, part: str) -> bool:
    return bool(pa.types.is_struct(type_) and type_.get_field_index(part) >= 0)
