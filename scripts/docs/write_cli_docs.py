"""Write docs/cli.md from the commands' own help. tests/test_docs.py fails where it is not up to date."""

from pathlib import Path

import click

from shardctl.cli import cli


def cli_docs() -> str:
    group = cli.make_context("shardctl", [], resilient_parsing=True, terminal_width=100)
    title = "# The command line: every command and option"
    parts = [title, "Written by `make docs` from `--help`; edit the commands, not this page.", _help(group)]
    for name in cli.list_commands(group):
        command = cli.get_command(group, name)
        assert command is not None
        parts += _pages(command, name, group, f"shardctl {name}")
    return "\n\n".join(parts) + "\n"


def _pages(command: click.Command, name: str, parent: click.Context, title: str) -> list[str]:
    """Return the help of a command, and of the commands that it has."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=100)
    pages = [f"## {title}", _help(context)]
    for inner in command.list_commands(context) if isinstance(command, click.Group) else ():
        found = command.get_command(context, inner)
        assert found is not None
        pages += _pages(found, inner, context, f"{title} {inner}")
    return pages


def _help(context: click.Context) -> str:
    return f"```text\n{context.get_help()}\n```"


if __name__ == "__main__":
    Path(__file__).parents[2].joinpath("docs", "cli.md").write_text(cli_docs(), encoding="utf-8")
