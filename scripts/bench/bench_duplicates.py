"""How fast duplicates are found among many hashes, and what is found among real photos and changed
copies of them.

    python scripts/bench/bench_duplicates.py --hashes 1000000 --distance 7
    python scripts/bench/bench_duplicates.py --photos shared/data/photos

The first prints the seconds and the peak memory for random hashes, into which neighbours are
planted that must be found. The second hashes each photo and versions of it, and prints the share of
versions whose hash is near that of their photo, and how many pairs of different photos are near
each other.
"""

from __future__ import annotations

import io
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import images, options_of
from PIL import Image, ImageEnhance

from shardctl.images.codecs.image import open_image, upright
from shardctl.images.codecs.measures import phash
from shardctl.transforms.duplicates.pictures import Hashes, distances, first_of_similar

PLANTED = 0.01
"""Share of the hashes that are neighbours of others."""

Change = Callable[[Image.Image], Image.Image]


def _jpeg(picture: Image.Image, quality: int) -> Image.Image:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


def _scaled(picture: Image.Image, wide: float, high: float) -> Image.Image:
    return picture.resize(
        (max(1, round(picture.width * wide)), max(1, round(picture.height * high)))
    )


def _cropped(picture: Image.Image, share: float) -> Image.Image:
    left, top = round(picture.width * share / 2), round(picture.height * share / 2)
    return picture.crop((left, top, picture.width - left, picture.height - top))


CHANGES: dict[str, Change] = {
    "resized to 1/2": lambda picture: _scaled(picture, 0.5, 0.5),
    "resized to 1/4": lambda picture: _scaled(picture, 0.25, 0.25),
    "JPEG, quality 50": lambda picture: _jpeg(picture, 50),
    "JPEG, quality 20": lambda picture: _jpeg(picture, 20),
    "squashed to 2/3 of its width": lambda picture: _scaled(picture, 2 / 3, 1),
    "grey": lambda picture: picture.convert("L").convert("RGB"),
    "brightness 1.3": lambda picture: ImageEnhance.Brightness(picture).enhance(1.3),
    "2 % cropped": lambda picture: _cropped(picture, 0.02),
    "5 % cropped": lambda picture: _cropped(picture, 0.05),
    "10 % cropped": lambda picture: _cropped(picture, 0.10),
    "mirrored": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def time_hashes(count: int, distance: int) -> None:
    """Find planted neighbours among random hashes, and print what that takes."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, count, np.uint64)
    planted = rng.permutation(count)[: 2 * int(count * PLANTED)].reshape(2, -1)
    planted.sort(axis=0)
    originals, copies = planted
    hashes[copies] = hashes[originals]
    for bit in rng.permuted(np.tile(np.arange(64, dtype=np.uint64), (len(copies), 1)), axis=1)[
        :, :distance
    ].T:
        hashes[copies] ^= np.uint64(1) << bit
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started, busy = time.monotonic(), time.process_time()
    first = first_of_similar(hashes, distance)
    seconds, busy = time.monotonic() - started, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = int((first[copies] != copies).sum())
    others = int((first != np.arange(count)).sum()) - found
    print(f"{count:,} hashes, distance {distance}: {seconds:.1f} s ({busy:.1f} s of one core)")
    print(f"peak RSS {peak:.0f} MB ({before:.0f} before)")
    print(f"{found:,} of {len(copies):,} planted neighbours found; {others:,} others rejected")


def show_photos(folder: Path, most: int) -> None:
    """Print what is found of changed photos, and how many different ones are near each other."""
    pictures = [
        upright(open_image(Path(path).read_bytes()), None) for path in images(folder)[:most]
    ]
    hashes = _hashes(pictures)
    print("| version | d <= 3 | d <= 7 | d <= 10 |\n| --- | --: | --: | --: |")
    for change, make in CHANGES.items():
        apart = distances(hashes, _hashes([make(picture) for picture in pictures]))
        shares = " | ".join(f"{(apart <= most).mean():.1%}" for most in (3, 7, 10))
        print(f"| {change} | {shares} |")
    one, other = np.triu_indices(len(hashes), 1)
    apart = distances(hashes[one], hashes[other])
    near = ", ".join(f"{int((apart <= most).sum())} at {most}" for most in (3, 7, 10, 12, 14, 16))
    print(f"near pairs of different photos, of {len(one):,}: {near}")


def _hashes(pictures: list[Image.Image]) -> Hashes:
    return np.array([phash(picture) or 0 for picture in pictures], np.uint64)


def main() -> None:
    """Read the options."""
    parser = options_of(__doc__)
    parser.add_argument("--hashes", type=int)
    parser.add_argument("--distance", type=int, default=7)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--most", type=int, default=1000)
    given = parser.parse_args()
    if given.hashes:
        time_hashes(given.hashes, given.distance)
    if given.photos:
        show_photos(given.photos, given.most)


if __name__ == "__main__":
    main()
