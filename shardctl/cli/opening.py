"""`--open`: a page is shown in the browser as soon as it is written."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardctl.cli.command import option
from shardctl.cli.lines import note
from shardctl.cli.output import printing_to_stderr
from shardctl.errors import StorageError
from shardctl.system.text import printable

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which one is set where a browser can open a window, or where another program takes
its place."""


def open_option(heading: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds --open to a command, which gets it as `open`."""
    return option(
        "--open",
        heading=heading,
        is_flag=True,
        help="Open the page in your browser. Without --html, the page is a temporary file that "
        "stays.",
    )


def page_path(html: str | None, command: str) -> str:
    """Return where a page is to be written: the given place, or without one a temporary file.
    Raises StorageError."""
    if html is not None:
        return html
    try:
        return str(Path(tempfile.mkdtemp(prefix="shardctl-page-")) / f"{command}.html")
    except OSError as error:
        raise StorageError(
            f"{printable(tempfile.gettempdir())}: cannot be written ({error.strerror})"
        ) from error


def open_page(path: str) -> None:
    """Open a page that is written, in a browser of the user's. Where there is none, a note names
    the file."""
    import webbrowser  # looks for browsers, and only --open needs it

    page = Path(path).absolute()
    shown = False
    if sys.platform in ("darwin", "win32") or any(map(os.environ.get, _DISPLAYS)):
        with printing_to_stderr():  # what browsers print
            try:
                shown = webbrowser.open(page.as_uri())
            except (webbrowser.Error, OSError):
                shown = False
    if not shown:
        note(f"no browser can be opened here; the page is {printable(str(page))}")
