"""Samples on their way into the rows of a shard, counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shardctl.build.shards.image_facts import jpegs_of_column, shapes_of_column
from shardctl.build.shards.previous_samples import PreviousSamples, PreviousUnits
from shardctl.build.shards.retry_hints import BuildAgain
from shardctl.build.shards.rows import Rows
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.build.shards.shard_totals import MOST_SHAPES, ShardTotals, UnitOutcome
from shardctl.errors import DatasetError
from shardctl.format.shard_copy import objects_of
from shardctl.system.processes.worker_state import NOWHERE
from shardctl.transforms.pipeline.made_sample import MadeSample


class SampleWriter:
    """Puts samples into the rows of a shard, and counts them."""

    def __init__(self, build: ShardBuild, rows: Rows, totals: ShardTotals) -> None:
        self._build, self._job, self._progress = build, build.job, build.progress
        self.rows, self.totals = rows, totals

    def add_record(self, made: list[MadeSample], outcome: UnitOutcome) -> None:
        """Add the samples of one record, which the progress slot names."""
        totals = self.totals
        totals.inputs += 1
        outcome.samples += len(made)
        totals.samples += len(made)
        place, record = self._progress.at
        for sample in made:
            self.rows.add(sample, place, record)
            totals.count_sample(sample)

    def add_batch(self, batch: pa.RecordBatch, outcome: UnitOutcome) -> None:
        """Add samples that are a batch with the columns of the shard. Their records are the
        caller's to count."""
        place, record = self._progress.place, self._progress.record
        self.rows.add_batch(batch)
        if place != NOWHERE:
            self._progress.begin(place, record)
        outcome.samples += batch.num_rows
        self.totals.count_batch(batch, self._job.layout)

    def add_previous(self, previous: PreviousSamples, units: PreviousUnits) -> BuildAgain | None:
        """Add units that the dataset before has made: of files that are one record each.

        A shard of it that is damaged has this one built again, from the sources alone.
        """
        totals, layout, store = self.totals, self._job.layout, self._job.recipe.store
        first_rows = self.rows.first_row + np.cumsum(units.samples) - units.samples
        outcomes = zip(first_rows.tolist(), units.samples.tolist(), units.digests, strict=True)
        totals.outcomes += [
            UnitOutcome(first_row, samples, digest=digest)
            for first_row, samples, digest in outcomes
        ]
        totals.inputs += len(units.samples)
        image = layout.roles.main_image if store is not None and store.name != "none" else None
        try:
            for batch in previous.samples(units, layout.columns):
                totals.count_batch(batch, layout)
                jpegs = (
                    jpegs_of_column(batch, image)
                    if image is not None and self._job.keeps_sources
                    else []
                )
                self.rows.add_made(batch, objects_of(batch, layout), jpegs)
                if image is not None and len(totals.shapes) < MOST_SHAPES:
                    totals.count_shapes(
                        shapes_of_column(batch, image) if units.shape is None else {units.shape}
                    )
        except DatasetError as error:
            return BuildAgain(
                self._build.hints.with_anew(), f"a shard of the dataset before is damaged ({error})"
            )
        return None
