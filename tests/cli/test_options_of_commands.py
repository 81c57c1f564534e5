"""Options are declared once: the command line, Python and the checks read the same fields."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shardctl
from shardctl.benchmark.advice_options import AdviceOptions
from shardctl.benchmark.options import BenchOptions
from shardctl.cli import cli
from shardctl.interop.exports.options import Choice, FormSettings
from shardctl.making.options import Options

NEW_OPTION = """
    pace: int = option(
        Whole(),
        7,
        "How fast the inputs are read.",
        metavar="N",
        spelling="--reading-pace",
        shows_default=True,
        heading=RUNNING,
        limit=at_least(1, "a pace of {} is impossible; give at least 1"),
    )
"""

TRIAL = """
from pathlib import Path

import shardctl
from shardctl.errors import UsageError

made = shardctl.convert("in.txt", "out", workers=0, pace=3)
print(Path(shardctl.__file__).parent, made.samples)
for wrong in (0, "x"):
    try:
        shardctl.convert("in.txt", "other", pace=wrong)
    except UsageError as error:
        print(error)
"""


def changed_copy(
    folder: Path, file: str, before: str, new: str
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Copy the package, put text into one of its files, and return how it is run."""
    package = folder / "copy" / "shardctl"
    shutil.copytree(
        Path(shardctl.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    text = (package / file).read_text(encoding="utf-8")
    assert before in text
    (package / file).write_text(text.replace(before, new + before, 1), encoding="utf-8")
    (folder / "in.txt").write_text("one\n")
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": ""}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.thorough
def test_a_new_option_of_convert_is_one_field(tmp_path):
    end = "\n    def check(self) -> None:"
    python = changed_copy(tmp_path, "making/options.py", end, NEW_OPTION)
    run = functools.partial(python, "-m", "shardctl", "convert")
    shown = " ".join(run("--help").stdout.split())
    assert "--reading-pace N How fast the inputs are read. [default: 7]" in shown
    assert shown.index("--metrics") < shown.index("--reading-pace") < shown.index("--max-rejects")
    done = run("in.txt", "by-command", "--reading-pace", "2", "--workers", "0")
    assert done.stdout.startswith("created by-command: 1 sample"), done.stderr
    for value, says in (("0", "give at least 1"), ("x", "'x' is not a whole number")):
        refused = run("in.txt", "other", "--reading-pace", value)
        assert (refused.returncode, says in refused.stderr) == (2, True)
    called = python("-c", TRIAL)
    assert called.stdout.splitlines() == [
        f"{tmp_path}/copy/shardctl 1",
        "a pace of 0 is impossible; give at least 1",
        "pace must be a whole number; it is 'x'",
    ]


NEW_KEY = """
    pace: str = setting(
        Word("walk", "run"), "walk", "How fast the inputs are read.", spelling="--reading-pace",
        heading=IMAGES, omit_default=True
    )
"""


@pytest.mark.thorough
def test_a_new_recipe_key_with_an_option_is_one_field(tmp_path):
    end = "\n\n\n_KEYS"
    python = changed_copy(tmp_path, "transforms/recipe_options.py", end, NEW_KEY)
    run = functools.partial(python, "-m", "shardctl")
    (tmp_path / "recipe.toml").write_text('pace = "walk"\n')
    shown = " ".join(run("convert", "--help").stdout.split())
    assert "--reading-pace [walk|run] How fast the inputs are read. Default: walk." in shown
    described = json.loads(run("recipe", "schema").stdout)["properties"]["pace"]
    assert (described["enum"], described["default"]) == (["walk", "run"], "walk")
    given = ("convert", "in.txt", "out", "--recipe", "recipe.toml", "--workers", "0")
    done = run(*given, "--reading-pace", "run")
    assert done.stdout.startswith("created out: 1 sample"), done.stderr
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes())["recipe"]["pace"] == "run"
    refused = run(*given, "--reading-pace", "fly")
    assert "--reading-pace: 'fly' is not one of walk, run" in refused.stderr


COMMANDS = [
    ("convert", Options, ["in", "out"]),
    ("bench", BenchOptions, ["out"]),
    ("advise", AdviceOptions, ["in"]),
    ("export", Choice, ["out", "files", "--to", "files"]),
    ("export", FormSettings, ["out", "files", "--to", "files"]),
]


@pytest.mark.parametrize(("name", "class_", "arguments"), COMMANDS)
def test_a_command_has_each_option_of_its_dataclass_with_its_default(name, class_, arguments):
    group = cli.make_context("shardctl", [], resilient_parsing=True)
    command = cli.get_command(group, name)
    assert command is not None
    given = command.make_context(name, arguments, parent=group).params
    options = class_()
    assert {
        field.name: given[field.name] for field in dataclasses.fields(class_)
    } == dataclasses.asdict(options)
    names = [parameter.name for parameter in command.params]
    assert len(set(names)) == len(names)
