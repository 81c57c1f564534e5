"""Options as a dataclass declares them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import pytest

from shardctl.errors import UsageError
from shardctl.system.options import (
    AutoOrNumber,
    ByteSize,
    FilePath,
    Flag,
    Many,
    Number,
    Off,
    Option,
    SecondsOrNone,
    Text,
    Whole,
    Word,
    at_least,
    check_options,
    declared_in,
    option,
    option_as,
    taken_arguments,
)

RATE = Option(Number(0, above=True), 1.0, "How fast.", metavar="R")


@dataclass(frozen=True)
class Driving:
    speed: float = option_as(RATE, 2.0, heading="first")
    gears: int = option(
        Whole(), 4, "Gears.", heading="second", limit=at_least(1, "{} gears are impossible")
    )
    name: str | None = option(Text(), None, "Name.", heading="first")
    colour: str = option(
        Word("red", "green", "blue"), "red", "Colour.", spelling="--paint", heading="first"
    )
    stops: tuple[str, ...] = option(Many(FilePath()), (), "Where it stops.", heading="second")
    load: int = option(ByteSize(), 0, "What it carries.")


def test_options_are_those_of_the_fields():
    declared = declared_in(Driving)
    assert list(declared) == ["speed", "gears", "name", "colour", "stops", "load"]
    assert declared["speed"] == RATE._replace(default=2.0, heading="first")
    assert [declared[name].spelled(name) for name in ("gears", "colour")] == ["--gears", "--paint"]


def test_keyword_arguments_are_taken_by_the_names_of_options():
    assert taken_arguments("drive", {"speed": 3, "load": "1KiB"}, declared_in(Driving)) == {
        "speed": 3,
        "load": 1024,
    }


def test_a_name_that_no_option_has_is_answered():
    for typed, answer in (
        ("gear", "did you mean gears?"),
        ("zzz", "help.shardctl.drive. lists all"),
    ):
        with pytest.raises(UsageError, match=f"drive has no argument '{typed}'; {answer}"):
            taken_arguments("drive", {typed: 1}, declared_in(Driving))


def test_each_value_is_checked_by_its_field():
    check_options(Driving())
    for name, wrong, said in (
        ("speed", 0, "speed must be a number, over 0; it is 0"),
        *(
            ("speed", wrong, f"speed must be a number, over 0; it is {wrong!r}")
            for wrong in (math.nan, "2", None)
        ),
        ("gears", 0, "0 gears are impossible"),
        ("gears", 1.5, "gears must be a whole number; it is 1.5"),
        ("name", 5, "name must be a string; it is 5"),
        ("colour", "grey", "colour must be red, green or blue; it is 'grey'"),
        *(("stops", wrong, f"stops takes a list; it is {wrong!r}") for wrong in ("here", 5)),
        ("stops", [5], "stops must be a path; it is [5]"),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
            check_options(replace(Driving(), **{name: wrong}))


@pytest.mark.parametrize(
    ("type_", "means"),
    [
        (
            ByteSize(),
            {"64MiB": 64 << 20, "1.5kb": 1500, "500K": 500_000, "1T": 10**12, "2TiB": 2 << 40},
        ),
        (AutoOrNumber(0, 8), {"auto": "auto", "7": 7}),
        (SecondsOrNone(), {"none": None, "2.5": 2.5}),
        (Many(ByteSize()), {("1", "1KiB"): (1, 1024)}),
        (Flag(), {True: True}),
        (Off(), {True: False, False: None}),
    ],
)
def test_what_the_command_line_means(type_, means):
    assert {given: type_.of_text(given) for given in means} == means


@pytest.mark.parametrize(
    ("type_", "given", "message"),
    [
        *((ByteSize(), given, "is not a size; write 128MiB") for given in ("big", "1XB", "128iB")),
        (AutoOrNumber(0, 8), "-1", "is neither auto nor a whole number from 0 on"),
        (SecondsOrNone(), "soon", "is neither a number of seconds nor none"),
    ],
)
def test_what_it_cannot_mean_is_said(type_, given, message):
    with pytest.raises(ValueError, match=f"^'{given}' {message}"):
        type_.of_text(given)
