"""The pages about other tools: the tests and threads that they name. tests/test_shown_outputs.py
runs their commands."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from doc_snippets import ROOT
from sessions import blocks

FOLDER = ROOT / "docs" / "coming-from"
INDEX = FOLDER / "coming-from.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)
COMPARED = ROOT / "docs" / "explanation" / "compared.md"

NAMED = re.compile(r"`(tests/[\w/]+\.py) :: (\w+)`")
LINK = re.compile(r"\]\((https?://[^)\s]+)\)")
THREAD = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull|discussions)/\d+")
HEADINGS = (
    r"You have .*: do this;The same thing, another name;What users report, and what happens here;"
    r"When to stay with .*;Back again"
)


@cache
def functions(path: Path) -> set[str]:
    """The names of all functions of a file, also of the methods of its classes."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


def reports(page: str) -> list[list[str]]:
    """The rows of the table of reports: each has what was reported, what shardctl does, and the
    test that shows it."""
    (section,) = re.findall(
        r"^## What users report[^\n]*\n(.*?)^## ", page, re.MULTILINE | re.DOTALL
    )
    return [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for row in section.splitlines()
        if row.startswith("| [")
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
class TestPage:
    def test_its_sections_are_in_the_same_order(self, path):
        found = re.findall(r"^## (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert re.fullmatch(HEADINGS, ";".join(found)), found

    def test_each_report_has_threads_and_a_test_that_is_there(self, path):
        rows = reports(path.read_text(encoding="utf-8"))
        assert 5 <= len(rows) <= 10
        for reported, _, test in rows:
            links = LINK.findall(reported)
            assert links, reported
            assert [link for link in links if not THREAD.fullmatch(link)] == []
            assert re.search(r"\((open|closed|fixed|merged)\b", reported), reported
            named = NAMED.fullmatch(test)
            assert named is not None, test
            assert named[2] in functions(ROOT / named[1]), test

    def test_it_begins_with_a_conversion_and_ends_with_an_export(self, path):
        commands = [
            command.text
            for block in blocks(path.read_text(encoding="utf-8"))
            for command in block.commands
        ]
        assert commands[0].startswith("shardctl demo demo")
        assert any(re.match(r"shardctl convert \S+ out\b", command) for command in commands)
        assert "shardctl verify out" in commands
        assert any(command.startswith("shardctl export out back --to ") for command in commands)

    def test_the_index_leads_to_it(self, path):
        assert f"]({path.name})" in INDEX.read_text(encoding="utf-8")


def test_every_thread_that_the_comparison_names_is_one():
    links = [
        link
        for link in LINK.findall(COMPARED.read_text(encoding="utf-8"))
        if re.search(r"/(issues|pull)/", link)
    ]
    assert links
    assert [link for link in links if not THREAD.fullmatch(link)] == []


def test_every_note_of_the_comparison_is_used_and_there():
    page = COMPARED.read_text(encoding="utf-8")
    notes = re.findall(r"^\[\^([\w-]+)\]: ", page, re.MULTILINE)
    assert len(notes) == len(set(notes))
    assert set(re.findall(r"\[\^([\w-]+)\](?!:)", page)) == set(notes)


def test_the_speeds_of_the_comparison_are_those_that_were_measured():
    """The least and the largest ratio to the tools are those of the page of figures."""
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    said = re.findall(r"([\d.]+)\sto\s([\d.]+)\stimes", COMPARED.read_text(encoding="utf-8"))
    found = []
    for section, column in (("images", 2), ("images", 4), ("text and tokens", 2)):
        (table,) = re.findall(
            rf"^## The loader on {section}\n.*?\n(\|.*?)\n\n", measured, re.M | re.S
        )
        rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
        ratios = [row[column] for row in rows[2:] if not row[0].startswith("limit") and row[column]]
        found.append((min(ratios, key=float), max(ratios, key=float)))
    assert found == said
