"""torchvision's `transforms.v2`, and a test of two samples for what it draws."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def v2(torchvision: Any) -> Any:
    return importlib.import_module("torchvision.transforms.v2")


def two_sample(first: Any, second: Any) -> float:
    """Return the distance of two distribution functions over Kolmogorov's limit for alpha =
    1e-6."""
    n, m = first.sum(), second.sum()
    distance = np.abs(first.cumsum() / n - second.cumsum() / m).max()
    return float(distance / math.sqrt(-math.log(1e-6 / 2) / 2 * (n + m) / (n * m)))
