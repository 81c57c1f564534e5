"""`shardctl help`: the pages of the documentation, and the help of every command."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import click

from shardctl.cli import ALL_COMMANDS
from shardctl.cli.command import command, context_of
from shardctl.cli.output import Output, output_options, print_json
from shardctl.cli.page_search import search, section_called
from shardctl.errors import UsageError
from shardctl.system.messages import Entry, all_entries, entry_for
from shardctl.system.packages import documents, pages
from shardctl.system.text import printable

SHOWN_PAGES = 5

SECTIONS = {
    "Tutorials": "tutorials",
    "One task each": "how-to",
    "Coming from other tools": "coming-from",
    "Commands": "commands",
    "Reference": "",
    "How it works": "explanation",
    "中文": "zh",
}
"""The headings of the list of pages, and the folder of docs/ of each."""

FOLDERS = set(SECTIONS.values())


@command(
    examples=(
        "shardctl help convert  # a command, with all its options",
        "shardctl help inputs  # a page",
        "shardctl help bench.md  # a page that has the name of a command",
        "shardctl help resize  # a step, or another heading of a page",
        "shardctl help disk space  # any other words: the pages about them",
        "shardctl help damaged-block  # what a message means, and what to do",
        "shardctl help 'holds no files'  # the same, by words of the message",
    )
)
@click.argument("words", nargs=-1, metavar="[COMMAND|PAGE|MESSAGE|WORD]")
@output_options
@click.pass_context
def help(context: click.Context, words: tuple[str, ...], output: Output) -> None:
    """Show a page of the documentation, the help of a command, or the meaning of a message; find
    pages by words. Without a name, list all pages.

    Exit codes: 0 done, 2 no command, page, message or word of this name.
    """
    named = " ".join(words)
    topic = _topic(named)
    found = context_of(context.find_root(), words)
    is_command = found.command_path.split()[1:] == list(words) and topic in (None, named)
    if not named:
        _show_topics(output)
    elif is_command:
        text = found.get_help()
        if topic is not None:
            text += f"\n\n  There is also a page: shardctl help {topic}.md"
        _show({"command": named, "text": text}, text, output)
    elif topic is not None and ("#" not in named or section_called(named) is None):
        page = pages()[topic].read_text(encoding="utf-8")
        _show({"topic": topic, "text": page}, page, output)
    elif (entry := _message(named)) is not None:
        _show({"message": entry.name, "text": entry.text}, entry.text, output)
    elif (section := section_called(named)) is not None:
        _show({"section": section.name, "text": section.whole}, section.whole, output)
    else:
        _search(named, output)


def section_pages(folder: str) -> list[Path]:
    """Return the pages in a folder of SECTIONS; those in no other one for an empty name."""
    others = FOLDERS - {folder}
    return [
        page
        for page in pages().values()
        if page.is_relative_to(documents() / folder)
        and page.relative_to(documents()).parts[0] not in others
    ]


def topics() -> dict[str, str]:
    """Return the title of each page, by its name without .md."""
    return {name: _title(page) for name, page in pages().items()}


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return (
            next(line for line in lines if line.startswith("# "))
            .removeprefix("# ")
            .strip()
            .replace("`", "")
        )


def _topic(named: str) -> str | None:
    """Return the page that is meant by inputs, inputs.md, docs/inputs.md or docs/inputs.md#labels.
    A message has spaces."""
    if " " in named:
        return None
    stem = named.partition("#")[0].rpartition("/")[2].removesuffix(".md")
    return next((name for name in pages() if name.lower() == stem.lower()), None)


def _message(named: str) -> Entry | None:
    """Return the entry about a message by its name, by the whole message, or by words that only one
    has."""
    with_words = _entries_with(named)
    return entry_for(named) or (with_words[0] if len(with_words) == 1 else None)


def _entries_with(words: str) -> list[Entry]:
    """Return the entries whose name this is, or whose messages have these words. A word alone is
    looked for in all pages."""
    return [
        entry
        for entry in all_entries()
        if words == entry.name
        or (" " in words and any(words.casefold() in said.casefold() for said in entry.says))
    ]


def _show(record: dict[str, str], text: str, output: Output) -> None:
    """Show a text, in a pager where stdout is a terminal."""
    if output.as_json:
        print_json(record)
    else:
        click.echo_via_pager(re.sub(r"(?m)^<!--.*-->\n", "", text).rstrip())


def _show_topics(output: Output) -> None:
    lines = click.HelpFormatter()
    lines.write_text("`shardctl --help` lists the commands.")
    with lines.section("Examples"):
        lines.write_dl(help.examples)
    for section, folder in SECTIONS.items():
        if found := section_pages(folder):
            with lines.section(section):
                lines.write_dl([(page.stem, _title(page)) for page in found])
    record = {"topics": topics(), "commands": list(ALL_COMMANDS)}
    output.show(record, lines.getvalue().splitlines())


def _search(words: str, output: Output) -> None:
    """Name the sections and messages that have words, and the commands and pages that are called
    nearly so. Raises UsageError."""
    shown = printable(words)
    found, messages = search(words), _entries_with(words)
    first = {each.page for each in found[:SHOWN_PAGES]}
    names = [name for name in (*ALL_COMMANDS, *pages()) if name not in first]
    near = difflib.get_close_matches(words.lower(), names, 3, 0.75)
    meant = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    if not found and not messages:
        raise UsageError(
            f"{shown!r} is no command, page, message, or word of a "
            f"page{meant or '; `shardctl help` lists the pages'}"
        )
    lines = click.HelpFormatter()
    lines.write(f"{shown!r} is not a command or a page{meant or '.'} Pages about it:\n\n")
    rows = [
        (f"shardctl help {entry.name}", f"message: {entry.says[0]}")
        for entry in messages[:SHOWN_PAGES]
    ]
    rows += [
        (f"shardctl help {each.name}", " - ".join(dict.fromkeys((each.title, each.heading))))
        for each in found[:SHOWN_PAGES]
    ]
    with lines.indentation():
        lines.write_dl(rows, col_max=36)
    record = {
        "near": near,
        "messages": [entry.name for entry in messages],
        "pages": [
            {
                "topic": each.page,
                "times": each.whole.lower().count(words.lower()),
                "section": each.name,
                "heading": each.heading,
            }
            for each in found
        ],
    }
    output.show(record, lines.getvalue().splitlines())
