"""Wrong input gets one sentence, the right exit code, and changes nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_facts import tree
from dataset_files import shard_in, tables_in

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.making.options import convert_options
from shardctl.transforms.recipe_options import FIELDS, IMAGES, LABELS, READING, SHORTCUTS

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
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[:2], 1):
        shutil.copy(path, tmp_path / "in" / f"{number}.jpg")
    (tmp_path / "text" / "a.xml").write_text("x")
    (tmp_path / "full" / "thesis.doc").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    shutil.copy(shard_in(whole_dataset, "train-00000"), tmp_path / "shard.arrow")
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
    "below.toml": "[[transform]]\nname = 'hflip'\nstore = 'raw'",
    "empty.txt": "",
    "semicolons.csv": "text;label\na;b\n",
    "sheet.xlsx": "x",
    "pointer.jpg": "version https://git-lfs.github.com/spec/v1\n",
    "plural.toml": "[[transforms]]\nname = 'hflip'",
    "empty.tar": "\0" * 10240,
    "step.toml": "resize = 256",
    "steps.toml": """
transform = [{name = "resize", size = 9}, {name = "crop", size = 8}, {name = "crop", size = 7},
{name = "custom", target = "json:dumps"}]
""",
    "quotes.toml": "store = jpeg:90",
    "labels.csv": "file,label\n1.jpg,a\n2.jpg,b\n",
    "lines.jsonl": '{"text": "a", "n": 1}\n' * 3,
    "x.log": "a line\n",
    "photos.zip": "PK",
    "photos.rar": "Rar!",
    "malformed.json": '{"a": 1}',
}


LINES, READY = "lines.jsonl", "ready"

WRONG = r"""
3 | convert absent out | absent: no such file or folder
3 | convert in,text out | write several sources with spaces between them
2 | convert in in out | in: the source is given twice; leave one out
2 | convert file:///in out | file:///in: leave out file://
3 | convert full\\thesis.doc out | did you mean full/thesis.doc?
3 | convert - out | stdin is not read
3 | convert empty out | empty: holds no files
3 | convert text out | text: no image and no text and no table among its 1 file (1 .xml)
3 | convert text out --kind image | text: no image among its 1 file (1 .xml)
2 | convert in in/out | in/out: is inside the source in
3 | convert in full | full: holds something else (thesis.doc)
3 | convert in file | file: is a file
2 | convert in out --crop 0 | must be 224, or 320x240 for width x height, with sides of 1 to 16384 pixels; it is '0'
2 | convert in out --crop 9 --random-crop 9 | contradict
2 | convert in out --store source --crop 9 | keeps the original bytes, without crop
2 | convert in out --store raw | add a resize to WIDTHxHEIGHT or a crop
2 | convert in out --store raw --resize 9 | store raw needs one size of all images
2 | convert in out --store tiff | store 'tiff' is not known
2 | convert in out --store jpg | did you mean jpeg?
2 | convert in out --compression rar | compression 'rar' is not known
2 | convert in out --flip 2 | must be a number from 0 to 1
2 | convert in out --variants 3 | no step is random
2 | convert in out --variants 0 --flip 1 | variants must be a whole number from 1
2 | convert in out --shuffle yes | neither a seed
2 | convert in out --workers many | neither auto nor a whole number
2 | convert in out --shard-size '12 parsecs' | is not a size; write 128MiB
2 | convert in out --shard-size 1MiB --samples-per-shard 5 | contradict each other
2 | convert in out --transform nowhere:f | cannot import nowhere
2 | convert in out --transform json | not of the form module:function
2 | convert in out --kind text --crop 9 | crop is for images
2 | convert lines.jsonl out --store png | --store is about images, and the inputs have none
3 | convert in out --recipe absent.toml | absent.toml: no such recipe file
2 | convert in out --recipe bad.toml | bad.toml:1: not a TOML file: Invalid value
2 | convert in out --recipe odd.toml | odd.toml:1: recipe key 'colour' is not known; `shardctl recipe schema`
3 | convert in out --labels absent.csv | absent.csv: cannot be read
3 | convert in out --labels folder | no input is in a folder that could be its class
3 | convert in out --split folder | some inputs are in no folder that could name their split
3 | tokenizer train lines.jsonl nope t.json | nope: no such file or folder; the last argument, t.json, is taken
3 | preview empty.tar | empty.tar: has no records
2 | convert in | it needs DST, where the dataset is to be written; for instance: shardctl convert in out
2 | convert in out --colour | there is no option --colour; `shardctl convert --help` lists all
3 | verify absent | absent: no such dataset
3 | verify full | full: not a dataset (it has no manifest.json)
3 | inspect file | file: not a dataset or shard; `shardctl convert file out`
2 | inspect ready --no-annotations | leave out --no-annotations, without effect alone
2 | inspect full --block 1 | need --shard
2 | inspect shard.arrow --key x | is one shard
2 | inspect full --key x --head 3 | leave out --head
2 | convert in out --worker-memory 1MB | a worker needs 256 MiB of memory or more; it is 1000000 bytes
2 | convert in out --input-timeout soon | neither a number of seconds nor none
2 | convert in out --input-timeout 0 | input_timeout must be a number, over 0
2 | convert in out --copy-rejects in/bad | in/bad: copies of rejects need another folder
2 | convert in out --if-running hope | --if-running: 'hope' is not one of wait, fail
2 | repair shard.arrow | shard.arrow: one shard
3 | repair full --source absent | absent: no such file or folder
2 | bench full --epochs 0 | --epochs: 0 is not in the range
2 | bench full --epochs 1 --seconds 1 | contradict each other
3 | demo full | full: is not empty
2 | polish | there is no command 'polish'
2 | split in | see `shardctl convert --split
2 | convert in out --num-workers 3 | use --workers N
2 | convert in out —resize 9 | with the signs of ASCII: '--resize'
2 | bench ready --batch 3 | use --batch-size N
2 | convert --input in out | the first paths are the sources
2 | convert in out --random-erasing 0.3 | use --step random_erasing
2 | inspect ready --overwrite | there is no option --overwrite here; it is an option of
2 | convert in out --split train=0.9，val=0.1 | 'train=0.9,val=0.1'
2 | convert in oss://bucket/x | write s3://, as `shardctl help stores`
2 | convert | it needs SRC... DST; for instance: shardctl convert photos out
2 | verify | it needs DST|SHARD; for instance: shardctl verify out
2 | inspect | it needs DST|SHARD; for instance: shardctl inspect out
2 | tokenizer train text | it needs SRC... OUT.json; for instance: shardctl tokenizer train
2 | export ready out | --to (one of parquet, webdataset,
2 | convert in out --store | --store needs a value: HOW
2 | convert in out --kind | --kind needs a value: one of auto, image,
3 | convert lines.jsonl out --redact email ip | out: no such file or folder; the last argument, ip, is
2 | inspect ready val | 'val' is too much for `shardctl inspect DST|SHARD`; write a path with spaces in quotes
2 | prune ready dunes/dunes-0001.jpg | a key behind --key
3 | convert 'in/*.jpg' out | shardctl expands no patterns: give a folder
3 | convert absent full | full: holds something else (thesis.doc); as the destination it must be new
3 | finish full | full: there are no parts to finish
3 | inspect ready/shards | ready/shards: no such dataset or shard; ready is a dataset
3 | convert in out --labels text | it is a folder; give a CSV or JSONL file, or name its format: yolo:DIR
3 | convert in out --labels coco=bad.json | annotations are coco:FILE
3 | convert in out --labels coco:absent.json | absent.json: no such file or folder
3 | convert in out --labels coco:text | text: cannot be read (Is a directory)
2 | convert in out --columns a,b | --columns is about CSV files, and the inputs have none; leave it out
2 | convert in out --delimiter tab | is about CSV files or labels files
2 | convert in out --encoding gbk | is about files of text
2 | convert in out --record line | is about files of text
2 | convert in out --lenient-labels | is about labels files
2 | convert in out --keep-objects 0.5 | is about objects in images
2 | convert lines.jsonl out --max-pixels 100 | is about images
2 | convert in out --text-field body | --text-field is about fields of records, and the inputs have none; leave it out
3 | convert in out --format mds | holds no mds
2 | convert lines.jsonl out --columns text | and lines.jsonl is none; --fields A,B keeps some fields
3 | convert other.jsonl out --text-field text | the records have no field text; they have body, y
2 | convert other.jsonl out --text-column body | there is no option --text-column
2 | convert other.jsonl out --filter-quality c4,gopher | 'c4,gopher' is not one of gopher, c4, fineweb
2 | export ready out --format parquet | there is no option --format
2 | convert in out --recipe single.toml | [[transform]] with two brackets
2 | inspect ready --where 'label == cat' | if it is a text, write it in quotes: 'cat'
2 | inspect ready --where 'key == '"'"'a=b' | is not a condition
2 | convert in out --overwrite=yes | --overwrite takes no value; write it alone
2 | convert in out --update --overwrite | --update and --overwrite contradict each other
2 | inspect ready --html x.html --head 3 | leave out --head
2 | convert lines.jsonl out --tokenizer bytes --block-length 2k | '2k' is not a whole number
2 | convert lines.jsonl out --tokenizer bytes --block-length 1 | --block-length: 1 is not in the range
2 | convert in out --flip half | --flip: 'half' is not a number
2 | convert in out --max-rejects 0.1 | or a share of them (1%)
2 | convert in out --samples-per-shard 0 | --samples-per-shard: 0 is not in the range
2 | convert in out --keep-generations -1 | --keep-generations: -1 is not in the range
2 | bench ready --batch-size 0 | batch_size must be at least 1
2 | convert lines.jsonl out --kind jsonl | 'jsonl' is not one of auto, image, text, table
2 | convert in out --kind images | did you mean image?
2 | convert lines.jsonl out --record lines | 'lines' is not one of file, line, paragraph; did you mean line?
2 | convert lines.jsonl out --encoding gbkk | there is no such encoding; did you mean gbk?
2 | convert lines.jsonl out --redact phones | pattern 'phones' is not known; did you mean phone?
2 | convert lines.jsonl out --segment chinese | language must be zh
2 | convert lines.jsonl out --stop-words english | give one of the 58 codes
2 | convert in out --store jpg:90 | use source, jpeg:QUALITY, png
2 | convert in out --split train:0.9 | is not of the form train=0.9,val=0.1
2 | convert in out --engine spark | the engine is local|ray[:ADDRESS]
2 | convert in out --part 1 | a part is I/N, for instance 2/8; it is '1'
2 | verify ready --level fast | --level: 'fast' is not one of quick, full, deep
2 | export ready out --to megatron-lm | did you mean megatron?
2 | export ready out --to parquet --rename image | --rename: 'image' is not COLUMN=NAME
2 | export ready out --to parquet --rename image=a,label=b | give the option again for each
2 | export ready out --to parquet --columns img | no column 'img'; did you mean image? it has key,
2 | export ready out --to parquet --split test | ready: no split 'test'; it has train
3 | export ready out --to megatron | ready: has no tokens; convert the texts with --tokenizer
3 | export ready out --to yolo | ready: has no column of objects
3 | export ready full --to parquet | full: has a file that is not of an export
2 | inspect ready --split valid | ready: no split 'valid'; it has train
2 | bench ready --consumer a100 | did you mean resnet50-a100
2 | bench ready --consumer mymod:step | cannot import mymod
2 | inspect ready --columns imge | no column 'imge'; did you mean image?
2 | inspect ready --where 'label = 3' | ; one is: label == 3
2 | inspect ready --where 'lable == 3' | no column 'lable'; did you mean label?
2 | inspect ready --where 'label == '"'"'dune'"'"'' | no class 'dune'; did you mean dunes?
2 | inspect ready --where 'label.startswith("du")' | write functions as in startswith(label, 'du')
2 | inspect ready --where 'label like "d%"' | for like write startswith(column, "text")
2 | inspect ready --where 'class == 3' | for class write label
2 | inspect ready --where 'label == null' | for null write None
2 | inspect ready --shard 99 | ready: no shard '99'; it has
2 | inspect ready --images x.jpg | give a name that ends in .png
2 | inspect ready --html x.png | give a name that ends in .html
2 | convert in out --step blurr | step 'blurr' is not known; `shardctl recipe steps` lists all
2 | convert in out --step RandomCrop | did you mean random_crop?
2 | convert in out --step ToTensor | is not known
2 | convert in out --step RandomHorizontalFlip | `hflip` does it
2 | convert in out --step 'resize 224' | '224' is not of the form setting=value
2 | convert in out --step 'resize sise=224' | setting 'sise' is not known; did you mean size?
2 | convert in out --transform mine.py:f | write mine:f, without .py
2 | convert in out --recipe quotes.toml | not a TOML file
2 | convert in out --recipe plural.toml | recipe key 'transforms' is not known; write [[transform]]
2 | convert in out --recipe below.toml | setting 'store' is one of the recipe; write it above the first [[transform]]
2 | convert in out --recipe near.toml | did you mean store? `shardctl recipe schema` lists all
2 | convert in out --recipe step.toml | it is a step: write [[transform]]
3 | convert in out --recipe quote.toml | quote.toml: no such recipe file; did you mean quotes.toml?
2 | recipe steps hflop | did you mean hflip?
3 | recipe show full | full: not a dataset
3 | recipe show imagenet | imagenet: no such dataset; did you mean @imagenet?
3 | convert photos.zip out | unpack archives first
3 | convert ready out --resize 9 | is a dataset of shardctl already
2 | bench ready --model resnet50 | use --consumer NAME
2 | convert in out --step 'normalize mean=0.5' | ds.loader(256, normalize=
3 | convert line.jsonl out | line.jsonl: no such file or folder; did you mean lines.jsonl?
2 | convert s3:bucket/photos out | s3:bucket/photos: is not a URL; write s3://bucket/photos
2 | convert https://example.com/a.jsonl out | download or copy all else to a folder
3 | inspect in | in: not a dataset (it has no manifest.json); `shardctl convert in out` makes one
3 | inspect redy | redy: no such dataset; did you mean ready?
3 | inspect redy --head 1 | redy: no such dataset; did you mean ready?
3 | inspect redy --shard 0 | redy: no such dataset; did you mean ready?
3 | cache ls absent | absent: no such folder
3 | prune ready --keys empty.txt | empty.txt: has no keys
3 | prune ready --keys absent.txt | absent.txt: no such file of keys
3 | inspect ready --key nope | ready: no key 'nope'
3 | prune ready --key nope | ready: no sample has the key nope
2 | prune ready | prune needs a condition or keys: give --where, --key or --keys
3 | convert in ready --resize 64 | ready: holds a dataset that differs in its inputs and recipe (resize
3 | convert in out --labels lables.csv | (No such file or directory); did you mean labels.csv?
3 | convert in out --labels x.log | x.log: labels files end in .csv, .tsv, .jsonl
3 | convert semicolons.csv out --labels semicolons.csv | a labels file, and the only source
2 | convert other.jsonl out --resize 9 | these inputs are text; --kind image reads those that tables name
3 | convert 't-{0..9}.tar' out | shardctl expands no patterns
3 | convert in out --labels folders | did you mean folder?
3 | convert in out --labels yolo:lines.jsonl | lines.jsonl: not a folder; give that of the labels
3 | convert in out --labels coco | annotations are coco:FILE
3 | tokenizer show no/such/file.json | tokenizer no/such/file.json: it cannot be read
3 | tokenizer show x.log | a tokenizer is a tokenizer.json or a folder with one
3 | tokenizer train absent t.json | absent: no such file or folder
3 | convert semicolons.csv out --text-field text | add --delimiter ';'
3 | convert sheet.xlsx out | save them as CSV or Parquet
1 | convert pointer.jpg out --kind image | a pointer of Git LFS, not an image; get it with git lfs pull.
3 | convert lines.jsonl out --text-field txt | the records have no field txt; they have text, n
2 | convert lines.jsonl out --chat-template chatml | --chat-template needs a tokenizer
2 | convrt in out | there is no command 'convrt'; did you mean convert?
2 | Convert in out | did you mean convert?
2 | zzz out | there is no command 'zzz'; `shardctl -h` lists the commands
2 | convert in out -o x | there is no option -o; the last path is where the result goes
2 | convert in out --worker 3 | did you mean --workers?
2 | convert in out --rezise 3 | did you mean --resize?
2 | -v convert in out | there is no option -v; options stand behind
2 | --quiet convert in out | options stand behind the name of a command
3 | convert lines.jsonl out --recipe imagenet | no such recipe file; did you mean @imagenet?
2 | inspect out --kye x | did you mean --key?
2 | bench out --seconds 1m | '1m' is not a number
2 | help convrt | did you mean convert
2 | help INPUTZ | did you mean inputs
2 | convert in out --recipe @imagnet | did you mean @imagenet?
2 | recipe check @imagnet | did you mean @imagenet?
2 | recipe show @imagnet | did you mean @imagenet?
3 | recipe check absent.toml | absent.toml: no such recipe file; `shardctl recipe list`
3 | recipe check text | text: cannot be read (Is a directory)
2 | inspect ready --shard 0 --block 9 | no block 9
2 | inspect ready --shard 0 --block 0 --row 900 | no row 900
2 | inspect ready --shard 0 --row 900 | no row
2 | inspect ready --shard 0 --row -1 | no row -1
2 | inspect ready --split test --head 1 | no split 'test'; it has train
2 | inspect ready --split test --where 'label == 1' | no split 'test'; it has train
2 | inspect ready --key k --split val | leave out --split
2 | inspect ready --key k --html x | leave out --key
2 | inspect ready --key k --stats | leave out --stats
2 | inspect ready --shard 0 --block 0 --head 3 | leave out --block
2 | inspect ready --shard 0 --split val --head 3 | leave out --split
2 | inspect ready --head 3 --columns key --images x.png | leave out --columns
2 | inspect ready --diff x --html y | leave out --html
3 | verify ready/TABLES/files.arrow | not a shard; give the folder of the dataset, ready
3 | inspect ready/TABLES/plan.arrow | not a shard; give the folder of the dataset, ready
3 | inspect ready/manifest.json | not a shard; give the folder of the dataset, ready
2 | export ready out --to parquet --rename label=image | need different names
2 | export ready out --to parquet --where 'size > 3' | no column 'size'
3 | export ready out --to parquet --where 'label > 99' | no sample matches
2 | export ready out --to parquet --store webp | keep, png or jpeg:QUALITY
2 | export ready out --to parquet --on-loss ignore | 'ignore' is not one of fail, json, drop
2 | export ready out --to parquet --compression br | zstd, snappy or none
2 | export ready out --to parquet --no-eos | --no-eos is not for an export to parquet; it has compression
2 | export ready out --to yolo --task obb | must be detect, segment or pose
2 | export ready out --to coco --task detect | --task is not for an export to coco
2 | export ready ready/out --to parquet | is inside the dataset
2 | export ready . --to parquet --overwrite | or contains it
3 | export ready file --to parquet --overwrite | is a file
3 | inspect ready --key dunes/dunes-0001.jpg | did you mean dunes/dunes-00
2 | inspect ready --images x.png --where 'label == 17' | 17
3 | inspect ready --html absent/x.html | cannot be written (No such file or directory)
2 | convert in out --recipe steps.toml --random-crop 9 | has no step random_resized_crop (it has resize, crop, custom); add it with --step
2 | convert in out --recipe steps.toml --crop 8 | has 2 steps crop; change
2 | convert in out --recipe steps.toml --transform json:dumps | has this function already
2 | convert in out --recipe steps.toml --step hflip | hflip must come before your own function
2 | convert in out --recipe steps.toml --resize 0 | must be 224, or 320x240
"""
"""The exit code, the arguments, and a part of the sentence."""


@pytest.mark.thorough(after=60)
@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_a_sentence_and_an_exit_code(cli, here, case):
    code, arguments, sentence = case.split(" | ")
    before, tables = tree(here), tables_in(here / "ready").relative_to(here / "ready")
    ran = cli(*shlex.split(arguments.replace("TABLES", str(tables))))
    assert sentence in ran.err
    assert (str(ran.code), ran.out) == (code, "")
    assert ran.err.splitlines()[-1].startswith("shardctl: ")
    assert "Usage:" not in ran.err
    assert tree(here) == before


IN_PYTHON: list[tuple[Callable[[], Any], str]] = [
    (lambda: shardctl.open(READY)[10**9], "sample 1,000,000,000 of a dataset of 60"),
    (lambda: shardctl.open(READY)["a/b.png"], "ds.filter.* a key"),  # type: ignore[call-overload]
    (lambda: shardctl.open(READY)[[1, 2]], "ds.take.* takes a list"),  # type: ignore[call-overload]
    (lambda: shardctl.open(), "open: missing a required argument: 'path'"),  # type: ignore[call-arg]
    (lambda: shardctl.verify(READY, *[0] * 9), "too many positional arguments"),  # type: ignore[arg-type]
    (lambda: shardctl.verify(READY, "total"), "level 'total' is not known"),
    (lambda: shardctl.open(READY).loader(8, columns=["imge"]), "did you mean image?"),
    (lambda: shardctl.open(READY).loader(8, shuffle="blok"), "'blok' is not known; use"),
    (lambda: shardctl.open(READY).loader(8, rank=1), "give world_size too"),
    (lambda: shardctl.open(READY).loader(8, dtype={"image": "fp16"}), "such as float16"),
    (lambda: shardctl.open(READY).filter("lable == 3"), "did you mean label?"),
    (lambda: shardctl.open(READY).filter(len), "a condition as text"),  # type: ignore[arg-type]
    (lambda: shardctl.verfy(IN), "did you mean verify"),  # type: ignore[attr-defined]
    (lambda: shardctl.write(OUT, IN), "'in' is a path; shardctl.convert"),  # type: ignore[arg-type]
    (lambda: shardctl.write(OUT, pa.table({"a": [1]})), "to_pylist"),  # type: ignore[arg-type]
    (lambda: shardctl.write(OUT, [{}]), "sample 0 is an empty dict; give it fields"),
    (lambda: shardctl.prune(READY, keys="foo"), r"write keys=\['foo'\]"),
    (lambda: shardctl.convert(IN, OUT, steps=[{}]), "steps must be a string such as"),  # type: ignore[list-item]
    (lambda: shardctl.convert(IN, OUT, transforms=len), "takes 'module:function'"),  # type: ignore[arg-type]
    (lambda: shardctl.convert(IN, OUT, recipe={"tokenizer": "t"}), "give tokenizer to convert"),
    (lambda: shardctl.export(READY, OUT, "mds", columns="key"), "columns takes a list of names"),
    (lambda: shardctl.convert(IN, OUT, columns=["image"]), "^columns is about CSV files"),
    (lambda: shardctl.convert(IN, OUT, recipe={"columns": "a,b"}), "^columns is about CSV"),
    (lambda: shardctl.open(READY).loader(8, columns="image,key"), r"\['image', 'key'\]"),  # type: ignore[arg-type]
    (lambda: shardctl.write(OUT, [{1: 2}]), "names of fields are strings; one is 1"),
    (lambda: shardctl.write(OUT, [{"x": [1]}, {"x": [[1]]}]), "list<item: int64> in sample 0 and"),
    (lambda: shardctl.export(READY, OUT, "wds"), "'wds' is not known; did you mean mds?"),
    (
        lambda: shardctl.export(READY, OUT, "parquet", compresion="zstd"),
        "did you mean compression?",
    ),
]
OTHER_ERRORS = {
    "sample 1,000,000,000 of a dataset of 60": IndexError,
    "ds.filter.* a key": TypeError,
    "ds.take.* takes a list": TypeError,
    "did you mean verify": AttributeError,
    "sample 0 is an empty dict; give it fields": InputError,
    "names of fields are strings; one is 1": InputError,
    "list<item: int64> in sample 0 and": InputError,
}
"""What is no UsageError."""


@pytest.mark.parametrize(("call", "sentence"), IN_PYTHON, ids=[case[1] for case in IN_PYTHON])
def test_python_says_the_same(here, call, sentence):
    with pytest.raises(OTHER_ERRORS.get(sentence, UsageError), match=sentence):
        call()


def test_each_option_of_reading_says_what_it_is_about():
    """So none is without effect in silence; these say themselves what does not fit them."""
    own = {"kind", "format", "image_field", "labels", "yolo_task", "classes"}
    headings = (READING, FIELDS, IMAGES, LABELS)
    for name, option in convert_options().items():
        if option.heading in headings and name not in {*own, *SHORTCUTS}:
            assert option.about, name


def test_colors_are_for_terminals_unless_a_variable_says_otherwise(cli, here, monkeypatch):
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


def test_an_option_that_is_given_twice_is_named_and_the_last_one_counts(cli, here):
    ran = cli("convert", "--resize=9", IN, OUT, "--resize", "0", "-q", "-q")
    assert ran.err.splitlines()[0] == "warning: --resize is given twice; the last one counts"
    assert "it is '0'" in ran.err


def test_a_path_is_printed_as_it_was_typed(cli, here):
    for typed in ("ready", "./ready", "in/../ready", str(here / "ready")):
        assert cli("convert", IN, typed).err.startswith(f"shardctl: {typed}: holds a dataset"), (
            typed
        )


def test_what_no_terminal_shows_is_escaped_in_what_was_typed(cli, here):
    (here / "a\x1b[31mb").symlink_to(here / "ready")
    for line in (("convert", IN, "a\x1b[31mb"), ("convert", IN, OUT, "--x\x1b[31m")):
        ran = cli(*line)
        assert "\\x1b" in ran.err
        assert "\x1b" not in ran.err


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


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not read")
@pytest.mark.parametrize(
    "arguments",
    ["demo closed/x", "cache clear closed/x", "convert in out --classes closed/x --workers 0"],
)
def test_a_folder_that_may_not_be_entered_is_named(here, arguments):
    (here / "closed").mkdir(mode=0o700)
    done = run_as_nobody(here, "warm", *arguments.split())
    assert (done.returncode, done.stderr) == (
        3,
        "shardctl: closed/x: cannot be reached (Permission denied)\n",
    )


@pytest.mark.thorough(after=1)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not read")
@pytest.mark.parametrize("name", ["2.jpg", "scan"])
def test_an_input_that_may_not_be_read_is_rejected_and_named(here, name):
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


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not write")
def test_a_destination_that_may_not_be_written_is_said(here):
    locked = here / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    for number, out in enumerate(("locked", "locked/out")):
        done = run_as_nobody(here, f"warm{number}", "convert", "in", out, "--workers", "0", "-q")
        assert done.returncode == 3, done.stderr
        assert "cannot write here" in done.stderr
        assert "Traceback" not in done.stderr
    assert list(locked.iterdir()) == []


@pytest.mark.thorough(after=1)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not look")
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_a_destination_where_another_user_works_is_said(here, more):
    (here / "out" / ".shardctl").mkdir(parents=True)
    (here / "out" / ".shardctl").chmod(0o700)
    done = run_as_nobody(here, "warm", "convert", "in", "out", "--workers", "0", "-q", *more)
    assert done.returncode == 3, done.stderr
    assert done.stderr == "shardctl: out: cannot write here (Permission denied)\n"


def test_files_of_many_other_kinds_are_all_counted(cli, here):
    for number in range(9):
        (here / "in" / f"x.kind{number}").write_text("")
    said = cli("convert", "in", "out", "--workers", "0").err
    assert "other files, not converted: " in said
    assert " and 3 more, 9 in all" in said
