"""A user's own function, named as module:function."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardctl.errors import Rejection
from shardctl.naming import find_function
from shardctl.sample import Sample
from shardctl.transforms.base import SampleTransform


@dataclass(frozen=True)
class Custom(SampleTransform):
    """Calls `function(sample)`, or `function(sample, rng)` where it takes two arguments.

    It gets the sample as a dict, `image` as (height, width, 3) uint8, and returns the changed dict; None leaves the
    sample out. `rng` is a generator keyed by the seed, the sample's key and its variant.
    """

    name: ClassVar[str] = "custom"
    target: str

    @classmethod
    def parse(cls, target: Any) -> Custom:
        """Build from what a recipe or an option says, importing the function to be sure that it is there."""
        transform = cls(str(target))
        transform._function  # noqa: B018 - imported here, so that a wrong name is found before anything is written
        return transform

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""
        return {"target": self.target}

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample | None:
        """Call the function. Raises Rejection (stage `transform`) where it raises or returns no sample."""
        try:
            result = self._function(sample, rng) if self._takes_rng else self._function(sample)
        except (Rejection, MemoryError):
            raise
        except Exception as error:
            message = f"{self.target} raised {type(error).__name__}: {error}"
            raise Rejection("transform", type(error).__name__, message) from error
        if result is not None and not isinstance(result, dict):
            message = f"{self.target} returned {type(result).__name__}; it must return the sample (a dict) or None"
            raise Rejection("transform", "not-a-sample", message)
        return result

    def code_digest(self) -> str | None:
        """Return the SHA-256 of the file that holds the function."""
        source = inspect.getsourcefile(self._function)
        return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else None

    @cached_property
    def _function(self) -> Callable[..., Any]:
        return find_function(self.target, "transform")

    @cached_property
    def _takes_rng(self) -> bool:
        return len(inspect.signature(self._function).parameters) >= 2
