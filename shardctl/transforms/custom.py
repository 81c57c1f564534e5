"""A user's own function, named as module:function."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardctl.errors import Rejection, UsageError
from shardctl.format.roles import Sample
from shardctl.system.packages import find_function
from shardctl.transforms.base import GroupTransform, SampleTransform, Transform
from shardctl.transforms.own_code import code_digest, rejection_of, samples_of
from shardctl.transforms.settings import Table, Text, Whole, setting
from shardctl.transforms.values import describe


@dataclass(frozen=True)
class Custom(SampleTransform):
    """Calls `function(sample)`, or `function(sample, rng)` where it asks for rng. Anything that can
    be called will do.

    It gets the sample as a dict, `image` as a writable (height, width, 3) uint8 array, and returns
    the changed dict, or a list of several; None leaves the sample out. `rng` is a
    numpy.random.Generator keyed by the seed, the sample's key and its variant.
    """

    name: ClassVar[str] = "custom"
    target: str = setting(Text(), doc="MODULE:FUNCTION.")

    def loaded(self, folder: Path | None = None) -> Transform:
        """Import the function, to be sure that it can be called. A class becomes a model. Raises
        UsageError."""
        if is_model(self._function):
            return Model(self.target).loaded()
        self._call  # noqa: B018 - imported once, and kept
        return self

    @property
    def draws(self) -> bool:
        """Whether the function asks for rng."""
        return self._call[1]

    def apply(self, sample: Sample, rng: np.random.Generator | None) -> Sequence[Sample]:
        """Call the function. Raises Rejection (stage `transform`) where it raises or returns no
        samples."""
        try:
            result = self._call[0](sample, rng)
        except (Rejection, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            # sys.exit() must not end a conversion that runs in this process
            raise rejection_of(self.target, error) from error
        return samples_of(result, self.target, self._known_names)

    def code_digest(self) -> str | None:
        """Return the SHA-256 of what decides what the function does, None if nothing is known that
        does."""
        return code_digest(self.target, self._function)

    @cached_property
    def _known_names(self) -> set[str]:
        """Names of fields that were checked already."""
        return set()

    @cached_property
    def _function(self) -> Callable[..., Any]:
        return find_function(self.target, "transform")

    @cached_property
    def _call(self) -> tuple[Callable[[Sample, np.random.Generator | None], Any], bool]:
        """The function, called with the sample, and with rng where it asks for it; and whether it
        does. Raises UsageError."""
        function = self._function
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(
                f"transform {self.target}: is async or a generator; an ordinary function is needed"
            )
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
        raise UsageError(
            f"transform {self.target}: takes {signature}; it is called with (sample), or with "
            "(sample, rng)"
        )


def _can_call(signature: inspect.Signature, *positional: Any, **named: Any) -> bool:
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


# --- a person's own class, which is set up once and called on many samples ---

MODELS_KEPT = 4
"""Objects of users' classes that a process keeps: with `workers=0` one process may do many
conversions."""


@dataclass(frozen=True)
class Model(GroupTransform):
    """Makes an object of a class once in each worker, `Class(**arguments)`, and calls it with lists
    of `batch` samples.

    The samples are dicts as a function gets them. The object returns a list of the same length: for
    each sample the changed dict, a list of several, or None, which leaves it out.
    """

    name: ClassVar[str] = "model"
    target: str = setting(Text(), doc="MODULE:CLASS.")
    batch: int = setting(Whole(1, 65536), 32, "Most samples in a call.")
    arguments: str = setting(Table(), "{}", "A table with the keywords for the class.")

    def loaded(self, folder: Path | None = None) -> Transform:
        """Import the class, to be sure that it can be used. No object is made. Raises
        UsageError."""
        self._class  # noqa: B018 - imported once, and kept
        return self

    def code_digest(self) -> str | None:
        """Return the digest of what decides what the class does, and of its `version`."""
        digest, version = (
            code_digest(self.target, self._class),
            getattr(self._class, "version", None),
        )
        if version is None:
            return digest
        return hashlib.sha256(f"{digest} {version}".encode()).hexdigest()

    def begin(self) -> None:
        """Make the object, or find the one that this process has made already. Raises UsageError if
        that fails."""
        self._model()

    def apply_together(self, samples: list[Sample]) -> list[Sequence[Sample] | Rejection]:
        """Call the object. Raises Rejection (stage `transform`) where it raises, or returns no list
        with an item for each."""
        count = len(samples)
        try:
            results = self._model()(samples)
        except (Rejection, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            # sys.exit() must not end a conversion that runs in this process
            raise rejection_of(self.target, error) from error
        if not isinstance(results, list | tuple) or len(results) != count:
            message = (
                f"{self.target} returned {describe(results)} for a list of {count}; it must return "
                "a list of the same length."
                " For each sample, it has a dict, a list of dicts, or None"
            )
            raise Rejection("transform", "not-a-list", message)
        return [self._made(result) for result in results]

    def _made(self, result: Any) -> Sequence[Sample] | Rejection:
        try:
            return samples_of(result, self.target, self._known_names)
        except Rejection as rejection:
            return rejection

    @cached_property
    def _known_names(self) -> set[str]:
        """Names of fields that were checked already."""
        return set()

    @cached_property
    def _class(self) -> type[Any]:
        """The class. Raises UsageError."""
        found = find_function(self.target, "transform")
        if not inspect.isclass(found):
            raise UsageError(
                f"transform {self.target}: is not a class; a step model needs one, and custom "
                "takes functions"
            )
        call = next(
            (vars(base)["__call__"] for base in found.__mro__ if "__call__" in vars(base)), None
        )
        if call is None:
            raise UsageError(
                f"transform {self.target}: is a class without __call__, which is called with a "
                "list of samples"
            )
        if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call):
            raise UsageError(
                f"transform {self.target}: its __call__ is async or a generator; an ordinary "
                "method is needed"
            )
        try:
            inspect.signature(call).bind(None, [])
        except TypeError:
            raise UsageError(
                f"transform {self.target}: its __call__ takes {inspect.signature(call)}; it is "
                "called with a list of samples"
            ) from None
        except ValueError:  # some methods written in C do not say
            pass
        version = getattr(found, "version", None)
        if version is not None and not isinstance(version, str):
            raise UsageError(
                f"transform {self.target}: its version must be a string; it is {describe(version)}"
            )
        return found

    def _model(self) -> Callable[[list[Sample]], Any]:
        # Made for a class, and not for its name: a module may have been imported again.
        return _made_once(self._class, self.target, self.arguments)  # type: ignore[arg-type]  # classes are hashable


def is_model(found: Any) -> bool:
    """Return whether this is a class to make objects of, rather than to call with a sample: `dict`
    is a function too."""
    return inspect.isclass(found) and not issubclass(found, dict)


@lru_cache(maxsize=MODELS_KEPT)
def _made_once(class_: type[Any], target: str, arguments: str) -> Callable[[list[Sample]], Any]:
    try:
        return class_(**json.loads(arguments))  # type: ignore[no-any-return]  # whatever a person's class makes
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        shown = f" with arguments {arguments}" if arguments != "{}" else ""
        raise UsageError(
            f"transform {target}: making it{shown} failed: {rejection_of(target, error).message}"
        ) from error
