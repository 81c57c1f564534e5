"""Python imports this file at its start: torchvision can then be imported beside a PyTorch that it
was not built for.

PyPI's torchvision is built for CUDA and for one version of PyTorch. Beside another one its compiled
part does not load, and its import ends at two operators that are not there. Their names are enough:
models and transforms work.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


class NamesOperators:
    """Names the operators when torchvision is imported, and does not find any module itself."""

    library: Any = None

    def find_spec(self, name: str, *_others: Any) -> None:
        """Look whether torchvision is the module."""
        if name != "torchvision":
            return
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            return
        import torch

        for compiled in Path(found.origin).parent.glob("_C*.so"):
            try:
                torch.ops.load_library(compiled)
            except OSError:
                self.library = torch.library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    self.library.define(
                        f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    )
                return


names_operators = NamesOperators()  # keeps the library, with which the names would go
sys.meta_path.insert(0, names_operators)  # type: ignore[arg-type]
