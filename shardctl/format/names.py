"""The names of the files and folders of a dataset. docs/format.md, section 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
