"""A user's own function, named as module:function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardctl.errors import Rejection, UsageError
from shardctl.format.sample import Sample
from shardctl.system.dataclass import dataclass
from shardctl.system.importing import find_function
from shardctl.transforms.base import SampleTransform, Transform
from shardctl.transforms.model import Model, is_model
from shardctl.transforms.own_code import code_digest, rejection_of, samples_of
from shardctl.transforms.settings import Text, setting


@dataclass(frozen=True)
class Custom(SampleTransform):
    """Calls `function(sample)`, or `function(sample, rng)` where it asks for rng. Anything that can be called will do.

    It gets the sample as a dict, `image` as a writable (height, width, 3) uint8 array, and returns the changed dict, or a list
    of several; None leaves the sample out. `rng` is a numpy.random.Generator keyed by the seed, the sample's key and its
    variant.
    """

    name: ClassVar[str] = "custom"
    target: str = setting(Text(), doc="MODULE:FUNCTION.")

    def loaded(self, folder: Path | None = None) -> Transform:
        """Import the function, to be sure that it can be called. A class becomes a model. Raises UsageError."""
        if is_model(self._function):
            return Model(self.target).loaded()
        self._call  # noqa: B018 - imported once, and kept
        return self

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
            raise rejection_of(self.target, error) from error
        return samples_of(result, self.target, self._known_names)

    def code_digest(self) -> str | None:
        """Return the SHA-256 of what decides what the function does, None if nothing is known that does."""
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
        """The function, called with the sample, and with rng where it asks for it; and whether it does. Raises UsageError."""
        function = self._function
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
