"""Time and memory of the plan of a conversion of many files: a dry run.

    python scripts/bench/bench_listing.py [--files 10000000] [--json FILE]

The files are links to 256 small JPEG images, in 1,000 folders. Shown are files/s, start-up included,
and the peak of the main process.
"""

from __future__ import annotations

import os
from dataclasses import asdict

import numpy as np
from harness import SHARDCTL, options_of, save, scratch
from PIL import Image
from processes import run

LINKED = 256
"""Images that all names are links to: ext4 allows 65,000 names of one file."""

FOLDERS = 1000


def main() -> None:
    options = options_of(__doc__, files=10_000_000).parse_args()
    with scratch() as folder:
        images = [folder / f"{number:03d}.jpg" for number in range(LINKED)]
        for number, path in enumerate(images):
            pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR).save(path)
        classes = [folder / "in" / f"class_{number:05d}" for number in range(FOLDERS)]
        for path in classes:
            path.mkdir(parents=True)
        for number in range(options.files):
            name = classes[number % FOLDERS] / f"image_{number:08d}.jpg"
            os.link(images[number % LINKED], name)
        convert = (*SHARDCTL, "convert", folder / "in", folder / "out", "--workers", "2", "-q")
        ran = run([*convert, "--dry-run"], limit=4 * 3600)
    said = ran.failure or f"{options.files / ran.seconds:,.0f} files/s"
    print(f"{ran.seconds:.1f} s, {said}, parent {ran.parent / 1e6:.0f} MB")
    save(options.json, asdict(ran))


if __name__ == "__main__":
    main()
