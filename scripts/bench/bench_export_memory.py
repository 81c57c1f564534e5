"""Peak memory of `shardctl export`, over the number of samples: the main process, and the largest
worker.

    python scripts/bench/bench_export_memory.py [--samples 1000 100000] [--forms files coco yolo
    webdataset …] [--workers 2]

Every sample is an image of 8 x 8 pixels with two boxes. The peaks (VmHWM) are read from /proc while
it runs.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from processes import run

import shardctl

FORMS = ("files", "coco", "yolo", "webdataset", "tfrecord", "mds", "parquet")


def samples(count: int) -> Iterator[dict[str, Any]]:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(stream, "JPEG")
    objects = {"category": [0, 1], "bbox": [[0.0, 0.0, 4.0, 4.0], [1.0, 1.0, 5.0, 5.0]]}
    for number in range(count):
        yield {
            "key": f"photos of the year/{number:08d}.jpg",
            "image": stream.getvalue(),
            "objects": objects,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--forms", nargs="+", default=FORMS)
    parser.add_argument("--workers", default="2")
    given = parser.parse_args()
    print("form        samples    main  worker   (MiB)   seconds")
    for count in given.samples:
        with tempfile.TemporaryDirectory() as scratch:
            dataset = Path(scratch, "dataset")
            roles = {"objects": {"role": "objects", "names": ["cat", "dog"]}}
            shardctl.write(
                dataset, samples(count), roles=roles, samples_per_shard=max(100, count // 20)
            )
            for form in given.forms:
                out = Path(scratch, form)
                command = [
                    sys.executable,
                    "-m",
                    "shardctl",
                    "export",
                    dataset,
                    out,
                    "--to",
                    form,
                    "--workers",
                    given.workers,
                ]
                ran = run([*map(str, command), "--on-loss", "json", "-q"], pause=0.02)
                peaks = f"{ran.parent >> 20:7} {ran.worker >> 20:7}"
                print(
                    f"{form:10} {count:8} {peaks} {ran.seconds:17.1f}  {ran.failure or ''}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
