"""A user's own function, named as module:function."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardctl.errors import Rejection, UsageError
from shardctl.importing import find_function
from shardctl.sample import Sample
from shardctl.transforms.base import SampleTransform
from shardctl.transforms.settings import Text, setting
from shardctl.transforms.values import describe

MESSAGE_CHARACTERS = 500
"""How much of what a function's exception says is kept: every reject has a copy."""


@dataclass(frozen=True)
class Custom(SampleTransform):
    """Calls `function(sample)`, or `function(sample, rng)` where it asks for rng. Anything that can be called will do.

    It gets the sample as a dict, `image` as a writable (height, width, 3) uint8 array, and returns the changed dict, or a list
    of several; None leaves the sample out. `rng` is a numpy.random.Generator keyed by the seed, the sample's key and its
    variant.
    """

    name: ClassVar[str] = "custom"
    target: str = setting(Text(), doc="MODULE:FUNCTION.")

    def load(self) -> None:
        """Import the function, to be sure that it can be called. Raises UsageError if it cannot."""
        self._call  # noqa: B018 - imported once, and kept

    @property
    def draws(self) -> bool:
        """Whether the function asks for rng."""
        return self._call[1]

    def apply(self, sample: Sample, rng: np.random.Generator | None) -> Sequence[Sample]:
        """Call the function. Raises Rejection (stage `transform`) where it raises or returns no samples."""
        try:
            result = self._call[0](sample, rng)
        except (Rejection, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # sys.exit() must not end a conversion that runs in this process
            name = type(error).__name__
            raise Rejection("transform", name, f"{self.target} raised {name}: {_text(error)}") from error
        if type(result) is dict and result.keys() <= self._known_names:
            return (dict(result),)  # the function may keep the other one, and change it later
        if result is None:
            return ()
        made = result if isinstance(result, list | tuple) else (result,)
        for each in made:
            if not isinstance(each, dict):
                message = (
                    f"{self.target} returned {describe(each)}; it must return the sample (a dict), a list of them, or None"
                )
                raise Rejection("transform", "not-a-sample", message)
            if not each.keys() <= self._known_names:
                for name in each:
                    _check_name(self.target, name)
                self._known_names.update(each)
        return [dict(each) for each in made]

    def code_digest(self) -> str | None:
        """Return the SHA-256 of the files that decide what the function does, None if it has none.

        These are the file of its module, and the file that it was written in where that is another one.
        """
        module = sys.modules.get(self.target.partition(":")[0])
        paths = dict.fromkeys((_source_file(_innermost(self._function)), getattr(module, "__file__", None)))
        digests = [hashlib.sha256(_read(path)).hexdigest() for path in paths if path]
        if len(digests) < 2:
            return digests[0] if digests else None
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    @cached_property
    def _known_names(self) -> set[str]:
        """Names of fields that were checked already."""
        return set()

    @cached_property
    def _function(self) -> Callable[..., Any]:
        return find_function(self.target, "transform")

    @cached_property
    def _call(self) -> tuple[Callable[[Sample, np.random.Generator | None], Any], bool]:
        """The function, called with the sample, and with rng where it asks for it; and whether it does. Raises UsageError."""
        function = self._function
        if inspect.isclass(function) and not issubclass(function, dict):
            raise UsageError(f"transform {self.target}: is a class; name a function, or an object that can be called")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(f"transform {self.target}: is async or a generator; an ordinary function is needed")
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):  # some functions written in C do not say
            return (lambda sample, rng: function(sample)), False
        if _can_call(signature, None, rng=None) and "rng" in signature.parameters:
            return (lambda sample, rng: function(sample, rng=rng)), True
        if _can_call(signature, None):
            return (lambda sample, rng: function(sample)), False
        if _can_call(signature, None, None):
            return function, True
        raise UsageError(f"transform {self.target}: takes {signature}; it is called with (sample), or with (sample, rng)")


def _can_call(signature: inspect.Signature, *positional: Any, **named: Any) -> bool:
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


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
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"transform: {path} cannot be read, and its content is part of the fingerprint ({error})") from error
