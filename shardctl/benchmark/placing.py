"""Where the random steps of a recipe belong: into the conversion, its variants, or each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardctl.benchmark.measure.subjects import open_loader
from shardctl.benchmark.measure.throughput import Throughput
from shardctl.benchmark.options import BenchOptions
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.making.convert import ConvertResult
from shardctl.system.machine import usable_cores
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.while_reading import DATASET
from shardctl.transforms.table import samples_per_record

ORIGINAL = {"store": "source", "compression": "none"}
"""How images are stored to which nothing is done."""

VARIANTS = 4
"""Variants of each input that are written, where the recipe says no number."""

SECONDS = 2.0
"""Seconds that each way is read."""


@dataclass(frozen=True)
class Placement:
    """One way to do the random steps of a recipe: at the "conversion", in its "variants", or while
    "reading".

    `samples_per_s` is the rate of a loader with one thread, and `cores` how many of these the
    consumer needs. `input_bytes` is the size of an input on disk. A training sees `views` of an
    input, None for another one in each epoch. `error` is the reason why this way is not possible,
    else None.
    """

    where: str
    store: str
    samples_per_s: float = 0.0
    cores: float = 0.0
    input_bytes: float = 0.0
    views: int | None = None
    error: str | None = None

    @property
    def keeps_up(self) -> bool:
        """Whether the cores of this machine are enough."""
        return self.error is None and self.cores <= usable_cores()


def cut(recipe: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the steps of a recipe that are done once, and those for each epoch.

    A recipe without [[reading]] is cut before its first random step. Filters are done once.
    """
    given, reading = recipe.get("transform", []), recipe.get("reading", [])
    if reading:
        return given, reading
    made = Recipe.from_json(recipe)
    first = next((n for n, step in enumerate(made.transform) if step.random), len(given))
    filters = {n for n, step in enumerate(made.transform) if step in made.filters}
    later = [n for n in range(first, len(given)) if n not in filters]
    return [step for n, step in enumerate(given) if n not in later], [given[n] for n in later]


def placements(
    recipe: dict[str, Any],
    stored: dict[str, str],
    rate: float,
    batch_size: int,
    scratch: Path,
    converted: Callable[[Path, dict[str, Any]], ConvertResult],
) -> tuple[Placement, ...]:
    """Return the ways to do the random steps of a recipe of images, if it has some.

    `stored` are the keys of a recipe that say how changed images are stored. Images that no step
    changes are kept as they came. The consumer takes `rate` samples/s. `converted` converts the
    inputs with a recipe into a folder, which is in `scratch` here.
    """
    once, random = cut(recipe)
    if not random:
        return ()
    variants, ways = recipe.get("variants", 1), []
    for where, steps, views in (("conversion", [*once, *random], 1), ("reading", once, None)):
        how, reading = stored if steps else ORIGINAL, [] if views else random
        way, folder = Placement(where, how["store"], views=views), scratch / f"steps-{where}"
        keys = {**recipe, **how, "transform": steps, "reading": reading, "variants": 1}
        options = BenchOptions(
            batch_size=batch_size, threads=1, shuffle=True, recipe=DATASET if reading else None
        )
        run = Throughput()
        try:
            result = converted(folder, keys)
            run.run(open_loader(folder, options, None, drop_last=True), SECONDS, lambda _: None)
        except (UsageError, InputError, DatasetError) as error:
            ways.append(replace(way, error=str(error).replace(f"{folder}/", "")))
            continue
        size = result.bytes / max(1, result.samples) * samples_per_record(keys)
        ways.append(
            replace(
                way,
                samples_per_s=round(run.rate, 1),
                cores=round(rate / run.rate, 4),
                input_bytes=round(size, 1),
            )
        )
    converting, while_reading = ways
    views = variants if variants > 1 else VARIANTS
    size = views * converting.input_bytes
    of_variants = replace(converting, where="variants", input_bytes=size, views=views)
    return converting, of_variants, while_reading
