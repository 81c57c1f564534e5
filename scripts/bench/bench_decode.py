"""Ways to get from a JPEG file's bytes to a 224 x 224 crop of its 256 px version, each on one core.

    .venv/bin/python scripts/bench/bench_decode.py [FOLDER] [--runs 5]

FOLDER holds JPEG photos (default: photos/ of $SHARDCTL_CORPUS, else of ../shared/data; without
either, drawn ones). The runs are interleaved; medians. "differs" is the mean absolute difference,
in steps of 255, from resizing the whole picture and cutting the centre out.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

from shardctl.images.codecs import backend, image
from shardctl.images.geometry import View
from shardctl.transforms.image.views import Crop, Resize

Decoder = Callable[[bytes], np.ndarray]
RESIZE, CROP = Resize.parse(size=256), Crop.parse(size=224)


def view_of(size: tuple[int, int]) -> View:
    return CROP.view(RESIZE.view(View.whole(size), None), None)


def whole(data: bytes) -> np.ndarray:
    """Decode all, resize all, cut: what a training script does."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    resized = picture.resize(
        RESIZE.view(View.whole(picture.size), None).size, Image.Resampling.BILINEAR
    )
    left, top = round((resized.size[0] - 224) / 2), round((resized.size[1] - 224) / 2)
    return np.asarray(resized.crop((left, top, left + 224, top + 224)))


def boxed(data: bytes) -> np.ndarray:
    """Decode all, resample the crop straight out of it."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(
        picture.resize((224, 224), Image.Resampling.BILINEAR, box=view_of(picture.size).box)
    )


def ours(data: bytes) -> np.ndarray:
    """What shardctl does: scaled decode with a margin of two, then as above."""
    opened = image.open_image(data)
    return image.render(opened, view_of(opened.size))


def simple(fast: bool) -> Decoder:
    def decode(data: bytes) -> np.ndarray:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        scale = 256 / min(width, height) * image.DRAFT_MARGIN
        least = {"min_height": int(height * scale), "min_width": int(width * scale)}
        pixels = simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, fastupsample=fast, **least)
        picture = Image.fromarray(pixels)
        return np.asarray(
            picture.resize((224, 224), Image.Resampling.BILINEAR, box=view_of(picture.size).box)
        )

    return decode


CONTENDERS: dict[str, Decoder] = {
    "PIL, whole picture resized, then cut": whole,
    "PIL, box resize": boxed,
    "PIL, scaled decode + box resize (shardctl)": ours,
    "simplejpeg, scaled decode + PIL box resize": simple(fast=False),
    "the same, fast DCT and upsampling": simple(fast=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get(
        "SHARDCTL_CORPUS", Path(__file__).resolve().parents[3] / "shared" / "data"
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(shared) / "photos")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder
        if not folder.is_dir():
            folder = Path(scratch) / "demo"
            subprocess.run(
                [sys.executable, "-m", "shardctl", "demo", folder, "-q"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        photos = [
            path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix.lower() in (".jpg", ".jpeg")
        ]
    print(
        f"{backend.require_one()} ({backend.libraries()[0]}), simplejpeg {simplejpeg.__version__}; "
        f"{len(photos)} photos, "
        f"{sum(map(len, photos)) / len(photos) / 1e3:.0f} kB on average; one core, medians of "
        f"{options.runs}"
    )
    reference = [whole(data).astype(int) for data in photos]
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(options.runs):
        for name, decode in CONTENDERS.items():
            started = time.perf_counter()
            for data in photos:
                decode(data)
            seconds[name].append(time.perf_counter() - started)
    for name, decode in CONTENDERS.items():
        differs = np.mean(
            [
                np.abs(decode(data) - want).mean()
                for data, want in zip(photos, reference, strict=True)
            ]
        )
        print(
            f"  {name:44} {len(photos) / statistics.median(seconds[name]):6.0f}/s   differs "
            f"{differs:.2f}"
        )


if __name__ == "__main__":
    main()
