"""Options as a dataclass declares them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from shardctl.errors import UsageError
from shardctl.system.options import (
    AutoOrNumber,
    ByteSize,
    FilePath,
    Flag,
    Many,
    Off,
    Option,
    OptionType,
    Real,
    SecondsOrNone,
    Text,
    Whole,
    Word,
    at_least,
    check_options,
    declared_in,
    more_than,
    option,
    option_as,
)

RATE = Option(Real(), 1.0, "How fast.", metavar="R", limit=more_than(0, "a rate of {:g} is impossible"))


@dataclass(frozen=True)
class Driving:
    speed: float = option_as(RATE, 2.0, group="first")
    gears: int = option(Whole(), 4, "Gears.", group="second", limit=at_least(1, "{} gears are impossible"))
    name: str | None = option(Text(), None, "Name.", group="first", after="colour")
    colour: str = option(Word("red", "green", "blue"), "red", "Colour.", spelling="--paint", group="first")
    stops: tuple[str, ...] = option(Many(FilePath()), (), "Where it stops.", group="second")


def test_options_are_in_the_order_of_help_group_by_group() -> None:
    assert list(declared_in(Driving)) == ["speed", "gears", "colour", "name", "stops"]
    assert list(declared_in(Driving, "first")) == ["speed", "colour", "name"]
    assert list(declared_in(Driving, "second", "first")) == ["gears", "stops", "speed", "colour", "name"]
    declared = declared_in(Driving)
    assert declared["speed"] == RATE._replace(default=2.0, group="first")
    assert [declared[name].spelled(name) for name in ("gears", "colour")] == ["--gears", "--paint"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speed": 0}, "a rate of 0 is impossible"),
        ({"speed": float("nan")}, "a rate of nan is impossible"),
        ({"speed": "2"}, "speed must be a number; it is '2'"),
        ({"speed": None}, "speed must be a number; it is None"),
        ({"gears": 0}, "0 gears are impossible"),
        ({"gears": 1.5}, "gears must be a whole number; it is 1.5"),
        ({"name": 5}, "name must be a string; it is 5"),
        ({"colour": "grey"}, "colour must be red, green or blue; it is 'grey'"),
        ({"stops": "here"}, "stops takes a list; write stops=['here']"),
        ({"stops": 5}, "stops takes a list; it is 5"),
        ({"stops": [5]}, "stops must be a path; it is 5"),
    ],
)
def test_each_value_is_checked_by_its_field(wrong: dict[str, Any], message: str) -> None:
    check_options(Driving())
    with pytest.raises(UsageError) as refused:
        check_options(replace(Driving(), **wrong))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("type_", "given", "value"),
    [
        (ByteSize(), "64MiB", 64 << 20),
        (ByteSize(), "1.5kb", 1500),
        (ByteSize(), "500K", 500_000),
        (ByteSize(), "1T", 10**12),
        (ByteSize(), "2TiB", 2 << 40),
        (AutoOrNumber(0, 8), "auto", "auto"),
        (AutoOrNumber(0, 8), "7", 7),
        (SecondsOrNone(), "none", None),
        (SecondsOrNone(), "2.5", 2.5),
        (Many(ByteSize()), ("1", "1KiB"), (1, 1024)),
        (Flag(), True, True),
        (Off(), True, False),
        (Off(), False, None),
    ],
)
def test_what_the_command_line_means(type_: OptionType, given: Any, value: Any) -> None:
    assert type_.read(given) == value


@pytest.mark.parametrize(
    ("type_", "given", "message"),
    [
        (ByteSize(), "big", "'big' is not a size; write 128MiB, 64MB or a number of bytes"),
        (ByteSize(), "1XB", "'1XB' is not a size; write 128MiB, 64MB or a number of bytes"),
        (ByteSize(), "128iB", "'128iB' is not a size; write 128MiB, 64MB or a number of bytes"),
        (AutoOrNumber(0, 8), "-1", "'-1' is neither auto nor a whole number"),
        (SecondsOrNone(), "soon", "'soon' is neither a number of seconds nor none"),
    ],
)
def test_what_it_cannot_mean_is_said(type_: OptionType, given: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the message is compared
        type_.read(given)
    assert str(refused.value) == message
