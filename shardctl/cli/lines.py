"""The lines that a command prints for a person: colors, the word before a line, and paths as they
were typed.

Each command prints its notes, warnings, verdicts and errors by these functions, so that all look
the same.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

_LOOKS: dict[str, dict[str, Any]] = {
    "shardctl": {"fg": "red", "bold": True},
    "error": {"fg": "red", "bold": True},
    "warning": {"fg": "yellow", "bold": True},
    "note": {"fg": "cyan"},
}
"""The colors of the words that lines begin with."""


def color_choice() -> bool | None:
    """Return whether output has colors: by NO_COLOR or FORCE_COLOR. None: where the stream is a
    terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def colored(line: str) -> str:
    """Return a line with the color of the word that it begins with, such as `warning:`. Others stay
    as they are."""
    word, colon, rest = line.partition(":")
    return click.style(word + colon, **_LOOKS[word]) + rest if colon and word in _LOOKS else line


def on_stderr(line: str) -> str:
    """Return a line as stderr is to show it: with its color, or as it is."""
    wanted = color_choice()
    return colored(line) if (sys.stderr.isatty() if wanted is None else wanted) else line


def good(text: str) -> str:
    """Return a verdict in green: the work is done, the dataset is whole."""
    return click.style(text, fg="green")


def bad(text: str) -> str:
    """Return a verdict in red: the dataset is damaged, the GPU waits."""
    return click.style(text, fg="red", bold=True)


def tell(lines: Iterable[str]) -> None:
    """Print lines on stderr: what is going on, beside the result on stdout."""
    for line in lines:
        click.echo(colored(line), err=True, color=color_choice())


def note(text: str) -> None:
    """Print a note on stderr: the user may want to know it."""
    tell([f"note: {text}"])


def warn(text: str) -> None:
    """Print a warning on stderr: the result may not be as the user wants it."""
    tell([f"warning: {text}"])


def complain(message: str) -> None:
    """Print on stderr why the command cannot do its work."""
    tell([f"shardctl: {message}"])


def hint(text: str) -> None:
    """Print on stderr, in dim letters, where a person finds more about the line before."""
    click.echo(click.style(text, dim=True), err=True, color=color_choice())


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """Return a message with paths as the user typed them: code below the command line makes some of
    them absolute."""
    from shardctl.system.text import printable  # few commands end with an error

    typed: dict[str, str] = {}
    for argument in arguments:
        text = argument.partition("=")[2] if argument.startswith("-") else argument
        if text and "\0" not in text and not Path(text).is_absolute() and "://" not in text:
            # the current folder has gone; links that lead to themselves
            with suppress(OSError, RuntimeError):
                for full in (Path.cwd() / text, Path(text).resolve()):
                    typed.setdefault(str(full), printable(text.rstrip("/")))
    for path in sorted(typed, reverse=True):  # a file in a folder comes before the folder
        message = re.sub(
            rf"(?<![\w./-]){re.escape(path)}(?![\w-]|\.\w)",
            typed[path].replace("\\", r"\\"),
            message,
        )
    return message
