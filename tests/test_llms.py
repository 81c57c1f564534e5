"""What language models and coding agents get of the pages is right."""

from __future__ import annotations

import re
import runpy

import click
from doc_snippets import ROOT

from shardctl.cli import cli

SCRIPTS = ROOT / "scripts" / "docs"
WRITER = runpy.run_path(str(SCRIPTS / "write_llms.py"))


def test_they_are_written_from_the_pages_and_commands():
    assert (ROOT / "docs" / "SKILL.md").read_text(encoding="utf-8") == WRITER["skill"](), (
        "run `make docs`"
    )
    assert (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8") == WRITER["llms"](), (
        "run `make docs`"
    )


def test_every_command_and_option_of_the_skill_exists():
    skill = (ROOT / "docs" / "SKILL.md").read_text(encoding="utf-8")
    context = click.Context(cli)
    options = {
        option for name in cli.list_commands(context) for option in options_of(context, name)
    }
    named = set(re.findall(r"--[a-z][a-z-]*", skill)) - {"--output"}  # which it says does not exist
    assert named <= options | {"--help"}
    prose = re.sub(r"^```.*?^```", "", skill, flags=re.DOTALL | re.MULTILINE)
    lines = re.findall(r"`(shardctl [^`\n]+)`", prose) + re.findall(
        r"^shardctl .*$", skill, re.MULTILINE
    )
    assert len(lines) > 10
    for line in lines:
        _, command, *rest = line.split(" ", 2)
        if command != "COMMAND":
            assert command in cli.list_commands(context), command
            used = set(re.findall(r"--[a-z][a-z-]*", " ".join(rest)))
            assert used <= {*options_of(context, command), "--help"}
    for name in WRITER["USED"]:
        assert set(WRITER["USED"][name]) <= options_of(context, name)


def options_of(context: click.Context, name: str) -> set[str]:
    command = cli.get_command(context, name)
    assert command is not None
    return {option for parameter in command.params for option in parameter.opts}
