"""Documents packed into blocks: every token has one place, and what is reported is what is
there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import examples
from dataset_facts import rejects_of
from dataset_files import shard_in
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair
from text_to_blocks import convert_thrice
from text_to_blocks import documents as documents_of

import shardctl
from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.packing import METHODS, Pieces, best_fit, concat, fewest_blocks, windows
from shardctl.format.roles import Plain, Tokens
from shardctl.transforms.base import Records
from shardctl.transforms.table import parse_step
from shardctl.transforms.text import pack
from shardctl.transforms.text.pack import Pack

Documents = list[list[int]]

LENGTHS = st.lists(st.integers(0, 40), max_size=30)
DOCUMENTS = st.lists(
    st.lists(st.integers(1, 60_000), min_size=1, max_size=25), min_size=1, max_size=25
)
EOS, PAD = 0, 7


def rebuilt(pieces: Pieces, lengths: list[int]) -> list[list[int]]:
    """The places of each document that its pieces cover, in their order in the document."""
    found: list[list[int]] = [[] for _ in lengths]
    for document, start, length in sorted(
        zip(pieces.document, pieces.start, pieces.length, strict=True)
    ):
        found[document] += range(start, start + length)
    return found


@examples(60)
@given(LENGTHS, st.integers(2, 16))
def test_concat_and_best_fit_have_every_token_in_one_place_in_order(lengths, size):
    for method in (concat, best_fit):
        pieces = method(np.array(lengths, np.int64), size)
        assert rebuilt(pieces, lengths) == [list(range(length)) for length in lengths]
        filled = np.bincount(pieces.block, pieces.length, minlength=pieces.blocks)
        assert (filled <= size).all()
        assert (np.diff(pieces.block) >= 0).all()
        counts = np.bincount(pieces.document, minlength=len(lengths))
        if method is concat:
            assert (filled[:-1] == size).all()
        else:  # cuts no document that fits
            assert counts.tolist() == [-(-length // size) for length in lengths]


def bound(lengths: Any, size: int) -> int:
    return fewest_blocks(np.bincount(lengths, minlength=size + 1), size)


@examples(60)
@given(
    st.lists(
        st.lists(st.integers(1, 12), min_size=1, max_size=5).filter(lambda part: sum(part) <= 16),
        min_size=1,
        max_size=9,
    )
)
def test_the_bound_is_not_above_a_packing_that_there_is(blocks):
    lengths = [length for block in blocks for length in block]
    assert -(-sum(lengths) // 16) <= bound(lengths, 16) <= len(blocks)
    assert bound(lengths, 16) <= best_fit(np.array(lengths), 16).blocks


def test_best_fit_is_near_the_bound_and_the_bound_knows_when_half_a_block_must_stay_empty():
    lengths = np.random.default_rng(0).lognormal(6, 1.1, 20_000).astype(np.int64) + 1
    blocks = best_fit(lengths, 2048).blocks
    assert (blocks - bound(windows(lengths, 2048).length, 2048)) / blocks < 0.01
    long = np.full(1000, 1025)
    assert best_fit(long, 2048).blocks == bound(long, 2048) == 1000
    assert bound([9, 9, 8], 16) == 3, "8 fits beside no 9"


@examples(40)
@given(LENGTHS, st.integers(2, 16), st.data())
def test_pieces_of_documents_overlap_by_the_stride_and_reach_the_end(lengths, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    pieces = windows(np.array(lengths, np.int64), size, overlap)
    for document, length in enumerate(lengths):
        own = pieces.document == document
        starts, ends = pieces.start[own], pieces.start[own] + pieces.length[own]
        if not length:
            assert not own.any()
            continue
        assert (starts[0], ends[-1]) == (0, length)
        assert (ends[:-1] - starts[1:] == overlap).all()
        assert (pieces.length[own] <= size).all()
        assert (pieces.length[own][:-1] == size).all()


# --- the step ---


def packing(**settings: Any) -> Pack:
    return Pack.parse(eos=settings.pop("eos", EOS), pad=PAD, **settings)


def batches(
    documents: Documents, sizes: list[int], masked: bool = False, type_: pa.DataType | None = None
) -> list[Records]:
    """The documents as batches of so many records each, over and over."""
    made, first = [], 0
    while first < len(documents):
        some = documents[first : first + sizes[len(made) % len(sizes)]]
        numbers = np.arange(first, first + len(some))
        columns = {
            "key": pa.array([f"d#{number}" for number in numbers]),
            "tokens": pa.array(some, pa.list_(type_ or pa.uint16())),
        }
        if masked:
            masks = [[token % 2 for token in each] for each in some]
            columns["loss_mask"] = pa.array(masks, pa.list_(pa.uint8()))
        made.append(Records(0, numbers, pa.record_batch(columns)))
        first += len(some)
    return made


def ran(step: Pack, given: list[Records]) -> tuple[pa.Table, dict[str, int], list[str]]:
    rejects: list[str] = []

    def reject(row: int, rejection: Rejection) -> None:
        rejects.append(rejection.error)

    run = step.begin(Path(), step.roles({}))
    made = [each.batch for records in given for each in run.apply(records, reject)]
    made += [each.batch for each in run.finish()]
    schema = step.schema(given[0].batch.schema.remove(0))
    table = pa.Table.from_batches(made) if made else schema.empty_table()
    for name in schema.names:
        assert table.schema.field(name).type == schema.field(name).type, name
    return table, run.counts(), rejects


def documents_in(table: pa.Table, column: str = "tokens", fill: int = PAD) -> dict[str, list[int]]:
    """The tokens of each document, put together from the blocks."""
    found: dict[str, dict[int, list[int]]] = {}
    for row in table.to_pylist():
        at = 0
        assert row["key"] == row["document_keys"][0]
        names = ("document_keys", "document_lengths", "document_starts")
        for key, length, start in zip(*(row[name] for name in names), strict=True):
            found.setdefault(key, {})[start] = row[column][at : at + length]
            at += length
        assert set(row[column][at:]) <= {fill}
    joined: dict[str, list[int]] = {}
    for key, pieces in found.items():
        joined[key] = []
        for start in sorted(pieces):
            assert start == len(joined[key])
            joined[key] += pieces[start]
    return joined


@examples(40)
@given(DOCUMENTS, st.integers(2, 12), st.sampled_from(["concat", "bfd"]), st.booleans())
def test_blocks_have_every_document_once_with_its_end_and_the_report_is_right(
    documents, length, method, masked
):
    given = batches(documents, [3, 1], masked)
    table, counts, rejects = ran(packing(length=length, method=method), given)
    assert rejects == []
    ended = {f"d#{number}": [*each, EOS] for number, each in enumerate(documents)}
    assert documents_in(table) == ended
    lengths = {key: len(each) for key, each in ended.items()}
    held = sum(map(sum, table["document_lengths"].to_pylist()))
    parts = [key for each in table["document_keys"].to_pylist() for key in each]
    padding = table.num_rows * length - held
    assert held == sum(lengths.values())
    assert counts == {
        "documents": len(documents),
        "tokens": held,
        "blocks": table.num_rows,
        "pieces": len(parts),
        "padding": padding,
        "least_padding": counts["least_padding"],
        "longer": sum(each > length for each in lengths.values()),
        "cut": sum(parts.count(key) > 1 for key, each in lengths.items() if each <= length),
    }
    assert padding >= counts["least_padding"] >= 0
    if method == "bfd":
        assert counts["cut"] == 0
    else:
        assert padding == counts["least_padding"] < length
    if masked:  # the end of a document counts as the token before it does
        masks = {key: [token % 2 for token in each[:-1]] for key, each in ended.items()}
        wanted = {key: [*each, each[-1]] for key, each in masks.items()}
        assert documents_in(table, "loss_mask", 0) == wanted


@pytest.mark.parametrize("method", ["concat", "bfd"])
def test_blocks_do_not_depend_on_how_many_records_come_together(method, monkeypatch):
    monkeypatch.setattr(pack, "WINDOW_TOKENS", 60)
    monkeypatch.setattr(pack, "WINDOW_DOCUMENTS", 9)
    monkeypatch.setattr(pack, "TOGETHER", 32)
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 100, size).tolist() for size in rng.integers(1, 30, 80)]
    step = packing(length=16, method=method)
    whole, *others = (
        ran(step, batches(documents, sizes, masked=True)) for sizes in ([80], [1], [2, 5])
    )
    assert others == [whole] * 2
    ended = {f"d#{number}": [*each, EOS] for number, each in enumerate(documents)}
    assert documents_in(whole[0]) == ended


@pytest.mark.parametrize(
    ("settings", "documents", "columns"),
    [
        ({"length": 6}, [[1, EOS], [2]], {"tokens": [[1, EOS, 2, EOS, PAD, PAD]]}),
        ({"length": 6, "eos": False}, [[1, 3], [2]], {"tokens": [[1, 3, 2, PAD, PAD, PAD]]}),
        (
            {"method": "none"},
            [[1, 2, 3], [4]],
            {"key": ["d#0", "d#1"], "tokens": [[1, 2, 3, EOS], [4, EOS]]},
        ),
        (
            {"length": 4, "method": "none", "stride": 2, "eos": False},
            [[1, 2, 3, 4, 5], [6]],
            {
                "key": ["d#0", "d#0", "d#1"],
                "tokens": [[1, 2, 3, 4], [3, 4, 5], [6]],
                "loss_mask": [[1, 1, 1, 1], [0, 0, 1], [1]],
                "variant": [0, 1, 0],
            },
        ),
        (  # so memory stays flat, however many documents a shard has
            {"length": 8, "method": "bfd"},
            [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1]],
            {"document_keys": [["d#0", "d#1"], ["d#2", "d#3"]]},
        ),
    ],
    ids=["an end that is there", "no end", "whole", "pieces that overlap", "a window that is full"],
)
def test_what_becomes_of_a_few_documents(monkeypatch, settings, documents, columns):
    monkeypatch.setattr(pack, "WINDOW_TOKENS", 8)
    table, counts, _ = ran(packing(**settings), batches(documents, [4]))
    found = table.to_pydict()
    assert {name: found[name] for name in (found if "key" in columns else columns)} == columns
    if "stride" in settings:
        assert counts == {"documents": 2, "tokens": 6, "pieces": 3, "longer": 1}


def test_documents_without_tokens_or_with_wrong_ones_are_rejected_alone():
    given: Any = [[1], [], None, [2, -1], [3, None], [2**32], [4]]
    table, counts, rejects = ran(packing(length=4), batches(given, [7], type_=pa.int64()))
    assert rejects == ["empty", "empty", "no-tokens", "no-tokens", "no-tokens"]
    assert table["tokens"].to_pylist() == [[1, EOS, 4, EOS]]
    assert table["document_keys"].to_pylist() == [["d#0", "d#6"]]
    assert counts["documents"] == 2


def test_a_loss_mask_of_another_length_is_a_reject():
    (records,) = batches([[1, 2], [3, 4]], [2])
    records = records.with_column("loss_mask", pa.array([[1, 0], [1]], pa.list_(pa.uint8())))
    table, _, rejects = ran(packing(length=3), [records])
    assert rejects == ["other-length"]
    assert table["loss_mask"].to_pylist() == [[1, 0, 0]]


def test_a_long_document_is_not_copied_for_each_of_its_pieces(
    monkeypatch,
):
    """300,000 tokens in 37,500 pieces: 22 GB if each had a copy of all."""
    long = np.arange(1, 300_001) % 60_000 + 1
    batch = pa.record_batch(
        {"key": ["a", "b"], "tokens": pa.array([long, [5, 6]], pa.list_(pa.uint16()))}
    )
    given = [Records(0, np.arange(1, 3), batch)]
    step = packing(length=8, method="none", eos=False)
    table, _, _ = ran(step, given)
    assert table["key"].to_pylist() == ["a"] * 37_500 + ["b"]
    assert table["variant"].to_pylist() == [*range(37_500), 0]
    assert np.array_equal(table["tokens"].combine_chunks().flatten(), [*long, 5, 6])
    monkeypatch.setattr(pack, "TOGETHER", 100)
    run = step.begin(Path(), step.roles({}))
    parts = [part.batch for part in run.apply(given[0], lambda row, rejection: None)]
    assert max(part.num_rows for part in parts) < 20
    assert pa.Table.from_batches(parts).select(table.schema.names).equals(table)


def test_a_long_text_that_each_piece_would_have_is_a_reject(tmp_path, out):
    """2 MB in 2,000 pieces are 4 GB."""
    texts = ["a b", "word " * 400_000, "", "c"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    steps = [
        {"name": "tokenize", "tokenizer": "bytes", "keep_text": True},
        {"name": "pack", "length": 1000, "method": "none"},
    ]
    result = convert(tmp_path / "in.jsonl", out, recipe={"transform": steps})
    assert [sample["text"] for sample in shardctl.open(out)] == ["a b", "c"]
    assert result.reasons == {"transform: empty": 1, "transform: too-large": 1}


def test_settings_that_do_not_fit_are_refused():
    for settings, why in (
        ({}, "needs length"),
        ({"length": 1}, "whole number from 2"),
        ({"length": 8, "stride": 2}, "stride is for method none"),
        ({"length": 8, "method": "none", "stride": 8}, "below length, 8"),
        ({"method": "none", "stride": 8}, "stride needs length"),
        ({"length": 8, "eos": -1}, "number of a token"),
        ({"length": 8, "method": "best"}, "concat, bfd or none"),
    ):
        with pytest.raises(UsageError, match=why):
            parse_step({"name": "pack", **settings})


def test_the_tokens_that_end_and_fill_up_are_those_of_the_tokenizer():
    step, known = Pack.parse(length=8), Tokens(100, eos=3, pad=4, tokenizer="tokenizer.json")
    text = Plain("text")
    packed = replace(known, packed=True)
    assert step.roles({"tokens": known, "text": text}) == {"tokens": packed, "text": text}
    assert step.roles({"tokens": Tokens(100, eos=3)})["tokens"] == Tokens(100, 3, 3, packed=True)
    assert Pack.parse(length=8, eos=False).roles({})["tokens"] == Tokens(pad=0, packed=True)
    for eos, known, said in (
        (True, {"tokens": Tokens(100, tokenizer="words")}, "words has none"),
        (True, {}, "not known"),
        (100, {"tokens": Tokens(100)}, "0 to 99"),
    ):
        with pytest.raises(UsageError, match=said):
            Pack.parse(length=8, eos=eos).roles(known)
    for eos, name, said in ((70_000, "tokens", "below 65536"), (1, "text", "no field tokens")):
        with pytest.raises(InputError, match=said):
            Pack.parse(length=8, eos=eos).schema(pa.schema({name: pa.list_(pa.uint16())}))


# --- whole conversions ---


@pytest.fixture(scope="session")
def documents() -> Documents:
    rng = np.random.default_rng(5)
    return [rng.integers(1, 1000, size).tolist() for size in rng.integers(1, 60, 400)]


@pytest.fixture(scope="session")
def source(documents: Documents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "in.parquet"
    labels = [f"class {number % 2}" for number in range(len(documents))]
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.uint16())), "label": labels})
    pq.write_table(table, path, row_group_size=50)
    return path


def converted(source: Path, out: Path, shard: int | None = None, **settings: Any) -> Any:
    """Pack the source, and return what the conversion says."""
    step = {"name": "pack", "length": 32, "eos": EOS, "pad": PAD, **settings}
    given = {"samples_per_shard": shard} if shard else {}
    return convert(source, out, recipe={"transform": [step]}, **given)


def wanted_documents(documents: Documents) -> dict[str, list[int]]:
    return {f"in.parquet#{number}": [*each, EOS] for number, each in enumerate(documents, 1)}


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["concat", "bfd"])
def test_blocks_are_the_same_for_any_number_of_workers_and_have_every_document(
    source, documents, tmp_path, method
):
    step = {"name": "pack", "length": 32, "eos": EOS, "pad": PAD, "method": method}
    options = {"samples_per_shard": 100, "shuffle": 3}
    ds = shardctl.open(convert_thrice(source, tmp_path, {"transform": [step]}, **options))
    assert ds.manifest.shards > 1
    assert documents_of(ds.location) == wanted_documents(documents)
    assert ds.roles.tokens == {"tokens": Tokens(None, EOS, PAD, packed=True)}
    assert ds.classes is None


def test_how_well_documents_fill_blocks_is_printed(source, out, cli):
    result = converted(source, out, method="bfd")
    assert any("left out: label" in notice for notice in result.notices)
    (step,) = (step for step in result.steps if step["name"] == "pack")
    share = step["padding"] / (step["padding"] + step["tokens"])
    said = cli("inspect", out).out
    assert f"{step['documents']:,} documents in {step['blocks']:,} blocks" in said
    assert f"padding {share:.2%}" in said


def test_pieces_keep_the_other_columns_and_are_verified(source, documents, out):
    converted(source, out, method="none", stride=8)
    ds = shardctl.open(out)
    assert ds.schema.names == ["key", "tokens", "loss_mask", "label", "variant"]
    assert len(ds) > len(documents)
    found: dict[str, list[int]] = {}
    for row in ds:
        once = found.setdefault(row["key"], [])
        assert (row["variant"] == 0) == (once == [])
        once += row["tokens"][row["loss_mask"] > 0].tolist()
    assert found == wanted_documents(documents)
    assert shardctl.verify(out).findings == ()


def test_packed_shards_that_were_deleted_are_made_again(source, out):
    converted(source, out, 100, method="bfd")
    before = {path.name: path.read_bytes() for path in sorted(out.rglob("*.arrow"))}
    shard_in(out, "train-00001").unlink()
    assert shardctl.verify(out).findings != ()
    repair(out)
    assert {path.name: path.read_bytes() for path in sorted(out.rglob("*.arrow"))} == before
    assert shardctl.verify(out).findings == ()


def test_samples_that_were_dropped_are_not_counted_by_steps(source, tmp_path, out):
    """`inspect` takes the bytes of text for each token from these counts."""
    (tmp_path / "in").mkdir()
    copy = shutil.copy(source, tmp_path / "in")
    converted(tmp_path / "in", out, 100)
    Path(copy).unlink()
    shard_in(out, "train-00001").unlink()
    assert repair(out, drop_lost=True).status == "dropped"
    assert "steps" not in json.loads((out / "manifest.json").read_text())
    assert shardctl.verify(out).findings == ()


def test_a_document_for_which_memory_runs_out_takes_no_other_along(
    source, documents, out, monkeypatch
):
    def not_for_long_ones(lengths: npt.NDArray[np.int64], size: int) -> Pieces:
        if lengths.max() == 60:
            raise MemoryError
        return concat(lengths, size)

    monkeypatch.setitem(METHODS, "concat", not_for_long_ones)
    result = converted(source, out, 100)
    wanted = {key: each for key, each in wanted_documents(documents).items() if len(each) < 60}
    assert 0 < result.rejected == len(documents) - len(wanted)
    assert {reject.error for reject in rejects_of(out)} == {"out-of-memory"}
    assert documents_of(out) == wanted
    assert [step["documents"] for step in result.steps] == [len(wanted)]


def test_where_memory_runs_out_for_a_window_no_document_is_to_blame(source, out, monkeypatch):
    def refuse(lengths: npt.NDArray[np.int64], size: int) -> Pieces:
        if len(lengths) > 100:
            raise MemoryError
        return best_fit(lengths, size)

    monkeypatch.setattr(pack, "WINDOW_TOKENS", 8000)
    monkeypatch.setitem(METHODS, "bfd", refuse)
    # which ends a process, and several in a row end the conversion
    with pytest.raises(MemoryError):
        converted(source, out, method="bfd")


def test_estimates_of_blocks_are_near_what_comes(source, out, cli):
    step = f"pack length=32 eos={EOS}"
    dry = cli("convert", source, out, "--step", step, "--dry-run", "--json")
    result = converted(source, out)
    assert dry.json["samples"] == pytest.approx(result.samples, rel=0.1)


def test_block_length_alone_means_concat_and_comes_after_other_steps(source, tmp_path, out, cli):
    ran = cli("convert", source, out, "--block-length", 32, "--workers", 0)
    assert (ran.code, "its number is not known" in ran.err) == (2, True)
    file = tmp_path / "recipe.toml"
    file.write_text('[[transform]]\nname = "pack"\nlength = 8\neos = false\n')
    options = ("--recipe", file, *"--block-length 32 --pack bfd --workers 0".split())
    assert cli("convert", source, out, *options).code == 0
    (step,) = shardctl.open(out).manifest.recipe["transform"]
    assert (step["length"], step["method"], step["eos"]) == (32, "bfd", False)
    ran = cli("convert", source, tmp_path / "no", "--pack", "bfd", "--workers", 0)
    assert (ran.code, "--block-length" in ran.err) == (2, True)


def test_packing_must_be_the_last_step(source, out):
    twice = [{"name": "pack", "method": "none", "eos": 1}, {"name": "pack", "length": 8, "eos": 1}]
    with pytest.raises(UsageError, match="pack must be the last step"):
        convert(source, out, recipe={"transform": twice})


def test_each_field_that_blocks_cannot_have_is_named(tmp_path, out):
    names = [f"f{number}" for number in range(40)]
    line = json.dumps({"text": "a b", **{name: [name] for name in names}})
    (tmp_path / "in.jsonl").write_text(f"{line}\n" * 3)
    result = convert(tmp_path / "in.jsonl", out, tokenizer="bytes", block_length=4)
    (notice,) = (notice for notice in result.notices if notice.startswith("left out: "))
    assert notice.removeprefix("left out: ").partition(", as ")[0].split(", ") == names
