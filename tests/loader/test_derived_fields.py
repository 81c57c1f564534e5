"""What loaders derive from blocks of tokens, beside a plain reference, in any order and through
every way to read."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.loader.blocks.column import Spec
from shardctl.loader.blocks.token_features import BlockLayout

ALL = ("labels", "position_ids", "document_ids", "cu_seqlens")
EOS, PAD, LENGTH = 0, 9, 16


Row = tuple[list[int], list[int], list[int] | None]
"""Tokens, lengths of their documents, loss mask."""


def reference(rows: list[Row], width: int) -> dict[str, Any]:
    """The derived fields of rows, one token after the other."""
    found: dict[str, Any] = {"labels": [], "position_ids": [], "document_ids": []}
    edges = [0]
    for tokens, lengths, mask in rows:
        padding = width - sum(lengths)
        stretches = [*enumerate(lengths), *[(-1, padding)] * (padding > 0)]
        edges += [length for _, length in stretches]
        numbers = [number for number, length in stretches for _ in range(length)]
        counted = mask or [1] * width
        found["labels"].append(
            [
                tokens[at] if numbers[at - 1] == numbers[at] >= 0 and counted[at] else -100
                for at in range(1, width)
            ]
            + [-100]
        )
        found["position_ids"].append([place for _, length in stretches for place in range(length)])
        found["document_ids"].append(numbers)
    return found | {"cu_seqlens": np.cumsum(edges).tolist(), "max_seqlen": max(edges)}


@examples(60)
@given(st.lists(st.lists(st.integers(1, 5), max_size=4), max_size=6), st.booleans())
def test_derived_fields_are_those_of_a_plain_reference(rows, masked):
    width = 20
    tokens = np.arange(len(rows) * width, dtype=np.uint16).reshape(len(rows), width) + 1
    mask = (tokens % 3 > 0).astype(np.uint8) if masked else None
    flat = np.array([length for lengths in rows for length in lengths], np.int64)
    layout = BlockLayout(width, np.array([len(lengths) for lengths in rows], np.int64), flat)
    masks = [None] * len(rows) if mask is None else mask.tolist()
    wanted = reference(list(zip(tokens.tolist(), rows, masks, strict=True)), width)
    labels = np.empty(tokens.shape, np.int64)
    places, documents = np.empty(tokens.shape, np.int32), np.empty(tokens.shape, np.int32)
    layout.labels(tokens, mask, labels)
    layout.position_ids(places)
    layout.document_ids(documents)
    for name, values in zip(ALL, (labels, places, documents, layout.cu_seqlens()), strict=True):
        assert values.tolist() == wanted[name], name


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(2)
    documents = [rng.integers(1, 500, size).tolist() for size in rng.integers(1, 40, 120)]
    masks = [[int(token % 2) for token in each] for each in documents]
    path = tmp_path_factory.mktemp("documents") / "in.parquet"
    columns = {
        "tokens": pa.array(documents, pa.list_(pa.uint16())),
        "loss_mask": pa.array(masks, pa.list_(pa.uint8())),
    }
    pq.write_table(pa.table(columns), path)
    return path


def convert(source: Path, out: Path, compression: str = "auto", **settings: Any) -> Path:
    step = {"name": "pack", "length": LENGTH, "eos": EOS, "pad": PAD, **settings}
    recipe = {"transform": [step], "compression": compression}
    shardctl.convert(source, out, recipe=recipe, workers=0, samples_per_shard=40)
    return out


@pytest.fixture(scope="session")
def blocks(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(source, tmp_path_factory.mktemp("blocks") / "out", method="bfd")


@pytest.fixture(scope="session")
def compressed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(source, tmp_path_factory.mktemp("blocks") / "out", "zstd", method="bfd")


def rows_of(ds: shardctl.Dataset, indices: list[int]) -> Any:
    names = ("tokens", "document_lengths", "loss_mask")
    return [tuple(ds[index][name].tolist() for name in names) for index in indices]


def check_derived(batch: dict[str, Any], rows: list[Row], width: int = LENGTH) -> None:
    assert batch["tokens"].tolist() == [tokens for tokens, _, _ in rows]
    for name, value in reference(rows, width).items():
        assert np.asarray(batch[name]).tolist() == value, name


@pytest.mark.thorough(after=4)
@pytest.mark.parametrize(
    "options", [{}, {"mmap": False}, {"preload": True}, {"on_error": "skip"}, {"reuse": True}]
)
@pytest.mark.parametrize("stored", ["blocks", "compressed"])
def test_batches_in_order_have_the_derived_fields(stored, options, request):
    ds = shardctl.open(request.getfixturevalue(stored))
    rows = rows_of(ds, list(range(len(ds))))
    for batch in ds.loader(7, derive=ALL, **options):
        size = len(batch["tokens"])
        check_derived(batch, rows[:size])
        del rows[:size]
    assert rows == []


@pytest.mark.parametrize("processes", [None, 2])
def test_shuffled_batches_have_the_derived_fields_and_resume(blocks, processes):
    ds = shardctl.open(blocks)
    by_tokens = {str(row[0]): row for row in rows_of(ds, list(range(len(ds))))}
    loader, resumed = (
        ds.loader(8, shuffle=True, seed=3, derive=ALL, processes=count)
        for count in (processes, None)
    )
    seen, state = [], {}
    for number, batch in enumerate(loader):
        seen.append([str(tokens) for tokens in batch["tokens"].tolist()])
        check_derived(batch, [by_tokens[tokens] for tokens in seen[-1]])
        if number == 2:
            state = loader.state_dict()
    loader.close()
    assert sorted(chain(*seen)) == sorted(by_tokens)
    resumed.load_state_dict(state)
    assert [[str(row) for row in batch["tokens"].tolist()] for batch in resumed] == seen[3:]


def test_a_loader_of_blocks_reads_tokens_and_loss_mask_unless_asked_for_more(blocks):
    ds = shardctl.open(blocks)
    (batch,) = ds.limit(3).loader(3)
    assert set(batch) == {"tokens", "loss_mask"}
    assert not batch["tokens"].flags.writeable, "a view of the file"
    assert batch["tokens"].dtype == np.uint16
    names = ["key", "tokens", "document_keys"]
    (batch,) = ds.limit(3).loader(3, columns=names, dtype={"tokens": "int64"}, derive=["labels"])
    assert set(batch) == {*names, "labels"}
    assert batch["tokens"].dtype == np.int64
    assert batch["key"] == [keys[0] for keys in batch["document_keys"]]
    assert {"key", "document_keys", "document_lengths", "document_starts"} < set(ds[0])


def test_blocks_are_stored_so_that_they_can_be_read_in_place(blocks, source, tmp_path):
    pieces = convert(source, tmp_path / "out", method="none")
    stored = [shardctl.open(root).manifest.recipe["compression"] for root in (blocks, pieces)]
    assert stored == ["none", "zstd:3"]


def test_pieces_that_are_padded_have_derived_fields_too(source, out):
    ds = shardctl.open(convert(source, out, method="none", stride=4))
    loader = ds.loader(5, columns=["tokens"], pad={"tokens": PAD}, bucket={"tokens": 4}, derive=ALL)
    stored = {(str(row["tokens"].tolist()), str(row["loss_mask"].tolist())) for row in ds}
    masks = {tokens: json.loads(mask) for tokens, mask in stored}
    assert len(stored) == len(masks), "each list of tokens has one mask"
    count = 0
    for batch in loader:
        assert batch["tokens"].dtype == np.uint16
        width = batch["tokens"].shape[1]
        lengths = batch["tokens_length"].tolist()
        rows: Any = [
            (row, [length], masks[str(row[:length])] + [0] * (width - length))
            for row, length in zip(batch["tokens"].tolist(), lengths, strict=True)
        ]
        check_derived(batch, rows, width)
        count += len(rows)
    assert count == len(ds)


def test_specs_say_what_derived_fields_are(blocks):
    specs = shardctl.open(blocks).loader(4, derive=ALL).stream.specs()
    assert specs["labels"] == Spec("fixed", (LENGTH,), np.dtype(np.int64), -100)
    assert specs["position_ids"] == Spec("fixed", (LENGTH,), np.dtype(np.int32))
    assert specs["document_ids"] == Spec("fixed", (LENGTH,), np.dtype(np.int32), -1)
    assert specs["cu_seqlens"].kind == specs["max_seqlen"].kind == "whole"


def test_a_mixture_derives_what_can_be_joined(blocks, compressed):
    mix = shardctl.mix([shardctl.open(blocks), shardctl.open(compressed)], [1, 1])
    batch = next(iter(mix.loader(8, derive=["labels", "document_ids"])))
    same = batch["document_ids"][:, 1:] == batch["document_ids"][:, :-1]
    there = batch["labels"][:, :-1] != -100
    assert (batch["labels"][:, :-1][there] == batch["tokens"][:, 1:][there]).all()
    assert not there[~same].any()
    with pytest.raises(UsageError, match="no mixture has"):
        mix.loader(8, derive=["cu_seqlens"])


def test_what_cannot_be_derived_is_refused(blocks, source, out):
    pieces = convert(source, out, method="none")
    for root, columns, derive, said in (
        (blocks, None, "mask", "'mask' is not known"),
        (blocks, ["key"], "labels", "there are 0 among key"),
        (pieces, None, "labels", "give pad="),
    ):
        with pytest.raises(UsageError, match=said):
            shardctl.open(root).loader(4, columns=columns, derive=[derive])


def written(out: Path, columns: dict[str, Any], types: dict[str, pa.DataType]) -> shardctl.Dataset:
    """Blocks that were not packed by us."""
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    schema = pa.schema([("tokens", pa.list_(pa.uint16(), 4)), *types.items()])
    shardctl.write(out, rows, schema, roles={"tokens": {"role": "tokens", "packed": True}})
    return shardctl.open(out)


@pytest.mark.parametrize(
    "lengths", [[[3, 2], [4]], [[4], [2, 0]], [[-1], [4]], [[2**62] * 3 + [2**62 + 4], [4]]]
)
def test_lengths_that_are_not_those_of_a_block_are_an_error(tmp_path, lengths):
    columns = {"tokens": [[1, 2, 3, 4]] * 2, "document_lengths": lengths}
    ds = written(tmp_path / "out", columns, {"document_lengths": pa.list_(pa.int64())})
    with pytest.raises(DatasetError, match="document_lengths do not fit blocks of 4"):
        next(iter(ds.loader(2, derive=["labels", "position_ids"])))


def test_columns_that_do_not_go_with_the_tokens_are_an_error(tmp_path):
    columns: dict[str, Any] = {"tokens": [[1, 2, 3, 4]]}
    more = {**columns, "document_lengths": [[4]], "loss_mask": [[1, 1]]}
    types = {"document_lengths": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.uint8(), 2)}
    for made, of, said in ((columns, {}, "there is none"), (more, types, "column loss_mask")):
        with pytest.raises(DatasetError, match=said):
            written(tmp_path / said, made, of).loader(1, derive=["labels"])
