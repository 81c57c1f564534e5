"""The long proofs of docs/explanation/reliability.md: real kills, random damage, hostile files,
full disks, many converters.

    python scripts/torture/torture.py kills DATA [--times 200] [--source jsonl …]
        kill -9 of parent, workers, group at random moments
    python scripts/torture/torture.py overwrites DATA [--times 50]
        the same while a dataset is being replaced
    python scripts/torture/torture.py faults DATA [--times 2000] [--source …]
        random damage: verify finds it, repair repairs it
    python scripts/torture/torture.py hostile DATA [--source …]
        1,045 odd and broken files, or damaged records; peak memory
    python scripts/torture/torture.py disks DATA
        tmpfs of many sizes filled up; a read-only one (needs root)
    python scripts/torture/torture.py stalls DATA [--times 5]
        the source or the destination stands still (needs root)
    python scripts/torture/torture.py converters DATA [--times 20]
        two, five and ten converters at once
    python scripts/torture/torture.py overwriters DATA [--times 60]
        two and three --overwrite at once, some of them killed
    python scripts/torture/torture.py droplost DATA [--times 200]
        repair --drop-lost stopped at random moments
    python scripts/torture/torture.py shrinks DATA [--times 50]
        a shard is cut short while a loader reads at full speed
    python scripts/torture/torture.py reshrinks DATA [--times 20]
        shards are cut short one after another; DataLoader workers too
    python scripts/torture/torture.py resumes DATA [--times 500]
        a training with steps in each epoch is killed and goes on: always the same images
    python scripts/torture/torture.py updates DATA [--times 200]
        sources that change, and --update that is killed: always as fresh
    python scripts/torture/torture.py commits DATA [--times 1000]
        writers are killed at each change of a commit, also without links, and on a store
    python scripts/torture/torture.py generations DATA [--times 50]
        readers beside many commits, all of which are kept, or one
    python scripts/torture/torture.py parts DATA [--times 20]
        two parts of a conversion, and other writers that come between them
    python scripts/torture/torture.py store [DATA] [--times 40] [--seed 0]
        writers and readers of a store with faults are killed

DATA is the folder that SHARDCTL_CORPUS names: it has photos/ and hostile/. --source: photos (the
default), jsonl, csv, lines, gz, parquet, any number of them (torture_sources.py); all but photos
are made here, with damage whose outcome is known.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
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
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
from killing import (
    CONVERT,
    SHARD_BEGUN,
    SHARDCTL,
    STOPPED,
    TABLES_DONE,
    CommandFailed,
    await_file,
    await_time,
    content,
    count_of,
    descendants,
    done,
    killing,
    run,
    shards_of,
    stop,
)
from torture_commits import commits, generations, parts
from torture_sources import SOURCES, Expected, Source, small_photos
from torture_store import store
from torture_updates import updates

import shardctl
from shardctl.errors import DatasetError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.names import CHECKSUMS, FILES, MANIFEST, PLAN, REJECTS, SHARDS
from shardctl.format.tables import read_rejects
from shardctl.images.codecs.backend import FORMATS

OPTIONS = SOURCES["photos"].options
TABLES = (PLAN, FILES, SHARDS)
LISTS = (CHECKSUMS, REJECTS)


def made(out: Path, source: Path, *options: str) -> tuple[dict[str, bytes], float]:
    """Convert, and return the files of the dataset, and the seconds that it took."""
    began = time.monotonic()
    done([*CONVERT, source, out, *options])
    return content(out), time.monotonic() - began


def kills(data: Path, times: int, scratch: Path, source: Source) -> str:
    whole, out = scratch / "whole", scratch / "out"
    large, counts, alike = source.large(data, scratch), Counter[str](), 0
    expected, seconds = made(whole, large, *source.options)
    for trial in range(times):
        rng = random.Random(trial)
        shutil.rmtree(out, ignore_errors=True)
        command = [*CONVERT, str(large), str(out), *source.options]
        killing(command, rng, seconds, rng.randint(1, 3), counts)
        alike += content(out) == expected
    return (
        f"{len(shards_of(whole))} shards, {len(shardctl.open(whole)):,} samples: {count_of(counts)}:"
        f" {alike} of {times} conversions ended byte-identical"
    )


def overwrites(data: Path, times: int, scratch: Path) -> str:
    """Replace a dataset while things are killed and a reader looks on: it must find the old or the
    new one, whole."""
    old, new, out = scratch / "old", scratch / "new", scratch / "out"
    made(old, data / "photos", "--workers", "2")
    expected, seconds = made(new, data / "photos", *OPTIONS)
    counts, alike, looks, torn = Counter[str](), 0, 0, 0
    ended = threading.Event()

    def read() -> None:
        nonlocal looks, torn
        while not ended.is_set():
            looks += 1
            try:
                shardctl.open(out)
            except DatasetError:
                torn += 1

    for trial in range(times):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(old, out)
        ended.clear()
        reader = threading.Thread(target=read)
        reader.start()
        rng = random.Random(trial)
        command = [*CONVERT, str(data / "photos"), str(out), *OPTIONS, "--overwrite"]
        killing(command, rng, seconds, rng.randint(1, 2), counts)
        ended.set()
        reader.join()
        alike += content(out) == expected
    return (
        f"{sum(counts.values())} kills: {alike} of {times} ended byte-identical; {looks} "
        f"readers, {torn} found neither"
    )


def faults(data: Path, times: int, scratch: Path, source: Source) -> str:
    sound, out = scratch / "sound", scratch / "out"
    small = source.small(data, scratch)
    expected, _ = made(sound, small, *source.options)
    kinds, found, mended, problems = Counter[str](), 0, 0, []
    for trial in range(times):
        rng = random.Random(trial)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(sound, out)
        kind = damage(out, rng)
        kinds[kind.partition(" ")[0]] += 1
        if shardctl.verify(out).ok:
            problems.append(f"trial {trial}: {kind} was not found")
            continue
        found += 1
        result = shardctl.repair(out, sources=[small], workers=0)
        if result.ok and content(out) == expected and shardctl.verify(out, "quick").ok:
            mended += 1
        else:
            problems.append(f"trial {trial}: {kind} was not repaired: {result.unrepaired}")
    return "\n".join(
        [
            f"{times} faults {dict(kinds)}: {found} found, {mended} repaired to the same bytes",
            *problems,
        ]
    )


def damage(out: Path, rng: random.Random) -> str:
    """Do one random piece of damage, and make sure that it is one."""
    folder = dataset_in(out)
    manifests = [out / MANIFEST, folder.path(MANIFEST)]
    tables, lists = ([folder.path(name) for name in names] for names in (TABLES, LISTS))
    shards = shards_of(out)
    path = rng.choice([*manifests, *tables] if rng.random() < 0.5 else [*shards, *lists])
    data = bytearray(path.read_bytes())
    # A list of rejects may be empty. A shard that has the name of the manifest may be the only copy:
    # repair refuses it.
    kinds = ["flip", "flips", "cut", "zero"] if data else []
    kind = rng.choice([*kinds, "delete", *(["swap"] if path not in manifests else [])])
    if kind == "delete":
        path.unlink()
    elif kind == "swap":
        others = [path for path in (*shards, *tables, *lists) if path.read_bytes() != data]
        other = rng.choice(others)
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
    else:
        changed = changed_bytes(data, kind, rng)
        while changed == data:
            changed = changed_bytes(data, kind, rng)
        path.write_bytes(changed)
    return f"{kind} {path.relative_to(out)}"


def changed_bytes(data: bytearray, kind: str, rng: random.Random) -> bytearray:
    changed = bytearray(data)
    if kind == "cut":
        return changed[: rng.randrange(len(changed))]
    if kind == "zero":
        first = rng.randrange(len(changed))
        length = min(rng.choice([1, 8, 64, 4096]), len(changed) - first)
        changed[first : first + length] = bytes(length)
    for _ in range({"flip": 1, "flips": rng.randint(2, 50)}.get(kind, 0)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return changed


def hostile(data: Path, _: int, scratch: Path, source: Source) -> str:
    return (
        hostile_photos(data, scratch)
        if source.hostile is None
        else hostile_records(source, source.hostile, scratch)
    )


def convert_twice(command: list[str], scratch: Path) -> str:
    """Convert to scratch/a and scratch/b, whatever is rejected, and say whether both are alike and
    how much memory it took."""
    peaks = []
    for name in ("a", "b"):
        words = [*CONVERT, command[0], scratch / name, *command[1:], "--max-rejects", "100%"]
        ran = run(words, pause=0.005)
        if ran.failure:
            raise CommandFailed(f"the conversion failed: {ran.failure}")
        peaks.append(ran.together)
    alike = content(scratch / "a") == content(scratch / "b")
    return f"same result twice: {alike}; peak of all processes together {max(peaks) >> 20} MiB"


def hostile_photos(data: Path, scratch: Path) -> str:
    twice = convert_twice([str(data / "hostile"), "--labels", "none"], scratch)
    rows = [
        line.split("\t")
        for line in (data / "hostile" / "expected.tsv").read_text().splitlines()[1:]
    ]
    kept = set(keys(scratch / "a"))
    rejected = {reject.source: reject.message for reject in read_rejects(dataset_in(scratch / "a"))}
    wanted = [path for path, form, _, _, outcome, *_ in rows if outcome == "ok" and form in FORMATS]
    missed = [
        f"  {path}: {rejected.get(path, 'left alone')}" for path in wanted if path not in kept
    ]
    bare = [path for path in rejected if not rejected[path]]
    left = [path for path, *_ in rows if path not in kept and path not in rejected]
    return "\n".join(
        [
            f"{len(rows)} files: {len(kept)} converted, {len(rejected)} rejected ({len(bare)} "
            "without a reason),"
            f" {len(left)} left alone as no images; {twice}",
            f"{len(wanted) - len(missed)} of {len(wanted)} that are ok and allow-listed were "
            "converted; not:",
            *missed,
        ]
    )


def hostile_records(source: Source, make: Callable[[Path], Expected], scratch: Path) -> str:
    """Convert damaged records, and compare every key, text and reject with what must become of
    it."""
    folder = scratch / "hostile"
    folder.mkdir()
    expected = make(folder)
    twice = convert_twice([str(folder), *source.options, "--labels", "none"], scratch)
    ds = shardctl.open(scratch / "a")
    batch = ds.take(range(len(ds)), columns=["key", "text"])
    kept = {str(key): text for key, text in zip(batch["key"], batch["text"], strict=True)}
    rejects = {reject.key: reject for reject in read_rejects(dataset_in(scratch / "a"))}
    problems = []
    for key, text in expected.kept.items():
        if key in rejects:
            problems.append(f"  {key} was rejected: {rejects[key].error}: {rejects[key].message}")
        elif key not in kept:
            problems.append(f"  {key} is missing")
        elif kept[key] != text:
            problems.append(f"  {key} was changed from {text[:40]!r} to {kept[key][:40]!r}")
    rejected_files = {key.partition("#")[0] for key in rejects}
    for key, error in expected.rejected.items():
        if "#" not in key:
            problems += [] if key in rejected_files else [f"  {key}: no reject speaks of it"]
        elif key not in rejects:
            problems.append(
                f"  {key} was not rejected, {error or 'any error'} was expected; it is "
                f"{kept.get(key, 'nowhere')!r:.60}"
            )
        elif error and rejects[key].error != error:
            problems.append(
                f"  {key} was rejected as {rejects[key].error}, not {error}: {rejects[key].message}"
            )
    known = expected.kept.keys() | expected.rejected.keys()
    for key in (kept.keys() | rejects.keys()) - known:
        if key.partition("#")[0] not in expected.free:
            problems.append(f"  {key} was not expected: {rejects.get(key, 'it was converted')}")
    problems += [
        f"  {key} was rejected without a reason"
        for key, reject in rejects.items()
        if not reject.message
    ]
    said = [converted_alone(path, source, scratch) for path in expected.alone]
    problems += [line for line in said if line.endswith(WRONG)]
    errors = Counter(f"{reject.stage}: {reject.error}" for reject in rejects.values())
    return "\n".join(
        [
            f"{len(list(folder.iterdir()))} files: {len(kept):,} records converted, "
            f"{len(rejects):,} rejected; {twice}",
            f"{dict(errors)}",
            f"{len(expected.kept):,} that are sound and {len(expected.rejected):,} that are not: "
            f"{len(problems)} problems",
            *sorted(problems)[:50],
            *(line for line in said if not line.endswith(WRONG)),
        ]
    )


WRONG = "(not one sentence)"


def converted_alone(path: Path, source: Source, scratch: Path) -> str:
    """Convert one file by itself, and return how that ended, marked where it ended in another way
    than a person should see."""
    out = scratch / "alone-out"
    shutil.rmtree(out, ignore_errors=True)
    ran = run([*CONVERT, path, out, *source.options, "-q"], limit=600)
    said = (ran.errors.strip() or ran.output.strip() or "nothing was said").splitlines()
    wrong = ran.failure and (ran.code not in (1, 3) or len(said) != 1)
    return (
        f"  {path.name} alone: exit code {ran.code}, peak {ran.together >> 20} MiB: {said[-1]} "
        f"{WRONG if wrong else ''}"
    )


def keys(root: Path) -> list[str]:
    ds = shardctl.open(root)
    return [str(key) for key in ds.take(range(len(ds)), columns=["key"])["key"]]


@contextlib.contextmanager
def tmpfs(place: Path, size: int) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, ballast: Path, left: int) -> None:
    """Take the room of a disk until at most `left` bytes are free, while others write to it too."""
    with open(ballast, "wb") as file:
        while (more := shutil.disk_usage(disk).free - left) > 0:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, more)
            except OSError as error:  # others were faster: look again
                if error.errno != errno.ENOSPC:
                    raise


def disks(data: Path, _: int, scratch: Path) -> str:
    """Fill small file systems up while a conversion runs; then make room and go on."""
    lines, counts, levels = [], Counter[str](), range(2, 100, 7)
    expected, _ = made(scratch / "whole", data / "photos", *OPTIONS)
    need = sum(map(len, expected.values()))
    for percent in levels:
        with tmpfs(scratch / "disk", 64 << 20) as disk:
            out, ballast = disk / "out", disk / "ballast"
            command = [*CONVERT, data / "photos", out, *OPTIONS]
            # Enough when the conversion begins, too little soon after: another process fills the
            # disk up.
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
                await_file(parent, out, ".shardctl/*/job.json")
                fill(disk, ballast, need * percent // 100)
                _, error = parent.communicate(timeout=120)
            counts[f"exit code {parent.returncode}"] += 1
            if parent.returncode:
                said = error.strip().splitlines()[-1]
                assert parent.returncode == 3, error
                assert "is full" in said, error
                assert "more are needed" in said, error
                assert not (out / "manifest.json").exists()
                lines.append(f"  {percent} % of the need: {said}")
            ballast.unlink()
            counts[done(command).split()[0]] += 1
            counts["byte-identical"] += content(out) == expected
    with tmpfs(scratch / "disk", 64 << 20) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ran = run([*CONVERT, data / "photos", disk / "out", *OPTIONS])
        lines.append(f"  read-only: {ran.failure}")
    return "\n".join([f"full disks at {len(levels)} levels: {dict(counts)}", *lines])


@contextlib.contextmanager
def loop_disk(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield a real file system of 96 MiB, and the number of its device."""
    image = place.with_suffix(".image")
    place.mkdir(exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        device = place.stat().st_dev
        yield place, f"{os.major(device)}:{os.minor(device)}"
    finally:
        subprocess.run(["umount", str(place)], check=True)
        image.unlink()


@contextlib.contextmanager
def stalling(device: str) -> Iterator[Path]:
    """Yield a control group (version 1) in which no read of a device is answered."""
    group = Path(f"/sys/fs/cgroup/blkio/torture-{os.getpid()}")
    group.mkdir()
    (group / "blkio.throttle.read_bps_device").write_text(f"{device} 1")
    try:
        yield group
    finally:
        group.rmdir()


def stalls(data: Path, times: int, scratch: Path) -> str:
    """Let the disk of the source, then that of the destination, stand still for longer than
    --input-timeout."""
    options = [*OPTIONS, "--input-timeout", "1"]
    ended: Counter[str] = Counter()
    with loop_disk(scratch / "disk") as (disk, device):
        shutil.copytree(data / "photos", disk / "photos")
        out, source = scratch / "out", disk / "photos"
        expected, _ = made(scratch / "whole", source, *OPTIONS)
        for _ in range(times):
            shutil.rmtree(out, ignore_errors=True)
            done([sys.executable, "-c", FORGET, source])
            with (
                stalling(device) as group,
                subprocess.Popen(
                    [*CONVERT, source, out, *options], stderr=subprocess.PIPE, text=True
                ) as parent,
            ):
                await_file(parent, out, SHARD_BEGUN)  # it has listed the inputs, and tried some
                for process in descendants(parent.pid):
                    (group / "cgroup.procs").write_text(str(process))
                _, error = parent.communicate(timeout=120)
            assert "does not respond" in error, error
            ended[f"source: exit code {parent.returncode}"] += 1
            ended["source: then byte-identical"] += made(out, source, *OPTIONS)[0] == expected
    with loop_disk(scratch / "disk") as (disk, _):
        for turn in range(times):
            out = disk / f"out{turn}"
            command = [*CONVERT, data / "photos", out, *options]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
                await_file(parent, out, SHARD_BEGUN)
                done(["fsfreeze", "-f", disk])
                time.sleep(5)
                done(["fsfreeze", "-u", disk])
                ended[f"destination: exit code {parent.wait(120)}"] += 1
            ended["destination: byte-identical"] += content(out) == expected
    return f"{times} stalls of each: {dict(ended)}"


FORGET = """
import os, sys
for parent, _, names in os.walk(sys.argv[1]):
    for name in names:
        descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
"""


def converters(data: Path, times: int, scratch: Path) -> str:
    lines = []
    expected, _ = made(scratch / "whole", data / "photos", *OPTIONS)
    for count in (2, 5, 10):
        well = 0
        for _ in range(times):
            out = scratch / "out"
            shutil.rmtree(out, ignore_errors=True)
            command = [*CONVERT, data / "photos", out, *OPTIONS, "--json"]
            running = [
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                for _ in range(count)
            ]
            ended = [
                json.loads(process.communicate(timeout=300)[0])["status"] for process in running
            ]
            well += (
                sorted(ended) == ["created"] + ["up-to-date"] * (count - 1)
                and content(out) == expected
            )
        lines.append(
            f"{count} at once: {well} of {times} times one wrote, all ended well, same bytes"
        )
    return "\n".join(lines)


def overwriters(data: Path, times: int, scratch: Path) -> str:
    """Replace a dataset by several processes at once, of which some are killed: the others end
    well, and nothing is left."""
    small, place = small_photos(data, scratch), scratch / "place"
    old, new, out = scratch / "old", scratch / "new", place / "out"
    options = ["--store", "png", "--workers", "1", "--samples-per-shard", "64"]
    made(old, small, "--workers", "1")
    expected, seconds = made(new, small, *options)
    ends, alike = Counter[str](), 0
    for trial in range(times):
        rng = random.Random(trial)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(old, out)
        running = [
            subprocess.Popen(
                [*CONVERT, small, out, *options, "--overwrite"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for _ in range(2 + trial % 2)
        ]
        for victim in rng.sample(running, rng.randrange(len(running))):
            await_time(victim, rng, seconds)
            stop(victim, rng.choice(["SIGKILL", "SIGTERM"]))
        for process in running:
            _, error = process.communicate(timeout=300)
            if process.returncode not in (0, *STOPPED):
                raise SystemExit(f"trial {trial}: exit code {process.returncode}: {error.decode()}")
            ends["stopped" if process.returncode else "ended well"] += 1
        # What a killed one has left is tidied up by the next one that comes, here one that finds
        # the dataset up to date.
        again, _ = made(out, small, *options)
        alike += again == expected and [path.name for path in place.iterdir()] == ["out"]
    return (
        f"{times} times two or three at once, {dict(ends)}: {alike} of {times} ended "
        "byte-identical, nothing left over"
    )


def droplost(data: Path, times: int, scratch: Path) -> str:
    """Stop `repair --drop-lost` at random moments, half of them near its commit."""
    small, place = small_photos(data, scratch), scratch / "place"
    damaged, dropped, out = scratch / "damaged", scratch / "dropped", place / "out"
    made(damaged, small, *OPTIONS)
    shard = shards_of(damaged)[3]
    lost = pa.ipc.open_file(str(shard)).read_all()["key"].to_pylist()[::3]
    shard.write_bytes(shard.read_bytes()[:-100])
    for key in lost:
        (small / key).unlink()
    command = [*SHARDCTL, "repair", "--drop-lost", "--workers", "1"]
    shutil.copytree(damaged, dropped)
    started = time.monotonic()
    done([*command, dropped])
    seconds, old, new = time.monotonic() - started, content(damaged), content(dropped)
    ends, problems = Counter[str](), []
    for trial in range(times):
        rng = random.Random(trial)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(damaged, out)
        for _ in range(rng.randint(1, 3)):
            with subprocess.Popen(
                [*command, "out"],
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                await_moment(process, out, rng, seconds)
                stop(process, rng.choice(["SIGKILL", "SIGTERM", "SIGINT"]))
                said, _ = process.communicate(timeout=120)
            if process.returncode not in (0, *STOPPED):
                problems.append(f"trial {trial}: exit code {process.returncode}: {said.decode()}")
            found = content(out).items()
            ends[
                "old" if found >= old.items() else "new" if found >= new.items() else "neither"
            ] += 1
        last = run([*command, "out"], folder=place)
        left = [path.name for path in place.iterdir()]
        if last.failure or content(out) != new or left != ["out"]:
            left += [path.name for path in out.iterdir()]
            problems.append(f"trial {trial}: not the dropped dataset: {last.failure} {left}")
    return "\n".join(
        [f"{times} times, found when stopped: {dict(ends)}; {len(problems)} problems", *problems]
    )


def await_moment(
    process: subprocess.Popen[bytes], out: Path, rng: random.Random, seconds: float
) -> None:
    """Wait for a random time, or for the file that is there right before the moments that matter,
    and a few milliseconds."""
    if rng.random() < 0.5:
        await_time(process, rng, seconds)
        return
    await_file(process, out, TABLES_DONE)
    time.sleep(rng.uniform(0, 0.02))


RAW = {
    "store": "raw",
    "transform": [{"name": "resize", "size": 232}, {"name": "crop", "size": 224}],
}

READING = """
import sys, time, shardctl
from shardctl.errors import DatasetError
loader = shardctl.open(sys.argv[1]).loader(64, shuffle=sys.argv[2] == "random", threads=2, repeat=None)
try:
    for batch in loader:
        print("reading", flush=True)
except DatasetError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


def shrinks(data: Path, times: int, scratch: Path) -> str:
    """Cut a mapped shard short under a loader: the named error, and not the end of the process by
    SIGBUS."""
    rng = random.Random(5)
    out = scratch / "out"
    shardctl.convert(data / "photos", out, recipe=RAW, workers=2, samples_per_shard=50)
    shards = shards_of(out)
    ended: Counter[str] = Counter()
    for turn in range(times):
        victim = rng.choice(shards)
        whole = victim.read_bytes()
        command = [sys.executable, "-c", READING, str(out), "random" if turn % 2 else "stored"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            drain = threading.Thread(target=reader.stdout.read)
            drain.start()
            time.sleep(rng.uniform(0, 0.2))
            os.truncate(victim, rng.randrange(len(whole)))
            reader.wait(60)
            drain.join()
            assert reader.stderr is not None
            named = victim.name in reader.stderr.read()
        ended[
            "named" if reader.returncode == 3 and named else f"exit code {reader.returncode}"
        ] += 1
        victim.write_bytes(whole)
    return f"{times} shards cut short under a running loader: {dict(ended)}"


SKIPPING = """
import sys
from pathlib import Path
import numpy as np
import shardctl
ds, stop = shardctl.open(sys.argv[1]), Path(sys.argv[2])
list(ds.loader(64, threads=2))
if sys.argv[3] == "workers":
    import torch
    from shardctl.torch import IterableDataset
    read = IterableDataset(ds, 16, shuffle=True, threads=4, on_error="skip", repeat=None)
    batches = torch.utils.data.DataLoader(read, batch_size=None, num_workers=2)
else:
    batches = ds.loader(16, shuffle=True, threads=8, on_error="skip", repeat=None)
while not stop.exists():
    try:
        for batch in batches:
            print("reading", flush=True)
            images = batch["image"]
            if not isinstance(images, np.ndarray) or images.flags.writeable:  # a view of the file may change at any time
                assert all(image.any() for image in images), "zeros were given out"
            if stop.exists():
                break
    except shardctl.errors.DatasetError as error:  # a file that is cut short is no damaged sample
        assert ".arrow" in str(error), error
        print("told", flush=True)
print("ended well", flush=True)
"""


def reshrinks(data: Path, times: int, scratch: Path) -> str:
    """Cut all shards but one short, one after another, under a loader that skips: it must tell of
    them, and live to the end."""
    rng = random.Random(6)
    out, stop = scratch / "out", scratch / "stop"
    shardctl.convert(data / "photos", out, recipe=RAW, workers=2, samples_per_shard=25)
    kinds = ["threads"] + (["workers"] if find_spec("torch") else [])
    ended: Counter[str] = Counter()
    for turn in range(times):
        stop.unlink(missing_ok=True)
        shards = shards_of(out)
        contents = {shard: shard.read_bytes() for shard in shards}
        kind = kinds[turn % len(kinds)]
        command = [sys.executable, "-c", SKIPPING, str(out), str(stop), kind]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            lines: list[str] = []
            drain = threading.Thread(target=lines.extend, args=(reader.stdout,))
            drain.start()
            for victim in rng.sample(shards, len(shards) - 1):
                time.sleep(rng.uniform(0, 0.05))
                os.truncate(victim, rng.randrange(len(contents[victim])))
            stop.touch()
            reader.wait(120)
            drain.join()
            assert reader.stderr is not None
            said = reader.stderr.read().strip().splitlines()[-1:]
        well = reader.returncode == 0 and lines[-1] == "ended well\n"
        ended[
            f"{kind}: " + ("ended well" if well else f"exit code {reader.returncode} {said}")
        ] += 1
        for shard, whole in contents.items():
            shard.write_bytes(whole)
    return f"{times} loaders under which all shards but one were cut short in turn: {dict(ended)}"


def follow(data: Path, times: int, scratch: Path) -> str:
    """Sources that change, and datasets that follow them while things are killed."""
    return updates(some_photos(data), times, scratch)


def some_photos(data: Path) -> list[Path]:
    return sorted((data / "small").rglob("*.jpg"))[::100]


TRAINING = """
import json, os, sys, hashlib, shardctl
def moved(sample, rng):
    sample["image"] = sample["image"] ^ rng.integers(0, 9, dtype="uint8")
    return sample
out, log, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
own = () if options.get("processes") else moved
loader = shardctl.open(out).loader(
    shuffle=True, seed=3, step=["random_crop size=48", "hflip", "rand_augment", "random_erasing"],
    columns=["key", "image"], repeat=None, transform=own if options.pop("own") else (), **options)
lines = open(log).read().split("\\n")[:-1] if os.path.exists(log) else []
if lines:
    loader.load_state_dict(json.loads(lines[-1])["state"])
descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.truncate(log, sum(len(line) + 1 for line in lines))
for batch in loader:
    seen = [[k, hashlib.sha1(i.tobytes()).hexdigest()[:12]] for k, i in zip(batch["key"], batch["image"])]
    os.write(descriptor, (json.dumps({"seen": seen, "state": loader.state_dict()}) + "\\n").encode())
"""
"""A training that writes what it has seen, a batch and the state after it in a line, and goes on
after the last whole line."""


def trained(out: Path, log: Path, options: dict[str, object], size: int, more: float) -> None:
    """Train until the log is longer than `size` and a little while more, then kill."""
    command = [sys.executable, "-c", TRAINING, str(out), str(log), json.dumps(options)]
    process = subprocess.Popen(command)
    while process.poll() is None and (not log.exists() or log.stat().st_size <= size):
        time.sleep(0.01)
    time.sleep(more)
    process.kill()
    process.wait()


def resumes(data: Path, times: int, scratch: Path) -> str:
    """Kill trainings, which go on in other numbers of threads and processes, with other batches."""
    out, rng, images, alike = scratch / "out", random.Random(0), 0, 0
    made(out, small_photos(data, scratch), "--store", "png", "-q")
    for own in (False, True):
        log, whole = scratch / f"log-{own}", scratch / f"whole-{own}"
        for _ in range(times // 2):
            options: dict[str, object] = {"batch_size": rng.choice([8, 32, 50]), "own": own}
            if rng.random() < 0.3 and not own:
                options["processes"] = rng.choice([1, 2])
            size = log.stat().st_size if log.exists() else 0
            trained(out, log, options, size, rng.random() * 0.2)
        seen = seen_in(log)
        trained(out, whole, {"batch_size": 8, "own": own}, log.stat().st_size * 2, 0)
        images += len(seen)
        alike += seen == seen_in(whole)[: len(seen)]
    return f"{times} kills, {images:,} images: {alike} of 2 trainings as without a kill"


def seen_in(log: Path) -> list[list[str]]:
    lines = log.read_text().split("\n")[:-1]
    return [each for line in lines for each in json.loads(line)["seen"]]


PROOFS: dict[str, tuple[Callable[[Path, int, Path], str], int]] = {
    "overwrites": (overwrites, 50),
    "disks": (disks, 1),
    "stalls": (stalls, 5),
    "converters": (converters, 20),
    "overwriters": (overwriters, 60),
    "droplost": (droplost, 200),
    "shrinks": (shrinks, 50),
    "reshrinks": (reshrinks, 20),
    "resumes": (resumes, 500),
    "updates": (follow, 200),
    "commits": (commits, 1000),
    "generations": (generations, 50),
    "parts": (parts, 20),
}


PROOFS_OF_SOURCES: dict[str, tuple[Callable[[Path, int, Path, Source], str], int]] = {
    "kills": (kills, 200),
    "faults": (faults, 2000),
    "hostile": (hostile, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("proof", choices=[*PROOFS, *PROOFS_OF_SOURCES, "store"])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--times", type=int)
    parser.add_argument(
        "--source", nargs="+", choices=SOURCES, help="what kills, faults and hostile convert"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first history of store")
    given = parser.parse_args()
    if given.data is None and given.proof != "store":
        parser.error(f"{given.proof} needs DATA")
    if given.source and given.proof not in PROOFS_OF_SOURCES:
        parser.error(f"{given.proof} is done on photos alone")
    # a shell has a job in the background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    if given.proof in PROOFS:
        proof, times = PROOFS[given.proof]
        with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
            print(proof(given.data, given.times or times, Path(scratch)))
    if given.proof == "store":
        photos = some_photos(given.data) if given.data else []
        with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
            print(store(photos, given.times or 40, Path(scratch), given.seed))
    failed = []
    for name in (given.source or ["photos"]) if given.proof in PROOFS_OF_SOURCES else []:
        of_source, times = PROOFS_OF_SOURCES[given.proof]
        with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
            try:
                print(
                    f"{name}: "
                    f"{of_source(given.data, given.times or times, Path(scratch), SOURCES[name])}",
                    flush=True,
                )
            except CommandFailed as error:
                print(f"{name}: {error}", flush=True)
                failed.append(name)
    print(
        f"in {time.monotonic() - started:.0f} s, {os.cpu_count()} cores, shardctl "
        f"{shardctl.__version__}"
    )
    if failed:
        raise SystemExit(f"not proved: {', '.join(failed)}")


if __name__ == "__main__":
    main()
