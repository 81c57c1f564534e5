"""`dataclass` of shardctl.system makes classes that behave as those of Python's dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from shardctl.system.dataclass import dataclass

Decorator = Callable[..., Any]


def family(decorator: Decorator, frozen: bool) -> dict[str, Any]:
    """Return classes of the forms that the project has, made by one of the two decorators."""

    @decorator(frozen=frozen)
    class Point:
        x: int
        y: int = 2
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        secret: str = dataclasses.field(default="s", repr=False)
        made: int = dataclasses.field(default=7, init=False)
        count: ClassVar[int] = 0

    @decorator(frozen=frozen)
    class Deeper(Point):
        z: str = "z"

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", len(self.z))

    @decorator(frozen=frozen, kw_only=True)
    class Named:
        first: int
        missing: str = "no"

    @decorator(frozen=frozen, eq=False)
    class Identity:
        x: int

    @decorator(frozen=frozen)
    class Empty:
        pass

    @decorator(frozen=frozen)
    class Odd:
        x: int

        def __repr__(self) -> str:
            return "odd"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    class Plain(Point):
        def __init__(self) -> None:
            super().__init__(4)
            self.more = 1

    return {each.__name__: each for each in (Point, Deeper, Named, Identity, Empty, Odd, Plain)}


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 3, ["a"]), {"secret": "t"}),
    ("Point", (), {}),
    ("Point", (1, 2, [], "s", 5), {}),
    ("Point", (1,), {"made": 3}),
    ("Point", (1,), {"w": 3}),
    ("Deeper", (1,), {"z": "four"}),
    ("Named", (), {"first": 1}),
    ("Named", (1,), {}),
    ("Identity", (1,), {}),
    ("Empty", (), {}),
    ("Odd", (1,), {}),
    ("Plain", (), {}),
]


def outcome(made: Callable[[], Any]) -> str:
    try:
        return repr(made())
    except Exception as error:  # noqa: BLE001 - whatever it is, both decorators have to raise the same
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(("name", "arguments", "named"), CALLS)
def test_objects_are_made_and_printed_as_python_does(
    name: str, arguments: Any, named: Any, frozen: bool
) -> None:
    ours, pythons = (
        family(decorator, frozen)[name] for decorator in (dataclass, dataclasses.dataclass)
    )
    for _ in range(2):  # the first call writes __init__, the second one uses it
        said = outcome(lambda: ours(*arguments, **named))
        assert said.replace(" at 0x", "") == outcome(lambda: pythons(*arguments, **named)).replace(
            " at 0x", ""
        )


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("name", ["Point", "Deeper", "Identity", "Empty", "Odd"])
def test_objects_are_compared_and_hashed_as_python_does(name: str, frozen: bool) -> None:
    def facts(decorator: Decorator) -> list[str]:
        classes = family(decorator, frozen)
        arguments = () if name == "Empty" else (1,)
        one, same = classes[name](*arguments), classes[name](*arguments)
        other = classes[name](*arguments) if name == "Empty" else classes[name](2)
        return [
            outcome(lambda: [one == same, one == other, one == 1, one != same]),
            outcome(lambda: [hash(one) == hash(same), len({one, same, one})]),
            outcome(lambda: dataclasses.asdict(one)),
            outcome(lambda: dataclasses.replace(one) == one),
            outcome(lambda: copy.deepcopy(one) == one),
            outcome(lambda: [each.name for each in dataclasses.fields(classes[name])]),
            outcome(lambda: classes[name].__match_args__),
        ]

    assert facts(dataclass) == facts(dataclasses.dataclass)


@pytest.mark.parametrize("frozen", [True, False])
def test_what_is_frozen_cannot_be_set_or_deleted(frozen: bool) -> None:
    def change(each: Any) -> None:
        each.x = 5
        del each.x

    def add(each: Any) -> None:
        each.new = 5
        del each.new

    for name in ("Point", "Deeper", "Plain"):
        for act in (change, add):
            found = []
            for decorator in (dataclass, dataclasses.dataclass):
                made = family(decorator, frozen)[name](*() if name == "Plain" else (1,))
                found.append(outcome(partial(act, made)))
            assert found[0] == found[1]


@dataclass(frozen=True)
class Sent:
    """A class that another process may know without having made an object of it."""

    x: int


def test_an_object_that_is_unpickled_first_is_whole() -> None:
    sent = pickle.dumps(Sent(3)).replace(b"Sent", b"Come")
    got = pickle.loads(sent)
    assert (got, hash(got), repr(got)) == (Come(3), hash(Come(3)), "Come(x=3)")


@dataclass(frozen=True)
class Come:
    """The same, of which nobody has made an object before one is unpickled."""

    x: int


def test_threads_may_make_the_first_objects_at_once() -> None:
    ready, found = threading.Barrier(8), []

    def make(classes: dict[str, Any]) -> None:
        ready.wait()
        found.append(classes["Point"](1) == classes["Point"](1))

    for _ in range(50):
        classes = family(dataclass, True)
        threads = [threading.Thread(target=make, args=[classes]) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [True] * 400
