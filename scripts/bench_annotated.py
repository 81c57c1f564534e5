"""What annotations cost: `shardctl convert` of the same images with and without a COCO file, and a large COCO file by itself.

    .venv/bin/python scripts/bench_annotated.py [CORPUS] [--images 5000] [--objects 7] [--points 25] [--runs 5]

CORPUS is a folder with photos/ (default: $SHARDCTL_CORPUS, else ../shared/data). The images are links to these photos; the COCO
file has polygons for each object, drawn at random. Every round runs each contender once, in turn, as a process of its own, and
the ratio is that of the medians. Peak memory is that of the largest process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from processes import Ran, run

HERE = Path(__file__).resolve().parent
RECIPES = {"source": [], "crop 224": ["--random-crop", "224", "--flip", "0.5"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", default=os.environ.get("SHARDCTL_CORPUS", HERE.parent.parent / "shared" / "data"))
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--objects", type=int, default=7)
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent) as name:
        folder = Path(name)
        coco = make(Path(options.corpus) / "photos", folder, options.images, options.objects, options.points)
        print(f"{options.images:,} images, {options.objects} objects each, COCO file of {coco.stat().st_size / 1e6:.0f} MB")
        for recipe, flags in RECIPES.items():
            ran: dict[str, list[Ran]] = {"without": [], "with": []}
            for _ in range(options.runs):
                for which, labels in (("without", "none"), ("with", f"coco:{coco}")):
                    ran[which].append(convert(folder, labels, flags))
            seconds = {which: statistics.median(each.seconds for each in runs) for which, runs in ran.items()}
            parents = {which: max(each.parent for each in runs) / 2**20 for which, runs in ran.items()}
            print(
                f"{recipe:10} without {seconds['without']:.2f} s, {parents['without']:.0f} MiB;"
                f" with {seconds['with']:.2f} s, {parents['with']:.0f} MiB; ratio {seconds['with'] / seconds['without']:.3f}"
            )


def convert(folder: Path, labels: str, flags: list[str]) -> Ran:
    shutil.rmtree(folder / "out", ignore_errors=True)
    command = [sys.executable, "-m", "shardctl", "convert", folder / "in", folder / "out", "--labels", labels, "-q", *flags]
    done = run(command)
    if done.failure:
        sys.exit(f"{labels}: {done.failure}")
    return done


def make(photos: Path, folder: Path, images: int, objects: int, points: int) -> Path:
    """Link the photos again and again, and write a COCO file for them, in pieces."""
    rng = np.random.default_rng(0)
    found = sorted(path for path in photos.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    sizes = []
    for path in found:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) >= 5
            sizes.append(image.size[::-1] if turned else image.size)
    (folder / "in").mkdir()
    listed, marked = folder / "images.json", folder / "coco.json"
    with open(listed, "w") as of_images, open(marked, "w") as file:
        file.write('{"categories": [{"id": 3, "name": "thing"}, {"id": 90, "name": "other"}], "annotations": [')
        number = 0
        for image in range(images):
            name, (width, height) = f"{image:07d}.jpg", sizes[image % len(found)]
            (folder / "in" / name).symlink_to(found[image % len(found)].resolve())
            of_images.write(
                f"{', ' if image else ''}{json.dumps({'id': image, 'file_name': name, 'width': width, 'height': height})}"
            )
            for _ in range(objects):
                number += 1
                centre, radius = rng.uniform(0.2, 0.8, 2) * (width, height), rng.uniform(0.03, 0.2) * min(width, height)
                angles = np.sort(rng.uniform(0, 2 * np.pi, points))
                outline = np.round(centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1), 2)
                (left, top), (right, bottom) = outline.min(axis=0).tolist(), outline.max(axis=0).tolist()
                record = {
                    "id": number,
                    "image_id": image,
                    "category_id": 3 if number % 3 else 90,
                    "iscrowd": 0,
                    "area": round((right - left) * (bottom - top), 2),
                    "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)],
                    "segmentation": [outline.ravel().tolist()],
                }
                file.write(f"{', ' if number > 1 else ''}{json.dumps(record)}")
        of_images.flush()
        file.write(f'], "images": [{listed.read_text()}]}}')
    return marked


if __name__ == "__main__":
    main()
