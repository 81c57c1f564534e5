"""The records of a unit, as its format reads them, and the images of those of a table: their bytes,
from the record or from the file that it names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Numbers, hash_names, is_list
from shardctl.format.python_values import python_rows
from shardctl.format.roles import Mask, Sample
from shardctl.images.codecs import image
from shardctl.making.plan.splits import Draw
from shardctl.making.shards.inputs import (
    ReadRequest,
    changed,
    digest_of,
    prefetched,
    read_beside,
    read_mask,
    read_whole,
    reading,
    request_beside,
    state_of,
)
from shardctl.making.shards.job import ANY_UNIT, KEY, File, Job, PlannedUnit, RetryHints
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.boxes import holds_image, is_bytes
from shardctl.sources.files import local_copy, resolved
from shardctl.sources.formats import (
    CHOSEN,
    Choose,
    ColumnMisfit,
    Digest,
    Misfit,
    Parsed,
    Reading,
    Unit,
    copy_to_read,
    ending_of,
    find_format,
)
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.formats.lines import LineFile
from shardctl.sources.kinds import KINDS
from shardctl.sources.splits import GroupRule
from shardctl.system.locations import follow, parent_of, path_below
from shardctl.system.processes.worker_state import KEYS, WHOLE, WorkerProgress
from shardctl.system.text import printable
from shardctl.transforms.pipeline.batches import (
    check_keys,
    check_labels,
    encode_labels,
    with_class_folders,
)
from shardctl.transforms.pipeline.functions import unshared

FITTED_RECORDS = 1024
"""The most records that are read together where some do not fit the types that were given."""

SMALL_BYTES, TOGETHER_BYTES = 64 << 10, 256 << 10
"""Files of lines of at most so many bytes are parsed together, up to so many bytes at a time: to
begin with each takes as long as to parse 100 lines of it (2026-11-30)."""

T = TypeVar("T")

Ahead = tuple[bytes, Parsed]
"""The bytes of a unit, and all records of it."""


def read_unit(
    job: Job,
    planned: PlannedUnit,
    unit: Unit,
    choose: Choose | None,
    digest: Digest,
    ahead: Ahead | None = None,
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit of a file of many records, labels as the numbers of their
    classes. What was read `ahead` is all of its records.

    Raises Rejection, Misfit, SourceGoneError.
    """
    assert not job.whole, "a format reads into columns"
    rules = job.recipe.record_reading
    parts: Iterable[Parsed] = read_fields(job, planned, unit, rules, job.fields, choose, digest)
    if ahead is not None:
        digest.update(ahead[0])
        parts = ahead[1:]
    for parsed in parts:
        if job.renames:
            names = [job.renames.get(name, name) for name in parsed.batch.schema.names]
            parsed = replace(parsed, batch=parsed.batch.rename_columns(names))
        if job.recipe.label_source == FOLDER:
            parsed = replace(parsed, batch=with_class_folders(parsed.batch))
        if job.by_field and job.layout.classes is not None:
            parsed = replace(parsed, batch=encode_labels(parsed.batch, job.layout.classes))
        if job.layout.roles.names:
            parsed = _without(parsed, *check_labels(parsed.batch, job.layout.roles.names))
        if job.recipe.key_source is not None:
            parsed = _without(parsed, *check_keys(parsed.batch))
            if known := job.known.get(ANY_UNIT):
                keys = enumerate(
                    hash_names(parsed.batch.column(KEY).to_pylist()).view(np.int64).tolist()
                )
                parsed = _without(
                    parsed, parsed.batch, {row: known[key] for row, key in keys if key in known}
                )
        if job.draw is not None and job.draw.group is not None:
            parsed = _without(
                parsed, parsed.batch, _in_no_group(job, planned, parsed, job.draw.group)
            )
        yield parsed


def read_fitting(
    job: Job,
    planned: PlannedUnit,
    choose: Choose | None,
    on_misfit: Callable[[int, Misfit], None],
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit that fit the types which were given; `on_misfit` is told
    of the others. Raises Rejection, SourceGoneError.

    All of a part is read before any of it is given, so that it can be read again in smaller ones.
    """

    def read(part: Unit) -> list[Parsed]:
        return list(read_unit(job, planned, part, choose, xxhash.xxh3_64()))

    return _in_parts(planned.unit, FITTED_RECORDS, read, on_misfit)


def _in_parts(
    unit: Unit,
    most: int,
    read: Callable[[Unit], Iterable[T]],
    on_misfit: Callable[[int, Misfit], None],
) -> Iterator[T]:
    """Yield what is read of a unit, up to so many records together. `on_misfit` is told of those
    that do not fit.

    Fewer and fewer are read together until one alone does not fit: one by one, each of them would
    cost a whole unit.
    """
    done, together = 0, most
    while done < unit.records:
        count = min(together, unit.records - done)
        part = unit.part(done, count)
        try:
            yield from read(part)
        except Misfit as misfit:
            if count > 1:
                together = min(count // 2, FITTED_RECORDS)
                continue
            on_misfit(part.first, misfit)
        done += count
        together = min(2 * together, most)


def _in_no_group(
    job: Job, planned: PlannedUnit, parsed: Parsed, rule: GroupRule
) -> dict[int, Rejection]:
    """Return why some rows are rejected, by row: their field of groups is empty, or their key does
    not match."""
    if rule.field is not None:
        values = parsed.batch.column(job.renames.get(rule.field, rule.field)).to_pylist()
    elif job.recipe.key_source is not None:
        values = parsed.batch.column(KEY).to_pylist()
    else:
        values = list(map(planned.key, parsed.numbers.tolist()))
    reason = Rejection("decode", "no-group", f"it is in no group (--group {rule})")
    return {row: reason for row, group in enumerate(rule.of(values)) if group in (None, "")}


def read_fields(
    job: Job,
    planned: PlannedUnit,
    unit: Unit,
    rules: Reading,
    schema: pa.Schema,
    choose: Choose | None,
    digest: Digest,
) -> Iterator[Parsed]:
    """Yield the chosen records of a unit as its format reads them. Raises Rejection, Misfit,
    SourceGoneError."""
    opened, version = job.path_of(planned.file), job.version_of(planned.file)
    path, before = opened, None
    with reading(job, planned):
        ending = ending_of(planned.file.path, local_copy(opened, version))
        path = copy_to_read(opened, ending, version)
        before = state_of(job, planned, path)
        form = find_format(ending, rules, job.shuffle is not None)
        parts = form.read(path, unit, rules, schema, choose, digest)
    while True:
        with reading(job, planned):
            parsed = next(parts, None)
            if parsed is None:
                if state_of(job, planned, path) != before:
                    raise changed(job, planned)
                return
        yield parsed


def parsed_ahead(
    job: Job, units: Iterable[PlannedUnit], progress: WorkerProgress, ahead: dict[int, Ahead]
) -> Iterator[PlannedUnit]:
    """Yield the same units of files of many records. Small files of lines that follow each other are
    parsed together: `ahead` has those, by the numbers of their units.

    Where one of them is not as it should be, each is read by itself, and where records have
    objects: Arrow may make these larger of a file than of several, which decides where blocks end.
    """
    if not all(_is_plain(f.type) for f in job.fields or ()):
        yield from units
        return
    size = 0

    def place(planned: PlannedUnit) -> tuple[LineFile | None, int]:
        nonlocal size
        size += planned.unit.size
        form = _lines_of(job, planned)
        return form, planned.number if form is None else size // TOGETHER_BYTES

    for (form, _), group in groupby(units, place):
        several, texts = list(group), list[bytes]()
        ahead.clear()
        if form is not None and len(several) > 1:
            with contextlib.suppress(MemoryError, Misfit, Rejection):
                for planned in several:
                    progress.begin(planned.number)
                    texts.append(read_whole(job, planned))
                progress.begin(several[0].number)
                found = form.parse_together(texts, job.recipe.record_reading, job.fields)
                for planned, text, parsed in zip(several, texts, found, strict=False):
                    if len(parsed.numbers) == planned.unit.records:
                        ahead[planned.number] = text, parsed
        yield from several


def _is_plain(type_: pa.DataType) -> bool:
    return _is_plain(type_.value_type) if is_list(type_) else not pa.types.is_nested(type_)


def _lines_of(job: Job, planned: PlannedUnit) -> LineFile | None:
    """Return the format of a small file of lines, None for others."""
    unit, file = planned.unit, planned.file
    if planned.fault is not None or unit.size > SMALL_BYTES or unit[:3] != (0, file.size, 0):
        return None
    ending = ending_of(file.path, job.path_of(file))
    form = find_format(ending, job.recipe.record_reading, job.shuffle is not None)
    return form if isinstance(form, LineFile) else None


def sample_of(job: Job, planned: PlannedUnit, record: int | None, fields: Sample) -> Sample:
    """Return a record of a unit (None: the file that is one) as the sample that the recipe begins
    with.

    `fields` are used up.
    """
    (sample,) = samples_of(job, planned.file, [fields], [key_of(planned, record, fields)])
    return sample


def samples_of(
    job: Job, file: File, records: Iterable[Sample], keys: Iterable[str]
) -> list[Sample]:
    """Return records of a file as samples: with the label and the columns of the file, and with
    their keys.

    The records are used up. Where the recipe has functions, each sample gets a copy of the columns:
    functions may change it.
    """
    known = {**file.columns, **({} if file.label is None else {"label": file.label})}
    copied = bool(job.recipe.sample_transforms)
    # Where labels name classes, an empty one of a record is a missing one.
    may_be_empty = file.label is None and job.layout.classes is not None
    samples = []
    for sample, key in zip(records, keys, strict=True):
        if known:
            sample = sample | (unshared(known) if copied else known)
        if may_be_empty and sample.get("label") == "":
            sample["label"] = None
        sample[KEY] = key
        samples.append(sample)
    return samples


def key_of(planned: PlannedUnit, record: int | None, fields: Sample) -> str:
    """Return the key of a record: the one in its fields, or the one that the plan gives it."""
    key: str | None = fields.get(KEY)
    return planned.key(record) if key is None else key


def _without(parsed: Parsed, batch: pa.RecordBatch, wrong: Mapping[int, Rejection]) -> Parsed:
    """Return what was read, with these records, some rows of which are rejected."""
    if not wrong:
        return replace(parsed, batch=batch)
    numbers = parsed.numbers
    kept = np.ones(len(numbers), bool)
    kept[list(wrong)] = False
    rejects = [
        *parsed.rejects,
        *((int(numbers[row]), rejection) for row, rejection in wrong.items()),
    ]
    return Parsed(numbers[kept], batch.filter(pa.array(kept)), sorted(rejects, key=itemgetter(0)))


def fields_of(job: Job, planned: PlannedUnit, data: bytes) -> Sample:
    """Return the fields of a file that is one record and has these bytes. Raises Rejection."""
    return KINDS[job.recipe.kind].fields(data, planned.file.path, job.recipe.record_reading)


@dataclass(frozen=True)
class FirstRecords:
    """The records of a job that are looked at before there is a plan, those of some units."""

    job: Job
    units: Sequence[PlannedUnit]
    progress: WorkerProgress
    hints: RetryHints

    def of_unit(self, planned: PlannedUnit) -> Iterator[tuple[int | None, Sample]]:
        """Yield the fields of the records of a unit, one by one, each with its number in its file,
        None: the file is one record. Raises Rejection."""
        job, hints = self.job, self.hints
        self.progress.begin(planned.number)
        hints.refuse_lost(planned.number)
        if job.whole:
            fields = fields_of(job, planned, read_whole(job, planned))
            mask = read_mask(job, planned)
            yield None, fields if mask is None else {**fields, MASK: mask}
            return
        choose = hints.without_lost(planned.number, None)
        for parsed in read_unit(job, planned, planned.unit, choose, xxhash.xxh3_64()):
            rows = zip(parsed.numbers.tolist(), python_rows(parsed.batch), strict=True)
            for record, fields in rows:
                self.progress.begin(planned.number, record)
                yield record, fields

    def __iter__(self) -> Iterator[tuple[PlannedUnit, str, Sample]]:
        """Yield the fields of all that can be read, each with its unit and its key."""
        for planned in self.units:
            with contextlib.suppress(Rejection, MemoryError):
                for record, fields in self.of_unit(planned):
                    yield planned, key_of(planned, record, fields), fields


@dataclass
class RecordChoice:
    """Tells which records of a unit are in a shard. Where keys decide it, they are read once.

    Everything may read them then, and so raises MemoryError and SourceGoneError.
    """

    job: Job
    planned: PlannedUnit
    split: int
    progress: WorkerProgress
    hints: RetryHints

    @cached_property
    def of_split(self) -> Choose | None:
        """What tells which records of the unit are of this split; None: all of them.

        Where the records have keys of their own, this reads them first. It draws a record without a
        readable key by its number, so that this record is a reject of one split.
        """
        planned, draw = self.planned, self.job.draw
        choose, unit = self.job.choose(planned, self.split), planned.unit
        if choose is not None and draw is not None and draw.by_key:
            by_number, lost = choose, self.hints.lost.get((planned.number, None))
            has_key, own = np.zeros(unit.records, bool), np.zeros(unit.records, bool)
            if lost is None or lost.stage != KEYS:
                for numbers, keys in self._keys(draw):
                    has_key[numbers - unit.first] = True
                    own[numbers - unit.first] = draw.of_keys(keys) == self.split
            self.progress.begin(planned.number)

            def choose(numbers: Numbers) -> Bools:
                # a format may ask of records behind the unit
                places = np.clip(numbers - unit.first, 0, unit.records - 1)
                return np.where(has_key[places], own[places], by_number(numbers))

        return choose

    def to_read(self) -> Choose | None:
        """Return what tells which records of the unit are read: those of this split, except the ones
        that end a worker."""
        return self.hints.without_lost(self.planned.number, self.of_split)

    def has(self, record: int) -> bool:
        """Return whether a record of the unit is of this split."""
        return self.of_split is None or bool(self.of_split(np.array([record]))[0])

    def _chosen(self) -> Bools | None:
        """Return which records of the unit are of this split, (records,); None: all of them."""
        first, records = self.planned.unit.first, self.planned.unit.records
        return self.of_split and self.of_split(np.arange(first, first + records))

    def span(self) -> tuple[int, int]:
        """Return the first record of the unit that is of this split, and how many there are of
        them."""
        unit, chosen = self.planned.unit, self._chosen()
        if chosen is None:
            return unit.first, unit.records
        return unit.first + int(np.argmax(chosen)), int(np.count_nonzero(chosen))

    def ranks(self) -> Numbers | None:
        """Return the places of the unit's records among those of the same split, (records,); None
        if all are of this one."""
        chosen = self._chosen()
        return None if chosen is None else np.cumsum(chosen) - 1

    def _keys(self, draw: Draw) -> Iterator[tuple[Numbers, list[str]]]:
        """Yield the numbers and the keys of records of the unit, without those whose key cannot be
        read.

        They are read together, and in smaller parts where one does not fit: then some come again.
        They are read one by one where one of them has ended a worker.
        """
        job, planned, fields = self.job, self.planned, self.job.fields
        assert fields is not None, "files of many records have columns"
        source = str((draw.group and draw.group.field) or job.recipe.key_source)
        rules = replace(job.recipe.record_reading, only=(source,))
        schema = pa.schema([fields.field(source)], {CHOSEN: b""})
        lost = self.hints.lost_records(planned.number)
        fatal = [n for n in lost if self.hints.lost[planned.number, n].stage == KEYS]
        most = 1 if planned.number in self.hints.careful else planned.unit.records
        may_fit = True

        def read(part: Unit) -> Iterator[tuple[Numbers, list[str]]]:
            nonlocal may_fit
            if not may_fit:
                return
            self.progress.begin(planned.number, part.first if most == 1 else WHOLE, KEYS)
            choose: Choose = lambda numbers: ~np.isin(numbers, fatal)  # noqa: E731 - one line, used once
            given = (job, planned, part, rules, schema, choose, xxhash.xxh3_64())
            try:
                for parsed in read_fields(*given):
                    keys = parsed.batch.column(0).cast(pa.string())
                    there = np.asarray(keys.is_valid())
                    yield parsed.numbers[there], keys.drop_null().to_pylist()
                    # its time runs anew with each part: a compressed file is one unit
                    if len(keys) and most > 1:
                        self.progress.begin(planned.number, int(parsed.numbers[-1]), KEYS)
            except ColumnMisfit:
                may_fit = False  # no key of the file does
            except Rejection:
                pass  # it is told where the records themselves are read
            except MemoryError:
                if part.records > 1:
                    raise

        return _in_parts(planned.unit, most, read, lambda record, misfit: None)


class TableImages:
    """Finds the images of the records of units, one unit after the other.

    `digest` covers the files that images of the unit's samples were read from, None while there is
    none. `read` has the digests of those of the record that was taken last.
    """

    def __init__(self, job: Job, progress: WorkerProgress) -> None:
        self._job, self._progress = job, progress
        self._digest: xxhash.xxh3_64 | None = None
        # columns with bytes that nothing says to be images, or to stay as they are; what a dataset
        # has was looked at, or made before
        said = {
            "image",
            *job.kept_images,
            *job.recipe.unmoved,
            *job.layout.roles.by_name,
            *job.annotation_rules,
        }
        columns = job.layout.columns if job.recipe.moving and not job.recorded else ()
        self._unmoved = [f.name for f in columns if f.name not in said and _has_bytes(f.type)]
        self.read: list[int] = []
        self.missing: Rejection | None = None

    def begin(self) -> None:
        """Begin with a unit."""
        self._digest, self.missing = None, None

    def take(self, fields: Sample, planned: PlannedUnit) -> Sample:
        """Return the fields of a record with its images, each as its bytes and its path. Raises
        Rejection.

        Those that are kept, and not what the recipe works on, were decoded once to see that they
        can be.
        """
        self.read = []
        self._progress.enter("read")
        job, recipe, filled = self._job, self._job.recipe, dict(fields)
        for name in job.kept_images:
            role = job.layout.roles.get(name)
            # not every image need have a mask
            if isinstance(role, Mask) and is_nothing(fields.get(name)):
                filled[name] = None
                continue
            data, path = self.find(fields.get(name), name, planned)
            filled[name] = {"bytes": data, "path": path}
            self._progress.enter("decode")
            if not isinstance(role, Mask):
                image.check(recipe.open_image(data))
                continue
            try:
                values = image.decode_mask(data, recipe.max_pixels, recipe.keep_truncated)
                if (bits := values.dtype.itemsize * 8) > role.bits:
                    message = (
                        f"its mask has {bits} bits for each pixel, and masks of this column have "
                        f"{role.bits}"
                    )
                    raise Rejection("decode", "not-a-mask", message)
            except Rejection as rejection:
                message = f"{printable(name)}: {rejection.message}"
                raise rejection.saying(message) from None
        if job.image_column is not None:
            data, path = self.find(fields.get("image"), job.image_column, planned)
            filled["image"] = {"bytes": data, "path": path}
        for name in self._unmoved:
            if holds_image(fields.get(name)):
                shown = printable(name)
                message = (
                    f"{shown}: its value is an image, which {recipe.moving[0].name} does not move, "
                    f"and the first records have none there; keep it as it is with --unmoved {shown}"
                )
                raise Rejection("decode", "unmoved-image", message)
        return filled

    def prefetched(
        self, records: Iterable[tuple[int, Sample]], planned: PlannedUnit
    ) -> Iterable[tuple[int, Sample]]:
        """Return the same records of a unit; files on a store that the following ones name are
        fetched meanwhile."""
        if not self._job.bases[planned.file.root].is_stored:
            return records
        return prefetched(records, lambda record: self._requests(record[1], planned))

    def _requests(self, fields: Sample, planned: PlannedUnit) -> list[ReadRequest]:
        requests = []
        for name in (*self._job.kept_images, *(["image"] if self._job.image_column else [])):
            value = fields.get(name)
            if isinstance(value, dict) and not value.get("bytes"):
                value = value.get("path")
            if isinstance(value, str) and value:
                with contextlib.suppress(Rejection):
                    requests.append(request_beside(self._file(value, planned)))
        return requests

    def became_samples(self, read: list[int]) -> None:
        """A record became samples: its files, which were `read`, count for the digest of the
        unit."""
        for digest in read:
            self._digest = self._digest or xxhash.xxh3_64()
            self._digest.update(digest.to_bytes(8, "little"))

    def unit_digest(self, of_records: int) -> int:
        """Return the digest of a unit, from that of its records and those of the files that its
        samples' images are in."""
        if self._digest is None:
            return of_records
        return digest_of(of_records.to_bytes(8, "little") + self._digest.digest())

    def find(self, value: object, name: str, planned: PlannedUnit) -> tuple[bytes, str | None]:
        """Return the bytes of an image that a field has or names, and its path if one is given.
        Raises Rejection."""
        data, path = value, None
        if isinstance(value, dict):
            data, path = value.get("bytes"), value.get("path")
        if isinstance(data, str):
            data, path = None, data
        if isinstance(data, bytes):
            return data, path
        if not path:
            keep = (
                "; --kind table --image-field none keeps such records, with images as plain bytes"
                if name in self._job.kept_images
                else ""
            )
            raise Rejection(
                "read", "no-image", f"it has no image in the field {printable(name)}{keep}"
            )
        try:
            found = read_beside(self._job, planned, self._file(path, planned), path)
        except Rejection as rejection:
            self.missing = self.missing or rejection
            raise
        self.read.append(digest_of(found))
        return found, path

    def _file(self, path: str, planned: PlannedUnit) -> str:
        """Return where the file lies that a record names. Raises Rejection if that is not below the
        source.

        A table may come from anywhere, and must not be able to put any file of this machine into a
        dataset.
        """
        fault = ""
        if "://" in path:
            fault = f"is at {printable(path)}; only files are read, fetch them first"
        elif "\0" in path:
            fault = f"has the path {printable(path)}, which no file can have"
        if fault:
            raise Rejection("read", "not-a-path", f"its image {fault}")
        root = follow(self._job.bases[planned.file.root].path, ".")
        # Not resolved: a link in the source may lead anywhere, as in a folder of images. The person
        # made it, not the table.
        place = follow(parent_of(f"{root}/{planned.file.path}"), path)
        if not path_below(place, root) and path.startswith("/"):
            # the same place may have been named through a link
            place, root = resolved(place), resolved(root)
        if not path_below(place, root):
            message = (
                f"its image {printable(path)} is not below the source ({printable(root)}); "
                "give a source that contains it"
            )
            raise Rejection("read", "outside", message)
        return place


def _has_bytes(type_: pa.DataType) -> bool:
    """Return whether values are bytes, or have some in lists and structs."""
    if pa.types.is_struct(type_):
        return any(_has_bytes(f.type) for f in type_)
    if is_list(type_):
        return _has_bytes(type_.value_type)
    return is_bytes(type_)


def is_nothing(value: object) -> bool:
    """Return whether a value of a column of images is missing: without bytes and without the path
    of a file."""
    return value is None or (
        isinstance(value, dict) and value.get("bytes") is None and not value.get("path")
    )
