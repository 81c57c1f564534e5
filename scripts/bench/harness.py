"""What the measurements share: their options, their inputs, commands that are timed, contenders that
take turns, and the file with what was found, beside the machine that it was found on."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from processes import as_installed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHARDCTL = [sys.executable, "-m", "shardctl"]
Found = TypeVar("Found")

sys.path.append(str(HERE.parent / "data"))


def options_of(doc: str | None, corpus: bool = False, **numbers: float) -> argparse.ArgumentParser:
    """Return a parser with --json FILE; with `corpus` the folder of inputs, and of `numbers` an option
    such as --runs with its default."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if corpus:
        default = os.environ.get("SHARDCTL_CORPUS", ROOT.parent / "shared" / "data")
        parser.add_argument("corpus", nargs="?", type=Path, default=default)
    for name, number in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(number), default=number)
    parser.add_argument("--json", type=Path)
    return parser


def shards_of(dataset: Path) -> list[Path]:
    """Return the files of the shards of a dataset, in their order."""
    from shardctl.format.dataset_folder import dataset_in
    from shardctl.format.tables import ShardTable

    folder = dataset_in(dataset)
    return [folder.path(path) for path in ShardTable(folder).paths]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder on the disk of the project, which is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        yield Path(folder).resolve()


# --- commands, and contenders


def done(*command: object) -> str:
    """Run a command to its end, and return what it printed; one that fails ends the measurement."""
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, env=as_installed())
    if ran.returncode:
        raise SystemExit(f"{' '.join(map(str, command))[:500]}\n{ran.stderr}")
    return ran.stdout


def seconds(what: Callable[[], object]) -> float:
    """Return how long a call takes by the wall clock."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def in_turn(contenders: Mapping[str, Callable[[], Found]], turns: int) -> dict[str, list[Found]]:
    """Call each contender once in each turn, every other turn in reverse order, and return what they
    returned."""
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            found[name].append(contenders[name]())
    return found


def medians_of(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items()}


def tell(found: Mapping[str, Sequence[float]], unit: str = "s") -> None:
    """Print the median of each contender, and the least and the most."""
    for name, middle in medians_of(found).items():
        least, most = min(found[name]), max(found[name])
        print(f"{name:44} {middle:12,.3f} {unit}   ({least:,.3f} to {most:,.3f})", flush=True)


def save(file: Path | None, found: Any) -> None:
    """Write what was found, and on which machine, to the file of --json, if there is one."""
    if file is not None:
        # here, as other tools have environments without shardctl
        from shardctl.benchmark.measure.meters import environment

        found = {"machine": environment(file.resolve().parent), "results": found}
        file.write_text(json.dumps(found, indent=1))


# --- inputs


def folders(corpus: Path, folder: Path) -> tuple[Path, Path]:
    """Return the folders of photos and of tiny images: of the corpus, or drawn ones below `folder`."""
    if (corpus / "photos").is_dir():
        return corpus / "photos", corpus / "small" / "cifar10"
    drawn = folder / "demo"
    if not drawn.exists():
        print(f"{corpus}: no corpus there, using drawn images")
        done(*SHARDCTL, "demo", drawn, "--images", "600", "-q")
    return drawn / "photos", drawn / "photos"


def images(folder: Path) -> list[str]:
    """Return the images below a folder, those behind links too."""
    names = (
        os.path.join(parent, name)
        for parent, _, found in os.walk(folder, followlinks=True)
        for name in found
    )
    return sorted(name for name in names if name.lower().endswith((".jpg", ".jpeg", ".png")))


def repeated(folder: Path, to: Path, times: int) -> Path:
    """Return a folder in which a folder is so many times, through links."""
    if not to.exists():
        to.mkdir()
        for repeat in range(times):
            (to / f"again{repeat:03d}").symlink_to(folder.resolve())
    return to


def tiny_files(corpus: Path, count: int, folder: Path) -> list[Path]:
    """Write so many tiny images in class folders below `folder`, and return them in the order of a
    walk."""
    _, small = folders(corpus, folder.with_name("drawn"))
    files, made = sorted(small.rglob("*.jpg")), []
    for number in range(count):
        file = files[number % len(files)]
        path = folder / file.parent.name / f"{number // len(files):04}-{file.name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, path)
        made.append(path)
    return sorted(made)


def warm(place: Path) -> None:
    """Read a file, or every file below a folder, once: a machine that takes its page cache away
    between runs would favour one contender at random."""
    found = os.walk(place, followlinks=True)
    below = [os.path.join(parent, name) for parent, _, names in found for name in names]
    for path in [place] if place.is_file() else below:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


WALK = """
import os, sys, time
def walk(folder):
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from walk(entry.path)
            else:
                status = entry.stat()
                yield entry.name, status.st_size, status.st_mtime_ns
began = time.perf_counter()
count = sum(1 for _ in walk(sys.argv[1]))
print(time.perf_counter() - began)
"""
"""A bare scan of all files of a folder."""
