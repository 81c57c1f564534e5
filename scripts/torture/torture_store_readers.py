"""Readers of a dataset on a store, as processes that are killed, and what they must find. For
torture_store.py."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import hashlib
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import shardctl
from shardctl.errors import DatasetError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.names import CHECKSUMS

MAKING: list[tuple[int, int | None]] = [(1, None), (3, None)] * 4 + [(2, 2)]
"""The threads and the processes that make batches. Processes take a second to start."""

READ = [sys.executable, __file__]

LIMIT = 150.0
"""Seconds after which a process counts as one that hangs: one takes 2 to 5, and waits some more for
the others."""

FORGOTTEN = re.compile(
    "no such shard|no such file|replaced in the store|replaced by another dataset"
)
"""What a reader may say whose dataset was replaced twice."""


class WrongError(Exception):
    """The first thing that is not as it must be."""


def samples_of(batches: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return a digest of all values of each sample, by key."""
    found: dict[str, str] = {}
    for batch in batches:
        for row, key in enumerate(batch["key"]):
            digest = hashlib.sha256()
            for name in sorted(batch):
                value = np.asarray(batch[name][row])
                digest.update(f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes())
            if found.setdefault(str(key), digest.hexdigest()[:20]) != digest.hexdigest()[:20]:
                raise WrongError(f"{key} is there twice")
    return found


@dataclass(frozen=True)
class State:
    """A dataset that may be there: its SHA256SUMS, the samples by key, and how many each split
    has."""

    recipe: str
    sums: bytes
    samples: dict[str, str]
    splits: dict[str, int]

    @classmethod
    def of(cls, recipe: str, root: Path) -> State:
        ds = shardctl.open(root)
        splits = {split.name: split.samples for split in ds.manifest.splits}
        sums = dataset_in(root).path(CHECKSUMS).read_bytes()
        return cls(recipe, sums, samples_of(ds.loader(16, threads=1)), splits)


# --- a reader, as a process


def read(url: str, cache: str, limit: str, seed: int, stop: Path) -> None:
    """Open the dataset and read an epoch of it, over and over; print what was found, a line of JSON
    each."""
    rng = random.Random(seed)
    options = (
        {"cache": cache, "cache_limit": int(limit) if limit else None}
        if cache
        else {"cache": False}
    )
    while True:
        say(event="opening")
        is_open = False
        try:
            ds = shardctl.open(url, **options)
            is_open = True
            say(event="opened", base=ds.manifest.generation.path)
            threads, processes = rng.choice(MAKING)
            epoch = ds.loader(
                rng.choice([3, 8]),
                shuffle=True,
                seed=rng.randrange(99),
                threads=threads,
                processes=processes,
            )
            say(event="read", samples=samples_of(epoch))
            epoch.close()
            del epoch, ds
        except DatasetError as error:
            absent = not is_open and "no dataset (there is no manifest.json)" in str(error)
            say(event="absent" if absent else "failed", said=f"{type(error).__name__}: {error}")
        if stop.exists():
            return
        time.sleep(rng.uniform(0, 0.3))


def say(**event: Any) -> None:
    print(json.dumps({**event, "time": time.monotonic()}), flush=True)


# --- readers beside


class Readers:
    """Processes that read the dataset while others write it. Now and then one is killed, and
    started again."""

    def __init__(
        self,
        count: Callable[[str], None],
        url: str,
        scratch: Path,
        cache: Path | None,
        limit: int | None,
        seed: int,
    ) -> None:
        self._count, self._rng = count, random.Random(f"readers {seed}")
        self._stop, self._scratch = scratch / "stop", scratch
        self._words = [url, str(cache or ""), str("" if limit is None else limit)]
        self._cache, self._limit, self.most = cache, limit, 0
        # each with what it says of errors
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._number = 0
        self._ended = threading.Event()
        self._wrong: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._stir, self._watch_cache)]

    def __enter__(self) -> Readers:
        for _ in range(self._rng.randint(1, 2)):
            self._start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for process, _said in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _start(self) -> None:
        self._number += 1
        with (
            open(self._scratch / f"reader-{self._number}", "wb") as out,
            open(f"{out.name}.err", "wb") as err,
        ):
            words = [*READ, *self._words, str(self._rng.randrange(999)), str(self._stop)]
            self._running.append((subprocess.Popen(words, stdout=out, stderr=err), Path(err.name)))

    def _stir(self) -> None:
        while not self._wrong and not self._ended.wait(self._rng.uniform(1, 6)):
            place = self._rng.randrange(len(self._running))
            process, said = self._running[place]
            kind = self._rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            if process.poll() is None:
                process.send_signal(kind)
                self._count(f"reader: {kind.name}")
                self._join(process, said, kind)
            else:
                self._wrong.append(f"a reader ended by itself, with exit code {process.returncode}")
                return
            del self._running[place]
            self._start()

    def _join(
        self, process: subprocess.Popen[bytes], said: Path, kind: signal.Signals | None
    ) -> None:
        """Wait for the end of a reader. Python drops an interrupt that comes while it removes a
        weak reference: once more."""
        for _ in range(4):
            try:
                process.wait(LIMIT / 3)
            except subprocess.TimeoutExpired:
                if kind != signal.SIGINT or b"Exception ignored" not in said.read_bytes():
                    break
                self._count("interrupts that Python dropped")
                process.send_signal(kind)
            else:
                return
        process.send_signal(signal.SIGUSR1)  # it prints where it stands
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        process.kill()
        process.wait()
        self._wrong.append(f"a reader did not end after {kind.name if kind else 'it was told to'}")

    def _watch_cache(self) -> None:
        """Measure the cache. Where it seems too large, once more: it may change while it is
        walked."""
        while self._cache is not None and not self._ended.wait(0.02):
            sizes: list[int] = []
            while len(sizes) < 4 and (
                not sizes or (self._limit is not None and sizes[-1] > self._limit)
            ):
                sizes.append(size_of(self._cache))
            self.most = max(self.most, min(sizes))

    def finish(self) -> list[dict[str, Any]]:
        """Have the readers end, and return the events of each: of those that were killed too.
        Raises WrongError."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._stop.touch()
        for process, said in self._running:
            self._join(process, said, None)
            if process.returncode != 0:
                self._wrong.append(f"a reader ended with exit code {process.returncode}")
        self._running.clear()
        self._stop.unlink()
        events = []
        for number in range(1, self._number + 1):
            errors = (self._scratch / f"reader-{number}.err").read_text().strip()
            if self._wrong and errors:
                self._wrong.append(errors)
            lines = (self._scratch / f"reader-{number}").read_text().splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            events += [{**event, "reader": number} for event in whole]
        if self._wrong:
            raise WrongError("\n".join(self._wrong))
        if self._limit is not None and self.most > self._limit:
            raise WrongError(f"the cache had {self.most:,} bytes, its limit is {self._limit:,}")
        return events


def size_of(folder: Path) -> int:
    """Return how many bytes all below a folder take on the disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            with contextlib.suppress(OSError):
                total += os.lstat(path).st_blocks * 512 if path != str(folder) else 0
    return total


def refuse_locks(cache: Path) -> None:
    """Make sure that no file of a cache is locked."""
    for path in cache.rglob("*"):
        if not path.is_file():
            continue
        with open(path, "rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, whole)
            except OSError as error:
                raise WrongError(f"{path} is locked: {error}") from None


def check_events(
    events: list[dict[str, Any]], commits: list[tuple[float, str]], states: list[State]
) -> Counter[str]:
    """Make sure that readers found what was there, whole. `commits`: when each dataset took its
    place, and its folder."""
    bases = [base for _, base in commits]
    seen = Counter[str]()
    opening, base = 0.0, ""
    for event in events:
        kind, now = event["event"], event["time"]
        seen[kind] += 1
        where = f"reader {event['reader']}"
        if kind == "opening":
            opening, base = now, ""
        elif kind == "absent":
            if commits and commits[0][0] < opening:
                raise WrongError(
                    f"{where} found no dataset, though one was committed: {event['said']}"
                )
        elif kind == "opened":
            base = event["base"]
            if base not in bases:
                raise WrongError(f"{where} opened {base}, which was never committed")
            place = len(bases) - 1 - bases[::-1].index(base)
            if place + 1 < len(commits) and commits[place + 1][0] < opening:
                raise WrongError(f"{where} opened {base}, which had been replaced")
        elif kind == "read":
            if not any(event["samples"] == state.samples for state in states):
                likely = [
                    sum(state.samples.get(k) == v for k, v in event["samples"].items())
                    for state in states
                ]
                sizes = [len(state.samples) for state in states]
                raise WrongError(
                    f"{where} read {len(event['samples'])} samples of {base}, which are no dataset "
                    f"that was there: {likely} of"
                    f" {sizes} are alike"
                )
        elif kind == "failed":
            later = (
                [when for when, _ in commits[len(bases) - bases[::-1].index(base) :]]
                if base
                else [c[0] for c in commits]
            )
            replaced = sum(opening <= when <= now if not base else when <= now for when in later)
            if replaced < 2 or not FORGOTTEN.search(event["said"]):
                raise WrongError(
                    f"{where} could not read {base}, which was replaced {replaced} times: "
                    f"{event['said']}"
                )
    return seen


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    with contextlib.suppress(KeyboardInterrupt):
        url, cache, limit, seed, stop = sys.argv[1:6]
        read(url, cache, limit, int(seed), Path(stop))
