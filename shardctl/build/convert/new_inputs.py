"""What became of the inputs that an update has added, or that have changed: among all inputs of a
dataset they may be few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardctl.build.convert.rejects import likely_encoding, may_be_encoding
from shardctl.build.convert.result import MANY_REJECTS
from shardctl.build.convert.update.match import Matching
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.listing import Listing
from shardctl.build.shards.job import NEW_FOLDER, Job
from shardctl.format.names import PLAN, REJECTS
from shardctl.format.tables import (
    PLAN_SCHEMA,
    Reject,
    ShardTable,
    count_reasons,
    failures,
    open_table,
    read_rejects,
    taken,
)
from shardctl.sources.label_table import some
from shardctl.system.folders import LocalFolder
from shardctl.system.text import counted, printable

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SHOWN = 3
"""How many files a warning names."""


@dataclass(frozen=True)
class NewInputs:
    """The files of a listing that are new, or have changed, since a dataset was made.

    `files` are their rows in the listing, in order, `is_new` says which of them were not there, and
    `samples` is how many each gave before: (files,) each.
    """

    files: Numbers
    is_new: Flags
    samples: Numbers

    @classmethod
    def of(cls, matching: Matching, before: PreviousDataset) -> NewInputs:
        """Return those that differ from the dataset before."""
        files = np.flatnonzero(~matching.same)
        rows = matching.before[files]
        is_new = rows < 0
        samples = np.zeros(len(files), np.int64)
        samples[~is_new] = before.samples_of_files[rows[~is_new]]
        return cls(files, is_new, samples)


@dataclass(frozen=True)
class Checked:
    """What should be checked of new and changed inputs, as `warnings`. `loses` says why they had
    better not replace the others.

    That is "" unless most of them could not be converted, and changed files give fewer samples than
    before for it.
    """

    warnings: tuple[str, ...] = ()
    loses: str = ""


def check_new(job: Job, inputs: NewInputs, listing: Listing) -> Checked:
    """Return which new and changed files give no sample, and whether most of their records were
    rejected. The job is done.

    A file without samples is named if it gave some before, or may have many records.
    """
    if not len(inputs.files):
        return Checked()
    places, new = np.full(len(listing), -1, np.int64), job.folder / NEW_FOLDER
    places[inputs.files] = np.arange(len(inputs.files))
    records, rejected, made = _counts(job, places)
    empty = records <= rejected
    lost, barren = (
        empty & (inputs.samples > 0),
        empty & (rejected > 0) & inputs.is_new & (not listing.whole),
    )
    many = int(rejected.sum()) > int(records.sum()) * MANY_REJECTS
    if not (many or lost.any() or barren.any()):
        return Checked()
    failed = np.zeros(len(inputs.files), np.int64)
    for place, reject in _rejects(new, places):
        failed[place] += reject.records * bool(failures({f"{reject.stage}: {reject.error}": 1}))
    # a filter may leave out all of a file; one that is empty now has no rejects
    lost &= (failed > 0) | (rejected == 0)
    barren &= failed > 0
    listed = f". {REJECTS} of the dataset lists all of them"
    said, loses = list[str](), ""
    if lost.any():
        before = counted(int(inputs.samples[lost].sum()), "sample")
        some_have, of_it = _subject(listing, inputs.files[lost], "has", "have")
        why = ", since there are no records any more"
        if rejected[lost].any():
            why = f"{_why((reject for place, reject in _rejects(new, places) if lost[place]), listing)}{listed}"
        said.append(
            f"{some_have} changed, and no sample comes of {of_it} any more ({before} before){why}"
        )
    if barren.any():
        some_are, of_it = _subject(listing, inputs.files[barren], "is", "are")
        why = _why((reject for place, reject in _rejects(new, places) if barren[place]), listing)
        said.append(f"{some_are} new, and no sample comes of {of_it}{why}{listed}")
    new_or_changed = counted(int(records.sum()), "new or changed input")
    fewer = int(np.maximum(inputs.samples - made, 0)[failed > 0].sum())
    if failed.sum() > records.sum() * MANY_REJECTS and fewer:
        of_changed = f"{counted(fewer, 'sample')} of changed files would be lost"
        of_all = _why((reject for _, reject in _rejects(new, places)), listing)
        loses = (
            f"{int(failed.sum()):,} of {new_or_changed} could not be converted, and "
            f"{of_changed}{of_all}"
        )
    if many and rejected[~(lost | barren)].any():
        were = "was" if rejected.sum() == 1 else "were"
        of_all = _why((reject for _, reject in _rejects(new, places)), listing)
        said.append(f"{int(rejected.sum()):,} of {new_or_changed} {were} rejected{of_all}{listed}")
    return Checked(tuple(said), loses)


def _counts(job: Job, places: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return how many records the chosen files of a job have, how many were rejected, and how many
    samples came of the others.

    Each is (chosen,). `places` has the place of each file among those that are chosen, -1 for
    another one: (files,). Blank lines are no records, which a plan counts, unless samples are
    joined of several records.
    """
    plan = open_table(LocalFolder(job.folder / NEW_FOLDER), PLAN, PLAN_SCHEMA)
    place = places[plan["file"].to_numpy()]
    rows = np.flatnonzero(place >= 0)
    rejected, planned, made = np.zeros((3, int(places.max()) + 1), np.int64)
    np.add.at(rejected, place[rows], plan["rejected"].to_numpy()[rows])
    np.add.at(made, place[rows], plan["samples"].to_numpy()[rows])
    if job.draw is not None:  # each split has all units
        entries = ShardTable(LocalFolder(job.folder / NEW_FOLDER))
        of_first = np.array([entry.split == entries[0].split for entry in entries])
        rows = rows[of_first[plan["shard"].to_numpy()[rows]]]
    np.add.at(planned, place[rows], plan["records"].to_numpy()[rows])
    return (planned if job.recipe.joins else np.minimum(planned, made + rejected)), rejected, made


def _rejects(new: Path, places: Numbers) -> Iterator[tuple[int, Reject]]:
    """Yield the rejects of the chosen files of a dataset, each with the place of its file; `places`
    is that of `_counts`."""
    plan, rejects = open_table(LocalFolder(new), PLAN, PLAN_SCHEMA), read_rejects(LocalFolder(new))
    counts = plan["rejected"].to_numpy()
    units = np.flatnonzero(counts)
    for place, count in zip(
        places[plan["file"].to_numpy()[units]].tolist(), counts[units].tolist(), strict=True
    ):
        for reject in taken(rejects, count):
            if place >= 0:
                yield place, reject


def _why(rejects: Iterable[Reject], listing: Listing) -> str:
    """Return why records were rejected, with the main reason and an example, as the end of a
    sentence."""
    counts, examples = count_reasons(rejects)
    reason = next(iter(failures(counts)), next(iter(counts)))
    example = dict(zip(counts, examples, strict=True))[reason]
    message, encoding = example.message, ""
    if (
        may_be_encoding(example, listing)
        and (found := likely_encoding(example, listing)) is not None
    ):
        message, encoding = (
            message.partition(";")[0],
            f". The file looks like {found.known}: write it as UTF-8",
        )
    return (
        f". Most frequent ({counts[reason]:,}): {reason}, for instance "
        f"{printable(example.key)}: {printable(message)}{encoding}"
    )


def _subject(listing: Listing, files: Numbers, verb: str, of_several: str) -> tuple[str, str]:
    """Return some files as the subject of a sentence with its verb, and what they are called after
    that."""
    names = listing.paths_at(files[:SHOWN])
    shown = some(names) if len(files) <= SHOWN else f"{some(names)} and {len(files) - SHOWN:,} more"
    return (f"{shown} {verb}", "it") if len(files) == 1 else (f"{shown} {of_several}", "them")
