"""Some samples of a dataset, before and after the steps that a loader does in each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardctl.errors import InputError
from shardctl.format.roles import Roles
from shardctl.inspection.content.blocks import StoredSample
from shardctl.loader.blocks.pictures import most_pixels
from shardctl.loader.dataset import open_dataset
from shardctl.making.preview import VARIANTS, Preview, Tried
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import printable
from shardctl.transforms.recipe_files.while_reading import recipe_while_reading
from shardctl.transforms.values import python_value


def preview_reading(
    dst: str, inputs: int, keys: Sequence[str], epochs: int | None, given: Mapping[str, Any]
) -> Preview:
    """Return some samples of a dataset, each with what a loader makes of it in the first epochs.

    They are those with `keys`, or else up to `inputs` from all over the dataset. `given` are the
    arguments `recipe`, `step`, `transform` and `seed` of a loader. Raises DatasetError, UsageError,
    InputError.
    """
    whole = ds = open_dataset(dst)
    of_dataset = ds.manifest.recipe
    recipe = recipe_while_reading(given, of_dataset, most_pixels(of_dataset))
    if keys:
        ds = ds.filter(" or ".join(f"key == {key!r}" for key in keys))
    places = evenly_spaced(len(ds), len(ds) if keys else inputs)
    epochs = epochs or (VARIANTS if recipe.random else 1)
    before = _samples(ds.take(places), ds.roles, 0)
    after = [
        _samples(ds.take(places, **given, epoch=each), ds.roles, each) for each in range(epochs)
    ]
    tried = []
    for place, source in enumerate(before):
        samples = tuple(epoch[place] for epoch in after)
        cut = sum(map(_objects, [source] * epochs)) - sum(map(_objects, samples))
        tried.append(Tried(str(source.values["key"]), None, source, samples, cut, None))
    if lost := set(keys) - {each.key for each in tried}:
        raise InputError(f"there is no sample with the key {printable(min(lost))}")
    return Preview(replace(recipe, store=None), epochs, tuple(tried), len(whole), ())


def _objects(sample: StoredSample) -> int:
    every = (sample.values.get(name) for name in sample.roles.objects)
    return sum(len(each["bbox"]) for each in every if each is not None)


def _samples(batch: Mapping[str, Any], roles: Roles, epoch: int) -> list[StoredSample]:
    """Return the samples of a batch as those that are stored: objects in lists."""
    made = []
    for place in range(len(batch["key"])):
        values = {name: values[place] for name, values in batch.items()}
        values |= {name: python_value(values[name]) for name in roles.objects if name in values}
        made.append(
            StoredSample("", 0, place, None, None, None, {**values, "variant": epoch}, roles=roles)
        )
    return made
