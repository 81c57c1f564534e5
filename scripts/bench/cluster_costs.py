"""What grows with the data and not with the cluster: tables, listing, markers, the commit, requests
and their price.

All of it is arithmetic with the figures below. Each says where it comes from: MEASURED ones were
measured on the machine of docs/performance.md with 2 cores, by the command that is named, and are
extrapolated here; ASSUMED ones were not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster_model import MIB, Cluster, Store, Work


@dataclass(frozen=True)
class Measured:
    """Figures that were measured with shardctl. Sizes are bytes, times seconds.

    `scripts/bench/bench_commit.py` (2026-11-23, file system): what a shard and a unit add to the
    tables and to the commit.
    """

    file_row: float = 16.0
    """files.arrow, of each file, besides its path: 41 with paths of 25 characters."""
    plan_row: float = 80.1
    """plan.arrow, of each unit."""
    shard_row: float = 155.0
    """shards.arrow, of each shard of one block; a block more adds 4."""
    marker: float = 1529.0
    marker_unit: float = 32.5
    """The done marker of a shard, and what it has of each of its units."""
    commit_shard: float = 223e-6
    commit_unit: float = 0.39e-6
    """Commit.run: of each shard, and of each unit."""
    listed: float = 98_000.0
    """Files per second that are listed and planned: docs/dev/measurements/convert.md, "Listing" (10
    million files)."""
    listed_memory: float = 107.0
    """Memory of the parent by file while it lists (the same section)."""
    counted: float = 4.87e9 / 1.8
    """Bytes per second in which lines are cut and counted (page cache):
    docs/dev/measurements/text.md, "100 million lines"."""
    ray_task: float = 0.0012
    """Seconds of Ray's driver for each task: a prototype with three nodes on one machine (Ray 2.60,
    2026-11-21)."""


@dataclass(frozen=True)
class Assumed:
    """Figures that were not measured: look at your own store, machines and prices.

    Prices are list prices of S3 Standard and EC2 in us-east-1, as they were known on 2026-11-23.
    Their sources are in docs/explanation/scale.md. Lower prices for large amounts of storage are
    left out.
    """

    core_hour: float = 0.05
    put_price: float = 0.005 / 1000
    """PUT, COPY, POST and LIST."""
    get_price: float = 0.0004 / 1000
    month_price: float = 0.023 / 1e9
    """A byte for a month."""
    list_page: int = 1000
    list_seconds: float = 0.1
    """A page of LIST, one after the other."""
    get_seconds: float = 0.03
    gets_in_flight: int = 64
    """What the command `finish` has under way of markers."""
    heartbeat: float = 5.0
    """Seconds between writes of a lease: shardctl/system/file_lease.py."""


MEASURED, ASSUMED = Measured(), Assumed()
PATH = 30
"""Characters of a path (assumed)."""

BLOCK = 4 * MIB
"""Bytes of an uncompressed block: docs/format.md."""

PHOTO = 110e3
"""Bytes of a photo: docs/dev/measurements/convert.md, "Beside a bare loop"."""


@dataclass(frozen=True)
class Recipe:
    """A conversion of which the speed was measured. Rates are of two cores, in bytes read per
    second; `growth` is bytes written by bytes read, which is assumed where `growth_measured` is
    False. `source`: where in the documents the measurement is."""

    name: str
    two_cores: float
    growth: float
    growth_measured: bool
    source: str

    @property
    def core_rate(self) -> float:
        """Bytes per second of one core."""
        return self.two_cores / 2


RECIPES = {
    "photos": Recipe(
        "photos to raw 224x224",
        1048 * PHOTO,
        150_528 / PHOTO,
        True,
        "convert compared with a bare loop",
    ),
    "augment": Recipe(
        "photos, RandAugment, 4 variants as JPEG",
        219 * PHOTO,
        1.0,
        False,
        "Steps of images, the pool",
    ),
    "lines": Recipe(
        "lines of text to zstd blocks", 4.87e9 / 37.1, 2.5 / 4.87, True, "100 million lines"
    ),
    "clean": Recipe(
        "text: cleaned and filtered", 21.5e6, 2.5 / 4.87, False, "Cleaning, filters and duplicates"
    ),
    "tokens": Recipe("text: tokenized, packed with bfd", 62e6, 0.5, False, "Tokens"),
}


@dataclass(frozen=True)
class Source:
    """How raw data lies: bytes of a file, of a unit (a row of the plan), and of a GET.
    `read_first`: all bytes are read before there is a plan, to count the records."""

    name: str
    file_bytes: float
    unit_bytes: float
    get_bytes: float
    read_first: bool


SOURCES = {
    "loose": Source("loose photos of 110 kB", PHOTO, PHOTO, PHOTO, False),
    "tars": Source("tars of 1 GB", 1e9, MIB, 8 * MIB, False),
    "lines": Source("files of lines of 1 GB", 1e9, MIB, 8 * MIB, True),
}


@dataclass(frozen=True)
class Fixed:
    """What one machine does or holds, whatever the cluster: numbers, bytes and seconds."""

    files: float
    units: float
    shards: int
    files_table: float
    plan_table: float
    shards_table: float
    listing_memory: float
    listing_seconds: float
    listing_requests: int
    survey_seconds: float
    markers_bytes: float
    marker_list_requests: int
    commit_seconds: float


def fixed(work: Work, source: Source, cluster: Cluster, store: Store) -> Fixed:
    """Return what a conversion needs besides the building of its shards."""
    files, units = math.ceil(work.data / source.file_bytes), work.data / source.unit_bytes
    blocks = work.data * work.growth / BLOCK
    listing = math.ceil(files / ASSUMED.list_page)
    marker_pages = math.ceil(work.shards / ASSUMED.list_page)
    # all of them are below one prefix
    marker_rate = min(store.get_rate, ASSUMED.gets_in_flight / ASSUMED.get_seconds)
    work_of_commit = work.shards * MEASURED.commit_shard + units * MEASURED.commit_unit
    return Fixed(
        files=files,
        units=units,
        shards=work.shards,
        files_table=files * (MEASURED.file_row + PATH),
        plan_table=units * MEASURED.plan_row,
        shards_table=work.shards * MEASURED.shard_row + blocks * 4,
        listing_memory=files * MEASURED.listed_memory,
        listing_seconds=max(listing * ASSUMED.list_seconds, files / MEASURED.listed),
        listing_requests=listing,
        survey_seconds=work.data / min(MEASURED.counted, cluster.node_rate)
        if source.read_first
        else 0.0,
        markers_bytes=work.shards * MEASURED.marker + units * MEASURED.marker_unit,
        marker_list_requests=marker_pages,
        commit_seconds=marker_pages * ASSUMED.list_seconds
        + max(work.shards / marker_rate, work_of_commit),
    )


@dataclass(frozen=True)
class Price:
    """Requests, hours and dollars of a conversion in which nothing goes wrong."""

    core_hours: float
    hours: float
    gets: float
    puts: float
    lists: float
    machines: float
    requests: float
    month: float


def price(work: Work, source: Source, cluster: Cluster, store: Store) -> Price:
    """Return what a conversion costs. The hours of the cluster are those of its cores; nodes that
    wait are not counted."""
    rest = fixed(work, source, cluster, store)
    core_hours = work.data / work.core_rate / 3600
    hours = work.shards * work.seconds_on(cluster) / cluster.workers / 3600
    gets = work.shards * work.gets + work.shards  # the markers, by the commit
    puts = work.shards * work.puts + hours * 3600 / ASSUMED.heartbeat
    lists = rest.listing_requests + rest.marker_list_requests
    return Price(
        core_hours=core_hours,
        hours=hours,
        gets=gets,
        puts=puts,
        lists=lists,
        machines=hours * cluster.workers * ASSUMED.core_hour,
        requests=gets * ASSUMED.get_price + (puts + lists) * ASSUMED.put_price,
        month=work.data * work.growth * ASSUMED.month_price,
    )


def rates(work: Work, cluster: Cluster, store: Store) -> dict[str, float]:
    """Return what a cluster asks of the store and of Ray's driver, each second, when all cores work
    at full speed."""
    shards = cluster.workers / work.seconds_on(cluster)
    gets, puts = shards * work.gets, shards * work.puts
    return {
        "read": shards * work.data / work.shards,
        "written": shards * work.data * work.growth / work.shards,
        "gets": gets,
        "puts": puts,
        "partitions": math.ceil(max(gets / store.get_rate, puts / store.put_rate)),
        "shards": shards,
        "driver": shards * MEASURED.ray_task,
    }
