"""What the commands share: output options, tables, JSON."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import click

from shardctl.cli.command import Decorator, Function, option
from shardctl.errors import StorageError, UsageError
from shardctl.system.report import Section, lines_of
from shardctl.system.text import printable

_BAD: dict[str, Any] = {"fg": "red", "bold": True}

_LOOKS: dict[str, dict[str, Any]] = {
    "shardctl": _BAD,
    "error": _BAD,
    "warning": {"fg": "yellow", "bold": True},
    "note": {"fg": "cyan"},
    "hint": {"fg": "green"},
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
    found = re.match(r"( *)(\w+:)", line)
    looks = _LOOKS.get(found[2][:-1]) if found else None
    return (
        f"{found[1]}{click.style(found[2], **looks)}{line[found.end() :]}"
        if found and looks
        else line
    )


def wrapped(line: str, width: int) -> str:
    """Return a line broken between its words for `width` columns, the rest below its last column.
    Commands between ` stay whole."""
    indent = max((gap.end() for gap in re.finditer(r"(^|\S) {2,}(?=\S)", line)), default=2)
    if len(line) <= width or indent > width // 2:
        return line
    whole = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        whole,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def on_stderr(line: str) -> str:
    """Return a line as stderr is to show it: at a terminal with its color, and broken between
    words."""
    at_terminal, wanted = sys.stderr.isatty(), color_choice()
    if at_terminal:
        line = wrapped(line, shutil.get_terminal_size().columns)
    return colored(line) if (at_terminal if wanted is None else wanted) else line


def good(text: str) -> str:
    """Return a verdict in green: the work is done, the dataset is whole."""
    return click.style(text, fg="green")


def bad(text: str) -> str:
    """Return a verdict in red: the dataset is damaged, the GPU waits."""
    return click.style(text, **_BAD)


def tell(lines: Iterable[str]) -> None:
    """Print lines on stderr: what is going on, beside the result on stdout."""
    for line in lines:
        click.echo(on_stderr(line), err=True, color=color_choice())


def note(text: str) -> None:
    """Print a note on stderr: the user may want to know it."""
    tell([f"note: {text}"])


def warn(text: str) -> None:
    """Print a warning on stderr: the result may not be as the user wants it."""
    tell([f"warning: {text}"])


_ADVICE = re.compile(
    r"(?:;|\.) (?=(?:add|bring|call|check|choose|convert|copy|delete|did you mean|divide|export|fix|free|get"
    r"|give|install|keep|leave|look|make|measure|move|name|open|pip|put|read|recode|remove|rename"
    r"|pipx|repair|run|save|see|set|store|to convert|try|unpack|use|uv|write)\b|`|--)",
    re.IGNORECASE,
)
"""Where a message begins to say what to do."""


def complain(message: str, entry: str = "") -> None:
    """Print on stderr why the command cannot do its work.

    At a terminal, what to do is on a line of its own, and so is the entry of `shardctl help` that
    says more.
    """
    parts = _parted(message) if sys.stderr.isatty() else [message]
    if entry:
        parts.append(f"`shardctl help {entry}` says more")
    tell([f"shardctl: {parts[0]}", *(f"hint: {each}" for each in parts[1:])])


def _parted(message: str) -> list[str]:
    """Return a message up to where it says what to do, which is outside brackets, and the rest."""
    for found in _ADVICE.finditer(message):
        before = message[: found.start()]
        if before.count("(") == before.count(")"):
            return [before, message[found.end() :]]
    return [message]


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """Return a message with paths as the user typed them: code below the command line makes some of
    them absolute."""
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


@dataclass(frozen=True)
class Output:
    """What a command prints: `as_json` one JSON object, `quiet` nothing but the result, `verbose`
    more than usual.

    With `no_progress` it does not say how far it is.
    """

    as_json: bool
    quiet: bool
    verbose: bool
    no_progress: bool

    @property
    def shows_notes(self) -> bool:
        """Whether to say more than the result."""
        return not (self.quiet or self.as_json)

    @property
    def shows_progress(self) -> bool:
        """Whether to say how far the work is."""
        return self.shows_notes and not self.no_progress

    def show(self, record: Any, lines: Iterable[str]) -> None:
        """Print a dataclass or plain data as one JSON object where that is wanted, else lines."""
        if self.as_json:
            print_json(record)
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
            for line in lines:
                click.echo(wrapped(line, width) if width else line)


def output_options(function: Function) -> Function:
    """Add --json, -q and -v to a command, which gets them as `output`."""

    @option(
        "--json", "Print the result as one JSON object, without notes and progress.", name="as_json"
    )
    @click.option("-q", "--quiet", is_flag=True, help="Print only the result and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Print more on stderr.")
    @functools.wraps(function)
    def command(
        as_json: bool, quiet: bool, verbose: bool, no_progress: bool = False, **given: Any
    ) -> Any:
        return function(output=Output(as_json, quiet, verbose, no_progress), **given)

    return command


def progress_options(function: Function) -> Function:
    """Add --no-progress, and what `output_options` adds, to a command that may run long."""
    help_text = "Show no progress (a bar at a terminal, elsewhere a line every 30 seconds)."
    return output_options(option("--no-progress", help_text)(function))


def waiting_teller(dst: str, output: Output) -> Callable[[str], None]:
    """Return a function that says for which other writer of the dataset at `dst` a command waits,
    unless it is to be quiet."""

    def tell(owner: str) -> None:
        if not output.quiet:
            from shardctl.making.convert.result import waiting_line

            click.echo(waiting_line(owner, dst), err=True)

    return tell


def workers_ahead(module: str, workers: int | str, memory: int = 0) -> AbstractContextManager[None]:
    """Start the process that workers of a module are forked from, if there are to be any."""
    if workers == 0:
        return nullcontext()
    from shardctl.system.processes.forkserver import forked_early

    return forked_early(module, memory)


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Redirect to stderr what is printed inside the block: stdout is for results, and a user's
    function may print."""
    sys.stdout.flush()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        with suppress(OSError, ValueError):  # no such file descriptors, as in a notebook
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)  # for what is printed by compiled code and by programs that are started
        yield


def print_json(record: Any) -> None:
    """Print a dataclass or plain data as one JSON object."""
    if is_dataclass(record) and not isinstance(record, type):
        record = asdict(record)
    click.echo(json.dumps(record, default=str))


def report_lines(sections: Iterable[Section]) -> Iterator[str]:
    """Yield the lines of what is told of something, in color."""
    verdict = lambda found: (good if found.is_good else bad)(found.word)  # noqa: E731
    return map(colored, lines_of(sections, verdict))


TEXT_WIDTH = 100
"""Most characters of a value in a table."""


def shortened(value: Any, width: int = TEXT_WIDTH) -> str:
    """Return a value as text of at most `width` characters."""
    text = printable(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def check_outputs(html: str | None, images: str | None) -> None:
    """Raise StorageError if another file is where a sheet or a page is to go, UsageError for a name
    of another kind."""
    if images is not None:
        _check_ending("--images", images, ".png")
        from shardctl.images.codecs.drawing import SHEET

        SHEET.check(Path(images))
    check_page(html)


def check_page(html: str | None) -> None:
    """Raise StorageError if a page cannot go to a place, UsageError for a name of another kind of
    file."""
    if html is not None:
        _check_ending("--html", html, ".html", ".htm")
        from shardctl.inspection.pages.page import PAGE

        PAGE.check(Path(html))


def _check_ending(option: str, path: str, *endings: str) -> None:
    if not path.lower().endswith(endings):
        raise UsageError(f"{option} {printable(path)}: give a name that ends in {endings[0]}")


_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which one is set where a browser can open a window, or where another program takes
its place."""


def open_option(heading: str = "") -> Decorator:
    """Return the decorator that adds --open to a command, which gets it as `open`."""
    return option(
        "--open",
        "Open the page in your browser. Without --html it is a temporary file.",
        heading=heading,
    )


def write_page(content: str, html: str | None, command: str) -> str:
    """Write a page to the given place, or without one into a temporary file, and return where it
    is. Raises StorageError."""
    from shardctl.inspection.pages.page import PAGE

    try:
        path = html or str(Path(tempfile.mkdtemp(prefix="shardctl-page-")) / f"{command}.html")
    except OSError as error:
        raise StorageError(
            f"{printable(tempfile.gettempdir())}: cannot be written ({error.strerror})"
        ) from error
    PAGE.write(Path(path), content.encode())
    return path


def open_page(path: str) -> None:
    """Open a page that is written, in a browser of the user's. Where there is none, a note names
    the file."""
    import webbrowser  # looks for browsers, and only --open needs it

    page = Path(path).absolute()
    shown = False
    if sys.platform in ("darwin", "win32") or any(map(os.environ.get, _DISPLAYS)):
        # what browsers print is no result
        with printing_to_stderr(), suppress(webbrowser.Error, OSError):
            shown = webbrowser.open(page.as_uri())
    if not shown:
        note(f"no browser can be opened here; the page is {printable(page)}")
