"""Datasets on the tests' object server, and what was asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from dataset_files import shard_in, shards_in
from handmade import write_dataset
from object_server import ObjectServer
from pictures import encoded
from PIL import Image

from shardctl.format.dataset_folder import dataset_in
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.stretches import extents_of
from shardctl.format.tables import ShardTable
from shardctl.system.stores import open_store

FIELDS = pa.schema(
    [
        ("key", pa.string()),
        ("label", pa.int64()),
        ("image", ENCODED_IMAGE),
        ("wide", pa.fixed_shape_tensor(pa.uint16(), [300])),
        ("tokens", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("score", pa.float32()),
        ("boxes", pa.list_(pa.list_(pa.float32(), 4))),
    ]
)


def png(number: int) -> tuple[bytes, str]:
    pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels)), "x.png"


def make(root: Path, compression: str = "none", samples: int = 120, seed: int = 0) -> Path:
    """Write a dataset of images, tokens, texts and boxes: 3 shards, blocks of 4 or 2 samples."""
    rows = (
        (
            f"k{n:03d}",
            n % 7,
            png(n + seed),
            np.full(300, n + seed, np.uint16),
            list(range(n * 37 % 90)),
            f"text of {n + seed} " * 5,
            None if n % 9 == 0 else n / 4,
            [[n, 1, 2, 3]] * (n % 3),
        )
        for n in range(samples)
    )
    size = 1_000_000 if compression == "none" else 500_000
    write_dataset(root, FIELDS, rows, 40, compression, sample_bytes=size, shape=(12, 12, 3))
    return root


def upload(root: Path, url: str) -> str:
    """Copy a dataset to a store, as any tool would, and return its URL."""
    store = open_store(url)
    for path in sorted(root.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(root)), path)
    return url


def key_of(root: Path, shard: str = "train-00001") -> str:
    """Return the key of the shard of a dataset that is called so, below its URL."""
    return shard_in(root, shard).relative_to(root).as_posix()


def blocks_of(root: Path) -> int:
    return len(ShardTable(dataset_in(root)).block_rows)


def block_reads(server: ObjectServer, root: Path) -> Counter[str]:
    """Return how often each block of a dataset was read from the server."""
    blocks = set()
    for path in shards_in(root):
        extents = extents_of(path.read_bytes(), path.stat().st_size)
        for start, length in zip(extents.starts.tolist(), extents.lengths.tolist(), strict=True):
            blocks.add(f"{path.name} bytes={start}-{start + length - 1}")
    asked = (
        f"{r['key'].rpartition('/')[2]} {r['range']}" for r in server.log() if r["method"] == "GET"
    )
    return Counter(each for each in asked if each in blocks)


def assert_each_block_once(server: ObjectServer, root: Path) -> None:
    """Fail unless each block of a dataset was read once from the server."""
    reads = block_reads(server, root)
    assert len(reads) == blocks_of(root)
    assert set(reads.values()) == {1}


def is_shard(key: str) -> bool:
    return "train-" in key


def same(ours: Any, theirs: Any) -> bool:
    """Return whether two values of batches are the same, in their types too."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, np.ndarray):
        nan = ours.dtype.kind == "f"
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs, equal_nan=nan)
    return bool(ours == theirs) or (ours != ours and theirs != theirs)


def all_same(ours: Iterable[Any], theirs: Iterable[Any]) -> bool:
    """Return whether two loaders give the same batches."""
    here, there = list(ours), list(theirs)
    return len(here) == len(there) and all(map(same, here, there))
