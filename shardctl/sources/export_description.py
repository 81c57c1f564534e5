"""shardctl.json: what an export of shardctl is, so that it can be read back with its types, its
classes and its order.

There are no times and no paths in it: the same dataset gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.format.layout import Layout
from shardctl.format.names import CHECKSUMS
from shardctl.format.tables import expect
from shardctl.sources.files import Version, exists, local_copy, local_version, read_small
from shardctl.sources.splits import is_split_name
from shardctl.system.files import FileFacts, is_file, ordinary, sha256_of
from shardctl.system.locations import folders_above, is_stored, join, parent_of, path_below

DESCRIPTION = "shardctl.json"
FORMAT = "shardctl export"
VERSION = 2
"""In JSON, version 1 has the counts of an RLE in Base64."""

LIMIT = 256 << 20
"""Bytes of the largest shardctl.json that is read: that of a million shards. Files of one sample
each are not in it."""

DEEPEST = 2
"""How many folders may be between shardctl.json and a file that it describes."""

RESTORED = ("webdataset", "mds", "tfrecord", "tfds", "array-record")
"""Forms of export whose records are read with the columns, and the names of them, that the dataset
has."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_OWN = (
    "format",
    "version",
    "to",
    "kind",
    "layout",
    "key",
    "fields",
    "splits",
    "files",
    "loose",
    "fingerprint",
)


@dataclass(frozen=True)
class Field:
    """A column that is exported: its name in the dataset, its name in the target, and the form in
    which it is written: `value`, `json`, `image`, `png`, or a word of the form's own."""

    name: str
    written: str
    form: str


@dataclass(frozen=True)
class SplitFiles:
    """The samples of a split, and its files in the order of the samples, by their path in the
    folder of the export."""

    samples: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class LooseFacts:
    """Files of one image or text each, of which SHA256SUMS has a line: how many there are, and
    their bytes.

    `folders` are those that they are in, by split. `sums` is the SHA-256 of SHA256SUMS.
    """

    files: int
    bytes: int
    folders: Mapping[str, tuple[str, ...]]
    sums: str

    def split_of(self, name: str) -> str | None:
        """Return the split that has the path of a file below the export in one of its folders, None
        if none has."""
        found = (
            split
            for split, each in self.folders.items()
            for one in each
            if name.startswith(f"{one}/")
        )
        return next(found, None)

    def splits_in(self, folder: str) -> set[str]:
        """Return the splits that have files in a folder, by its path below the export, or below
        it."""
        return {
            split
            for split, each in self.folders.items()
            for one in each
            if f"{one}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{one}/")
        }


@dataclass(frozen=True)
class Description:
    """What an export is.

    `layout` has the types and the roles of the exported columns under their names in the dataset,
    `key` is the name that the key has in the target (None: it has none there), `fields` say how
    each column is written. `splits` are in the dataset's order. `facts` are what else readers of
    this form need. `loose` is about files that are not in `files`, as there may be millions.
    """

    to: str
    layout: Layout
    key: str | None
    fields: tuple[Field, ...]
    splits: Mapping[str, SplitFiles]
    files: Mapping[str, FileFacts]
    fingerprint: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    loose: LooseFacts | None = None
    version: int = VERSION

    def has(self, name: str) -> bool:
        """Return whether a file, by its path below the export, is one of it."""
        return name in self.files or (
            self.loose is not None and self.loose.split_of(name) is not None
        )

    def split_of(self, name: str) -> str | None:
        """Return the split that a file is in, by its path below the export; None if it is in
        none."""
        listed = next((split for split, each in self._files_of.items() if name in each), None)
        return listed if listed is not None or self.loose is None else self.loose.split_of(name)

    @cached_property
    def _files_of(self) -> dict[str, frozenset[str]]:
        return {split: frozenset(each.files) for split, each in self.splits.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the content of shardctl.json as plain data."""
        return {
            "format": FORMAT,
            "version": self.version,
            "to": self.to,
            "kind": self.layout.kind,
            **self.facts,
            "layout": self.layout.to_json(),
            "key": self.key,
            "fields": [asdict(each) for each in self.fields],
            "splits": {name: asdict(each) for name, each in self.splits.items()},
            "files": {name: asdict(facts) for name, facts in self.files.items()},
            **({} if self.loose is None else {"loose": asdict(self.loose)}),
            "fingerprint": self.fingerprint,
        }

    def dumps(self) -> bytes:
        """Return the bytes of shardctl.json."""
        return (json.dumps(self.to_json(), indent=1) + "\n").encode()

    @classmethod
    def load(cls, folder: str | Path) -> Description:
        """Read the shardctl.json in a folder, which may be anything. Raises ValueError for what is
        none, and OSError."""
        data = read_small(join(str(folder), DESCRIPTION), LIMIT)
        try:
            return cls.from_json(json.loads(data))
        except (KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
            raise ValueError(
                f"{DESCRIPTION} is not as `shardctl help formats` describes it ({error!r:.200})"
            ) from error

    @classmethod
    def from_json(cls, record: Any) -> Description:
        """Build what `to_json` gave, from untrusted data. Raises ValueError and the other errors
        that `load` turns into it."""
        expect(isinstance(record, dict) and record["format"] == FORMAT, "it is of an export")
        version = record["version"]
        known = type(version) is int and 1 <= version <= VERSION
        expect(known, f"its version is {VERSION} at most")
        key, to, fingerprint = record["key"], record["to"], record["fingerprint"]
        texts = [to, fingerprint, *([] if key is None else [key])]
        expect(_are_strings(texts), "the form, the fingerprint and a key are strings")
        layout = Layout.loads(record["layout"])
        fields = tuple(Field(**each) for each in record["fields"])
        told = [text for each in fields for text in astuple(each)]
        expect(_are_strings(told), "a field is told in strings")
        names = {each.name for each in fields}
        expect(len(names) == len(fields), "each field comes once")
        expect(names <= set(layout.columns.names), "fields are columns")
        files = {_path(name): _facts(facts) for name, facts in record["files"].items()}
        splits = {_split(name): _files(each, files) for name, each in record["splits"].items()}
        facts = {name: value for name, value in record.items() if name not in _OWN}
        loose = None if record.get("loose") is None else _loose(record["loose"])
        return cls(to, layout, key, fields, splits, files, fingerprint, facts, loose, version)


def _are_strings(values: Iterable[object]) -> bool:
    return all(type(value) is str for value in values)


def _split(name: Any) -> str:
    expect(type(name) is str and is_split_name(name), "a split has a name")
    return str(name)


def _path(name: Any) -> str:
    """Return the path of a file if it stays in the folder."""
    odd = "\\" in name or "\0" in name or {"", ".", ".."} & set(name.split("/"))
    expect(not odd, "files are inside the folder")
    return str(name)


def _facts(record: Any) -> FileFacts:
    facts = FileFacts(**record)
    expect(type(facts.bytes) is int and facts.bytes >= 0, "a size is a number of bytes")
    expect(
        type(facts.sha256) is str and _SHA256.fullmatch(facts.sha256) is not None,
        "a SHA-256 has 64 hex digits",
    )
    return facts


def _files(record: Any, files: Mapping[str, FileFacts]) -> SplitFiles:
    names, samples = record["files"], record["samples"]
    expect(
        isinstance(names, list) and set(names) <= set(files), "a split has files that are listed"
    )
    expect(type(samples) is int and samples >= 0, "samples are counted")
    return SplitFiles(samples, tuple(names))


def _loose(record: Any) -> LooseFacts:
    facts = _facts({"bytes": record["bytes"], "sha256": record["sums"]})
    expect(type(record["files"]) is int and record["files"] >= 0, "files are counted")
    folders = {
        _split(split): tuple(map(_path, names)) for split, names in record["folders"].items()
    }
    return LooseFacts(record["files"], facts.bytes, folders, facts.sha256)


def loose_names(folder: str | Path, export: Description) -> Iterator[str]:
    """Yield the loose files of an export by their paths below its folder. Raises OSError,
    ValueError for another SHA256SUMS."""
    return (name for name, _ in loose_sums(folder, export))


def loose_sums(folder: str | Path, export: Description) -> Iterator[tuple[str, str]]:
    """Yield path and SHA-256 of the loose files of an export. Raises OSError, ValueError for
    another SHA256SUMS."""
    if export.loose is None:
        return
    path = Path(local_copy(join(str(folder), CHECKSUMS)))
    if not is_file(path) or sha256_of(path) != export.loose.sums:
        raise ValueError(f"{CHECKSUMS} is not the one of the export")
    with open(path, "rb", opener=ordinary) as lines:
        for line in lines:
            sha256, _, name = line.decode().removesuffix("\n").partition("  ")
            if name not in export.files:
                expect(
                    export.loose.split_of(_path(name)) is not None,
                    "loose files are in the folders of splits",
                )
                expect(_SHA256.fullmatch(sha256) is not None, "a SHA-256 has 64 hex digits")
                yield name, sha256


def name_in_records(field: Field, export: Description) -> str:
    """Return the name that a column of an export has in the records that are read of it."""
    return field.name if export.to in RESTORED else field.written


def may_be_of_export(folder: str) -> bool:
    """Return whether files of a folder may be of an export: there is a shardctl.json in it, or
    above it."""
    return any(exists(description) for _, description in _places_of(from_root(folder)))


def described(file: str) -> Description | None:
    """Return the description of the export that a file is of, None if it is of none, or if that
    cannot be read."""
    found = located(file)
    return None if found is None else found[0]


def located(file: str) -> tuple[Description, str] | None:
    """Return the description of the export that a file is of, and the path of the file below it;
    None as above."""
    absolute = from_root(file)
    for above, description in _places_of(parent_of(absolute)):
        try:
            if not exists(description):
                continue
            version = local_version(local_copy(description))
        except OSError:
            continue
        found = _loaded(above, version)
        name = path_below(absolute, above)
        return (found, name) if found is not None and name is not None and found.has(name) else None
    return None


@lru_cache(256)
def _places_of(folder: str) -> list[tuple[str, str]]:
    """Return the folders whose export a file of a folder may be of, each with its description."""
    above = folders_above(f"{folder}/0")[: DEEPEST + 1]
    return [(each, join(each, DESCRIPTION)) for each in above]


def from_root(text: str) -> str:
    """Return a location by its whole path, or as it is if it is on a store."""
    return text if is_stored(text) else str(Path(text).absolute())


@lru_cache(8)
def _loaded(folder: str, _version: Version) -> Description | None:
    try:
        return Description.load(folder)
    except (OSError, ValueError):
        return None
