"""Datasets whose checksums all hold, and which contradict themselves: made wrong, or made by
somebody with intent."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_files import shard_in, tables_in
from forged_datasets import edit_unit, read_table, replace_column, sign, write_table

import shardctl
from shardctl.format.names import CHECKSUMS
from shardctl.format.shard import CHECKSUM_KEY, block_checksum

SHARD = "train-00002"


def rewrite_shard(out: Path, change: Callable[[pa.Table], pa.Table], rows: int = 100) -> None:
    """Write a shard with other content, in blocks of so many rows, each with the checksum that fits
    it."""
    shard = shard_in(out, SHARD)
    table = change(read_table(shard)).combine_chunks()
    with pa.ipc.new_file(shard, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            whole = pa.record_batch(
                [pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema
            )
            fresh = pa.ipc.read_record_batch(whole.serialize(), whole.schema)
            writer.write_batch(fresh, custom_metadata={CHECKSUM_KEY: block_checksum(fresh)})


def swap_keys(table: pa.Table) -> pa.Table:
    keys = table["key"].to_pylist()
    keys[3], keys[4] = keys[4], keys[3]
    return replace_column(table, "key", keys)


def edit_plan(out: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    write_table(tables_in(out) / "plan.arrow", change(read_table(tables_in(out) / "plan.arrow")))


def edit_files(out: Path, column: str, value: Any) -> None:
    """Give the first file another value."""
    files = read_table(tables_in(out) / "files.arrow")
    write_table(
        tables_in(out) / "files.arrow",
        replace_column(files, column, [value, *files[column].to_pylist()[1:]]),
    )


def swap_units(plan: pa.Table) -> pa.Table:
    """Exchange the files of two units of one shard: the same rows, with other keys."""
    files = plan["file"].to_pylist()
    files[17 + 3], files[17 + 4] = files[17 + 4], files[17 + 3]
    return replace_column(plan, "file", files)


def listed_twice(out: Path) -> None:
    sums = tables_in(out) / CHECKSUMS
    sums.write_text(sums.read_text() + "0" * 64 + "  more.arrow\n")


def write_reject(out: Path, record: Any) -> None:
    (tables_in(out) / "rejects.jsonl").write_text(json.dumps(record) + "\n")


def odd_label(table: pa.Table) -> pa.Table:
    labels = table["label"].to_pylist()
    labels[5] = 6
    return replace_column(table, "label", labels)


REJECT = dict.fromkeys(("source", "key", "stage", "error", "message"), "x")
OTHER_SPLIT = {"name": "test", "samples": 60, "shards": 7, "bytes": 0}

PLANS: list[tuple[int, dict[str, Any]]] = [
    (0, {"samples": 0, "rejected": 1}),
    (1, {"first_row": 2}),
    (59, {"first_row": -1}),
    (0, {"file": 60}),
    (0, {"file": -1}),
    (0, {"shard": 1}),
    (0, {"first": 2**62}),
    (0, {"samples": 2**62, "rejected": None}),
]
FILES = [
    ("path", "../victim.jpg"),
    ("path", "/etc/passwd"),
    ("path", "a/../../b"),
    ("path", None),
    ("root", 1),
    ("size", -1),
]
TABLES: list[tuple[str, Callable[[pa.Table], pa.Table]]] = [
    ("keys-differ", swap_keys),
    ("schema-differs", lambda table: table.append_column("x", table["label"])),
    ("rows-differ", lambda table: table.slice(1)),
    ("no-such-class", odd_label),
]
REJECTS: list[tuple[str, Any]] = [
    ("damaged-rejects", {**REJECT, "records": 0}),
    ("rejects-differ", REJECT),
    ("damaged-rejects", []),
]
COUNTS: list[dict[str, Any]] = [{"samples": 61}, {"rejected": 1}, {"splits": [OTHER_SPLIT]}]

FORGED: list[tuple[str, Callable[[Path], object], dict[str, Any]]] = [
    *((kind, partial(rewrite_shard, change=change), {}) for kind, change in TABLES),
    ("blocks-differ", lambda out: rewrite_shard(out, lambda table: table, rows=2), {}),
    *(("plan-differs", partial(edit_unit, unit=unit, **values), {}) for unit, values in PLANS),
    ("plan-differs", lambda out: edit_plan(out, lambda plan: plan.slice(1)), {}),
    ("plan-differs", lambda out: edit_plan(out, lambda plan: plan.drop_columns(["digest"])), {}),
    ("duplicate-key", lambda out: edit_unit(out, 0, file=1), {}),
    ("duplicate-key", lambda out: edit_files(out, "path", read_table(tables_in(out) / "files.arrow")["path"][7].as_py()), {}),
    ("keys-differ", lambda out: edit_plan(out, swap_units), {}),
    *(("files-differ", partial(edit_files, column=name, value=value), {}) for name, value in FILES),
    *((kind, partial(write_reject, record=record), {}) for kind, record in REJECTS),
    *(("counts-differ", lambda out: None, said) for said in COUNTS),
    ("checksums-differ", listed_twice, {"listed": True}),
]  # fmt: skip


@pytest.mark.thorough(after=6)
@pytest.mark.parametrize(
    ("kind", "forge", "said"), FORGED, ids=[f"{n} {case[0]}" for n, case in enumerate(FORGED)]
)
def test_a_dataset_that_contradicts_itself_is_found_out(dataset, kind, forge, said):
    sign(dataset)
    # signing alone changes nothing that verify minds
    assert shardctl.verify(dataset).findings == ()
    forge(dataset)
    sign(dataset, **said)
    found = shardctl.verify(dataset).findings
    assert kind in {finding.kind for finding in found}, found
    if kind == "keys-differ":
        assert [(finding.shard, finding.row) for finding in found] == [(SHARD, 3)]
    if kind == "no-such-class":
        assert [(finding.shard, finding.block, finding.row) for finding in found] == [(SHARD, 0, 5)]
        assert found[0].message.startswith("its label is 6, and the classes")
        (alone,) = shardctl.verify(shard_in(dataset, SHARD)).findings
        assert (alone.kind, alone.row) == (kind, 5)
