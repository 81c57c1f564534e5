"""A conversion in parts (`convert --part I/N`): each process builds some of the shards, and
`finish` makes them the dataset.

The first part to come plans the conversion, and leaves the job where all of them find it; the
others wait for that, and list nothing. A part has neighbouring shards, so that it reads
neighbouring files.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path

import numpy as np

from shardctl.errors import (
    CONTINUES,
    BusyError,
    DatasetError,
    InputError,
    PerhapsBusyError,
    TypesDifferError,
    UnfinishedError,
    UsageError,
    explaining_interrupts,
)
from shardctl.format.arrays import Numbers
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST, STAGING
from shardctl.format.tables import count_reasons
from shardctl.making.commit import open_target
from shardctl.making.commit.commit import sweep
from shardctl.making.commit.jobs import (
    clear_partial_files,
    finished_shards,
    has_made,
    marked_shards,
)
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.convert.begin import begin_job
from shardctl.making.convert.build import build_shards, telling_what_is_done
from shardctl.making.convert.commit_job import commit_job, manifest_of_earlier_call, refuse_many
from shardctl.making.convert.conversion import Conversion, ConvertRequest
from shardctl.making.convert.estimate import announce
from shardctl.making.convert.listener import Listener
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.rejects import refuse_many_rejects
from shardctl.making.convert.result import ConvertResult, PartDone, has_own_labels, result_of
from shardctl.making.convert.run import with_inputs
from shardctl.making.convert.write_tables import (
    Provenance,
    provenance_of,
    write_generation,
)
from shardctl.making.options import IF_RUNNING, Options, Part, reject_limit
from shardctl.making.paths import check_sources, destination_of
from shardctl.making.plan.fingerprint import difference, fingerprint, parts_without_sources
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.making.shards import engines
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.job import RECIPE_FOLDER, DatasetJob, SourceBase
from shardctl.system.file_lease import LOOK_SECONDS, Waiting
from shardctl.system.files import exists, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.locations import is_url
from shardctl.system.progress import Phase, Progress, Report, progress_of
from shardctl.system.text import counted, printable
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.table import refuse_unnamed_functions, user_functions

PARTED = "parted.json"
"""The file in the folder of a job that is built in parts: see Parted."""

_OF_A_RUN = (
    "workers engine max_rejects if_running worker_memory input_timeout copy_rejects "
    "dry_run explain metrics part"
)
NOT_OF_THE_PLAN = frozenset(_OF_A_RUN.split())
"""Options that may differ between parts of the same conversion."""


@dataclass(frozen=True)
class Parted:
    """What the parts of a conversion, and `finish`, must know beside its job.

    `asked` stands for the arguments, in which all parts agree, `parts` is how many there are.
    `labelled` says that records have their labels themselves.
    """

    asked: str
    parts: int
    closing: Provenance
    labelled: bool

    @classmethod
    def load(cls, folder: Path) -> Parted | None:
        """Return what was saved in the folder of a job, None if it is not built in parts, or by
        another version of shardctl."""
        try:
            record = json.loads((folder / PARTED).read_bytes())
            return cls(**{**record, "closing": Provenance(**record["closing"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None


def run_part(request: ConvertRequest, listener: Listener, target: Target) -> ConvertResult:
    """Build a part of a conversion, and plan the conversion before if no part has. Raises what
    `convert` does."""
    part, options = Part.parse(str(request.options.part)), request.options
    started = time.monotonic()
    check_sources(request.roots)
    with (
        engines.started(
            options.engine, options.workers, options.limits(), listener.on_line
        ) as engine,
        ExitStack() as stack,
    ):
        begun = _begin(request, part, listener, engine, target, stack)
        if isinstance(begun, ConvertResult):
            return begun
        job, held = begun
        target.entrust(job, held)
        chosen = parts_of(np.arange(job.shards), job.shards, part.parts) == part.number
        chosen &= job.kept == NOT_KEPT
        clear_partial_files(job, chosen)
        own = np.flatnonzero(chosen).tolist()
        records = sum(job.planned_shard(shard).records for shard in own)
        listener.part(str(part), int(chosen.sum()), records)
        before = before_of(job, target)
        target.fetch_done(job, chosen)
        try:
            with telling_what_is_done(job, chosen):
                made = build_shards(job, chosen, before, engine, options.max_rejects, listener)
        except TypesDifferError as error:
            raise InputError(
                f"{error}; give the types (--schema), or convert without --part"
            ) from error
        held.check()
        target.fetch_done(job, chosen)  # other parts have gone on meanwhile
        seconds = time.monotonic() - started
        facts = [
            (done.facts.rows, done.facts.bytes, done.rejected)
            for _, done in finished_shards(job, chosen)
        ]
        samples, size, rejected = np.sum([(0, 0, 0), *facts], axis=0).tolist()
        reasons, examples = count_reasons(chain.from_iterable(map(job.rejects, own)))
        return ConvertResult(
            status="built",
            samples=samples,
            shards=len(own),
            bytes=size,
            rejected=rejected,
            seconds=seconds,
            samples_per_s=made / seconds,
            fingerprint=fingerprint(job.parts),
            reasons=reasons,
            examples=examples,
            part=PartDone(str(part), len(marked_shards(job)), int((job.kept == NOT_KEPT).sum())),
        )


def _begin(
    request: ConvertRequest,
    part: Part,
    listener: Listener,
    engine: Engine,
    target: Target,
    stack: ExitStack,
) -> tuple[DatasetJob, WriteLease] | ConvertResult:
    """Return the job, planned if need be, and the lease of the part; or the result where nothing is
    left to do."""
    waiting = listener.waiting if request.options.if_running == "wait" else None
    announced = ""
    while True:
        # Who waits for a part too holds this lease now and then, for a moment: of that nothing is
        # said.
        quiet = waiting and ((lambda owner: None) if announced else waiting)
        with target.lease_beside_parts(quiet) as held:
            found: DatasetJob | ConvertResult | None = _job_of(request, target.folder, part)
            if found is None:
                # of another conversion, whose job gives way to the new one
                target.await_parts(waiting)
                found = _plan(Conversion(request, listener, engine, target, held))
            if isinstance(found, ConvertResult):
                return found
            try:
                return found, stack.enter_context(target.part_lease(found.folder, part.name))
            except BusyError as error:
                if waiting is None and not isinstance(error, PerhapsBusyError):
                    raise
                busy = f"part {part}: {error.owner or 'one that is just ending'}"
        if waiting is not None and busy != announced:
            waiting(busy)
            announced = busy
        time.sleep(LOOK_SECONDS)


def _job_of(request: ConvertRequest, place: LocalFolder, part: Part) -> DatasetJob | None:
    """Return the job that a part has begun which was asked for the same; None if there is none.

    Raises UsageError if it has another number of parts, DatasetError if this machine would build
    other shards.
    """
    digest = _digest(request)
    for folder in parted_jobs(place):
        parted = Parted.load(folder.root)
        if parted is None or parted.asked != digest:
            continue
        shown = place.shown()
        if parted.parts != part.parts:
            raise UsageError(
                f"{shown}: the conversion was begun in {parted.parts} parts; give --part "
                f"I/{parted.parts}"
            )
        named = user_functions({"transform": request.recipe.get("transform")})
        refuse_unnamed_functions(JobFolder(folder.root).record()["recipe"], named, shown, "a part")
        job = DatasetJob.load(folder)
        planned = job.parts
        here = {**planned, **parts_without_sources(job.recipe, parted.closing.settings)}
        if here != planned:
            raise DatasetError(
                f"{shown}: the conversion was planned with other {difference(planned, here)} "
                "than here; all parts need the same"
            )
        return job
    return None


def parted_jobs(folder: LocalFolder) -> list[LocalFolder]:
    """Return the folders of the jobs at a destination that are built in parts: one, unless
    something is left over."""
    staging = folder.below(STAGING)
    jobs = sorted(path.parent for path in staging.root.glob(f"*/{PARTED}"))
    return [staging.below(job.name) for job in jobs if JobFolder(job).is_begun()]


def _digest(request: ConvertRequest) -> str:
    """Return what stands for the arguments that decide the plan."""
    names = (each.name for each in fields(Options) if each.name not in NOT_OF_THE_PLAN)
    decides = {name: getattr(request.options, name) for name in names}
    roots = [root.recorded for root in request.roots]
    record = json.dumps([roots, dict(request.recipe), decides], sort_keys=True, default=str)
    return hashlib.sha256(record.encode()).hexdigest()[:32]


def _plan(conversion: Conversion) -> DatasetJob | ConvertResult:
    """Plan the conversion, or go on with a job that was begun without parts, and leave it for the
    parts: their machines may see the sources on other devices. Return the result if the dataset is
    there already."""
    planned = with_inputs(conversion, begin_job)
    if isinstance(planned, ConvertResult):
        return planned
    job, listing = planned.job, planned.listing
    if planned.is_resumed:
        announce(planned)
    job = replace(job, bases=tuple(SourceBase.anywhere(base.path) for base in job.bases))
    job.save()
    parted = Parted(
        asked=_digest(conversion.request),
        parts=Part.parse(str(conversion.options.part)).parts,
        closing=provenance_of(planned.inputs, planned.previous, None),
        labelled=has_own_labels(listing),
    )
    write_atomically(job.folder / PARTED, json.dumps(asdict(parted)).encode())
    conversion.target.begun(job)
    return job


def parts_of(numbers: Numbers, shards: int, parts: int) -> Numbers:
    """Return which part builds each of some shards, (n,), by their numbers among all shards."""
    first = shards * np.arange(parts + 1, dtype=np.int64) // parts
    found: Numbers = np.searchsorted(first, numbers, side="right") - 1
    return found


def before_of(job: DatasetJob, target: Target) -> PreviousDataset | None:
    """Return the dataset that a job brings up to date, None for none. Raises DatasetError if it is
    another one by now."""
    if not job.digest_before:
        return None
    folder = target.folder
    target.fetch_dataset()
    manifest = Manifest.load(folder)
    if manifest.samples_digest != job.digest_before:
        raise DatasetError(
            f"{folder.shown()}: has changed since its update was planned; delete {STAGING} in "
            "it, and run all parts again"
        )
    return PreviousDataset(folder, manifest)


NAMED_PARTS = 8
"""Parts with missing shards that are named."""


@explaining_interrupts(CONTINUES)
def finish(
    dst: str | Path,
    max_rejects: str | int | None = None,
    if_running: str = "wait",
    waiting: Waiting = lambda owner: None,
    progress: bool = True,
) -> ConvertResult:
    """Complete the dataset at `dst` from the shards that the parts of a conversion have built.

    `progress` False shows no progress on stderr.

    Raises UnfinishedError if shards are missing; it names their parts. Raises DatasetError if there
    is nothing to finish, TooManyRejectsError, BusyError and StorageError. A dataset that was
    finished before is up to date.
    """
    began = time.monotonic()
    IF_RUNNING.check("if_running", if_running)
    reject_limit(max_rejects, 1)
    wait = waiting if if_running == "wait" else None
    here = Path(dst)
    if not is_url(dst) and here.is_dir() and any(here.iterdir()):
        # with files, and with nothing of a dataset or a conversion
        ours = exists(here / MANIFEST) or exists(here / STAGING)
        if not ours:
            raise _nothing_to_finish(printable(dst))
    with progress_of(progress) as shown, open_target(destination_of(dst, [])) as target:
        folder = target.folder
        if parted_jobs(folder):
            with target.lease_beside_parts(wait) as held:
                jobs = parted_jobs(folder)
                if jobs and not has_made(jobs[0].root, target.manifest()):
                    return _finish(jobs[0], target, max_rejects, held, wait, began, shown)
                # it was committed by a call that was killed
                target.await_parts(wait)
                sweep(target, held)
        target.fetch_dataset()
        if not folder.path(MANIFEST).exists():
            raise _nothing_to_finish(folder.shown())
        manifest = Manifest.load(folder)
        target.refuse_lost_files(manifest)
        refuse_many_rejects(folder, manifest, max_rejects)
        return result_of(folder, "up-to-date", time.monotonic() - began)


def _nothing_to_finish(shown: str) -> DatasetError:
    return DatasetError(
        f"{shown}: there are no parts to finish; build them first (`shardctl convert SRC DST "
        "--part I/N`)"
    )


def _finish(
    job_folder: LocalFolder,
    target: Target,
    max_rejects: str | int | None,
    held: WriteLease,
    waiting: Waiting | None,
    began: float,
    shown: Progress,
) -> ConvertResult:
    """Make the dataset of the job in a folder."""
    folder, there = target.folder, target.manifest()
    recipe_files = job_folder.path(RECIPE_FOLDER)
    parted = Parted.load(job_folder.root)
    if parted is None:
        raise DatasetError(
            f"{job_folder.shown()}: not a job of this version of shardctl; use the one that "
            "built the parts"
        )
    recipe = Recipe.without_functions(JobFolder(job_folder.root).record()["recipe"], recipe_files)
    job = DatasetJob.load(job_folder, recipe)
    before = before_of(job, target)
    target.entrust(job, held)
    target.fetch_done(job, np.ones(job.shards, bool))
    made = manifest_of_earlier_call(job, target, parted.closing.keep, max_rejects)
    if made is None:
        _refuse_missing(job, parted, target, shown.counter(Phase("checking", "shards")))
        shown.close()
    # one that was given up for dead may still be writing the same bytes again
    target.await_parts(waiting)
    status = "created" if there is None else "updated"
    with telling_what_is_done(job):
        if made is None:
            made = write_generation(
                job, parted.closing, before, target, shown.counter(Phase("finishing", "shards"))
            )
            refuse_many(made, max_rejects)
    held.check()
    commit_job(job, made, before, target, held, max_rejects)
    seconds = time.monotonic() - began
    result = result_of(folder, status, seconds, job.notices, job.warnings, parted.labelled)
    return replace(result, changes=job.changes)


def _refuse_missing(job: DatasetJob, parted: Parted, target: Target, report: Report) -> None:
    """Raise UnfinishedError if shards are missing, with the parts that they are of."""
    missing = job.kept == NOT_KEPT
    for done, (shard, _) in enumerate(finished_shards(job, missing.copy())):
        missing[shard] = False
        report(done, job.shards)
    if not missing.any():
        return
    building = target.parts_being_built()
    counts = Counter(parts_of(np.flatnonzero(missing), job.shards, parted.parts).tolist())
    parts = [Part(number, parted.parts) for number in sorted(counts)]
    said = []
    for part in parts:
        builder = f", which {building[part.name]} builds" if part.name in building else ""
        said.append(f"{counts[part.number]:,} of part {part}{builder}")
    more = f"; and {len(said) - NAMED_PARTS:,} more parts" if len(said) > NAMED_PARTS else ""
    first = next((part for part in parts if part.name not in building), None)
    advice = f"run them (`shardctl convert … --part {first}`)" if first else "wait for their ends"
    raise UnfinishedError(
        f"{target.folder.shown()}: {counted(int(missing.sum()), 'shard')} of {job.shards:,} are "
        "missing:"
        f" {'; '.join(said[:NAMED_PARTS])}{more}. {advice[0].upper()}{advice[1:]}, and finish again"
    )
