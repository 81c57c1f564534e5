"""What lies on an object store while a dataset is made there, and after it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from shardctl.format.names import shard_name
from shardctl.system.stores import open_store
from shardctl.system.stores.base import Store

TABLES = ("SHA256SUMS", "files.arrow", "plan.arrow", "rejects.jsonl", "shards.arrow")


def keys(url: str) -> list[str]:
    return [entry.name for page in open_store(url).pages() for entry in page]


def manifest_on(url: str) -> dict[str, Any]:
    return dict(json.loads(open_store(url).get("manifest.json").to_pybytes()))


def tables_on(url: str) -> str:
    """Return the folder below a URL with the tables of the present generation."""
    return str(manifest_on(url)["history"][-1]["path"])


def shards_on(url: str, tables: str = "") -> dict[str, str]:
    """Return the keys of the shards of a generation, by what they are called."""
    data = open_store(url).get(f"{tables or tables_on(url)}shards.arrow")
    rows = pa.ipc.open_file(data).read_all().select(["split", "number", "path"]).to_pylist()
    return {shard_name(each["split"], each["number"]): each["path"] for each in rows}


def sums_on(url: str) -> bytes:
    """Return SHA256SUMS, having made sure that every file is what it says."""
    store, tables = open_store(url), tables_on(url)
    data = store.get(f"{tables}SHA256SUMS").to_pybytes()
    for line in data.decode().splitlines():
        digest, name = line.split("  ", 1)
        key = name.removeprefix("../../") if name.startswith("../../") else f"{tables}{name}"
        assert hashlib.sha256(store.get(key)).hexdigest() == digest, name
    assert store.get(f"{tables}manifest.json") == store.get("manifest.json")
    return bytes(data)


def nothing_is_left(url: str, kept: int = 1, mine: Iterable[str] = ()) -> None:
    """Make sure that there is nothing but the present generation and up to `kept` before it, what
    they name, and the objects of a person."""
    there = [each["path"] for each in manifest_on(url)["history"] if "path" in each]
    assert 1 <= len(there) <= 1 + kept
    expected = {"manifest.json", *mine}
    for tables in there:
        expected |= {f"{tables}{name}" for name in ("manifest.json", *TABLES)}
        expected |= set(shards_on(url, tables).values())
    found = set(keys(url)) - {f"{tables}update.arrows" for tables in there}
    assert found == expected, found ^ expected


def done_on(store: Store) -> int:
    return sum(
        "/done/" in entry.name and entry.name.endswith(".arrow")
        for page in store.pages(".shardctl/")
        for entry in page
    )
