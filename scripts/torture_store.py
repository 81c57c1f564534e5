"""Random histories of a dataset on an object store: writers and readers that are killed, and a store with faults.

A history converts, replaces and updates one dataset, in parts and by several converters at once, while readers with a cache
read it. Half of all runs are killed or interrupted, at a random time, after a random number of writes, or beside the commit;
each is run again until it is done. About 1 % of the requests are refused, reset, cut off, slow, or done and not answered.
After each step: the dataset has the bytes of a fresh local conversion (after updates: the same samples), and nothing is left
over on the store. What a reader has read whole is one dataset that was there, and its cache is never larger than its limit.
Run by `scripts/torture.py store`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from object_server import ObjectServer
from PIL import Image
from processes import descendants
from torture_updates import Kind, Source

import shardctl
from shardctl.dataset import Dataset
from shardctl.errors import DatasetError, ShardctlError
from shardctl.stores import open_store
from shardctl.tables import CHECKSUMS, MANIFEST, STAGING, UPDATE

STEPS = 3
"""Steps of a history."""

LIMIT = 150.0
"""Seconds after which a process counts as one that hangs: one takes 2 to 5, and waits some more for the others."""

SHARE = 0.01
"""Share of the requests that each kind of fault befalls."""

FAULTS: dict[str, dict[str, Any]] = {"503": {}, "reset": {}, "cut": {"size": 20}, "lost": {}, "slow": {"seconds": 0.4}}

RUN = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1)
from shardctl.conversion.destinations import store
from shardctl.stores.lease import Pace
store.PACE = Pace(heartbeat=0.2, stale=2, ask=0.1)
from shardctl.cli import main
main()
"""
"""shardctl with a quick pace: the lease of one that was killed counts as left behind after 2 s, instead of 30."""

COMMAND = [sys.executable, "-c", RUN]
READ = [sys.executable, __file__]

RECIPES = {
    "raw": ("--store", "raw", "--resize", "40", "--crop", "32", "--samples-per-shard", "7"),
    "jpeg": ("--store", "jpeg:80", "--resize", "24x24", "--samples-per-shard", "4"),
    "large": ("--store", "raw", "--resize", "420x420", "--samples-per-shard", "20", "--compression", "none"),
}
"""Options of conversions. The shards of `large` are of more than 8 MiB: they are uploaded in parts."""

SPLIT = ("--split", "train=0.7,val=0.3")

STOPPED = {130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
"""Exit codes of a process that was stopped."""

OVERTAKEN = ("stood still for so long", "another dataset was put there meanwhile", "was replaced while it was read")
"""What a writer may say whose work another one has done meanwhile: run again, it ends well."""

FORGOTTEN = re.compile("no such shard|no such file|replaced in the store|replaced by another dataset")
"""What a reader may say whose dataset was replaced twice."""

DATASET = re.compile(r"[0-9a-f]{12}(-[0-9]+)?")


class WrongError(Exception):
    """The first thing that is not as it must be."""


def make_photos(folder: Path) -> list[Path]:
    """Make 60 tiny images."""
    folder.mkdir()
    made = []
    for number in range(60):
        pixels = np.random.default_rng(number).integers(0, 255, (6, 8, 3), dtype=np.uint8)
        made.append(folder / f"{number}.jpg")
        Image.fromarray(pixels).resize((64, 48)).save(made[-1], quality=90)
    return made


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
    """A dataset that may be there: its SHA256SUMS, the samples by key, and how many each split has."""

    recipe: str
    sums: bytes
    samples: dict[str, str]
    splits: dict[str, int]

    @classmethod
    def of(cls, recipe: str, root: Path) -> State:
        ds = shardctl.open(root)
        splits = {split.name: split.samples for split in ds.manifest.splits}
        return cls(recipe, (root / CHECKSUMS).read_bytes(), samples_of(ds.loader(16, threads=1)), splits)


# --- a reader, as a process


def read(url: str, cache: str, limit: str, seed: int, stop: Path) -> None:
    """Open the dataset and read an epoch of it, over and over; print what was found, a line of JSON each."""
    rng = random.Random(seed)
    options = {"cache": cache, "cache_limit": int(limit) if limit else None} if cache else {"cache": False}
    while True:
        say(event="opening")
        is_open = False
        try:
            ds = shardctl.open(url, **options)  # type: ignore[arg-type]
            is_open = True
            say(event="opened", base=ds.manifest.base)
            epoch = ds.loader(rng.choice([3, 8, 16]), shuffle=True, seed=rng.randrange(99), threads=rng.choice([1, 3]))
            say(event="read", samples=samples_of(epoch))
            del epoch, ds
        except DatasetError as error:
            absent = not is_open and "no dataset (there is no manifest.json)" in str(error)
            say(event="absent" if absent else "failed", said=f"{type(error).__name__}: {error}")
        if stop.exists():
            return
        time.sleep(rng.uniform(0, 0.3))


def say(**event: Any) -> None:
    print(json.dumps({**event, "time": time.monotonic()}), flush=True)


# --- processes that are killed


@dataclass
class Ended:
    """How a process ended: its exit code, what it printed, and whether it was killed by force."""

    code: int
    output: str
    errors: str
    signal: str | None


class Runner:
    """Runs commands against a server, and stops them at random."""

    def __init__(self, server: ObjectServer, counts: Counter[str]) -> None:
        self._server, self.counts = server, counts
        self._lock = threading.Lock()
        self.by_force = False

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def once(self, words: list[str], rng: random.Random, kills: bool) -> Ended:
        """Run a command to its end."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            deadline = time.monotonic() + LIMIT
            process = subprocess.Popen([*COMMAND, *words], stdout=out, stderr=err, start_new_session=True)
            try:
                sent = self._stop(process, rng) if kills else None
                process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)
                err.seek(0)
                raise WrongError(f"{shown(words)} hangs after {sent}: {err.read()}") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            err.seek(0)
            return Ended(process.returncode, out.read(), err.read(), sent)

    def _stop(self, process: subprocess.Popen[bytes], rng: random.Random) -> str | None:
        """Stop a process at a random moment; None if it ended before."""
        self._await_moment(process, rng)
        if process.poll() is not None:
            return None
        below = descendants(process.pid)  # the process that workers are forked from comes first
        chosen = rng.choice(["kill", "kill all", "kill a worker", "SIGINT", "SIGINT to all", "SIGTERM"])
        victims = [process.pid]
        if chosen in ("kill all", "SIGINT to all"):
            victims = [*below, process.pid]
        elif chosen == "kill a worker":
            victims = below[1:2] or below[:1]
        kind = signal.SIGKILL if chosen.startswith("kill") else signal.SIGTERM if chosen == "SIGTERM" else signal.SIGINT
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, kind)
        if victims:
            self.count(f"writer: {chosen}")
            self.by_force |= kind == signal.SIGKILL
        return chosen

    def _await_moment(self, process: subprocess.Popen[bytes], rng: random.Random) -> None:
        """Wait for a random time, for a random number of writes, or for the commit, and some writes more."""
        kind = rng.choice(["time", "writes", "commit"])
        if kind == "time":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 4))
            return
        writes, manifests = self._server.writes()
        more = rng.randint(1, 70) if kind == "writes" else rng.randint(0, 12)
        reached = False
        ending = time.monotonic() + LIMIT / 2
        while process.poll() is None and time.monotonic() < ending:
            now = self._server.writes()
            if not reached and (kind == "writes" or now[1] > manifests):
                reached, writes = True, writes if kind == "writes" else now[0]
            if reached and now[0] >= writes + more:
                break
            time.sleep(0.003)
        time.sleep(rng.uniform(0, 0.02))

    def until_done(self, words: list[str], rng: random.Random, kills: int) -> Ended:
        """Run a command again and again until it ends well, and stop it so many times before."""
        overtaken = 0
        while True:
            ended = self.once(words, rng, kills > 0)
            kills -= 1
            if ended.code == 0:
                return ended
            if ended.code in STOPPED and ended.signal:
                continue
            overtaken += 1
            if ended.code == 3 and overtaken < 6 and any(said in ended.errors + ended.output for said in OVERTAKEN):
                self.count("overtaken")
                continue
            said = f"{ended.output}{ended.errors}"
            raise WrongError(f"{shown(words)}: exit code {ended.code} after {ended.signal}: {said}")


def shown(words: list[str]) -> str:
    return " ".join(["shardctl", *words])


# --- readers beside


class Readers:
    """Processes that read the dataset while others write it. Now and then one is killed, and started again."""

    def __init__(self, runner: Runner, url: str, scratch: Path, cache: Path | None, limit: int | None, seed: int) -> None:
        self._runner, self._rng = runner, random.Random(f"readers {seed}")
        self._stop, self._scratch = scratch / "stop", scratch
        self._words = [url, str(cache or ""), str("" if limit is None else limit)]
        self._cache, self._limit, self.most = cache, limit, 0
        self._running: list[subprocess.Popen[bytes]] = []
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
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _start(self) -> None:
        self._number += 1
        with open(self._scratch / f"reader-{self._number}", "wb") as out, open(f"{out.name}.err", "wb") as err:
            words = [*READ, *self._words, str(self._rng.randrange(999)), str(self._stop), err.name]
            self._running.append(subprocess.Popen(words, stdout=out, stderr=err))

    def _stir(self) -> None:
        while not self._wrong and not self._ended.wait(self._rng.uniform(1, 6)):
            place = self._rng.randrange(len(self._running))
            process = self._running[place]
            kind = self._rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            if process.poll() is None:
                process.send_signal(kind)
                self._runner.count(f"reader: {kind.name}")
                self._join(process, kind)
            else:
                self._wrong.append(f"a reader ended by itself, with exit code {process.returncode}")
                return
            del self._running[place]
            self._start()

    def _join(self, process: subprocess.Popen[bytes], kind: signal.Signals | None) -> None:
        """Wait for the end of a reader. Python drops an interrupt that comes while it removes a weak reference: once more."""
        for _ in range(4):
            try:
                process.wait(LIMIT / 10)
            except subprocess.TimeoutExpired:
                if kind != signal.SIGINT or "Exception ignored" not in Path(process.args[-1]).read_text():  # type: ignore[index]
                    break
                self._runner.count("interrupts that Python dropped")
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
        """Measure the cache. Where it seems too large, once more: it may change while it is walked."""
        while self._cache is not None and not self._ended.wait(0.02):
            sizes = []
            while len(sizes) < 4 and (not sizes or (self._limit is not None and sizes[-1] > self._limit)):
                sizes.append(size_of(self._cache))
            self.most = max(self.most, min(sizes))

    def finish(self) -> list[dict[str, Any]]:
        """Have the readers end, and return the events of each: of those that were killed too. Raises WrongError."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._stop.touch()
        for process in self._running:
            self._join(process, None)
            if process.returncode != 0:
                self._wrong.append(f"a reader ended with exit code {process.returncode}")
        self._running.clear()
        self._stop.unlink()
        events = []
        for number in range(1, self._number + 1):
            said = (self._scratch / f"reader-{number}.err").read_text().strip()
            if self._wrong and said:
                self._wrong.append(said)
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


def check_events(events: list[dict[str, Any]], commits: list[tuple[float, str]], states: list[State]) -> Counter[str]:
    """Make sure that readers found what was there, whole. `commits`: when each dataset took its place, and its folder."""
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
                raise WrongError(f"{where} found no dataset, though one was committed: {event['said']}")
        elif kind == "opened":
            base = event["base"]
            if base not in bases:
                raise WrongError(f"{where} opened {base}, which was never committed")
            place = len(bases) - 1 - bases[::-1].index(base)
            if place + 1 < len(commits) and commits[place + 1][0] < opening:
                raise WrongError(f"{where} opened {base}, which had been replaced")
        elif kind == "read":
            if not any(event["samples"] == state.samples for state in states):
                likely = [sum(state.samples.get(k) == v for k, v in event["samples"].items()) for state in states]
                sizes = [len(state.samples) for state in states]
                raise WrongError(
                    f"{where} read {len(event['samples'])} samples of {base}, which are no dataset that was there: {likely} of"
                    f" {sizes} are alike"
                )
        elif kind == "failed":
            later = [when for when, _ in commits[len(bases) - bases[::-1].index(base) :]] if base else [c[0] for c in commits]
            replaced = sum(opening <= when <= now if not base else when <= now for when in later)
            if replaced < 2 or not FORGOTTEN.search(event["said"]):
                raise WrongError(f"{where} could not read {base}, which was replaced {replaced} times: {event['said']}")
    return seen


# --- what is on the store


@dataclass
class History:
    """One history: a source that changes, the place of the dataset, and what may be there."""

    seed: int
    scratch: Path
    photos: list[Path]
    server: ObjectServer
    counts: Counter[str]
    there: State | None = None
    states: list[State] = field(default_factory=list)
    commits: list[tuple[float, str]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.bucket = self.server.make_bucket("bucket")
        self.url = f"s3://{self.bucket}/data/out"
        self.runner = Runner(self.server, self.counts)
        self.source = Source(self.scratch / "in", Kind("photos", ()), self.rng, self.photos)
        while len(self.source.files()) < 40:
            self.source.add()
        self.recipe, self.steps = "", []  # type: str, list[str]
        self.uploads = 0
        self.is_updated = self.is_abandoned = False

    def run(self) -> None:
        """Raises WrongError."""
        rng = self.rng
        cache = None if rng.random() < 0.2 else self.scratch / "cache"
        limit = rng.choice([None, 1 << 18, 1 << 20, 8 << 20])
        self.order_faults()
        with Readers(self.runner, self.url, self.scratch, cache, limit, self.seed) as readers:
            for _ in range(STEPS):
                self.step()
                self.counts["steps"] += 1
            events = readers.finish()
        self.note_log()
        for kind, count in check_events(events, self.commits, self.states).items():
            self.counts[f"readers {kind}"] += count
        if cache is not None:
            refuse_locks(cache)
            if self.there is not None:
                self.read_once(cache, limit, self.there)
            refuse_locks(cache)

    def order_faults(self) -> None:
        for number, (kind, given) in enumerate(FAULTS.items()):
            self.server.fault(kind, share=SHARE, seed=self.rng.randrange(1 << 30) + number, **given)

    def read_once(self, cache: Path, limit: int | None, there: State) -> None:
        """Read with the cache that killed readers have left."""
        stop = self.scratch / "stop"
        stop.touch()
        words = [*READ, self.url, str(cache), str("" if limit is None else limit), "1", str(stop)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
        events = [json.loads(line) for line in ran.stdout.splitlines()]
        if ran.returncode or events[-1].get("samples") != there.samples:
            raise WrongError(f"a fresh reader with the same cache: exit code {ran.returncode} {ran.stdout[:2000]} {ran.stderr}")
        if limit is not None and size_of(cache) > limit:
            raise WrongError(f"the cache has {size_of(cache):,} bytes, its limit is {limit:,}")

    # --- steps

    def step(self) -> None:
        """Do one thing to the dataset, and look at what is there."""
        rng, there = self.rng, bool(self.commits)
        kind = rng.choice(["convert", "parts", "several", "abandon"] if not there else STEPS_LATER)
        if self.is_abandoned and kind == "abandon":
            kind = "overwrite"
        is_update = kind in ("update", "update in parts", "several updates")
        recipe = self.recipe if is_update else rng.choice(list(RECIPES))
        if rng.random() < 0.7 or is_update:
            for _ in range(rng.randint(1, 4)):
                self.source.change()
        how = ["--update"] if is_update else ["--overwrite"] if there or self.is_abandoned else []
        self.steps.append(f"{kind} {recipe}")
        recipes = [recipe]
        if kind == "several" and how and rng.random() < 0.5:
            recipes = [recipe, rng.choice(list(RECIPES))]
        expected = [self.expect(each) for each in dict.fromkeys(recipes)]
        self.states += expected
        if kind == "abandon":
            self.is_abandoned = True
            ended = self.runner.once(self.convert(recipe, how), rng, True)
            if ended.code in STOPPED:
                self.runner.count("abandoned")
                return
            if ended.code:
                raise WrongError(f"exit code {ended.code}: {ended.errors}")
        elif kind in ("parts", "update in parts"):
            self.in_parts(recipe, how)
        elif kind in ("several", "several updates"):
            self.together([self.convert(rng.choice(recipes), how) for _ in range(rng.randint(2, 3))])
        else:
            self.runner.until_done(self.convert(recipe, how), rng, rng.randint(0, 3))
        self.is_updated = is_update
        self.is_abandoned = False
        self.settle(expected)

    def convert(self, recipe: str, how: list[str]) -> list[str]:
        workers = ["--workers", self.rng.choice("0122")]
        return ["convert", str(self.source.root), self.url, *RECIPES[recipe], *SPLIT, *how, *workers]

    def in_parts(self, recipe: str, how: list[str]) -> None:
        count = self.rng.randint(2, 4)
        parts = [[*self.convert(recipe, how), "--part", f"{number}/{count}"] for number in range(1, count + 1)]
        self.together(parts[:-1])
        if self.rng.random() < 0.3:
            early = self.runner.once(["merge", self.url], self.rng, False)
            if early.code == 0 or "are missing" not in early.errors:
                raise WrongError(f"merge of some parts: exit code {early.code}: {early.output} {early.errors}")
        self.together(parts[-1:])
        self.runner.until_done(["merge", self.url], self.rng, self.rng.choice([0, 1, 1, 2]))

    def together(self, commands: list[list[str]]) -> None:
        """Run commands at the same time, each until it ends well."""
        faults: list[BaseException] = []

        def run(words: list[str], seed: int) -> None:
            rng = random.Random(seed)
            try:
                self.runner.until_done(words, rng, rng.choice([0, 0, 1, 2]))
            except BaseException as error:  # noqa: BLE001 - raised below
                faults.append(error)

        threads = [threading.Thread(target=run, args=(words, self.rng.randrange(1 << 30))) for words in commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def expect(self, recipe: str) -> State:
        """Return the dataset that a local conversion of the source as it is now makes."""
        fresh = self.scratch / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        words = ["convert", str(self.source.root), str(fresh), *RECIPES[recipe], *SPLIT, "--workers", "0"]
        ended = self.runner.once(words, self.rng, False)
        if ended.code:
            raise WrongError(f"{shown(words)}: exit code {ended.code}: {ended.errors}")
        return State.of(recipe, fresh)

    # --- what must be there

    def settle(self, expected: list[State]) -> None:
        """Have a converter find the dataset up to date, and look at all that is there."""
        with self.without_faults():
            samples = self.samples()
            found = next((state for state in expected if state.samples == samples), None)
            if found is None:
                raise WrongError(f"the dataset has other samples than a fresh local conversion: {len(samples)}")
        self.recipe = found.recipe
        self.there = found
        how = ["--update"] if self.is_updated else []
        ended = self.runner.until_done([*self.convert(self.recipe, how), "--json"], self.rng, 0)
        if json.loads(ended.output)["status"] != "up-to-date":
            raise WrongError(f"convert found the dataset not up to date: {ended.output}")
        with self.without_faults():
            self.check(found)

    @contextlib.contextmanager
    def without_faults(self) -> Iterator[None]:
        self.note_log()
        yield
        self.server.clear()
        self.order_faults()

    def note_log(self) -> None:
        """Take the requests so far, and the commits among them."""
        log = self.server.log()
        self.server.clear()
        self.log += log
        manifest, last = f"data/out/{MANIFEST}", ""
        for entry in log:
            if entry["fault"]:
                self.counts[f"fault {entry['fault']}"] += 1
            self.counts["requests"] += 1
            if entry["method"] not in ("PUT", "COMPLETE") or entry["status"] != 200:
                continue
            if entry["key"] == manifest:
                if not self.commits or self.commits[-1][1] != last:
                    self.commits.append((entry["time"], last))
                    self.counts["commits"] += 1
            elif entry["key"].endswith(f"/{MANIFEST}"):
                last = entry["key"].removeprefix("data/out/").removesuffix(MANIFEST)

    def samples(self) -> dict[str, str]:
        return samples_of(self.dataset().loader(16, threads=1))

    def dataset(self) -> Dataset:
        return shardctl.open(self.url, cache=False)

    def check(self, expected: State) -> None:
        """Look at every object."""
        store = open_store(self.url)
        there = {entry.key: entry for page in store.pages() for entry in page}
        left = [key for key in there if key.startswith(f"{STAGING}/")]
        if left:
            raise WrongError(f"left over: {left}")
        manifest = json.loads(store.get(MANIFEST).to_pybytes())
        folders = {key.split("/")[0] for key in there if "/" in key}
        if len(folders) > 2 or not all(map(DATASET.fullmatch, folders)):
            raise WrongError(f"there are {len(folders)} folders: {sorted(folders)}, the dataset is in {manifest['base']}")
        belong = {MANIFEST}
        for folder in folders:
            belong |= self.whole(store, folder)
        if belong != set(there):
            raise WrongError(f"belongs to nothing, or is missing: {sorted(belong ^ set(there))}")
        sums = store.get(f"{manifest['base']}{CHECKSUMS}").to_pybytes()
        if not self.is_updated and sums != expected.sums:
            raise WrongError(f"{CHECKSUMS} is not that of a local conversion:\n{sums.decode()}\n{expected.sums.decode()}")
        splits = {split["name"]: split["samples"] for split in manifest["splits"]}
        if splits != expected.splits:
            raise WrongError(f"splits {splits}, of a local conversion {expected.splits}")
        self.check_uploads()

    def whole(self, store: Any, folder: str) -> set[str]:
        """Return the keys of a dataset, having hashed every one."""
        try:
            sums = store.get(f"{folder}/{CHECKSUMS}").to_pybytes().decode()
            digests = {name: digest for digest, name in (line.split("  ", 1) for line in sums.splitlines())}
            update = json.loads(store.get(f"{folder}/{MANIFEST}").to_pybytes())["update"]
            digests |= {UPDATE: update["sha256"], CHECKSUMS: hashlib.sha256(sums.encode()).hexdigest()}
            for name, digest in digests.items():
                if hashlib.sha256(store.get(f"{folder}/{name}")).hexdigest() != digest:
                    raise WrongError(f"{folder}/{name} is not what {CHECKSUMS} says")
        except ShardctlError as error:
            raise WrongError(f"{folder} is not whole: {error}") from error
        return {f"{folder}/{name}" for name in (*digests, MANIFEST)}

    def check_uploads(self) -> None:
        """Make sure that nobody has left an upload in parts who could know of it."""
        with urllib.request.urlopen(f"{self.server.address}/{self.bucket}?uploads", timeout=60) as answer:
            count = answer.read().count(b"<Upload>")
        unknown = sum(entry["method"] == "INITIATE" and entry["fault"] in ("lost", "cut") for entry in self.log)
        if count > unknown and not self.runner.by_force:
            raise WrongError(f"{count} uploads in parts are left, and nobody was killed")
        self.counts["uploads left"] += count - self.uploads
        self.uploads = count


STEPS_LATER = ["overwrite", "overwrite", "update", "update", "parts", "update in parts", "several", "several updates"]
STEPS_LATER += ["abandon"]


def store(photos: list[Path], times: int, scratch: Path, seed: int) -> str:
    """Run the histories whose seeds are `seed` and those after it."""
    counts = Counter[str]()
    photos = photos or make_photos(scratch / "made")
    before = dict(os.environ)
    for number in range(seed, seed + times):
        folder = scratch / f"history-{number}"
        folder.mkdir()
        with ObjectServer(latency=random.Random(number).choice([0.0, 0.004, 0.015])) as server:
            os.environ.update({**server.environment, "TMPDIR": str(folder)})
            history = History(number, folder, photos, server, counts)
            started = time.monotonic()
            try:
                history.run()
            except Exception as error:
                with contextlib.suppress(OSError):
                    history.note_log()
                kept = Path(before.get("TMPDIR") or tempfile.gettempdir()) / f"torture-store-{number}.log"
                kept.write_text("".join(f"{json.dumps(entry)}\n" for entry in history.log))
                said = error if isinstance(error, WrongError) else repr(error)
                raise SystemExit(
                    f"history {number}, {history.steps}: {said}\n{dict(counts)}\n"
                    f"the requests are in {kept}; to repeat it: scripts/torture.py store --times 1 --seed {number}"
                ) from error
        counts["histories"] += 1
        took = f"in {time.monotonic() - started:.0f} s"
        print(f"history {number}: {', '.join(history.steps)} {took}", file=sys.stderr, flush=True)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder)
    kills = sum(count for what, count in counts.items() if what.startswith(("writer:", "reader:")))
    faults = sum(count for what, count in counts.items() if what.startswith("fault "))
    done = f"{counts['histories']} histories, {kills} kills, {faults} faults"
    return f"{done}: all as a local conversion, nothing left\n{dict(counts)}"


if __name__ == "__main__":
    import faulthandler

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with contextlib.suppress(KeyboardInterrupt):
        read(*sys.argv[1:4], int(sys.argv[4]), Path(sys.argv[5]))
