"""The names of the files and folders of a dataset. docs/format.md, section 1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

Json = dict[str, Any]
"""An object of JSON."""

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 256 << 20
"""Bytes of the longest manifest that is read."""

FILES = "files.arrow"
PLAN = "plan.arrow"
SHARDS = "shards.arrow"
REJECTS = "rejects.jsonl"
CHECKSUMS = "SHA256SUMS"
UPDATE = "update.arrows"
"""What `convert --update` must know (update_state.py). As it has times, SHA256SUMS does not list
it; the manifest does."""

DATA = "data"
"""The folder inside a dataset's folder that has the shards of all generations."""

GENERATIONS = "generations"
"""The folder inside a dataset's folder that has a folder for each generation: its tables, and a copy
of its manifest."""

STAGING = ".shardctl"
"""The folder inside a dataset's folder with the jobs that are not committed: their plans, and what
became of their shards. New shards and tables lie beside the others already."""

LEASE_KEY = f"{STAGING}/lease.json"
"""The lease of a dataset on a store, below its URL."""

TABLES = (FILES, PLAN, SHARDS, REJECTS)
"""The files of every dataset that are neither shards, nor the manifest, nor the list of checksums,
nor update.arrows."""

BESIDE_SHARDS = frozenset((MANIFEST, *TABLES, CHECKSUMS, UPDATE))
"""All files of a dataset that are neither shards nor files that its recipe depends on."""


def shard_name(split: str, number: int) -> str:
    """Return what a shard is called, by its number within its split: train-00000."""
    return f"{split}-{number:05d}"


def path_of_shard(split: str, number: int, sha256: str) -> str:
    """Return where a shard lies in the folder of a dataset. The name stands for its bytes."""
    return f"{DATA}/{shard_name(split, number)}-{sha256[:CONTENT_DIGITS]}.arrow"


CONTENT_DIGITS = 16
"""Hex digits of its SHA-256 in the name of a shard."""

_CONTENT = re.compile(rf"(.+-[0-9]{{5,}})-([0-9a-f]{{{CONTENT_DIGITS}}})\.arrow")


def content_digits(name: str) -> str:
    """Return the digits of a SHA-256 that the file name of a shard has, "" where it is not called as
    one."""
    found = _CONTENT.fullmatch(name)
    return found[2] if found else ""


def name_of_path(path: str) -> str:
    """Return what the shard at a path is called."""
    return _CONTENT.sub(r"\1", path.rpartition("/")[2]).removesuffix(".arrow")


def is_shard_path(path: str) -> bool:
    """Return whether a file inside a dataset's folder is called as a shard, of any version."""
    name = path.rpartition("/")[2]
    return are_paths_inside([path]) and bool(content_digits(name) or is_shard_of_format_2(name))


class NamedShard(NamedTuple):
    """A shard as its path says it: its split, and its number within that."""

    split: str
    number: int
    path: str

    @property
    def name(self) -> str:
        """What the shard is called."""
        return shard_name(self.split, self.number)

    @classmethod
    def of(cls, path: str, splits: Iterable[str]) -> NamedShard | None:
        """Return the shard of one of these splits that has this path, None for any other file."""
        digits = rf"([0-9]{{5,}})(?:-[0-9a-f]{{{CONTENT_DIGITS}}})?\.arrow"
        for split in splits:
            found = re.fullmatch(rf"(?:{DATA}/|[^/]+/)?{re.escape(split)}-{digits}", path)
            if found is not None:
                return cls(split, int(found[1]), path)
        return None


def generation_folder(number: int, job: str) -> str:
    """Return the folder of a generation in that of the dataset, with a / at its end. `job` is the id
    of the job that has made it."""
    return f"{GENERATIONS}/{number:05d}-{job}/"


_GENERATION = re.compile(rf"{GENERATIONS}/[0-9]{{5,}}-([0-9a-f]{{8}})/")


def job_of_generation(folder: str) -> str:
    """Return the id of the job that the folder of a generation is of; "" for any other folder."""
    found = _GENERATION.fullmatch(folder)
    return found[1] if found else ""


PLANNED = "planned_shards"
"""The setting, of a dataset that leaves out shards without samples, that says how many shards each
split was divided into."""


_FORMAT_2 = re.compile(r"(.+)-([0-9]{5,})\.arrow")


def is_shard_of_format_2(name: str) -> bool:
    """Return whether a file has the name that a shard had before format 3, beside the tables."""
    return _FORMAT_2.fullmatch(name) is not None


def number_in_format_2(name: str) -> int:
    """Return the number of such a shard within its split."""
    found = _FORMAT_2.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a shard")
    return int(found[2])


class Places(NamedTuple):
    """Where the files of a generation lie, below the folder of its dataset: the shards by their
    paths, all others in the folder `tables`, with a / at its end.

    In format 2 there is no such folder on this machine (""), and on a store `shards` is the same
    folder.
    """

    tables: str = ""
    shards: str = ""

    def of(self, name: str) -> str:
        """Return the path of a file by the name that the tables and the manifest give it."""
        if "/" in name:
            return name
        return (self.shards if is_shard_of_format_2(name) else self.tables) + name


BESIDE = Places()
"""Where the files lie in format 2: all beside the manifest."""


DUPLICATES = "duplicates-"
"""What the names of the tables begin with that say which texts are duplicates; the unit that was
compared comes after it."""


def is_duplicates_table(name: str) -> bool:
    """Return whether a file of a dataset is called as a table of duplicates is."""
    return name.startswith(DUPLICATES) and not is_shard_of_format_2(name)


def is_file_name(name: Any) -> bool:
    """Return whether this is the name of a file right inside the dataset's folder, and nothing that
    leads out of it."""
    return isinstance(name, str) and are_file_names([name])


def are_file_names(names: Collection[str]) -> bool:
    """Return whether all of these, which are strings, are names of files right inside the dataset's
    folder."""
    return are_paths_inside(names) and not any("/" in name for name in names)


def are_paths_inside(paths: Collection[str]) -> bool:
    """Return whether all of these are paths of files inside the dataset's folder, with / between
    their parts. Fast for many: they are looked at as one text."""
    together = "/\0/".join(("", *paths, ""))
    return together.count("\0") == len(paths) + 1 and not any(
        map(together.count, ("//", "/./", "/../", "\\"))
    )


_UNSAFE = re.compile(r"[\x00-\x1f\x7f%\\]")
_EMPTY_PART = re.compile(r"^/|/(?=/)|/$")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
REPEATED = "%~"
"""Comes behind a key that an archive has already, with a number: the second one has %~1. No escaped
key has it."""


def member_key(key: str) -> str:
    """Return a key as the path that the members of a sample share: no dot in its last part, and
    nothing that leads elsewhere.

    A character that cannot stand is written as % and two hex digits: `.` in the last part, `/`
    where it would make an empty part, the first dot of `.` and `..`, the first `_` of a name that
    readers skip (`__…__`), control characters, the backslash and `%` itself.
    """
    path = _EMPTY_PART.sub("%2F", _UNSAFE.sub(lambda found: _escaped(found[0]), key))
    *folders, last = path.split("/")
    parts = [f"%2E{part[1:]}" if part in (".", "..") else part for part in folders] + [
        last.replace(".", "%2E")
    ]
    return (
        "/".join(f"%5F{part[1:]}" if part.startswith("__") else part for part in parts)
        or f"{REPEATED}0"
    )


def key_of_member(path: str) -> str:
    """Return the key of which `member_key` made a path, without what was added because it was
    repeated."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path.partition(REPEATED)[0])


def _escaped(character: str) -> str:
    return f"%{ord(character):02X}"


def distinct_name(name: str, seen: Counter[str]) -> str:
    """Return a name that was not returned before, as counted in `seen`: the name itself, or with
    %~1, %~2 behind it. Several variants of a sample have the same within one archive."""
    times = seen[name]
    seen[name] += 1
    return f"{name}{REPEATED}{times}" if times else name


def extension_part(name: str) -> str:
    """Return the name of a column as a part of a file's extension: of a-z, 0-9, _ and -, others as
    % and two hex digits.

    Readers of WebDataset turn extensions into lower case, and split them at dots.
    """
    plain = "abcdefghijklmnopqrstuvwxyz0123456789_-"
    return "".join(
        c if c in plain else "".join(f"%{byte:02x}" for byte in c.encode()) for c in name
    )
