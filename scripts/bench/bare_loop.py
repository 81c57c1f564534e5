"""The limit for `shardctl convert`: two processes, or more, that read, decode and resize, and throw
the pixels away.

    .venv/bin/python scripts/bench/bare_loop.py FOLDER 224|32 [PROCESSES]

The same library and the fastest correct way through it that a comparison found: a
scaled JPEG decode, then the crop resampled straight out of it.
"""

from __future__ import annotations

import io
import os
import sys
from multiprocessing import Pool

from PIL import Image


def photo(path: str) -> int:
    with open(path, "rb") as file:
        data = file.read()
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    scale = 256 / min(width, height)
    image.draft("RGB", (int(width * scale * 2), int(height * scale * 2)))
    rgb = image.convert("RGB")
    width, height = rgb.size
    side = min(width, height) / 256 * 224
    box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    return len(rgb.resize((224, 224), Image.Resampling.BILINEAR, box=box).tobytes())


def tiny(path: str) -> int:
    with open(path, "rb") as file:
        data = file.read()
    return len(
        Image.open(io.BytesIO(data))
        .convert("RGB")
        .resize((32, 32), Image.Resampling.BILINEAR)
        .tobytes()
    )


def main() -> None:
    folder, size, *processes = sys.argv[1:]
    paths = []
    for parent, _, names in os.walk(folder, followlinks=True):
        paths += [
            os.path.join(parent, name)
            for name in names
            if name.lower().endswith((".jpg", ".jpeg", ".png"))
        ]
    with Pool(int(processes[0]) if processes else 2) as pool:
        done = sum(
            1
            for _ in pool.imap_unordered(
                photo if size == "224" else tiny, sorted(paths), chunksize=32
            )
        )
    assert done == len(paths), "every image was decoded"


if __name__ == "__main__":
    main()
