"""How long it takes to open a very large dataset on a store, and to get the first batch of one rank
of many.

    python scripts/bench/bench_open_store.py [--shards 100000] [--samples 10000] [--runs 5] [--ranks
    1024] [--blocks 128]

All shards are the same small one under many names, of which the first 100 are on the store: the
first batch, in the order of the dataset, needs no others. The store is object_server.py on this
machine. Each run is a process of its own: the first one with an empty cache, the others with the
tables in it. "open" is `shardctl.open`, without the import; "first batch" is that of a loader for
rank 1 of --ranks after it. Requests by the log of the server; the anonymous memory of the process
(RssAnon).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from shardctl.format.shard import COMPRESSED_BLOCK_BYTES
from shardctl.system.stores import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from handmade import repeat_shard, write_dataset
from object_server import ObjectServer

URL = "s3://bench/out"
TABLES = ("manifest.json", "shards.arrow")

ONE_RUN = """
import json, re, sys, time
from pathlib import Path
import numpy, pyarrow, shardctl.loader.remote.open, shardctl.loader
url, cache, ranks = sys.argv[1], sys.argv[2] or False, int(sys.argv[3])
began = time.perf_counter()
dataset = shardctl.open(url, cache=cache)
opened = time.perf_counter()
batch = next(iter(dataset.loader(256, rank=1, world_size=ranks)))
first = time.perf_counter()
memory = int(re.findall(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024
assert len(batch["number"]) == 256
print(json.dumps({"open": opened - began, "first batch": first - opened, "MiB": memory}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument(
        "--blocks", type=int, default=128, help="in a shard: of 4 MiB in one of 512 MiB"
    )
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1024)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ObjectServer(chosen.latency) as server:
        root = Path(folder, "out")
        schema = pa.schema([("number", pa.int64())])
        write_dataset(
            root,
            schema,
            ((0,) for _ in range(chosen.samples)),
            chosen.samples,
            "zstd",
            sample_bytes=chosen.blocks * COMPRESSED_BLOCK_BYTES // chosen.samples,
        )
        repeat_shard(root, chosen.shards)
        os.environ.update(server.environment)
        server.make_bucket("bench")
        store = open_store(URL)
        with ThreadPoolExecutor(64) as pool:
            names = [*TABLES, *sorted(path.name for path in root.glob("many-*.arrow"))[:100]]
            list(pool.map(lambda name: store.put(name, root / name), names))
        sizes = {name: (root / name).stat().st_size for name in TABLES}
        print(
            f"{chosen.shards:,} shards, {chosen.shards * chosen.samples:,} samples; {sizes}",
            flush=True,
        )
        for cache in (str(Path(folder, "cache")), ""):
            runs = [run(server, cache, chosen.ranks) for _ in range(chosen.runs + 1)]
            report(
                "the first time, into a cache" if cache else "without a cache",
                runs[:1] if cache else runs,
            )
            if cache:
                report("with the tables in the cache", runs[1:])


def run(server: ObjectServer, cache: str, ranks: int) -> dict[str, float]:
    server.clear()
    done = subprocess.run(
        [sys.executable, "-c", ONE_RUN, URL, cache, str(ranks)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {**json.loads(done.stdout), "requests": len(server.log())}


def report(what: str, runs: list[dict[str, float]]) -> None:
    middle = {name: statistics.median(each[name] for each in runs) for name in runs[0]}
    spread = f"{min(each['open'] for each in runs):.2f} to {max(each['open'] for each in runs):.2f}"
    times = f"open {middle['open']:.2f} s ({spread}), first batch {middle['first batch']:.2f} s"
    print(
        f"{what:30} {times}, {middle['requests']:.0f} requests, {middle['MiB']:.0f} MiB", flush=True
    )


if __name__ == "__main__":
    main()
