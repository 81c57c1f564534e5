"""Documents that go into a dataset of tokens come out of its exports, read by plain readers of
those formats."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from dataset_files import shards_in
from hypothesis import given
from hypothesis import strategies as st
from small_disk import disk as disk
from stopping import stopped_at
from token_samples import EOS, block_of, packed_blocks, tokens_of, write_packed

import shardctl
from shardctl.errors import DatasetError, DiskFullError, InputError, ShardctlError, StorageError
from shardctl.interop.exports import exporting
from shardctl.interop.exports.base import Source
from shardctl.system.files import free_bytes

ROLE = {"role": "tokens", "vocabulary": 500, "eos": EOS}
Document = list[int]

UINT16 = pa.uint16()

tokens = st.integers(0, 499).filter(lambda token: token != EOS)
documents = st.lists(st.lists(tokens, max_size=23), min_size=1, max_size=12)
texts = st.lists(st.text(max_size=9), min_size=1, max_size=12)


def write_ragged(
    folder: Path,
    splits: dict[str, list[Document]],
    type_: Any = UINT16,
    role: Any = ROLE,
    **options: Any,
) -> Path:
    schema = pa.schema([("tokens", pa.list_(type_))])
    samples = {split: [{"tokens": document} for document in each] for split, each in splits.items()}
    shardctl.write(folder, samples, schema, roles={"tokens": role}, overwrite=True, **options)
    return folder


def read_megatron(folder: Path, split: str = "train") -> list[Document]:
    """Read a pair of Megatron's files from their description alone."""
    index = (folder / f"{split}.idx").read_bytes()
    magic, version, code, sequences, bounds = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, bounds) == (b"MMIDIDX\0\0", 1, sequences + 1)
    type_ = np.dtype({8: "<u2", 4: "<i4"}[code])
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    places = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    ends = np.frombuffer(index, "<i8", bounds, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * bounds
    assert ends.tolist() == list(range(bounds))
    data = (folder / f"{split}.bin").read_bytes()
    assert len(data) == int(lengths.sum()) * type_.itemsize
    read = zip(lengths.tolist(), places.tolist(), strict=True)
    return [np.frombuffer(data, type_, length, place).tolist() for length, place in read]


def read_nanogpt(folder: Path, split: str = "train") -> list[Document]:
    """Read nanoGPT's file, and cut it behind every EOS."""
    found: list[Document] = [[]]
    for token in np.fromfile(folder / f"{split}.bin", "<u2").tolist():
        found[-1].append(token)
        if token == EOS:
            found.append([])
    assert found.pop() == []
    return found


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of a few documents have several blocks."""
    monkeypatch.setattr("shardctl.format.shard.COMPRESSED_BLOCK_BYTES", 100)


@examples(12)
@given(train=documents, val=documents, compression=st.sampled_from(["none", "zstd"]))
def test_ragged_documents_come_out_with_their_end(tmp_path, small_blocks, train, val, compression):
    splits = {"train": train, "val": val}
    made = write_ragged(tmp_path / "in", splits, samples_per_shard=4, compression=compression)
    for to, read in (("megatron", read_megatron), ("nanogpt", read_nanogpt)):
        result = shardctl.export(made, tmp_path / to, to, overwrite=True)
        for split, given_ in splits.items():
            expected = [[*document, EOS] for document in given_ if document]
            assert read(tmp_path / to, split) == expected
            sizes = {"documents": len(expected), "tokens": sum(map(len, expected))}
            assert result.counts[split] == {**sizes, "empty": given_.count([])}


@examples(15)
@given(texts, st.integers(2, 9))
def test_documents_cut_anywhere_come_out_whole_and_in_order(tmp_path_factory, texts, size):
    folder = tmp_path_factory.mktemp("cut")
    documents = {str(number): text for number, text in enumerate(texts)}
    made = write_packed(folder / "in", packed_blocks(documents, size), per_shard=999)
    for to, read in (("megatron", read_megatron), ("nanogpt", read_nanogpt)):
        shardctl.export(made, folder / to, to)
        assert read(folder / to) == list(map(tokens_of, texts))


@examples(15)
@given(texts, st.integers(2, 9), st.data())
def test_pieces_in_any_order_of_blocks_come_out_as_documents(tmp_path_factory, texts, size, data):
    folder = tmp_path_factory.mktemp("pieces")
    documents = list(map(tokens_of, texts))
    pieces = [
        (str(number), at, document[at : at + size])
        for number, document in enumerate(documents)
        for at in range(0, len(document), size)
    ]
    blocks = [block_of([piece], size) for piece in data.draw(st.permutations(pieces))]
    shardctl.export(write_packed(folder / "in", blocks, per_shard=999), folder / "out", "megatron")
    assert sorted(read_megatron(folder / "out")) == sorted(documents)


def test_an_end_that_is_there_is_not_doubled_and_none_is_added_on_request(tmp_path, cli):
    made = write_ragged(tmp_path / "in", {"train": [[1, 2, EOS], [3]]})
    assert cli("export", made, tmp_path / "one", "--to", "megatron").code == 0
    assert read_megatron(tmp_path / "one") == [[1, 2, EOS], [3, EOS]]
    assert cli("export", made, tmp_path / "two", "--to", "megatron", "--no-eos").code == 0
    assert read_megatron(tmp_path / "two") == [[1, 2, EOS], [3]]


@pytest.mark.parametrize(
    ("vocabulary", "type_", "dtype"),
    [
        (500, pa.int64(), "uint16"),
        (65_499, pa.uint16(), "uint16"),
        (65_500, pa.uint16(), "int32"),
        (200_000, pa.uint32(), "int32"),
    ],
)
def test_megatron_has_the_type_that_its_own_tool_takes(tmp_path, out, vocabulary, type_, dtype):
    given_ = [[vocabulary - 1, 1], [0]]
    made = write_ragged(
        tmp_path / "in", {"train": given_}, type_, {**ROLE, "vocabulary": vocabulary}
    )
    shardctl.export(made, out, "megatron")
    assert read_megatron(out) == [[*document, EOS] for document in given_]
    assert json.loads((out / "shardctl.json").read_text())["dtype"] == dtype


def test_megatron_core_reads_the_files(tmp_path, out):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        reader = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    given_ = [[1, 2, 3], [400], list(range(8, 300))]
    made = write_ragged(tmp_path / "in", {"train": given_})
    shardctl.export(made, out, "megatron")
    read = reader.IndexedDataset(str(out / "train"))
    assert [document.tolist() for document in read] == [[*document, EOS] for document in given_]
    assert read.document_indices.tolist() == [0, 1, 2, 3]


def test_the_result_and_shardctl_json_tell_what_was_written(tmp_path, out, cli):
    made = write_ragged(tmp_path / "in", {"train": [[1, 2], []], "val": [[3]]})
    ran = cli("export", made, out, "--to", "nanogpt", "--split", "train", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["counts"] == {"train": {"documents": 1, "tokens": 3, "empty": 1}}
    assert (ran.json["samples"], ran.json["bytes"], ran.json["files"]) == (2, 6, {"train.bin": 6})
    meta = json.loads((out / "shardctl.json").read_text())
    digest = hashlib.sha256((out / "train.bin").read_bytes()).hexdigest()
    assert meta["files"] == {"train.bin": {"bytes": 6, "sha256": digest}}
    assert (meta["vocabulary"], meta["eos"], meta["dtype"]) == (500, EOS, "uint16")
    assert sorted(os.listdir(out)) == ["SHA256SUMS", "shardctl.json", "train.bin"]
    ran = cli("export", made, tmp_path / "other", "--to", "nanogpt")
    assert "train: 1 document, 3 tokens (1 empty document left out)" in ran.out


@pytest.mark.parametrize(
    ("to", "document", "role", "message"),
    [
        ("nanogpt", [1], {**ROLE, "vocabulary": 65_537}, "a vocabulary of 65,537"),
        ("nanogpt", [65_536], {"role": "tokens", "eos": 1}, "65536, which uint16 does not hold"),
        ("megatron", [2**31], {"role": "tokens", "eos": 1}, "which int32 does not hold"),
        ("megatron", [500], ROLE, "has a token 500; tokens are numbers from 0 on and below 500"),
        ("megatron", [-1], ROLE, "has a token -1; tokens are numbers from 0 on"),
        ("megatron", [1], {"role": "tokens"}, "has no end-of-text token .* eos=False"),
        ("megatron", [1], {**ROLE, "packed": True}, "are packed blocks without"),
    ],
)
def test_what_cannot_be_exported_is_said_and_leaves_nothing(tmp_path, to, document, role, message):
    made = write_ragged(tmp_path / "in", {"train": [document]}, pa.int64(), role)
    with pytest.raises(ShardctlError, match=message):
        shardctl.export(made, tmp_path / "out", to)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([("a", 3, [1])], "a piece of the document 'a' is missing, or two documents have this key"),
        ([("a", 0, [1]), ("a", 2, [1])], "a piece of the document 'a' is missing"),
        ([("a", 0, [1, 2, 3]), ("b", 0, [1, 2])], "documents are longer than their block"),
    ],
)
def test_pieces_that_do_not_make_documents_are_refused(tmp_path, pieces, message):
    block = {**block_of(pieces, 4), "tokens": [1, 2, 3, 4]}
    with pytest.raises(DatasetError, match=message):
        shardctl.export(write_packed(tmp_path / "in", [block]), tmp_path / "out", "megatron")


def test_a_damaged_shard_is_found_and_nothing_is_written(tmp_path, cli):
    made = write_ragged(tmp_path / "in", {"train": [list(range(8, 400))]}, compression="none")
    shard = next(iter(shards_in(made)))
    content = shard.read_bytes()
    place = content.index(np.arange(8, 400, dtype="<u2").tobytes())
    shard.write_bytes(content[:place] + b"\x09" + content[place + 1 :])
    ran = cli("export", made, tmp_path / "out", "--to", "nanogpt", "--json")
    assert ran.code == 3
    assert "block 0 is not as it was written; `shardctl repair`" in ran.json["error"]
    assert os.listdir(tmp_path) == ["in"]


def test_packed_documents_without_their_end_get_one(tmp_path):
    blocks = [
        block_of([("a", 0, [1, 2]), ("b", 0, [3, EOS])], 5),
        block_of([("c", 0, [4])], 5),
    ]
    made = write_packed(tmp_path / "in", blocks)
    shardctl.export(made, tmp_path / "one", "megatron")
    assert read_megatron(tmp_path / "one") == [[1, 2, EOS], [3, EOS], [4, EOS]]
    shardctl.export(made, tmp_path / "two", "megatron", eos=False)
    assert read_megatron(tmp_path / "two") == [[1, 2], [3, EOS], [4]]


def test_only_an_export_is_overwritten(tmp_path, cli):
    made, out = write_ragged(tmp_path / "in", {"train": [[1]]}), tmp_path / "out"
    out.mkdir()
    shardctl.export(made, out, "megatron")  # an empty folder is taken
    write_ragged(made, {"train": [[2], [3]]})
    with pytest.raises(StorageError, match="holds an export already; overwrite=True replaces it"):
        shardctl.export(made, out, "megatron")
    assert read_megatron(out) == [[1, EOS]]
    assert cli("export", made, out, "--to", "nanogpt", "--overwrite").code == 0
    assert read_nanogpt(out) == [[2, EOS], [3, EOS]]
    assert sorted(os.listdir(out)) == ["SHA256SUMS", "shardctl.json", "train.bin"]
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(StorageError, match=r"has a file that is not of an export \(thesis.tex\)"):
        shardctl.export(made, out, "megatron", overwrite=True)
    assert (out / "thesis.tex").read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_stopped_anywhere_the_export_is_the_old_the_new_or_absent(tmp_path, monkeypatch, how):
    made, out = write_ragged(tmp_path / "in", {"train": [[1], [2]]}), tmp_path / "out"
    old, new = [[1, EOS], [2, EOS]], [[1], [2]]
    change, stopped = 0, True
    while stopped:
        shardctl.export(made, out, "megatron", overwrite=True)

        def export() -> object:
            return shardctl.export(made, out, "megatron", overwrite=True, eos=False)

        stopped = stopped_at(change, how, exporting, "chosen_export", export, monkeypatch)
        beside = sorted(name for name in os.listdir(tmp_path) if name not in ("in", "out"))
        assert all(name.endswith(".partial") for name in beside)
        assert stopped or not beside
        if out.exists() or how == "interrupt":
            assert read_megatron(out) in ([old, new] if stopped else [new])
        change += 1
    assert change > 5


def test_a_dataset_that_changes_meanwhile_is_not_exported(tmp_path, out, monkeypatch):
    made = write_ragged(tmp_path / "in", {"train": [[1]]})
    real = Source.check_unchanged

    def changed(source: Source) -> None:
        source.manifest = replace(source.manifest, fingerprint="0" * 32)
        real(source)

    monkeypatch.setattr(Source, "check_unchanged", changed)
    with pytest.raises(
        DatasetError, match="was replaced while it was read; run the same command again"
    ):
        shardctl.export(made, out, "megatron")
    assert not out.exists()


def test_a_full_disk_is_said_and_nothing_stays(disk, tmp_path):
    made = write_ragged(tmp_path / "in", {"train": [list(range(8, 400))] * 50})
    with pytest.raises(StorageError, match="is where a file system is mounted"):
        shardctl.export(made, disk, "megatron")
    ballast = free_bytes(disk) - 20_000
    with open(disk / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, ballast)
    with pytest.raises(DiskFullError, match="the disk is full"):
        shardctl.export(made, disk / "out", "megatron")
    assert os.listdir(disk) == ["ballast"]
    (disk / "ballast").unlink()
    shardctl.export(made, disk / "out", "megatron")
    assert len(read_megatron(disk / "out")) == 50


def converted(folder: Path, texts: list[str], pack: dict[str, Any]) -> Path:
    """Make blocks of texts with the real steps: tokens are bytes, and 256 ends a document."""
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = {"transform": [{"name": "tokenize", "tokenizer": "bytes"}, {"name": "pack", **pack}]}
    shardctl.convert(folder / "in.jsonl", folder / "in", recipe=recipe, workers=0)
    return folder / "in"


@pytest.mark.parametrize("method", ["concat", "bfd", "none"])
def test_texts_come_back_from_what_the_steps_of_a_recipe_made(tmp_path, out, method):
    texts = [f"{number} {'long ' * (number % 7)}" for number in range(40)]
    pack = {"method": method, **({} if method == "none" else {"length": 16})}
    shardctl.export(converted(tmp_path, texts, pack), out, "megatron")
    read = read_megatron(out)
    assert {document[-1] for document in read} == {256}
    assert sorted(bytes(document[:-1]).decode() for document in read) == sorted(texts)


def test_documents_cut_into_rows_by_pack_none_are_refused(tmp_path, out):
    """Pieces may overlap, and as documents of their own they would have an end in the middle."""
    made = converted(
        tmp_path, ["too long for one row"], {"method": "none", "length": 8, "stride": 2}
    )
    with pytest.raises(InputError, match=r"cut into rows \(pack none\)"):
        shardctl.export(made, out, "megatron")
    assert not out.exists()
