"""The forms of export that keep everything, and all facts of a dataset that they are to keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

FORMS = ("parquet", "webdataset", "tfrecord", "tfds", "mds", "array-record")


def facts_of(dataset: Path) -> dict[str, Any]:
    """Return all that the manifest says of the samples, and the samples: NaN is what it prints
    as."""
    manifest = json.loads((dataset / "manifest.json").read_text())
    splits = [split["name"] for split in manifest["splits"]]
    tables = {}
    for split in splits:
        blocks = [
            pa.ipc.open_file(shard).read_all() for shard in sorted(dataset.glob(f"{split}-*.arrow"))
        ]
        tables[split] = pa.concat_tables(blocks)
    return {
        "kind": manifest["kind"],
        "splits": splits,
        "fields": manifest["fields"],
        "schema": {split: table.schema.remove_metadata() for split, table in tables.items()},
        "rows": {split: list(map(repr, table.to_pylist())) for split, table in tables.items()},
    }
