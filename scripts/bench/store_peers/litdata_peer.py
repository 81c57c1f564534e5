"""LitData: chunks from S3, to a local cache."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import Any


def whole(path: str) -> dict[str, bytes]:
    return {"image": Path(path).read_bytes()}


def make(images: Path, folder: Path) -> None:
    import litdata

    litdata.optimize(
        whole,
        [str(path) for path in sorted(images.iterdir())],
        str(folder),
        chunk_bytes="32MB",
        num_workers=2,
    )


def decoded(data: bytes) -> Any:
    import numpy as np
    from PIL import Image

    return np.ascontiguousarray(
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[16:240, 16:240]
    )


def read(address: str, bucket: str, cache: str) -> None:
    import litdata
    from litdata.streaming import downloader

    # its client takes https only, and the test server speaks http
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    class Images(litdata.StreamingDataset):  # type: ignore[misc, unused-ignore]  # this environment does not have it
        def __getitem__(self, index: Any) -> Any:
            return decoded(super().__getitem__(index)["image"])

    began = time.perf_counter()
    options = {"endpoint_url": address, "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"]}
    options["aws_secret_access_key"] = os.environ["AWS_SECRET_ACCESS_KEY"]
    dataset = Images(
        f"s3://{bucket}/litdata", cache_dir=cache, shuffle=True, storage_options=options
    )
    loader = litdata.StreamingDataLoader(dataset, batch_size=256, num_workers=2)
    print(sum(len(batch) for batch in loader), time.perf_counter() - began)


if __name__ == "__main__":
    make(Path(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1] == "make" else read(*sys.argv[2:5])
