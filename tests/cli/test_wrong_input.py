"""Wrong input gets one sentence, the right exit code, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError

IN, OUT = "in", "out"


@pytest.fixture(autouse=True)
def here(
    tmp_path: Path, photos: Path, whole_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with in/ (two images), text/, empty/, full/ (somebody's files), ready/ (a dataset)
    and files."""
    monkeypatch.chdir(tmp_path)
    for folder in ("in", "text", "empty", "full"):
        (tmp_path / folder).mkdir()
    first, second = sorted(photos.rglob("*.jpg"))[:2]
    (tmp_path / "in" / "1.jpg").write_bytes(first.read_bytes())
    (tmp_path / "in" / "2.jpg").write_bytes(second.read_bytes())
    (tmp_path / "text" / "a.xml").write_text("x")
    (tmp_path / "full" / "thesis.doc").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    shutil.copy(whole_dataset / "train-00000.arrow", tmp_path / "shard.arrow")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    shutil.copytree(whole_dataset, tmp_path / "ready")
    return tmp_path


FILES = {
    "bad.toml": "store = ",
    "single.toml": "[transform]\nname = 'hflip'",
    "other.jsonl": '{"body": "a", "y": 1}\n',
    "odd.toml": "colour = 1",
    "near.toml": "stor = 1",
    "step.toml": "resize = 256",
    "quotes.toml": "store = jpeg:90",
    "labels.csv": "file,label\n1.jpg,a\n2.jpg,b\n",
    "lines.jsonl": '{"text": "a", "n": 1}\n' * 3,
    "x.log": "a line\n",
    "photos.zip": "PK",
    "photos.rar": "Rar!",
    "malformed.json": '{"a": 1}',
}


WRONG: list[tuple[list[str], int, str]] = [
    (["convert", "absent", OUT], 3, "absent: no such file or folder"),
    (["convert", "empty", OUT], 3, "empty: holds no files"),
    (
        ["convert", "text", OUT],
        3,
        "text: no image and no text and no table among its 1 file (1 .xml)",
    ),
    (["convert", "text", OUT, "--kind", "image"], 3, "text: no image among its 1 file (1 .xml)"),
    (["convert", IN, "in/out"], 2, "in/out: is inside the source in"),
    (["convert", IN, IN], 2, "in: is inside the source in"),
    (["convert", IN, "."], 2, "in: is inside the destination"),
    (["convert", IN, "full"], 3, "full: holds something else (thesis.doc)"),
    (["convert", IN, "file"], 3, "file: is a file"),
    (
        ["convert", IN, OUT, "--crop", "0"],
        2,
        "crop must be 224, or 320x240 for width x height, with sides of 1 to 16384 pixels; "
        "it is '0'",
    ),
    (["convert", IN, OUT, "--resize", "big"], 2, "resize must be 224, or 320x240"),
    (["convert", IN, OUT, "--resize", "99999"], 2, "with sides of 1 to 16384"),
    (["convert", IN, OUT, "--crop", "9", "--random-crop", "9"], 2, "contradict"),
    (
        ["convert", IN, OUT, "--store", "source", "--crop", "9"],
        2,
        "keeps the original bytes, so crop cannot apply",
    ),
    (
        ["convert", IN, OUT, "--store", "raw"],
        2,
        "add a resize to WIDTHxHEIGHT",
    ),
    (
        ["convert", IN, OUT, "--store", "raw", "--resize", "9"],
        2,
        "store raw needs a recipe",
    ),
    (["convert", IN, OUT, "--store", "tiff"], 2, "store 'tiff' is not known"),
    (["convert", IN, OUT, "--compression", "rar"], 2, "compression 'rar' is not known"),
    (["convert", IN, OUT, "--flip", "2"], 2, "must be a number from 0 to 1"),
    (["convert", IN, OUT, "--variants", "3"], 2, "no step is random"),
    (
        ["convert", IN, OUT, "--variants", "0", "--flip", "1"],
        2,
        "variants must be a whole number from 1",
    ),
    (["convert", IN, OUT, "--seed", "-1"], 2, "seed must be a whole number"),
    (["convert", IN, OUT, "--shuffle", "yes"], 2, "neither a seed"),
    (["convert", IN, OUT, "--workers", "many"], 2, "neither auto nor a whole number"),
    (["convert", IN, OUT, "--shard-size", "12 parsecs"], 2, "is not a size; write 128MiB"),
    (
        ["convert", IN, OUT, "--shard-size", "1MiB", "--samples-per-shard", "5"],
        2,
        "contradict each other",
    ),
    (["convert", IN, OUT, "--transform", "nowhere:f"], 2, "cannot import nowhere"),
    (["convert", IN, OUT, "--transform", "json:nothing"], 2, "json has no nothing"),
    (["convert", IN, OUT, "--transform", "json"], 2, "not of the form module:function"),
    (["convert", IN, OUT, "--kind", "text", "--crop", "9"], 2, "crop is for images"),
    (["convert", IN, OUT, "--kind", "text", "--store", "png"], 2, "store is for images"),
    (["convert", IN, OUT, "--recipe", "absent.toml"], 3, "absent.toml: no such recipe file"),
    (["convert", IN, OUT, "--recipe", "bad.toml"], 2, "bad.toml:1: not a TOML file: Invalid value"),
    (
        ["convert", IN, OUT, "--recipe", "odd.toml"],
        2,
        "odd.toml:1: recipe key 'colour' is not known; `shardctl recipe schema`",
    ),
    (["convert", IN, OUT, "--labels", "absent.csv"], 3, "absent.csv: cannot be read"),
    (
        ["convert", IN, OUT, "--labels", "folder"],
        3,
        "no input is in a folder that could be its class",
    ),
    (
        ["convert", IN, OUT, "--split", "folder"],
        3,
        "some inputs are in no folder that could name their split",
    ),
    (
        ["convert", IN],
        2,
        "DST is missing: where is the dataset to be written? For instance: shardctl convert in out",
    ),
    (
        ["convert", IN, OUT, "--colour"],
        2,
        "there is no option --colour; `shardctl convert --help` lists all",
    ),
    (["verify", "absent"], 3, "absent: no such dataset"),
    (["inspect", "absent", "--key", "x"], 3, "absent: no such dataset"),
    (["verify", "full"], 3, "full: not a dataset (it has no manifest.json)"),
    (["inspect", "absent"], 3, "absent: no such dataset"),
    (
        ["inspect", "file"],
        3,
        "file: not a dataset, and not a shard of one; `shardctl convert file out`",
    ),
    (["inspect", "full", "--block", "1"], 2, "need --shard"),
    (["inspect", "shard.arrow", "--key", "x"], 2, "is one shard"),
    (["inspect", "full", "--key", "x", "--head", "3"], 2, "contradict each other"),
    (["convert", IN, OUT, "--worker-memory", "1MB"], 2, "must be 256 MiB or more; it is 976.6 KiB"),
    (["convert", IN, OUT, "--input-timeout", "soon"], 2, "neither a number of seconds nor none"),
    (["convert", IN, OUT, "--input-timeout", "0"], 2, "0 seconds is impossible"),
    (
        ["convert", IN, OUT, "--copy-rejects", "in/bad"],
        2,
        "in/bad: copies of rejects need a folder of their own",
    ),
    (
        ["convert", IN, OUT, "--if-running", "hope"],
        2,
        "--if-running: 'hope' is not one of wait, fail",
    ),
    (["repair", "absent"], 3, "absent: no such dataset"),
    (["repair", "full"], 3, "full: not a dataset"),
    (["repair", "shard.arrow"], 2, "shard.arrow: one shard"),
    (["repair", "full", "--source", "absent"], 3, "absent: no such file or folder"),
    (["bench", "absent"], 3, "absent: no such dataset"),
    (["bench", "full", "--epochs", "0"], 2, "nothing to measure"),
    (["bench", "full", "--epochs", "1", "--seconds", "1"], 2, "contradict each other"),
    (["demo", "full"], 3, "full: is not empty"),
    (["polish"], 2, "there is no command 'polish'"),
]


LINES, READY, TOKENS = "lines.jsonl", "ready", ["--tokenizer", "bytes"]

OTHERS: list[tuple[list[str], int, str]] = [
    # what is missing
    (["convert"], 2, "SRC... DST is missing; for instance: shardctl convert photos out"),
    (["verify"], 2, "DST|SHARD is missing; for instance: shardctl verify out"),
    (["bench"], 2, "DST is missing; for instance: shardctl bench out --consumer-rate 2500"),
    (["demo"], 2, "DIR is missing; for instance: shardctl demo demo"),
    (["inspect"], 2, "is missing; for instance: shardctl inspect out"),
    (["prune"], 2, "DST is missing; for instance: shardctl prune out --key cat/001.jpg"),
    (["preview"], 2, "is missing; for instance: shardctl preview photos"),
    (["advise"], 2, "is missing; for instance: shardctl advise photos"),
    (
        ["tokenizer", "train", "text"],
        2,
        "SRC... OUT.json: an argument is missing; for instance: shardctl tokenizer train",
    ),
    (
        ["recipe", "check"],
        2,
        "FILE.toml|@NAME is missing; for instance: shardctl recipe check recipe.toml",
    ),
    (["export", READY, OUT], 2, "--to is missing; it is one of parquet, webdataset,"),
    (["convert", IN, OUT, "--store"], 2, "--store needs a value: HOW"),
    (["convert", IN, OUT, "--kind"], 2, "--kind needs a value: one of auto, image,"),
    # what is too much
    (
        ["convert", IN, OUT, "--resize", "64", "64"],
        2,
        "--resize takes one value, and 64 stands behind it; write --resize 64x64",
    ),
    (
        ["convert", "lines.jsonl", OUT, "--redact", "email", "ip"],
        3,
        "out: no such file or folder; the last argument, ip, is",
    ),
    (["inspect", READY, "val"], 2, "'val' is too much; for a split, write --split val"),
    (
        ["convert", "in/*.jpg", OUT],
        3,
        "shardctl expands no patterns: give the folder in, all of which is read",
    ),
    (["convert", "s3//bucket/in", OUT], 2, "write s3://bucket/in"),
    (["convert", IN, "s3//bucket/out"], 2, "write s3://bucket/out"),
    (
        ["convert", "absent", "full"],
        3,
        "full: holds something else (thesis.doc); the destination is the last argument",
    ),
    (["finish", "full"], 3, "full: there are no parts to finish"),
    (["inspect", "ready/shards"], 3, "ready/shards: no such dataset or shard; ready is a dataset"),
    (
        ["convert", IN, OUT, "--labels", "text"],
        3,
        "it is a folder; give a CSV or JSONL file, or name its format: yolo:DIR",
    ),
    (["convert", IN, OUT, "--labels", "coco=bad.json"], 3, "write coco:bad.json"),
    (
        ["convert", IN, OUT, "--labels", "coco:absent.json"],
        3,
        "absent.json: no such file or folder; write coco:PATH",
    ),
    (
        ["convert", IN, OUT, "--labels", "coco:text"],
        3,
        "text: is a folder; give the file of the annotations",
    ),
    (
        ["convert", IN, OUT, "--text-field", "body"],
        2,
        "the inputs are images and have no fields; leave it out",
    ),
    (
        ["convert", IN, OUT, "--format", "mds"],
        3,
        "holds no mds",
    ),
    (
        ["convert", "lines.jsonl", OUT, "--columns", "text"],
        2,
        "and lines.jsonl is none; to keep some fields, use --fields A,B",
    ),
    (
        ["convert", "other.jsonl", OUT, "--text-field", "text"],
        3,
        "the records have no field text; they have body, y",
    ),
    (
        ["convert", "other.jsonl", OUT, "--label-field", "label"],
        3,
        "the records have no field label; they have body, y",
    ),
    (
        ["convert", "other.jsonl", OUT, "--text-column", "body"],
        2,
        "there is no option --text-column",
    ),
    (
        ["convert", "other.jsonl", OUT, "--filter-quality", "c4,gopher"],
        2,
        "'c4,gopher' is not one of gopher, c4, fineweb",
    ),
    (["export", READY, OUT, "--format", "parquet"], 2, "there is no option --format"),
    (["convert", IN, OUT, "--recipe", "single.toml"], 2, "[[transform]] with two brackets"),
    (
        ["inspect", READY, "--where", "label == cat"],
        2,
        "if it is a text, write it in quotes: 'cat'",
    ),
    (["inspect", READY, "--where", "label = 3"], 2, "(compare with ==)"),
    (["inspect", READY, "--where", "key == 'a=b"], 2, "unterminated string literal"),
    (["verify", READY, "more"], 2, "'more' is too much: `shardctl verify` takes DST|SHARD;"),
    (["convert", IN, OUT, "--overwrite=yes"], 2, "--overwrite takes no value; write it alone"),
    (
        ["convert", IN, OUT, "--update", "--overwrite"],
        2,
        "--update and --overwrite contradict each other",
    ),
    (["inspect", READY, "--html", "x.html", "--head", "3"], 2, "leave out --head"),
    # numbers
    (
        ["convert", LINES, OUT, *TOKENS, "--block-length", "2k"],
        2,
        "'2k' is not a valid integer",
    ),
    (
        ["convert", LINES, OUT, *TOKENS, "--block-length", "2,048"],
        2,
        "'2,048' is not a valid integer",
    ),
    (
        ["convert", LINES, OUT, *TOKENS, "--block-length", "1"],
        2,
        "--block-length: 1 is not in the range x>=2",
    ),
    (
        ["convert", IN, OUT, "--workers", "-1"],
        2,
        "--workers: '-1' is neither auto nor a whole number from 0 on",
    ),
    (
        ["convert", IN, OUT, "--flip", "half"],
        2,
        "--flip: 'half' is not a valid float",
    ),
    (
        ["convert", IN, OUT, "--variants", "two"],
        2,
        "--variants: 'two' is not a valid integer",
    ),
    (["convert", IN, OUT, "--max-rejects", "0.1"], 2, "for that share of them write 10%"),
    (["convert", IN, OUT, "--samples-per-shard", "0"], 2, "0 samples per shard are impossible"),
    (["convert", IN, OUT, "--keep-generations", "-1"], 2, "-1 generations cannot be kept"),
    (
        ["bench", READY, "--consumer-rate", "fast"],
        2,
        "is not a valid float",
    ),
    (["bench", READY, "--consumer-rate", "2500/s"], 2, "'2500/s' is not a valid float"),
    (["bench", READY, "--batch-size", "0"], 2, "a batch size of 0 is impossible"),
    (["bench", READY, "--threads", "0"], 2, "threads must be auto or a number from 1"),
    (["demo", "d", "--images", "0"], 2, "--images: 0 is not in the range x>=1"),
    (
        ["preview", IN, "--inputs", "5000"],
        2,
        "--inputs: 5000 is not in the range 1<=x<=1000",
    ),
    (["tokenizer", "train", "text", "t.json", "--vocab-size", "32k"], 2, "is not a valid integer"),
    (["inspect", READY, "--head", "all"], 2, "--head: 'all' is not a valid integer"),
    # words
    (
        ["convert", LINES, OUT, "--kind", "jsonl"],
        2,
        "'jsonl' is not one of auto, image, text, table",
    ),
    (["convert", IN, OUT, "--kind", "coco"], 2, "'coco' is not one of auto, image, text, table"),
    (["convert", IN, OUT, "--kind", "images"], 2, "did you mean image?"),
    (["convert", IN, OUT, "--kind", "tfrecords"], 2, "did you mean tfrecord?"),
    (
        ["convert", LINES, OUT, "--record", "lines"],
        2,
        "'lines' is not one of file, line, paragraph; did you mean line?",
    ),
    (["convert", LINES, OUT, "--filter-quality", "gofer"], 2, "did you mean gopher?"),
    (
        ["convert", LINES, OUT, "--encoding", "gbkk"],
        2,
        "there is no such encoding; did you mean gbk?",
    ),
    (
        ["convert", LINES, OUT, "--redact", "phones"],
        2,
        "pattern 'phones' is not known; did you mean phone?",
    ),
    (["convert", LINES, OUT, "--segment", "chinese"], 2, "language must be zh"),
    (
        ["convert", LINES, OUT, "--stop-words", "english"],
        2,
        "give its code of two letters, such as en",
    ),
    (["convert", IN, OUT, "--store", "jpg:90"], 2, "use source, jpeg:QUALITY, png"),
    (["convert", IN, OUT, "--split", "train:0.9"], 2, "is not of the form train=0.9,val=0.1"),
    (["convert", IN, OUT, "--engine", "spark"], 2, "the engine is local, ray or ray:ADDRESS"),
    (["convert", IN, OUT, "--part", "1"], 2, "a part is I/N, for instance 2/8; it is '1'"),
    (["verify", READY, "--level", "fast"], 2, "--level: 'fast' is not one of quick, full, deep"),
    (["export", READY, OUT, "--to", "megatron-lm"], 2, "did you mean megatron?"),
    (
        ["export", READY, OUT, "--to", "ultralytics"],
        2,
        "'ultralytics' is not one of parquet, webdataset",
    ),
    (["export", READY, OUT, "--to", "csv"], 2, "'csv' is not one of parquet, webdataset"),
    (["export", READY, OUT, "--to", "WebDataset"], 2, "did you mean webdataset?"),
    (
        ["export", READY, OUT, "--to", "parquet", "--rename", "image"],
        2,
        "--rename: 'image' is not COLUMN=NAME",
    ),
    (
        ["export", READY, OUT, "--to", "parquet", "--rename", "image=a,label=b"],
        2,
        "give the option again for each other column",
    ),
    (
        ["export", READY, OUT, "--to", "parquet", "--columns", "img"],
        2,
        "no column 'img'; did you mean image? it has key,",
    ),
    (
        ["export", READY, OUT, "--to", "parquet", "--split", "test"],
        2,
        "ready: no split 'test'; it has train",
    ),
    (
        ["export", READY, OUT, "--to", "megatron"],
        3,
        "ready: has no tokens; convert the texts with --tokenizer",
    ),
    (["export", READY, OUT, "--to", "yolo"], 3, "ready: has no column of objects"),
    (
        ["export", READY, "full", "--to", "parquet"],
        3,
        "full: has a file that does not come from an export",
    ),
    (["inspect", READY, "--split", "valid"], 2, "ready: no split 'valid'; it has train"),
    (["bench", READY, "--split", "valid"], 2, "ready: no split 'valid'; it has train"),
    (["bench", READY, "--consumer", "a100"], 2, "did you mean resnet50-a100"),
    (["bench", READY, "--consumer", "mymod:step"], 2, "cannot import mymod"),
    (["inspect", READY, "--columns", "imge"], 2, "no column 'imge'; did you mean image?"),
    (["inspect", READY, "--where", "label = 3"], 2, "write for instance: label == 3"),
    (["inspect", READY, "--where", "lable == 3"], 2, "no column 'lable'; did you mean label?"),
    (["inspect", READY, "--where", "label == 'dune'"], 2, "no class 'dune'; did you mean dunes?"),
    (["inspect", READY, "--shard", "99"], 2, "ready: no shard '99'; it has"),
    (
        ["inspect", READY, "--images", "x.jpg"],
        2,
        "the sheet is a PNG image; give a name that ends in .png",
    ),
    (["inspect", READY, "--html", "x.png"], 2, "the page is HTML; give a name that ends in .html"),
    # steps and recipes
    (
        ["convert", IN, OUT, "--step", "blurr"],
        2,
        "step 'blurr' is not known; `shardctl recipe steps` lists all",
    ),
    (
        ["convert", IN, OUT, "--step", "hflop"],
        2,
        "did you mean hflip? `shardctl recipe steps` lists all",
    ),
    (["convert", IN, OUT, "--step", "RandomCrop"], 2, "did you mean random_crop?"),
    (["convert", IN, OUT, "--step", "ToTensor"], 2, "is not known"),
    (["convert", IN, OUT, "--step", "normalize mean=[0.5]"], 2, "the loader normalizes images"),
    (["convert", IN, OUT, "--step", "resize 224"], 2, "'224' is not of the form setting=value"),
    (
        ["convert", IN, OUT, "--step", "resize sise=224"],
        2,
        "setting 'sise' is not known; did you mean size?",
    ),
    (["convert", IN, OUT, "--transform", "mine.py:f"], 2, "write mine:f, without .py"),
    (["convert", IN, OUT, "--recipe", "quotes.toml"], 2, 'texts need quotes: store = "jpeg:90"'),
    (
        ["convert", IN, OUT, "--recipe", "near.toml"],
        2,
        "did you mean store? `shardctl recipe schema` lists all",
    ),
    (["convert", IN, OUT, "--recipe", "step.toml"], 2, "it is a step: write [[transform]]"),
    (
        ["convert", IN, OUT, "--recipe", "quote.toml"],
        3,
        "quote.toml: no such recipe file; did you mean quotes.toml?",
    ),
    (["recipe", "check", "absent.toml"], 3, "absent.toml: no such recipe file"),
    (["recipe", "steps", "hflop"], 2, "did you mean hflip?"),
    (["recipe", "show", "full"], 3, "full: not a dataset"),
    # files and places
    (
        ["convert", "photos.zip", OUT],
        3,
        "unpack archives first",
    ),
    (["convert", "photos.rar", OUT], 3, "unpack archives first"),
    (["convert", "x.log", OUT], 3, "rename *.log to *.txt"),
    (["convert", READY, OUT], 3, "is a dataset of shardctl already"),
    (
        ["convert", "line.jsonl", OUT],
        3,
        "line.jsonl: no such file or folder; did you mean lines.jsonl?",
    ),
    (
        ["convert", "s3:bucket/photos", OUT],
        2,
        "s3:bucket/photos: is not a URL, and would be a folder here; write s3://bucket/photos",
    ),
    (["convert", IN, "gs:/bucket/out"], 2, "write gs://bucket/out"),
    (["inspect", "s3:bucket/out"], 2, "write s3://bucket/out"),
    (["convert", "S3://bucket/photos", OUT], 2, "write it in lower case: s3://bucket/photos"),
    (
        ["convert", "https://example.com/a.jsonl", OUT],
        2,
        "download it first: curl -LO https://example.com/a.jsonl",
    ),
    (["convert", "hf://datasets/mnist", OUT], 2, "hf download --repo-type dataset mnist"),
    (["convert", "r2://bucket/x", OUT], 2, "write s3://bucket/x, and set AWS_ENDPOINT_URL"),
    (
        ["inspect", IN],
        3,
        "in: not a dataset (it has no manifest.json); `shardctl convert in out` makes one",
    ),
    (
        ["bench", IN],
        3,
        "in: not a dataset (it has no manifest.json); `shardctl convert in out` makes one",
    ),
    (["inspect", "redy"], 3, "redy: no such dataset; did you mean ready?"),
    (["compact", "absent"], 3, "absent: no such dataset"),
    (["finish", IN], 3, "in: there are no parts to finish"),
    (["cache", "ls", "absent"], 3, "absent: no such folder"),
    (["prune", READY, "--keys", "absent.txt"], 3, "absent.txt: no such file of keys"),
    (["inspect", READY, "--key", "nope"], 3, "ready: no key 'nope'"),
    (["prune", READY, "--key", "nope"], 3, "ready: no sample has the key nope"),
    (["prune", READY], 2, "prune needs a condition or keys: give --where or --keys"),
    (
        ["convert", IN, READY, "--resize", "64"],
        3,
        "ready: holds a dataset that differs in its inputs and recipe (resize",
    ),
    (
        ["convert", IN, OUT, "--labels", "lables.csv"],
        3,
        "(No such file or directory); did you mean labels.csv?",
    ),
    (["convert", IN, OUT, "--labels", "coco"], 3, "it is a format of annotations: coco:FILE"),
    (["convert", IN, OUT, "--labels", "cooc:x.json"], 3, "perhaps coco"),
    # tokenizers
    (
        ["convert", LINES, OUT, "--tokenizer", "gpt2"],
        3,
        "tokenizer.json --local-dir gpt2; then use gpt2/tokenizer.json",
    ),
    (
        ["convert", LINES, OUT, "--tokenizer", "meta-llama/Llama-3-8B"],
        3,
        "then use Llama-3-8B/tokenizer.json",
    ),
    (
        ["tokenizer", "show", "no/such/file.json"],
        3,
        "tokenizer no/such/file.json: it cannot be read",
    ),
    (["tokenizer", "show", "malformed.json"], 3, "malformed.json: not a tokenizer.json"),
    (["tokenizer", "show", "x.log"], 3, "a tokenizer is a tokenizer.json or a folder with one"),
    (["tokenizer", "train", "absent", "t.json"], 3, "absent: no such file or folder"),
    (
        ["convert", LINES, OUT, "--text-field", "txt"],
        3,
        "the records have no field txt; they have text, n",
    ),
    (["convert", LINES, OUT, "--chat-template", "chatml"], 2, "--chat-template needs a tokenizer"),
]


@pytest.mark.thorough(after=90)
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    WRONG + OTHERS,
    ids=[" ".join(case[0]) for case in WRONG + OTHERS],
)
def test_a_sentence_and_an_exit_code(
    cli: Any, here: Path, arguments: list[str], code: int, sentence: str
) -> None:
    before = snapshot(here)
    ran = cli(*arguments)
    assert sentence in ran.err
    assert ran.code == code
    assert ran.out == ""
    assert ran.err.splitlines()[-1].startswith("shardctl: ")
    assert "Usage:" not in ran.err
    assert snapshot(here) == before


IN_PYTHON: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: shardctl.open("nope"), DatasetError, "nope: no such dataset"),
    (lambda: shardctl.open(IN), DatasetError, r"not a dataset \(it has no manifest.json\)"),
    (lambda: shardctl.open("s3:bucket/out"), UsageError, "write s3://bucket/out"),
    (lambda: shardctl.open(READY, split="valid"), UsageError, "no split 'valid'; it has train"),
    (lambda: shardctl.open(READY)[10**9], IndexError, "sample 1,000,000,000 of a dataset of 60"),
    (lambda: shardctl.open(READY)["a/b.png"], TypeError, "ds.filter.* a key"),  # type: ignore[call-overload]
    (lambda: shardctl.open(READY)[[1, 2]], TypeError, "ds.take.* takes a list"),  # type: ignore[call-overload]
    (lambda: shardctl.open(), UsageError, "open: missing a required argument: 'path'"),  # type: ignore[call-arg]
    (
        lambda: shardctl.open(READY).loader(),
        UsageError,
        "loader: missing a required argument: 'batch_size'",
    ),  # type: ignore[call-arg]
    (lambda: shardctl.convert(IN), UsageError, "convert: missing a required argument: 'dst'"),  # type: ignore[call-arg]
    (
        lambda: shardctl.verify(READY, "full", 3, 4, 5, 6, 7, 8, 9),
        UsageError,
        "verify: too many positional arguments; its arguments are",
    ),  # type: ignore[call-arg,arg-type]
    (
        lambda: shardctl.convert(IN, OUT, recipe={"resize": 256}),
        UsageError,
        "it is a step: write",
    ),
    (
        lambda: shardctl.open(READY).loader(batch_size=0),
        UsageError,
        "a batch size of 0 is impossible; give at least 1",
    ),
    (
        lambda: shardctl.open(READY).loader(batch_size="8"),
        UsageError,
        "batch_size must be a whole number; it is '8'",
    ),
    (
        lambda: shardctl.open(READY).loader(batch_size=8, columns=["imge"]),
        UsageError,
        "no column 'imge'; did you mean image?",
    ),
    (
        lambda: shardctl.open(READY).loader(batch_size=8, columns="image"),
        UsageError,
        r"write columns=\['image'\]",
    ),
    (
        lambda: shardctl.open(READY).loader(batch_size=8, pad={"imge": 0}),
        UsageError,
        "pad is for columns that are read: no column 'imge'; did you mean image?",
    ),
    (
        lambda: shardctl.open(READY).loader(batch_size=8, shuffle="blok"),
        UsageError,
        "shuffle 'blok' is not known; use",
    ),
    (
        lambda: shardctl.open(READY).filter("lable == 3"),
        UsageError,
        "no column 'lable'; did you mean label?",
    ),
    (
        lambda: shardctl.open(READY).filter(len),
        UsageError,
        "filter takes a condition as text, such as 'label == 3'",
    ),  # type: ignore[arg-type]
    (lambda: shardctl.open(READY)[1.0], TypeError, "must be a whole number; it is 1.0"),  # type: ignore[call-overload]
    (
        lambda: shardctl.open(READY).tokenizer,
        DatasetError,
        "has no tokens, and so no tokenizer; convert texts with --tokenizer",
    ),
    (lambda: shardctl.open(READY).loader(8, rank=1), UsageError, "give world_size too"),
    (
        lambda: shardctl.open(READY).loader(8, dtype={"image": "fp16"}),
        UsageError,
        "such as float16",
    ),
    (lambda: shardctl.preview(IN), AttributeError, "it is a command: `shardctl preview -h`"),  # type: ignore[attr-defined]
    (
        lambda: shardctl.verfy(IN),
        AttributeError,
        r"did you mean "
        r"verify\?",
    ),  # type: ignore[attr-defined]
    (
        lambda: shardctl.write(OUT, IN),
        UsageError,
        "'in' is a path; shardctl.convert makes a dataset of files",
    ),  # type: ignore[arg-type]
    (
        lambda: shardctl.write(OUT, {"a": [1]}),
        InputError,
        "a sample is a dict of field name to value, as in",
    ),  # type: ignore[arg-type]
    (
        lambda: shardctl.write(OUT, pa.table({"a": [1]})),
        UsageError,
        r"give "
        r"table.to_pylist\(\)",
    ),  # type: ignore[arg-type]
    (lambda: shardctl.write(OUT, [{}]), InputError, "sample 0 is an empty dict; give it fields"),
    (lambda: shardctl.prune(READY, keys="foo"), UsageError, r"write keys=\['foo'\]"),
    (
        lambda: shardctl.convert(IN, OUT, steps=[{"name": "hflip"}]),
        UsageError,
        "steps must be a string such as 'hflip p=0.5'",
    ),  # type: ignore[list-item]
    (
        lambda: shardctl.convert(IN, OUT, transforms=len),
        UsageError,
        "takes 'module:function'",
    ),  # type: ignore[arg-type]
    (
        lambda: shardctl.convert(IN, OUT, recipe={"tokenizer": "t.json"}),
        UsageError,
        "give tokenizer to convert",
    ),
    (lambda: shardctl.convert("nope", OUT), InputError, "nope: no such file or folder"),
    (
        lambda: shardctl.convert(IN, OUT, recipe={"stor": "raw"}),
        UsageError,
        r"did you mean store\?",
    ),
    (
        lambda: shardctl.convert(IN, OUT, recipe="absent.toml"),
        InputError,
        "absent.toml: no such recipe file",
    ),
    (
        lambda: shardctl.export(READY, OUT, "wds"),
        UsageError,
        "the form of an export 'wds' is not known; did you mean mds?",
    ),
    (
        lambda: shardctl.export(READY, OUT, "parquet", compresion="zstd"),
        UsageError,
        "did you mean compression?",
    ),
    (
        lambda: shardctl.verify(READY, "fast"),
        UsageError,
        "level 'fast' is not known; there are quick, full, deep",
    ),
    (lambda: shardctl.bench(READY, consumer="a100"), UsageError, "did you mean resnet50-a100"),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), IN_PYTHON, ids=[case[2] for case in IN_PYTHON]
)
def test_python_says_the_same(
    here: Path, call: Callable[[], Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        call()


def test_colors_are_for_terminals_unless_a_variable_says_otherwise(
    cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert cli("verify", "absent").err == "shardctl: absent: no such dataset\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert (
        cli("verify", "absent").err == "\x1b[31m\x1b[1mshardctl:\x1b[0m absent: no such dataset\n"
    )
    assert "\x1b[32mis whole\x1b[0m" in cli("verify", READY).out
    assert "\x1b" not in cli("verify", READY, "--json").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cli("verify", READY).out


def test_a_path_is_printed_as_it_was_typed(cli: Any, here: Path) -> None:
    for typed in ("ready", "./ready", "in/../ready", str(here / "ready")):
        assert cli("convert", IN, typed).err.startswith(f"shardctl: {typed}: holds a dataset"), (
            typed
        )


def test_what_no_terminal_shows_is_escaped_in_what_was_typed(cli: Any, here: Path) -> None:
    (here / "a\x1b[31mb").symlink_to(here / "ready")
    for line in (("convert", IN, "a\x1b[31mb"), ("convert", IN, OUT, "--x\x1b[31m")):
        ran = cli(*line)
        assert "\\x1b" in ran.err
        assert "\x1b" not in ran.err


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def test_with_json_the_sentence_is_json_too(cli: Any) -> None:
    ran = cli("verify", "absent", "--json")
    assert ran.json == {"error": "absent: no such dataset", "exit_code": 3}
    assert ran.err == ""


AS_NOBODY = """
import os, sys
from shardctl.cli import run
run(['convert', 'in', 'WARM', '--workers', '0', '-q'])  # now all modules are loaded, which that user may not read
os.setgid(65534); os.setuid(65534)
sys.exit(run(sys.argv[1:]))
"""


def run_as_nobody(here: Path, warm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without rights, since root may read and write anywhere."""
    for folder in (here, *here.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    # Nor may that user write the figures of a coverage run.
    unmeasured = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")
    }
    command = [sys.executable, "-c", AS_NOBODY.replace("WARM", warm), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=here, env=unmeasured)


@pytest.mark.thorough(after=1)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not read")
@pytest.mark.parametrize("name", ["2.jpg", "scan"])
def test_an_input_that_may_not_be_read_is_rejected_and_named(here: Path, name: str) -> None:
    """Also where its name does not tell whether it is an image."""
    (here / "in" / name).write_bytes((here / "in" / "2.jpg").read_bytes())
    (here / "in" / name).chmod(0)
    (here / "open").mkdir()
    (here / "open").chmod(0o777)
    done = run_as_nobody(here, "open/warm", "convert", "in", "open/out", "--workers", "0", "-q")
    assert done.returncode == 0, done.stderr
    assert (
        f"read: unreadable; for instance {name}: cannot be read (Permission denied)" in done.stdout
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not write")
def test_a_destination_that_may_not_be_written_is_said(here: Path) -> None:
    locked = here / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    for number, out in enumerate(("locked", "locked/out")):
        done = run_as_nobody(here, f"warm{number}", "convert", "in", out, "--workers", "0", "-q")
        assert done.returncode == 3, done.stderr
        assert "cannot write here" in done.stderr
        assert "Traceback" not in done.stderr
    assert list(locked.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not look")
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_a_destination_where_another_user_works_is_said(here: Path, more: tuple[str, ...]) -> None:
    (here / "out" / ".shardctl").mkdir(parents=True)
    (here / "out" / ".shardctl").chmod(0o700)
    done = run_as_nobody(here, "warm", "convert", "in", "out", "--workers", "0", "-q", *more)
    assert done.returncode == 3, done.stderr
    assert done.stderr == "shardctl: out: cannot write here (Permission denied)\n"


def test_files_of_many_other_kinds_are_all_counted(cli: Any, here: Path) -> None:
    for number in range(9):
        (here / "in" / f"x.kind{number}").write_text("")
    said = cli("convert", "in", "out", "--workers", "0").err
    assert "other files, not converted: " in said
    assert " and 3 more, 9 in all" in said
