"""manifest.json: what a dataset is, and its generations. docs/format.md, section 2."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.counts import Counts, are_jpeg_counts, are_step_counts
from shardctl.format.generations import why_no_manifest
from shardctl.format.layout import Layout
from shardctl.format.names import (
    CHECKSUMS,
    MANIFEST,
    MANIFEST_LIMIT,
    TABLES,
    Json,
    Places,
    are_file_names,
    generation_folder,
    is_duplicates_table,
    is_file_name,
    job_of_generation,
)
from shardctl.format.roles import Names, Roles
from shardctl.format.shard import refuse_other_version
from shardctl.format.tables import MADE_BY, REPAIR_ADVICE, expect, is_written, write_checksums
from shardctl.system.files import FileFacts, exists, is_file, sha256_of
from shardctl.system.folders import Folder
from shardctl.system.locations import is_url
from shardctl.system.stores.base import WRONG_ADVICE
from shardctl.system.text import counted, lacks, printable
from shardctl.version import __version__

FORMAT_VERSION = 3
"""The version of manifests that are written. Raised when a reader of the old version could misread
the new one."""

FORMAT_2 = 2
"""The version before, which is read: docs/format.md, section 7."""

KNOWN_NEEDS = frozenset[str]()
"""Words under `needs` that this version of shardctl knows: what a reader and a writer must know of a
dataset."""

KEPT_HISTORY = 1000
"""Generations in a manifest, at most: each rank of a training reads it."""


@dataclass(frozen=True)
class Generation:
    """One committed state of a dataset: its number, from 1; when it was committed (RFC 3339), and
    by which command.

    `added`, `removed` and `changed` count the inputs in which it differs from the one before:
    files, and for commands that take samples away, samples. `digest` is the SHA-256 of its
    SHA256SUMS, and so stands for every byte of its samples. `path` is the folder of its tables,
    with a / at its end; "" where it is no longer there.
    """

    number: int
    created: str
    command: str
    added: int
    removed: int
    changed: int
    samples: int
    shards: int
    digest: str
    path: str = ""

    def to_json(self) -> Json:
        """Return everything as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "path" or value}


def generations_of(record: Any) -> tuple[Generation, ...]:
    """Read what a manifest has under `history`. Raises ValueError or TypeError where it does not
    fit."""
    if not isinstance(record, list):
        raise TypeError("the history is a list")
    known = Generation.__dataclass_fields__
    history = tuple(
        Generation(**{name: value for name, value in each.items() if name in known})
        for each in record
    )
    expect_fields(*history)
    numbers = [each.number for each in history]
    expect(numbers == sorted(set(numbers)), "generations are in order")
    folders = (each.path for each in history if each.path)
    expect(all(map(job_of_generation, folders)), "generations lie in folders of their own")
    return history


def expect_fields(*records: Any) -> None:
    """Raise ValueError unless the fields of dataclasses that are to be numbers, texts and objects
    are."""
    kinds: dict[Any, Callable[[Any], bool]] = {
        "int": is_count,
        "str": lambda value: type(value) is str,
        "Json": lambda value: type(value) is dict,
    }
    for record in records:
        for each in fields(record):
            fits = each.type not in kinds or kinds[each.type](getattr(record, each.name))
            expect(fits, f"{each.name} is a value of {each.type}")


@dataclass(frozen=True)
class SplitFacts:
    """One split, in the manifest's order, which is the order of the whole dataset."""

    name: str
    samples: int
    shards: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """manifest.json: written last, by rename, so that its presence makes the dataset exist.

    `seconds` is how long the conversion took, None if that was not measured as a whole (it was
    resumed) or not recorded. `class_counts` has the samples of each class by split, None if there
    are no classes or it was not recorded. `environment` has the versions of the libraries, by name;
    None if it was not recorded (by an older shardctl). `records` says how files of many records
    were read, None where a file is one record: docs/format.md. `objects` says how many objects are
    marked in the images (`kept`), and how many the recipe has cut off (`cut_off`); None if there is
    no field of objects, or it was not recorded. `jpeg` counts the JPEG images whose original bytes
    are kept, and those of them that take longer to decode (counts.py); None if there are none,
    or it was not recorded. `steps` counts what became of the records in each step of text and
    tables (counts.py); None if there are none, or it was not recorded. `update` are the facts
    of update.arrows, None if there is none. `history` has the generations, this one last; empty if
    it was not recorded. `keep` of the generations before this one are to be kept. `job` is the id
    of the job that has made it, "" in format 2. `needs` has words that a reader must know.

    `base` and `replaced` are of format 2 on an object store: the folder of everything but the
    manifest, with a / at its end, and that of the dataset before.
    """

    kind: str
    samples: int
    shards: int
    bytes: int
    inputs: int
    rejected: int
    splits: tuple[SplitFacts, ...]
    schema: tuple[tuple[str, str], ...]
    fields: Json
    recipe: Json
    settings: Json
    fingerprint: str
    fingerprint_parts: dict[str, str]
    sources: Names
    files: dict[str, FileFacts]
    created: str
    shardctl_version: str
    dropped: int = 0
    seconds: float | None = None
    class_counts: dict[str, list[int]] | None = None
    environment: dict[str, str] | None = None
    records: Json | None = None
    objects: dict[str, int] | None = None
    jpeg: dict[str, int] | None = None
    steps: list[Counts] | None = None
    update: FileFacts | None = None
    history: tuple[Generation, ...] = ()
    keep: int = 1
    job: str = ""
    needs: tuple[str, ...] = ()
    base: str = ""
    replaced: str = ""

    def to_json(self) -> str:
        """Return the file's bytes, digest included."""
        record = asdict(self)
        # many datasets have none
        for name in ("jpeg", "steps", "update", "history", "base", "replaced"):
            if not record[name]:
                del record[name]
        if not self.job:  # format 2
            for name in ("job", "needs", *(["keep"] if not self.keep else [])):
                del record[name]
        if self.history:
            record["history"] = [each.to_json() for each in self.history]
        record["schema"] = [{"name": name, "type": type_} for name, type_ in self.schema]
        version = FORMAT_VERSION if self.job else FORMAT_2
        record = {"format": "shardctl", "format_version": version, **record}
        record["digest"] = digest_of(record)
        return json.dumps(record, indent=1) + "\n"

    def splits_of(self, split: str | None, shown: str) -> tuple[SplitFacts, ...]:
        """Return what is known of a split, or of all for None. Raises UsageError for one that the
        dataset, which is `shown` so, has not."""
        names = [each.name for each in self.splits]
        if split is not None and split not in names:
            raise UsageError(f"{shown}: {lacks('split', split, names)}")
        return tuple(each for each in self.splits if split in (None, each.name))

    def shards_of(self, split: str | None, shown: str) -> range:
        """Return the numbers of the shards of a split, or of all for None. Raises as `splits_of`."""
        chosen = self.splits_of(split, shown)
        before = takewhile(lambda each: each not in chosen, self.splits)
        start = sum(each.shards for each in before)
        return range(start, start + sum(each.shards for each in chosen))

    def strange_sources(self) -> Names:
        """Return the sources that no conversion records so: neither an absolute path without `..`
        nor a URL."""
        return tuple(
            source for source in self.sources if not (is_url(source) or is_absolute_place(source))
        )

    @classmethod
    def load(cls, folder: Folder) -> Manifest:
        """Read the manifest of the dataset in a folder. Raises DatasetError."""
        shown = folder.shown(MANIFEST)
        try:
            found = folder.stat(MANIFEST)
            if found is not None and found.kind == "other":  # reading a pipe may never end
                raise DatasetError(f"{shown}: not an ordinary file; {REPAIR_ADVICE}")
            if found is not None and found.size > MANIFEST_LIMIT:
                raise DatasetError(f"{shown}: too large to be a manifest")
            data = folder.read(MANIFEST)
        except FileNotFoundError:
            raise DatasetError(why_no_manifest(folder)) from None
        except NotADirectoryError:
            here, instead = folder.local, ""
            if here is not None and exists(here.parent / MANIFEST):
                instead = f"; give the folder, {printable(here.parent)}"
            what = "a file" if here is not None and is_file(here) else "a pipe or a device"
            raise DatasetError(
                f"{folder.shown()}: {what}, not the folder of a dataset{instead}"
            ) from None
        except OSError as error:
            why = error.strerror or error
            raise DatasetError(
                f"{shown}: cannot be read ({why}); check the path, its permissions and its disk"
            ) from error
        return cls.parse(data, shown)

    @classmethod
    def parse(cls, data: pa.Buffer, shown: str) -> Manifest:
        """Read a manifest; `shown` is its path or URL for messages. Raises DatasetError."""
        try:
            record = json.loads(data.to_pybytes())
        except (ValueError, RecursionError) as error:
            remedy = (
                f"{WRONG_ADVICE}. If the object is damaged, {REPAIR_ADVICE}"
                if is_url(shown)
                else REPAIR_ADVICE
            )
            raise DatasetError(
                f"{shown}: cannot be read ({error}; it begins {data[:16].to_pybytes()!r}); {remedy}"
            ) from error
        return cls.from_record(record, shown)

    @classmethod
    def from_record(cls, record: Any, shown: str) -> Manifest:
        """Check and take over what the JSON says; `shown` is the path for messages. Raises
        DatasetError."""
        if not isinstance(record, dict) or record.get("format") != "shardctl":
            raise DatasetError(f"{shown}: not the manifest of a shardctl dataset")
        said = record.get("format_version"), record.get("shardctl_version")
        refuse_other_version(*said, shown, (FORMAT_2, FORMAT_VERSION))
        needs = record.get("needs")
        unknown = [word for word in needs if word not in KNOWN_NEEDS] if type(needs) is list else []
        if unknown:
            raise DatasetError(
                f"{shown}: needs {', '.join(map(printable, unknown))}, which shardctl "
                f"{__version__} does not know; use a later version"
            )
        if record.pop("digest", None) != digest_of(record):
            raise DatasetError(
                f"{shown}: damaged, its content does not match its digest; {REPAIR_ADVICE}"
            )
        try:
            return cls._checked(record)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            OverflowError,
        ) as error:
            raise DatasetError(
                f"{shown}: not as `shardctl help format` describes a manifest ({error!r})"
            ) from error

    @classmethod
    def _checked(cls, record: Json) -> Manifest:
        """Build the manifest from an untrusted record."""
        is_format_2 = record["format_version"] == FORMAT_2
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        made = cls(
            **{
                "keep": 0,  # what format 2 leaves out
                **known,
                "needs": () if is_format_2 else tuple(record["needs"]),
                "splits": tuple(SplitFacts(**split) for split in record["splits"]),
                "schema": tuple((column["name"], column["type"]) for column in record["schema"]),
                "sources": tuple(record["sources"]),
                "files": {name: _facts_of(facts) for name, facts in record["files"].items()},
                "update": record.get("update") and _facts_of(record["update"]),
                "history": generations_of(record.get("history", [])),
            }
        )
        expect_fields(made, *made.splits, *made.files.values(), *filter(None, [made.update]))
        texts = [*made.sources, *made.fingerprint_parts.values(), *chain(*made.schema)]
        expect(all(type(text) is str for text in (*texts, *made.needs)), "names are strings")
        if is_format_2:
            expect(not made.job, "format 2 knows no jobs")
            for folder in filter(None, (made.base, made.replaced)):
                expect(is_file_name(folder[:-1]) and folder[-1] == "/", "its folder is beside it")
        else:
            expect(bool(made.history), "the generations are listed")
            folder = generation_folder(made.generation.number, made.job)
            expect(made.generation.path == folder, "its tables are in the folder of its job")
            expect(not made.base + made.replaced, "its files are named by the tables")
        for value, are_such in (
            (made.environment, are_versions),
            (made.objects, are_object_counts),
            (made.jpeg, are_jpeg_counts),
            (made.steps, are_step_counts),
            (made.class_counts, partial(are_class_counts, names=made.roles.classes)),
        ):
            expect(value is None or are_such(value), "classes, objects and steps are counted")
        expect(made.seconds is None or 0 <= float(made.seconds) < 1e12, "seconds are seconds")
        expect({name for name, _ in made.schema} >= {*made.roles.by_name}, "fields are columns")
        named = [split.name for split in made.splits] + [made.fingerprint] * bool(made.fingerprint)
        expect(all(map(is_file_name, named)), "splits and the fingerprint have plain names")
        expect(are_file_names(made.files), "files lie in the dataset's folder")
        expect(type(made.records or {}) is dict, "records are an object")
        expect(set(TABLES) | {CHECKSUMS} <= set(made.files), "all tables are listed")
        return made

    @property
    def generation(self) -> Generation:
        """This generation of the dataset."""
        if self.history:
            return self.history[-1]
        command = MADE_BY if is_written(self.settings) else "convert"
        return self._as_generation(1, command, self.inputs, 0, 0)

    @property
    def places(self) -> Places:
        """Where its files lie, below the folder of the dataset."""
        return Places(self.generation.path) if self.job else Places(self.base, self.base)

    @property
    def kept(self) -> tuple[Generation, ...]:
        """The generations before this one that are there."""
        return tuple(each for each in self.history[:-1] if each.path)

    def with_generation(
        self,
        before: Manifest | None,
        command: str,
        added: int,
        removed: int,
        changed: int,
        keep: int | None = None,
    ) -> Manifest:
        """Return the same as the next generation after the manifest `before`, None for none. As many
        of the generations before are there as `keep` says, if they were; None: as before says."""
        if keep is None:
            keep = 1 if before is None else before.keep
        number = before.generation.number + 1 if before is not None else 1
        last = self._as_generation(number, command, added, removed, changed)
        last = replace(last, path=generation_folder(number, self.job))
        earlier = () if before is None else before.history or (before.generation,)
        return replace(self, history=(*earlier, last)[-KEPT_HISTORY:]).keeping(keep)

    def keeping(self, keep: int) -> Manifest:
        """Return the same, with no more generations before it than these."""
        first = len(self.history) - 1 - keep
        history = (
            each if place >= first else replace(each, path="")
            for place, each in enumerate(self.history)
        )
        return replace(self, keep=keep, history=tuple(history))

    @property
    def samples_digest(self) -> str:
        """What stands for every byte of its samples: the SHA-256 of SHA256SUMS."""
        return self.files[CHECKSUMS].sha256

    def _as_generation(self, number: int, command: str, *changes: int) -> Generation:
        added, removed, changed = changes
        facts = (self.samples, self.shards, self.samples_digest)
        return Generation(number, self.created, command, added, removed, changed, *facts)

    @cached_property
    def roles(self) -> Roles:
        """The roles of the fields. Raises ValueError or TypeError if `fields` is not as
        docs/format.md describes it."""
        return Roles.from_json(self.fields)

    @property
    def has_own_keys(self) -> bool:
        """Whether keys are values of a field of the records, so that the tables do not know
        them."""
        if self.records is None:  # a key field is the column of a labels file
            return False
        fields = str(self.recipe.get("fields") or "")
        return self.recipe.get("key_field") is not None or any(
            part.startswith("key=") for part in fields.split(",")
        )

    @property
    def own_files(self) -> list[str]:
        """The names of the files that the recipe depends on: a tokenizer, a table of duplicates."""
        return sorted(set(self.files) - {*TABLES, CHECKSUMS})

    @property
    def given_files(self) -> list[str]:
        """The names of those of them that came from outside, and that nothing but a copy of them
        brings back."""
        return [name for name in self.own_files if not is_duplicates_table(name)]

    def type_in_words(self, column: str, type_: str) -> str:
        """Return what a column of an Arrow type has, for people: `raw image, 224x224x3`, `int64 (10
        classes)`."""
        about = self.fields.get(column, {})
        names = len(about.get("names") or ())
        if about.get("role") == "objects":
            return f"objects ({counted(names, 'category', 'categories')})"
        if about.get("role") in ("image", "mask"):
            shape = "x".join(map(str, about["shape"] or ())) or "of different sizes"
            return f"{about['store']} {about['role']}, {shape}"
        return f"{type_} ({counted(names, 'class', 'classes')})" if names else type_

    def layout(self, columns: pa.Schema) -> Layout:
        """Return what the fields are; `columns` is the schema of any shard, without metadata."""
        return Layout.from_json(self.kind, self.fields, columns)


def _facts_of(record: Json) -> FileFacts:
    return FileFacts(record["bytes"], record["sha256"])


def is_count(value: Any) -> bool:
    """Return whether this is a whole number from 0 on."""
    return type(value) is int and value >= 0


def are_class_counts(counts: Any, names: Sequence[str] | None) -> bool:
    """Return whether this has a whole number for every class, by split."""
    return isinstance(counts, dict) and all(
        isinstance(each, list) and len(each) == len(names or ()) and all(map(is_count, each))
        for each in counts.values()
    )


def are_object_counts(counts: Any) -> bool:
    """Return whether this says how many objects there are, and how many were cut off."""
    fits = isinstance(counts, dict) and set(counts) == {"kept", "cut_off"}
    return fits and all(map(is_count, counts.values()))


def are_versions(versions: Any) -> bool:
    """Return whether this has a string for every name."""
    return isinstance(versions, dict) and all(type(version) is str for version in versions.values())


def sum_up(
    folder: Path, shards: Iterable[tuple[str, str]], others: Sequence[str] = ()
) -> dict[str, FileFacts]:
    """Write SHA256SUMS, given the name and SHA-256 of every shard, and return the facts of it, of
    the tables and of `others`: the names of more files of the dataset."""
    files = {
        name: FileFacts((folder / name).stat().st_size, sha256_of(folder / name))
        for name in (*TABLES, *others)
    }
    checksums = write_checksums(
        folder / CHECKSUMS, chain(shards, ((name, facts.sha256) for name, facts in files.items()))
    )
    return {**files, CHECKSUMS: FileFacts((folder / CHECKSUMS).stat().st_size, checksums)}


def is_absolute_place(source: str) -> bool:
    """Return whether a source is an absolute path as a conversion records it: none of its parts
    leads up again."""
    return Path(source).is_absolute() and ".." not in Path(source).parts and "\0" not in source


def digest_of(record: Json) -> str:
    """Return the SHA-256 of the record as compact JSON with sorted keys and without its own
    digest."""
    text = json.dumps(
        {k: v for k, v in record.items() if k != "digest"}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()


def places_of(manifest: Manifest, number: int, shown: str) -> Places:
    """Return where the files of a generation lie. Raises DatasetError if it is not there."""
    if number == manifest.generation.number:
        return manifest.places
    for each in manifest.kept:
        if each.number == number:
            return Places(each.path)
    there = ", ".join(str(each.number) for each in (*manifest.kept, manifest.generation))
    raise DatasetError(
        f"{shown}: generation {number} is not there, only {there}; --keep-generations N keeps more"
    )
