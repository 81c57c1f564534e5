"""Real files, where SHARDCTL_CORPUS names their folder."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import CROP
from dataset_files import shard_in, shards_in, tables_in
from in_this_process import convert
from PIL import Image
from pyarrow import parquet
from text_to_blocks import assert_decodes_to, convert_thrice

import shardctl
from shardctl.errors import InputError, TooManyRejectsError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.tables import read_rejects
from shardctl.images.codecs.backend import FORMATS
from shardctl.images.codecs.image import decode
from shardctl.images.codecs.jpeg import JpegDecoder
from shardctl.images.defaults import MAX_PIXELS

pytestmark = pytest.mark.corpus


def test_all_photos_convert_verify_and_open_in_hugging_face(corpus, tmp_path, out):
    import datasets

    result = shardctl.convert(corpus / "photos", out, workers=2)
    assert (result.samples, result.rejected) == (515, 0)
    assert shardctl.verify(out).findings == ()
    ds = shardctl.open(out)
    assert {"wnid", "width", "height", "mode", "format", "label"} <= set(ds.schema.names)
    files = sorted(str(path) for path in shards_in(out))
    theirs = datasets.load_dataset(
        "arrow", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(theirs) == 515
    for index in range(0, 515, 40):
        row = theirs[index]
        ours = ds[index]
        assert np.array_equal(np.asarray(row["image"].convert("RGB")), ours["image"])
        assert (row["width"], row["height"]) == (ours["image"].shape[1], ours["image"].shape[0])


def test_nested_class_folders_with_splits(corpus, out):
    cifar = corpus / "small" / "cifar10"
    result = shardctl.convert(
        cifar, out, recipe={**CROP, "transform": [{"name": "resize", "size": "32x32"}]}
    )
    assert result.samples == 10_000
    ds = shardctl.open(out)
    assert ds.classes == tuple(sorted(path.name for path in next(iter(cifar.iterdir())).iterdir()))
    batch = ds.take([0, 5000, 9999])
    assert [ds.classes[label] for label in batch["label"]] == [
        key.split("/")[-2] for key in batch["key"]
    ]


def test_huggingface_metadata(corpus, out):
    folder = corpus / "captions" / "hf_imagefolder"
    lines = (folder / "train" / "metadata.jsonl").read_text().splitlines()
    images = {path.name for path in (folder / "train").iterdir()}
    lenient = {json.loads(line)["file_name"] for line in lines} != images - {"metadata.jsonl"}
    shardctl.convert(folder, out, lenient_labels=lenient)
    found = {sample["key"].split("/")[-1]: sample["objects"] for sample in shardctl.open(out)}
    for line in lines:
        record = json.loads(line)
        if record["file_name"] in found:
            objects = found[record["file_name"]]
            assert {name: values.tolist() for name, values in objects.items()} == record["objects"]


@pytest.mark.parametrize(
    ("name", "lines"), [("text/gsm8k", None), ("text/jsonl", None), ("text/movie_reviews", 400)]
)
def test_texts(corpus, out, name, lines):
    result = shardctl.convert(corpus / name, out)
    expected = lines or sum(
        len(path.read_bytes().splitlines()) for path in (corpus / name).glob("*.jsonl")
    )
    assert (result.samples, result.rejected) == (expected, 0)
    ds = shardctl.open(out)
    first = ds[0]
    if lines:
        assert first["text"] == (corpus / name / first["key"]).read_text()
    else:
        file = next((corpus / name).glob("*.jsonl"))
        record = json.loads(file.read_text().splitlines()[0])
        assert {field: first[field] for field in record} == record


def test_every_text_is_converted_or_rejected_for_its_encoding(corpus, out):
    files = [path for path in (corpus / "text" / "encodings").rglob("*.txt") if path.is_file()]
    result = shardctl.convert(corpus / "text" / "encodings", out, labels="none", max_rejects="100%")
    assert result.samples + result.rejected == len(files)
    for reject in read_rejects(dataset_in(out)):
        data = (corpus / "text" / "encodings" / reject.source).read_bytes()
        if b"\0" not in data:  # UTF-16 may be valid UTF-8, with NUL bytes
            with pytest.raises(UnicodeDecodeError):
                data.decode()


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what is odd in them
def test_hostile_images_are_converted_or_rejected_as_pillow_has_it(corpus, tmp_path):
    """A tenth of them, under the pixel limit; twice, with the same result."""
    rows = [
        line.split("\t")
        for line in (corpus / "hostile" / "expected.tsv").read_text().splitlines()[1:]
    ][::10]
    for path, *_ in rows:
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(corpus / "hostile" / path, tmp_path / "in" / path)
    results = [
        shardctl.convert(tmp_path / "in", tmp_path / out, labels="none", workers=2)
        for out in ("a", "b")
    ]
    assert results[0].rejected == results[1].rejected
    assert (tables_in(tmp_path / "a") / "SHA256SUMS").read_bytes() == (
        tables_in(tmp_path / "b") / "SHA256SUMS"
    ).read_bytes()
    kept = set(
        shardctl.open(tmp_path / "a").take(range(results[0].samples), columns=["key"])["key"]
    )
    for path, form, *_ in rows:
        if form in FORMATS:
            assert (path in kept) == _pillow_reads(corpus / "hostile" / path), f"{path} ({form})"
        elif form == "-":
            assert path not in kept, f"{path} is no image, and was kept"


def _pillow_reads(path: Path) -> bool:
    """Ask the installed Pillow itself: expected.tsv was made with another version, whose libraries
    read a few files more."""
    try:
        with Image.open(path) as opened:
            if opened.size[0] * opened.size[1] > MAX_PIXELS:
                return False
            opened.load()
    except Exception:  # noqa: BLE001 - hostile files raise anything at all
        return False
    return True


def test_both_ways_to_decode_a_jpeg_give_the_same_pixels(corpus):
    decoder, fast = JpegDecoder(), 0
    for path in sorted((corpus / "photos").rglob("*.*")):
        data = path.read_bytes()
        pixels = decoder.decode(np.frombuffer(data, np.uint8))
        if pixels is not None:
            fast += 1
            assert np.array_equal(pixels, decode(data)), path
    assert fast > 400


def texts_of(source: Path, out: Path, **recipe: Any) -> list[str]:
    result = convert(source, out, recipe, labels="none", split="none")
    assert (result.rejected, result.warnings) == (0, ())
    return [sample["text"] for sample in shardctl.open(out)]


def test_a_csv_without_a_header(corpus, out):
    recipe = {"columns": "label,title,text", "kind": "table"}
    source = corpus / "text" / "ag_news"
    assert convert(source, out, recipe, split="none", labels="none").rejected == 0
    expected = []
    for path in sorted(source.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            expected += [[int(label), title, text] for label, title, text in csv.reader(file)]
    found = [[row["label"], row["title"], row["text"]] for row in shardctl.open(out)]
    assert found == expected


def test_lines_in_gbk_are_those_of_the_twin_in_utf8(corpus, tmp_path):
    (gbk,) = (corpus / "text" / "zh").glob("*gbk*.txt")
    (utf8,) = (corpus / "text" / "zh").glob("pku*utf8*.txt")
    ours = texts_of(gbk, tmp_path / "gbk", record="line", encoding="gbk")
    assert ours == texts_of(utf8, tmp_path / "utf8", record="line")
    assert len(ours) > 1000


def test_encodings_are_detected(corpus, tmp_path, out):
    pytest.importorskip("charset_normalizer")
    files = [path for path in (corpus / "text" / "udhr").rglob("*") if path.is_file()]
    (tmp_path / "in").mkdir()
    for path in files:
        shutil.copy(path, tmp_path / "in" / f"{path.name}.txt")
    result = shardctl.convert(
        tmp_path / "in", out, {"encoding": "detect"}, workers=2, labels="none"
    )
    assert result.samples > 150
    assert result.samples + result.rejected == len(files)
    texts = {sample["key"]: sample["text"] for sample in shardctl.open(out)}
    sources = {f"{path.name}.txt": path.read_bytes() for path in files}
    utf8 = [key for key in texts if key.endswith("-UTF8.txt")]
    assert [key for key in utf8 if texts[key] != sources[key].decode("utf-8-sig")] == []
    latin1 = [key for key in texts if key.endswith("-Latin1.txt")]
    right = [key for key in latin1 if texts[key] == sources[key].decode("cp1252", "replace")]
    assert len(right) > 0.65 * len(
        latin1
    )  # it is a guess: docs/inputs/tables.md says what it is worth


def test_parquet_of_other_tools(corpus, tmp_path):
    """Files of parquet-testing, good and bad: each is converted as pyarrow reads it, or rejected,
    or refused in a sentence."""
    converted = 0
    for path in sorted((corpus / "interop" / "parquet").rglob("*.parquet")):
        out = tmp_path / str(converted) / path.name
        try:
            result = convert(path, out, {"kind": "table"}, labels="none")
        except (InputError, TooManyRejectsError):
            continue
        metadata = parquet.ParquetFile(path).metadata
        rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        assert result.samples + result.rejected == rows
        assert shardctl.verify(out).findings == ()
        converted += 1
    assert converted > 15


CLEANING = [{"name": "normalize"}, {"name": "whitespace"}, {"name": "deduplicate"}]

LONG_ENOUGH = {"name": "filter_length", "min_chars": 20}
GBK_LINES = {"kind": "text", "record": "line", "encoding": "gbk"}

TEXTS: dict[str, dict[str, Any]] = {
    "gutenberg": {"kind": "text", "record": "paragraph", "transform": [*CLEANING, LONG_ENOUGH]},
    "movie_reviews": {"kind": "text", "transform": [*CLEANING, {"name": "filter_gopher"}]},
    "wikitext-2": {"kind": "text", "record": "paragraph", "transform": CLEANING},
    "zh/ChnSentiCorp_htl.part1.csv": {"text_field": "review", "transform": CLEANING},
    "zh/pku_test.gbk.txt": {**GBK_LINES, "transform": CLEANING},
    "zh/meituan_val.jsonl": {"text_field": "input", "transform": CLEANING},
}
"""The texts that go from raw to blocks, each with one recipe."""


@pytest.mark.parametrize("name", TEXTS)
def test_texts_go_from_raw_to_blocks(corpus, tmp_path, name):
    """Twice the same bytes, whoever works, and decoded the blocks are the cleaned texts."""
    source, cleaning = corpus / "text" / name, TEXTS[name]
    tokenizer = tables_in(tmp_path) / "tokenizer.json"
    shardctl.train_tokenizer(
        source, tokenizer, recipe={**cleaning, "transform": []}, vocab_size=2000
    )
    shardctl.convert(source, tmp_path / "cleaned", recipe=cleaning)
    texts = {sample["key"]: sample["text"] for sample in shardctl.open(tmp_path / "cleaned")}
    for method in ("concat", "bfd"):
        (tmp_path / method).mkdir()
        last = [
            {"name": "tokenize", "tokenizer": str(tokenizer)},
            {"name": "pack", "length": 256, "method": method},
        ]
        steps = [*cleaning["transform"], *last]
        out = convert_thrice(source, tmp_path / method, {**cleaning, "transform": steps})
        assert_decodes_to(out, texts)


def test_questions_and_answers_become_chats(corpus, tmp_path):
    source, tokenizer = corpus / "text" / "gsm8k", str(tables_in(tmp_path) / "tokenizer.json")
    shardctl.train_tokenizer(source, tokenizer, recipe={"text_field": "question"}, vocab_size=2000)
    chat = {"template": "chatml", "user": "question", "assistant": "answer", "tokenizer": tokenizer}
    pack = {"name": "pack", "length": 512, "method": "bfd"}
    recipe = {"transform": [{"name": "tokenize_chat", **chat}, pack]}
    out = convert_thrice(source, tmp_path, recipe)
    ds = shardctl.open(out)
    lines = (source / "test.jsonl").read_text(encoding="utf-8").splitlines()
    answers = {
        f"test.jsonl#{number}": json.loads(line)["answer"] for number, line in enumerate(lines, 1)
    }
    counted: defaultdict[str, list[int]] = defaultdict(list)
    for row in ds:
        at = 0
        for key, length in zip(row["document_keys"], row["document_lengths"].tolist(), strict=True):
            tokens, mask = row["tokens"][at : at + length], row["loss_mask"][at : at + length]
            counted[key] += tokens[mask == 1].tolist()
            at += length
    assert counted.keys() == answers.keys()
    for key, answer in answers.items():
        said = ds.tokenizer.decode(counted[key]).removesuffix("<|im_end|>")
        assert said.strip() == answer.strip()


# --- formats of others ---


def expected_interop(corpus: Path, kind: str) -> dict[str, Any]:
    """Return what small independent parsers found in the files of a kind of corpus/interop."""
    found: dict[str, Any] = json.loads((corpus / "interop" / "expected.json").read_text())
    return {name: facts for name, facts in found.items() if facts["kind"] == kind}


def converted(path: Path, out: Path) -> tuple[shardctl.Dataset, list[Any]]:
    """Convert a file as a table, and return the dataset and its rejects."""
    result = convert(path, out, {"kind": "table"}, labels="none")
    assert shardctl.verify(out).findings == ()
    rejects = list(read_rejects(dataset_in(out)))
    assert len(rejects) == result.rejected
    return shardctl.open(out), rejects


TFRECORD_TYPES = {"bytes": ("string", "binary"), "int64": ("int64",), "float": ("float",)}


def test_tfrecords_of_other_tools(corpus, tmp_path):
    files = expected_interop(corpus, "tfrecord")
    assert len(files) == 9
    for number, (name, facts) in enumerate(files.items()):
        if "grain" in name:  # its records are bytes, and no Example
            with pytest.raises(
                TooManyRejectsError, match=r"5 of the 5 inputs.*not a tf\.train\.Example"
            ):
                converted(corpus / "interop" / name, tmp_path / f"{number}")
            continue
        ds, rejects = converted(corpus / "interop" / name, tmp_path / f"{number}")
        assert (len(ds), rejects) == (facts["records"], []), name
        for field, kind in facts["features"].items():
            type_ = ds.schema.field(field).type
            inner = type_.value_type if hasattr(type_, "value_type") else type_
            assert kind is None or str(inner) in TFRECORD_TYPES[kind], (name, field)


def test_webdatasets_of_other_tools(corpus, tmp_path):
    files = expected_interop(corpus, "webdataset-tar")
    assert len(files) == 4
    for number, (name, facts) in enumerate(files.items()):
        ds, rejects = converted(corpus / "interop" / name, tmp_path / f"{number}")
        assert (len(ds), rejects) == (facts["samples"], []), name
        assert set(ds.schema.names) == {"key", "__key__", *facts["extensions"]}
        assert ds[0]["__key__"] == facts["first"].partition(".")[0]
    photos = convert(corpus / "interop" / "webdataset" / "clip_image1.tar", tmp_path / "photos")
    assert (photos.samples, photos.rejected) == (4, 0)
    assert shardctl.open(tmp_path / "photos")[0]["image"].ndim == 3


def test_mds_of_another_tool_raw_and_compressed(corpus, tmp_path):
    facts = expected_interop(corpus, "mds")["mds/"]
    ds, rejects = converted(corpus / "interop" / "mds", tmp_path / "raw")
    assert (len(ds), rejects) == (facts["samples"], [])
    assert set(ds.schema.names) == {"key", *facts["columns"]}
    shutil.copytree(
        corpus / "interop" / "mds", tmp_path / "in", ignore=shutil.ignore_patterns("*.mds")
    )
    packed, _ = converted(tmp_path / "in", tmp_path / "packed")
    assert [(row["id"], row["dummy_text"]) for row in packed] == [
        (row["id"], row["dummy_text"]) for row in ds
    ]


def test_recordio_of_mxnet(corpus, out):
    path = corpus / "interop" / "recordio" / "benz_train.rec"
    facts = expected_interop(corpus, "recordio")["recordio/benz_train.rec"]
    result = convert(path, out)
    assert (result.samples, result.rejected) == (facts["records"], 0)
    first = pa.ipc.open_file(shard_in(out, "train-00000")).get_batch(0).slice(0, 1).to_pylist()[0]
    label = np.array(first["label"], "<f4")  # the boxes of an image, as MXNet has them
    header = struct.pack("<IfQQ", len(label), 0, first["id"], 0)
    stored = header + label.tobytes() + first["image"]["bytes"]
    assert hashlib.sha256(stored).hexdigest() == facts["first_sha256"]
