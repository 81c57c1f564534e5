"""`dataclass` as Python has it, for modules that are imported at each start: its classes are made
15 times as fast.

Python writes and compiles six methods of each class while the module is imported, which takes half
a millisecond. A command imports some 200 such classes and makes objects of a third of them, so that
was 100 ms of each start (measured 2026-11-27, Python 3.11). Here the methods that print, compare
and protect are written once for all classes, and `__init__` is compiled for the first object of a
class.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass  # noqa: TID251 - this is the one that type checkers know
else:

    def dataclass(cls=None, /, *, eq=True, frozen=False, **options):
        """Return a class as `dataclasses.dataclass` does.

        It knows no `order`, no `unsafe_hash`, no slots and no InitVar, and no object that contains
        itself. A field without a default behind one with a default is found at the first object. A
        class below a frozen one is made by this, too.
        """
        if cls is None:
            return lambda of: dataclass(of, eq=eq, frozen=frozen, **options)
        own = {
            name: cls.__dict__.get(name) for name in ("__init__", "__repr__", "__eq__", "__hash__")
        }
        has_init, has_repr = options.pop("init", True), options.pop("repr", True)
        cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)  # noqa: TID251 - its methods are left out
        if has_init and own["__init__"] is None:
            cls.__init__ = _first_init(cls)
        if has_repr and own["__repr__"] is None:
            cls.__repr__ = _repr
        if eq:
            equal, hashed = _comparison(cls)
            cls.__eq__ = own["__eq__"] or equal
            cls.__hash__ = own["__hash__"] or (hashed if frozen else None)
        if frozen:
            cls.__setattr__, cls.__delattr__ = _refuse_setting, _refuse_deleting
        return cls


def _first_init(cls: type) -> Callable[..., None]:
    """Return an `__init__` that puts the real one in its place. Two threads may do that at once:
    both write the same."""

    def init(self: object, *arguments: object, **named: object) -> None:
        cls.__init__ = written = _compiled_init(cls)  # type: ignore[misc]
        written(self, *arguments, **named)

    return init


def _compiled_init(cls: type) -> Callable[..., None]:
    """Return the `__init__` of a class, with the arguments, and the messages for wrong ones, that
    Python's own has."""
    values: dict[str, Any] = {
        "dataclass_set": object.__setattr__,
        "dataclass_missing": dataclasses.MISSING,
    }
    arguments: list[str] = []
    by_name: list[str] = []
    lines: list[str] = []
    setter: object = cls.__setattr__
    # not frozen: then an assignment does, in a third of the time
    plain = setter is object.__setattr__
    for number, each in enumerate(dataclasses.fields(cls)):
        default, value = f"dataclass_default{number}", each.name
        has_factory = each.default_factory is not dataclasses.MISSING
        values[default] = each.default_factory if has_factory else each.default
        if has_factory:
            value = (
                f"{default}() if {each.name} is dataclass_missing else {each.name}"
                if each.init
                else f"{default}()"
            )
        elif not each.init:
            if each.default is dataclasses.MISSING:
                continue
            value = default
        lines.append(
            f"self.{each.name} = {value}"
            if plain
            else f"dataclass_set(self, {each.name!r}, {value})"
        )
        if each.init:
            optional = (
                "=dataclass_missing"
                if has_factory
                else ""
                if each.default is dataclasses.MISSING
                else f"={default}"
            )
            (by_name if each.kw_only else arguments).append(each.name + optional)
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    head = ", ".join(["self", *arguments, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({head}):\n " + "\n ".join(lines or ["pass"]), values)
    init: Callable[..., None] = values["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


def _comparison(cls: type) -> tuple[Callable[[object, object], Any], Callable[[object], int]]:
    """Return `__eq__` and `__hash__` of a class."""
    names = [each.name for each in dataclasses.fields(cls) if each.compare]
    values = operator.attrgetter(*names) if names else _no_values

    def equal(self: object, other: object) -> Any:
        return (
            (values(self),) == (values(other),)
            if other.__class__ is self.__class__
            else NotImplemented
        )

    def hashed(self: object) -> int:
        return hash(values(self))

    return equal, hashed


def _no_values(_self: object) -> tuple[()]:
    return ()


def _repr(self: Any) -> str:
    shown = ", ".join(
        f"{each.name}={getattr(self, each.name)!r}"
        for each in dataclasses.fields(self)
        if each.repr
    )
    return f"{type(self).__qualname__}({shown})"


def _refuse_setting(self: object, name: str, value: object) -> None:
    if _is_fixed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deleting(self: object, name: str) -> None:
    if _is_fixed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_fixed(self: object, name: str) -> bool:
    """Return whether an attribute cannot change. A class that is not a dataclass, below a frozen
    one, may add others."""
    return "__dataclass_fields__" in type(self).__dict__ or name in type(self).__dataclass_fields__  # type: ignore[attr-defined]
