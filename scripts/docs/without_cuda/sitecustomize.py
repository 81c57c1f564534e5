"""Python imports this file at its start: torchvision can then be imported beside a PyTorch without CUDA.

PyPI's torchvision is built for CUDA. Beside another PyTorch its compiled part does not load, and its import ends at two
operators that are not there. Their names are enough: models and transforms work.
"""

from __future__ import annotations

import sys
from typing import Any


class NamesOperators:
    """Names the operators when torchvision is imported, and does not find any module itself."""

    library: Any = None

    def find_spec(self, name: str, *_others: Any) -> None:
        """Look whether torchvision is the module."""
        if name == "torchvision" and self.library is None:
            import torch

            if torch.version.cuda is None:
                self.library = torch.library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, NamesOperators())  # type: ignore[arg-type]
