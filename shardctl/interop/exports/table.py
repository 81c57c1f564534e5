"""The exports by their names: a new one is a file and a row. Little is imported: the command line
lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ExportFormat(NamedTuple):
    """A form of export, as far as `--help` knows it. Its module, which has the name of the export
    with _ for -, has the rest.

    `class_` is its class in that module. `writes` is a line about the files that it writes. `of`
    says what it holds: `samples`, `objects` of images, or `tokens`. `settings` are the fields of
    the class. Each has the words that it can be, the default first; a field that is True or False
    has none.
    """

    class_: str
    writes: str
    of: str = "samples"
    settings: Mapping[str, tuple[str, ...]] = {}


EXPORTS = {
    "parquet": ExportFormat(
        "Parquet",
        "data/SPLIT-00000-of-00007.parquet, as Hugging Face datasets reads it; LitData too",
        settings={"compression": ("zstd", "snappy", "none")},
    ),
    "webdataset": ExportFormat(
        "WebDataset",
        "SPLIT-00000.tar, as webdataset and Hugging Face datasets read it",
        settings={"compression": ("none", "gzip")},
    ),
    "tfrecord": ExportFormat(
        "TfRecord",
        "SPLIT-00000.tfrecord with tf.train.Examples, as TensorFlow reads it",
        settings={"compression": ("none", "gzip")},
    ),
    "tfds": ExportFormat(
        "Tfds",
        "a folder of TFRecords with features.json: "
        'tensorflow_datasets.builder_from_directory("OUT")',
    ),
    "mds": ExportFormat(
        "Mds", "SPLIT/shard.00000.mds and SPLIT/index.json, as MosaicML Streaming reads them"
    ),
    "array-record": ExportFormat(
        "ArrayRecord",
        "SPLIT-00000-of-00007.array_record with Examples, as Grain and TFDS read it by number",
        settings={"compression": ("none", "zstd")},
    ),
    "files": ExportFormat(
        "Files", "SPLIT/CLASS/NAME.jpg or SPLIT/NAME.txt, and SPLIT/metadata.jsonl (an ImageFolder)"
    ),
    "coco": ExportFormat(
        "Coco",
        "SPLIT/NAME.jpg, and annotations/instances_SPLIT.json with the objects of all images",
        of="objects",
    ),
    "yolo": ExportFormat(
        "Yolo",
        "images/SPLIT/NAME.jpg, labels/SPLIT/NAME.txt, and data.yaml, as Ultralytics reads them",
        of="objects",
        settings={"task": ("detect", "segment", "pose")},
    ),
    "megatron": ExportFormat(
        "Megatron",
        "SPLIT.bin and SPLIT.idx, as megatron-core reads them: --data-path OUT/train",
        of="tokens",
        settings={"eos": ()},
    ),
    "nanogpt": ExportFormat(
        "NanoGpt",
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
