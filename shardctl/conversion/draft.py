"""The draft of a conversion, made before anything is written: the plan, the columns, the shards, the cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.conversion.options import Options
from shardctl.engines.job import Job
from shardctl.engines.local import Engine
from shardctl.engines.probe import Probe
from shardctl.engines.samples import Root
from shardctl.errors import InputError, UsageError
from shardctl.listing import Listing
from shardctl.machine import usable_cores
from shardctl.manifest import PLAN
from shardctl.plan import Labelling, Planner, PlanSettings, SplitPlan, make_planner, side_fields
from shardctl.recipe import Recipe
from shardctl.shard import ENCODED_IMAGE, Layout, image_tensor
from shardctl.sources.boxes import place_columns
from shardctl.sources.labels import some
from shardctl.spread import spread
from shardctl.storage import free_bytes

SHARD_BYTES = 128 << 20
"""Default target size of a shard. Defaults and advice of other tools: 50 to 150 MB."""

FEWEST_SHARDS = 16
"""A small dataset is still cut into this many shards (of SMALLEST_SHARD_ROWS or more), so that workers can share the work."""

SMALLEST_SHARD_ROWS = 8

PROBE_INPUTS = {"image": 32, "text": 1024}
"""Inputs pushed through the recipe before the plan is made: always the same ones, so that the plan is too.

Text is cheap to read, and compresses better in large blocks than in small ones: 32 lines gave an estimate of twice the size.
"""


@dataclass(frozen=True)
class Draft:
    """A conversion that is decided on and not begun: what makes the rows of its plan, and its job but for the folder.

    `probed` inputs were tried; a sample takes `sample_bytes` on average, over all inputs.
    """

    planner: Planner
    probe: Probe
    probed: int
    sample_bytes: float
    splits: tuple[SplitPlan, ...]

    def job(self, folder: Path, roots: tuple[Root, ...], recipe: Recipe, parts: dict[str, str]) -> Job:
        """Return the job in its folder."""
        return Job(
            folder,
            roots,
            recipe,
            self.probe.layout,
            self.splits,
            parts,
            sample_bytes=self.sample_bytes,
            sample_seconds=self.probe.sample_seconds,
            shard_bytes=self.probe.shard_bytes,
            probed=self.probed,
            probe_rejects=self.probe.rejected,
        )


def make_draft(
    listing: Listing,
    recipe: Recipe,
    settings: PlanSettings,
    options: Options,
    roots: tuple[Root, ...],
    engine: Engine,
    folder: Path,
) -> Draft:
    """Plan a conversion, having probed some of its inputs. `folder` is for scratch. Raises InputError."""
    planner = make_planner(listing, settings, recipe.variants)
    probe_job = Job(folder, roots, recipe, _known_layout(recipe, planner.labelling, listing), (), {})
    places = spread(len(planner), PROBE_INPUTS[recipe.kind])
    planner.write(folder / PLAN, np.array(places, np.int64))
    probe_job.save()
    probe = engine.probe(probe_job)
    sample_bytes = _sample_bytes(probe, recipe, listing)
    splits = tuple(SplitPlan(name, rows, _shards_of(rows, sample_bytes, options)) for name, rows in planner.split_rows)
    return Draft(planner, probe, len(places), sample_bytes, splits)


def _sample_bytes(probe: Probe, recipe: Recipe, listing: Listing) -> float:
    """Return the average size of a sample in bytes.

    Where large inputs make large samples, the few that were tried may be larger or smaller than most, and the sizes of all
    inputs are known. The photos of `shardctl demo` were estimated at 1.4 times their size before this was taken into account.
    """
    if not probe.input_bytes or (recipe.store is not None and recipe.transforms):
        return probe.sample_bytes
    return probe.sample_bytes * listing.total_bytes / len(listing) / probe.input_bytes


def _known_layout(recipe: Recipe, labelling: Labelling, listing: Listing) -> Layout:
    """Decide the columns of the shards, but for what a user's functions make of them.

    In this order: key, the content, label, columns of the labels files, variant.
    """
    fields = [pa.field("key", pa.string())]
    size = recipe.output_size
    shape = (size[1], size[0], 3) if size else None
    if recipe.store is not None:
        fields.append(pa.field("image", image_tensor(shape) if recipe.store.name == "raw" and shape else ENCODED_IMAGE))
    else:
        fields += list(listing.columns or [])
    side = side_fields(listing.side)
    _refuse_places(recipe, side)
    if labelling.classes is not None or (listing.side and "label" in listing.side.columns.column_names):
        if "label" in [f.name for f in fields]:
            raise InputError("the inputs have a field label, and labels were to be added to them; use --labels none")
        fields.append(pa.field("label", pa.int64()))
    clash = {f.name for f in side} & {f.name for f in fields}
    if clash:
        names = ",".join(sorted(clash))
        raise InputError(
            f"the labels file has a column that the inputs have too: {names}; rename it in the labels file, or leave it out"
            f" with --drop-columns {names}"
        )
    fields += side
    if recipe.variants > 1:
        fields.append(pa.field("variant", pa.int32()))
    store = str(recipe.store) if recipe.store else None
    return Layout(recipe.kind, pa.schema(fields), store, shape, labelling.classes)


def _refuse_places(recipe: Recipe, side: list[pa.Field]) -> None:
    """Raise UsageError if columns are places in the image, and the recipe moves the pixels."""
    places = place_columns(side) if recipe.views else []
    if places:
        columns = ",".join(dict.fromkeys(name.partition(".")[0] for name in places))
        raise UsageError(
            f"{recipe.views[0].name} moves what is in the images, but not the places in {some(places)} of the labels file;"
            f" leave {recipe.views[0].name} out, or leave out the columns with --drop-columns {columns}"
        )


def _shards_of(rows: int, sample_bytes: float, options: Options) -> int:
    """Return the number of shards of a split with `rows` rows."""
    if options.samples_per_shard:
        return max(1, -(-rows // options.samples_per_shard))
    if options.shard_size:
        return max(1, min(rows, round(rows * sample_bytes / options.shard_size)))
    by_size = -(-int(rows * sample_bytes) // SHARD_BYTES)
    return max(1, by_size, min(FEWEST_SHARDS, rows // SMALLEST_SHARD_ROWS))


@dataclass(frozen=True)
class Estimate:
    """What a conversion will do, measured on a few inputs before anything is written. Sizes in bytes.

    `rows` and `shards` are those of all splits; every row becomes a sample unless it is rejected. `bytes` is the size of all
    shards, also of those that an earlier run finished, where as many inputs are rejected as of those that were tried:
    `probe_rejects`. `seconds` is the time for all of it, `classes` the number of classes, None without names. `ignored`
    counts files that are no inputs by the ending of their name; `notices` say what was decided.
    """

    kind: str
    inputs: int
    input_bytes: int
    splits: tuple[SplitPlan, ...]
    rows: int
    shards: int
    classes: int | None
    labelled_by: str
    bytes: int
    free_bytes: int
    seconds: float
    probe_rejects: int
    ignored: dict[str, int]
    notices: tuple[str, ...]


def _origin_of_labels(layout: Layout, listing: Listing) -> str:
    if "label" not in layout.columns.names:
        return "nothing"
    if listing.side is not None:
        return "labels file"
    by_field = listing.label_names is not None or (listing.columns is not None and "label" in listing.columns.names)
    return "field label" if by_field else "folder"


def estimate(job: Job, listing: Listing, options: Options, target: Path) -> Estimate:
    """Estimate what a job will write, and how long it will take."""
    workers = max(1, min(options.worker_count(), usable_cores()))
    classes = job.layout.classes
    samples = job.rows * (1 - job.probe_rejects / job.probed) if job.probed else job.rows
    return Estimate(
        kind=job.recipe.kind,
        inputs=len(listing),
        input_bytes=listing.total_bytes,
        splits=job.splits,
        rows=job.rows,
        shards=job.shards,
        classes=len(classes) if classes is not None else None,
        labelled_by=_origin_of_labels(job.layout, listing),
        bytes=int(samples * job.sample_bytes) + job.shards * job.shard_bytes,
        free_bytes=free_bytes(target),
        seconds=job.rows * job.sample_seconds / workers,
        probe_rejects=job.probe_rejects,
        ignored=dict(listing.ignored),
        notices=tuple(listing.notices),
    )
