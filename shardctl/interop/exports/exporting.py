"""Writing a dataset in another form, whole or not at all."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.build.shared_options import WORKERS
from shardctl.errors import (
    CONTINUES,
    DatasetError,
    InputError,
    StorageError,
    UsageError,
    WorkerError,
    explaining_interrupts,
)
from shardctl.format.dataset_location import open_location
from shardctl.format.names import CHECKSUMS
from shardctl.format.tables import write_checksums
from shardctl.interop.exports import WORKER
from shardctl.interop.exports.base import ExportPart, FileList, PartResult
from shardctl.interop.exports.destination import check_destination
from shardctl.interop.exports.forms import chosen_export
from shardctl.interop.exports.job import ExportJob
from shardctl.interop.exports.losses import (
    PlannedField,
    accepted_losses,
    plan_fields,
    refuse_losses,
)
from shardctl.interop.exports.options import Choice, FormSettings
from shardctl.interop.exports.source import Source, digest_of
from shardctl.interop.exports.staging import Staging, Writer, discard_others, only_writer
from shardctl.sources.export_description import DESCRIPTION, Description, LooseFacts, SplitFiles
from shardctl.system import arguments
from shardctl.system.files import FileFacts, write_atomically
from shardctl.system.html import in_notebook, lines_in_notebook, rows_in_notebook
from shardctl.system.locations import is_url
from shardctl.system.options import check_options, declared_in
from shardctl.system.processes.pool import Limits, Pool, Task
from shardctl.system.processes.worker_state import Death, Deaths
from shardctl.system.progress import counting
from shardctl.system.python_names import with_options
from shardctl.system.sequences import LazySequence
from shardctl.system.text import counted, format_bytes, printable
from shardctl.version import __version__


@dataclass(frozen=True)
class ExportResult:
    """The result of `export`: the number of samples that it read, bytes and seconds, and `files`
    with their names and bytes.

    Files of one image or text each are not in `files`, as there may be millions: `loose_files` is
    their number.

    `counts` has numbers for each split: `samples`; for files of tokens `documents`, `tokens`, and
    `empty` documents that were left out. `fields` say how each column was written. `notes` are
    sentences about what the form has no place for.
    """

    to: str
    out: str
    samples: int
    bytes: int
    seconds: float
    files: dict[str, int]
    counts: dict[str, dict[str, int]]
    notes: tuple[str, ...]
    fields: tuple[PlannedField, ...] = ()
    loose_files: int = 0

    @property
    def sentence(self) -> str:
        """What was written, in words."""
        files = f"{counted(len(self.files) + self.loose_files, 'file')}, {format_bytes(self.bytes)}"
        return f"{printable(self.out)}: {files}, for {self.to}, in {self.seconds:.1f} s"

    def __repr__(self) -> str:
        """Return what was written, for display."""
        return f"<shardctl.ExportResult {self.sentence}>"

    def _repr_html_(self) -> str:
        """Return what was written of each split and column, and the files, for a notebook."""
        nouns = list(dict.fromkeys(noun for counts in self.counts.values() for noun in counts))
        splits = [
            (name, *(counts.get(noun) for noun in nouns)) for name, counts in self.counts.items()
        ]
        columns = [
            (each.name, each.type, each.written or "-", each.form, each.loss)
            for each in self.fields
        ]
        files = [(name, format_bytes(size)) for name, size in self.files.items()]
        return in_notebook(
            self.sentence,
            lines_in_notebook(self.notes),
            rows_in_notebook("", splits, ("split", *nouns)),
            rows_in_notebook("columns", columns, ("column", "type", "written as", "form", "lost")),
            rows_in_notebook("files", files, ("file", "size")),
        )


@dataclass(frozen=True)
class ExportPlan:
    """What `export` would do: `fields` say what becomes of each column, `parts` is the number of
    pieces it is done in.

    `samples` that are read have `bytes` bytes in all their columns, uncompressed.
    """

    to: str
    samples: int
    parts: int
    fields: tuple[PlannedField, ...]
    notes: tuple[str, ...]
    bytes: int


@with_options(declared_in(FormSettings))
@explaining_interrupts(CONTINUES)
def export(
    dst: str | Path,
    out: str | Path,
    to: str,
    split: str | None = None,
    overwrite: bool = False,
    progress: bool | Callable[[int, int], None] = True,
    *,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    where: str | None = None,
    store: str | None = None,
    on_loss: str = "fail",
    workers: int | str = "auto",
    on_note: Callable[[str], None] = lambda note: None,
    on_plan: Callable[[ExportPlan], None] = lambda plan: None,
    **settings: Any,
) -> ExportResult:
    """Write the dataset at `dst`, or one of its splits, into the new folder `out` in another form.

    `to` is `parquet` (for Hugging Face datasets), `webdataset`, `tfrecord`, `tfds`, `mds` (MosaicML
    Streaming), `array-record` (Grain), or `files` (a folder of images or texts). For images and
    their objects, it can be `coco` or `yolo`. For tokens, it can be `megatron` (SPLIT.bin and
    SPLIT.idx for megatron-core) or `nanogpt` (SPLIT.bin, bare uint16). These two add the
    end-of-text token to each document that lacks it, unless `eos=False`.

    `columns` names the columns to write, and the key is written too. `rename` gives them other
    names, and `where` is a condition on samples. `store` says how raw images are written: `keep`,
    `png` or `jpeg:Q`. `on_loss` is for columns that the form cannot hold: `fail`, `json` or `drop`.
    shardctl.json describes the columns, and SHA256SUMS has the checksums.

    `dst` may be the URL of a dataset on a store; its shards are downloaded to a scratch folder
    while they are read.

    The same dataset gives the same bytes, for any number of `workers`. `overwrite` replaces an
    earlier export. `progress` False shows no progress on stderr; a function is called with the
    samples done and all instead. `on_note` is called with each note of the result as soon as it is
    known. You hear of losses before files are written. `on_plan` is called with the plan before all
    notes. `out` appears only when it is complete. If the export was stopped, the same call
    continues it. Every block is checked against its checksum. Raises UsageError, InputError if the
    dataset does not have what the form needs, DatasetError if it is damaged, BusyError, WorkerError
    and StorageError.
    """
    WORKERS.check("workers", workers)
    choice = _choice(split, columns, rename, where, store, on_loss)
    replaces = arguments.truth("overwrite", overwrite)
    if is_url(out):
        raise UsageError(
            f"{printable(str(out))}: an export to a store is not supported; export to a local "
            "folder, and copy it"
        )
    listener = _Listener(progress, on_note, on_plan)
    with open_location(dst) as place:
        return _export(
            Source(place.whole, choice), Path(out), to, settings, replaces, workers, listener
        )


@dataclass(frozen=True)
class _Listener:
    """The callbacks of an export."""

    progress: bool | Callable[[int, int], None]
    on_note: Callable[[str], None]
    on_plan: Callable[[ExportPlan], None]


def _export(
    source: Source,
    out: Path,
    to: str,
    settings: Mapping[str, Any],
    replaces: bool,
    processes: int | str,
    listener: _Listener,
) -> ExportResult:
    began = time.monotonic()
    chosen_export(to, dict(settings))
    check_target = partial(check_destination, out, source, replaces)
    target = check_target()
    job, planned = _planned(source, to, settings)
    refuse_losses(job.export, source, planned)
    plan = _plan_of(job, planned)
    listener.on_plan(plan)
    notes = [*accepted_losses(planned), *plan.notes]
    for note in notes:
        listener.on_note(note)
    with only_writer(target) as writer:
        check_target()  # another export may have been here meanwhile
        staging = Staging(
            writer.folder / digest_of([source.state, job.named(), __version__, pa.__version__])
        )
        discard_others(writer.folder, staging.folder)
        with _kept_if_of_use(job, staging, writer):
            with counting(listener.progress, "samples", "exporting") as report:
                written = Parts(job, staging, processes, report).write()
            _check_unchanged(source, staging, writer)
            description = _complete(job, staging, written)
            late = job.notes_of(staging.files, written)
            check_target()  # and so may anybody else, in all the time that this took
            writer.check()
            parts = [each for _, each in written]
            staging.set_pieces_aside(parts)
            staging.sweep(parts, (*description.files, CHECKSUMS, DESCRIPTION))
            staging.publish(target, replaces)
        writer.discard(staging.folder)
    seconds = round(time.monotonic() - began, 3)
    files = {name: facts.bytes for name, facts in description.files.items()}
    counts = _counts(job, written)
    for note in late:
        listener.on_note(note)
    loose = description.loose
    size = sum(files.values()) + (0 if loose is None else loose.bytes)
    several = 0 if loose is None else loose.files
    return ExportResult(
        to,
        str(out),
        source.samples,
        size,
        seconds,
        files,
        counts,
        (*notes, *late),
        planned,
        several,
    )


def plan_export(
    dst: str | Path,
    to: str,
    split: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    where: str | None = None,
    store: str | None = None,
    on_loss: str = "fail",
    **settings: Any,
) -> ExportPlan:
    """Say what `export` would write of each column, and what would be lost. Nothing is written, and
    no loss is refused.

    Raises UsageError, InputError and DatasetError.
    """
    choice = _choice(split, columns, rename, where, store, on_loss)
    with open_location(dst, "blocks") as place:
        job, planned = _planned(Source(place.whole, choice), to, settings)
        return _plan_of(job, planned)


def _plan_of(job: ExportJob, planned: tuple[PlannedField, ...]) -> ExportPlan:
    source = job.source
    size = sum(entry.raw_bytes for _, entry in source.numbered_shards())
    return ExportPlan(
        job.export.name, source.samples, len(job.parts), planned, job.export.notes(source), size
    )


def _planned(
    source: Source, to: str, settings: Mapping[str, Any]
) -> tuple[ExportJob, tuple[PlannedField, ...]]:
    """Check all that can be checked beforehand, and return the job."""
    chosen = chosen_export(to, dict(settings))
    chosen.check(source)
    planned = plan_fields(chosen, source)
    fields = tuple(each.field for each in planned if each.field is not None)
    return ExportJob.of(source, to, settings, fields), planned


def _choice(
    split: str | None,
    columns: Sequence[str] | None,
    rename: Mapping[str, str] | None,
    where: str | None,
    store: str | None,
    on_loss: str,
) -> Choice:
    """Return what was chosen. Raises UsageError for values of other types."""
    names = None if columns is None else arguments.names("columns", columns)
    choice = Choice(split, names, arguments.mapping("rename", rename), where, store, on_loss)
    check_options(choice)
    return choice


_LATER = (KeyboardInterrupt, StorageError, DatasetError, WorkerError)
"""What stops an export that can go on when the fault is mended. It goes wrong again with any other
one."""


@contextlib.contextmanager
def _kept_if_of_use(job: ExportJob, staging: Staging, writer: Writer) -> Iterator[None]:
    """When the export is stopped, keep what is done and say so; where nothing is, leave nothing."""
    try:
        yield
    except BaseException as error:
        done = sum(staging.done(part) is not None for part in job.parts)
        if not done or not isinstance(error, _LATER):
            writer.discard(staging.folder)
        kept = printable(str(staging.folder.parent))
        state = (
            f"{done} of {len(job.parts)} parts are done, in {kept}; run the same command "
            "again "
            "to continue"
        )
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(
                f"interrupted; {state if done else 'nothing was written'}"
            ) from error
        if done and isinstance(error, StorageError | DatasetError | WorkerError):
            raise type(error)(f"{error}. {state}") from error
        raise


def _check_unchanged(source: Source, staging: Staging, writer: Writer) -> None:
    """Raise DatasetError if there is another dataset by now: what was written is of no use then."""
    try:
        source.check_unchanged()
    except DatasetError:
        writer.discard(staging.folder)
        raise


def _complete(
    job: ExportJob, staging: Staging, written: Sequence[tuple[ExportPart, PartResult]]
) -> Description:
    """Write the files that need all parts, shardctl.json and SHA256SUMS. Raises InputError if no
    sample was chosen."""
    if job.source.where is not None and not any(each.samples for _, each in written):
        raise InputError(
            f"{job.source.shown}: has no sample for which {job.source.where.text!r} is true; "
            "nothing was written"
        )
    files = {name: facts for _, each in written for name, facts in each.files.items()}
    files |= job.export.finish(job.source, job.fields, staging.files, written)
    loose = (
        (name, facts.sha256) for name, facts in staging.loose_files(each for _, each in written)
    )
    sums = write_checksums(
        staging.files / CHECKSUMS, ((name, facts.sha256) for name, facts in files.items()), loose
    )
    description = _description(job, written, files, sums)
    write_atomically(staging.files / DESCRIPTION, description.dumps())
    return description


def _description(
    job: ExportJob,
    written: Sequence[tuple[ExportPart, PartResult]],
    files: Mapping[str, FileFacts],
    sums: str,
) -> Description:
    splits = {}
    for split in job.source.splits:
        of_split = [each for part, each in written if part.split == split]
        names = tuple(name for each in of_split for name in each.files)
        splits[split] = SplitFiles(sum(each.samples for each in of_split), names)
    keys = [field.written for field in job.fields if field.name == "key"]
    counts = {split: each for split, each in _counts(job, written).items() if "samples" not in each}
    facts = {**job.export.facts(job.source), **({"counts": counts} if counts else {})}
    layout, fingerprint = job.source.exported, job.source.manifest.fingerprint
    loose = _loose(job, [each.loose for _, each in written if each.loose is not None], sums)
    return Description(
        job.export.name,
        layout,
        keys[0] if keys else None,
        job.fields,
        splits,
        files,
        fingerprint,
        facts,
        loose,
    )


def _loose(job: ExportJob, there: Sequence[FileList], sums: str) -> LooseFacts | None:
    if not there:
        return None
    folders = {split: job.export.loose_folders(split) for split in job.source.splits}
    return LooseFacts(
        sum(each.files for each in there), sum(each.bytes for each in there), folders, sums
    )


def _counts(
    job: ExportJob, written: Sequence[tuple[ExportPart, PartResult]]
) -> dict[str, dict[str, int]]:
    """Return what was counted in each split: the samples where the form counts nothing else."""
    counts: dict[str, dict[str, int]] = {}
    for split in job.source.splits:
        total: Counter[str] = Counter()
        for part, each in written:
            if part.split == split:
                for name, number in (each.counts or {"samples": each.samples}).items():
                    total[name] += number
        counts[split] = dict(total)
    return counts


# --- the parts of an export, written in worker processes or in this one. Those that an earlier run
# has done are left ---

SMALL = 128 << 20
"""Bytes of a dataset that `auto` workers leave to this process: 100 MB of JPEGs take longer with
two.

The figures are in docs/dev/measurements/formats.md.
"""


class Parts:
    """The parts of an export, written by workers or in this process; those that are done already
    are left."""

    def __init__(
        self,
        job: ExportJob,
        staging: Staging,
        workers: int | str,
        progress: Callable[[int, int], None],
    ) -> None:
        self._job, self._staging, self._progress = job, staging, progress
        self._found: dict[int, PartResult] = {}
        self._samples = 0
        self._reported: Counter[int] = Counter()
        few = len(job.parts) == 1 or job.source.bytes < SMALL
        self._workers: int | str = 0 if workers == "auto" and few else workers

    def write(self) -> list[tuple[ExportPart, PartResult]]:
        """Write what is not done yet, and return all parts in order."""
        self._staging.begin(self._job.to_json())
        parts = self._job.parts
        for number, part in enumerate(parts):
            done = self._staging.done(part)
            if done is not None:
                self._found[number] = done
        self._staging.sweep(list(self._found.values()))
        self._tell(self._samples_of(self._found))
        missing = [number for number in range(len(parts)) if number not in self._found]
        source, ends = (
            self._job.source,
            list(accumulate(len(parts[number].shards) for number in missing)),
        )
        names = [source.name_of(shard) for number in missing for shard in parts[number].shards]
        with source.folder.prefetch(names) as note:
            self._write_all(missing, lambda place: note(ends[place] - 1))
        return [(part, self._found[number]) for number, part in enumerate(parts)]

    def _write_all(self, missing: Sequence[int], note: Callable[[int], None]) -> None:
        """Write these parts. `note` gets the place of each among them, when it is done."""
        if missing and self._workers == 0:
            for place, number in enumerate(missing):
                part = self._job.parts[number]
                written = self._job.write(part, self._staging.files, self._tell)
                self._staging.mark_done(part, written)
                self._found[number] = written
                note(place)
        elif missing:
            self._in_pool(missing, note)

    def _samples_of(self, numbers: Mapping[int, PartResult]) -> int:
        """Return how many samples were read for some parts."""
        if not numbers:
            return 0
        rows = {number: entry.rows for number, entry in self._job.source.numbered_shards()}
        return sum(rows[shard] for number in numbers for shard in self._job.parts[number].shards)

    def _tell(self, samples: int) -> None:
        self._samples += samples
        self._progress(self._samples, self._job.source.samples)

    def _in_pool(self, missing: Sequence[int], note: Callable[[int], None]) -> None:
        version = self._staging.job.record_path.stat().st_mtime_ns
        start = {
            "folder": str(self._staging.folder),
            "state": self._job.source.state,
            "version": version,
        }
        deaths = Deaths()

        def on_message(task: Task, message: dict[str, Any]) -> None:
            if "done" in message:
                self._found[task["part"]] = PartResult.from_json(message["done"])
                note(task["place"])
            else:
                self._reported[task["part"]] += message["progress"]
                self._tell(message["progress"])

        def died(task: Task, death: Death) -> Task:
            self._tell(-self._reported.pop(task["part"], 0))  # these samples are read again
            if deaths.is_fatal(task["part"], death):
                name = printable(self._job.parts[task["part"]].name)
                why = f" ({printable(death.last_words)})" if death.last_words else ""
                raise WorkerError(
                    f"{self._job.source.shown}: the process that wrote {name} {death}{why}; fewer "
                    "--workers need less memory,"
                    " and `shardctl verify` tells whether the dataset is damaged"
                )
            return task

        workers = (
            min(self._workers, len(missing)) if isinstance(self._workers, int) else self._workers
        )
        pool = Pool(
            WORKER, workers, Limits(), remedy=lambda possible: f"use --workers {possible}, or "
        )
        try:
            pool.run(
                LazySequence(
                    len(missing), lambda place: {**start, "place": place, "part": missing[place]}
                ),
                on_message,
                died,
            )
        finally:
            pool.close()
