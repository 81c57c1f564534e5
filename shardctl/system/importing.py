"""Functions of the user, imported by their names: module:function."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from shardctl.errors import UsageError
from shardctl.system.text import did_you_mean, printable


def look_in_current_folder() -> None:
    """Let functions be imported from the current folder too, last of all: a folder of data may hold
    a file of any name."""
    if "" not in sys.path:
        sys.path.append("")


class _Importing(threading.local):
    """The modules that this thread is importing to find functions."""

    def __init__(self) -> None:
        self.modules: list[str] = []


_IMPORTING = _Importing()


@contextlib.contextmanager
def _importing(module: str) -> Iterator[None]:
    _IMPORTING.modules.append(module)
    try:
        yield
    finally:
        _IMPORTING.modules.pop()


def refuse_while_importing(what: str) -> None:
    """Raise UsageError in a module that is being imported to find a function: it would do its own
    work once more, and wait for itself."""
    if _IMPORTING.modules:
        raise UsageError(
            f"{printable(_IMPORTING.modules[-1])} calls shardctl.{what} when it is imported, but "
            "shardctl imports it to find a"
            ' function. Put the call under `if __name__ == "__main__":`, or the function into a '
            "file of its own"
        )


def find_function(target: str, what: str) -> Callable[..., Any]:
    """Import something that can be called; `what` says in messages what it is for. Raises
    UsageError if there is none.

    `module:object.method` works too. What the module prints when it is imported goes to stderr.
    """
    module, _, name = target.partition(":")
    if module == "__main__":
        raise UsageError(
            f"{what} {target}: worker processes cannot import what a script itself holds; put it "
            "into a file of its own"
        )
    parts = name.split(".")
    if not module or module.endswith(".py") or not all(part.isidentifier() for part in parts):
        python = (
            f"; write {module.removesuffix('.py')}:{name or 'FUNCTION'}, without .py"
            if module.endswith(".py")
            else ""
        )
        raise UsageError(f"{what} {target!r} is not of the form module:function{python}")
    try:
        with contextlib.redirect_stdout(sys.stderr), _importing(module):
            found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{what} {target}: cannot import {module} ({error})") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(
            f"{what} {target}: importing {module} raised {type(error).__name__}: {error}"
        ) from error
    try:
        for part in parts:
            found = getattr(found, part)
    except AttributeError:
        raise UsageError(
            f"{what} {target}: {module} has no {name}{did_you_mean(parts[-1], dir(found))}"
        ) from None
    if not callable(found):
        raise UsageError(f"{what} {target}: {name} is not a function")
    return found  # type: ignore[no-any-return]  # callable() narrows Any to nothing better
