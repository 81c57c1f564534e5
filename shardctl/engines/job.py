"""What a worker must know to build any shard of a conversion: a folder with job.json, the plan, and what is made of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.engines.samples import Root
from shardctl.errors import DatasetError
from shardctl.manifest import PLAN, open_table, shard_name
from shardctl.plan import SplitPlan
from shardctl.recipe import Recipe
from shardctl.shard import Layout
from shardctl.storage import printable, write_atomically

JOB = "job.json"
NEW_FOLDER = "new"
"""The folder that becomes the dataset: finished shards, and in the end the tables and the manifest."""

DONE_FOLDER = "done"
"""The folder of the markers."""


@dataclass(frozen=True)
class ShardPlace:
    """One shard of a job: its split, its number within it, and its rows of the plan."""

    split: SplitPlan
    local: int
    first_row: int
    rows: int

    @property
    def name(self) -> str:
        """The file name of the shard."""
        return shard_name(self.split.name, self.local, self.split.shards)


@dataclass(frozen=True)
class Job:
    """A conversion, ready to be worked on. `folder` holds everything of it until the commit.

    `parts` are those of its fingerprint. `sample_bytes` and `sample_seconds` are what a sample costs, and `shard_bytes` what
    a shard takes beside its samples, as the probe measured it; of the `probed` inputs `probe_rejects` were rejected.
    """

    folder: Path
    roots: tuple[Root, ...]
    recipe: Recipe
    layout: Layout
    splits: tuple[SplitPlan, ...]
    parts: dict[str, str]
    sample_bytes: float = 0.0
    sample_seconds: float = 0.0
    shard_bytes: int = 0
    probed: int = 0
    probe_rejects: int = 0

    def save(self) -> None:
        """Write job.json, which says that the job is ready: its plan and its folders come before."""
        record = {
            "roots": [asdict(root) for root in self.roots],
            "recipe": self.recipe.settings(),
            "layout": self.layout.to_json(),
            "splits": [asdict(split) for split in self.splits],
            "parts": self.parts,
            "sample_bytes": self.sample_bytes,
            "sample_seconds": self.sample_seconds,
            "shard_bytes": self.shard_bytes,
            "probed": self.probed,
            "probe_rejects": self.probe_rejects,
        }
        write_atomically(self.folder / JOB, json.dumps(record).encode())

    @classmethod
    def load(cls, folder: Path, recipe: Recipe | None = None) -> Job:
        """Read job.json. A process that has the `recipe` passes it: then no function is imported because the file names it.

        Raises DatasetError, or UsageError for its recipe, if this version of shardctl did not write it, or for another recipe.
        """
        try:
            record: dict[str, Any] = json.loads((folder / JOB).read_bytes())
            changed = {
                "folder": folder,
                "roots": tuple(Root(**root) for root in record["roots"]),
                "recipe": recipe or Recipe.from_settings(record["recipe"]),
                "layout": Layout.loads(record["layout"]),
                "splits": tuple(SplitPlan(**split) for split in record["splits"]),
            }
            if recipe and record["recipe"] != json.loads(json.dumps(recipe.settings())):
                raise ValueError("it has another recipe")
            return cls(**{**record, **changed})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise DatasetError(f"{printable(str(folder / JOB))}: not a job of this version of shardctl ({error})") from error

    @property
    def shards(self) -> int:
        """How many shards there are in all splits together."""
        return sum(split.shards for split in self.splits)

    @property
    def rows(self) -> int:
        """How many rows its plan has, over all splits."""
        return sum(split.rows for split in self.splits)

    def place(self, shard: int) -> ShardPlace:
        """Return where shard `shard` (counted over all splits) lies."""
        row = 0
        for split in self.splits:
            if shard < split.shards:
                first, rows = split.range_of(shard)
                return ShardPlace(split, shard, row + first, rows)
            shard -= split.shards
            row += split.rows
        raise IndexError(f"no shard {shard}")

    def shard_path(self, shard: int) -> Path:
        """Path of the finished shard until the commit."""
        return self.folder / NEW_FOLDER / self.place(shard).name

    def marker_path(self, shard: int) -> Path:
        """Path of the marker of a finished shard, with the outcome of each of its inputs."""
        return self.folder / DONE_FOLDER / f"{shard:07d}.arrow"

    @cached_property
    def plan(self) -> pa.Table:
        """The plan, memory-mapped."""
        return open_table(self.folder / PLAN)
