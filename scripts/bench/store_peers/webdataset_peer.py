"""WebDataset: tars over HTTP."""

from __future__ import annotations

import io
import sys
import tarfile
import time
from pathlib import Path

SHARDS = 16


def make(images: Path, folder: Path) -> None:
    folder.mkdir()
    paths = sorted(images.iterdir())
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
            for path in paths[shard::SHARDS]:
                tar.add(path, path.name)


def decoded(data: bytes) -> object:
    import numpy as np
    from PIL import Image

    return np.ascontiguousarray(
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[16:240, 16:240]
    )


def read(address: str, bucket: str) -> None:
    import webdataset
    from torch.utils.data import DataLoader

    began = time.perf_counter()
    urls = f"pipe:curl -s -f {address}/{bucket}/webdataset/{{00000..{SHARDS - 1:05d}}}.tar"
    dataset = webdataset.WebDataset(
        urls, shardshuffle=SHARDS, nodesplitter=webdataset.split_by_node
    )
    dataset = (
        dataset.shuffle(1000)
        .map(lambda sample: decoded(sample["jpg"]))
        .batched(256, collation_fn=list)
    )
    count = sum(len(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=2))
    print(count, time.perf_counter() - began)


if __name__ == "__main__":
    make(Path(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1] == "make" else read(*sys.argv[2:4])
