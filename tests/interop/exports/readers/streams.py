"""Reads exports with MosaicML Streaming and LitData."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from plain import plain, show

library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):  # torchvision from PyPI lacks them beside a torch without CUDA
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from litdata import StreamingDataset as LitDataset  # noqa: E402
from litdata.streaming.item_loader import ParquetLoader  # noqa: E402
from streaming import StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

root = Path(sys.argv[1])
found: dict[str, Any] = {}
clean_stale_shared_memory()
for name in ("photos", "raw", "texts", "gaps"):
    for split in ("train", "val", "test"):
        if (root / f"mds-{name}" / split).exists():
            read = StreamingDataset(
                local=str(root / f"mds-{name}"), split=split, batch_size=1, validate_hash="xxh3_64"
            )
            found[f"mds {name} {split}"] = [plain(read[place]) for place in range(len(read))]
for name in ("photos", "texts") if importlib.util.find_spec("polars") else ():
    with tempfile.TemporaryDirectory() as cache:
        folder = root / f"parquet-{name}"
        read = LitDataset(
            str(folder / "data"),
            item_loader=ParquetLoader(),
            index_path=str(folder / "litdata" / "train"),
            cache_dir=cache,
        )
        found[f"litdata {name}"] = [plain(read[place]) for place in range(len(read))]
show(found)
