"""The steps of a recipe while reading: the loader, a bare pool of processes with the same calls of
Pillow, torch's DataLoader and Grain with torchvision, and tf.data.

    .venv/bin/python scripts/bench/bench_steps.py [CORPUS] [--rounds 5] [--torch PYTHON]
        [--tensorflow PYTHON] [--json FILE]

CORPUS is as in bench_loader.py. `classify` reads photos of 256 px as jpeg:90 and does
random_resized_crop 224, hflip, RandAugment(2, 9) and random_erasing; `detect` reads photos of 500 px
with 8 boxes and a mask, and does letterbox 640, hflip and color_jitter; torch and Grain do this to
the image alone, and tf.data is left out. Every round runs each contender once, in turn, over all
images; two cores. The pool and the other tools have the encoded images in their memory, and the pool
keeps one batch of results. The first PYTHON has torch, torchvision and grain, the second one
TensorFlow: those of `make interop` by default. Who is not installed is left out.
"""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
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
    options.add_argument(
        "--tensorflow", type=Path, default=ROOT / ".interop" / "tensorflow" / "bin" / "python"
    )
    given = options.parse_args()
    results = {}
    with scratch() as folder:
        bench = Bench(given.corpus, folder, threads=CORES)
        plain = bench.photos("jpeg", "--crop", "256", "--store", "jpeg:90")
        cases = {"classify": plain, "detect": marked(bench, folder / "marked")}
        for name, path in cases.items():
            warm(path)
            contenders = contenders_of(name, path, given.torch, given.tensorflow)
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


def contenders_of(name: str, path: Path, torch: Path, tensorflow: Path) -> dict[str, Contender]:
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
    others = [("torch, torchvision", torch, TORCH), ("Grain, torchvision", torch, GRAIN)]
    if name == "classify":
        others.append(("tf.data", tensorflow, TENSORFLOW))
    for who, python, program in others:
        libraries = who.lower().replace("tf.data", "tensorflow")
        if python.exists() and not subprocess.call(
            [python, "-c", f"import {libraries}"], stderr=subprocess.DEVNULL
        ):
            contenders[who] = partial(of_other, who, python, READ + program, name, path)
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


READ = """
import glob, io, sys, time
import pyarrow.ipc
path, name, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
datas = []
for file in sorted(glob.glob(path + "/data/*.arrow")):
    with pyarrow.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            block = reader.get_batch(number)
            if "image" in block.schema.names and block.num_rows and "bytes" in str(block.schema.field("image").type):
                datas += [each["bytes"] for each in block.column("image").to_pylist()]
def timed(batches):
    for _ in range(2):
        began = time.perf_counter()
        count = sum(len(images) for images in batches())
    print(count / (time.perf_counter() - began))
"""
"""Reads the encoded images, as the programs of all other tools do first."""

TORCHVISION = """
import torch
from PIL import Image
from torchvision.transforms import v2
torch.set_num_threads(1)
steps = v2.Compose({
    "classify": [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.RandAugment(2, 9), v2.PILToTensor(), v2.RandomErasing(0.25)],
    "detect": [v2.Resize(480, max_size=640), v2.Pad([0, 80, 0, 80]), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4), v2.PILToTensor()],
}[name])
def done(data): return steps(Image.open(io.BytesIO(data)).convert("RGB"))
"""

TORCH = (
    TORCHVISION
    + """
class Images(torch.utils.data.Dataset):
    def __len__(self): return len(datas)
    def __getitem__(self, place): return done(datas[place])
loader = torch.utils.data.DataLoader(Images(), batch, shuffle=True, num_workers=2, persistent_workers=True)
timed(lambda: loader)
"""
)

GRAIN = (
    TORCHVISION
    + """
import grain
def main():
    images = grain.MapDataset.source(datas).shuffle(seed=1).map(lambda data: done(data).numpy()).repeat(2).batch(batch)
    images = images.to_iter_dataset(grain.ReadOptions(num_threads=0)).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    taken, count = iter(images), 0
    while count < len(datas): count += len(next(taken))
    began = time.perf_counter()
    print(sum(map(len, taken)) / (time.perf_counter() - began))
if __name__ == "__main__": main()
"""
)

TENSORFLOW = """
import math
import tensorflow as tf
def warped(image, *rows):
    return tf.raw_ops.ImageProjectiveTransformV3(images=image[None], transforms=[[*rows, 0.0, 0.0]], output_shape=(224, 224), fill_value=0.0, interpolation="NEAREST", fill_mode="CONSTANT")[0]
def turned(image, angle):
    sin, cos = tf.sin(angle), tf.cos(angle)
    return warped(image, cos, -sin, 112 * (1 - cos + sin), sin, cos, 112 * (1 - cos - sin))
def blended(image, other, factor):
    return tf.clip_by_value(other + factor * (image - other), 0.0, 255.0)
def stretched(image):
    low, high = tf.reduce_min(image, (0, 1)), tf.reduce_max(image, (0, 1))
    return (image - low) * 255 / tf.maximum(high - low, 1)
def equalized(image):
    channels = []
    for channel in tf.unstack(tf.cast(image, tf.int32), axis=2):
        counts = tf.cumsum(tf.math.bincount(channel, minlength=256))
        least = tf.reduce_min(tf.boolean_mask(counts, counts > 0))
        table = (counts - least) * 255 // tf.maximum(224 * 224 - least, 1)
        channels.append(tf.gather(table, channel))
    return tf.cast(tf.stack(channels, 2), tf.float32)
smooth = tf.tile(tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32)[..., None, None] / 13, (1, 1, 3, 1))
gray = lambda image: tf.image.rgb_to_grayscale(image)
operations = [
    lambda image, sign: image,
    lambda image, sign: warped(image, 1.0, sign * 0.09, 0.0, 0.0, 1.0, 0.0),
    lambda image, sign: warped(image, 1.0, 0.0, 0.0, sign * 0.09, 1.0, 0.0),
    lambda image, sign: warped(image, 1.0, 0.0, sign * 30, 0.0, 1.0, 0.0),
    lambda image, sign: warped(image, 1.0, 0.0, 0.0, 0.0, 1.0, sign * 30),
    lambda image, sign: turned(image, sign * math.radians(9)),
    lambda image, sign: blended(image, 0.0, 1 + sign * 0.27),
    lambda image, sign: blended(image, gray(image), 1 + sign * 0.27),
    lambda image, sign: blended(image, tf.reduce_mean(gray(image)), 1 + sign * 0.27),
    lambda image, sign: blended(image, tf.nn.depthwise_conv2d(image[None], smooth, (1, 1, 1, 1), "SAME")[0], 1 + sign * 0.27),
    lambda image, sign: tf.cast(tf.bitwise.bitwise_and(tf.cast(image, tf.uint8), tf.constant(0xFC, tf.uint8)), tf.float32),
    lambda image, sign: tf.where(image < 178, image, 255 - image),
    lambda image, sign: stretched(image),
    lambda image, sign: equalized(image),
]
def augmented(image):
    for _ in range(2):
        sign = tf.sign(tf.random.uniform(()) - 0.5)
        which = tf.random.uniform((), 0, len(operations), tf.int32)
        image = tf.switch_case(which, [lambda one=one: tf.ensure_shape(one(image, sign), (224, 224, 3)) for one in operations])
    return image
def erased(image):
    area = tf.random.uniform((), 0.02, 0.33) * 224 * 224
    shape = tf.exp(tf.random.uniform((), math.log(0.3), math.log(3.3)))
    height, width = (tf.minimum(tf.cast(tf.sqrt(side), tf.int32), 223) for side in (area * shape, area / shape))
    top, left = (tf.random.uniform((), 0, 224 - side, tf.int32) for side in (height, width))
    rows, columns = tf.range(224), tf.range(224)
    inside = ((rows >= top) & (rows < top + height))[:, None] & ((columns >= left) & (columns < left + width))
    return tf.where(inside[..., None], 0.0, image)
def done(data):
    shape, none = tf.io.extract_jpeg_shape(data), tf.zeros((1, 0, 4))
    begin, size, _ = tf.image.sample_distorted_bounding_box(shape, none, area_range=(0.08, 1), use_image_if_no_bounding_boxes=True)
    pixels = tf.io.decode_and_crop_jpeg(data, tf.concat([begin[:2], size[:2]], 0), channels=3)
    pixels = tf.image.random_flip_left_right(tf.image.resize(pixels, (224, 224)))
    pixels = augmented(pixels)
    return tf.cast(tf.cond(tf.random.uniform(()) < 0.25, lambda: erased(pixels), lambda: pixels), tf.uint8)
images = tf.data.Dataset.from_tensor_slices(datas).shuffle(len(datas)).map(done, tf.data.AUTOTUNE).batch(batch).prefetch(tf.data.AUTOTUNE)
timed(lambda: images)
"""


def of_other(who: str, python: Path, program: str, name: str, path: Path) -> float:
    """Return the rate of another tool, which reads the images twice: the second time counts."""
    command = [python, "-c", program, path, name, str(BATCH)]
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{who}: {ran.stderr}")
    return float(ran.stdout.split()[-1])


if __name__ == "__main__":
    main()
