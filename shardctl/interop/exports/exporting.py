"""Writing a dataset in another form, whole or not at all."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

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
from shardctl.format.manifest import digest_of
from shardctl.format.names import CHECKSUMS
from shardctl.format.python_values import check_type
from shardctl.format.tables import write_checksums
from shardctl.interop.exports.base import (
    KEY,
    Column,
    ColumnEncoding,
    Done,
    Export,
    Source,
    Written,
    store_of,
)
from shardctl.interop.exports.job import ExportJob, chosen_export, write_parts
from shardctl.interop.exports.options import Choice, FormSettings
from shardctl.interop.exports.staging import (
    Staging,
    Writer,
    check_destination,
    discard_others,
    only_writer,
)
from shardctl.making.options import WORKERS
from shardctl.sources.export_description import (
    DESCRIPTION,
    Description,
    Field,
    LooseFacts,
    SplitFiles,
)
from shardctl.system import arguments
from shardctl.system.files import write_atomically
from shardctl.system.locations import is_url
from shardctl.system.options import check_options, declared_in
from shardctl.system.progress import counting
from shardctl.system.python_names import with_options
from shardctl.system.report import in_notebook, lines_in_notebook, rows_in_notebook
from shardctl.system.text import counted, first_repeated, format_bytes, printable
from shardctl.version import __version__


@dataclass(frozen=True)
class PlannedField:
    """A column of the dataset, and what becomes of it: `written` as which name, None if it is left
    out, and in which `form`.

    `loss` says what the form cannot hold of it, None if nothing is lost.
    """

    name: str
    type: str
    written: str | None
    form: str
    loss: str | None = None


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
    names = None if columns is None else arguments.names("columns", columns)
    choice = Choice(split, names, arguments.mapping("rename", rename), where, store, on_loss)
    check_options(choice)
    replaces = arguments.truth("overwrite", overwrite)
    if is_url(out):
        raise UsageError(f"{printable(out)}: export to a local folder, and copy it")
    with open_location(dst) as place:
        source, out, began = Source(place.whole, choice), Path(out), time.monotonic()
        form = chosen_export(to, settings)
        check_target = partial(check_destination, out, source, replaces)
        target = check_target()
        job, planned = _planned(source, form)
        refuse_losses(job.export, source, planned)
        plan = _plan_of(job, planned)
        on_plan(plan)
        notes = [*accepted_losses(planned), *plan.notes]
        for note in notes:
            on_note(note)
        with only_writer(target) as writer:
            check_target()  # another export may have been here meanwhile
            versions = {"state": source.state, "versions": [__version__, pa.__version__]}
            staging = Staging(writer.folder / digest_of({**job.named(), **versions})[:16])
            discard_others(writer.folder, staging.path)
            with _kept_if_of_use(job, staging, writer):
                with counting(progress, "samples", "exporting") as report:
                    written = _of_used_splits(write_parts(job, staging, workers, report))
                try:
                    source.check_unchanged()
                except DatasetError:  # what was written is of no use then
                    writer.discard(staging.path)
                    raise
                done = Done(source, job.fields, staging.files, written)
                description, late = _complete(job, staging, done), tuple(job.notes_of(done))
                check_target()  # and so may anybody else, in all the time that this took
                writer.lease.check()
                parts = [each for _, each in written]
                staging.sweep(parts, (*description.files, CHECKSUMS, DESCRIPTION))
                staging.publish(target, replaces)
            writer.discard(staging.path)
        seconds = round(time.monotonic() - began, 3)
        for note in late:
            on_note(note)
        files, loose = description.files.items(), description.loose
        return ExportResult(
            to,
            str(out),
            source.samples,
            sum(facts.bytes for _, facts in files) + (0 if loose is None else loose.bytes),
            seconds,
            {name: facts.bytes for name, facts in files},
            _counts(done),
            (*notes, *late),
            planned,
            0 if loose is None else loose.files,
        )


def plan_export(
    dst: str | Path, to: str, choice: Choice, settings: Mapping[str, Any]
) -> ExportPlan:
    """Say what `export` would write of each column, and what would be lost. Nothing is written, and
    no loss is refused.

    Raises UsageError, InputError and DatasetError.
    """
    check_options(choice)
    with open_location(dst, "blocks") as place:
        return _plan_of(*_planned(Source(place.whole, choice), chosen_export(to, settings)))


def _plan_of(job: ExportJob, planned: tuple[PlannedField, ...]) -> ExportPlan:
    source = job.source
    notes = tuple(job.export.notes(source))
    size = sum(entry.raw_bytes for _, entry in source.numbered_shards())
    return ExportPlan(job.export.name, source.samples, len(job.parts), planned, notes, size)


def _planned(source: Source, form: Export) -> tuple[ExportJob, tuple[PlannedField, ...]]:
    """Check all that can be checked beforehand, and return the job."""
    form.check(source)
    planned = plan_fields(form, source)
    fields = tuple(
        Field(each.name, each.written, each.form) for each in planned if each.written is not None
    )
    return ExportJob(source, form, fields), planned


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
        is_kept = done and isinstance(error, _LATER)
        if not is_kept:
            writer.discard(staging.path)
        kept = printable(staging.path.parent)
        state = f"{done} of {len(job.parts)} parts are done, in {kept}"
        go_on = "run the same command again to continue"
        if isinstance(error, KeyboardInterrupt):
            state = f"{state}; {go_on}" if done else "nothing was written"
            raise KeyboardInterrupt(f"interrupted; {state}") from error
        if is_kept:
            raise type(error)(f"{error}. {state}; mend that, then {go_on}") from error
        raise


def _of_used_splits(written: Written) -> Written:
    """Return what was written of each part, without the files of splits that have no samples.
    Hugging Face and TFDS refuse such splits. Exports of tokens count documents: their files may be
    empty."""
    used = {part.split for part, each in written if each.samples or each.counts}
    return [(p, each if p.split in used else replace(each, files={})) for p, each in written]


def _complete(job: ExportJob, staging: Staging, done: Done) -> Description:
    """Write the files that need all parts, shardctl.json and SHA256SUMS. Raises InputError if no
    sample was chosen."""
    source, export, written = job.source, job.export, [each for _, each in done.parts]
    if source.where is not None and not any(each.samples for each in written):
        raise InputError(
            f"{source.shown}: no sample matches {source.where.text!r}; nothing was written"
        )
    files = {name: facts for each in written for name, facts in each.files.items()}
    files |= export.finish(done)
    sums = write_checksums(
        staging.files / CHECKSUMS,
        ((name, facts.sha256) for name, facts in files.items()),
        ((name, facts.sha256) for name, facts in staging.loose_files(written)),
    )
    splits = {
        split: SplitFiles(
            sum(each.samples for each in found),
            tuple(name for each in found for name in each.files),
        )
        for split, found in done.of_splits()
    }
    counts = {split: each for split, each in _counts(done).items() if "samples" not in each}
    loose = [each.loose for each in written if each.loose is not None]
    description = Description(
        export.name,
        source.exported,
        next((field.written for field in job.fields if field.name == KEY), None),
        job.fields,
        splits,
        files,
        source.manifest.fingerprint,
        {**export.facts(source), **({"counts": counts} if counts else {})},
        LooseFacts(
            sum(each.files for each in loose),
            sum(each.bytes for each in loose),
            {split: export.loose_folders(split) for split in source.splits},
            sums,
        )
        if loose
        else None,
    )
    write_atomically(staging.files / DESCRIPTION, description.dumps())
    return description


def _counts(done: Done) -> dict[str, dict[str, int]]:
    """Return what was counted in each split: the samples where the form counts nothing else."""
    counts: dict[str, dict[str, int]] = {}
    for split, found in done.of_splits():
        total: Counter[str] = Counter()
        for each in found:
            total.update(each.counts or {"samples": each.samples})
        counts[split] = dict(total)
    return counts


# --- what a form cannot hold of a dataset, found before anything is written ---

SHORT = 60
"""A type with more letters than this is not written out in a sentence."""


def plan_fields(export: Export, source: Source) -> tuple[PlannedField, ...]:
    """Say what becomes of every chosen column. Losses are told and not refused.

    Raises UsageError for columns whose names in the target would be the same, and DatasetError.
    """
    store_of(source.choice.store)
    planned = tuple(
        _planned_field(export, Column(source, name), source.choice.on_loss) for name in source.names
    )
    names = [each.written for each in planned if each.written is not None]
    twice = first_repeated(names)
    if twice is not None:
        raise UsageError(f"several columns would be called {twice!r}; --rename gives other names")
    return planned


def refuse_losses(export: Export, source: Source, planned: tuple[PlannedField, ...]) -> None:
    """Raise UsageError if something is lost that the user has not allowed to be."""
    lost = [each for each in planned if each.loss is not None]
    if source.choice.on_loss == "fail" and lost:
        # a long type without what is in it
        said = "; ".join(
            f"{each.name} ({each.type if len(each.type) <= SHORT else each.type.partition('<')[0]})"
            f": {each.loss}"
            for each in lost
        )
        names = ", ".join(each.name for each in lost)
        columns = [Column(source, each.name) for each in lost]
        if all(export.encoding_as_json(column) is not None for column in columns):
            remedy = (
                f"--on-loss json writes {names} as JSON text, and --on-loss drop leaves them out"
            )
        elif any(export.encoding_of_rest(column) is not None for column in columns):
            remedy = "--on-loss drop writes the rest"
        else:
            remedy = f"--on-loss drop leaves out {names}"
        raise UsageError(f"{export.name} cannot hold all of {source.shown}: {said}. {remedy}")


def accepted_losses(planned: tuple[PlannedField, ...]) -> list[str]:
    """Say what is lost of each column, which the user has allowed."""
    how = {None: "is left out: {}", "json": "is written as JSON text: {}"}
    return [
        f"{each.name} "
        f"{how.get(each.written and each.form, 'is written, but not all: left out is {}').format(each.loss)}"
        for each in planned
        if each.loss is not None
    ]


def _planned_field(export: Export, column: Column, on_loss: str) -> PlannedField:
    place = export.encoding_of(column)
    loss = place.loss if place else None
    if loss is not None and on_loss != "fail":
        place = export.encoding_of_rest(column) if on_loss == "drop" else _as_json(export, column)
    written, form = (place.written, place.form) if place else (None, "left out")
    return PlannedField(column.name, str(column.type), written, form, loss)


def _as_json(export: Export, column: Column) -> ColumnEncoding:
    try:
        check_type(column.type)
    except TypeError as error:
        raise UsageError(f"{column.name}: {error}; leave it out with --on-loss drop") from error
    place = export.encoding_as_json(column)
    if place is None:
        raise UsageError(f"{column.name}: {export.name} has no JSON text; use --on-loss drop")
    return place
