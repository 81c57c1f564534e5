"""Shards of which every input was rejected are left out of a dataset: the shards beside them take
their units.

The others keep their names, and so their bytes: the numbers of those that are left out are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.convert.update.outcomes import Outcomes
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.marker import ShardMarker, rows_made
from shardctl.format.counts import Counts, add_counts


@dataclass(frozen=True)
class Filled:
    """The shards of a built job that have samples; a split without any keeps its first one.

    `job` has these shards alone. Each stands for the shards of `built` from its number in `starts`
    on, up to that of the next: (shards + 1,) int64. Of these it is the one in `chosen`: (shards,)
    int64.
    """

    job: DatasetJob
    built: Outcomes
    starts: npt.NDArray[np.int64]
    chosen: npt.NDArray[np.int64]

    @property
    def planned(self) -> dict[str, int]:
        """How many shards each split was divided into, by its name."""
        return {split.name: split.shards for split in self.built.job.splits}

    def _members(self, shard: int) -> range:
        return range(int(self.starts[shard]), int(self.starts[shard + 1]))

    def done(self, shard: int) -> ShardMarker:
        """Return what became of a shard, and of the units that it takes over."""
        members, chosen = self._members(shard), int(self.chosen[shard])
        own = self.built.done(chosen)
        if len(members) == 1:
            return own
        made = [own if member == chosen else self.built.done(member) for member in members]
        rows = [0 if member < chosen else own.facts.rows for member in members]
        units = [
            each.units if each is own else _at(each.units, row)
            for each, row in zip(made, rows, strict=True)
        ]
        return replace(
            own,
            inputs=sum(each.inputs for each in made),
            rejected=sum(each.rejected for each in made),
            units=pa.concat_tables(units),
            steps=_together(made),
        )

    def lines(self, shard: int, done: ShardMarker) -> Iterator[bytes]:
        """Yield the lines of the rejects of a shard."""
        members = self._members(shard)
        for member in members:
            yield from self.built.lines(
                member, done if len(members) == 1 else self.built.done(member)
            )


def _together(made: list[ShardMarker]) -> tuple[Counts, ...]:
    """Return what became of the records of several shards in each step."""
    steps: list[Counts] = []
    for each in made:
        steps = add_counts(steps, each.steps)
    return tuple(steps)


def _at(units: pa.Table, row: int) -> pa.Table:
    """Return units without samples as they are in a shard behind so many rows."""
    return units.set_column(0, units.schema.field(0), pa.array(np.full(len(units), row)))


def without_empty(built: Outcomes) -> Filled | Outcomes:
    """Return the shards of a built job, which keeps none of before, that have samples; the same
    where all have.

    Where models are called with several records of a shard, all stay: other units before these
    would make other calls.
    """
    job = built.job
    filled = np.fromiter(
        (rows_made(job.marker_path(shard)) > 0 for shard in range(job.shards)), bool, job.shards
    )
    if filled.all() or job.recipe.models:
        return built
    begins, chosen = divided([split.shards for split in job.splits], filled)
    return Filled(job.with_shards(begins[:-1], chosen), built, begins, chosen)


def divided(
    planned: Sequence[int], filled: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return `starts` and `chosen` of a Filled, of splits with so many shards each, of which some
    are filled: (shards,).

    A shard without samples goes to the one before it, or to the first one of its split that has
    some.
    """
    of_split = np.repeat(np.arange(len(planned)), planned).tolist()
    starts, chosen = list[int](), list[int]()
    for shard, (split, has_samples) in enumerate(zip(of_split, filled.tolist(), strict=True)):
        if not starts or split != of_split[starts[-1]] or (has_samples and filled[chosen[-1]]):
            starts.append(shard)
            chosen.append(shard)
        elif has_samples:
            chosen[-1] = shard
    return np.array([*starts, len(filled)], np.int64), np.array(chosen, np.int64)
