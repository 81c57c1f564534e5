"""What a person's own function or class returns, raises, and is made of."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardctl.errors import Rejection, UsageError
from shardctl.format.sample import Sample
from shardctl.system.files import read_named
from shardctl.transforms.declared import declared
from shardctl.transforms.values import describe

MESSAGE_CHARACTERS = 500
"""How much of what a function's exception says is kept: every reject has a copy."""


def rejection_of(target: str, error: BaseException) -> Rejection:
    """Return the rejection for an exception that the code `target` raised."""
    name = type(error).__name__
    return Rejection("transform", name, f"{target} raised {name}: {_text(error)}")


def samples_of(result: Any, target: str, known_names: set[str]) -> Sequence[Sample]:
    """Return the samples that `target` returned for one sample: a dict, a list of them, or None for no sample.

    `known_names` are names of fields that were checked already; those that are checked now are added. Raises Rejection.
    """
    if type(result) is dict and result.keys() <= known_names:
        return (dict(result),)  # the function may keep the other one, and change it later
    if result is None:
        return ()
    made = result if isinstance(result, list | tuple) else (result,)
    for each in made:
        if not isinstance(each, dict):
            message = f"{target} returned {describe(each)}; it must return the sample (a dict), a list of them, or None"
            raise Rejection("transform", "not-a-sample", message)
        if not each.keys() <= known_names:
            for name in each:
                _check_name(target, name)
            known_names.update(each)
    return [dict(each) for each in made]


def code_digest(target: str, code: Any) -> str | None:
    """Return the SHA-256 of what decides what the code `target` does, None if nothing is known that does.

    That is what was declared of it (declared.py), else the file of its module, and the file that it was written in where that
    is another one.
    """
    said = declared(code) or declared(_innermost(code))
    if said is not None:
        return said.digest(target)
    module = sys.modules.get(target.partition(":")[0])
    paths = dict.fromkeys((_source_file(_innermost(code)), getattr(module, "__file__", None)))
    digests = [hashlib.sha256(_read(path)).hexdigest() for path in paths if path]
    if len(digests) < 2:
        return digests[0] if digests else None
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARACTERS]
    except Exception:  # noqa: BLE001 - a user's exception class may do anything
        return "it cannot be shown"


def _check_name(target: str, name: Any) -> None:
    """Raise Rejection if this cannot be the name of a column."""
    if not isinstance(name, str):
        message = f"{target} set a field that is called {describe(name)}; the name of a field must be a string"
        raise Rejection("transform", "not-a-name", message)
    try:
        name.encode()
    except UnicodeEncodeError:
        message = f"{target} set a field that is called {describe(name)}; that cannot be written as UTF-8"
        raise Rejection("transform", "not-a-name", message) from None


def _innermost(function: Any) -> Any:
    """Return what holds the code: of a partial its function, of a bound method the function, of an object its class."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if inspect.ismethod(function):
        return function.__func__
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def _source_file(code: Any) -> str | None:
    try:
        return inspect.getsourcefile(code)
    except TypeError:  # it is part of Python, or of a compiled module
        return None


def _read(path: str) -> bytes:
    try:
        return read_named(Path(path))
    except OSError as error:
        raise UsageError(f"transform: {path} cannot be read, and its content is part of the fingerprint ({error})") from error
