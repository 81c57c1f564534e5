"""Random histories of a dataset on an object store: writers and readers that are killed, and a
store with faults.

A history converts, replaces and updates one dataset, in parts and by several converters at once,
while readers with a cache read it. Half of all runs are killed or interrupted, at a random time,
after a random number of writes, or beside the commit; each is run again until it is done. About 1 %
of the requests are refused, reset, cut off, slow, or done and not answered. After each step: the
dataset has the bytes of a fresh local conversion (after updates: the same samples), and nothing is
left over on the store. What a reader has read whole is one dataset that was there, and its cache is
never larger than its limit. Run by `scripts/torture/torture.py store`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from killing import STOPPED, await_time, stop
from PIL import Image
from torture_store_readers import (
    LIMIT,
    READ,
    Readers,
    State,
    WrongError,
    check_events,
    refuse_locks,
    samples_of,
    size_of,
)
from torture_updates import Kind, Source

import shardctl
from shardctl.errors import ShardctlError
from shardctl.format.names import CHECKSUMS, MANIFEST, STAGING, UPDATE
from shardctl.loader.dataset import Dataset
from shardctl.system.stores import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from object_server import ObjectServer

STEPS = 3
"""Steps of a history."""

SHARE = 0.01
"""Share of the requests that each kind of fault befalls."""

FAULTS: dict[str, dict[str, Any]] = {
    "503": {},
    "reset": {},
    "cut": {"size": 20},
    "lost": {},
    "slow": {"seconds": 0.4},
}

RUN = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1)
from shardctl.making.commit import store_target
from shardctl.system.store_lease import LeaseTiming
store_target.PACE = LeaseTiming(heartbeat=0.2, stale=2, ask=0.1)
from shardctl.cli import main
main()
"""
"""shardctl with a quick pace: the lease of one that was killed counts as left behind after 2 s,
instead of 30."""

COMMAND = [sys.executable, "-c", RUN]

RECIPES = {
    "raw": ("--store", "raw", "--resize", "40", "--crop", "32", "--samples-per-shard", "7"),
    "jpeg": ("--store", "jpeg:80", "--resize", "24x24", "--samples-per-shard", "4"),
    "large": (
        "--store",
        "raw",
        "--resize",
        "420x420",
        "--samples-per-shard",
        "20",
        "--compression",
        "none",
    ),
}
"""Options of conversions. The shards of `large` are of more than 8 MiB: they are uploaded in
parts."""

SPLIT = ("--split", "train=0.7,val=0.3")

STOPS = (
    "SIGKILL",
    "SIGKILL to all",
    "SIGKILL to worker",
    "SIGINT",
    "SIGINT to all",
    "SIGTERM",
)

OVERTAKEN = ("stood still for so long", "another dataset was put there meanwhile")
"""What a writer may say whose work another one has done meanwhile: run again, it ends well."""


def make_photos(folder: Path) -> list[Path]:
    """Make 60 tiny images."""
    folder.mkdir()
    made = []
    for number in range(60):
        pixels = np.random.default_rng(number).integers(0, 255, (6, 8, 3), dtype=np.uint8)
        made.append(folder / f"{number}.jpg")
        Image.fromarray(pixels).resize((64, 48)).save(made[-1], quality=90)
    return made


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
            process = subprocess.Popen(
                [*COMMAND, *words], stdout=out, stderr=err, start_new_session=True
            )
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
        chosen = rng.choice(STOPS)
        if not stop(process, chosen):
            return None
        self.count(f"writer: {chosen}")
        self.by_force |= chosen.startswith("SIGKILL")
        return chosen

    def _await_moment(self, process: subprocess.Popen[bytes], rng: random.Random) -> None:
        """Wait for a random time, for a random number of writes, or for the commit, and some writes
        more."""
        kind = rng.choice(["time", "writes", "commit"])
        if kind == "time":
            await_time(process, rng, 4)
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
            if (
                ended.code == 3
                and overtaken < 6
                and any(said in ended.errors + ended.output for said in OVERTAKEN)
            ):
                self.count("overtaken")
                continue
            said = f"{ended.output}{ended.errors}"
            raise WrongError(f"{shown(words)}: exit code {ended.code} after {ended.signal}: {said}")


def shown(words: list[str]) -> str:
    return " ".join(["shardctl", *words])


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
        self.uploads = self.unknown = 0
        self.perhaps: list[State] = []
        self.is_updated = self.is_abandoned = False

    def run(self) -> None:
        """Raises WrongError."""
        rng = self.rng
        cache = None if rng.random() < 0.2 else self.scratch / "cache"
        limit = rng.choice([None, 1 << 18, 1 << 20, 8 << 20])
        self.order_faults()
        with Readers(self.runner.count, self.url, self.scratch, cache, limit, self.seed) as readers:
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
                self.read_once(cache, limit, [self.there, *self.perhaps])
            refuse_locks(cache)

    def order_faults(self) -> None:
        for number, (kind, given) in enumerate(FAULTS.items()):
            self.server.fault(kind, share=SHARE, seed=self.rng.randrange(1 << 30) + number, **given)

    def read_once(self, cache: Path, limit: int | None, there: list[State]) -> None:
        """Read with the cache that killed readers have left."""
        stop = self.scratch / "stop"
        stop.touch()
        words = [*READ, self.url, str(cache), str("" if limit is None else limit), "1", str(stop)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
        events = [json.loads(line) for line in ran.stdout.splitlines()]
        if ran.returncode or all(events[-1].get("samples") != state.samples for state in there):
            raise WrongError(
                f"a fresh reader with the same cache: exit code {ran.returncode} "
                f"{ran.stdout[:2000]} {ran.stderr}"
            )
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
                self.perhaps = expected  # it may have been stopped after its commit
                with self.without_faults():
                    samples = self.samples() if self.commits else {}
                if any(state.samples == samples for state in expected):
                    self.recipe = recipe  # an update of it is one with these options
                return
            if ended.code:
                raise WrongError(f"exit code {ended.code}: {ended.errors}")
        elif kind in ("parts", "update in parts"):
            self.in_parts(recipe, how)
        elif kind in ("several", "several updates"):
            self.together(
                [self.convert(rng.choice(recipes), how) for _ in range(rng.randint(2, 3))]
            )
        else:
            self.runner.until_done(self.convert(recipe, how), rng, rng.randint(0, 3))
        self.is_updated = is_update
        self.is_abandoned = False
        self.settle(expected)

    def convert(self, recipe: str, how: list[str]) -> list[str]:
        workers = ["--workers", self.rng.choice("0122")]
        return [
            "convert",
            str(self.source.root),
            self.url,
            *RECIPES[recipe],
            *SPLIT,
            *how,
            *workers,
        ]

    def in_parts(self, recipe: str, how: list[str]) -> None:
        count = self.rng.randint(2, 4)
        parts = [
            [*self.convert(recipe, how), "--part", f"{number}/{count}"]
            for number in range(1, count + 1)
        ]
        self.together(parts[:-1])
        if self.rng.random() < 0.3:
            early = self.runner.once(["finish", self.url], self.rng, False)
            # fewer shards than parts were to be built: nothing was missing
            if early.code == 0 and "--update" in how:
                self.runner.count("finished early and whole")
            elif early.code == 0 or "are missing" not in early.errors:
                raise WrongError(
                    f"finish of some parts: exit code {early.code}: {early.output} {early.errors}"
                )
        self.together(parts[-1:])
        self.runner.until_done(["finish", self.url], self.rng, self.rng.choice([0, 1, 1, 2]))

    def together(self, commands: list[list[str]]) -> None:
        """Run commands at the same time, each until it ends well."""
        faults: list[BaseException] = []

        def run(words: list[str], seed: int) -> None:
            rng = random.Random(seed)
            try:
                self.runner.until_done(words, rng, rng.choice([0, 0, 1, 2]))
            except BaseException as error:  # noqa: BLE001 - raised below
                faults.append(error)

        threads = [
            threading.Thread(target=run, args=(words, self.rng.randrange(1 << 30)))
            for words in commands
        ]
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
        words = [
            "convert",
            str(self.source.root),
            str(fresh),
            *RECIPES[recipe],
            *SPLIT,
            "--workers",
            "0",
        ]
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
                raise WrongError(
                    f"the dataset has other samples than a fresh local conversion: {len(samples)}"
                )
        self.recipe = found.recipe
        self.there, self.perhaps = found, []
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
        log, until = self.server.log(), time.monotonic() + 5
        # a slow one of a killed process may still take effect
        while any(entry["status"] is None and entry["fault"] == "slow" for entry in log):
            if time.monotonic() > until:
                break
            time.sleep(0.05)
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
        there = {entry.name: entry for page in store.pages() for entry in page}
        left = [key for key in there if key.startswith(f"{STAGING}/")]
        if left:
            raise WrongError(f"left over: {left}")
        manifest = json.loads(store.get(MANIFEST).to_pybytes())
        folders = [each["path"] for each in manifest["history"] if "path" in each]
        if len(folders) > 2:
            raise WrongError(f"there are {len(folders)} generations: {folders}")
        belong = {MANIFEST}
        for folder in folders:
            belong |= self.whole(store, folder)
        if belong != set(there):
            raise WrongError(f"belongs to nothing, or is missing: {sorted(belong ^ set(there))}")
        sums = store.get(f"{folders[-1]}{CHECKSUMS}").to_pybytes()
        if not self.is_updated and sums != expected.sums:
            raise WrongError(
                f"{CHECKSUMS} is not that of a local "
                f"conversion:\n{sums.decode()}\n{expected.sums.decode()}"
            )
        splits = {split["name"]: split["samples"] for split in manifest["splits"]}
        if splits != expected.splits:
            raise WrongError(f"splits {splits}, of a local conversion {expected.splits}")
        self.check_uploads()

    def whole(self, store: Any, folder: str) -> set[str]:
        """Return the keys of a generation, having hashed every one."""
        try:
            sums = store.get(f"{folder}{CHECKSUMS}").to_pybytes().decode()
            update = json.loads(store.get(f"{folder}{MANIFEST}").to_pybytes())["update"]
            digests = {
                f"{folder}{UPDATE}": update["sha256"],
                f"{folder}{CHECKSUMS}": hashlib.sha256(sums.encode()).hexdigest(),
            }
            for digest, name in (line.split("  ", 1) for line in sums.splitlines()):
                digests[os.path.normpath(f"{folder}{name}")] = digest
            for key, digest in digests.items():
                if hashlib.sha256(store.get(key)).hexdigest() != digest:
                    raise WrongError(f"{key} is not what {CHECKSUMS} says")
        except ShardctlError as error:
            raise WrongError(f"{folder} is not whole: {error}") from error
        return {*digests, f"{folder}{MANIFEST}"}

    def check_uploads(self) -> None:
        """Make sure that nobody has left an upload in parts who could know of it."""
        with urllib.request.urlopen(
            f"{self.server.address}/{self.bucket}?uploads", timeout=60
        ) as answer:
            count = answer.read().count(b"<Upload>")
        unknown = sum(
            entry["method"] == "INITIATE" and entry["fault"] in ("lost", "cut")
            for entry in self.log
        )
        if count - self.uploads > unknown - self.unknown and not self.runner.by_force:
            raise WrongError(
                f"{count - self.uploads} uploads in parts are left, and nobody was killed"
            )
        self.counts["uploads left"] += count - self.uploads
        self.uploads, self.unknown, self.runner.by_force = count, unknown, False


STEPS_LATER = [
    "overwrite",
    "overwrite",
    "update",
    "update",
    "parts",
    "update in parts",
    "several",
    "several updates",
]
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
                kept = (
                    Path(before.get("TMPDIR") or tempfile.gettempdir())
                    / f"torture-store-{number}.log"
                )
                kept.write_text("".join(f"{json.dumps(entry)}\n" for entry in history.log))
                said = error if isinstance(error, WrongError) else repr(error)
                raise SystemExit(
                    f"history {number}, {history.steps}: {said}\n{dict(counts)}\n"
                    f"the requests are in {kept}; to repeat it: scripts/torture/torture.py store "
                    f"--times 1 --seed {number}"
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
