"""How fast the loader reads from a store, beside the network itself; and from its cache, beside a
local dataset.

    python scripts/bench/bench_store.py [--images 4000] [--runs 5] [--latency 0.03] [--bandwidth
    16e6 200e6] [--json FILE]
        [--only CONTENDER …]

The store is scripts/data/object_server.py on this machine, with a latency and a bandwidth as given:
the figures are of the loader, not of a real store. The server uses the processor too. The dataset
has JPEG images of 256 x 256, some 75 kB each, stored as they are: blocks of 4 MiB. The loader draws
from 64 blocks at a time: with few images, hardly any block is used before all of them are here.

Over the network: `bare` is a loop of ranged GETs of the same blocks with the same client, 64 at a
time; `bytes` the loader that hands over the stored bytes; `decoded` the loader with decoding and a
crop of 224; `filling` the same while it fills a cache. From the cache: `cached` is the second
epoch, `local` the same dataset as files. Peers read the same images in their own form, decoded and
cropped in the same way, with two workers and an empty cache, in the environment .interop/torch
(`make interop`); scripts/bench/store_peers/tfdata_peer.py says how to make that of tf.data.
Contenders take turns, round after round; figures are medians, in MB/s of what is stored.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg

import shardctl
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.stretches import extents_of
from shardctl.loader.blocks.fetching import AT_ONCE
from shardctl.system.stores import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from handmade import write_dataset
from object_server import ObjectServer

HERE = Path(__file__).resolve().parent
INTEROP = Path(os.environ.get("SHARDCTL_INTEROP", HERE.parent.parent / ".interop"))
BATCH = 256
BUCKET = "bench"
URL = f"s3://{BUCKET}/out"
ROWS = pa.schema([("key", pa.string()), ("image", ENCODED_IMAGE)])


@dataclass(frozen=True)
class Scene:
    """What the contenders read: the images as files and as a dataset, and a folder for what they
    write."""

    root: Path
    stored: int
    scratch: Path
    server: ObjectServer

    def emptied(self, name: str) -> Path:
        """Return a folder that is not there."""
        folder = self.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder


Contender = Callable[[Scene], float]
"""Reads all samples once and returns the seconds."""


def bare(scene: Scene) -> float:
    """Read every block by itself, with as many requests at a time as the loader makes."""
    store = open_store(URL)
    blocks = []
    for path in sorted(scene.root.glob("train-*.arrow")):
        found = extents_of(path.read_bytes(), path.stat().st_size)
        blocks += [
            (path.name, *place)
            for place in zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
        ]
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        total = sum(pool.map(lambda block: store.get(*block).size, blocks))
    assert total > scene.stored * 0.99
    return time.perf_counter() - began


def epoch_of(place: str | Path, cache: Path | bool, **options: Any) -> float:
    """Read a dataset once, from opening it on."""
    began = time.perf_counter()
    loader = shardctl.open(place, cache=cache).loader(
        BATCH, shuffle="window", columns=["image"], reuse=True, **options
    )
    assert sum(len(batch["image"]) for batch in loader) == len(loader.stream)
    return time.perf_counter() - began


CROP: dict[str, Any] = {"crop": 224}

NETWORK: dict[str, Contender] = {
    "bare": bare,
    "bytes": lambda scene: epoch_of(URL, False, decode=False),
    "decoded": lambda scene: epoch_of(URL, False, **CROP),
    "filling": lambda scene: epoch_of(URL, scene.emptied("filling"), **CROP),
}

CACHED: dict[str, Contender] = {
    "cached": lambda scene: epoch_of(URL, scene.scratch / "kept", **CROP),
    "local": lambda scene: epoch_of(scene.root, False, **CROP),
    "cached bytes": lambda scene: epoch_of(URL, scene.scratch / "kept", decode=False),
    "local bytes": lambda scene: epoch_of(scene.root, False, decode=False),
}

PEERS = {"streaming": "torch", "litdata": "torch", "webdataset": "torch", "tfdata": "tensorflow-io"}
"""Peers, and the environment below .interop in which each runs.

Each is a program in store_peers: `make SOURCE FOLDER` writes its form of the images; `read ADDRESS
BUCKET CACHE` reads it once from the server, and prints the number of images and the seconds.
"""


def peer(name: str) -> Contender:
    """Return a contender that reads another tool's form of the images with that tool."""

    def run(scene: Scene) -> float:
        cache = scene.emptied(f"{name}-cache")
        done = subprocess.run(
            [
                _python(name),
                str(HERE / "store_peers" / f"{name}_peer.py"),
                "read",
                scene.server.address,
                BUCKET,
                str(cache),
            ],
            env={**os.environ, "S3_ENDPOINT_URL": scene.server.address},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"exit code {done.returncode}")
        images, seconds = done.stdout.split()[-2:]
        assert int(images) == len(shardctl.open(scene.root)), f"{name} read {images} images"
        return float(seconds)

    return run


def _python(name: str) -> str:
    return str(INTEROP / PEERS[name] / "bin" / "python")


def prepare_peer(name: str, scene: Scene, images: Path) -> None:
    """Write a peer's form of the images, and put it on the server. Raises CalledProcessError,
    FileNotFoundError."""
    folder = scene.emptied(f"{name}-form")
    subprocess.run(
        [
            _python(name),
            str(HERE / "store_peers" / f"{name}_peer.py"),
            "make",
            str(images),
            str(folder),
        ],
        check=True,
    )
    store = open_store(f"s3://{BUCKET}/{name}")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path)


def make_images(folder: Path, count: int) -> None:
    """Write JPEG images of 256 x 256 with soft shapes and noise: some 75 kB each."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        soft = np.kron(rng.integers(0, 256, (16, 16, 3)), np.ones((16, 16, 1)))
        pixels = np.clip(soft + rng.normal(0, 24, (256, 256, 3)), 0, 255).astype(np.uint8)
        (folder / f"{number:05d}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, quality=90))


def take_turns(contenders: dict[str, Contender], scene: Scene, runs: int) -> dict[str, list[float]]:
    """Run each contender once in every round, and return their rates in MB/s. One that fails is
    said so, and left out."""
    rates: dict[str, list[float]] = {}
    failed: set[str] = set()
    for _ in range(runs):
        for name, contender in contenders.items():
            if name in failed:
                continue
            try:
                rates.setdefault(name, []).append(scene.stored / 1e6 / contender(scene))
            except (RuntimeError, AssertionError, OSError) as error:
                print(f"  {name}: {error}", file=sys.stderr)
                failed.add(name)
    return {name: found for name, found in rates.items() if name not in failed}


def print_rates(title: str, rates: dict[str, list[float]], reference: str) -> None:
    print(title)
    base = statistics.median(rates[reference]) if reference in rates else None
    for name, found in rates.items():
        middle = statistics.median(found)
        share = f"  {middle / base:6.1%} of {reference}" if base and name != reference else ""
        print(f"  {name:<14} {middle:>9,.1f} MB/s  ({min(found):,.1f} to {max(found):,.1f}){share}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds")
    parser.add_argument(
        "--bandwidth", type=float, nargs="+", default=[16e6, 200e6], help="bytes per second"
    )
    parser.add_argument("--only", nargs="+", choices=[*NETWORK, *CACHED, *PEERS])
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        make_images(scratch / "images", chosen.images)
        root = scratch / "out"
        rows = (
            (path.name, (path.read_bytes(), path.name))
            for path in sorted((scratch / "images").iterdir())
        )
        size = sum(path.stat().st_size for path in (scratch / "images").iterdir()) // chosen.images
        write_dataset(
            root, ROWS, rows, max(1, chosen.images // 16), sample_bytes=size, shape=(256, 256, 3)
        )
        stored = sum(path.stat().st_size for path in root.glob("train-*.arrow"))
        print(f"{chosen.images} images, {stored / 1e6:.1f} MB")
        for bandwidth in chosen.bandwidth:
            with ObjectServer(chosen.latency, bandwidth) as server:
                os.environ.update(server.environment)
                server.make_bucket(BUCKET)
                scene = Scene(root, stored, scratch, server)
                store = open_store(URL)
                for path in root.iterdir():
                    store.put(path.name, path)
                contenders = dict(NETWORK)
                for name in PEERS:
                    if chosen.only and name not in chosen.only:
                        continue
                    try:
                        prepare_peer(name, scene, scratch / "images")
                        contenders[name] = peer(name)
                    except (OSError, subprocess.CalledProcessError) as error:
                        print(f"  {name}: {error}", file=sys.stderr)
                wanted = {
                    name: each
                    for name, each in contenders.items()
                    if not chosen.only or name in chosen.only
                }
                rates = take_turns(wanted, scene, chosen.runs)
                title = f"{bandwidth / 1e6:g} MB/s, {chosen.latency * 1e3:g} ms"
                print_rates(title, rates, "bare")
                record[title] = rates
                cached = {
                    name: each
                    for name, each in CACHED.items()
                    if not chosen.only or name in chosen.only
                }
                if cached and bandwidth == chosen.bandwidth[-1]:
                    epoch_of(URL, scratch / "kept", decode=False)
                    rates = take_turns(cached, scene, chosen.runs)
                    print_rates("the second epoch", rates, "local")
                    record["second epoch"] = rates
    if chosen.json:
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
