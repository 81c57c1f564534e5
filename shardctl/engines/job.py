"""What a worker must know to build any shard of a conversion: job.json in the staging folder, and the plan beside it."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.manifest import PLAN, open_table, shard_name
from shardctl.plan import SplitPlan
from shardctl.recipe import Recipe
from shardctl.shard import Layout
from shardctl.storage import write_atomically

JOB = "job.json"
SHARDS_FOLDER = "shards"
DONE_FOLDER = "done"


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
    """A conversion, ready to be worked on. `staging` is the folder that holds its files until the commit."""

    staging: Path
    roots: tuple[str, ...]
    kind: str
    recipe: Recipe
    layout: Layout
    splits: tuple[SplitPlan, ...]

    def save(self) -> None:
        """Write job.json."""
        record = {
            "roots": self.roots,
            "kind": self.kind,
            "recipe": self.recipe.settings(),
            "schema": base64.b64encode(self.layout.columns.serialize()).decode("ascii"),
            "fields": self.layout.fields(),
            "splits": [asdict(split) for split in self.splits],
        }
        write_atomically(self.staging / JOB, json.dumps(record).encode())

    @classmethod
    def load(cls, staging: Path) -> Job:
        """Read job.json."""
        record: dict[str, Any] = json.loads((staging / JOB).read_bytes())
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record["schema"])))
        return cls(
            staging=staging,
            roots=tuple(record["roots"]),
            kind=record["kind"],
            recipe=Recipe.from_settings(record["recipe"]),
            layout=Layout.from_json(record["kind"], record["fields"], columns),
            splits=tuple(SplitPlan(**split) for split in record["splits"]),
        )

    @property
    def shards(self) -> int:
        """How many shards there are in all splits together."""
        return sum(split.shards for split in self.splits)

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
        """Where the finished shard lies until the commit."""
        return self.staging / SHARDS_FOLDER / self.place(shard).name

    def marker_path(self, shard: int) -> Path:
        """The marker that says that the shard is finished, and what became of each of its inputs."""
        return self.staging / DONE_FOLDER / f"{shard:07d}.arrow"

    @cached_property
    def plan(self) -> pa.Table:
        """The plan, memory-mapped."""
        return open_table(self.staging / PLAN)
