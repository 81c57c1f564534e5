"""Write man pages of all commands, and the scripts for the Tab key, as systems keep them:
share/man/man1 and so on.

    python scripts/docs/write_man_pages.py [FOLDER]        share/ of the project, which a source package and a wheel take along

`make release` runs it. share/ is not in the repository: it has nothing that the commands do not
say.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
from write_cli_docs import all_commands, heading_of, shown_options

from shardctl.cli import COMMANDS, cli
from shardctl.cli.command import Command
from shardctl.cli.completion import SHELLS, VARIABLE
from shardctl.version import __version__

SHARE = Path(__file__).parents[2] / "share"

COMPLETIONS = {
    "bash": "bash-completion/completions/shardctl",
    "zsh": "zsh/site-functions/_shardctl",
    "fish": "fish/vendor_completions.d/shardctl.fish",
}

EXIT_STATUS = (
    ("0", "Done."),
    ("1", "A check found something, or more inputs were rejected than allowed."),
    ("2", "Wrong usage."),
    ("3", "It cannot be done."),
    ("130", "Interrupted by Ctrl-C."),
)


def man_pages() -> dict[str, str]:
    """Return the page of shardctl and those of its commands, by the name of the file."""
    pages = {"shardctl.1": _first_page()}
    for name, context in all_commands():
        pages[f"shardctl-{name.replace(' ', '-')}.1"] = _page(name, context)
    return pages


def completions() -> dict[str, str]:
    """Return the scripts of the shells, by their places below share/."""
    return {
        place: SHELLS[shell](cli, {}, "shardctl", VARIABLE).source()
        for shell, place in COMPLETIONS.items()
    }


def write(folder: Path) -> list[Path]:
    """Write all of them, and return their paths."""
    files = {f"man/man1/{name}": text for name, text in man_pages().items()} | completions()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _first_page() -> str:
    root = cli.make_context("shardctl", [], resilient_parsing=True)
    lines = [*_head("shardctl", "convert training data into verified Arrow shards, and load them")]
    lines += [".SH SYNOPSIS", r"\fBshardctl\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]"]
    lines += [".SH DESCRIPTION", *_paragraphs(cli.help or "")]
    for heading, commands in COMMANDS.items():
        lines.append(f".SH {_text(heading.upper())}")
        for name, use in commands.items():
            lines += [".TP", rf"\fBshardctl\-{_text(name)}\fR(1)", _line(use)]
    lines += [
        ".SH OPTIONS",
        *(line for each in shown_options(root) for line in _option(each, root)),
    ]
    return _text_of(
        [*lines, *_end([f"shardctl-{name}" for commands in COMMANDS.values() for name in commands])]
    )


def _page(name: str, context: click.Context) -> str:
    command = context.command
    paragraphs = _paragraphs(command.help or "")
    lines = [
        *_head(f"shardctl-{name.replace(' ', '-')}", click.unstyle(command.get_short_help_str(200)))
    ]
    usage = " ".join(context.get_usage().removeprefix("Usage: ").split())
    lines += [".SH SYNOPSIS", _line(usage), ".SH DESCRIPTION", *paragraphs]
    headings = [*command.headings, ""] if isinstance(command, Command) else [""]
    for heading in headings:
        if options := [
            each for each in shown_options(context) if heading_of(each, headings) == heading
        ]:
            lines.append(f".SH {_text(heading.upper()) if heading else 'OPTIONS'}")
            lines += [line for each in options for line in _option(each, context)]
    if isinstance(command, Command) and command.examples:
        lines.append(".SH EXAMPLES")
        for example, use in command.examples:
            lines += [
                ".PP",
                _line(use[:1].upper() + use[1:] + ":"),
                ".RS",
                ".nf",
                _line(example),
                ".fi",
                ".RE",
            ]
    inner = (
        [f"shardctl-{name}-{each}" for each in command.list_commands(context)]
        if isinstance(command, click.Group)
        else []
    )
    return _text_of([*lines, *_end(["shardctl", *inner])])


def _head(name: str, purpose: str) -> list[str]:
    return [
        f'.TH "{_text(name.upper())}" "1" "" "shardctl {__version__}" "shardctl"',
        ".SH NAME",
        rf"{_text(name)} \- {_text(purpose)}",
    ]


def _end(others: list[str]) -> list[str]:
    lines = [".SH EXIT STATUS"]
    for code, meaning in EXIT_STATUS:
        lines += [".TP", rf"\fB{code}\fR", meaning]
    lines += [".SH SEE ALSO", ", ".join(rf"\fB{_text(each)}\fR(1)" for each in others)]
    return [*lines, ".PP", r"\fBshardctl help\fR lists the pages of the documentation."]


def _option(option: click.Option, context: click.Context) -> list[str]:
    record = option.get_help_record(context)
    names, text = record if record else ("", "")
    return [".TP", rf"\fB{_text(names)}\fR", _line(click.unstyle(text))]


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text. After the mark \\b the lines stay as they are."""
    lines = []
    for block in re.split(r"\n\s*\n", click.unstyle(text).strip()):
        if block.startswith("\b"):
            lines += [
                ".PP",
                ".nf",
                *(_line(line) for line in block.strip("\b\n").splitlines()),
                ".fi",
            ]
        else:
            lines += [".PP", _line(" ".join(block.split()))]
    return lines


def _text(text: str) -> str:
    """Return a text for troff: its own marks and hyphens stand for themselves, and all letters are
    ASCII."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in escaped)


def _line(text: str) -> str:
    escaped = _text(text)
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _text_of(lines: list[str]) -> str:
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    written = write(Path(sys.argv[1]) if len(sys.argv) > 1 else SHARE)
    print(f"{len(written)} files below {written[0].parents[2]}")
