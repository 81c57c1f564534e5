"""`shardctl help`: pages, the help of commands, and where a word is."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardctl.cli.page_search import search, section_called
from shardctl.system.messages import all_entries
from shardctl.system.packages import documents, pages
from shardctl.transforms.table import TRANSFORMS

PAGES = list(pages().values())


def test_the_pages_for_developers_are_not_shown():
    assert not any("dev" in path.parts[path.parts.index("docs") :] for path in PAGES)


def test_the_list_has_every_page(cli):
    listed = cli("help")
    assert listed.code == 0
    assert [page.stem for page in PAGES if f"\n  {page.stem}  " not in listed.out] == []
    assert "shardctl help convert" in listed.out
    assert list(cli("help", "--json").json["topics"]) == [page.stem for page in PAGES]


@pytest.mark.parametrize(
    "name", ["inputs", "inputs.md", "docs/inputs.md", "docs/inputs.md#no-such"]
)
def test_a_page_is_found_by_its_name_and_as_links_write_it(cli, name):
    shown = cli("help", name)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == pages()["inputs"].read_text(encoding="utf-8")


def test_a_command_has_the_same_help_as_with_the_option(cli):
    assert cli("help", "convert").out.startswith(cli("convert", "--help").out.rstrip())
    assert cli("help", "recipe", "check").out == cli("recipe", "check", "--help").out


def test_a_page_with_the_name_of_a_command_is_named_and_can_be_read(cli):
    command = cli("help", "bench").out
    assert command.startswith("Usage: shardctl bench")
    assert "shardctl help bench.md" in command
    assert cli("help", "bench.md").out.startswith("# Is the loader fast enough?\n")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("resize", "#### resize\n"),
        ("recipes#resize", "#### resize\n"),
        ("where it runs", "## Where it runs\n"),
        ("docs/inputs.md#types", "## Types\n"),  # of inputs/tables.md, where it is now
    ],
)
def test_a_section_is_shown_with_its_heading(cli, name, begins):
    shown = cli("help", name)
    assert shown.code == 0
    assert shown.out.startswith(begins)
    assert "\n#### letterbox\n" not in shown.out


def test_every_step_leads_to_its_section_or_to_a_page(cli):
    for name in TRANSFORMS:
        assert name in pages() or section_called(name).heading == name


ASKED = [
    ("Slurm", "cluster s3-and-slurm"),
    ("EXIF", "faq annotations"),
    ("person", "remove-a-person"),
    ("GDPR", "remove-a-person faq"),
    ("images of ONE person's", "remove-a-person"),
    ("class imbalance", "class-imbalance"),
    ("class missing in a split", "faq splits-without-leaks"),
    ("disk space", "faq small-disk"),
    ("disk", "small-disk"),
    ("updating", "update faq"),
    ("exit code 1 in CI", "faq exit-codes"),
    ("MinIO", "faq stores s3-and-slurm"),
    ("multi gpu", "faq ddp"),
    ("wandb", "faq metrics"),
    ("shuffle and packing", "faq packing"),
    ("stratified split", "splits-without-leaks faq"),
    ("train during conversion", "faq"),
    ("pytorch", "faq loader"),
    ("remove person", "remove-a-person"),
    ("Windows support", "faq install"),
    ("打乱", "faq.zh order-of-samples"),
    ("中文", "chinese-text chinese-text.zh"),
]
"""Questions, and the pages that may be named first: the questions and answers, or the page about it."""


@pytest.mark.parametrize(("asked", "first"), ASKED)
def test_words_find_the_page_about_them_first(asked, first):
    assert search(asked)[0].page in first.split()


def test_a_word_that_stands_for_others_leads_to_a_page():
    table = json.loads((documents() / "words.json").read_text(encoding="utf-8"))
    lost = [words for words in table["stand_for"] if not search(words)]
    assert lost == []


def test_a_question_is_no_message(cli):
    assert "faq#why-is-a-class-missing" in cli("help", "What if a class is missing in a split").out


def test_words_that_no_section_has_together_find_those_that_have_most():
    assert search("resume training zebra")[0].page == "resume-training"
    assert search("zebra") == []


def test_pages_are_named_with_what_shows_them(cli):
    found = cli("help", "EXIF")
    assert found.code == 0
    assert found.out.startswith("'EXIF' is not a command or a page. Pages about it:\n\n")
    for name in re.findall(r"^  shardctl help (\S+)", found.out, re.MULTILINE):
        assert cli("help", name).code == 0
    named = cli("help", "EXIF", "--json").json["pages"]
    assert {"topic", "times", "section", "heading"} == set(named[0])
    assert ".zh" not in found.out
    assert "shardctl help faq.zh" in cli("help", "分片").out


@pytest.mark.parametrize(
    "asked",
    [
        ["no-such-input"],
        ["holds no files"],
        ["HOLDS", "NO", "FILES"],
        ["shardctl: photos: holds no files"],
    ],
)
def test_a_message_is_explained_by_its_name_and_by_its_words(cli, asked):
    shown = cli("help", *asked)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("### no-such-input\n\n- `holds no files`\n")
    assert "\n**Do:** Check the path" in shown.out
    assert cli("help", *asked, "--json").json["message"] == "no-such-input"


def test_words_of_several_messages_lead_to_each(cli):
    found = cli("help", "not JSON")
    assert found.code == 0
    assert "\n  shardctl help json-line-wrong" in found.out
    assert cli("help", "not JSON", "--json").json["messages"] == [
        "json-line-wrong",
        "tokenizer-file-wrong",
    ]


def test_a_name_of_a_message_is_no_command_and_no_page(cli):
    listed = cli("help", "--json").json
    assert not {entry.name for entry in all_entries()} & {*listed["commands"], *listed["topics"]}


def test_a_terminal_is_told_where_more_is_about_an_error(tmp_path):
    (tmp_path / "photos").mkdir()
    message = "shardctl: photos: holds no files, or only empty ones; nothing to convert"
    told = [message, "hint: `shardctl help no-such-input` says more"]
    for arguments, lines in (([], told), (["-q"], [message])):
        said, code = on_a_terminal(
            ["convert", "photos", "out", *arguments], tmp_path, {"NO_COLOR": "1"}
        )
        assert (said.splitlines(), code) == (lines, 3)
    command = [sys.executable, "-m", "shardctl", "convert", "photos", "out"]
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert piped.stderr == f"{message}\n"


def test_a_terminal_gets_whole_words_and_the_advice_on_a_line_of_its_own(tmp_path):
    wrong = ["verify", "out", "another-dataset-beside-it"]
    command = [sys.executable, "-m", "shardctl", *wrong]
    piped = subprocess.run(command, capture_output=True, text=True, check=False)
    said, _ = on_a_terminal(wrong, tmp_path, {"NO_COLOR": "1", "COLUMNS": "60"})
    what, advice = said.split("hint: ")
    assert f"{what.rstrip()}; {advice}".split() == piped.stderr.split()
    assert max(map(len, said.splitlines())) <= 60
    colors, _ = on_a_terminal(wrong, tmp_path, {"FORCE_COLOR": "1"})
    assert "\x1b[32mhint:\x1b[0m" in colors


def on_a_terminal(arguments: list[str], folder: Path, variables: dict[str, str]) -> tuple[str, int]:
    """Run a command that has a terminal for its streams; return what it wrote there, and its exit
    code."""
    above, below = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **variables}
    command = [sys.executable, "-m", "shardctl", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=below, stdout=below, stderr=below
    ) as process:
        os.close(below)
        said = b""
        while True:
            try:
                part = os.read(above, 4096)
            except OSError:  # the last process that had the terminal has ended
                break
            said += part
    os.close(above)
    return said.decode(), process.returncode


def test_a_terminal_gets_a_pager(tmp_path):
    """PAGER is called with the page: here a program that shows that it was."""
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED\ncat\n")
    pager.chmod(0o755)
    said, code = on_a_terminal(["help", "write"], tmp_path, {"PAGER": str(pager)})
    assert code == 0
    assert said.startswith("PAGED\r\n")
    assert "Samples that are made in Python" in said
