"""The limit for `shardctl convert` of images: two processes, or more, that read, decode and do the
steps, and throw the pixels away.

    .venv/bin/python scripts/bench/bare_images.py FOLDER 224|32|RECIPE.toml [PROCESSES]

A size: the same library and the fastest correct way through it that a comparison found, a scaled
JPEG decode, then the crop resampled straight out of it. A recipe: the steps, their random numbers
and the encoder are shardctl's own. What is left out is all around them: the plan, hashing, blocks,
files that are synced, the manifest.
"""

from __future__ import annotations

import io
import os
import sys
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from shardctl.transforms.pipeline.samples import SamplePipeline


def photo(path: str) -> int:
    image = Image.open(io.BytesIO(Path(path).read_bytes()))
    width, height = image.size
    scale = 256 / min(width, height)
    image.draft("RGB", (int(width * scale * 2), int(height * scale * 2)))
    rgb = image.convert("RGB")
    width, height = rgb.size
    side = min(width, height) / 256 * 224
    box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    return len(rgb.resize((224, 224), Image.Resampling.BILINEAR, box=box).tobytes())


def tiny(path: str) -> int:
    rgb = Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")
    return len(rgb.resize((32, 32), Image.Resampling.BILINEAR).tobytes())


@cache
def steps(recipe_file: str) -> SamplePipeline:
    """Return the steps of a recipe, made once in each process."""
    from shardctl.system.machine import reuse_memory
    from shardctl.transforms.pipeline.samples import SamplePipeline
    from shardctl.transforms.recipe import Recipe
    from shardctl.transforms.recipe_files.reading import load_recipe

    reuse_memory()  # as our workers do
    return SamplePipeline(
        Recipe.from_json(load_recipe(Path(recipe_file))), None, lambda stage: None
    )


def variants(path: str, folder: str, recipe_file: str) -> int:
    """Make and encode all variants of a photo, and return the bytes of them together."""
    key = os.path.relpath(path, folder)
    record = {"key": key, "image": {"bytes": Path(path).read_bytes(), "path": key}}
    return sum(len(each.fields["image"]["bytes"]) for each in steps(recipe_file).make(record))


def main() -> None:
    folder, what, *processes = sys.argv[1:]
    paths = [
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.lower().endswith((".jpg", ".jpeg", ".png"))
    ]
    work = {"224": photo, "32": tiny}.get(what) or partial(
        variants, folder=folder, recipe_file=what
    )
    with Pool(int(processes[0]) if processes else 2) as pool:
        together = 8 if what.endswith(".toml") else 32
        assert all(size > 0 for size in pool.imap_unordered(work, sorted(paths), together))


if __name__ == "__main__":
    main()
