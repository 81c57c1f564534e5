"""Fuzzing of the readers: only our named errors may come out.

    python scripts/fuzz_readers.py manifest|shards|files|plan|shard DATASET SCRATCH [options of libFuzzer]
    python scripts/fuzz_readers.py webdataset|tfrecord|tfds|mds|recordio|npy SECONDS [SEED]

The parts of a dataset are fuzzed with atheris (`pip install atheris`), guided by coverage: SCRATCH is an empty folder, a file
of DATASET is what the fuzzer starts from, and options are for instance -max_total_time=60 -max_len=65536.

Files of other formats are those of tests/interop, changed at random: bits flipped, numbers replaced, parts cut, doubled and
moved, files compressed and compressed files changed. Where a format has checksums, they are made right again for half of the
changes, since nearly all others end there. Memory is limited to MEMORY beyond what the process has at the start.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import xxhash
import zstandard

INTEROP = Path(__file__).resolve().parent.parent / "tests" / "interop"

MEMORY = 1 << 30
"""How much memory reading a file of a few kB may take: four times the largest record that is read."""

INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 511, 512, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
"""Numbers that lengths and offsets go wrong at."""


# --- parts of a dataset, with atheris ---


def read_shard(path: Path) -> None:
    from shardctl.shard import ShardReader

    reader = ShardReader(path)
    for number, block in enumerate(reader.blocks()):
        block.slice(0, 2).to_pylist()
        reader.block_is_intact(number)


def read_manifest(path: Path) -> None:
    from shardctl.manifest import Manifest

    Manifest.load(path.parent)


def read_shards(path: Path) -> None:
    from shardctl.tables import ShardTable

    list(ShardTable(path))


def read_files(path: Path) -> None:
    from shardctl.stored import StoredDataset

    stored = StoredDataset(path.parent)
    for number in range(min(1000, stored.files.num_rows)):
        stored.file(number)
    stored.find("some.txt#3")


def read_units(path: Path) -> None:
    from shardctl.stored import StoredDataset

    stored = StoredDataset(path.parent)
    for shard in range(len(stored.shards)):
        units = stored.units(shard)
        units.of_row(0)


PARTS = {
    "manifest": ("manifest.json", read_manifest),
    "shards": ("shards.arrow", read_shards),
    "files": ("files.arrow", read_files),
    "plan": ("plan.arrow", read_units),
    "shard": ("train-00000.arrow", read_shard),
}


def fuzz_part(what: str, dataset: str, scratch: str, options: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["shardctl"]):
        import shardctl.shard
        import shardctl.stored  # noqa: F401 - the readers use them
    from shardctl.errors import ShardctlError
    from shardctl.tables import TABLES

    name, read = PARTS[what]
    corpus, victim = Path(scratch) / "corpus", Path(scratch) / name
    corpus.mkdir()
    shutil.copy(Path(dataset) / name, corpus)
    for table in ("manifest.json", *TABLES):
        shutil.copy(Path(dataset) / table, scratch)

    def one(data: bytes) -> None:
        victim.write_bytes(data)
        with contextlib.suppress(ShardctlError):
            read(victim)

    atheris.Setup([sys.argv[0], str(corpus), *options], one)
    atheris.Fuzz()


# --- files of other formats ---


def read_records(path: Path) -> int:
    """Read a file as conversions do, and return how many records it has. Raises ShardctlError."""
    from shardctl.sources.endings import ending_of
    from shardctl.sources.formats import find_format
    from shardctl.sources.formats.base import Misfit, Reading, Unit
    from shardctl.sources.types import Types

    reading, size = Reading(), path.stat().st_size
    form = find_format(ending_of(path.name, str(path)), reading)
    cuts = form.join(json.loads(json.dumps([form.scan(str(path), *piece, reading) for piece in form.pieces(size)])), size)
    first, units = 1, []
    for cut in cuts or ():
        if cut.fault is None:
            units.append(Unit(cut.offset, cut.size, 0, first, cut.records))
        first += cut.records
    if not units:
        return 0
    types = reduce(Types.join, [form.types(str(path), unit, reading) for unit in units])
    Types.from_json(json.loads(json.dumps(types.to_json())))
    schema, found = types.found(), 0
    for unit in units:
        try:
            for part in form.read(str(path), unit, reading, schema, None, xxhash.xxh3_64()):
                part.batch.validate(full=True)
                found += len(part.numbers)
        except Misfit as misfit:  # the types are those of these very records
            raise AssertionError(f"its own types do not fit: {misfit}") from misfit
    return found


def changed(data: bytes, draw: random.Random) -> bytes:
    """Return a file with one to four changes."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(found) + 1)
        kind = draw.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            width = draw.choice((1, 2, 4, 8))
            number = (draw.choice(INTERESTING) + draw.randrange(-2, 3)) % (1 << 8 * width)
            found[at : at + width] = number.to_bytes(width, draw.choice(("little", "big")))
        elif kind == 2:
            del found[at : at + draw.choice((1, 4, 8, 12, 16, 512, 1024))]
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            start, length = draw.randrange(len(found) + 1), draw.choice((1, 8, 100, 512, 1024))
            found[at:at] = found[start : start + length]
        else:
            start, length = draw.randrange(len(found) + 1), draw.choice((1, 8, 100, 512))
            found[at : at + length] = found[start : start + length]
    return bytes(found)


def with_tar_checksums(data: bytes, _: random.Random) -> bytes:
    """Return a tar whose headers have right checksums, wherever something is in a block that looks like a header."""
    found = bytearray(data)
    for at in range(0, len(found) - 511, 512):
        if found[at + 257 : at + 262] == b"ustar":
            found[at + 148 : at + 156] = b" " * 8
            found[at + 148 : at + 156] = b"%06o\0 " % sum(found[at : at + 512])
    return bytes(found)


def with_crcs(data: bytes, draw: random.Random) -> bytes:
    """Return a TFRecord file whose records have right checksums, and changes within their data."""
    import google_crc32c

    from shardctl.sources.formats.tfrecord import masked

    records, at = [], 0
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            break
        record = data[at + 12 : at + 12 + length]
        records.append(changed(record, draw) if draw.randrange(2) else record)
        at += 16 + length
    made = b""
    for record in records:
        head = struct.pack("<Q", len(record))
        made += head + struct.pack("<I", masked(google_crc32c.value(head)))
        made += record + struct.pack("<I", masked(google_crc32c.value(record)))
    return made


def as_it_is(data: bytes, _: random.Random) -> bytes:
    return data


Mend = Callable[[bytes, random.Random], bytes]

FORMATS: dict[str, tuple[str, str, Mend, tuple[str, ...]]] = {
    "webdataset": ("webdataset/*.tar", "a.tar", with_tar_checksums, ()),
    "tfrecord": ("tfrecord/*.tfrecord", "a.tfrecord", with_crcs, ()),
    "tfds": ("tfds/*-of-*", "toy-train.tfrecord-00000-of-00001", with_crcs, ("features.json", "label.labels.txt")),
    "mds": ("mds/plain/*.mds", "shard.00000.mds", as_it_is, ("index.json",)),
    "recordio": ("recordio/*.rec", "a.rec", as_it_is, ()),
    "npy": ("webdataset/*.tar", "a.tar", with_tar_checksums, ()),
}
"""Which files each begins with, how a changed one is called, what makes its checksums right, and files that lie beside it."""


def seeds_of(what: str) -> list[bytes]:
    if what != "npy":
        return [path.read_bytes() for path in sorted(INTEROP.glob(FORMATS[what][0]))]
    import io
    import tarfile

    import numpy as np

    found = []
    for array in (
        np.zeros((3, 4)),
        np.arange(5, dtype="<i2"),
        np.zeros((0, 2), "?"),
        np.array(3, np.float16),
        np.zeros(2, "U3"),
    ):
        member, sink = io.BytesIO(), io.BytesIO()
        np.lib.format.write_array(member, array)
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
            info = tarfile.TarInfo("a.npy")
            info.size = len(member.getvalue())
            tar.addfile(info, io.BytesIO(member.getvalue()))
        found.append(sink.getvalue())
    return found


def written_in(folder: Path, what: str, draw: random.Random, seeds: list[bytes]) -> Path:
    """Write a changed file, with those beside it, into an empty folder."""
    pattern, name, mend, beside = FORMATS[what]
    source = INTEROP / Path(pattern).parent
    for each in beside:
        data = (source / each).read_bytes()
        if each == "index.json" and draw.randrange(2):
            continue
        (folder / each).write_bytes(data if draw.randrange(4) else changed(data, draw))
    data = draw.choice(seeds)
    if draw.randrange(8):
        data = changed(data, draw)
    if draw.randrange(2):
        data = mend(data, draw)
    packed = draw.randrange(8)
    if packed < 3:
        data = (gzip.compress, zlib.compress, zstandard.compress)[packed](data)
        data = changed(data, draw) if draw.randrange(2) else data
    path = folder / name
    path.write_bytes(data)
    return path


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def fuzz_format(what: str, seconds: float, seed: int) -> None:
    """Read changed files until the time is over. Exits with 1, having kept the file, if one gives another error than ours."""
    from shardctl.errors import Rejection, ShardctlError

    draw, seeds, counts = random.Random(seed), seeds_of(what), Counter[str]()
    end, tried, slowest = time.monotonic() + seconds, 0, 0.0
    limited = False
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as scratch:
            path = written_in(Path(scratch), what, draw, seeds)
            start = time.monotonic()
            try:
                counts["records" if read_records(path) else "no record"] += 1
            except (Rejection, ShardctlError) as error:
                counts[getattr(error, "error", type(error).__name__)] += 1
            except BaseException:  # noqa: BLE001 - whatever it is, it is a fault
                kept = Path(tempfile.mkdtemp(prefix=f"fuzz-{what}-"))
                shutil.copytree(scratch, kept, dirs_exist_ok=True)
                traceback.print_exc()
                sys.exit(f"{what}: kept in {kept}, after {tried} files (seed {seed})")
            slowest = max(slowest, time.monotonic() - start)
        tried += 1
        if tried == 200 and not limited:  # what is imported is imported
            limit_memory()
            limited = True
    shown: dict[str, Any] = dict(counts.most_common())
    print(f"{what}: {tried:,} files, slowest {slowest:.2f} s, seed {seed}: {shown}")


def main() -> None:
    what, *given = sys.argv[1:]
    if what in FORMATS:
        fuzz_format(what, float(given[0]), int(given[1]) if len(given) > 1 else random.SystemRandom().getrandbits(32))
    else:
        fuzz_part(what, given[0], given[1], given[2:])


if __name__ == "__main__":
    main()
