"""The exports by their names, and what can be chosen of one: columns, splits, settings. A new form
is a file and a row.

Little is imported: the command line lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardctl.system import arguments
from shardctl.system.options import Off, Text, ValueType, Word, option


class ExportFormat(NamedTuple):
    """A form of export, as far as `--help` knows it.

    `export` is `module:Class` in this folder, which has the rest. `writes` is a line about the files that it writes. `of`
    says what it holds: `samples`, `objects` of images, or `tokens`. `settings` are the fields of
    the class. Each has the words that it can be, the default first; a field that is True or False
    has none.
    """

    export: str
    writes: str
    of: str = "samples"
    settings: Mapping[str, tuple[str, ...]] = {}


EXPORTS = {
    "parquet": ExportFormat(
        "parquet:Parquet",
        "data/SPLIT-00000-of-00007.parquet, as Hugging Face datasets reads it; LitData too",
        settings={"compression": ("zstd", "snappy", "none")},
    ),
    "webdataset": ExportFormat(
        "webdataset:WebDataset",
        "SPLIT-00000.tar, as webdataset and Hugging Face datasets read it",
        settings={"compression": ("none", "gzip")},
    ),
    "tfrecord": ExportFormat(
        "examples:TfRecord",
        "SPLIT-00000.tfrecord with tf.train.Examples, as TensorFlow reads it",
        settings={"compression": ("none", "gzip")},
    ),
    "tfds": ExportFormat(
        "tfds:Tfds",
        "a folder of TFRecords with features.json: "
        'tensorflow_datasets.builder_from_directory("OUT")',
    ),
    "mds": ExportFormat(
        "mds:Mds", "SPLIT/shard.00000.mds and SPLIT/index.json, as MosaicML Streaming reads them"
    ),
    "array-record": ExportFormat(
        "examples:ArrayRecord",
        "SPLIT-00000-of-00007.array_record with Examples, as Grain and TFDS read it by number",
        settings={"compression": ("none", "zstd")},
    ),
    "files": ExportFormat(
        "files:Files",
        "SPLIT/CLASS/NAME.jpg or SPLIT/NAME.txt, and SPLIT/metadata.jsonl (an ImageFolder)",
    ),
    "coco": ExportFormat(
        "coco:Coco",
        "SPLIT/NAME.jpg, and annotations/instances_SPLIT.json with the objects of all images",
        of="objects",
    ),
    "yolo": ExportFormat(
        "yolo:Yolo",
        "images/SPLIT/NAME.jpg, labels/SPLIT/NAME.txt, and data.yaml, as Ultralytics reads them",
        of="objects",
        settings={"task": ("detect", "segment", "pose")},
    ),
    "megatron": ExportFormat(
        "token_files:Megatron",
        "SPLIT.bin and SPLIT.idx, as megatron-core reads them: --data-path OUT/train",
        of="tokens",
        settings={"eos": ()},
    ),
    "nanogpt": ExportFormat(
        "token_files:NanoGpt",
        "SPLIT.bin, bare uint16, as nanoGPT's train.py reads train.bin and val.bin",
        of="tokens",
        settings={"eos": ()},
    ),
}


def made_of(what: str) -> list[str]:
    """Return the names of the exports that are made of samples, objects or tokens."""
    return [name for name, form in EXPORTS.items() if form.of == what]


def that_have(setting: str) -> list[str]:
    """Return the names of the exports that have a setting."""
    return [name for name, form in EXPORTS.items() if setting in form.settings]


def words_of(setting: str) -> str:
    """Say which words a setting can be in each export that has it."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name in that_have(setting):
        names.setdefault(EXPORTS[name].settings[setting], []).append(name)
    return " ".join(
        f"{', '.join(each)}: {', '.join([f'{default} (default)', *others])}."
        for (default, *others), each in names.items()
    )


class Columns(ValueType):
    """Names of columns: with commas between them on the command line, a list in Python."""

    def of_text(self, given: str) -> list[str]:
        """Return the names."""
        return [name.strip() for name in given.split(",") if name.strip()]

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a list of names."""
        arguments.names(name, value)


class NewNames(ValueType):
    """Other names of columns: COLUMN=NAME, several times, on the command line, a dict in Python."""

    repeats = True

    def of_text(self, given: tuple[str, ...]) -> dict[str, str]:
        """Return the new names by the old ones. Raises ValueError."""
        names = {}
        for value in given:
            name, _, new = value.partition("=")
            if not (name and new) or "=" in new:
                raise ValueError(f"{value!r} is not COLUMN=NAME; give the option again for each")
            names[name] = new
        return names

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a dict of strings."""
        for column, new in arguments.mapping(name, value).items():
            Text().check(column, new)


@dataclass(frozen=True)
class Choice:
    """What the user chose: one split or all (None), some columns, other names for them, a condition
    on samples, how raw images are stored (`keep`, `png`, `jpeg:Q`; None: as suits the form), and
    what becomes of columns that the form cannot hold."""

    split: str | None = option(
        Text(),
        None,
        "Export this split only.  [default: all]",
        metavar="NAME",
    )
    columns: Sequence[str] | None = option(
        Columns(), None, "Export these columns only, and the key.  [default: all]", metavar="A,B,…"
    )
    rename: Mapping[str, str] = option(
        NewNames(),
        dict,
        "Write the column A under the name B. May be given several times.",
        metavar="A=B",
    )
    where: str | None = option(
        Text(),
        None,
        "Export the samples that match a condition: 'label == \"cat\" and width > 500'.",
        metavar="EXPR",
    )
    store: str | None = option(
        Text(),
        None,
        "How raw images are written; encoded ones stay.  [default: png where the form has no "
        "arrays]",
        metavar="keep|png|jpeg:Q",
    )
    on_loss: str = option(
        Word("fail", "json", "drop"),
        "fail",
        "Columns that the form cannot hold: an error, JSON text, or left out; "
        f"{' and '.join(made_of('objects'))} have no JSON text, and drop parts of objects.",
        shows_default=True,
    )


@dataclass(frozen=True)
class FormSettings:
    """The settings that some form has, None where nothing is said. The class of a form checks those
    that it has."""

    compression: str | None = option(Text(), None, words_of("compression"), metavar="NAME")
    eos: bool | None = option(
        Off(),
        None,
        f"{', '.join(that_have('eos'))}: add no end-of-text token to documents without it.",
        spelling="--no-eos",
    )
    task: str | None = option(
        Text(),
        None,
        f"{', '.join(that_have('task'))}: detect (boxes, the default), segment (polygons) or pose "
        "(keypoints).",
        metavar="NAME",
    )
