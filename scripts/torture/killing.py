"""How the proofs run commands, stop them at random moments, and see what is left of a dataset."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))
from harness import shards_of
from processes import descendants, run

from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, DATA, GENERATIONS, MANIFEST
from shardctl.system.folders import LocalFolder

__all__ = ["descendants", "run", "shards_of"]

SHARDCTL = [sys.executable, "-m", "shardctl"]
CONVERT = [*SHARDCTL, "convert"]

STOPPED = (130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of a process that was stopped. The last two: it was before shardctl had set up what it
does then."""

SHARD_BEGUN = "data/*.partial"
TABLES_DONE = "generations/*/manifest.json"
"""What a conversion writes, below the dataset: before its first shard is done, and right before its
commit."""


class CommandFailed(Exception):
    """A command that a proof needs has failed: the proofs of other sources go on."""


def done(command: list[str | Path], folder: Path | None = None) -> str:
    """Run a command to its end, and return what it printed. Raises CommandFailed."""
    ran = run(command, folder=folder)
    if ran.failure:
        raise CommandFailed(f"{' '.join(map(str, command[3:]))}: {ran.failure}\n{ran.errors}")
    return ran.output


def content(root: Path) -> dict[str, bytes]:
    """Return every file of the present generation but its manifest, which has a date, and anything
    that was left lying about."""
    manifest = Manifest.load(LocalFolder(root))
    own, kept = manifest.generation.path, set[str]()
    for each in manifest.kept:
        kept |= {f"{DATA}/{Path(path).name}" for path in sums_in(root / each.path)}
        kept |= {f"{each.path}{path.name}" for path in (root / each.path).iterdir()}
    kept -= {f"{DATA}/{Path(path).name}" for path in sums_in(root / own)}
    names = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} - kept
    return {
        name.replace(own, f"{GENERATIONS}/"): (root / name).read_bytes()
        for name in names
        if Path(name).name != MANIFEST
    }


def sums_in(tables: Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a generation, by their paths from the folder of its
    tables."""
    lines = (tables / CHECKSUMS).read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def stop(process: subprocess.Popen[bytes], how: str) -> bool:
    """Send a signal to a process or to those below it: `how` is its name, and perhaps ` to server`,
    ` to worker` or ` to all`. Returns whether the process had not ended before."""
    if process.poll() is not None:
        return False
    name, _, whom = how.partition(" to ")
    below = descendants(process.pid)  # the process that workers are forked from comes first
    victims = {
        "server": below[:1],
        "worker": below[1:2] or below[:1],
        "all": [*below, process.pid],
    }.get(whom, [process.pid])
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.Signals[name])
    return True


KILLS = ("SIGKILL", "SIGKILL to server", "SIGKILL to worker", "SIGKILL to all")


def killing(
    command: list[str], rng: random.Random, seconds: float, kills: int, counts: Counter[str]
) -> None:
    """Run a command to its end, over and over, killing something of it at `kills` random moments."""
    while True:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as parent:
            while kills and await_time(parent, rng, seconds):
                how = rng.choice(KILLS)
                stop(parent, how)
                counts[how] += 1
                kills -= 1
            _, error = parent.communicate(timeout=120)
        if parent.returncode == 0:
            return
        if parent.returncode > 0:
            raise SystemExit(f"exit code {parent.returncode}: {error.decode()}")


def await_time(process: subprocess.Popen[bytes], rng: random.Random, seconds: float) -> bool:
    """Wait for a random time of at most so many seconds, and return whether a process goes on."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0, seconds))
    return process.poll() is None


def await_file(process: subprocess.Popen[bytes], out: Path, pattern: str) -> None:
    """Wait for a file below a dataset, or for the end of the process that is to write it."""
    while process.poll() is None and not list(out.glob(pattern)):
        time.sleep(0.0002)


def count_of(counts: Mapping[str, int]) -> str:
    return f"{sum(counts.values())} kills {dict(counts)}"
