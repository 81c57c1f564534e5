"""What a person's own function or class returns, raises, and is made of."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from shardctl.errors import Rejection, UsageError
from shardctl.format.roles import Sample
from shardctl.system.files import read_bytes, read_named
from shardctl.transforms.values import describe

MESSAGE_CHARACTERS = 500
"""How much of what a function's exception says is kept: every reject has a copy."""


def rejection_of(target: str, error: BaseException) -> Rejection:
    """Return the rejection for an exception that the code `target` raised."""
    name = type(error).__name__
    return Rejection("transform", name, f"{target} raised {name}: {_text(error)}")


def samples_of(result: Any, target: str, known_names: set[str]) -> Sequence[Sample]:
    """Return the samples that `target` returned for one sample: a dict, a list of them, or None for
    no sample.

    `known_names` are names of fields that were checked already; those that are checked now are
    added. Raises Rejection.
    """
    if type(result) is dict and result.keys() <= known_names:
        return (dict(result),)  # the function may keep the other one, and change it later
    if result is None:
        return ()
    made = result if isinstance(result, list | tuple) else (result,)
    for each in made:
        if not isinstance(each, dict):
            message = (
                f"{target} returned {describe(each)}; it must return the sample (a dict), a "
                "list of them, or None"
            )
            raise Rejection("transform", "not-a-sample", message)
        if not each.keys() <= known_names:
            for name in each:
                _check_name(target, name)
            known_names.update(each)
    return [dict(each) for each in made]


def code_digest(target: str, code: Any) -> str | None:
    """Return the SHA-256 of what decides what the code `target` does, None if nothing is known that
    does.

    That is what was declared of it, else the file of its module, and the file that it was written
    in where that is another one.
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
        message = (
            f"{target} set a field that is called {describe(name)}; the name of a field "
            "must "
            "be a string"
        )
        raise Rejection("transform", "not-a-name", message)
    try:
        name.encode()
    except UnicodeEncodeError:
        message = (
            f"{target} set a field that is called {describe(name)}; that cannot be written as UTF-8"
        )
        raise Rejection("transform", "not-a-name", message) from None


def _innermost(function: Any) -> Any:
    """Return what holds the code: of a partial its function, of a bound method the function, of an
    object its class."""
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
        raise UsageError(
            f"transform: {path} cannot be read, and its content is part of the fingerprint "
            f"({error})"
        ) from error


# --- what a person declares of an own function or class: its version, and the modules that it
# depends on ---

Code = TypeVar("Code", bound=Callable[..., Any])

ATTRIBUTE = "__shardctl_declared__"


@dataclass(frozen=True)
class Declared:
    """What stands for the code of a function in the fingerprint of a dataset: its version, and the
    content of modules."""

    version: str
    modules: tuple[str, ...]

    def digest(self, target: str) -> str:
        """Return the SHA-256, in hex. Raises UsageError if a module cannot be imported, or has no
        file."""
        files = {module: _module_digest(target, module) for module in self.modules}
        return hashlib.sha256(
            json.dumps([self.version, files], sort_keys=True).encode()
        ).hexdigest()


def transform(*, version: str, modules: Iterable[str | ModuleType] = ()) -> Callable[[Code], Code]:
    """Declare the version of a function or class that is a step of recipes.

        @shardctl.transform(version="2", modules=["my.helpers"])
        def sharpen(sample): ...

    Without it, each change in the file of the function makes another dataset, even a change of a
    comment. With it, only the version counts, and the content of the `modules`. List the modules
    with code that the function calls, as names or as imported modules. For a package, all of its
    Python files count. Give a new version if the function returns other values. Raises UsageError.
    """
    if not isinstance(version, str) or not version:
        raise UsageError(f'the version of a transform is a string, such as "2"; it is {version!r}')
    if isinstance(modules, str):
        raise UsageError(f"modules takes a list of modules; write modules=[{modules!r}]")
    if not isinstance(modules, Iterable):
        raise UsageError(f"modules takes a list of modules; it is {modules!r}")
    names = tuple(each.__name__ if isinstance(each, ModuleType) else each for each in modules)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"modules takes a list of modules; it is {modules!r}")

    def declare(code: Code) -> Code:
        if not callable(code):
            raise UsageError(f"a transform is a function or a class; it is {code!r}")
        setattr(code, ATTRIBUTE, Declared(version, names))
        return code

    return declare


def declared(code: Any) -> Declared | None:
    """Return what was declared of a function or of this very class, None if nothing was."""
    found = getattr(code, "__dict__", {}).get(ATTRIBUTE)
    return found if isinstance(found, Declared) else None


def _module_digest(target: str, name: str) -> str:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a person's module may raise anything
        raise UsageError(
            f"transform {target}: cannot import {name}, which it depends on ({error})"
        ) from error
    files = [
        file
        for folder in getattr(module, "__path__", ())
        for file in sorted(Path(folder).rglob("*.py"))
    ]
    if not files and getattr(module, "__file__", None):
        files = [Path(str(module.__file__))]
    if not files:
        raise UsageError(f"transform {target}: {name}, which it depends on, has no file")
    try:
        return hashlib.sha256(
            b"".join(hashlib.sha256(read_bytes(file)).digest() for file in files)
        ).hexdigest()
    except OSError as error:
        raise UsageError(
            f"transform {target}: a file of {name}, which it depends on, cannot be read ({error})"
        ) from error
