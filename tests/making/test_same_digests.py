"""Conversions write the same bytes as the version that digests.json was recorded with: recipes x
sources, by the command line.

Each case makes a small source (digest_inputs.py), runs commands in a folder of its own, and
compares every file of SHA256SUMS with the record: shards by what they are called, and shards.arrow,
files.arrow, plan.arrow and rejects. The name of a shard must be that of its content. manifest.json and update.arrows have dates, paths and times of
change, and are not in SHA256SUMS.

A case skips where a package that it depends on has another version than the recorded one. Record
all cases anew, for instance after a new pyarrow or after a change of the format that is meant, from
a version that is known to be good:

    python tests/making/test_same_digests.py --record
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import digest_inputs as inputs
import pyarrow as pa
import pytest
from dataset_files import shards_in, tables_in
from object_server import ObjectServer
from object_stores import new_bucket
from PIL import features

import shardctl
from shardctl.cli import run
from shardctl.system.stores import open_store

RECORD = Path(__file__).with_name("digests.json")
RECORDING = "SHARDCTL_RECORD_DIGESTS"
"""The variable that makes the tests write the record: set by --record."""

ROOT = Path(shardctl.__file__).parents[1]

Step = str | Callable[[], object]

IMAGES = ("imaging", "machine", "libjpeg-turbo", "libtiff", "libwebp", "pillow zlib", "simplejpeg")
"""What decides the bytes of images. machine: numbers with fractions may differ between kinds of
processors."""

ALL = ("numpy", "pyarrow")


@dataclass(frozen=True)
class Case:
    """Commands after each other, and the datasets and exports that they leave.

    `steps` are command lines of shardctl, or functions that change files between them. `needs`
    names packages whose bytes or values go into the result. `record` is the name of the case whose
    record counts: some cases must give what another one gave.
    """

    name: str
    make: Callable[[Path], object]
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    results: tuple[str, ...] = ("out",)
    record: str = ""

    def make_source(self) -> None:
        """Make the source in this folder."""
        Path("in").mkdir()
        self.make(Path("in"))


def case(
    name: str,
    make: Callable[[Path], object],
    options: str,
    *needs: str,
    before: tuple[Step, ...] = (),
    record: str = "",
) -> Case:
    """Return a case of one conversion of `in` to `out`."""
    return Case(name, make, (*before, f"convert in out {options}"), needs, record=record)


def images(
    name: str, make: Callable[[Path], object], options: str, *needs: str, **more: Any
) -> Case:
    """Return a case of one conversion of images."""
    return case(name, make, options, *IMAGES, *needs, **more)


# --- steps between commands ---


def file(path: str, text: str) -> Step:
    """Write a file."""
    return partial(inputs.write, Path(path), text)


def change_photos() -> None:
    """Add a photo, remove one and change one."""
    inputs.write(Path("in/dog/9.jpg"), inputs.picture(30))
    Path("in/cat/1.png").unlink()
    inputs.write(Path("in/owl/0.jpg"), inputs.picture(31, size=(25, 19)))


def change_lines() -> None:
    """Add a file of lines, remove one and append to one."""
    inputs.write(Path("in/d.jsonl"), inputs.lines(map(inputs.row, range(30, 37))))
    Path("in/c.jsonl.gz").unlink()
    with open("in/a.jsonl", "a") as opened:
        opened.write(inputs.lines(map(inputs.row, range(40, 44))))


def add_day() -> None:
    """Make a second folder of texts."""
    for number in range(20, 24):
        inputs.write(Path(f"more/{number}.txt"), inputs.document(number))


def damage() -> None:
    """Change a byte of the first shard, and remove the second one and a table."""
    first, second = shards_in("out", "train")[:2]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.unlink()
    (tables_in("out") / "plan.arrow").unlink()


def write_samples() -> None:
    """Make a dataset by `shardctl.write`."""
    rows = [inputs.row(number) for number in range(26)]
    samples = {"train": rows[:20], "val": rows[20:]}
    shardctl.write("out", samples, samples_per_shard=6)


def write_parts() -> None:
    """Make a dataset of images and arrays by `shardctl.write`, in parts, by two processes."""
    shardctl.write(
        "out",
        samples_of,
        parts=list(range(4)),
        workers=2,
        split="train=0.7,val=0.3",
        samples_per_shard=5,
    )


def samples_of(part: int) -> Iterable[dict[str, object]]:
    """Yield the samples of a part."""
    for number in range(part * 5, part * 5 + 5):
        yield {
            "key": f"k{number}",
            "pixels": inputs.pixels(number),
            "number": number,
            "text": inputs.sentence(number),
        }


def take_snapshot() -> None:
    """Make the dataset of the case `raw x photos` by `shardctl.snapshot`."""
    recipe = {
        "store": "raw",
        "transform": [{"name": "resize", "size": 16}, {"name": "crop", "size": "16x12"}],
    }
    shardctl.snapshot(
        "out", source="in", recipe=recipe, samples_per_shard=5, workers=0, progress=False
    )


# --- recipes ---

CROPS = (
    "--resize 20 --random-crop 16 --flip 0.5 --variants 2 --store jpeg:90 --split "
    "train=0.7,val=0.3 --shuffle 1 --seed 7 "
)
CROPS += "--samples-per-shard 6"

OWN_STEP = """def darker(sample, rng):
    sample["image"] //= 2
    sample["mean"], sample["drawn"] = float(sample["image"].mean()), int(rng.integers(1000))
    return sample
"""

OWN_MODEL = """class Lengths:
    version = "1"

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, samples):
        return [{**sample, "length": self.factor * len(sample["text"] or "")} for sample in samples]
"""

OWN_ENCODER = """class Means:
    version = "1"

    def __call__(self, samples):
        return [{**sample, "means": sample.pop("image").mean((0, 1)).tolist()} for sample in samples]
"""


def recipe(head: str, *steps: str) -> Step:
    """Write recipe.toml: lines of keys, and steps such as 'crop size=20'."""
    text = head.replace("; ", "\n") + "\n"
    for step in steps:
        name, _, settings = step.partition(" ")
        text += f'\n[[transform]]\nname = "{name}"\n' + "".join(
            f"{each}\n" for each in settings.split("; ") if each
        )
    return file("recipe.toml", text)


MEANS = (
    file("own.py", OWN_ENCODER),
    recipe('store = "none"', "resize size='8x8'", "model target='own:Means'; batch=5"),
)

GEOMETRY = recipe(
    'store = "png"; seed = 3; variants = 2',
    "pad margin=2; fill=[9, 8, 7]",
    "random_rotation degrees=30; interpolation='bilinear'; expand=true",
    "random_affine degrees=10; translate=[0.1, 0.1]; scale=[0.8, 1.2]; shear=[-5, 5]",
    "random_perspective distortion_scale=0.3; p=0.7",
    "elastic alpha=5.0; sigma=2.0",
    "random_crop size=20; padding=1",
    "vflip p=0.5",
    "letterbox size=22",
)
COLOURS = recipe(
    'store = "png"; seed = 4; variants = 2',
    "color_jitter brightness=0.4; contrast=0.4; saturation=0.4; hue=0.1",
    "gaussian_blur sigma=[0.5, 1.5]",
    "photometric_distort",
    "autocontrast p=0.5",
    "equalize p=0.2",
    "posterize bits=5; p=0.5",
    "solarize threshold=200; p=0.3",
    "invert p=0.2",
    "adjust_sharpness factor=1.7; p=0.5",
    "gaussian_noise",
    "salt_and_pepper",
    "channel_permutation p=0.3",
    "channel_dropout p=0.2",
    "grayscale p=0.1",
    "jpeg quality=[40, 90]",
    "random_erasing p=0.5; value='random'",
)
POLICIES = recipe(
    'store = "png"; seed = 5; variants = 4',
    "resize size='20x20'",
    "choice steps=[{name='rand_augment'}, {name='trivial_augment'}, {name='auto_augment'}, "
    "{name='aug_mix'}]",
    "maybe p=0.5; steps=[{name='hflip'}, {name='rotate', angle=90}]",
)

CLEAN = (
    "--kind text --text-field body --strip-html --unicode NFKC --strip-control-chars "
    "--whitespace --redact email,ip,phone "
)
CLEAN += (
    "--min-chars 20 --filter-quality gopher --filter-quality c4 --filter-quality fineweb "
    "--max-rejects 100%"
)

TRAIN = "tokenizer train in tokenizer.json --vocab-size 320 --workers 0"

UPDATED = "convert in out --store source --split train=0.7,val=0.3 --samples-per-shard 5"
LINES = "convert in out --kind table --samples-per-shard 6"
KEYED = "--key-field id --split train=0.5,val=0.5 --shuffle 1 --samples-per-shard 5"
LARGE = "--shuffle 5 --split train=0.8,val=0.2 --seed 3 --shard-size 2MiB"
NEAR = "--duplicates near:0.8 --samples-per-shard 5"
MOVED = "--resize 30 --crop 20x14 --flip 0.5 --seed 2 --store png --samples-per-shard 4"

FORMS = ("parquet", "webdataset", "tfrecord", "tfds", "mds", "array-record", "files")
"""Forms of export that are converted back."""

FORM_NEEDS = {
    "tfrecord": ("protobuf",),
    "tfds": ("protobuf",),
    "array-record": ("array_record", "protobuf"),
}

CASES = [
    # The first ones run in `make test` too.
    images("crops x photos", inputs.photos, CROPS),
    case(
        "concat blocks x texts",
        inputs.texts,
        "--tokenizer bytes --block-length 64 --split train=0.8,val=0.2 --samples-per-shard 20",
    ),
    case(
        "table x csv",
        inputs.csv_files,
        "--kind table --text-field body --label-field category --null-values NA",
    ),
    case("plain x parquet", inputs.parquet, "--shuffle 3 --samples-per-shard 7"),
    images("plain x webdataset", inputs.webdataset, "--samples-per-shard 4", "zlib", "zstandard"),
    images("boxes moved x coco", inputs.coco, f"--labels coco:in/instances.json {MOVED}"),
    # Images
    images("as they are x photos", inputs.photos, "--samples-per-shard 6"),
    images(
        "raw x photos",
        inputs.photos,
        "--resize 16 --crop 16x12 --store raw --samples-per-shard 5",
    ),
    Case("snapshot x photos", inputs.photos, (take_snapshot,), IMAGES, record="raw x photos"),
    images(
        "several blocks x photos", inputs.plain_photos, "--resize 600x600 --store raw --shuffle 2"
    ),
    images(
        "png zstd x photos",
        inputs.photos,
        "--resize 15x13 --store png --compression zstd:5 --truncated keep",
    ),
    images(
        "webp lz4 x photos",
        inputs.photos,
        "--crop 14 --store webp:80 --compression lz4 --max-pixels 1000",
    ),
    images("geometry x photos", inputs.photos, "--recipe recipe.toml", before=(GEOMETRY,)),
    images("colours x photos", inputs.photos, "--recipe recipe.toml", before=(COLOURS,)),
    images("policies x photos", inputs.photos, "--recipe recipe.toml", before=(POLICIES,)),
    images(
        "five crops, filters x photos",
        inputs.photos,
        "--step 'filter_size min_width=25' --step 'five_crop size=10' --store png",
    ),
    images(
        "own function x photos",
        inputs.plain_photos,
        "--transform own:darker",
        before=(file("own.py", OWN_STEP),),
    ),
    images("model of images x photos", inputs.plain_photos, "--recipe recipe.toml", before=MEANS),
    images(
        "labels.csv x photos",
        inputs.labelled_photos,
        "--null-values NA --samples-per-shard 3 --drop-columns count",
    ),
    images(
        "folders of splits x photos",
        inputs.split_photos,
        "--split folder --shuffle 2 --shard-size 4KiB",
    ),
    images("exact duplicates x photos", inputs.repeated_photos, "--duplicates exact --labels none"),
    images(
        "similar duplicates x photos",
        inputs.repeated_photos,
        "--duplicates similar:5 --labels none",
    ),
    # Annotations
    images(
        "all labels x coco",
        inputs.coco,
        "--labels coco:in/instances.json --labels coco:in/captions.json --boxes-outside clip",
    ),
    Case(
        "boxes x yolo",
        inputs.yolo,
        (f"convert in/images out --labels yolo:in/data.yaml --split folder {MOVED}",),
        (*IMAGES, "PyYAML"),
    ),
    images(
        "polygons x yolo",
        inputs.yolo_polygons,
        f"--labels yolo:in/labels --keep-objects center {MOVED}",
    ),
    images(
        "boxes and masks x voc",
        inputs.voc,
        "--labels voc:in --labels masks+ignore=255:in/SegmentationClass",
    ),
    images(
        "boxes and masks moved x voc",
        inputs.voc,
        f"--labels voc:in --labels masks:in/SegmentationClass {MOVED}",
    ),
    images("captions x photos", inputs.captions, "--labels captions:"),
    images("classes x imagenet", inputs.imagenet, "--labels imagenet:in"),
    images("objects x image folder", inputs.image_folder, MOVED),
    images("masks and objects moved x parquet", inputs.image_table, MOVED),
    # Text
    case(
        "files x texts", inputs.texts, "--split train=0.6,val=0.4 --shuffle 4 --samples-per-shard 4"
    ),
    case(
        "lines x compressed texts",
        inputs.packed_texts,
        "--record line --shuffle 1 --samples-per-shard 30",
        "zlib",
        "zstandard",
    ),
    case(
        "paragraphs x compressed texts",
        inputs.packed_texts,
        "--record paragraph --compression none",
        "zlib",
        "zstandard",
    ),
    case(
        "gbk x texts",
        partial(inputs.encoded_texts, encodings=("gbk",)),
        "--encoding gbk --record line",
    ),
    case(
        "detected encodings x texts",
        partial(inputs.encoded_texts, encodings=("gbk", "shift_jis", "cp1251", "utf-16")),
        "--encoding detect",
        "charset-normalizer",
    ),
    case("cleaned x crawl", inputs.dirty_texts, CLEAN, "selectolax", "regex", "unicode"),
    case(
        "words x crawl",
        inputs.dirty_texts,
        "--kind text --text-field body --lower-case --stop-words en --max-chars 400 "
        '--step \'replace pattern="[0-9]+" replacement="#"\'',
        "stopwordsiso",
        "unicode",
    ),
    *(
        case(
            f"{way} duplicates x texts",
            inputs.repeated_texts,
            f"--duplicates {way} --samples-per-shard 5",
        )
        for way in ("exact", "near:0.8", "line", "paragraph")
    ),
    case("words of Chinese x lines", inputs.chinese, "--record line --segment zh", "rjieba"),
    case(
        "best fit x texts",
        inputs.texts,
        "--tokenizer tokenizer.json --block-length 48 --pack bfd",
        "tokenizers",
        before=(TRAIN,),
    ),
    case(
        "documents x texts",
        inputs.texts,
        "--tokenizer bytes --pack none --block-length 50 --step 'lower_case'",
    ),
    case(
        "list of words x texts",
        inputs.texts,
        "--lower-case --tokenizer words.txt",
        before=(lambda: inputs.word_list(Path("words.txt")),),
    ),
    case(
        "sentencepiece x texts",
        inputs.texts,
        "--tokenizer a.model --block-length 32",
        "sentencepiece",
        before=(lambda: inputs.sentencepiece_model(Path("a.model")),),
    ),
    case(
        "tiktoken x texts",
        inputs.texts,
        "--tokenizer tiktoken:cl100k_base:x.tiktoken --pack none",
        "tiktoken",
        before=(lambda: inputs.tiktoken_ranks(Path("x.tiktoken")),),
    ),
    case(
        "chats x json lines",
        inputs.chats,
        "--tokenizer bytes --chat-template chatml --block-length 128",
        "jinja2",
    ),
    case(
        "model x texts",
        inputs.texts,
        "--recipe recipe.toml",
        before=(
            file("own.py", OWN_MODEL),
            recipe('kind = "text"', "model target='own:Lengths'; batch=3; arguments={factor=2}"),
        ),
    ),
    # Tables
    case(
        "columns x bare csv",
        inputs.bare_csv,
        "--columns id,words,good --delimiter ';' --encoding latin-1 --key-field id",
        "zlib",
    ),
    case("plain x json", inputs.json_files, "--samples-per-shard 5", "zstandard"),
    case(
        "drawn by key x json lines",
        inputs.json_lines,
        KEYED,
        "zlib",
    ),
    case("several blocks x large json lines", inputs.large_json_lines, LARGE, "zlib"),
    case(
        "no compression x large json lines",
        inputs.large_json_lines,
        "--compression none --shard-size 3MiB --shuffle none",
        "zlib",
    ),
    case(
        "best fit x large json lines",
        inputs.large_json_lines,
        "--tokenizer bytes --block-length 512 --pack bfd",
        "zlib",
    ),
    case(
        "schema x json lines",
        inputs.json_lines,
        "--kind table --schema id:string,count:int64,share:float64 --compression zstd:9",
        "zlib",
    ),
    case(
        "fields x parquet",
        inputs.parquet,
        "--fields name=id,share=share,tags=tags --compression lz4 --key-field id",
    ),
    case("plain x arrow", inputs.arrow, "--samples-per-shard 7"),
    # Formats of others
    images("plain x hugging face", inputs.hugging_face, "--samples-per-shard 4"),
    case("plain x saved to disk", inputs.saved_to_disk, "--samples-per-shard 4"),
    images(
        "fields x webdataset",
        inputs.webdataset,
        f"--fields image=jpg,label=cls,name=__key__ {MOVED}",
        "zlib",
        "zstandard",
    ),
    images("plain x mds", inputs.mds, "--samples-per-shard 5", "zstandard"),
    images("plain x tfrecord", inputs.tfrecord, "--samples-per-shard 5", "protobuf", "zlib"),
    images("plain x tfds", inputs.tfds, "--samples-per-shard 5", "protobuf"),
    images(
        "plain x array record",
        inputs.array_record,
        "--samples-per-shard 5",
        "array_record",
        "protobuf",
    ),
    case("plain x hdf5", inputs.hdf5, "--samples-per-shard 5", "h5py"),
    case("plain x npy", inputs.arrays, "--shuffle 2 --samples-per-shard 6"),
    case("plain x npz", inputs.structured_arrays, "--samples-per-shard 6"),
    images("plain x lmdb", inputs.lmdb, "--samples-per-shard 5", "lmdb"),
    case("plain x lance", inputs.lance, "--key-field id --samples-per-shard 5", "pylance"),
    case("plain x megatron", inputs.megatron, "--samples-per-shard 6"),
    images("plain x recordio", inputs.recordio, "--samples-per-shard 5"),
    # The same dataset in other ways
    images("two workers x photos", inputs.photos, f"{CROPS} --workers 2", record="crops x photos"),
    Case(
        "three parts x photos",
        inputs.photos,
        (*(f"convert in out {CROPS} --part {number}/3" for number in (2, 3, 1)), "finish out"),
        IMAGES,
        record="crops x photos",
    ),
    Case(
        "repaired x photos",
        inputs.photos,
        (f"convert in out {CROPS}", damage, "repair out"),
        IMAGES,
        record="crops x photos",
    ),
    Case(
        "overwritten x photos",
        inputs.photos,
        ("convert in out --samples-per-shard 3", f"convert in out {CROPS} --overwrite"),
        IMAGES,
        record="crops x photos",
    ),
    case(
        "two workers x json lines",
        inputs.json_lines,
        f"{KEYED} --workers 2",
        "zlib",
        record="drawn by key x json lines",
    ),
    Case(
        "parts x json lines",
        inputs.json_lines,
        (*(f"convert in out {KEYED} --part {number}/2" for number in (2, 1)), "finish out"),
        ("zlib",),
        record="drawn by key x json lines",
    ),
    case(
        "two workers x large json lines",
        inputs.large_json_lines,
        f"{LARGE} --workers 2",
        "zlib",
        record="several blocks x large json lines",
    ),
    case(
        "two workers x repeated texts",
        inputs.repeated_texts,
        f"{NEAR} --workers 2",
        record="near:0.8 duplicates x texts",
    ),
    # Datasets that change
    Case(
        "updated x photos",
        inputs.photos,
        (UPDATED, change_photos, f"{UPDATED} --update"),
        IMAGES,
        ("out", "out/generations/00001-*"),
    ),
    Case(
        "updated, compacted x photos",
        inputs.photos,
        (UPDATED, change_photos, f"{UPDATED} --update", "compact out"),
        IMAGES,
    ),
    Case(
        "pruned x photos",
        inputs.photos,
        (UPDATED, "prune out --key cat/0.jpg --key owl/2.png"),
        IMAGES,
    ),
    Case(
        "pruned, updated x photos",
        inputs.photos,
        (UPDATED, "prune out --key cat/0.jpg", change_photos, f"{UPDATED} --update"),
        IMAGES,
    ),
    Case(
        "updated x json lines",
        inputs.json_lines,
        (LINES, change_lines, f"{LINES} --update"),
        ("zlib",),
    ),
    Case(
        "pruned, compacted x json lines",
        inputs.json_lines,
        (LINES, "prune out --where 'count > 400'", "compact out"),
        ("zlib",),
    ),
    Case(
        "appended x texts",
        inputs.texts,
        ("convert in out --labels none", add_day, "convert more out --labels none --append"),
    ),
    # Written in Python
    Case("written x samples", lambda root: None, (write_samples,)),
    Case("written in parts x samples", lambda root: None, (write_parts,)),
    # Exports, and what comes back from them
    *(
        Case(
            f"{form} and back x photos",
            inputs.labelled_photos,
            (
                "convert in out --drop-columns note --samples-per-shard 4",
                f"export out form --to {form} --on-loss json",
                "convert form back",
            ),
            IMAGES + FORM_NEEDS.get(form, ()),
            ("form", "back"),
        )
        for form in FORMS
    ),
    Case(
        "webdataset of some x photos",
        inputs.photos,
        (
            "convert in out --resize 16x12 --store raw --samples-per-shard 5",
            "export out form --to webdataset --compression gzip --store jpeg:80 --rename label=l "
            "--where 'label == \"dog\"'",
        ),
        (*IMAGES, "zlib"),
        ("form",),
    ),
    Case(
        "tfrecord and back x json lines",
        inputs.json_lines,
        (
            LINES,
            "export out form --to tfrecord --compression gzip --on-loss json --columns "
            "text,count,tags",
            "convert form back",
        ),
        ("zlib", "protobuf"),
        ("form", "back"),
    ),
    Case(
        "coco and back x coco",
        inputs.coco,
        (
            "convert in out --labels coco:in/instances.json",
            "export out form --to coco",
            "convert form/train back --labels coco:form/annotations/instances_train.json",
        ),
        IMAGES,
        ("form", "back"),
    ),
    Case(
        "yolo and back x yolo",
        inputs.yolo,
        (
            "convert in/images out --labels yolo:in/data.yaml --split folder",
            "export out form --to yolo --on-loss drop",
            "convert form/images back --labels yolo:form/data.yaml --split folder",
        ),
        (*IMAGES, "PyYAML"),
        ("form", "back"),
    ),
    Case(
        "megatron and back x texts",
        inputs.texts,
        ("convert in out --tokenizer bytes", "export out form --to megatron", "convert form back"),
        (),
        ("form", "back"),
    ),
    Case(
        "nanogpt x texts",
        inputs.texts,
        ("convert in out --tokenizer bytes --block-length 64", "export out form --to nanogpt"),
        (),
        ("form",),
    ),
]

BY_NAME = {each.name: each for each in CASES}

UNSTEADY = {"plain x lance": ("files.arrow", "plan.arrow")}
"""Files that are not the same in every run, because the source is not: Lance puts random names and
the time into its manifest, so its size and its digest differ. Of these tables all columns but
`size` and `digest` count."""


# --- running and comparing ---


@cache
def versions() -> dict[str, str]:
    """Return the versions of all that decides the bytes of some case."""
    dists = {
        re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower(): each.version
        for each in metadata.distributions()
    }
    imaging = "pillow-simd" if "pillow-simd" in dists else "pillow"
    packages = {name for each in CASES for name in each.needs} | set(ALL)
    found = {name: dists.get(name.lower().replace("_", "-"), "none") for name in packages}
    found |= {
        "machine": platform.machine(),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "unicode": unicodedata.unidata_version,
        "imaging": f"{imaging} {dists.get(imaging, 'none')}",
        "libjpeg-turbo": features.version("libjpeg_turbo") or "none",
        "libtiff": features.version("libtiff") or "none",
        "libwebp": features.version("webp") or "none",
        "pillow zlib": features.version("zlib") or "none",
    }
    return dict(sorted(found.items()))


@cache
def recorded() -> dict[str, dict[str, dict[str, str]]]:
    """Return the record: versions, and by case the digests of files."""
    record: dict[str, dict[str, dict[str, str]]] = (
        json.loads(RECORD.read_text()) if RECORD.exists() else {}
    )
    return record


def save(name: str, found: dict[str, str]) -> None:
    """Put a case into the record, a line for each case."""
    record = recorded()
    record.setdefault("cases", {})[name] = found
    record["versions"] = versions()
    names = [each.name for each in CASES if each.name in record["cases"]]
    cases = ",\n".join(
        f"    {json.dumps(each)}: {json.dumps(record['cases'][each])}" for each in names
    )
    said = json.dumps(record["versions"], indent=4).replace("}", "  }")
    RECORD.write_text(f'{{\n  "versions": {said},\n  "cases": {{\n{cases}\n  }}\n}}\n')


def skip_unless_same_versions(chosen: Case) -> None:
    """Skip where a package of the case is another one than that of the record."""
    was, now = recorded().get("versions", {}), versions()
    for name in (*ALL, *chosen.needs):
        if was.get(name, "none") != now[name]:
            pytest.skip(f"{name} is {now[name]}, recorded with {was.get(name, 'none')}")


def digests(folder: Path, unsteady: Iterable[str] = ()) -> dict[str, str]:
    """Return the digest of SHA256SUMS, and of each file in it (its beginning), by what it is called,
    after a look at the files themselves."""
    tables, found, lines = tables_in(folder), {}, []
    for line in (tables / "SHA256SUMS").read_text().splitlines():
        said, name = line.split("  ", 1)
        assert hashlib.sha256((tables / name).read_bytes()).hexdigest() == said, name
        shard = re.fullmatch(rf"\.\./\.\./data/(.+)-{said[:16]}\.arrow", name)
        if name in unsteady:
            table = pa.ipc.open_file(str(tables / name)).read_all()
            steady = table.drop_columns([*{"size", "digest"} & {*table.column_names}]).to_pydict()
            said = hashlib.sha256(json.dumps(steady).encode()).hexdigest()
        lines.append(f"{said}  {name}\n")
        found[shard[1] if shard else name] = said[:8]
    return {"SHA256SUMS": hashlib.sha256("".join(lines).encode()).hexdigest(), **found}


def results_of(chosen: Case) -> dict[str, str]:
    """Run the steps of a case in this folder, and return the digests of what they leave."""
    chosen.make_source()
    for step in chosen.steps:
        if callable(step):
            step()
            continue
        words = shlex.split(step)
        if words[0] in ("convert", "export", "repair") and "--workers" not in words:
            words += ["--workers", "0"]
        assert run(words) == 0, f"{step}: see what it printed"
    unsteady = UNSTEADY.get(chosen.name, ())
    return {
        f"{name}/{file}": said
        for name in chosen.results
        for folder in Path().glob(name)
        for file, said in digests(folder, unsteady).items()
    }


def compare(chosen: Case, found: dict[str, str]) -> None:
    """Compare digests with the record of a case, and name the files that differ."""
    wanted = recorded()["cases"][chosen.record or chosen.name]
    differ = [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
    assert not differ, f"{chosen.name}: other bytes than recorded: {', '.join(differ)}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which commands run and find modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return tmp_path


@pytest.mark.thorough(after=6)
@pytest.mark.parametrize("chosen", CASES, ids=lambda chosen: chosen.name)
def test_a_conversion_writes_the_recorded_bytes(chosen, folder):
    if os.environ.get(RECORDING):
        found = results_of(chosen)
        if not chosen.record:
            save(chosen.name, found)
    else:
        skip_unless_same_versions(chosen)
        found = results_of(chosen)
    compare(chosen, found)


@pytest.mark.thorough
def test_a_process_of_its_own_writes_the_recorded_bytes(folder):
    chosen = BY_NAME["crops x photos"]
    skip_unless_same_versions(chosen)
    chosen.make_source()
    command = [sys.executable, "-m", "shardctl", *shlex.split(f"convert in out {CROPS}")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    compare(chosen, {f"out/{name}": said for name, said in digests(folder / "out").items()})


@pytest.fixture(params=["s3", "gs", "az"])
def place(request: pytest.FixtureRequest, object_server: ObjectServer) -> str:
    """The URL of an empty bucket of each kind of store."""
    if request.param == "az":
        return str(request.getfixturevalue("container"))
    return f"{request.param}://{new_bucket(object_server)}"


@pytest.mark.thorough
@pytest.mark.parametrize("from_store", [False, True], ids=["folder to store", "store to store"])
def test_a_store_gets_the_recorded_bytes(from_store, folder, place):
    chosen = BY_NAME["crops x photos"]
    skip_unless_same_versions(chosen)
    chosen.make_source()
    store = open_store(place)
    if from_store:
        for path in (folder / "in").rglob("*.*"):
            store.put(path.relative_to(folder).as_posix(), path)
        shutil.rmtree(folder / "in")
    source = f"{place}/in" if from_store else "in"
    assert run(shlex.split(f"convert {source} {place}/out {CROPS} --workers 0")) == 0
    for key in [entry.name for page in store.pages("out/") for entry in page]:
        inputs.write(folder / "got" / key, store.get(key).to_pybytes())
    compare(chosen, {f"out/{name}": said for name, said in digests(folder / "got/out").items()})


def test_every_case_is_recorded():
    assert list(recorded()["cases"]) == [each.name for each in CASES if not each.record]
    assert len(BY_NAME) == len(CASES)


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        raise SystemExit(__doc__)
    RECORD.unlink(missing_ok=True)
    variables = {**os.environ, RECORDING: "yes", "SHARDCTL_THOROUGH": "yes"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", __file__]
    raise SystemExit(
        subprocess.run(command, env=variables, cwd=Path(__file__).parents[2]).returncode
    )
