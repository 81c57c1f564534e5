"""The steps of a recipe while reading: the loader, a bare pool of processes with the same calls of
Pillow, and torch's DataLoader with torchvision.

    .venv/bin/python scripts/bench/bench_steps.py [CORPUS] [--rounds 5] [--torch PYTHON] [--json FILE]

CORPUS is as in bench_loader.py. `classify` reads photos of 256 px as jpeg:90 and does
random_resized_crop 224, hflip, RandAugment(2, 9) and random_erasing; `detect` reads photos of 500 px
with 8 boxes and a mask, and does letterbox 640, hflip and color_jitter; torch does this to the image
alone. Every round runs each
contender once, in turn, over all images; two cores. The pool has the encoded images in its memory
and keeps one batch of results. PYTHON has torch and torchvision: the one of `make interop` by
default; without it, that contender is left out.
"""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_loader import Bench
from harness import ROOT, in_turn, options_of, save, scratch, warm

import shardctl
from shardctl.format.roles import Objects
from shardctl.images.codecs import image
from shardctl.images.codecs.resampling import resampled_mask
from shardctl.images.object_geometry import Motion, moved_objects
from shardctl.transforms.image_steps import ImageSteps, SampleRngs
from shardctl.transforms.recipe import Recipe

CORES, BATCH, PARTS = 2, 64, 8
STEPS: dict[str, list[dict[str, Any]]] = {
    "classify": [
        {"name": "random_resized_crop", "size": 224},
        {"name": "hflip"},
        {"name": "rand_augment"},
        {"name": "random_erasing", "p": 0.25},
    ],
    "detect": [
        {"name": "letterbox", "size": 640},
        {"name": "hflip"},
        {"name": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4},
    ],
}

Contender = Callable[[], float]


def main() -> None:
    options = options_of(__doc__, corpus=True, rounds=5)
    options.add_argument(
        "--torch", type=Path, default=ROOT / ".interop" / "torch" / "bin" / "python"
    )
    given = options.parse_args()
    results = {}
    with scratch() as folder:
        bench = Bench(given.corpus, folder, threads=CORES)
        plain = bench.photos("jpeg", "--crop", "256", "--store", "jpeg:90")
        cases = {"classify": plain, "detect": marked(bench, folder / "marked")}
        for name, path in cases.items():
            warm(path)
            contenders = contenders_of(name, path, given.torch)
            in_turn(contenders, 1)
            found = in_turn(contenders, given.rounds)
            bare = found["bare pool"]
            for who, rates in found.items():
                ratio = statistics.median(
                    one / other for one, other in zip(rates, bare, strict=True)
                )
                results[f"{name}, {who}"] = {"rate": statistics.median(rates), "ratio": ratio}
                print(
                    f"{name}: {who:24} {statistics.median(rates):8,.0f} images/s ({ratio:.2f} of the pool)"
                )
    save(given.json, results)


def marked(bench: Bench, to: Path) -> Path:
    """Write photos of 500 px with boxes and a mask each."""
    ds = shardctl.open(bench.photos("photos500", "--resize", "500x375", "--store", "jpeg:90"))
    rng = np.random.default_rng(0)

    def rows() -> Any:
        for place in range(min(len(ds), 2000)):
            data = ds.take([place], columns=["image"], decode=False)["image"][0]
            places = rng.uniform(0, 300, (8, 4)).astype(np.float32)
            objects = {"bbox": (places * [1, 1, 0.5, 0.2]).tolist(), "category": list(range(8))}
            mask = np.zeros((375, 500), np.uint8)
            mask[100:200, 100:300] = 3
            yield {"image": data, "objects": objects, "mask": mask}

    roles = {"objects": "objects", "mask": "mask"}
    shardctl.write(to, rows(), roles=roles)
    return to


def contenders_of(name: str, path: Path, torch: Path) -> dict[str, Contender]:
    ds = shardctl.open(path)
    columns = ["key", "image", *(each for each in ("mask", "objects") if each in ds.schema.names)]
    taken = ds.take(range(len(ds)), columns=columns, decode=False)
    order = np.random.default_rng(0).permutation(len(ds)).tolist()
    if "objects" in taken:
        boxes = [{"bbox": each["bbox"].tolist()} for each in taken["objects"]]
        taken["objects"] = boxes
    shares = [
        (
            name,
            *(
                [taken[each][at] for at in order[part::PARTS]] if each in taken else None
                for each in ("image", "key", "mask", "objects")
            ),
        )
        for part in range(PARTS)
    ]
    pool = multiprocessing.get_context("fork").Pool(CORES)

    def bare() -> float:
        return rate(lambda: sum(pool.imap_unordered(done_bare, shares)))

    def loader(**how: Any) -> Contender:
        how |= {"recipe": {"transform": STEPS[name]}, "columns": columns}
        made = ds.loader(BATCH, shuffle=True, **how)
        return lambda: rate(lambda: sum(len(batch["key"]) for batch in made))

    contenders = {
        "bare pool": bare,
        "shardctl": loader(),
        "shardctl, 2 processes": loader(processes=CORES, threads=CORES),
        "shardctl, 2 threads": loader(threads=CORES),
    }
    if torch.exists():
        contenders["torch, torchvision"] = lambda: with_torch(name, path, torch)
    return contenders


def rate(read: Callable[[], int]) -> float:
    began = time.perf_counter()
    return read() / (time.perf_counter() - began)


def done_bare(share: tuple[Any, ...]) -> int:
    """Do the steps to some encoded images, and to their masks and boxes, in a process of the
    pool."""
    name, datas, keys, masks, objects = share
    steps = ImageSteps(
        Recipe.from_json({"kind": "image", "transform": STEPS[name]}).image_transforms
    )
    rngs, batch = SampleRngs(0), None
    for place, (data, key) in enumerate(zip(datas, keys, strict=True)):
        opened, rng = image.open_image(data, pixels_only=True), rngs.of(key, 1)
        picture = steps.begin(opened.size, 1, rng)
        steps.finish(picture, image.decoded(opened, picture.look), rng)
        pixels = picture.pixels
        if masks:
            mask = image.decode_mask(masks[place])
            for stage in picture.stages:
                mask = resampled_mask(mask, stage, 0)
            motion = Motion.of(opened.size, picture.stages)
            moved_objects(objects[place], motion, Objects(), 0.1)
        batch = np.empty((BATCH, *pixels.shape), np.uint8) if batch is None else batch
        batch[place % BATCH] = pixels
    return len(datas)


TORCH = """
import io, sys, time, torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import pyarrow.ipc, glob
from PIL import Image
from torchvision.transforms import v2
torch.set_num_threads(1)
path, name, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
datas = []
for file in sorted(glob.glob(path + "/*.arrow")):
    with pyarrow.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            block = reader.get_batch(number)
            if "image" in block.schema.names and block.num_rows and "bytes" in str(block.schema.field("image").type):
                datas += [each["bytes"] for each in block.column("image").to_pylist()]
steps = {
    "classify": [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.RandAugment(2, 9), v2.PILToTensor(), v2.RandomErasing(0.25)],
    "detect": [v2.Resize(480, max_size=640), v2.Pad([0, 80, 0, 80]), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4), v2.PILToTensor()],
}[name]
steps = v2.Compose(steps)
class Images(torch.utils.data.Dataset):
    def __len__(self): return len(datas)
    def __getitem__(self, place): return steps(Image.open(io.BytesIO(datas[place])).convert("RGB"))
loader = torch.utils.data.DataLoader(Images(), batch, shuffle=True, num_workers=2, persistent_workers=True)
for _ in range(2):
    began = time.perf_counter()
    count = sum(len(images) for images in loader)
print(count / (time.perf_counter() - began))
"""


def with_torch(name: str, path: Path, python: Path) -> float:
    command = [python, "-c", TORCH, path, name, str(BATCH)]
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr)
    return float(ran.stdout)


if __name__ == "__main__":
    main()
