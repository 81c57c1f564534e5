"""Datasets whose tables or manifest say something else, with checksums that hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.format.names import CHECKSUMS, TABLES
from shardctl.format.tables import write_checksums
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
    plan = read_table(out / "plan.arrow")
    for name, value in values.items():
        column = plan[name].to_pylist()
        column[unit] = value
        plan = replace_column(plan, name, column)
    write_table(out / "plan.arrow", plan)


def sign(out: Path, **said: Any) -> None:
    """Make every checksum fit what is there; `said` is what the manifest is to say."""
    shards = read_table(out / "shards.arrow")
    paths = [out / name for name in shards["path"].to_pylist()]
    shards = replace_column(shards, "sha256", [sha256_of(path) for path in paths])
    write_table(
        out / "shards.arrow",
        replace_column(shards, "bytes", [path.stat().st_size for path in paths]),
    )
    if "listed" not in said:
        write_checksums(
            out / CHECKSUMS,
            [(path.name, sha256_of(path)) for path in [*paths, *(out / name for name in TABLES)]],
        )
    record = json.loads((out / "manifest.json").read_text())
    record["files"] = {
        name: {"bytes": (out / name).stat().st_size, "sha256": sha256_of(out / name)}
        for name in (*TABLES, CHECKSUMS)
    }
    record["bytes"] = sum(path.stat().st_size for path in paths)
    for split in record["splits"]:
        split["bytes"] = sum(
            path.stat().st_size for path in paths if path.name.startswith(split["name"])
        )
    record |= {name: value for name, value in said.items() if name != "listed"}
    record = json.loads(signed(record))
    (out / "manifest.json").write_text(json.dumps(record, indent=1) + "\n")
