"""What the Tab key finds, asked as the shells ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shardctl
from shardctl.cli import cli
from shardctl.cli.completion import SHELLS, VARIABLE

Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in.jsonl, in.csv, texts/, and out, a dataset with two splits."""
    made = tmp_path_factory.mktemp("completion")
    lines = [json.dumps({"body": f"text {number}", "lang": "en"}) for number in range(20)]
    (made / "in.jsonl").write_text("\n".join(lines) + "\n")
    (made / "in.csv").write_text('first,"second"\n1,2\n')
    (made / "texts").mkdir()
    shutil.copy(made / "in.jsonl", made / "texts" / "a.jsonl")
    shardctl.convert(
        made / "in.jsonl",
        made / "out",
        recipe={"text_field": "body"},
        split="train=0.5,val=0.5",
        workers=0,
    )
    return made


@pytest.fixture
def complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Ask as bash does for the completions of a line, whose last word is the one at the cursor."""

    def ask(*words: str, type_: str = "plain") -> list[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COMP_WORDS", " ".join(("shardctl", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        items = SHELLS["bash"](cli, {}, "shardctl", VARIABLE).complete().splitlines()
        return [item.partition(",")[2] for item in items if item.startswith(f"{type_},")]

    return ask


HEAVY = ("pyarrow", "numpy", "PIL", "shardctl.format.manifest")
"""Modules that take long to import: a person waits for what the Tab key finds."""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["con"], "convert"),
        (["inspect", "out", "--split", "v"], "val"),
        (["export", "out", "to", "--columns", "te"], "text"),
        (["convert", "in", "--step", "random_rot"], "random_rotation"),
        (["convert", "in", "--recipe", "@im"], "@imagenet"),
    ],
)
def test_a_shell_is_answered_without_what_takes_long(folder, words, found):
    asked = {
        VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(["shardctl", *words]),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-X", "importtime", "-m", "shardctl"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"plain,{found}\n"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported.isdisjoint(HEAVY)
    assert all(line.startswith("import time:") for line in done.stderr.splitlines())


def test_names_of_commands(complete):
    assert complete("com") == ["compact", "completion"]
    assert "convert" in complete("")
    assert complete("recipe", "s") == ["schema", "show", "steps"]


@pytest.mark.parametrize("command", [("inspect", "out"), ("bench", "out"), ("export", "out", "to")])
def test_the_splits_of_a_dataset(complete, command):
    assert complete(*command, "--split", "") == ["train", "val"]
    assert complete(*command, "--split", "v") == ["val"]


def test_the_columns_of_a_dataset_one_after_the_other(complete):
    assert complete("inspect", "out", "--columns", "l") == ["lang"]
    assert complete("export", "out", "to", "--columns", "lang,te") == ["lang,text"]


def test_names_that_a_shell_would_run_are_not_offered(folder, complete):
    shutil.copytree(folder / "out", folder / "evil")
    manifest = folder / "evil" / "manifest.json"
    said = json.loads(manifest.read_text())
    names = ("key;touch$IFS/tmp/x", "k`touch x`", "-k", "k\x1b[31m")
    said["schema"] = [{"name": name, "type": "string"} for name in names] + [
        {"name": "kept", "type": "str\x1b[31mred"}
    ]
    manifest.write_text(json.dumps(said))
    assert complete("inspect", "evil", "--columns", "") == ["kept"]


def test_words_that_shardctl_knows(complete):
    assert complete("convert", "in", "--step", "random_r") == [
        "random_resized_crop",
        "random_rotation",
    ]
    assert complete("export", "out", "to", "--to", "mega") == ["megatron"]
    assert complete("convert", "in", "--kind", "te") == ["text"]
    assert complete("completion", "z") == ["zsh"]


def test_a_recipe_is_a_file_or_a_name(complete):
    for command in (("convert", "in", "--recipe"), ("recipe", "check"), ("recipe", "show")):
        assert complete(*command, "@im") == ["@imagenet"]
        assert complete(*command, "my", type_="file") == ["my"]


def test_bash_makes_words_of_the_marks_in_a_word(complete):
    assert complete("convert", "in", "--recipe", "@", "im") == ["@imagenet"]
    assert complete("convert", "in", "--recipe", "=@", "im") == ["@imagenet"]
    assert complete("inspect", "out", "--split", "=", "v") == ["val"]
    assert complete("inspect", "out", "--split", "=") == ["train", "val"]


def test_other_shells_replace_the_option_with_its_value(complete):
    assert complete("inspect", "out", "--split=v") == ["--split=val"]


def test_what_is_wrong_is_silent(complete, folder):
    (folder / "bad").mkdir(exist_ok=True)
    (folder / "bad" / "manifest.json").write_text("{")
    for place in ("bad", "absent", "in.jsonl", "s3://bucket/out", "~nobody/x"):
        assert complete("inspect", place, "--split", "") == []
    assert complete("nonsense", "x", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_completes_in_it(shell, folder):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    script = subprocess.run(
        [sys.executable, "-m", "shardctl", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_SHARDCTL_COMPLETE" in script.stdout
    subprocess.run([program, "-n"], input=script.stdout, text=True, capture_output=True, check=True)
