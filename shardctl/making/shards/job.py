"""What a worker must know to build any shard of a conversion: a folder with job.json, the tables,
and what is made of them; what it is asked, and what it answers to a probe."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.errors import DatasetError, InputError, Rejection, SourceGoneError
from shardctl.format.arrays import Numbers, numbers_of, table_rows
from shardctl.format.layout import Layout
from shardctl.format.names import (
    DATA,
    FILES,
    PLAN,
    SHARDS,
    STAGING,
    Json,
    generation_folder,
    is_file_name,
    job_of_generation,
    path_of_shard,
    shard_name,
)
from shardctl.format.roles import RESERVED_FIELDS, Objects
from shardctl.format.tables import UNIT_FIELDS, Reject, new_table, open_table, read_rejects
from shardctl.making.plan.plan import NOT_KEPT, Changes, SplitPlan
from shardctl.making.plan.splits import Draw
from shardctl.sources.annotations.base import AnnotationRule
from shardctl.sources.annotations.objects import OBJECTS, has_objects
from shardctl.sources.files import check_on_store
from shardctl.sources.formats import Choose, Unit
from shardctl.sources.image_columns import (
    BOXES,
    FRAME,
    KEPT,
    MAIN,
    marked_columns,
    marked_masks,
    said_of,
)
from shardctl.system.files import write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import DONE_FOLDER, JOB, JobFolder, typed_command
from shardctl.system.locations import is_stored
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe

if TYPE_CHECKING:
    from shardctl.making.shards.previous_samples import PreviousSamples

UNKNOWN_DEVICE = -1
"""The device of a base that is looked at later: it may be another one then."""


@dataclass(frozen=True)
class SourceBase:
    """A folder that sources are relative to, by its path or its URL, and the number of the file
    system that it was on."""

    path: str
    device: int

    @cached_property
    def is_stored(self) -> bool:
        """Whether it is on an object store."""
        return is_stored(self.path)

    @classmethod
    def of(cls, path: str) -> SourceBase:
        """Return the base as it is now. Raises InputError if it is a folder of this machine that is
        gone."""
        if is_stored(path):
            return cls.anywhere(path)
        try:
            return cls(path, Path(path).stat().st_dev)
        except OSError as error:
            raise InputError(f"{printable(path)}: cannot be read ({error.strerror})") from error

    @classmethod
    def anywhere(cls, path: str) -> SourceBase:
        """Return one that may be gone, or be on another file system now: each input is verified
        by itself."""
        return cls(path, UNKNOWN_DEVICE)

    def check(self) -> None:
        """Make sure that it is still there. Raises SourceGoneError: a source that went away is not
        a reject for every file."""
        if self.is_stored:
            check_on_store(self.path)
            return
        try:
            same = self.device in (UNKNOWN_DEVICE, Path(self.path).stat().st_dev)
            # its first entry is enough: there may be millions
            with os.scandir(self.path) as entries:
                if same and next(entries, None):
                    return
        except OSError:
            pass
        raise SourceGoneError(
            f"{printable(self.path)}: the source has gone away; bring it back (was it unmounted?)"
        )


class File(NamedTuple):
    """A row of files.arrow. `mtime_ns` is 0 where the job is that of a finished dataset."""

    path: str
    root: int
    size: int
    mtime_ns: int
    label: int | None
    columns: Json
    fault: Rejection | None


class PlannedUnit(NamedTuple):
    """A row of the plan, and its file, which is row `file_number` of files.arrow.

    A unit with a `fault` is not read. The fault is its own, or that of its file. `digest` is known
    of a finished dataset's units.
    """

    number: int
    unit: Unit
    file_number: int
    file: File
    fault: Rejection | None
    digest: int | None

    def key(self, record: int | None = None) -> str:
        """Return the key of a record, by default of the first one."""
        number = self.unit.first if record is None else record
        return f"{self.file.path}#{number}" if number else self.file.path


@dataclass(frozen=True)
class PlannedShard:
    """One shard of a job: its split, its number within the split, its rows of the plan, and how
    many records these are.

    `kept`: the shard is kept as it is, and this was its number before. `blocks`: the rows of each
    of its blocks, where these are known (plan.JOB_SHARDS_SCHEMA).
    """

    split: int
    split_name: str
    number: int
    first_unit: int
    units: int
    records: int
    kept: int = NOT_KEPT
    blocks: Sequence[int] | None = None

    @property
    def name(self) -> str:
        """What the shard is called."""
        return shard_name(self.split_name, self.number)

    def path(self, sha256: str) -> str:
        """Return where it lies in the folder of a dataset, once its bytes are known."""
        return path_of_shard(self.split_name, self.number, sha256)


RecordUnit = tuple[int, int | None]
"""A row of the plan, and the number of a record of it; None for all of them."""


@dataclass(frozen=True)
class RetryHints:
    """What is known of a shard beforehand. The records and units of `lost` are rejected at once,
    each with its reason: a worker died of it, the dataset before has rejected it (Job.known), or
    its unit was not read to its end.

    `careful` are units whose records are read one by one, since one of them has ended a worker; or,
    where models are called with several units that are records, the first of these, and the model
    is called with each alone before. `unfit` are units that have records which do not fit the types
    that were given. `anew` says that nothing is to be taken from the dataset before: its shard is
    damaged, or cannot be read. `apart` says that no units are read together: a worker died.
    """

    lost: Mapping[RecordUnit, Rejection] = field(default_factory=dict)
    careful: frozenset[int] = frozenset()
    unfit: frozenset[int] = frozenset()
    anew: bool = False
    apart: bool = False

    def refuse_lost(self, unit: int) -> None:
        """Raise the rejection of a unit that is lost as a whole."""
        if (unit, None) in self.lost:
            raise self.lost[unit, None]

    def with_lost(self, lost: Mapping[RecordUnit, Rejection]) -> RetryHints:
        """Return the same hints, and that these are lost too."""
        return replace(self, lost={**self.lost, **lost})

    @cached_property
    def _records(self) -> dict[int, list[int]]:
        ordered = sorted((unit, record) for unit, record in self.lost if record is not None)
        return {
            unit: [record for _, record in several]
            for unit, several in groupby(ordered, itemgetter(0))
        }

    def lost_records(self, unit: int) -> list[int]:
        """Return the numbers of the records of a unit that are lost one by one, sorted."""
        return self._records.get(unit, [])

    def without_lost(self, unit: int, choose: Choose | None) -> Choose | None:
        """Return what chooses the same records of a unit, but for those that are lost."""
        lost = self.lost_records(unit)
        if not lost:
            return choose
        return lambda numbers: ~np.isin(numbers, lost) & (choose(numbers) if choose else True)


class BuildAgain(Exception):
    """A shard must be built again from its first unit: what was written cannot be taken back.

    It is to be built with these `hints`; the message says what was found that needs them.
    """

    def __init__(self, hints: RetryHints, why: str) -> None:
        super().__init__(why)
        self.hints = hints


PROBE = -1
"""What the probe has in the place of the number of a shard."""


@dataclass(frozen=True)
class ShardTask:
    """A shard to build of the job in a folder, or PROBE.

    The worker tries the unit `trial` before it builds the shard, and with `on` all units after it.
    So it does not build the shard from its beginning for every record that ends a worker. `suspect`
    is (unit, attempt) of a unit that could not be read in time.
    """

    folder: str
    shard: int
    hints: RetryHints = field(default_factory=RetryHints)
    trial: int | None = None
    on: bool = False
    suspect: tuple[int, int] | None = None


@dataclass(frozen=True)
class Probe:
    """What a few records pushed through the recipe showed, or the dataset that is updated: the
    layout of the shards, and what a sample costs. The shape that all images share is known when the
    markers are joined.

    All figures are averages. A sample takes `sample_bytes` in a shard, and a shard without samples
    has `shard_bytes`. A record has `record_bytes` (0: not known), and takes `record_seconds`. A
    unit of many records takes `unit_seconds` more. A record that is not rejected becomes
    `samples_per_record`. Of the `records` that were tried, `rejected` were rejected by an error or
    a filter: `reasons` counts them by stage and error, and `examples` has the first one of each. `notices` say which
    fields are no longer what they were, because of a user's function, and what the first records
    show of masks and objects; `warnings` say it where that should be looked at. `frames` are those
    of masks and objects, by the names that fields have in records.
    """

    layout: Layout
    sample_bytes: float = 0.0
    record_bytes: float = 0.0
    shard_bytes: int = 0
    record_seconds: float = 0.0
    unit_seconds: float = 0.0
    samples_per_record: float = 1.0
    records: int = 0
    rejected: int = 0
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    frames: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()


@dataclass(frozen=True)
class RecordReading:
    """How files of many records are read. The defaults are for files of one record."""

    fields: pa.Schema | None = None
    """The columns of the records; None for files of one record."""

    by_field: bool = False
    """Whether the field `label` of the records names the classes."""

    draw: Draw | None = None
    """Decides the split of each record; None where a unit belongs to one split."""

    @classmethod
    def from_json(cls, record: Json | None) -> RecordReading:
        """Build what a dataset records. Raises KeyError, TypeError, ValueError, ArrowException."""
        if record is None:
            return cls()
        draw = record["draw"]
        return cls(
            fields=decode_schema(record["schema"]),
            by_field=bool(record["by_field"]),
            draw=Draw.from_json(draw) if draw else None,
        )


def encode_schema(schema: pa.Schema | None) -> str | None:
    """Return a schema as text, None for none."""
    return None if schema is None else base64.b64encode(schema.serialize()).decode("ascii")


def decode_schema(text: str | None) -> pa.Schema | None:
    """Return the schema that `encode_schema` gave as text. Raises ValueError, ArrowException."""
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


RECIPE_FOLDER = "recipe"
"""The folder of the files that the recipe depends on."""

KNOWN = "known.jsonl"
"""Records that a finished dataset has rejected, where such a one is made again: see Job.known."""

KnownLine = tuple[int, int | None, str, str, str]
"""A line of it: the row of the plan, the record (None: all of them), and the reason."""

ANY_UNIT = -1
"""In known.jsonl, the row of the plan of records that are known by their own keys: the number of
each is a hash of that."""

KEY = "key"
"""The field that shardctl gives to every sample."""

PLAN_ROWS = 2048
"""Rows of the plan that are Python objects at a time."""

J = TypeVar("J", bound="Job")


@dataclass(frozen=True)
class Job:
    """What a worker needs to build any shard. `folder` has its plan, and what became of each shard.
    New shards lie among those of the dataset. No manifest names them before the commit.

    `fields`, `by_field` and `draw` say how files of many records are read (RecordReading).
    `shuffle` is the seed of the order, None where it is that of the inputs. `recorded` says that
    the plan is that of a finished dataset. `url` is the dataset's where that is on an object store;
    then `folder` holds a copy of the job. `apart` says that finished shards stay in `folder`, for
    who looks at them before they get into the dataset. `id` is in the names of what the job writes
    into the dataset's folder.
    """

    folder: Path
    bases: tuple[SourceBase, ...]
    recipe: Recipe
    layout: Layout
    splits: tuple[SplitPlan, ...]
    fields: pa.Schema | None = None
    by_field: bool = False
    draw: Draw | None = None
    shuffle: int | None = None
    recorded: bool = False
    url: str = ""
    apart: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(4))

    def write_recipe_files(self) -> None:
        """Write the files that the recipe depends on."""
        for name, data in self.recipe.files.items():
            (self.folder / RECIPE_FOLDER).mkdir(exist_ok=True)  # a probe comes before the plan
            write_atomically(self.folder / RECIPE_FOLDER / name, data)

    def save(self) -> None:
        """Write job.json, which says that the job is ready: its tables and its folders come
        before."""
        JobFolder(self.folder).save(
            {f.name: _form(f.name)[0](getattr(self, f.name)) for f in _saved(type(self))}
        )

    def with_shards(self: J, starts: Numbers, chosen: Numbers) -> J:
        """Return the same job with some of its shards, (n,) int64: each has the units from those of
        shard `starts` on, up to those of the next."""
        table, shards = self._shards.take(pa.array(chosen)), self._shards
        columns = {name: table[name] for name in table.column_names}
        for name in ("units", "records"):
            columns[name] = np.add.reduceat(numbers_of(shards[name]), starts)
        columns["first_unit"] = self.first_units[starts]
        table = pa.table(columns, table.schema)
        counts = np.bincount(numbers_of(table["split"]), minlength=len(self.splits)).tolist()
        splits = zip(self.splits, counts, strict=True)
        job = replace(self, splits=tuple(replace(split, shards=n) for split, n in splits))
        vars(job).update(_shards=table)
        return job

    def write_shards(self) -> None:
        """Write the table of its shards into its folder."""
        table = self._shards.combine_chunks()
        with new_table(self.folder / SHARDS, table.schema) as writer:
            writer.write_table(table)

    @property
    def working(self) -> LocalFolder:
        """Its folder, which has the URL that it has where the dataset is on a store."""
        return LocalFolder(
            self.folder, f"{self.url}/{STAGING}/{self.folder.name}" if self.url else ""
        )

    @classmethod
    def load(cls: type[J], folder: LocalFolder, recipe: Recipe | None = None) -> J:
        """Read job.json. A process that has the `recipe` passes it: then no function is imported
        because the file names it.

        Raises DatasetError, or UsageError for its recipe, if this version of shardctl did not write
        it, or for another recipe.
        """
        try:
            record = JobFolder(folder.root).record()
            if unknown := record.keys() - {f.name for f in _saved(DatasetJob)}:
                raise ValueError(f"it has {', '.join(sorted(unknown))}")
            if recipe and record["recipe"] != json.loads(json.dumps(recipe.to_json())):
                raise ValueError("it has another recipe")
            given = {
                f.name: _form(f.name)[1](record[f.name])
                for f in _saved(cls)
                if f.name in record and f.name != "recipe"
            }
            recipe = recipe or Recipe.from_json(record["recipe"], folder.root / RECIPE_FOLDER)
            job = cls(folder=folder.root, recipe=recipe, **given)
            if not job_of_generation(generation_folder(1, record["id"])):
                raise ValueError("its shards would be put outside of the dataset's folder")
            if not all(is_file_name(split.name) for split in job.splits):
                raise ValueError("a split has a name that leads out of the dataset's folder")
            return job
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            pa.ArrowException,
        ) as error:
            raise DatasetError(
                f"{folder.shown(JOB)}: not a job of this version of shardctl ({error})"
            ) from error

    @property
    def records_read(self) -> Json | None:
        """How files of many records are read, as plain data that a dataset records; None where a
        file is one record."""
        if self.fields is None:
            return None
        record = {
            "schema": encode_schema(self.fields),
            "by_field": self.by_field,
            "draw": self.draw and self.draw.to_json(),
        }
        if self.annotation_rules:
            record["upright"] = True
        return {**record, "joined": True} if self.recipe.joins else record

    @cached_property
    def image_column(self) -> str | None:
        """The column of a table whose images the recipe works on; None if there is none."""
        return next(iter(marked_columns(self.fields, MAIN)), None)

    @cached_property
    def kept_images(self) -> tuple[str, ...]:
        """The columns of a table whose images are kept as they are, under their names in the
        dataset."""
        return tuple(
            self.recipe.renames.get(name, name) for name in marked_columns(self.fields, KEPT)
        )

    @cached_property
    def annotation_rules(self) -> dict[str, AnnotationRule]:
        """How the masks and the objects of records are read, by their names in the dataset: the
        frame, and the rule for boxes.

        Those that an export tells the role of are in the frame of the upright image already, and
        not among them.
        """
        if self.fields is None or self.image_column is None:
            return {}
        frames, boxes = said_of(self.fields, FRAME), said_of(self.fields, BOXES)
        objects, rules = objects_of_records(self.fields, self.recipe), dict[str, AnnotationRule]()
        for name in (*marked_masks(self.fields), *([] if objects is None else [objects])):
            renamed = self.renames.get(name, name)
            if not isinstance(self.layout.roles.get(renamed), Objects):
                rule = AnnotationRule(boxes.get(name, "keep"), frames.get(name, "auto"))
                rules[renamed] = rule
        return rules

    @property
    def keeps_sources(self) -> bool:
        """Whether the original bytes of the images that the recipe works on are kept."""
        return self.recipe.store is not None and self.recipe.store.name == "source"

    @property
    def has_image_columns(self) -> bool:
        """Whether columns of a table hold images."""
        return bool(self.image_column or self.kept_images)

    @cached_property
    def renames(self) -> dict[str, str]:
        """The fields of records that have another name in the dataset."""
        main = {} if self.image_column in (None, "image") else {str(self.image_column): "image"}
        return self.set_apart | self.recipe.renames | main

    @property
    def old_names(self) -> dict[str, str]:
        """The names of the fields of records, by those in the dataset."""
        return {self.renames.get(f.name, f.name): f.name for f in self.fields or ()}

    @property
    def set_apart(self) -> dict[str, str]:
        """The fields of records that have a name which shardctl gives to fields itself, and what
        they are called instead."""
        names = () if self.fields is None else self.fields.names
        ours = {
            self.recipe.key_source and KEY,
            *marked_columns(self.fields, MAIN),
            *marked_columns(self.fields, KEPT),
            *self.recipe.chosen_fields,
        }
        apart = {name: f"__{name}__" for name in RESERVED_FIELDS if name in names}
        return {
            name: other for name, other in apart.items() if name not in ours and other not in names
        }

    @property
    def shards(self) -> int:
        """How many shards there are in all splits together."""
        return sum(split.shards for split in self.splits)

    @property
    def records(self) -> int:
        """How many records its units have, over all splits."""
        return sum(split.records for split in self.splits)

    @property
    def expected(self) -> int:
        """How many records it has, rejected or not, each in one split: about, where they are
        drawn."""
        return sum(split.expected for split in self.splits)

    @property
    def whole(self) -> bool:
        """Whether each file is one record; else it has many."""
        return self.fields is None

    def write_known(self, lines: Iterable[KnownLine]) -> None:
        """Have these records rejected."""
        if found := "".join(f"{json.dumps(line)}\n" for line in lines):
            write_atomically(self.folder / KNOWN, found.encode())

    @cached_property
    def known(self) -> dict[int, dict[int | None, Rejection]]:
        """The rejects of a finished dataset that is made again, by row of the plan and record;
        record None: the whole unit.

        What is rejected here is not tried again: it may end the process. Empty for a new
        conversion.
        """
        known: dict[int, dict[int | None, Rejection]] = {}
        if (self.folder / KNOWN).exists():
            with open(self.folder / KNOWN, encoding="utf-8") as lines:
                for line in lines:
                    unit, record, *reason = json.loads(line)
                    known.setdefault(unit, {})[record] = Rejection(*reason)
        return known

    @cached_property
    def samples_before(self) -> PreviousSamples | None:
        """What is taken from the dataset that the job brings up to date; None for nothing."""
        from shardctl.making.shards.previous_samples import REUSED, PreviousSamples  # an update

        path = self.folder / REUSED
        of_dataset = self.folder.parent.parent  # the job is in its staging folder
        return PreviousSamples(path, of_dataset) if path.exists() else None

    @cached_property
    def plan(self) -> pa.Table:
        """The plan, memory-mapped."""
        return open_table(self.working, PLAN)

    @cached_property
    def files(self) -> pa.Table:
        """The table of files, memory-mapped."""
        return open_table(self.working, FILES)

    @cached_property
    def first_units(self) -> Numbers:
        """The first row of the plan of every shard, (shards,)."""
        return numbers_of(self._shards["first_unit"])

    @cached_property
    def kept(self) -> npt.NDArray[np.int32]:
        """For every shard the number of the shard before that it is, NOT_KEPT where it is built:
        (shards,)."""
        return numbers_of(self._shards["kept"])

    @cached_property
    def _shards(self) -> pa.Table:
        return open_table(self.working, SHARDS)

    def planned_shard(self, shard: int) -> PlannedShard:
        """Return what the plan says of shard `shard`, counted over all splits."""
        (row,) = self._shards.slice(shard, 1).to_pylist()
        return PlannedShard(split_name=self.splits[row["split"]].name, **row)

    @property
    def shards_root(self) -> Path:
        """The folder that the paths of finished shards are relative to."""
        return self.folder if self.url or self.apart else self.folder.parent.parent

    def unfinished_path(self, shard: int) -> Path:
        """Path that stands for the shard while it is written."""
        return self.shards_root / DATA / f"{self.planned_shard(shard).name}.{self.id}"

    def marker_path(self, shard: int) -> Path:
        """Path of the marker of a finished shard, with what became of each of its units."""
        return marker_path(self.folder, shard)

    def rejects_path(self, shard: int) -> Path:
        """Path of the rejects of a finished shard; there is no such file if there are none."""
        return self.folder / DONE_FOLDER / f"{shard:07d}.jsonl"

    def rejects(self, shard: int) -> Iterator[Reject]:
        """Yield the rejects of a finished shard."""
        path = self.rejects_path(shard)
        return read_rejects(LocalFolder(path.parent), path.name) if path.exists() else iter(())

    def units_at(self, numbers: Sequence[int] | Numbers) -> Iterator[PlannedUnit]:
        """Yield these rows of the plan, which are in order, with their files, some thousands in
        memory at a time."""
        for start in range(0, len(numbers), PLAN_ROWS):
            part = np.asarray(numbers[start : start + PLAN_ROWS])
            rows = table_rows(self.plan, part)
            units = zip(*_lists(rows, *(name for name, _ in UNIT_FIELDS[1:])), strict=True)
            others = zip(*_lists(rows, "file", "digest", "error", "message"), strict=True)
            wanted = sorted(set(rows["file"].to_pylist()))
            found = self._files_of(table_rows(self.files, np.array(wanted, np.int64)))
            files = dict(zip(wanted, found, strict=True))
            for number, unit, (of_file, digest, error, message) in zip(
                part.tolist(), units, others, strict=True
            ):
                file = files[of_file]
                fault = Rejection("plan", error, message) if error else file.fault
                yield PlannedUnit(number, Unit._make(unit), of_file, file, fault, digest)

    def planned_at(self, number: int) -> PlannedUnit:
        """Return one row of the plan."""
        return next(self.units_at([number]))

    def path_of(self, file: File) -> str:
        """Return the path or the URL by which a file is opened."""
        return f"{self.bases[file.root].path}/{file.path}"

    @cached_property
    def on_store(self) -> bool:
        """Whether some of its sources are on a store."""
        return any(base.is_stored for base in self.bases)

    def version_of(self, file: File) -> int:
        """Return which version of a file on a store is to be read, 0 for whichever is there."""
        return 0 if self.recorded else file.mtime_ns

    def choose(self, planned: PlannedUnit, split: int) -> Choose | None:
        """Return what tells which records of a unit are in a split, by their numbers; None: all of
        them.

        Where records have keys of their own, these decide instead: records.choice_of.
        """
        if self.draw is None:
            return None
        draw, hashed = self.draw, xxhash.xxh3_64_intdigest(planned.file.path.encode())
        if draw.group is not None:
            return lambda numbers: draw.of_keys(map(planned.key, numbers.tolist())) == split
        return lambda numbers: draw.of_records(hashed, numbers) == split

    def _files_of(self, batch: pa.Table) -> Iterator[File]:
        """Yield the rows of a part of the table of files."""
        given = _lists(
            batch, "path", "root", "size", "mtime_ns", "label", "columns", "error", "message"
        )
        for path, root, size, mtime_ns, label, columns, error, message in zip(*given, strict=True):
            fault = Rejection("plan", error, message) if error else None
            if self.recorded and (not 0 <= root < len(self.bases) or ".." in path.split("/")):
                fault = Rejection("read", "astray", "the plan names a file outside of the sources")
            yield File(path, root, size, mtime_ns or 0, label, columns or {}, fault)


def _lists(table: pa.Table | pa.RecordBatch, *names: str) -> list[list[Any]]:
    """Return columns of a table as lists, of None for one that it does not have. Rows as dicts take
    twice as long."""
    there = table.schema.names
    return [
        table.column(name).to_pylist() if name in there else [None] * table.num_rows
        for name in names
    ]


@lru_cache(maxsize=1)
def job_in(folder: str) -> Job:
    """Return the job in a folder, which is read once for all that a process does of it."""
    return Job.load(LocalFolder(Path(folder)))


def marker_path(folder: Path, shard: int) -> Path:
    """Return the path of the marker of a finished shard, below the folder of its job."""
    return JobFolder(folder).marker(f"{shard:07d}", ".arrow")


def objects_of_records(fields: pa.Schema, recipe: Recipe) -> str | None:
    """Return the field of records that is the column of objects in the dataset and goes by its
    image; None if none does."""
    if OBJECTS in recipe.unmoved:
        return None
    found = (f for f in fields if recipe.renames.get(f.name, f.name) == OBJECTS)
    column = next(found, None)
    if column is None or not has_objects(pa.schema([column.with_name(OBJECTS)])):
        return None
    return str(column.name)


@dataclass(frozen=True, kw_only=True)
class DatasetJob(Job):
    """A job with what its planner and its commit need, and no worker does. All of it is in
    job.json, side by side.

    A sample takes `sample_bytes` in a shard, and a shard `shard_bytes` beside its samples. A record
    takes `record_seconds`, and becomes `samples_per_record` if it is not rejected: as the probe
    measured it, corrected for repeats and for sizes, or as the dataset before shows it. Of the
    `probed` records `probe_rejects` were rejected.
    """

    parts: dict[str, str]
    """The parts of the fingerprint."""

    beside: str = ""
    """The digest of files that decide how other files are read; "" for none."""

    label_states: Json = field(default_factory=dict)
    """What was noted of labels files and annotations (Listing.note_label_states)."""

    digest_before: str = ""
    """The digest of the dataset that the job updates (its SHA256SUMS); "" for a new dataset."""

    kept_records: int = 0
    """The number of records in the shards that an update keeps."""

    changes: Changes | None = None
    """What an update changes; None for a new dataset."""

    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What was found of the inputs and the plan, which the result has too; more may be found while
    the job is done."""

    sample_bytes: float = 0.0
    samples_per_record: float = 1.0
    record_seconds: float = 0.0
    shard_bytes: int = 0
    probed: int = 0
    probe_rejects: int = 0

    typed: Json = field(default_factory=typed_command)
    """The command line that began the job."""


def _saved(kind: type[Job]) -> list[Field[Any]]:
    """Return the fields of a job that are keys of job.json."""
    return [f for f in fields(kind) if f.name != "folder"]


_Form = Callable[[Any], Any]


def _several(kind: Callable[..., Any]) -> tuple[_Form, _Form]:
    return (
        lambda records: list(map(asdict, records)),
        lambda said: tuple(kind(**each) for each in said),
    )


_FORMS: dict[str, tuple[_Form, _Form]] = {
    "bases": _several(SourceBase),
    "splits": _several(SplitPlan),
    "recipe": (Recipe.to_json, Recipe.from_json),
    "layout": (Layout.to_json, Layout.loads),
    "fields": (encode_schema, decode_schema),
    "draw": (lambda draw: draw and draw.to_json(), lambda said: said and Draw.from_json(said)),
    "changes": (lambda changes: changes and asdict(changes), lambda said: said and Changes(**said)),
}
"""How fields are written into job.json, and read; the others are there as they are."""


def _form(name: str) -> tuple[_Form, _Form]:
    return _FORMS.get(name, (lambda value: value, lambda said: said))
