"""Functions of the user, imported by their names: module:function."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from shardctl.errors import UsageError


def look_in_current_folder() -> None:
    """Let functions be imported from the current folder too, last of all: a folder of data may hold a file of any name."""
    if "" not in sys.path:
        sys.path.append("")


def find_function(target: str, what: str) -> Callable[..., Any]:
    """Import something that can be called; `what` says in messages what it is for. Raises UsageError if there is none.

    `module:object.method` works too. What the module prints when it is imported goes to stderr.
    """
    module, _, name = target.partition(":")
    parts = name.split(".")
    if not module or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{what} {target!r} is not of the form module:function")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{what} {target}: cannot import {module} ({error})") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(f"{what} {target}: importing {module} raised {type(error).__name__}: {error}") from error
    try:
        for part in parts:
            found = getattr(found, part)
    except AttributeError:
        raise UsageError(f"{what} {target}: {module} has no {name}") from None
    if not callable(found):
        raise UsageError(f"{what} {target}: {name} is not a function")
    return found  # type: ignore[no-any-return]  # callable() narrows Any to nothing better
