"""What annotations cost: `shardctl convert` of the same images without them, with boxes, and with
boxes and polygons.

    python scripts/bench/bench_annotated.py [CORPUS] [--images 5000] [--objects 7] [--points 25]
    [--runs 5] [--workers 2]

CORPUS is a folder with photos/ (default: $SHARDCTL_CORPUS, else ../shared/data). The images are
links to these photos, and to the same with a short side of 128 pixels, which convert much faster;
the COCO files have objects drawn at random. Every round runs each contender once, in turn, as a
process of its own. Ratios are the medians of those of the rounds: of the wall clock, and of the
seconds of all processors, which other programs disturb less. `file` is what it takes to read the
COCO file alone, as a share of the wall clock without annotations, beside json.loads of the same
text. Peak memory is that of the largest process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from processes import Ran, run

HERE = Path(__file__).resolve().parent
CROPS = {"photos": "224", "small": "112"}
SHORT_SIDE = 128


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "corpus",
        nargs="?",
        default=os.environ.get("SHARDCTL_CORPUS", HERE.parents[2] / "shared" / "data"),
    )
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--objects", type=int, default=7)
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as name:
        for sizes, photos in (
            ("photos", Path(options.corpus) / "photos"),
            ("small", small(Path(options.corpus), Path(name))),
        ):
            folder = Path(name) / sizes
            folder.mkdir()
            marks = make(photos, folder, options.images, options.objects, options.points)
            bytes_ = " and ".join(
                f"{path.stat().st_size / 1e6:.0f} MB ({which})" for which, path in marks.items()
            )
            print(
                f"{options.images:,} {sizes}, {options.objects} objects each, COCO files of "
                f"{bytes_}"
            )
            alone = {which: reading(path) for which, path in marks.items()}
            recipes = {"source": [], "crop": ["--random-crop", CROPS[sizes], "--flip", "0.5"]}
            for recipe, flags in recipes.items():
                compare(
                    recipe,
                    folder,
                    marks,
                    alone,
                    [*flags, "--workers", str(options.workers)],
                    options.runs,
                )


def compare(
    recipe: str,
    folder: Path,
    marks: dict[str, Path],
    alone: dict[str, tuple[float, float]],
    flags: list[str],
    runs: int,
) -> None:
    """Convert with and without annotations in turn, and print what these cost."""
    labels = {"without": "none", **{which: f"coco:{path}" for which, path in marks.items()}}
    rounds = [
        {which: convert(folder, label, flags) for which, label in labels.items()}
        for _ in range(runs)
    ]
    wall = statistics.median(each["without"].seconds for each in rounds)
    for which in labels:
        seconds = statistics.median(
            each[which].seconds / each["without"].seconds for each in rounds
        )
        used = statistics.median(
            each[which].processor / each["without"].processor for each in rounds
        )
        memory = max(max(each[which].parent, each[which].worker) for each in rounds) / 2**20
        of_file = ""
        if which in alone:
            ours, plain = alone[which]
            of_file = f"; file {ours / wall:.3f}, json.loads {plain / wall:.3f}"
        shown = f" ({wall:.2f} s)" if which == "without" else ""
        print(
            f"  {recipe:7} {which:15} wall {seconds:.3f}{shown}, processors {used:.3f}, "
            f"{memory:.0f} MiB{of_file}",
            flush=True,
        )


def reading(path: Path) -> tuple[float, float]:
    """Return the processor seconds that it takes to read a COCO file, and to parse it by
    json.loads: the best of three."""
    from shardctl.sources.annotations.coco.reading import read_file

    class Anywhere:
        def below(self, _: Path) -> None:
            return None

    best = [float("inf")] * 2
    for _ in range(3):
        for number, work in enumerate(
            (
                lambda: read_file(path, Anywhere(), path.parent / "scratch"),
                lambda: json.loads(path.read_text()),
            )  # type: ignore[arg-type]
        ):
            started = time.process_time()
            work()
            best[number] = min(best[number], time.process_time() - started)
    return best[0], best[1]


def convert(folder: Path, labels: str, flags: list[str]) -> Ran:
    shutil.rmtree(folder / "out", ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        folder / "in",
        folder / "out",
        "--labels",
        labels,
        "-q",
        *flags,
    ]
    done = run(command)
    if done.failure:
        sys.exit(f"{labels}: {done.failure}")
    return done


def small(corpus: Path, folder: Path) -> Path:
    """Make small copies of the photos."""
    made = folder / "copies"
    made.mkdir()
    for path in photos_in(corpus / "photos"):
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
            scale = SHORT_SIDE / min(upright.size)
            size = (round(upright.width * scale), round(upright.height * scale))
            upright.resize(size).save(made / f"{path.stem}.jpg", quality=90)
    return made


def photos_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))


def make(photos: Path, folder: Path, images: int, objects: int, points: int) -> dict[str, Path]:
    """Link the photos again and again, and write COCO files for them, in pieces."""
    rng = np.random.default_rng(0)
    found = photos_in(photos)
    sizes = []
    for path in found:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) >= 5
            sizes.append(image.size[::-1] if turned else image.size)
    (folder / "in").mkdir()
    listed = []
    for image in range(images):
        name, (width, height) = f"{image:07d}.jpg", sizes[image % len(found)]
        (folder / "in" / name).symlink_to(found[image % len(found)].resolve())
        listed.append({"id": image, "file_name": name, "width": width, "height": height})
    marks = {"boxes": folder / "boxes.json", "boxes+polygons": folder / "polygons.json"}
    beginning = json.dumps(
        {
            "categories": [{"id": 3, "name": "thing"}, {"id": 90, "name": "other"}],
            "images": listed,
            "annotations": [],
        }
    )
    with open(marks["boxes"], "w") as boxes, open(marks["boxes+polygons"], "w") as polygons:
        for file in (boxes, polygons):
            file.write(beginning.removesuffix("]}"))
        for number in range(images * objects):
            width, height = sizes[number // objects % len(found)]
            centre, radius = (
                rng.uniform(0.2, 0.8, 2) * (width, height),
                rng.uniform(0.03, 0.2) * min(width, height),
            )
            angles = np.sort(rng.uniform(0, 2 * np.pi, points))
            outline = np.round(
                centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1), 2
            )
            (left, top), (right, bottom) = (
                outline.min(axis=0).tolist(),
                outline.max(axis=0).tolist(),
            )
            record = {
                "id": number,
                "image_id": number // objects,
                "category_id": 3 if number % 3 else 90,
                "iscrowd": 0,
                "area": round((right - left) * (bottom - top), 2),
                "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)],
            }
            separator = ", " if number else ""
            boxes.write(f"{separator}{json.dumps(record)}")
            polygons.write(
                f"{separator}{json.dumps({**record, 'segmentation': [outline.ravel().tolist()]})}"
            )
        for file in (boxes, polygons):
            file.write("]}")
    return marks


if __name__ == "__main__":
    main()
