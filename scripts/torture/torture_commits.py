"""Writers that are killed at each step of a commit, on a disk, on one that neither links nor renames
folders, and on an object store; readers beside many commits; and a job whose parts are built one by
one beside other writers. Run by `scripts/torture/torture.py commits`, `generations` and `parts`.

A commit (docs/format.md, section 6) is nothing but changes of names below the dataset, or requests
to the store. A writer is killed right before each of them, and on a store right after each too. So
each of its steps is cut off, and each place between two of them. After a kill, the dataset has the
samples of before or after. The same command again then ends well, and leaves nothing that no named
generation names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from killing import CONVERT, SHARDCTL, await_file, content, done, run, sums_in
from PIL import Image
from torture_store import make_photos
from torture_store_readers import samples_of

import shardctl
import shardctl.cli
from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, MANIFEST, UPDATE
from shardctl.making.commit import store_target
from shardctl.system.folders import LocalFolder
from shardctl.system.store_lease import LeaseTiming
from shardctl.system.stores import open_store
from shardctl.system.stores.objects import Objects

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from object_server import ObjectServer

Samples = dict[str, str]
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}
FORK = multiprocessing.get_context("fork")


# --- a process of its own for each thing: none has the threads of another


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Call this in a process that is forked, and return its exit code, and what it returned."""
    taken, given = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: given.send(work()))
    process.start()
    given.close()
    found = None
    with contextlib.suppress(EOFError):
        found = taken.recv()
    process.join()
    return process.exitcode or 0, found


class Killed:
    """Counts changes, and kills this process at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def change(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_disk(self, root: Path) -> None:
        """Count before each change of a name below a folder."""
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT

        def hook(event: str, given: tuple[Any, ...]) -> None:
            if event in CHANGES or (event == "open" and (given[2] or 0) & writing):
                path = os.fsdecode(given[0]) if isinstance(given[0], str | bytes | Path) else "/"
                if path.startswith(str(root)) or not path.startswith("/"):
                    self.change()

        sys.addaudithook(hook)

    def on_store(self) -> None:
        """Count before and after each request that writes; objects are deleted one by one."""

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*given: Any) -> Any:
                self.change()
                made = call(*given)
                self.change()
                return made

            return counting

        for name in ("put", "create", "replace"):
            setattr(Objects, name, counted(getattr(Objects, name)))
        delete = counted(Objects._delete)
        Objects._delete = lambda own, keys: [delete(own, [key]) for key in keys]  # type: ignore[assignment, method-assign, return-value]


def refused(call: Callable[..., Any], *, of_folders: bool) -> Callable[..., Any]:
    """Return the call as a file system has it that does not know it, or not of folders."""

    def refusing(source: Any, *given: Any, **named: Any) -> Any:
        if not of_folders or Path(source).is_dir():
            raise PermissionError(1, "Operation not permitted")
        return call(source, *given, **named)

    return refusing


def plain_disk() -> AbstractContextManager[Any]:
    """Have this process work on a file system without links, on which no folder is renamed."""
    rename, replace = (refused(call, of_folders=True) for call in (os.rename, os.replace))
    return patch.multiple(
        os, link=refused(os.link, of_folders=False), rename=rename, replace=replace
    )


def shardctl_as_here(words: list[str], said: Path) -> int:
    """Run a command in this process, and return its exit code."""
    store_target.PACE = LeaseTiming(heartbeat=0.2, stale=1.5, ask=0.1)
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    return shardctl.cli.run(words)


# --- where datasets are


@dataclass
class Disk:
    """A folder with a dataset. `is_plain`: the file system knows no links."""

    root: Path
    is_plain: bool = False

    @property
    def name(self) -> str:
        """How the dataset is given to commands."""
        return str(self.root)

    def killed_at(self, at: int) -> Killed:
        killed = Killed(at)
        if self.is_plain:
            plain_disk().__enter__()
        killed.on_disk(self.root)
        return killed

    def copy_to(self, folder: Path) -> None:
        """Have all that is there in a folder, which is new."""
        shutil.rmtree(folder, ignore_errors=True)
        if self.root.exists():
            shutil.copytree(self.root, folder)

    def take(self, folder: Path) -> None:
        """Have nothing there but what is in a folder."""
        shutil.rmtree(self.root, ignore_errors=True)
        if folder.exists():
            shutil.copytree(folder, self.root)


@dataclass
class Stored:
    """A place on an object store."""

    name: str

    def killed_at(self, at: int) -> Killed:
        killed = Killed(at)
        killed.on_store()
        return killed

    def copy_to(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        store = open_store(self.name)
        for entry in [entry for page in store.pages() for entry in page]:
            path = folder / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.get(entry.name))

    def take(self, folder: Path) -> None:
        store = open_store(self.name)
        store.delete([entry.name for page in store.pages() for entry in page])
        for path in folder.rglob("*"):
            if path.is_file():
                store.put(path.relative_to(folder).as_posix(), path)


# --- what must be there


def samples_in(root: Path) -> Samples | None:
    """Return the samples of a dataset, None if there is none."""
    if not (root / MANIFEST).exists():
        return None
    return samples_of(shardctl.open(root).loader(16, threads=1))


def looked_at(root: Path) -> tuple[Samples | None, list[str], str]:
    """Return the samples in the folder of a dataset; what is wrong in it: each file is of a
    generation that the manifest names, and all of these are whole; and a digest of all bytes."""
    manifest, named, problems = Manifest.load(LocalFolder(root)), {MANIFEST}, list[str]()
    for each in (*manifest.kept, manifest.generation):
        named |= {f"{each.path}{name}" for name in (MANIFEST, UPDATE, CHECKSUMS)}
        for name, sha256 in sums_in(root / each.path).items():
            path = Path(os.path.normpath(root / each.path / name))
            named.add(str(path.relative_to(root)))
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                problems.append(f"{path} of generation {each.number} is lost or other bytes")
    there = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    there |= {f"{path}/" for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())}
    problems += [f"{name} is left over" for name in sorted(there - named)]
    digest = hashlib.sha256(repr(sorted(content(root).items())).encode()).hexdigest()
    return samples_in(root), problems, digest


def errors_in(root: Path) -> list[str]:
    """Return what `verify --level full` finds, but for files that are no part of the dataset."""
    found = shardctl.verify(root, "full").findings
    return [f"verify: {each.message}" for each in found if each.severity == "error"]


VERIFIED = set[str]()
"""Digests of what `verify --level full` has found whole."""


def problems_in(place: Disk | Stored, look: Path, step: Step) -> list[str]:
    """Return what is not as it must be after a step."""
    in_child(lambda: place.copy_to(look))
    samples, problems, digest = in_child(lambda: looked_at(look))[1] or (None, ["no dataset"], "")
    if samples != step.after:
        problems.append("then it has other samples")
    if digest not in VERIFIED:
        problems += in_child(lambda: errors_in(look))[1]
        VERIFIED.add(digest)
    if step.gone:
        problems += [f"{path} has the pruned sample" for path in holds(look, step.gone)]
    return problems


def holds(root: Path, wanted: bytes) -> list[str]:
    return [str(path) for path in root.rglob("*") if path.is_file() and wanted in path.read_bytes()]


@dataclass
class Step:
    """A command that changes a dataset: its words, the samples before and after it, and a folder
    with a copy of what is there before."""

    name: str
    words: list[str]
    copy: Path
    before: Samples | None
    after: Samples
    gone: bytes = b""


def steps_of(place: Disk | Stored, scratch: Path) -> list[Step]:
    """Make each dataset once."""
    source, look = scratch / "in", scratch / "look"
    photos = make_photos(scratch / "photos")
    source.mkdir()
    for photo in photos[:24]:
        shutil.copy2(photo, source)
    options = ["--samples-per-shard", "5", "--split", "train=0.7,val=0.3", "--workers", "0"]
    base = ["convert", str(source), place.name, *options]
    steps: list[Step] = []

    def add(name: str, words: list[str], gone: bytes = b"") -> None:
        copy = scratch / f"before-{name}"
        in_child(lambda: place.copy_to(copy))
        before = in_child(lambda: samples_in(copy))[1] if copy.exists() else None
        code, _ = in_child(lambda: sys.exit(shardctl_as_here(words, scratch / "said")))
        if code:
            raise SystemExit(f"{name}: exit code {code}: {(scratch / 'said').read_text()}")
        in_child(lambda: place.copy_to(look))
        after = in_child(lambda: samples_in(look))[1]
        steps.append(Step(name, words, copy, before, after, gone))

    add("first", base)
    for photo in photos[:6]:
        (source / photo.name).unlink()
    for photo in photos[6:8]:
        Image.open(photo).rotate(90).save(source / photo.name, quality=91)
    for photo in photos[40:46]:
        shutil.copy2(photo, source)
    add("update", [*base, "--update"])
    add("compact", ["compact", place.name])
    pruned = source / photos[41].name
    add("prune", ["prune", place.name, "--key", pruned.name], pruned.read_bytes())
    add("overwrite", [*base, "--store", "png", "--overwrite"])
    add("keep", [*base, "--store", "png", "--keep-generations", "0"])
    in_child(lambda: place.take(scratch / "nothing"))
    add("convert", base)
    return steps[1:]


def killed(place: Disk | Stored, scratch: Path, step: Step, at: int) -> tuple[str, list[str]]:
    """Kill a command at a change, and look at what is there then, and after the same command again.
    Return what was there, and what was wrong."""
    said, look = scratch / "said", scratch / "look"
    in_child(lambda: place.take(step.copy))

    def run() -> None:
        place.killed_at(at)
        sys.exit(shardctl_as_here(step.words, said))

    code, _ = in_child(run)
    if code != -signal.SIGKILL:
        return ("not reached", []) if code == 0 else ("failed", [f"{code}: {said.read_text()}"])
    in_child(lambda: place.copy_to(look))
    samples = in_child(lambda: samples_in(look))[1]
    found = "after" if samples == step.after else "before" if samples == step.before else "neither"
    problems = (
        ["the samples are neither those of before nor of after"] if found == "neither" else []
    )

    def next_one(words: list[str]) -> str:
        def run() -> None:
            if isinstance(place, Disk) and place.is_plain:
                plain_disk().__enter__()
            sys.exit(shardctl_as_here(words, said))

        code, _ = in_child(run)
        return f"then {words[0]} ended with exit code {code}: {said.read_text()}" if code else ""

    if at % 3 == 1 and samples is not None:
        problems += in_child(lambda: errors_in(look))[1]
    if at % 3 == 0 and samples is not None and step.name != "prune":  # another writer comes between
        problems += filter(None, [next_one(["compact", place.name])])
        in_child(lambda: place.copy_to(look))
        if in_child(lambda: samples_in(look))[1] != samples:
            problems.append("then compact has other samples")
    if failed := next_one(step.words):
        return found, [*problems, failed]
    return found, problems + problems_in(place, look, step)


def commits(_: Path, times: int, scratch: Path) -> str:
    """Kill each command at up to so many of its changes, everywhere."""
    with ObjectServer() as server:
        os.environ.update(server.environment)
        places: dict[str, Disk | Stored] = {
            "disk": Disk(scratch / "a" / "out"),
            "plain disk": Disk(scratch / "b" / "out", is_plain=True),
            "store": Stored(f"s3://{server.make_bucket('bucket')}/out"),
        }
        wrong = 0
        for where, place in places.items():
            (scratch / where).mkdir()
            for step in steps_of(place, scratch / where):
                wrong += cut_off(where, place, step, times, scratch / where)
    return f"{wrong} wrong in all"


def cut_off(where: str, place: Disk | Stored, step: Step, times: int, scratch: Path) -> int:
    """Kill a command at up to so many of its changes, and return how often something was wrong."""
    in_child(lambda: place.take(step.copy))

    def count() -> int:
        counting = place.killed_at(0)
        code = shardctl_as_here(step.words, scratch / "said")
        return counting.count if code == 0 else -code

    changes = in_child(count)[1]
    chosen = sorted(random.Random(0).sample(range(1, changes + 1), min(changes, times)))
    ended, wrong = Counter[str](), 0
    for at in chosen:
        found, problems = killed(place, scratch, step, at)
        ended[found] += 1
        wrong += bool(problems)
        for each in problems:
            print(f"{where}, {step.name}, {at}: {each}", file=sys.stderr, flush=True)
    print(
        f"{where}, {step.name}: killed at {len(chosen)} of {changes} changes: {dict(ended)}; "
        f"{wrong} wrong",
        flush=True,
    )
    return wrong


# --- readers beside many commits


def read_on(root: Path, log: Path, stop: Path, seed: int) -> None:
    """Read a dataset over and over, now and then slowly, and write down what was found."""
    rng = random.Random(seed)
    with open(log, "w") as file:
        while not stop.exists():
            number, found = 0, dict[str, Any]()
            try:
                ds = shardctl.open(root)
                number, slow = ds.manifest.generation.number, rng.choice([0, 0, 0.1, 0.8])
                if slow:  # each shard is opened when its turn comes
                    rows = rng.sample(range(len(ds)), len(ds))
                    batches = _slowly((ds.take([row]) for row in rows), slow)
                else:
                    processes = rng.choice([None, 1])
                    batches = ds.loader(4, shuffle=True, threads=2, processes=processes)
                found["samples"] = samples_of(batches)
            except DatasetError as error:
                found["said"] = str(error)
            file.write(json.dumps({"number": number, **found}) + "\n")


def _slowly(batches: Any, seconds: float) -> Iterator[Any]:
    for batch in batches:
        yield batch
        time.sleep(seconds)


def generations(_: Path, times: int, scratch: Path) -> str:
    """Commit so many generations while two processes read, and keep all of them, or one."""
    photos, lines = make_photos(scratch / "photos"), []
    for keep in (times, 1):
        rng, source, out = random.Random(keep), scratch / f"in-{keep}", scratch / f"out-{keep}"
        source.mkdir()
        for photo in photos[:24]:
            shutil.copy2(photo, source)
        stop, states = scratch / f"stop-{keep}", dict[int, Samples]()
        base = ["convert", str(source), str(out), "--samples-per-shard", "3", "--workers", "0"]
        base += ["--keep-generations", str(keep)]

        def commit(words: list[str], out: Path = out, states: dict[int, Samples] = states) -> None:
            code, _ = in_child(lambda: sys.exit(shardctl_as_here(words, scratch / "said")))
            if code:
                raise SystemExit(f"{words}: exit code {code}: {(scratch / 'said').read_text()}")
            number, samples = in_child(
                lambda: (Manifest.load(LocalFolder(out)).generation.number, samples_in(out))
            )[1]
            states[number] = samples

        commit(base)
        logs = [scratch / f"log-{keep}-{number}" for number in range(2)]
        readers = [
            FORK.Process(target=read_on, args=(out, log, stop, seed))
            for seed, log in enumerate(logs)
        ]
        for reader in readers:
            reader.start()
        for number in range(2, times + 1):
            victim = rng.choice(photos[:24])
            Image.open(victim).rotate(rng.choice([90, 180, 270])).save(source / victim.name)
            (source / rng.choice(photos[:24]).name).unlink(missing_ok=True)
            commit([*base, "--overwrite" if number % 10 == 0 else "--update"])
            if number % 7 == 0:
                commit(["compact", str(out)])
        stop.touch()
        for reader in readers:
            reader.join(120)
        seen, problems = Counter[str](), []
        for event in (json.loads(line) for log in logs for line in log.read_text().splitlines()):
            if "said" in event:
                swept = f"generation {event['number']} was swept" in event["said"]
                seen["swept" if swept else "failed"] += 1
                problems += [] if swept and keep == 1 else [f"  {event['said']}"]
            else:
                right = event["samples"] == states.get(event["number"])
                seen["right" if right else "other bytes"] += 1
        problems += [f"  a reader ended with {each.exitcode}" for each in readers if each.exitcode]
        there = len(in_child(lambda out=out: Manifest.load(LocalFolder(out)).kept)[1]) + 1
        problems += in_child(lambda out=out: looked_at(out)[1])[1]
        lines += [
            f"{len(states)} commits, {keep} kept: {there} there, read: {dict(seen)}",
            *problems,
        ]
    return "\n".join(lines)


# --- parts that wait, beside other writers


def in_data(out: Path) -> set[str]:
    return {path.name for path in (out / "data").iterdir() if path.suffix == ".arrow"}


def parts(_: Path, times: int, scratch: Path) -> str:
    """Build one of two parts, then the other, which stands still in the middle while other commands
    come: they refuse, or wait. The shards of the first part stay, also when others commit between
    the two, unless the job is one that only the dataset before could have had."""
    photos, ends, problems = make_photos(scratch / "photos"), Counter[str](), list[str]()
    source, out, fresh, base = (scratch / name for name in ("in", "out", "fresh", "base"))
    source.mkdir()
    for photo in photos[:30]:
        shutil.copy2(photo, source)
    options = ["--samples-per-shard", "3", "--workers", "1", "-q"]
    done([*CONVERT, source, base, *options])
    for photo in photos[:15]:
        Image.open(photo).rotate(90).save(source / photo.name)
    for trial in range(times):
        rng = random.Random(trial)
        how = ["--update"] if trial % 2 else ["--overwrite", "--store", "png"]
        for folder in (out, fresh):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, out)
        words = [*CONVERT, str(source), str(out), *options, *how]
        done([*CONVERT, source, fresh, *options, *how[1:]])
        others = {
            "compact": [*SHARDCTL, "compact", str(out)],
            "prune": [*SHARDCTL, "prune", str(out), "--key", photos[20].name],
            "convert": words,
            "other convert": [*CONVERT, str(source), str(out), *options, "--store", "jpeg:80"],
        }
        there = in_data(out)
        done([*words, "--part", "1/2"])
        built = in_data(out) - there
        second = subprocess.Popen([*words, "--part", "2/2"], start_new_session=True)
        await_file(second, out, "data/*.partial")
        os.killpg(second.pid, signal.SIGSTOP)
        stands = second.poll() is None
        for name, other in others.items() if stands else ():
            ran = run([*other, "--if-running", "fail"])
            ends[f"{name}: exit code {ran.code}"] += 1
            if ran.code == 0 or not built <= in_data(out):
                problems.append(f"trial {trial}: {name}: {ran.code} {ran.output} {ran.errors}")
        name = rng.choice(["compact", "convert", "none"])
        waiter = subprocess.Popen(others[name]) if name != "none" else None
        time.sleep(rng.uniform(0, 2))
        if waiter is not None and stands and waiter.poll() is not None:
            problems.append(f"trial {trial}: {name} did not wait")
        os.killpg(second.pid, signal.SIGCONT)
        codes = (second.wait(120), waiter.wait(120) if waiter is not None else 0)
        if name == "compact" and how[0] == "--overwrite" and not built <= in_data(out):
            problems.append(f"trial {trial}: compact has swept shards of a job that goes on")
        ended = run([*SHARDCTL, "finish", str(out)])
        ends[f"{how[0]}, {name}: {codes}, finish {ended.code}"] += 1
        if ended.code:
            done(words)
        samples, found, _ = in_child(lambda: looked_at(out))[1]
        problems += [f"trial {trial}, {name}: {each}" for each in found]
        if samples != in_child(lambda: samples_in(fresh))[1]:
            problems.append(f"trial {trial}, {name}: other samples than a fresh conversion")
    return "\n".join([f"{times} times: {dict(ends)}; {len(problems)} problems", *problems])
