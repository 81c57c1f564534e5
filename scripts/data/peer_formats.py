"""Reads and writes images with the real libraries of other formats; run by their own Pythons (`make
interop`).

    python scripts/data/peer_formats.py write FORMAT PHOTOS OUT      python scripts/data/peer_formats.py read FORMAT FOLDER

The last line that it prints is JSON: `records`, and the `seconds` that the work took without
imports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARD_IMAGES = 1000

KEPT: list[Any] = []
"""What must not be collected: a library of operators goes with its object."""


def _photos(folder: Path) -> list[tuple[str, bytes, int]]:
    """Return the name, the bytes and a label of every photo."""
    return [
        (path.stem, path.read_bytes(), number % 10)
        for number, path in enumerate(sorted(folder.glob("*.jpg")))
    ]


def write_tar(photos: Path, out: Path) -> Callable[[], int]:
    import webdataset

    def work() -> int:
        with webdataset.ShardWriter(
            f"{out}/train-%05d.tar", maxcount=SHARD_IMAGES, verbose=0
        ) as sink:
            for name, data, label in _photos(photos):
                sink.write({"__key__": name, "jpg": data, "cls": label})
        return 0

    return work


def read_tar(folder: Path) -> Callable[[], int]:
    import webdataset

    urls = sorted(map(str, folder.glob("*.tar")))
    return lambda: sum(1 for _ in webdataset.WebDataset(urls, shardshuffle=False))


def write_tfrecord(photos: Path, out: Path) -> Callable[[], int]:
    import tensorflow as tf

    def work() -> int:
        found = _photos(photos)
        for first in range(0, len(found), SHARD_IMAGES):
            with tf.io.TFRecordWriter(f"{out}/train-{first // SHARD_IMAGES:05d}.tfrecord") as sink:
                for name, data, label in found[first : first + SHARD_IMAGES]:
                    feature = {
                        "key": tf.train.Feature(
                            bytes_list=tf.train.BytesList(value=[name.encode()])
                        ),
                        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
                        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    }
                    sink.write(
                        tf.train.Example(
                            features=tf.train.Features(feature=feature)
                        ).SerializeToString()
                    )
        return 0

    return work


def read_tfrecord(folder: Path) -> Callable[[], int]:
    import tensorflow as tf

    spec = {
        name: tf.io.FixedLenFeature([], type_)
        for name, type_ in (("key", tf.string), ("image", tf.string), ("label", tf.int64))
    }

    def work() -> int:
        files = sorted(map(str, folder.glob("*.tfrecord")))
        records = tf.data.TFRecordDataset(files).map(
            lambda data: tf.io.parse_single_example(data, spec)
        )
        return sum(1 for _ in records.as_numpy_iterator())

    return work


def write_parquet(photos: Path, out: Path) -> Callable[[], int]:
    import datasets

    def work() -> int:
        features = datasets.Features(
            {
                "key": datasets.Value("string"),
                "image": datasets.Image(),
                "label": datasets.Value("int64"),
            }
        )
        found = _photos(photos)
        for first in range(0, len(found), SHARD_IMAGES):
            rows = found[first : first + SHARD_IMAGES]
            columns = {
                "key": [name for name, _, _ in rows],
                "image": [{"bytes": data, "path": None} for _, data, _ in rows],
                "label": [label for _, _, label in rows],
            }
            datasets.Dataset.from_dict(columns, features).to_parquet(
                f"{out}/train-{first // SHARD_IMAGES:05d}.parquet"
            )
        return 0

    return work


def read_parquet(folder: Path) -> Callable[[], int]:
    import tempfile

    import datasets

    files = sorted(map(str, folder.glob("*.parquet")))

    def work() -> int:
        with tempfile.TemporaryDirectory() as cache:
            found = datasets.load_dataset(
                "parquet", data_files=files, split="train", cache_dir=cache
            )
            return sum(1 for _ in found.cast_column("image", datasets.Image(decode=False)))

    return work


def _stand_in_for_torchvision() -> None:
    """Let `streaming` be imported beside a PyTorch whose torchvision has no operators of its
    own."""
    import torch

    KEPT.append(torch.library.Library("torchvision", "DEF"))
    for name in ("nms", "qnms"):
        KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def write_mds(photos: Path, out: Path) -> Callable[[], int]:
    _stand_in_for_torchvision()
    from streaming import MDSWriter

    def work() -> int:
        columns = {"key": "str", "image": "bytes", "label": "int"}
        with MDSWriter(out=str(out), columns=columns, size_limit=1 << 25) as sink:
            for name, data, label in _photos(photos):
                sink.write({"key": name, "image": data, "label": label})
        return 0

    return work


def read_mds(folder: Path) -> Callable[[], int]:
    _stand_in_for_torchvision()
    from streaming import StreamingDataset

    def work() -> int:
        found = StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
        return sum(1 for _ in found)

    return work


def main() -> None:
    action, name, source, *rest = sys.argv[1:]
    arguments: list[Any] = [Path(source), *map(Path, rest)]
    for folder in arguments[1:]:
        folder.mkdir(parents=True, exist_ok=True)
    work = globals()[f"{action}_{name}"](*arguments)
    began = time.monotonic()
    records = work()
    print(json.dumps({"records": records, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
