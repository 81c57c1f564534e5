"""Help in steps, and answers to wrong names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import click
import pytest
from dataset_files import tables_in

import shardctl
from shardctl.cli import COMMANDS
from shardctl.cli import cli as group

SCREEN = 40
"""Lines of a terminal window of ordinary height."""

MOST_OPTIONS = 12


def commands() -> Iterator[tuple[list[str], click.Command]]:
    context = group.make_context("shardctl", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield [name], command
        if isinstance(command, click.Group):
            yield from (([name, inner], each) for inner, each in command.commands.items())


NAMES = [" ".join(name) for name, _ in commands()]


@pytest.mark.thorough(after=8)
@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits_into_80_columns(name, cli):
    for way in ("-h", "--help"):
        shown = cli(*name.split(), way)
        assert shown.code == 0
        assert [line for line in shown.out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", ["convert", "bench", "inspect"])
def test_short_help_is_one_screen_with_four_examples(name, cli):
    short, whole = cli(name, "-h").out, cli(name, "--help").out
    assert len(short.splitlines()) <= SCREEN
    assert short.count(f"  shardctl {name} ") == 4
    count = re.search(r"shows all (\d+) options", short)
    assert count is not None
    listed = whole.partition("\nExamples:")[2]
    assert (
        int(count[1])
        == len(re.findall(r"^  (?:-\w, )?--?[a-z][\w-]*", listed, re.M))
        > short.count("\n  --")
    )


def test_no_heading_has_more_options_than_can_be_taken_in(cli):
    for name in ("convert", "bench", "inspect", "advise", "preview"):
        for section in re.split(r"^(?=\S.*:$)", cli(name, "--help").out, flags=re.M):
            assert len(re.findall(r"^  -", section, re.M)) <= MOST_OPTIONS, section


def test_commands_are_under_headings_in_the_order_of_use(cli):
    shown = cli("-h").out
    places = [shown.index(f"\n{heading}:") for heading in COMMANDS]
    assert places == sorted(places)
    assert all(len(line) <= 60 for commands in COMMANDS.values() for line in commands.values())


@pytest.mark.thorough(after=6)
@pytest.mark.parametrize("name", NAMES)
def test_examples_are_commands_that_can_be_read(name):
    command = next(each for path, each in commands() if " ".join(path) == name)
    for line in (
        line for line, _ in getattr(command, "examples", ()) if line.startswith("shardctl ")
    ):
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", re.split(" [>|]", line)[0])]
        found: Any = group
        context = group.make_context("shardctl", [], resilient_parsing=True)
        words.pop(0)
        while isinstance(found, click.Group):
            found = found.get_command(context, words.pop(0))
        found.make_context("example", words, parent=context)


@pytest.mark.thorough
def test_shuffle_needs_no_value(cli, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{n}\n" for n in range(50)))
    for place, given in enumerate((["--shuffle"], ["--shuffle", "0"])):
        cli("convert", tmp_path / "in.txt", tmp_path / f"out{place}", "--record", "line", *given)
    bare, zero = (shardctl.open(tmp_path / f"out{place}") for place in (0, 1))
    assert (
        [each["text"] for each in bare]
        == [each["text"] for each in zero]
        != sorted(each["text"] for each in bare)
    )


def test_python_takes_the_words_of_the_command_line(photos, tmp_path, cli):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardctl.convert(
            photos,
            tmp_path / "a",
            resize=48,
            crop=(40, 32),
            store="raw",
            split={"train": 0.8, "val": 0.2},
            shard_size="1MiB",
        )
    options = "--resize 48 --crop 40x32 --store raw --split train=0.8,val=0.2 --shard-size 1MiB"
    assert cli("convert", photos, tmp_path / "b", *options.split()).code == 0
    assert (tables_in(tmp_path / "a") / "SHA256SUMS").read_bytes() == (
        tables_in(tmp_path / "b") / "SHA256SUMS"
    ).read_bytes()
