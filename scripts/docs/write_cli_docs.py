"""Write docs/cli.md, and the options in docs/commands/, from the commands. tests/test_docs.py fails
where they are old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from shardctl.cli import COMMANDS, cli
from shardctl.cli.command import Command, Option

DOCS = Path(__file__).parents[2] / "docs"

BEGIN = "<!-- options: written by scripts/docs/write_cli_docs.py -->"
END = "<!-- end of options -->"
TABLE = ("| option | what it does |", "| --- | --- |")

MOST = 12
"""Options that more commands have stand in docs/cli.md alone."""


def cli_docs() -> str:
    """Return docs/cli.md: the commands, and which of them has an option."""
    lines = ["# The command line: every command and option", ""]
    lines += [
        "Each command has a page with examples. `shardctl COMMAND --help` shows the same options "
        "in the terminal.",
        "",
    ]
    for heading, commands in COMMANDS.items():
        lines += [f"## {heading}", "", "| command | use it to |", "| --- | --- |"]
        lines += [
            f"| [`shardctl {name}`](commands/{name}.md) | {use} |" for name, use in commands.items()
        ]
        lines.append("")
    lines += ["## Options of most commands", "", *TABLE, *of_most_commands(), ""]
    lines += ["## Every option", "", "| option | commands |", "| --- | --- |"]
    having: dict[str, list[str]] = {"--version": ["shardctl"]}
    for name, context in all_commands():
        for option in shown_options(context):
            having.setdefault(_names(option), []).append(f"[{name}](commands/{name.split()[0]}.md)")
    for names, commands in sorted(having.items(), key=_by_long_name):
        lines.append(
            f"| `{names}` | {'most commands' if len(commands) > MOST else ', '.join(commands)} |"
        )
    return "\n".join([*lines, ""])


def command_page(page: str, name: str) -> str:
    """Return the page of a command, with the options that the command has now."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"docs/commands/{name}.md needs the lines {BEGIN} and {END}")
    parts = [
        _options_of(title, context, title != name)
        for title, context in all_commands()
        if title.split()[0] == name
    ]
    return f"{before}{BEGIN}\n{''.join(parts)}{END}{after}"


def all_commands() -> Iterator[tuple[str, click.Context]]:
    """Yield each command and its context, and after it those of the commands that it has."""
    root = cli.make_context("shardctl", [], resilient_parsing=True)
    waiting = [(name, root) for name in reversed(cli.list_commands(root))]
    while waiting:
        name, parent = waiting.pop()
        command = parent.command.get_command(parent, name.split()[-1])
        context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True)
        yield name, context
        if isinstance(command, click.Group):
            waiting += [
                (f"{name} {inner}", context) for inner in reversed(command.list_commands(context))
            ]


def shown_options(context: click.Context) -> list[click.Option]:
    return [
        each
        for each in context.command.get_params(context)
        if isinstance(each, click.Option) and not each.hidden
    ]


@cache
def of_most_commands() -> list[str]:
    """Return the rows of options that most commands have, with the same words."""
    rows = Counter(
        _row(option, context) for _, context in all_commands() for option in shown_options(context)
    )
    return [row for row, times in rows.items() if times > MOST]


def _options_of(title: str, context: click.Context, is_inner: bool) -> str:
    """Return the usage of a command, and a table of its options under each heading."""
    usage = " ".join(context.get_usage().removeprefix("Usage: ").split())
    parts = [f"## shardctl {title}\n" if is_inner else "## Options\n", f"`{usage}`\n"]
    if is_inner:
        parts.append(f"{_paragraph(context.command.help)}\n")
    shared: list[str] = []
    headings = [*context.command.headings, ""] if isinstance(context.command, Command) else [""]
    for heading in headings:
        options = [each for each in shown_options(context) if heading_of(each, headings) == heading]
        rows = [_row(each, context) for each in options]
        shared += [names_in(row) for row in rows if row in of_most_commands()]
        if rows := [row for row in rows if row not in of_most_commands()]:
            parts.append(f"### {heading}\n" if heading else "")
            parts.append("\n".join([*TABLE, *rows, ""]))
    if shared:
        link = "[options of most commands](../cli.md#options-of-most-commands)"
        parts.append(f"And the {link}: {', '.join(shared)}.\n")
    return "\n" + "\n".join(part for part in parts if part)


def heading_of(option: click.Option, headings: list[str]) -> str:
    own = option.heading if isinstance(option, Option) else ""
    return (
        own if own in headings else [each for each in headings if each][-1] if any(headings) else ""
    )


def _row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    names, text = (" ".join(part.split()).replace("|", r"\|") for part in record)
    return f"| `{names}` | {text} |"


def names_in(row: str) -> str:
    """Return the names of an option, as its row shows them."""
    return row.split(" | ")[0].removeprefix("| ")


def _names(option: click.Option) -> str:
    return ", ".join([*option.opts, *option.secondary_opts])


def _by_long_name(row: tuple[str, list[str]]) -> str:
    return row[0].rpartition("--")[2]


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(cli_docs(), encoding="utf-8")
    for name in (name for commands in COMMANDS.values() for name in commands):
        path = DOCS / "commands" / f"{name}.md"
        path.write_text(command_page(path.read_text(encoding="utf-8"), name), encoding="utf-8")
