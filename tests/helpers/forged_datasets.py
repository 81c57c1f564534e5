"""Datasets whose tables or manifest say something else, with checksums that hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from dataset_files import tables_in

from shardctl.format.dataset_folder import dataset_in
from shardctl.format.names import CHECKSUMS, TABLES
from shardctl.format.tables import UP, write_checksums
from shardctl.system.files import sha256_of

RECORD_DIGEST = {"sort_keys": True, "separators": (",", ":")}


def signed(record: dict[str, Any]) -> str:
    """Return a manifest whose digest holds, whatever it says."""
    record.pop("digest", None)
    text = json.dumps(record, **RECORD_DIGEST)  # type: ignore[arg-type]  # plain keyword arguments
    return json.dumps({**record, "digest": hashlib.sha256(text.encode()).hexdigest()})


def read_table(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def write_table(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def replace_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(
        place, table.schema.field(name), pa.array(values, table.schema.field(name).type)
    )


def edit_unit(out: Path, unit: int, **values: Any) -> None:
    """Give a unit other values."""
    plan = read_table(tables_in(out) / "plan.arrow")
    for name, value in values.items():
        column = plan[name].to_pylist()
        column[unit] = value
        plan = replace_column(plan, name, column)
    write_table(tables_in(out) / "plan.arrow", plan)


def sign(out: Path, **said: Any) -> None:
    """Make every checksum fit what is there; `said` is what the manifest is to say."""
    folder = dataset_in(out)
    tables = tables_in(out)
    shards = read_table(tables / "shards.arrow")
    names = shards["path"].to_pylist()
    paths = list(map(folder.path, names))
    shards = replace_column(shards, "sha256", [sha256_of(path) for path in paths])
    write_table(
        tables / "shards.arrow",
        replace_column(shards, "bytes", [path.stat().st_size for path in paths]),
    )
    if "listed" not in said:
        listed = [(f"{UP}{name}", sha256_of(folder.path(name))) for name in names]
        listed += [(name, sha256_of(tables / name)) for name in TABLES]
        write_checksums(tables / CHECKSUMS, listed)
    record = json.loads((out / "manifest.json").read_text())
    record["files"] = {
        name: {"bytes": (tables / name).stat().st_size, "sha256": sha256_of(tables / name)}
        for name in (*TABLES, CHECKSUMS)
    }
    record["bytes"] = sum(path.stat().st_size for path in paths)
    for split in record["splits"]:
        split["bytes"] = sum(
            path.stat().st_size for path in paths if path.name.startswith(split["name"])
        )
    record |= {name: value for name, value in said.items() if name != "listed"}
    write_manifest(out, record)


def write_manifest(out: Path, record: dict[str, Any]) -> None:
    """Have a dataset say this of itself, with a digest that holds: its manifest, and the copy."""
    text = json.dumps(json.loads(signed(record)), indent=1) + "\n"
    (tables_in(out) / "manifest.json").write_text(text)
    (out / "manifest.json").write_text(text)
