"""A conversion in parts (`convert --part I/N`): each process builds some of the shards, and `merge` makes them the dataset.

The first part to come plans the conversion, and leaves the job where all of them find it; the others wait for that, and list
nothing. A part has neighbouring shards, so that it reads neighbouring files.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardctl.build.commit import publish
from shardctl.build.commit.staging import clear_partial_files_of, finished_shards, marked_shards, record_of
from shardctl.build.convert.converting import Conversion, conversion_of
from shardctl.build.convert.execute import Chosen, build, telling_what_is_done
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.manifest_writer import Closing
from shardctl.build.convert.options import Options, Part, check_sources
from shardctl.build.convert.request import Asked
from shardctl.build.convert.result import ConvertResult, PartDone, has_own_labels
from shardctl.build.convert.targets.base import Destination, Held
from shardctl.build.convert.update.previous import Before
from shardctl.build.plan.fingerprint import difference, fingerprint, parts_without_sources
from shardctl.build.plan.listing import Listing
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.engines import registry
from shardctl.build.shards.engines.base import Engine
from shardctl.build.shards.job import Root
from shardctl.errors import BusyError, DatasetError, InputError, PerhapsBusyError, TypesDifferError, UsageError
from shardctl.format.lazy_folder.files import exists
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, STAGING
from shardctl.format.tables import Reject, count_reasons, read_rejects
from shardctl.sources.remote import remote_files
from shardctl.sources.walk import recorded
from shardctl.system.files import write_atomically
from shardctl.system.lease.file_lease import LOOK_SECONDS
from shardctl.system.text import printable
from shardctl.transforms.recipe import refuse_unnamed_functions, user_functions

PARTED = "parted.json"
"""The file in the folder of a job that is built in parts: see Parted."""

_OF_A_RUN = "workers engine max_rejects if_running worker_memory input_timeout copy_rejects dry_run explain metrics part"
NOT_OF_THE_PLAN = frozenset(_OF_A_RUN.split())
"""Options that may differ between parts of the same conversion."""


@dataclass(frozen=True)
class Parted:
    """What the parts of a conversion, and `merge`, must know beside its job.

    `asked` stands for the arguments, in which all parts agree, `parts` is how many there are. `notices` and `warnings` are
    those of the plan. `labelled` says that records have their labels themselves.
    """

    asked: str
    parts: int
    closing: Closing
    notices: tuple[str, ...]
    warnings: tuple[str, ...]
    labelled: bool

    def save(self, folder: Path) -> None:
        """Write this into the folder of a job."""
        write_atomically(folder / PARTED, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> Parted | None:
        """Return what was saved in the folder of a job, None if it is not built in parts, or by another version of shardctl."""
        try:
            record = json.loads((folder / PARTED).read_bytes())
            closing = Closing(**{**record["closing"], "sources": tuple(record["closing"]["sources"])})
            said = {name: tuple(record[name]) for name in ("notices", "warnings")}
            return cls(**{**record, **said, "closing": closing})
        except (OSError, ValueError, KeyError, TypeError):
            return None


def run_part(asked: Asked, listener: Listener, place: Destination) -> ConvertResult:
    """Build a part of a conversion, and plan the conversion before if no part has. Raises what `convert` does."""
    part = Part.parse(str(asked.options.part))
    options, started = asked.options, time.monotonic()
    check_sources(asked.roots)
    engine = registry.start(options.engine, options.workers, options.limits(), listener.on_line)
    try:
        with ExitStack() as stack:
            stack.enter_context(remote_files.in_use())
            begun = _begin(asked, part, listener, engine, place, stack)
            if isinstance(begun, ConvertResult):
                return begun
            job, parted, held = begun
            return _Building(part, job, parted, asked, started, place).run(engine, listener, held)
    finally:
        engine.close()


def _begin(
    asked: Asked, part: Part, listener: Listener, engine: Engine, place: Destination, stack: ExitStack
) -> tuple[DatasetJob, Parted, Held] | ConvertResult:
    """Return the job, planned if need be, and the lease of the part; or the result where nothing is left to do."""
    waiting = listener.waiting if asked.options.if_running == "wait" else None
    told = ""
    while True:
        # Who waits for a part too holds this lease now and then, for a moment: of that nothing is said.
        with place.planning(waiting and (_say_nothing if told else waiting)) as held:
            found: tuple[DatasetJob, Parted] | ConvertResult | None = _job_of(asked, part)
            if found is None:
                place.await_parts(waiting)  # of another conversion, whose job gives way to the new one
                found = _plan(asked, listener, engine, place, held)
            if isinstance(found, ConvertResult):
                return found
            try:
                return *found, stack.enter_context(place.building(found[0].folder, f"{part}"))
            except BusyError as error:
                if waiting is None and not isinstance(error, PerhapsBusyError):
                    raise
                busy = f"part {part}: {error.owner or 'one that is just ending'}"
        if waiting is not None and busy != told:
            waiting(busy)
            told = busy
        time.sleep(LOOK_SECONDS)


def _say_nothing(owner: str) -> None:
    """Wait without a word."""


def _job_of(asked: Asked, part: Part) -> tuple[DatasetJob, Parted] | None:
    """Return the job that a part has begun which was asked for the same; None if there is none.

    Raises UsageError if it has another number of parts, DatasetError if this machine would build other shards.
    """
    digest = _digest(asked)
    for folder in parted_jobs(asked.target):
        parted = Parted.load(folder)
        if parted is None or parted.asked != digest or publish.is_taking_its_place(folder):
            continue
        shown = printable(str(asked.target))
        if parted.parts != part.parts:
            raise UsageError(f"{shown}: the conversion was begun in {parted.parts} parts; give --part I/{parted.parts}")
        named = user_functions({"transform": asked.settings.get("transform")})
        refuse_unnamed_functions(record_of(folder)["recipe"], named, asked.target, "a part")
        job = DatasetJob.load(folder)
        planned = job.lineage.parts
        here = {**planned, **parts_without_sources(job.recipe, parted.closing.settings)}
        if here != planned:
            raise DatasetError(
                f"{shown}: the conversion was planned with other {difference(planned, here)} than this machine has; all parts"
                " need the same"
            )
        return job, parted
    return None


def parted_jobs(target: Path) -> list[Path]:
    """Return the folders of the jobs at a destination that are built in parts: one, unless something is left over."""
    return sorted(path.parent for path in (target / STAGING).glob(f"*/{PARTED}"))


def _digest(asked: Asked) -> str:
    """Return what stands for the arguments that decide the plan."""
    given = {each.name: getattr(asked.options, each.name) for each in fields(Options)}
    decides = {name: value for name, value in given.items() if name not in NOT_OF_THE_PLAN}
    roots = [recorded(root) for root in asked.roots]
    record = json.dumps([roots, dict(asked.settings), decides], sort_keys=True, default=str)
    return hashlib.sha256(record.encode()).hexdigest()[:32]


class _Planning(Conversion):
    """A conversion that ends where its shards would be built."""

    job: tuple[DatasetJob, Parted] | None = None

    def _complete(self, job: DatasetJob, status: str, listing: Listing, engine: Engine, held: Held) -> ConvertResult:
        """Leave the job for the parts: their machines may see the sources on other devices."""
        expected = self.expected or self._announce(job, listing)
        job = replace(job, roots=tuple(Root.anywhere(root.path) for root in job.roots))
        job.save()
        parts, said = Part.parse(str(self.options.part)).parts, tuple(listing.notices)
        parted = Parted(_digest(self.asked), parts, self._closing(None), said, self._warnings(listing), has_own_labels(listing))
        parted.save(job.folder)
        self.place.begun(job)
        self.job = job, parted
        return self._only_planned(expected, fingerprint(job.lineage.parts), listing)


def _plan(
    asked: Asked, listener: Listener, engine: Engine, place: Destination, held: Held
) -> tuple[DatasetJob, Parted] | ConvertResult:
    """Plan the conversion, or go on with a job that was begun without parts; the result if the dataset is there already."""
    planning = conversion_of(_Planning, asked, listener, engine, place, held)
    result = planning.run()
    return result if planning.job is None else planning.job


@dataclass(frozen=True)
class _Building:
    """A part that is being built."""

    part: Part
    job: DatasetJob
    parted: Parted
    asked: Asked
    started: float
    place: Destination

    def run(self, engine: Engine, listener: Listener, held: Held) -> ConvertResult:
        """Build what is left of the part."""
        self.place.entrust(self.job, held)
        job, chosen = self.job, self._chosen
        clear_partial_files_of(job, chosen)
        records = sum(job.place(shard).records for shard in np.flatnonzero(chosen).tolist())
        listener.part(str(self.part), int(chosen.sum()), records)
        before = before_of(job, self.place)
        self.place.bring_done(job, chosen)
        try:
            with telling_what_is_done(job, chosen):
                made = build(job, chosen, before, engine, self.asked.options.max_rejects, listener)
        except TypesDifferError as error:
            raise InputError(
                f"{error}; the parts cannot find the types anew: give them (--schema), or convert without --part"
            ) from error
        held.check()
        return self._result(made)

    @property
    def _chosen(self) -> Chosen:
        """The shards of the part: neighbours, and none that is kept of the dataset before."""
        numbers = np.arange(self.job.shards)
        own: Chosen = parts_of(numbers, self.job.shards, self.part.parts) == self.part.number
        own &= self.job.kept == NOT_KEPT
        return own

    def _result(self, made: int) -> ConvertResult:
        job, seconds = self.job, time.monotonic() - self.started
        self.place.bring_done(job, self._chosen)  # other parts have gone on meanwhile
        self.place.bring_rejects(job)
        samples = size = rejected = 0
        for _, done in finished_shards(job, self._chosen):
            samples, size, rejected = samples + done.facts.rows, size + done.facts.bytes, rejected + done.rejected
        reasons, examples = count_reasons(self._rejects())
        to_build = int((job.kept == NOT_KEPT).sum())
        return ConvertResult(
            status="built",
            samples=samples,
            shards=int(self._chosen.sum()),
            bytes=size,
            rejected=rejected,
            seconds=seconds,
            samples_per_s=made / seconds,
            fingerprint=fingerprint(job.lineage.parts),
            reasons=reasons,
            examples=examples,
            part=PartDone(str(self.part), len(marked_shards(job)), to_build),
        )

    def _rejects(self) -> Iterator[Reject]:
        for shard in np.flatnonzero(self._chosen).tolist():
            if exists(path := self.job.rejects_path(shard)):
                yield from read_rejects(path)


def parts_of(numbers: npt.NDArray[np.int64], shards: int, parts: int) -> npt.NDArray[np.int64]:
    """Return which part builds each of some shards, (n,), by their numbers among all shards."""
    first = shards * np.arange(parts + 1, dtype=np.int64) // parts
    found: npt.NDArray[np.int64] = np.searchsorted(first, numbers, side="right") - 1
    return found


def before_of(job: DatasetJob, place: Destination) -> Before | None:
    """Return the dataset that a job brings up to date, None for none. Raises DatasetError if it is another one by now."""
    if not job.lineage.updates:
        return None
    target = place.target
    place.bring_dataset()
    manifest = Manifest.load(target)
    if manifest.files[CHECKSUMS].sha256 != job.lineage.updates:
        raise DatasetError(
            f"{printable(str(target))}: the dataset has changed since its update was planned in parts; delete {STAGING} in it,"
            " and run the parts again"
        )
    return Before(target, manifest)
