"""The limit for `shardctl convert` with a heavy recipe: a pool of two processes that read, do the
same steps and encode.

    .venv/bin/python scripts/bench/bare_pool.py FOLDER RECIPE.toml

The steps, their random numbers and the encoder are shardctl's own. What is left out is all around
them: the plan, hashing, blocks, files that are synced, the manifest. What is encoded is thrown
away.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from multiprocessing import Pool
from pathlib import Path

from shardctl.system.machine import reuse_memory
from shardctl.transforms.pipeline.samples import SamplePipeline
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.reading import load_recipe


@cache
def steps(recipe_file: str) -> SamplePipeline:
    """Return the steps of a recipe, made once in each process."""
    reuse_memory()  # as our workers do
    recipe = Recipe.from_json(load_recipe(Path(recipe_file)))
    return SamplePipeline(recipe, None, lambda stage: None)


def made(task: tuple[str, str, str]) -> int:
    """Make all variants of a photo, and return the bytes of them together."""
    path, key, recipe_file = task
    record = {"key": key, "image": {"bytes": Path(path).read_bytes(), "path": key}}
    return sum(len(each.fields["image"]["bytes"]) for each in steps(recipe_file).make(record))


def main() -> None:
    """Do the steps of a recipe to every photo of a folder."""
    folder, recipe_file = sys.argv[1:]
    tasks = []
    for parent, _, names in os.walk(folder, followlinks=True):
        paths = [
            os.path.join(parent, name)
            for name in names
            if name.lower().endswith((".jpg", ".jpeg", ".png"))
        ]
        tasks += [(path, os.path.relpath(path, folder), recipe_file) for path in paths]
    with Pool(2) as pool:
        assert all(size > 0 for size in pool.imap_unordered(made, sorted(tasks), chunksize=8))


if __name__ == "__main__":
    main()
