"""Fuzzing of the readers of other formats: only our named errors may come out.

    python scripts/torture/fuzz_readers.py FORMAT SECONDS [SEED]

FORMAT is one of FORMATS in fuzz_seeds.py: webdataset, parquet, hdf5, … Files are changed at random:
bits flipped, numbers replaced, parts cut, doubled and moved, files compressed and compressed files
changed, files beside them taken away. Where a format has checksums, they are made right again for
half of the changes, since nearly all others end there.

A child reads the files, so that one that never ends, or that ends the process, is told too. Memory
is limited to MEMORY beyond what the child has at the start. The libraries of some formats are known
to end the process, or never to come back (`may_end`): all commands read them in workers, where such
a file becomes a reject, and here that is counted.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from functools import reduce
from pathlib import Path

import xxhash
import zstandard
from fuzz_seeds import FORMATS, Files, Kind, changed

MEMORY = 1 << 30
"""How much memory reading a file of a few kB may take: four times the largest record that is
read."""

LONGEST = 10
"""Seconds that reading a file of a few kB may take."""

WARM = 50
"""Files that the child reads before its memory is limited: what is imported is imported."""


def read_records(path: Path) -> int:
    """Read a file as conversions do, and return how many records it has. Raises ShardctlError."""
    from shardctl.sources.formats import ending_of, find_format
    from shardctl.sources.formats.base import Misfit, Reading, Unit
    from shardctl.sources.types import Types

    reading, size = Reading(), path.stat().st_size
    ending = ending_of(path.name, str(path))
    if not ending:  # what would not be read at all
        return 0
    form = find_format(ending, reading)
    cuts = form.join(
        json.loads(
            json.dumps([form.scan(str(path), *piece, reading) for piece in form.pieces(size)])
        ),
        size,
    )
    first, units = 1, []
    for cut in cuts or ():
        if cut.fault is None:
            units.append(Unit(cut.offset, cut.size, 0, first, cut.records))
        first += cut.records
    if not units:
        return 0
    types = reduce(Types.join, [form.types(str(path), unit, reading) for unit in units])
    schema, found = types.found(), 0
    for unit in units:
        try:
            for part in form.read(str(path), unit, reading, schema, None, xxhash.xxh3_64()):
                part.batch.validate(full=True)
                found += len(part.numbers)
        except Misfit as misfit:  # the types are those of these very records
            raise AssertionError(f"its own types do not fit: {misfit}") from misfit
    return found


def outcome_of(path: Path) -> dict[str, str]:
    """Read a file, and return the outcome in a word, or as a fault what else than our errors came
    out."""
    from shardctl.errors import Rejection, ShardctlError

    try:
        return {"outcome": "records" if read_records(path) else "no record"}
    except (Rejection, ShardctlError) as error:
        return {"outcome": getattr(error, "error", type(error).__name__)}
    except BaseException:  # noqa: BLE001 - whatever it is, it is a fault
        return {"fault": traceback.format_exc()}


def serve() -> None:
    """Be the child: read the files whose paths come in lines, and answer in lines of JSON."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    for number, line in enumerate(sys.stdin, 1):
        print(json.dumps(outcome_of(Path(line.rstrip("\n")))), file=answers, flush=True)
        if number == WARM:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


class Child:
    """A process that reads files. One that has ended is started anew."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def outcome(self, path: Path) -> dict[str, str]:
        """Have a file read, and return the outcome; `ended` says how if the process has ended, or
        had to be."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], LONGEST)
        answer = process.stdout.readline() if ready else ""
        if answer:
            found: dict[str, str] = json.loads(answer)
            return found
        self.stop()
        if not ready:
            return {"ended": f"after {LONGEST} s"}
        code = process.returncode
        return {"ended": signal.Signals(-code).name if code < 0 else f"exit code {code}"}

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)  # one that has crashed is to tell how
            self._process.kill()
            self._process.wait()
            self._process = None


def written_in(folder: Path, kind: Kind, draw: random.Random) -> Path:
    """Write the files of a seed, changed, into an empty folder, and return the path of the one that
    is read."""
    files: Files = dict(draw.choice(kind.seeds()))
    read = next(iter(files))
    for name, data in files.items():
        if draw.randrange(8) == 0 or (name != read and draw.randrange(2)):
            continue
        files[name] = changed(data, draw)
    if draw.randrange(2):
        files[read] = kind.mend(files[read], draw)
    packed = draw.randrange(8)
    if kind.packs and packed < 3:
        data = (gzip.compress, zlib.compress, zstandard.compress)[packed](files[read])
        files[read] = changed(data, draw) if draw.randrange(2) else data
    for name, data in files.items():
        if name == read or draw.randrange(8):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    return folder / read


def fuzz_format(what: str, seconds: float, seed: int) -> None:
    """Read changed files until the time is over. Exits with 1, having kept the file, if one gives
    another error than ours."""
    kind, draw, counts = FORMATS[what], random.Random(seed), Counter[str]()
    end, tried, slowest = time.monotonic() + seconds, 0, 0.0
    child = Child()
    try:
        while time.monotonic() < end:
            with tempfile.TemporaryDirectory() as scratch:
                path = written_in(Path(scratch), kind, draw)
                start = time.monotonic()
                found = child.outcome(path)
                slowest = max(slowest, time.monotonic() - start)
                ended = found.get("ended")
                if "fault" in found or (ended is not None and not kind.may_end):
                    kept = Path(tempfile.mkdtemp(prefix=f"fuzz-{what}-"))
                    shutil.copytree(scratch, kept, dirs_exist_ok=True)
                    why = found.get("fault") or f"the process ended: {ended}"
                    sys.exit(
                        f"{why}\n{what}: kept in {kept / path.relative_to(scratch)}, after {tried} "
                        f"files (seed {seed})"
                    )
            counts[found.get("outcome") or f"ended by {ended}"] += 1
            tried += 1
    finally:
        child.stop()
    print(
        f"{what}: {tried:,} files, slowest {slowest:.2f} s, seed {seed}: "
        f"{dict(counts.most_common())}"
    )


def main() -> None:
    what, *given = sys.argv[1:]
    if what == "serve":
        serve()
    else:
        seed = int(given[1]) if len(given) > 1 else random.SystemRandom().getrandbits(32)
        fuzz_format(what, float(given[0]), seed)


if __name__ == "__main__":
    main()
