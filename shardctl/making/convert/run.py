"""A conversion from its request to its result: list the inputs, decide, plan, build the shards,
commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from shardctl.errors import InputError, TooManyRejectsError
from shardctl.format.manifest import Manifest
from shardctl.making.commit.commit import sweep
from shardctl.making.commit.jobs import clear_partial_files
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.convert.begin import begin_job, plan_only
from shardctl.making.convert.build import build_shards, telling_what_is_done
from shardctl.making.convert.commit_job import (
    checking_pool,
    commit_job,
    manifest_of_earlier_call,
)
from shardctl.making.convert.conversion import Conversion, ConvertRequest, Inputs, list_inputs
from shardctl.making.convert.conversion_plan import PlannedJob, retrying_with_all_types
from shardctl.making.convert.decision import Decision, decide, job_names
from shardctl.making.convert.estimate import announce
from shardctl.making.convert.existing import use_existing
from shardctl.making.convert.listener import Listener, metered
from shardctl.making.convert.previous import DatasetReplacedError
from shardctl.making.convert.result import ConvertResult, explained, finished
from shardctl.making.convert.write_tables import provenance_of, write_generation
from shardctl.making.shards import engines
from shardctl.system.scratch import scratch_folder

Made = TypeVar("Made")


def run(
    request: ConvertRequest, listener: Listener, target: Target, held: WriteLease | None = None
) -> ConvertResult:
    """Convert as requested. `held` is the lease of the target where the caller has it. Raises what
    `convert` does."""
    options = request.options
    with (
        metered(listener, options.metrics) as told,
        engines.started(options.engine, options.workers, options.limits(), told.on_line) as engine,
    ):
        try:
            return with_inputs(Conversion(request, told, engine, target, held), _convert)
        except TooManyRejectsError as error:
            if options.copy_rejects is None or options.dry_run:
                raise
            raise TooManyRejectsError(
                f"{error} (no rejected input was copied: --copy-rejects needs a complete "
                "conversion)"
            ) from error


def with_inputs(
    conversion: Conversion, act: Callable[[Inputs, Decision, WriteLease], Made]
) -> ConvertResult | Made:
    """List the inputs, decide, and return the result where nothing is to be built, else what `act`
    makes of them: no other process writes meanwhile. All begins again where another process has
    replaced the dataset."""
    asked = conversion.request
    while True:
        try:
            if asked.alone:
                conversion = replace(conversion, request=asked.as_made(conversion.target))
            with scratch_folder() as scratch:
                inputs = list_inputs(conversion, scratch)
                if conversion.options.explain:
                    return explained(inputs)
                decision = decide(inputs)
                if decision is Decision.NOTHING:
                    return use_existing(inputs)
                if conversion.options.dry_run:
                    return plan_only(inputs, decision)
                with conversion.leased() as held:
                    try:
                        if job_names(inputs).intersection(sweep(conversion.target, held)):
                            # a process was killed right after it had committed what is wanted
                            conversion.target.fetch_dataset()
                            return finished(inputs, "resumed", 0, inputs.listing)
                        return act(inputs, decision, held)
                    finally:
                        # before the lease is released: workers of two must not write side by side
                        conversion.engine.close()
        except DatasetReplacedError:
            continue


def _convert(inputs: Inputs, decision: Decision, held: WriteLease) -> ConvertResult:
    """Plan a job or find an unfinished one, build its shards, and commit them."""
    target, options = inputs.conversion.target, inputs.conversion.options

    def make(all_types: bool) -> ConvertResult:
        planned = begin_job(inputs, decision, held, all_types)
        job, samples = planned.job, 0
        with checking_pool(planned) as checks:
            keep, most = options.keep_generations, options.max_rejects
            manifest = manifest_of_earlier_call(job, target, keep, most)
            if manifest is None:
                samples, manifest = _build(planned, held)
            commit_job(job, manifest, planned.previous, target, held, most, checks)
        return replace(finished(inputs, planned.status, samples, job), changes=job.changes)

    return retrying_with_all_types(make)


def _build(planned: PlannedJob, held: WriteLease) -> tuple[int, Manifest]:
    """Build the shards that are left of a job, and write its tables and its manifest. Return the
    number of samples that were made, and the manifest."""
    job, previous, conversion = planned.job, planned.previous, planned.inputs.conversion
    target, shards, is_resumed = conversion.target, np.ones(job.shards, bool), planned.is_resumed
    target.entrust(job, held)
    if is_resumed:
        clear_partial_files(job)
        job.save()  # workers find the sources where they are now
        announce(planned)
    target.fetch_done(job, shards)
    with telling_what_is_done(job):
        most = conversion.options.max_rejects
        samples = build_shards(job, shards, previous, conversion.engine, most, conversion.listener)
        held.check()
        seconds = conversion.seconds if previous is None and not is_resumed else None
        provenance = provenance_of(planned.inputs, previous, seconds)
        try:
            return samples, write_generation(job, provenance, previous, target)
        except InputError:  # the sources hold no records: there is nothing to go on with
            sweep(target, held, [job.folder.name])
            raise
