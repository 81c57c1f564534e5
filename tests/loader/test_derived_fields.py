"""What loaders derive from blocks of tokens, beside a plain reference, in any order and through
every way to read."""

from __future__ import annotations

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


def reference(
    rows: list[tuple[list[int], list[int], list[int] | None]], width: int
) -> dict[str, Any]:
    """The derived fields of rows (tokens, lengths of their documents, loss mask), one token after
    the other."""
    labels, positions, documents, edges = [], [], [], [0]
    for tokens, lengths, mask in rows:
        padding = width - sum(lengths)
        stretches = [*enumerate(lengths), *[(-1, padding)] * (padding > 0)]
        places = [(number, place) for number, length in stretches for place in range(length)]
        for _, length in stretches:
            edges.append(edges[-1] + length)
        positions.append([place for _, place in places])
        documents.append([number for number, _ in places])
        counted = mask[1:] if mask else [1] * width
        row = [
            token if number == after >= 0 and counts else -100
            for number, after, token, counts in zip(
                documents[-1], documents[-1][1:], tokens[1:], counted, strict=False
            )
        ]
        labels.append([*row, -100])
    return {
        "labels": labels,
        "position_ids": positions,
        "document_ids": documents,
        "cu_seqlens": edges,
        "max_seqlen": int(np.diff(edges).max(initial=0)),
    }


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
    layout.labels(tokens, mask, labels)
    places, documents = np.empty(tokens.shape, np.int32), np.empty(tokens.shape, np.int32)
    layout.position_ids(places)
    layout.document_ids(documents)
    assert labels.tolist() == wanted["labels"]
    assert places.tolist() == wanted["position_ids"]
    assert documents.tolist() == wanted["document_ids"]
    assert layout.cu_seqlens().tolist() == wanted["cu_seqlens"]


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


def rows_of(
    ds: shardctl.Dataset, indices: list[int]
) -> list[tuple[list[int], list[int], list[int] | None]]:
    names = ("tokens", "document_lengths", "loss_mask")
    return [tuple(ds[index][name].tolist() for name in names) for index in indices]


def check(batch: dict[str, Any], ds: shardctl.Dataset, indices: list[int]) -> None:
    rows = rows_of(ds, indices)
    assert batch["tokens"].tolist() == [tokens for tokens, _, _ in rows]
    for name, value in reference(rows, LENGTH).items():
        assert np.asarray(batch[name]).tolist() == value, name


@pytest.mark.thorough(after=4)
@pytest.mark.parametrize(
    "options", [{}, {"mmap": False}, {"preload": True}, {"on_error": "skip"}, {"reuse": True}]
)
@pytest.mark.parametrize("stored", ["blocks", "compressed"])
def test_batches_in_order_have_the_derived_fields(stored, options, request):
    ds = shardctl.open(request.getfixturevalue(stored))
    first = 0
    for batch in ds.loader(7, derive=ALL, **options):
        size = len(batch["tokens"])
        check(batch, ds, list(range(first, first + size)))
        first += size
    assert first == len(ds)


@pytest.mark.parametrize("processes", [None, 2])
def test_shuffled_batches_have_the_derived_fields_and_resume(blocks, processes):
    ds = shardctl.open(blocks)
    places = {tuple(ds[index]["tokens"].tolist()): index for index in range(len(ds))}
    loader = ds.loader(8, shuffle=True, seed=3, derive=ALL, processes=processes)
    seen = []
    state = {}
    for number, batch in enumerate(loader):
        seen.append([places[tuple(tokens)] for tokens in batch["tokens"].tolist()])
        check(batch, ds, seen[-1])
        if number == 2:
            state = loader.state_dict()
    loader.close()
    assert sorted(index for each in seen for index in each) == list(range(len(ds)))
    resumed = ds.loader(8, shuffle=True, seed=3, derive=ALL)
    resumed.load_state_dict(state)
    rest = [[places[tuple(tokens)] for tokens in batch["tokens"].tolist()] for batch in resumed]
    assert rest == seen[3:]


def test_a_loader_of_blocks_reads_tokens_and_loss_mask_unless_asked_for_more(blocks):
    ds = shardctl.open(blocks)
    (batch,) = ds.limit(3).loader(3)
    assert set(batch) == {"tokens", "loss_mask"}
    assert not batch["tokens"].flags.writeable, "a view of the file"
    assert batch["tokens"].dtype == np.uint16
    (batch,) = ds.limit(3).loader(
        3, columns=["key", "tokens", "document_keys"], dtype={"tokens": "int64"}, derive=["labels"]
    )
    assert set(batch) == {"key", "tokens", "document_keys", "labels"}
    assert batch["tokens"].dtype == np.int64
    assert batch["key"] == [keys[0] for keys in batch["document_keys"]]
    assert {"key", "document_keys", "document_lengths", "document_starts"} < set(ds[0])


def test_blocks_are_stored_so_that_they_can_be_read_in_place(blocks, source, tmp_path):
    pieces = convert(source, tmp_path / "out", method="none")
    stored = [shardctl.open(root).manifest.recipe["compression"] for root in (blocks, pieces)]
    assert stored == ["none", "zstd:3"]


def test_pieces_that_are_padded_have_derived_fields_too(source, tmp_path):
    ds = shardctl.open(convert(source, tmp_path / "out", method="none", stride=4))
    loader = ds.loader(5, columns=["tokens"], pad={"tokens": PAD}, bucket={"tokens": 4}, derive=ALL)
    stored = {(tuple(row["tokens"].tolist()), tuple(row["loss_mask"].tolist())) for row in ds}
    masks = dict(stored)
    count = 0
    for batch in loader:
        assert batch["tokens"].dtype == np.uint16
        width = batch["tokens"].shape[1]
        rows: Any = []
        for tokens, length in zip(
            batch["tokens"].tolist(), batch["tokens_length"].tolist(), strict=True
        ):
            mask = masks[tuple(tokens[:length])]
            rows.append((tokens, [length], [*mask, *[0] * (width - length)]))
        if len(stored) == len(masks):  # each list of tokens has one mask
            for name, value in reference(rows, width).items():
                assert np.asarray(batch[name]).tolist() == value, name
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
    with pytest.raises(UsageError, match="cu_seqlens is of a whole batch, which no mixture has"):
        mix.loader(8, derive=["cu_seqlens"])


def test_what_cannot_be_derived_is_refused(blocks, source, tmp_path):
    ds = shardctl.open(blocks)
    pieces = shardctl.open(convert(source, tmp_path / "out", method="none"))
    for opened, columns, derive, said in (
        (ds, None, "mask", "'mask' is not known; there are labels"),
        (ds, ["key"], "labels", "there are 0 among key"),
        (pieces, None, "labels", "give pad="),
    ):
        with pytest.raises(UsageError, match=said):
            opened.loader(4, columns=columns, derive=[derive])


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
    tokens = {"tokens": [[1, 2, 3, 4]]}
    with pytest.raises(
        DatasetError, match=r"document_lengths does not go with tokens, .* there is none"
    ):
        written(tmp_path / "none", tokens, {}).loader(1, derive=["labels"])
    columns = {**tokens, "document_lengths": [[4]], "loss_mask": [[1, 1]]}
    types = {"document_lengths": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.uint8(), 2)}
    with pytest.raises(DatasetError, match="the column loss_mask does not go with tokens"):
        written(tmp_path / "mask", columns, types).loader(1, derive=["labels"])
