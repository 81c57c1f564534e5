"""The dataset and the jobs that a conversion finds at its target, and what it does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardctl.build.commit.staging import unfinished
from shardctl.build.convert.conversion import Conversion
from shardctl.build.convert.decision import UPDATING, Action, Decision, Wanted, decide
from shardctl.build.convert.inputs import Inputs
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.fingerprint import fingerprint
from shardctl.format.manifest import Manifest
from shardctl.sources.roots import SourceRoot


@dataclass(frozen=True)
class Situation:
    """The dataset that is `there`, None for none, and the decision what the conversion does.

    `before` is the same dataset with its tables, if the job updates it or adds to it; else None.
    """

    there: Manifest | None
    decision: Decision
    before: PreviousDataset | None

    @property
    def up_to_date(self) -> Manifest | None:
        """The dataset that is there, if the conversion would make the same one; else None."""
        return self.there if self.decision.action is Action.UP_TO_DATE else None


def find_situation(
    conversion: Conversion, inputs: Inputs, there: Manifest | None, begun: Mapping[str, str]
) -> Situation | None:
    """Decide by the dataset that is there now, and by the unfinished jobs that have `begun` (see
    `decide`).

    None: another dataset has taken its place, so that all is to be looked at again. Raises the
    error of a refusal, and DatasetError if a table of the dataset is damaged that is to be
    followed.
    """
    options = conversion.options
    moved = options.moved_from if there is not None else ()
    wanted = Wanted(
        shown=conversion.folder.text,
        parts=inputs.parts,
        sources=inputs.sources,
        moved=[SourceRoot.of(old).recorded for old in moved],
        updates=options.update,
        appends=options.append,
        overwrites=options.overwrite,
        recipe=conversion.recipe.to_json(),
        settings=conversion.request.recorded_settings(conversion.recipe),
        existing=inputs.existing,
    )
    decision = decide(wanted, there, begun)
    if decision.refusal is not None:
        raise decision.refusal
    if decision.action is Action.LOOK_AGAIN:
        return None
    before = conversion.existing.before(there) if there is not None and decision.follows else None
    return None if decision.follows and before is None else Situation(there, decision, before)


def begun_jobs(conversion: Conversion, inputs: Inputs) -> dict[str, str]:
    """Return the names of the unfinished jobs of this conversion, each with the digest of the
    dataset that it updates."""
    name = fingerprint(inputs.parts)
    names = (name, f"{name}{UPDATING}")
    jobs = {
        name: unfinished(conversion.staging.path(name), inputs.bases, conversion.recipe)
        for name in names
    }
    return {name: job.lineage.updates for name, job in jobs.items() if job is not None}
