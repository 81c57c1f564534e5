"""Microseconds of one core per image: transforms and usual recipes, ours beside those of
torchvision and albumentations.

Each package runs in a process of its own, on one thread; they take turns, and the median of the
turns counts. What is measured is the processor's time, so that other work on the machine changes
little.

    python scripts/bench/bench_transforms.py PHOTOS --torchvision TV/bin/python --albumentations
    A/bin/python --only hue

TV is an environment with torch, torchvision (installed with --no-deps) and the imaging package that
it shall use, A one with albumentations 2.0.8 and opencv-python-headless; `--tensorflow` takes one
with tensorflow-cpu and Pillow. Any may be left out. `shardctl` is measured in the environment that
runs this script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

with suppress(ImportError):  # albumentations has an environment of its own, without what we need
    from shardctl.system.machine import reuse_memory
    from shardctl.transforms.picture import Picture
    from shardctl.transforms.table import parse_step

PHOTOS = 8
TURN_SECONDS = 0.05
CROP = 224
TRANSFORMS = (
    *(
        "brightness",
        "contrast",
        "saturation",
        "hue",
        "hue_exact",
        "grayscale",
        "blur 1",
        "sharpness",
        "autocontrast",
    ),
    *(
        "equalize",
        "posterize",
        "solarize",
        "invert",
        "erase",
        "jpeg q40",
        "gaussian_noise",
        "color_jitter",
    ),
    *("random_resized_crop", "affine", "perspective", "elastic"),
)
RECIPES = ("ImageNet", "ImageNet without hue", "RandAugment", "TrivialAugment", "SimCLR")
"""From an image of the size that is measured; those that crop make one of 224 pixels."""

GEOMETRY = {
    "random_resized_crop": {"name": "random_resized_crop", "size": CROP},
    "affine": {"name": "affine", "angle": 20, "interpolation": "bilinear"},
    "perspective": {"name": "random_perspective", "p": 1},
    "elastic": {"name": "elastic"},
}

JITTER = [("brightness", 1.2), ("contrast", 0.8), ("saturation", 1.3), ("hue", 0.05)]

VIEWS: list[Any] = [{"name": "random_resized_crop", "size": CROP}, {"name": "hflip"}]

Call = Callable[[Any], Any]


def ours() -> tuple[Call, dict[str, Call]]:
    from shardctl.images import pixels

    reuse_memory()  # as our workers do
    rng = np.random.default_rng(0)
    recipes = {name: in_order(steps, rng) for name, steps in our_recipes().items()}
    recipes |= {name: in_order([step], rng) for name, step in GEOMETRY.items()}
    return same, {
        "brightness": lambda i: pixels.brightness(i, 1.3),
        "contrast": lambda i: pixels.contrast(i, 1.3),
        "saturation": lambda i: pixels.saturation(i, 1.3),
        "hue": lambda i: pixels.hue(i, 0.1),
        "hue_exact": lambda i: pixels.hue_of_pillow(i, 0.1),
        "grayscale": pixels.grayscale,
        "blur 1": lambda i: pixels.gaussian_blur(i, 1.0, 9),
        "sharpness": lambda i: pixels.sharpness(i, 1.5),
        "autocontrast": pixels.autocontrast,
        "equalize": pixels.equalize,
        "posterize": lambda i: pixels.posterize(i, 4),
        "solarize": lambda i: pixels.solarize(i, 128),
        "invert": pixels.invert,
        "erase": lambda i: pixels.erase(i, (30, 20, 60, 50)),
        "jpeg q40": lambda i: pixels.jpeg(i, 40),
        "gaussian_noise": lambda i: pixels.gaussian_noise(i, rng),
        "color_jitter": lambda i: pixels.adjust(i, JITTER),
        **recipes,
    }


def our_recipes() -> dict[str, list[Any]]:
    weak = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
    jitter = {"name": "color_jitter"}
    strong = {**jitter, "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
    blurred = {"name": "gaussian_blur", "kernel_size": 23}
    return {
        "ImageNet": [*VIEWS, {**jitter, **weak, "hue": 0.1}],
        "ImageNet without hue": [*VIEWS, {**jitter, **weak}],
        "RandAugment": [{"name": "rand_augment"}],
        "TrivialAugment": [{"name": "trivial_augment"}],
        "SimCLR": [
            *VIEWS,
            {"name": "maybe", "p": 0.8, "steps": [strong]},
            {"name": "grayscale", "p": 0.2},
            {"name": "maybe", "p": 0.5, "steps": [blurred]},
        ],
    }


def in_order(given: list[Any], rng: np.random.Generator) -> Call:
    """Return what does the steps of a recipe to a decoded image."""
    steps = [parse_step(each) for each in given]

    def call(image: Any) -> Any:
        picture = Picture(image.size)
        picture.begin(image)
        for step in steps:
            step.apply(picture, rng)
        return picture.image

    return call


def torchvision(tensors: bool) -> tuple[Call, dict[str, Call]]:
    import torch

    if torch.version.cuda is None:  # PyPI's torchvision is built for CUDA
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_library"] = library  # what it defines goes with it
    import torchvision.transforms.v2.functional as F
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    black = torch.zeros(3, 1, 1, dtype=torch.uint8)

    def jitter(image: Any) -> Any:
        made = F.adjust_contrast(F.adjust_brightness(image, 1.2), 0.8)
        return F.adjust_hue(F.adjust_saturation(made, 1.3), 0.05)

    calls = {
        "brightness": lambda i: F.adjust_brightness(i, 1.3),
        "contrast": lambda i: F.adjust_contrast(i, 1.3),
        "saturation": lambda i: F.adjust_saturation(i, 1.3),
        "hue": lambda i: F.adjust_hue(i, 0.1),
        "hue_exact": lambda i: F.adjust_hue(i, 0.1),
        "grayscale": lambda i: F.rgb_to_grayscale(i, 3),
        "blur 1": lambda i: F.gaussian_blur(i, [9, 9], [1.0, 1.0]),
        "sharpness": lambda i: F.adjust_sharpness(i, 1.5),
        "autocontrast": F.autocontrast,
        "equalize": F.equalize,
        "posterize": lambda i: F.posterize(i, 4),
        "solarize": lambda i: F.solarize(i, 128),
        "invert": F.invert,
        "erase": lambda i: F.erase(i, 20, 30, 50, 60, black),
        "jpeg q40": lambda i: F.jpeg(i, 40),
        "gaussian_noise": F.gaussian_noise,
        "color_jitter": jitter,
        "random_resized_crop": v2.RandomResizedCrop(CROP),
        "affine": v2.RandomAffine((20, 20), interpolation=v2.InterpolationMode.BILINEAR),
        "perspective": v2.RandomPerspective(p=1),
        "elastic": v2.ElasticTransform(),
    }
    views = [v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip()]
    strong = v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    calls |= {
        "ImageNet": v2.Compose([*views, v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]),
        "ImageNet without hue": v2.Compose([*views, v2.ColorJitter(0.4, 0.4, 0.4)]),
        "RandAugment": v2.RandAugment(),
        "TrivialAugment": v2.TrivialAugmentWide(),
        "SimCLR": v2.Compose(
            [*views, strong, v2.RandomGrayscale(0.2), v2.RandomApply([v2.GaussianBlur(23)], 0.5)]
        ),
    }
    if tensors and torch.version.cuda is None:
        del calls["jpeg q40"]  # it needs the part of torchvision that is compiled
    if not tensors:
        del calls["gaussian_noise"]
    return (F.pil_to_tensor if tensors else same), calls


def albumentations() -> tuple[Call, dict[str, Call]]:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    import albumentations as A
    import cv2

    cv2.setNumThreads(0)
    made = {
        "brightness": A.ColorJitter((1.3, 1.3), (1, 1), (1, 1), (0, 0), p=1),
        "contrast": A.ColorJitter((1, 1), (1.3, 1.3), (1, 1), (0, 0), p=1),
        "saturation": A.ColorJitter((1, 1), (1, 1), (1.3, 1.3), (0, 0), p=1),
        "hue": A.ColorJitter((1, 1), (1, 1), (1, 1), (0.1, 0.1), p=1),
        "grayscale": A.ToGray(p=1),
        "blur 1": A.GaussianBlur((9, 9), (1.0, 1.0), p=1),
        "sharpness": A.Sharpen((0.5, 0.5), (1, 1), p=1),
        "autocontrast": A.AutoContrast(p=1),
        "equalize": A.Equalize(p=1),
        "posterize": A.Posterize(4, p=1),
        "solarize": A.Solarize((0.5, 0.5), p=1),
        "invert": A.InvertImg(p=1),
        "erase": A.Erasing((0.06, 0.06), (1, 1), p=1),
        "jpeg q40": A.ImageCompression("jpeg", (40, 40), p=1),
        "gaussian_noise": A.GaussNoise((0.1, 0.1), p=1),
        "color_jitter": A.ColorJitter((1.2, 1.2), (0.8, 0.8), (1.3, 1.3), (0.05, 0.05), p=1),
        "random_resized_crop": A.RandomResizedCrop((CROP, CROP), p=1),
        "affine": A.Affine(rotate=(20, 20), p=1),
        "perspective": A.Perspective((0.1, 0.2), p=1),
        "elastic": A.ElasticTransform(25, 5, p=1),
    }
    still = ((1, 1), (1, 1), (1, 1), (0, 0))
    geometry = [
        *(A.Affine(shear={axis: (-5.1, 5.1)}, interpolation=0, p=1) for axis in "xy"),
        *(
            A.Affine(translate_percent={axis: (-0.136, 0.136)}, interpolation=0, p=1)
            for axis in "xy"
        ),
        A.Rotate((-9, 9), interpolation=0, p=1),
    ]
    factors = [
        A.ColorJitter(*((0.73, 1.27) if at == each else span for at, span in enumerate(still)), p=1)
        for each in range(3)
    ]
    values = [
        A.Sharpen(p=1),
        A.Posterize(7, p=1),
        A.Solarize((0.7, 0.7), p=1),
        A.AutoContrast(p=1),
        A.Equalize(p=1),
    ]
    views = [A.RandomResizedCrop((CROP, CROP)), A.HorizontalFlip()]
    strong, blurred = (
        A.ColorJitter((0.2, 1.8), (0.2, 1.8), (0.2, 1.8), (-0.2, 0.2), p=0.8),
        A.GaussianBlur((23, 23), (0.1, 2), p=0.5),
    )
    weak = ((0.6, 1.4), (0.6, 1.4), (0.6, 1.4))
    made |= {
        "ImageNet": A.Compose([*views, A.ColorJitter(*weak, (-0.1, 0.1), p=1)]),
        "ImageNet without hue": A.Compose([*views, A.ColorJitter(*weak, (0, 0), p=1)]),
        "RandAugment": A.Compose(
            [A.SomeOf([A.NoOp(), *geometry, *factors, *values], 2, replace=True, p=1)]
        ),
        "SimCLR": A.Compose([*views, strong, A.ToGray(p=0.2), blurred]),
    }
    return np.asarray, {name: lambda i, t=transform: t(image=i) for name, transform in made.items()}


def tensorflow() -> tuple[Call, dict[str, Call]]:
    """Return what tf.image has, each as a compiled function, as in a tf.data pipeline."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def cut(image: Any) -> Any:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros([0, 0, 4]),
            area_range=(0.08, 1),
            use_image_if_no_bounding_boxes=True,
        )
        return tf.image.resize(tf.slice(image, begin, size), (CROP, CROP))

    def weak(image: Any, strength: float, hue: float) -> Any:
        image = tf.image.random_brightness(image, strength)
        image = tf.image.random_contrast(image, 1 - strength, 1 + strength)
        image = tf.image.random_saturation(image, 1 - strength, 1 + strength)
        return tf.image.random_hue(image, hue) if hue else image

    def viewed(image: Any) -> Any:
        return tf.image.random_flip_left_right(cut(image) / 255)

    def stored(image: Any) -> Any:
        return tf.image.convert_image_dtype(image, tf.uint8, saturate=True)

    made = {
        "brightness": lambda i: tf.image.adjust_brightness(i, 0.2),
        "contrast": lambda i: tf.image.adjust_contrast(i, 1.3),
        "saturation": lambda i: tf.image.adjust_saturation(i, 1.3),
        "hue": lambda i: tf.image.adjust_hue(i, 0.1),
        "grayscale": lambda i: tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(i)),
        "jpeg q40": lambda i: tf.image.adjust_jpeg_quality(i, 40),
        "random_resized_crop": lambda i: tf.cast(cut(i), tf.uint8),
        "ImageNet": lambda i: stored(weak(viewed(i), 0.4, 0.1)),
        "ImageNet without hue": lambda i: stored(weak(viewed(i), 0.4, 0)),
    }
    return tf.constant, {name: tf.function(call) for name, call in made.items()}


PACKAGES: dict[str, Callable[[], tuple[Call, dict[str, Call]]]] = {
    "shardctl": ours,
    "v2 on PIL": lambda: torchvision(tensors=False),
    "v2 on tensors": lambda: torchvision(tensors=True),
    "albumentations": albumentations,
    "tf.image": tensorflow,
}


def same(image: Any) -> Any:
    return image


def serve(package: str, photos: Path, size: int) -> None:
    """Read names of transforms, and answer each with the microseconds per image, null if the
    package has it not."""
    from PIL import Image

    prepare, calls = PACKAGES[package]()
    paths = sorted(path for path in photos.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))[
        :PHOTOS
    ]
    images = [prepare(Image.open(path).convert("RGB").resize((size, size))) for path in paths]
    for line in sys.stdin:
        call = calls.get(line.rstrip("\n"))
        print(json.dumps(call and measured(call, images)), flush=True)


def measured(call: Call, images: list[Any]) -> float:
    for image in images:
        call(image)
    count, begun = 0, time.process_time()
    while time.process_time() - begun < TURN_SECONDS:
        for image in images:
            call(image)
        count += len(images)
    return (time.process_time() - begun) / count * 1e6


class Child:
    def __init__(self, package: str, python: str, arguments: argparse.Namespace) -> None:
        command = [
            python,
            __file__,
            str(arguments.photos),
            "--size",
            str(arguments.size),
            "--serve",
            package,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.package = package
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def measure(self, name: str) -> float | None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        found: float | None = json.loads(self.process.stdout.readline())
        return found


def children(arguments: argparse.Namespace) -> Iterator[Child]:
    yield Child("shardctl", sys.executable, arguments)
    if arguments.torchvision:
        yield Child("v2 on PIL", arguments.torchvision, arguments)
        yield Child("v2 on tensors", arguments.torchvision, arguments)
    if arguments.albumentations:
        yield Child("albumentations", arguments.albumentations, arguments)
    if arguments.tensorflow:
        yield Child("tf.image", arguments.tensorflow, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("--torchvision", metavar="PYTHON")
    parser.add_argument("--albumentations", metavar="PYTHON")
    parser.add_argument("--tensorflow", metavar="PYTHON")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", action="append", choices=(*TRANSFORMS, *RECIPES))
    parser.add_argument("--serve", choices=PACKAGES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.photos, arguments.size)
        return
    started = list(children(arguments))
    print(
        f"| µs per image of {arguments.size} px | "
        + " | ".join(child.package for child in started)
        + " |"
    )
    print("|---" + "|--:" * len(started) + "|")
    for name in arguments.only or (*TRANSFORMS, *RECIPES):
        turns = [[child.measure(name) for child in started] for _ in range(arguments.turns)]
        columns = [
            [found for found in column if found is not None] for column in zip(*turns, strict=True)
        ]
        print(
            f"| {name} | "
            + " | ".join(f"{statistics.median(each):.0f}" if each else "-" for each in columns)
            + " |",
            flush=True,
        )
    for child in started:
        assert child.process.stdin is not None
        child.process.stdin.close()
        child.process.wait()


if __name__ == "__main__":
    main()
