"""Rebuilding damaged shards: the job that made them, and its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.engines.job import DONE_FOLDER, NEW_FOLDER, Job
from shardctl.engines.samples import Root
from shardctl.engines.task import MARKER_SCHEMA, Done, read_marker
from shardctl.errors import DatasetError
from shardctl.listing import LabelRule, list_inputs
from shardctl.manifest import PLAN, REJECTS, SHARDS, Manifest, Reject, ShardTable, open_checked_table, read_rejects
from shardctl.plan import PlanSettings, SplitPlan, make_planner
from shardctl.recipe import Recipe
from shardctl.shard import Layout, ShardFacts, ShardReader
from shardctl.sources import SOURCES
from shardctl.splitting import SplitRule
from shardctl.storage import copy_file, naming_the_path, printable, sha256_of

LOST = "lost"
"""The reason, in rejects.jsonl, of a sample that was dropped because its shard and its source were gone."""


@dataclass(frozen=True)
class Lost:
    """A sample of a damaged shard that cannot be made from its source any more."""

    key: str
    source: str
    shard: str
    reason: str


def recorded_job(root: Path, folder: Path, manifest: Manifest, recipe: Recipe, layout: Layout, bases: list[str]) -> Job:
    """Return the job that makes the same shards from the dataset's own plan, proving every input by its digest."""
    with naming_the_path(folder):
        try:
            (folder / PLAN).symlink_to(root / PLAN)
        except OSError:  # a file system without links
            copy_file(root / PLAN, folder / PLAN)
    plan = open_checked_table(root / PLAN)
    shard = plan["shard"].to_numpy()
    splits, first = [], 0
    for split in manifest.splits:
        rows = int(np.count_nonzero((shard >= first) & (shard < first + split.shards)))
        splits.append(SplitPlan(split.name, rows, split.shards))
        first += split.shards
    return _begin(folder, manifest, recipe, layout, bases, tuple(splits))


def fresh_job(folder: Path, manifest: Manifest, recipe: Recipe, layout: Layout, bases: list[str]) -> Job:
    """Return the job that makes the dataset from its sources as they are now. Raises InputError if they are gone."""
    settings = manifest.settings
    drop = [str(name) for name in settings.get("drop_columns", [])]
    labels = LabelRule.parse(str(settings["labels"]), bool(settings["lenient_labels"]), drop)
    rules = PlanSettings(SplitRule.parse(settings["split"]), labels, settings["shuffle"], recipe.seed)
    roots = [Path(source) for source in manifest.sources]
    listing = list_inputs(roots, SOURCES[recipe.kind](), labels, folder / "listing.arrow", lambda _: None)
    planner = make_planner(listing, rules, recipe.variants)
    shards = {split.name: split.shards for split in manifest.splits}
    if [name for name, _ in planner.split_rows] != list(shards) or len(planner) != manifest.inputs:
        raise DatasetError(
            f"the sources have {len(planner)} inputs now, the dataset was made from {manifest.inputs}; convert them again"
            " with --overwrite"
        )
    planner.write(folder / PLAN)
    splits = tuple(SplitPlan(name, rows, shards[name]) for name, rows in planner.split_rows)
    return _begin(folder, manifest, recipe, layout, bases, splits)


def _begin(
    folder: Path, manifest: Manifest, recipe: Recipe, layout: Layout, bases: list[str], splits: tuple[SplitPlan, ...]
) -> Job:
    with naming_the_path(folder):
        for made in (NEW_FOLDER, DONE_FOLDER):
            (folder / made).mkdir()
    roots = tuple(Root.anywhere(base) for base in bases)
    job = Job(folder, roots, recipe, layout, splits, manifest.fingerprint_parts)
    job.save()
    return job


def find_layout(root: Path, manifest: Manifest, intact: set[str]) -> Layout:
    """Return the layout that the shards were written with, from whatever is intact and knows it. Raises DatasetError."""
    if SHARDS in intact:
        return Layout.loads(ShardTable(root / SHARDS).making.layout)
    for name in sorted(intact - set(manifest.files)):
        return ShardReader(root / name).layout
    raise DatasetError(f"no shard is left, nor {SHARDS}, to tell what the columns were; convert again with --overwrite")


def shards_with_rejects(plan: pa.Table) -> set[int]:
    """Return the numbers of the shards that have rejected inputs."""
    return set(pc.unique(plan.filter(pc.equal(plan["outcome"], "rejected"))["shard"]).to_pylist())


def lost_samples(job: Job, shard: int) -> Iterator[Lost]:
    """Yield the samples that a recorded job could not make again."""
    place = job.place(shard)
    outcomes = read_marker(job.marker_path(shard)).outcomes.to_pylist()
    planned = job.plan.slice(place.first_row, place.rows).select(["key", "source", "outcome"]).to_pylist()
    for row, outcome in zip(planned, outcomes, strict=True):
        if row["outcome"] == "ok" and outcome["row"] is None:
            yield Lost(row["key"], row["source"], place.name, outcome["message"])


class Outcomes:
    """What became of every shard, for the tables: from its marker where it was built again, else from what is intact.

    Asked for in the order of the dataset.
    """

    def __init__(self, root: Path, job: Job, intact: set[str]) -> None:
        self._root, self._job = root, job
        self._table = ShardTable(root / SHARDS) if SHARDS in intact else None
        self._plan = open_checked_table(root / PLAN) if PLAN in intact else None
        self._reasons = read_rejects(root / REJECTS) if REJECTS in intact else None

    def __call__(self, shard: int) -> Done:
        """Return what became of a shard."""
        marker = self._job.marker_path(shard)
        built = read_marker(marker) if marker.exists() else None
        recorded = self._recorded(shard)
        if built is None:
            assert recorded is not None, "shards that nothing is recorded of were all built again"
            return Done(self._facts(shard), (), _table(recorded), self._labels(shard))
        if recorded is None:
            return built
        return Done(built.facts, built.shapes, _table(_merged(recorded, built.outcomes.to_pylist())), built.labels)

    def _recorded(self, shard: int) -> list[dict[str, object]] | None:
        """Return the outcomes of a shard as plan.arrow and rejects.jsonl have them; None if one of them is damaged."""
        if self._plan is None:
            return None
        place = self._job.place(shard)
        rows = self._plan.slice(place.first_row, place.rows).select(["row", "digest"]).to_pylist()
        if self._reasons is None:
            return rows if all(row["row"] is not None for row in rows) else None
        reasons = (next(self._reasons) if row["row"] is None else None for row in rows)
        return [{**row, **(_why(reason) if reason else {})} for row, reason in zip(rows, reasons, strict=True)]

    def _labels(self, shard: int) -> dict[int, int] | None:
        """Count the labels of a shard where functions may have set them; None if they are those of the plan."""
        if not self._job.recipe.sample_transforms or self._job.layout.classes is None:
            return None
        labels: Counter[int] = Counter()
        for block in ShardReader(self._root / self._job.place(shard).name).blocks():
            labels.update(block.column("label").drop_null().to_pylist())
        return dict(labels)

    def _facts(self, shard: int) -> ShardFacts:
        if self._table is not None:
            entry = self._table[shard]
            return ShardFacts(entry.rows, entry.bytes, entry.raw_bytes, entry.sha256, entry.block_rows)
        return shard_facts(self._root / self._job.place(shard).name)


def _why(reject: Reject) -> dict[str, object]:
    return {"stage": reject.stage, "error": reject.error, "message": reject.message}


def _merged(recorded: list[dict[str, object]], built: list[dict[str, object]]) -> list[dict[str, object]]:
    """Join the outcomes of a shard that was built again: what was rejected before keeps its reason."""
    merged: list[dict[str, object]] = []
    for old, new in zip(recorded, built, strict=True):
        if old["row"] is not None and new["row"] is None:
            message = f"dropped by repair: {new['message']}"
            merged.append({"row": None, "digest": None, "stage": "read", "error": LOST, "message": message})
        else:
            merged.append({**old, "row": new["row"]})
    return merged


def _table(outcomes: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(outcomes, schema=MARKER_SCHEMA)


def shard_facts(path: Path) -> ShardFacts:
    """Return the facts of a shard, from the file itself. Raises DatasetError."""
    reader = ShardReader(path)
    blocks = [(block.num_rows, block.nbytes) for block in reader.blocks()]
    rows = tuple(count for count, _ in blocks)
    try:
        sha256 = sha256_of(path)
    except OSError as error:
        raise DatasetError(f"{printable(str(path))}: cannot be read ({error.strerror or error})") from error
    return ShardFacts(sum(rows), reader.bytes, sum(size for _, size in blocks), sha256, rows)
