"""index.json of MDS: the names of the shards, their sizes and hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import xxhash

from shardctl.errors import InputError, Rejection
from shardctl.sources.files import local_copy
from shardctl.sources.formats.beside import MOST_BYTES, is_beside, is_name, json_in, of_export
from shardctl.sources.formats.columns import Version, version_of
from shardctl.sources.small_files import read_small
from shardctl.sources.walk import FoundFile, LeftOut
from shardctl.system.dataclass import dataclass
from shardctl.system.files import ordinary
from shardctl.system.locations.text import beside, name_of
from shardctl.system.text import printable

INDEX = "index.json"

_HASHES: dict[str, Callable[[], Any]] = {
    **{name: getattr(hashlib, name) for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "blake2b", "blake2s")},
    "xxh32": xxhash.xxh32,
    "xxh64": xxhash.xxh64,
    "xxh3_64": xxhash.xxh3_64,
    "xxh3_128": xxhash.xxh3_128,
}
"""The hashes that MDS may have (streaming/base/hashing.py), those that are known here."""

HASHED_BYTES = 1 << 20

_COPY = re.compile(r"^(.*\.mds)\.(zstd|zst|gz|bz2|br|snappy)$")
_SHARD = re.compile(r"\.mds(\.(zstd|zst|gz|bz2|br|snappy))?$")


@dataclass(frozen=True)
class Listed:
    """What index.json says of a file of a shard: its samples, its size without compression, the hashes (hex) of the file."""

    samples: int
    size: int
    hashes: tuple[tuple[str, str], ...] = ()


def check_hashes(path: str) -> None:
    """Compare a shard with the hashes that index.json has of it. Raises Rejection if one differs, OSError."""
    listed = listed_in(beside(path, INDEX)).get(name_of(path))
    hashes = {name: _HASHES[name]() for name, _ in listed.hashes if name in _HASHES} if listed is not None else {}
    if listed is None or not hashes:
        return
    with open(path, "rb", buffering=0, opener=ordinary) as file:
        while chunk := file.read(HASHED_BYTES):
            for each in hashes.values():
                each.update(chunk)
    wrong = next((name for name, value in listed.hashes if name in hashes and hashes[name].hexdigest() != value), None)
    if wrong is not None:
        raise Rejection(
            "read", "wrong-hash", f"its {wrong} is not the one that {INDEX} has; the shard is damaged, get it again"
        )


def listed_in(index: str) -> dict[str, Listed]:
    """Return the shards that an index.json lists, by the names of their files; none where it is no such list."""
    try:
        return _listed(index, version_of(local_copy(index)))
    except OSError:
        return {}


@lru_cache(16)
def _listed(index: str, _version: Version) -> dict[str, Listed]:
    found: dict[str, Listed] = {}
    try:
        for shard in json.loads(read_small(index, MOST_BYTES))["shards"]:
            samples, size = int(shard["samples"]), int(shard["raw_data"]["bytes"])
            for part in ("raw_data", "zip_data"):
                if shard.get(part):
                    hashes = sorted((str(name), str(value)) for name, value in (shard[part].get("hashes") or {}).items())
                    found[str(shard[part]["basename"])] = Listed(samples, size, tuple(hashes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return found


def companions(path: str) -> Iterator[str]:
    """Yield the files that say more of a shard, as InputFormat.companions has it."""
    yield from of_export(path)
    yield INDEX


def refuse_missing_shards(file: FoundFile) -> None:
    """Raise InputError if an index lists a shard that is not there, compressed or not."""
    record = json_in(file)
    shards = record.get("shards") if isinstance(record, dict) else None
    for shard in shards if isinstance(shards, list) else ():
        parts = [shard.get(part) for part in ("raw_data", "zip_data")] if isinstance(shard, dict) else []
        names = [part["basename"] for part in parts if isinstance(part, dict) and isinstance(part.get("basename"), str)]
        if names and not any(is_name(name) and is_beside(file, name) for name in names):
            shown = " or ".join(map(printable, names))
            raise InputError(
                f"{printable(file.opened)}: lists {shown}, which is not there; get it, or give the shards themselves as sources"
            )


class Unlisted:
    """Leaves out shards that the index does not list, and compressed copies of uncompressed shards."""

    def __init__(self) -> None:
        self._copies, self._unlisted = LeftOut(), LeftOut()

    def excludes(self, file: FoundFile, name: str) -> bool:
        """Return whether a file is such a shard, or such a copy."""
        if (match := _COPY.match(name)) and is_beside(file, match[1]):
            self._copies.add(file.path)
        elif _SHARD.search(name) and not _is_listed(file, name):
            self._unlisted.add(file.path)
        else:
            return False
        return True

    def notices(self) -> Iterator[str]:
        """Yield how many there are of each."""
        if self._copies.count:
            copies = self._copies.counted("compressed copy", "compressed copies")
            yield f"left out: {copies}: the shards are there uncompressed too"
        if self._unlisted.count:
            yield f"left out: {self._unlisted.counted('shard', 'shards')}: index.json does not list them"


def _is_listed(file: FoundFile, name: str) -> bool:
    listed = listed_in(beside(file.opened, INDEX))
    return not listed or name in listed
