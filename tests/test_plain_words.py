"""The check of plain words finds each fault in a page, and passes a clean one."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import pytest
from doc_snippets import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "docs" / "check_words.py"))

CLEAN = """# Shards of a dataset, but for the heading, which may be anything

A shard is a file with samples. You can copy it.

- One item.
- Another item
  with a second line.

| what | text |
| --- | --- |
| the words of which a table is made | but for long cells they are free |

```sh
shardctl convert photos out   # that of the folder, of which nothing is said
```
"""

LONG = "The shard has " + "one more sample and " * 5 + "an end."  # 25 words
TOO_LONG = "The shard has " + "one more sample and " * 8 + "an end."  # 37 words


def check(tmp_path: Path, text: str, list_all: bool = False) -> tuple[int, str]:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        faulty = SCRIPT["check"]([SCRIPT["page_group"](page)], list_all)
    return faulty, printed.getvalue()


def test_a_clean_page_passes(tmp_path):
    code, printed = check(tmp_path, CLEAN)
    assert code == 0
    assert printed.startswith("plain words: 0 of 4 sentences are hard to read")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            f"First line.\n\n{TOO_LONG}",
            "page.md:3: 37 words; at most 35\n    The shard has one more",
        ),
        (f"| cell |\n| --- |\n| {TOO_LONG} |", "page.md:3: 37 words"),
        (f"- {TOO_LONG.replace('and one', 'and' + chr(10) + '  one')}", "page.md:1: 37 words"),
        (f'=== "Tab"\n\n    {TOO_LONG}', "page.md:3: 37 words"),
        (f"```sh\nshardctl convert {'x' * 90}\n```", "page.md:2: line of code with 107"),
        ("Train a tokeniser on texts.", "page.md:1: American spelling: tokenizer"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, fault, reason):
    code, printed = check(tmp_path, fault)
    assert code == 1
    assert reason in printed


HARD = [
    "The size is that of the image.",
    "All files are read but for one.",
    "It has ten shards, of which two are empty.",
    "The file is no image.",
    "The command reads what is left.",
    "Name the person who made it.",
    "A message says so if the file is there.",
    "The photos stay as they lie.",
    "The message names each file by name.",
    "None of the shards has no samples.",
    "Two jobs run one after the other.",
    "The shards are written as files where a folder is that has space of its own.",
    "It is made anew.",
    LONG.replace("The", "Then the"),
]


@pytest.mark.parametrize("sentence", HARD)
def test_a_sentence_that_is_hard_to_read_is_found(tmp_path, sentence):
    assert check(tmp_path, sentence, list_all=True)[1].startswith(f"{tmp_path}/page.md:1: ")


def test_few_hard_sentences_are_allowed_and_more_are_not(tmp_path):
    plain = ["You can read this.\n"]
    assert check(tmp_path, "\n".join(HARD[:2] + plain))[0] == 0
    code, printed = check(tmp_path, "\n".join(HARD[:3] + plain * 30))
    assert code == 1
    assert all(sentence in printed for sentence in HARD[:3])
    assert "page.md: 3 of 33 sentences are hard to read; fewer than 8% may be" in printed
    assert check(tmp_path, "\n".join(HARD[:3] + plain * 40))[0] == 0
