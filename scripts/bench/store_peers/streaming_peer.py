"""MosaicML Streaming: MDS shards from S3, to a local cache."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import torch

library = torch.library.Library("torchvision", "DEF")
# Streaming imports torchvision, which lacks them beside a torch without CUDA
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def make(images: Path, folder: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "bytes"}, size_limit=32 << 20) as writer:
        for path in sorted(images.iterdir()):
            writer.write({"image": path.read_bytes()})


def decoded(data: bytes) -> object:
    import numpy as np
    from PIL import Image

    return np.ascontiguousarray(
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[16:240, 16:240]
    )


def read(bucket: str, cache: str) -> None:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    class Images(StreamingDataset):  # type: ignore[misc, unused-ignore]  # this environment does not have it
        def __getitem__(self, index: int) -> object:
            return decoded(super().__getitem__(index)["image"])

    clean_stale_shared_memory()
    began = time.perf_counter()
    dataset = Images(remote=f"s3://{bucket}/streaming", local=cache, shuffle=True, batch_size=256)
    # With two workers, each try with 3,000 images or more ended with an error: bytes that are not
    # those of an image.
    loader = DataLoader(dataset, batch_size=256, num_workers=1)
    print(sum(len(batch) for batch in loader), time.perf_counter() - began)


if __name__ == "__main__":
    make(Path(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1] == "make" else read(*sys.argv[3:5])
