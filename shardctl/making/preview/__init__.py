"""Some inputs, converted as a conversion of all of them would: the same plan, columns, steps,
random numbers and encoding.

The samples are built by the engines of a conversion, a shard for each input, in a folder for
scratch. So an input that ends its process is a reject here too. Of a dataset, samples are shown beside what
a loader makes of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import InputError, UsageError
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.names import FILES
from shardctl.format.roles import Mask, Objects, Roles
from shardctl.format.tables import Reject
from shardctl.images.codecs.image import ImageEncoding
from shardctl.inspection.content.blocks import StoredSample, is_objects, some_blocks
from shardctl.making.commit.jobs import begin
from shardctl.making.commit.target import Target
from shardctl.making.convert.columns import known_layout, renamed, without_key
from shardctl.making.convert.conversion import Conversion, ConvertRequest, Inputs, list_inputs
from shardctl.making.convert.conversion_plan import (
    Draft,
    draft_anew,
    job_of,
    retrying_with_all_types,
    shards_of_plan,
)
from shardctl.making.convert.listener import ConversionProgress
from shardctl.making.options import chosen_options
from shardctl.making.paths import check_sources
from shardctl.making.plan.labels import write_files_table
from shardctl.making.plan.splits import SplitRule
from shardctl.making.shards.engines.local import local_engine
from shardctl.making.shards.job import Job
from shardctl.making.shards.marker import make_folders, read_marker
from shardctl.sources.types import without_nulls
from shardctl.system.folders import LocalFolder
from shardctl.system.permutation import evenly_spaced
from shardctl.system.progress import Progress, progress_of
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable
from shardctl.transforms.duplicates.rule import KEEP_ALL
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.overriding import recipe_while_reading
from shardctl.transforms.values import python_value

VARIANTS = 4
"""Variants that are shown of a random recipe where no number is given."""

SOURCE_STORE = "jpeg:95"
"""How the image of an input is stored before the recipe."""

UNREAD = frozenset(("plan", "read", "decode"))
"""Stages of a reject whose image cannot be shown before the recipe either."""


@dataclass(frozen=True)
class Tried:
    """One input, and what became of it.

    `bytes` is the size of its file, None for a record of a table. `source` is it before the recipe:
    upright, with its annotations; None where it cannot be shown. `samples` are as a dataset stores
    them; of its objects the steps have cut off `cut_off`, over all samples together. `reject` says
    why there are no samples, or only those that a conversion stores and none of the further
    variants.
    """

    key: str
    bytes: int | None
    source: StoredSample | None
    samples: tuple[StoredSample, ...]
    cut_off: int
    reject: Reject | None

    @property
    def records(self) -> list[StoredSample]:
        """Its samples, and behind them it before the recipe."""
        return [*self.samples, *([] if self.source is None else [self.source])]


@dataclass(frozen=True)
class Preview:
    """Some of the `total` inputs, before and after a recipe. `notices` are those of the conversion.

    There are `variants` of each input: more than the recipe says where it is random and says no
    number.
    """

    recipe: Recipe
    variants: int
    inputs: tuple[Tried, ...]
    total: int
    notices: tuple[str, ...]

    @property
    def samples(self) -> int:
        """How many samples were made."""
        return sum(len(each.samples) for each in self.inputs)

    @property
    def rejected(self) -> int:
        """How many inputs became no sample."""
        return sum(not each.samples for each in self.inputs)


def make_preview(
    src: Sequence[str | Path],
    recipe: dict[str, Any] | str | Path | None,
    inputs: int,
    keys: Sequence[str] = (),
    on_line: Callable[[str], None] = lambda line: None,
    progress: bool = True,
    **options: Any,
) -> Preview:
    """Convert a few inputs for a look at them, and write nothing but files for scratch.

    They are the inputs with `keys`, or else up to `inputs` from all over the sources. `recipe` and
    `options` are those of `convert`. Where the recipe is random and says no number of variants,
    VARIANTS are made of each input; the first is the sample that a conversion stores. `on_line`
    gets the lines that workers print. `progress` False shows no progress on stderr.

    Raises UsageError if the inputs are no images, InputError, StorageError, WorkerError.
    """
    chosen, given = chosen_options("preview", recipe, options)
    chosen.check()
    roots, split = tuple(check_sources(src)), SplitRule.parse(chosen.split)
    with scratch_folder() as scratch, progress_of(progress) as shown:
        target = Target(LocalFolder(scratch / "out"))
        request = ConvertRequest(roots, target.folder.root, given, chosen, split)
        engine = local_engine(chosen.workers, chosen.limits(), on_line)
        try:
            listener = ConversionProgress(shown).listener()
            _refuse_others(given.get("kind"))
            conversion = Conversion(request, listener, engine, target, asks_cost=False)
            found = list_inputs(conversion, scratch)
            # inputs are compared for no duplicates: that takes a look at all of them
            checked = replace(found.recipe, duplicates=KEEP_ALL)
            _refuse_others(checked.kind)
            if checked.store is not None and checked.store.name == "none":
                functions = checked.sample_transforms
                steps = tuple(step for step in checked.transform if step not in functions)
                checked = replace(checked, store=ImageEncoding.parse("png"), transform=steps)
                found.listing.notices.insert(
                    0, "store none: the images are shown as your functions get them"
                )
            is_open = given.get("variants") is None and checked.random
            variants = VARIANTS if is_open else checked.variants
            trial = _Trial(replace(found, recipe=checked), variants, shown)
            return retrying_with_all_types(lambda all_types: trial.run(inputs, keys, all_types))
        finally:
            engine.close()


def _refuse_others(kind: str | None) -> None:
    """Raise UsageError for a kind of samples that has no preview."""
    if kind not in ("image", "auto", None):
        raise UsageError(f"a preview is for images, and these are {kind}; convert and inspect them")


@dataclass(frozen=True)
class _Trial:
    """What makes a preview of a conversion."""

    inputs: Inputs
    variants: int
    shown: Progress

    def run(self, inputs: int, keys: Sequence[str], all_types: bool) -> Preview:
        """Make the samples of some inputs, with the types of all records or of some. Raises
        InputError, TypesDifferError."""
        recipe = self.inputs.recipe
        draft = draft_anew(self.inputs, all_types)
        total = draft.planner.inputs
        places = (
            [self._place_of(key, draft) for key in dict.fromkeys(keys)]
            if keys
            else evenly_spaced(total, inputs)
        )
        splits, _ = shards_of_plan(self.inputs, draft)
        of_all = job_of(self.inputs, self.inputs.scratch, draft, splits)
        job: Job = replace(of_all, draw=None)
        build = partial(self._build, draft, places)
        made = build(job, range(len(places)))
        if self.variants > recipe.variants:
            further = build(self._with_variants(job), range(len(places)))
            made = list(map(_with_further, made, further))
        shown = [
            place
            for place, each in enumerate(made)
            if each.reject is None or each.reject.stage not in UNREAD
        ]
        sources = build(self._as_they_are(job, draft), shown)
        for place, source in zip(shown, sources, strict=True):
            made[place] = replace(made[place], source=next(iter(source.samples), None))
        notices = (*draft.listing.warnings, *draft.listing.notices)
        return Preview(recipe, self.variants, tuple(made), total, notices)

    def _place_of(self, key: str, draft: Draft) -> int:
        """Return the place of a record in the plan. Raises InputError."""
        paths = draft.listing.table["path"]
        file, record = pc.index(paths, key).as_py(), 0
        if file < 0:
            path, _, number = key.rpartition("#")
            file, record = pc.index(paths, path).as_py(), int(number) if number.isdecimal() else -1
        place = draft.planner.place_of(file, record) if file >= 0 and record >= 0 else None
        if place is None:
            first = printable(paths[0].as_py())
            raise InputError(
                f"there is no input with the key {printable(key)}; a key is a path such as {first}"
                + ("" if draft.listing.whole else "#1, with the number of a record")
            )
        return place

    def _with_variants(self, job: Job) -> Job:
        """Return the job that makes all variants: not the one of the conversion, whose samples need
        not share the fate of further ones."""
        columns = job.layout.columns
        if "variant" not in columns.names:
            columns = columns.append(pa.field("variant", pa.int32()))
        recipe = replace(job.recipe, variants=self.variants)
        return replace(job, recipe=recipe, layout=replace(job.layout, columns=columns))

    def _as_they_are(self, job: Job, draft: Draft) -> Job:
        """Return the job that makes upright images of the inputs, and does no step of the
        recipe."""
        recipe = replace(
            job.recipe, transform=(), variants=1, store=ImageEncoding.parse(SOURCE_STORE)
        )
        content = draft.listing.kind.columns
        if not job.whole:
            content = without_key(renamed(without_nulls(job.fields), job.renames), recipe)
        of_records = {
            name: role
            for name, role in job.layout.roles.by_name.items()
            if isinstance(role, Mask | Objects) and content is not None and name in content.names
        }
        job = replace(job, recipe=recipe)
        layout = known_layout(job, draft.labelling, draft.listing, content, of_records)
        return replace(job, layout=layout)

    def _build(
        self, draft: Draft, places: Sequence[int], job: Job, shards: Sequence[int]
    ) -> list[Tried]:
        """Do a job on the records in these places of the plan, and return what became of those of
        some `shards`."""
        folder = Path(tempfile.mkdtemp(dir=self.inputs.scratch))
        files = draft.planner.write_each(folder, places)
        write_files_table(folder / FILES, draft.listing, draft.labelling, files)
        job = replace(job, folder=folder, apart=True)
        make_folders(folder)
        begin(job)
        told = ConversionProgress(self.shown)
        told.part("", len(shards), len(shards))
        told.building()
        self.inputs.conversion.engine.run(job, shards, told.progress)
        return [_tried(job, shard) for shard in shards]


def _tried(job: Job, shard: int) -> Tried:
    """Return what became of the one record of a shard."""
    planned, done = job.planned_at(shard), read_marker(job.marker_path(shard))
    reject = next(job.rejects(shard), None)
    size = planned.unit.size if job.whole else None
    records = tuple(_records(job.shards_root / done.path))
    return Tried(planned.key(), size, None, records, done.counts.cut_off or 0, reject)


def _with_further(tried: Tried, further: Tried) -> Tried:
    """Return an input with the samples that a conversion stores, and behind them those of more
    variants."""
    samples = (*tried.samples, *further.samples[len(tried.samples) :])
    # the first variant sees the same part of the image in both
    cut_off = max(tried.cut_off, further.cut_off)
    return replace(tried, samples=samples, cut_off=cut_off, reject=tried.reject or further.reject)


def _records(path: Path) -> Iterator[StoredSample]:
    """Yield the samples of a shard, nothing of which lies in its file any more."""
    for block in some_blocks(DatasetLocation(DatasetFolder(path.parent), path.name), None):
        for place in range(block.data.num_rows):
            record = block.record(place)
            arrays = {
                name: value.copy()
                for name, value in record.values.items()
                if isinstance(value, np.ndarray)
            }
            yield replace(record, values={**record.values, **arrays})


# --- some samples of a dataset, before and after the steps that a loader does in each epoch ---


def preview_reading(
    dst: str, inputs: int, keys: Sequence[str], epochs: int | None, given: Mapping[str, Any]
) -> Preview:
    """Return some samples of a dataset, each with what a loader makes of it in the first epochs.

    They are those with `keys`, or else up to `inputs` from all over the dataset. `given` are the
    arguments `recipe`, `step`, `transform` and `seed` of a loader. Raises DatasetError, UsageError,
    InputError.
    """
    # which a preview of sources does not need
    from shardctl.loader.blocks.pictures import most_pixels
    from shardctl.loader.dataset import open_dataset

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
        marked = epochs * (count_objects(source) or 0)
        cut = marked - sum(count_objects(each) or 0 for each in samples)
        tried.append(Tried(str(source.values["key"]), None, source, samples, cut, None))
    if lost := set(keys) - {each.key for each in tried}:
        raise InputError(f"there is no sample with the key {printable(min(lost))}")
    return Preview(replace(recipe, store=None), epochs, tuple(tried), len(whole), ())


def count_objects(record: StoredSample) -> int | None:
    """Return how many objects are marked in a sample; None where it has none of the columns, or was
    not annotated."""
    values = [record.values.get(name) for name in record.roles.objects]
    counts = [len(value["bbox"]) for value in values if value is not None and is_objects(value)]
    return sum(counts) if counts else None


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
