"""The names of the files and folders of a dataset. docs/format.md, section 1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

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

GENERATIONS = "generations"
"""The folder inside a dataset's folder that has earlier generations of it, each a dataset of its
own."""

STAGING = ".shardctl"
"""The folder inside a dataset's folder that holds everything until the commit."""

LEASE_KEY = f"{STAGING}/lease.json"
"""The lease of a dataset on a store, below its URL."""

REPLACED = "replaced.json"
"""In the folder of a job whose dataset is taking its place: the names of the files that it
replaces."""

TABLES = (FILES, PLAN, SHARDS, REJECTS)
"""The files of every dataset that are neither shards, nor the manifest, nor the list of checksums,
nor update.arrows."""

BESIDE_SHARDS = frozenset((MANIFEST, *TABLES, CHECKSUMS, UPDATE))
"""All files of a dataset that are neither shards nor files that its recipe depends on."""

REBUILT_FROM = (PLAN, SHARDS, CHECKSUMS)
"""The files without which `repair` cannot make the manifest."""


def shard_name(split: str, shard: int) -> str:
    """Return the file name of a shard, numbered within its split: train-00000.arrow."""
    return f"{split}-{shard:05d}.arrow"


PLANNED = "planned_shards"
"""The setting, of a dataset that leaves out shards without samples, that says how many shards each
split was divided into."""


def number_of_shard(name: str) -> int:
    """Return the number of a shard within its split, from its file name."""
    return int(name.removesuffix(".arrow").rpartition("-")[2])


def is_shard_name(name: str) -> bool:
    """Return whether a file of a dataset is called as a shard is."""
    stem, _, number = name.removesuffix(".arrow").rpartition("-")
    return (
        name.endswith(".arrow")
        and bool(stem)
        and number.isascii()
        and number.isdecimal()
        and len(number) >= 5
    )


DUPLICATES = "duplicates-"
"""What the names of the tables begin with that say which texts are duplicates; the unit that was
compared comes after it."""


def is_duplicates_table(name: str) -> bool:
    """Return whether a file of a dataset is called as a table of duplicates is."""
    return name.startswith(DUPLICATES) and not is_shard_name(name)


def is_file_name(name: Any) -> bool:
    """Return whether this is the name of a file right inside the dataset's folder, and nothing that
    leads out of it."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def are_file_names(names: Iterable[str]) -> bool:
    """Return whether all of these, which are strings, are names of files right inside the dataset's
    folder. Fast for many."""
    together = set(names)
    return together.isdisjoint(("", ".", "..")) and not set("/\\\0").intersection("".join(together))


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
