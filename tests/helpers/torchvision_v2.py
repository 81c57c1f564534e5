"""torchvision's `transforms.v2`, and a test of two samples for what it draws."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest


@cache
def operators() -> Any:
    """PyPI's torchvision is built for CUDA: two of its operators are named for a torch without, as
    long as the library that is returned is there."""
    torch = pytest.importorskip("torch")

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@pytest.fixture(scope="module")
def v2() -> Any:
    """torchvision.transforms.v2."""
    if pytest.importorskip("torch").version.cuda is None:
        operators()
    return pytest.importorskip("torchvision.transforms.v2")


def two_sample(first: Any, second: Any) -> float:
    """Return the distance of two distribution functions over Kolmogorov's limit for alpha =
    1e-6."""
    n, m = first.sum(), second.sum()
    distance = np.abs(first.cumsum() / n - second.cumsum() / m).max()
    return float(distance / math.sqrt(-math.log(1e-6 / 2) / 2 * (n + m) / (n * m)))
