"""Write docs/cli.md from the commands' own help. tests/test_docs.py fails where it is not up to date."""

from pathlib import Path

import click

from shardctl.cli import cli


def cli_docs() -> str:
    parts = [
        "# The command line",
        "Written by `make docs` from `--help`; edit the commands, not this page.",
        _help(cli, "shardctl"),
    ]
    for name, command in sorted(cli.commands.items()):
        parts += [f"## shardctl {name}", _help(command, f"shardctl {name}")]
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    return f"```text\n{command.get_help(context)}\n```"


if __name__ == "__main__":
    Path(__file__).parent.parent.joinpath("docs", "cli.md").write_text(cli_docs(), encoding="utf-8")
