"""The tables of docs/explanation/scale.md: what a petabyte costs, and what one machine of a large
cluster does alone.

    python scripts/bench/cluster_costs.py

All of it is arithmetic with the figures below. MEASURED ones are of the machine of
docs/performance.md with 2 cores (docs/dev/measurements.md); ASSUMED ones were not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MIB = 1 << 20

# Measured: bytes of a row of each table and of a done marker, seconds of the commit (bench_commit.py).
FILE_ROW, UNIT_ROW, SHARD_ROW, BLOCK_ROW = 16.0 + 30, 80.1, 155.0, 4.0
COMMIT_SHARD, COMMIT_UNIT = 223e-6, 0.39e-6
LISTED = 98_000.0  # files per second (bench_listing.py --files 10000000)
COUNTED = 4.87e9 / 1.8  # bytes of lines per second (bench_text.py --lines 100M)
# Assumed: list prices of S3 and EC2 on 2026-11-23, and a store that answers after so many seconds.
CORE_HOUR, PUT_PRICE, GET_PRICE, MONTH_PRICE = 0.05, 0.005 / 1000, 0.0004 / 1000, 0.023 / 1e9
LIST_PAGE, LIST_SECONDS = 1000, 0.1
MARKERS_PER_SECOND = 64 / 0.03
NODES, CORES, NODE_RATE = 1000, 32, 25e9 / 8
HEARTBEAT = 5.0
PHOTO = 110e3


class Recipe(NamedTuple):
    """A conversion: bytes per second of two cores, and bytes written for each byte read."""

    name: str
    two_cores: float
    growth: float


class Source(NamedTuple):
    """How raw data lies: bytes of a file, of a unit (a row of the plan), and of a GET.
    `read_first`: lines are counted before there is a plan."""

    name: str
    file_bytes: float
    unit_bytes: float
    get_bytes: float
    read_first: bool = False


PHOTOS = Recipe("photos to raw 224x224", 1048 * PHOTO, 150_528 / PHOTO)
AUGMENT = Recipe("photos, RandAugment, 4 variants as JPEG", 219 * PHOTO, 1.0)
TEXT = Recipe("lines of text to zstd blocks", 4.87e9 / 37.1, 2.5 / 4.87)
CLEAN = Recipe("text: cleaned and filtered", 21.5e6, 2.5 / 4.87)
TOKENS = Recipe("text: tokenized, packed with bfd", 62e6, 0.5)

LOOSE = Source("loose photos of 110 kB", PHOTO, PHOTO, PHOTO)
TARS = Source("tars of 1 GB", 1e9, MIB, 8 * MIB)
LINES = Source("files of lines of 1 GB", 1e9, MIB, 8 * MIB, read_first=True)


def cost(source: Source, recipe: Recipe, shard_bytes: int, put_bytes: int) -> list[str]:
    """Return the row of a petabyte on 1,000 nodes of 32 cores."""
    data = 1e15
    shards = math.ceil(data * recipe.growth / shard_bytes)
    pieces = math.ceil(data * recipe.growth / shards / put_bytes)
    rate = recipe.two_cores / 2
    share = NODE_RATE / CORES
    seconds = data / min(rate, share, share / recipe.growth) / (NODES * CORES)
    gets = shards * (math.ceil(data / shards / source.get_bytes) + 1)
    puts = shards * ((1 if pieces == 1 else pieces + 2) + 1) + seconds / HEARTBEAT
    lists = math.ceil(data / source.file_bytes / LIST_PAGE) + math.ceil(shards / LIST_PAGE)
    dollars = (
        seconds / 3600 * NODES * CORES * CORE_HOUR,
        gets * GET_PRICE + (puts + lists) * PUT_PRICE,
        data * recipe.growth * MONTH_PRICE,
    )
    return [
        source.name,
        recipe.name,
        f"{shard_bytes // MIB:,} MiB, by {put_bytes // MIB}",
        f"{data / rate / 3600:,.0f}",
        f"{seconds / 3600:.2f}",
        amount(gets),
        amount(puts),
        *(f"${value:,.0f}" for value in dollars),
    ]


def growth(source: Source, recipe: Recipe, data: float) -> list[str]:
    """Return the row of what one machine does, in shards of 128 MiB."""
    files, units = math.ceil(data / source.file_bytes), data / source.unit_bytes
    shards = math.ceil(data * recipe.growth / (128 * MIB))
    blocks = data * recipe.growth / (4 * MIB)
    commit = max(shards / MARKERS_PER_SECOND, shards * COMMIT_SHARD + units * COMMIT_UNIT)
    return [
        volume(data),
        source.name,
        amount(files),
        amount(shards),
        volume(units * UNIT_ROW),
        volume(files * FILE_ROW),
        volume(shards * SHARD_ROW + blocks * BLOCK_ROW),
        duration(max(math.ceil(files / LIST_PAGE) * LIST_SECONDS, files / LISTED)),
        duration(data / COUNTED) if source.read_first else "-",
        duration(math.ceil(shards / LIST_PAGE) * LIST_SECONDS + commit),
    ]


def tables() -> dict[str, str]:
    """Return the tables of the page by their names there."""
    costs = [
        cost(LOOSE, PHOTOS, 128 * MIB, 8 * MIB),
        cost(TARS, PHOTOS, 128 * MIB, 8 * MIB),
        cost(TARS, PHOTOS, 1024 * MIB, 64 * MIB),
        cost(TARS, AUGMENT, 1024 * MIB, 64 * MIB),
        *(cost(LINES, each, 1024 * MIB, 64 * MIB) for each in (TEXT, CLEAN, TOKENS)),
    ]
    one_machine = [
        growth(source, recipe, data)
        for source, recipe in ((LOOSE, PHOTOS), (TARS, PHOTOS), (LINES, TEXT))
        for data in (1e13, 1e14, 1e15)
    ]
    head = ["1 PB of", "converted", "shard size", "core hours", "hours", "GET", "PUT", "machines"]
    return {
        "cost": table([*head, "requests", "a month"], costs, texts=3),
        "growth": table(
            [
                "data",
                "as",
                "files",
                "shards",
                *(f"{each}.arrow" for each in ("plan", "files", "shards")),
                "list",
                "read first",
                "commit",
            ],
            one_machine,
            texts=2,
        ),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """Return a Markdown table; columns after the first `texts` ones are numbers."""
    marks = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))


def duration(seconds: float) -> str:
    """Return a time with the unit that suits it."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def amount(number: float) -> str:
    """Return a number in short."""
    for unit, factor in (("billion", 1e9), ("million", 1e6)):
        if number >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number:,.0f}"


def volume(size: float) -> str:
    """Return a number of bytes in short."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}"
    return f"{size / 1e3:,.0f} kB"


if __name__ == "__main__":
    print(*tables().values(), sep="\n\n")
