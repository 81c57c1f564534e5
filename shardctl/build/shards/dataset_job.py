"""The job that makes a whole dataset, as it is planned: new, brought up to date, or repaired."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from shardctl.build.plan.plan import SplitPlan
from shardctl.build.shards.costs import Costs
from shardctl.build.shards.job import Job
from shardctl.build.shards.lineage import Lineage
from shardctl.build.shards.planned import Root
from shardctl.build.shards.record_reading import RecordReading
from shardctl.format.layout import Layout
from shardctl.transforms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class DatasetJob(Job):
    """A job with what its planner and its commit need, and no worker does. All of it is in
    job.json, side by side."""

    lineage: Lineage
    costs: Costs = field(default_factory=Costs)

    def _record(self) -> dict[str, Any]:
        return {**super()._record(), **vars(self.lineage), **vars(self.costs)}

    @classmethod
    def _arguments(
        cls, record: dict[str, Any], folder: Path, recipe: Recipe | None
    ) -> dict[str, Any]:
        lineage = {f.name: record[f.name] for f in fields(Lineage) if f.name in record}
        costs = {f.name: record[f.name] for f in fields(Costs) if f.name in record}
        return {
            **super()._arguments(record, folder, recipe),
            "lineage": Lineage(**{**lineage, "warnings": tuple(lineage.get("warnings", ()))}),
            "costs": Costs(**costs),
        }


def plan_job(
    folder: Path,
    roots: tuple[Root, ...],
    recipe: Recipe,
    layout: Layout,
    splits: tuple[SplitPlan, ...],
    reading: RecordReading,
    lineage: Lineage,
    *,
    shuffle: int | None,
    costs: Costs | None = None,
    recorded: bool = False,
) -> DatasetJob:
    """Return the job that makes a dataset in a folder that has, or gets, its tables.

    `shuffle` is the seed of the order, None where it is that of the inputs. `recorded` says that
    the plan is that of a finished dataset.
    """
    return DatasetJob(
        folder,
        roots,
        recipe,
        layout,
        splits,
        **vars(reading),
        shuffle=shuffle,
        recorded=recorded,
        lineage=lineage,
        costs=costs or Costs(),
    )
