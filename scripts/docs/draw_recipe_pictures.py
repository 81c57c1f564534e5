"""Draw what each step does to an image into docs/images/STEP.webp: before, and after (several times
if it is random).

scripts/docs/write_recipe_docs.py shows them in docs/recipes.md. A step whose defaults show nothing
needs a line in EXAMPLES.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from shardctl.transforms.base import ImageTransform
from shardctl.transforms.pipeline.samples import SamplePipeline
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.table import TRANSFORMS

IMAGES = Path(__file__).parents[2] / "docs" / "images"

SIZE = (112, 84)
GAP = 4
ARROW = 14
"""Pixels between the image before and those after, with an arrow in their middle."""

KEY = "house"
"""The key of the image, from which random numbers are drawn."""

DRAWS = 4
"""How many times a random step is shown."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "resize": {"size": 48},
    "letterbox": {"size": 84},
    "pad": {"margin": 12, "fill": [90, 120, 200]},
    "crop": {"size": 64},
    "random_crop": {"size": 64},
    "random_resized_crop": {"size": 72},
    "five_crop": {"size": 56},
    "ten_crop": {"size": 48},
    "vflip": {"p": 1.0},
    "hflip": {"p": 1.0},
    "rotate": {"angle": 20, "interpolation": "bilinear"},
    "random_rotation": {"degrees": 30, "interpolation": "bilinear"},
    "affine": {
        "angle": 10,
        "translate": [8, 0],
        "scale": 0.9,
        "shear": [12, 0],
        "interpolation": "bilinear",
    },
    "random_affine": {
        "degrees": 15,
        "translate": [0.1, 0.1],
        "scale": [0.7, 1.2],
        "shear": 15,
        "interpolation": "bilinear",
    },
    "shear": {"x": 0.3, "interpolation": "bilinear"},
    "perspective": {"corners": [0.1, 0.05, 0.8, 0.2, 1.0, 0.95, 0.0, 0.8]},
    "random_perspective": {"p": 1.0},
    "elastic": {"alpha": 60, "sigma": 4},
    "adjust_brightness": {"factor": 1.5},
    "adjust_contrast": {"factor": 2},
    "adjust_saturation": {"factor": 0.3},
    "adjust_hue": {"factor": 0.3},
    "color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2},
    "photometric_distort": {"p": 1.0},
    "channel_dropout": {"p": 1.0},
    "autocontrast": {"p": 1.0},
    "equalize": {"p": 1.0},
    "posterize": {"bits": 2, "p": 1.0},
    "solarize": {"threshold": 128, "p": 1.0},
    "invert": {"p": 1.0},
    "gaussian_blur": {"sigma": [1.0, 3.0]},
    "adjust_sharpness": {"factor": 6, "p": 1.0},
    "jpeg": {"quality": 5},
    "erase": {"left": 0.55, "top": 0.35, "width": 0.3, "height": 0.4},
    "random_erasing": {"p": 1.0},
    "choice": {
        "steps": [
            {"name": "hflip", "p": 1.0},
            {"name": "rotate", "angle": 30},
            {"name": "crop", "size": 56},
        ]
    },
    "maybe": {"steps": [{"name": "vflip", "p": 1.0}, {"name": "rotate", "angle": 20}]},
    "sequence": {"steps": [{"name": "hflip", "p": 1.0}, {"name": "rotate", "angle": 20}]},
}
"""Settings that show what a step does, for those whose defaults do not."""

WITHOUT_PICTURE: dict[str, str] = {}
"""Steps of images that change no image, each with the reason why it has no picture."""


def pictured() -> list[str]:
    """Return the names of the steps that have a picture: all that change images."""
    return [
        name
        for name, step in TRANSFORMS.items()
        if issubclass(step, ImageTransform) and name not in WITHOUT_PICTURE
    ]


def scene() -> Image.Image:
    """Return the image that is changed: nothing in it is symmetric, and it has edges, smooth parts
    and many colours."""
    width, height = (4 * side for side in SIZE)
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    for y in range(height):
        share = y / height
        draw.line(
            (0, y, width, y),
            fill=(int(90 + 150 * share), int(150 + 60 * share), int(235 - 60 * share)),
        )
    draw.ellipse((40, 28, 104, 92), fill=(255, 214, 70))
    draw.polygon([(0, 250), (110, 130), (230, 250)], fill=(112, 122, 150))
    draw.polygon([(80, 163), (110, 130), (142, 164), (118, 158), (106, 170)], fill=(245, 246, 250))
    draw.polygon([(130, 260), (290, 160), (448, 250), (448, 336), (130, 336)], fill=(96, 140, 84))
    draw.rectangle((0, 244, width, height), fill=(72, 126, 62))
    draw.polygon([(190, 336), (262, 240), (282, 240), (300, 336)], fill=(214, 190, 140))
    draw.rectangle((216, 158, 330, 246), fill=(236, 222, 196))
    draw.polygon([(200, 164), (272, 100), (348, 164)], fill=(186, 62, 48))
    draw.rectangle((232, 182, 262, 212), fill=(70, 110, 170))
    draw.rectangle((286, 186, 314, 246), fill=(110, 70, 40))
    draw.rectangle((376, 190, 392, 262), fill=(96, 66, 40))
    draw.ellipse((340, 96, 428, 206), fill=(40, 96, 46))
    draw.ellipse((364, 110, 402, 150), fill=(66, 130, 62))
    for x in range(20, 190, 34):
        draw.ellipse(
            (x, 280 + x % 30, x + 14, 294 + x % 30),
            fill=(230, 70, 120) if x % 4 else (250, 240, 90),
        )
    return image.resize(SIZE, Image.Resampling.LANCZOS)


def afterwards(name: str, image: Image.Image) -> list[Image.Image]:
    """Return what a step makes of an image."""
    data = io.BytesIO()
    image.save(data, "PNG")
    step = {"name": name, **EXAMPLES.get(name, {})}
    recipe = Recipe.from_json({"transform": [step], "store": "png"})
    if recipe.random:
        recipe = replace(recipe, variants=DRAWS)
    record = {"key": KEY, "image": {"bytes": data.getvalue(), "path": KEY}}
    made = SamplePipeline(recipe, None, lambda stage: None).make(record)
    return [Image.open(io.BytesIO(each.fields["image"]["bytes"])) for each in made]


def picture(name: str) -> Image.Image:
    """Return the image before and after a step, beside each other, what is around them
    transparent."""
    before = scene()
    after = afterwards(name, before)
    height = max(image.height for image in (before, *after))
    width = before.width + ARROW + sum(image.width + GAP for image in after)
    whole = Image.new("RGBA", (width, height))
    whole.paste(before, (0, (height - before.height) // 2))
    x = before.width
    middle = height // 2
    ImageDraw.Draw(whole).polygon(
        [(x + 5, middle - 5), (x + 10, middle), (x + 5, middle + 5)], fill=(128, 128, 128, 255)
    )
    x += ARROW
    for image in after:
        whole.paste(image, (x, (height - image.height) // 2))
        x += image.width + GAP
    return whole


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for old in IMAGES.glob("*.webp"):
        old.unlink()
    for name in pictured():
        picture(name).save(IMAGES / f"{name}.webp", quality=70, method=6)
    print(
        f"{sum(path.stat().st_size for path in IMAGES.glob('*.webp')):,} bytes in "
        f"{len(pictured())} pictures"
    )
