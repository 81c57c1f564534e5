"""A few inputs pushed through the recipe before anything is written: what the columns are, and what it will all cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.engines.samples import SampleMaker, plain_value, read_input
from shardctl.errors import InputError, Rejection
from shardctl.listing import Listing
from shardctl.plan import Labelling, Planner, SplitPlan, side_fields
from shardctl.recipe import Recipe
from shardctl.shard import ENCODED_IMAGE, Layout, ShardWriter, image_tensor

PROBE_INPUTS = {"image": 32, "text": 1024}
"""Inputs pushed through the recipe before the plan is made: always the same ones, so that the plan is too.

Text is cheap to read, and compresses in large blocks as it does not in small ones: 32 lines foretold twice the size.
"""


@dataclass(frozen=True)
class Estimate:
    """What a conversion will do, measured on a few inputs before anything is written. Sizes in bytes."""

    kind: str
    inputs: int
    input_bytes: int
    splits: tuple[SplitPlan, ...]
    classes: int | None
    labelled_by: str
    bytes: int
    free_bytes: int
    seconds: float
    probe_rejects: int
    ignored: dict[str, int]
    notices: tuple[str, ...]

    @property
    def shards(self) -> int:
        """How many shards will be written."""
        return sum(split.shards for split in self.splits)


@dataclass(frozen=True)
class Probe:
    """What a few inputs pushed through the recipe told."""

    layout: Layout
    bytes_per_sample: float
    seconds_per_sample: float
    rejected: int


def probe_inputs(planner: Planner, recipe: Recipe, bases: tuple[str, ...], labelling: Labelling, listing: Listing) -> Probe:
    """Push inputs from all over the plan through the recipe, into a shard in memory."""
    places = np.unique(np.linspace(0, len(planner) - 1, min(PROBE_INPUTS[recipe.kind], len(planner))).astype(np.int64))
    rows = planner.rows(places).to_pylist()
    layout = _layout(recipe, labelling, listing, _own_fields(recipe, bases, rows))
    maker = SampleMaker(recipe, layout)
    sink = pa.BufferOutputStream()
    writer = ShardWriter(sink, layout.schema("probe", 0, 1), recipe.compression)
    rejected = 0
    started = time.monotonic()
    for number, row in enumerate(rows):
        if number == 1:
            started = time.monotonic()  # the first one also loaded the decoders
        try:
            made = maker.make(read_input(bases, row), row)
            writer.add(made.values, made.size)
        except Rejection:
            rejected += 1
    writer.finish()
    seconds = (time.monotonic() - started) / max(1, len(rows) - 1)
    made_samples = max(1, len(rows) - rejected)
    return Probe(layout, sink.getvalue().size / made_samples, seconds, rejected)


def _own_fields(recipe: Recipe, bases: tuple[str, ...], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields that a user's functions make of a few inputs; empty where the recipe has no such function."""
    if not recipe.sample_transforms:
        return []
    maker, samples = SampleMaker(recipe), []
    reason: Rejection | None = None
    for row in rows:
        try:
            samples.append(maker.sample(read_input(bases, row), row))
        except Rejection as rejection:
            reason = rejection
    if not samples:
        assert reason is not None, "there is at least one row"
        raise InputError(f"none of {len(rows)} inputs came through the recipe, the last one because: {reason.message}")
    return samples


def _layout(recipe: Recipe, labelling: Labelling, listing: Listing, own: list[dict[str, Any]]) -> Layout:
    """Decide the columns of the shards: key, the content, label, columns of the labels files, variant."""
    fields = [pa.field("key", pa.string())]
    size = recipe.output_size
    shape = (size[1], size[0], 3) if size else None
    if recipe.store is not None:
        if own and recipe.store.name == "raw":
            shape = own[0]["image"].shape
        fields.append(pa.field("image", image_tensor(shape) if recipe.store.name == "raw" and shape else ENCODED_IMAGE))
    else:
        fields += list(listing.columns or [])
    side = side_fields(listing.side)
    if labelling.classes is not None or (listing.side and "label" in listing.side.columns.column_names):
        if "label" in [f.name for f in fields]:
            raise InputError("the inputs have a field label, and labels were to be added to them; use --labels none")
        fields.append(pa.field("label", pa.int64()))
    clash = {f.name for f in side} & {f.name for f in fields}
    if clash:
        raise InputError(f"the labels file has a column that the inputs have too: {', '.join(sorted(clash))}; rename it")
    fields += side
    if recipe.variants > 1:
        fields.append(pa.field("variant", pa.int32()))
    if own:
        fields = _with_own_fields(fields, own)
    store = str(recipe.store) if recipe.store else None
    fixed = shape if not own or (recipe.store and recipe.store.name == "raw") else None
    return Layout(recipe.kind, pa.schema(fields), store, fixed, labelling.classes)


def _with_own_fields(fields: list[pa.Field], samples: list[dict[str, Any]]) -> list[pa.Field]:
    """Return the columns after a user's functions: those that they dropped are gone, those that they made are added."""
    known = {f.name: f for f in fields}
    names = list(dict.fromkeys(name for sample in samples for name in sample if not name.startswith("_")))
    result = [f for f in fields if f.name in names]
    for name in names:
        if name == "variant" or (name in known and name in ("key", "image", "label")):
            continue
        values = [plain_value(sample.get(name)) for sample in samples]
        try:
            type_ = pa.array(values).type
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"the field {name} that your function makes has no single type ({error})") from error
        found = pa.field(name, pa.string() if pa.types.is_null(type_) else type_)
        if name in known:
            result[[f.name for f in result].index(name)] = found
        else:
            result.append(found)
    return result
