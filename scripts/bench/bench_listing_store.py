"""How fast the keys of a source on a store are listed for a plan, beside a bare listing with the
same client; and the memory.

    python scripts/bench/bench_listing_store.py --keys 1000000 --latency 0.03
    python scripts/bench/bench_listing_store.py --server 20000

The first makes the keys up in this process, in pages of 1,000 that take `latency` seconds each:
what it costs to get them is left out, and what is done with them is not. The second lists a bucket
of the server for tests. For each way of listing it prints keys per second, and the most memory that
this process has had by then: its own, without the pages of mapped files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shardctl.build.plan.listing import LabelRule, list_files
from shardctl.sources.files import SourceRoot, in_use, keys_of
from shardctl.sources.kinds import KINDS
from shardctl.system import stores
from shardctl.system.stores import open_store
from shardctl.system.stores.base import Entry
from shardctl.transforms.recipe import Recipe

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from object_server import ObjectServer

NAMES = {
    "classes": lambda number: f"in/{number // 1000:05}/photo-{number:09}.jpg",
    "flat": lambda number: f"in/photo-{number:09}.jpg",
}


class Generated:
    """A store of keys that are made when they are asked for, and that takes its time for each
    page."""

    url = "s3://generated"
    seeks = True

    def __init__(self, names: Callable[[int], str], count: int, latency: float) -> None:
        self._names, self._count, self._latency = names, count, latency

    def stat(self, key: str) -> None:
        """There is nothing beside the keys."""

    def pages(self, prefix: str = "", after: str = "") -> Iterator[list[Entry]]:
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._names(middle) <= after else (low, middle)
        for first in range(low, self._count, 1000):
            time.sleep(self._latency)
            numbers = range(first, min(self._count, first + 1000))
            yield [Entry(self._names(number), 100_000, f'"{number:032x}"') for number in numbers]


class Memory(threading.Thread):
    """The most anonymous memory of this process in MiB, looked at ten times a second. Linux."""

    most = 0.0

    def run(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            self.most = max(self.most, int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) / 1024)
            time.sleep(0.1)


def measure(store: Any, url: str) -> None:
    memory = Memory(daemon=True)
    memory.start()

    def report(what: str, count: int, began: float) -> None:
        seconds = time.perf_counter() - began
        rate = f"{count / seconds:>12,.0f} keys/s"
        print(
            f"{what:28} {count:>12,} keys {seconds:8.1f} s {rate} {memory.most:8.0f} MiB at most",
            flush=True,
        )

    began = time.perf_counter()
    report("a bare listing", sum(len(page) for page in store.pages("in/")), began)
    with in_use(), tempfile.TemporaryDirectory() as scratch:
        began, roots = time.perf_counter(), [SourceRoot(url)]
        report("listed in parallel, kept", len(keys_of(url)), began)
        reading = Recipe.reading_of({"kind": "image"})
        table = Path(scratch, "listing.arrow")
        listing = list_files(
            roots, KINDS["image"], reading, LabelRule.parse("folder"), table, lambda _: None
        )
        report("and the table of the plan", len(listing), began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--names", choices=NAMES, default="classes")
    parser.add_argument(
        "--server",
        type=int,
        metavar="KEYS",
        help="list a bucket of so many empty objects on the test server",
    )
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if chosen.server is None:
            store: Any = Generated(NAMES[chosen.names], chosen.keys, chosen.latency)
            stores.open_store = lambda _: store  # type: ignore[assignment]
            measure(store, "s3://generated/in")
            return
        server = stack.enter_context(ObjectServer(latency=chosen.latency))
        os.environ.update(server.environment)
        store = open_store(f"s3://{server.make_bucket('listed')}")
        with ThreadPoolExecutor(32) as pool:
            list(
                pool.map(
                    lambda number: store.put(NAMES[chosen.names](number), b"1"),
                    range(chosen.server),
                )
            )
        measure(store, "s3://listed/in")


if __name__ == "__main__":
    main()
