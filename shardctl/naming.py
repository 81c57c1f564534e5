"""Functions that a person names as module:function."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from shardctl.errors import UsageError


def find_function(target: str, what: str) -> Callable[..., Any]:
    """Import a function; `what` says in messages what it is for. Raises UsageError where there is none."""
    module, _, name = target.partition(":")
    if not module or not name.isidentifier():
        raise UsageError(f"{what} {target!r} is not of the form module:function")
    try:
        function = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UsageError(f"{what} {target}: cannot import {module} ({error})") from error
    except AttributeError:
        raise UsageError(f"{what} {target}: {module} has no {name}") from None
    if not callable(function):
        raise UsageError(f"{what} {target}: {name} is not a function")
    return function  # type: ignore[no-any-return]  # callable() narrows Any to nothing better
