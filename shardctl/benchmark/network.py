"""What a network allows: how fast samples that are stored in some way come from a store. This is
computed, and not measured.

A loader without a cache requests blocks, so many at a time (system/fetching.py). Two
bounds hold then, and the lower one is the rate: all blocks share the bandwidth, and each request is
answered after the latency. Measured beside a store of a known bandwidth and latency:
docs/dev/measurements.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from shardctl.benchmark.measure.result import ENOUGH, KEEPS_UP, STARVES
from shardctl.errors import UsageError
from shardctl.making.convert.conversion_plan import FEWEST_SHARDS, SHARD_BYTES
from shardctl.system.fetching import AHEAD_BYTES, AT_ONCE
from shardctl.system.text import size_of

SHARD_REQUESTS = 2
"""Requests that come before the first block of a shard: what it is now (HEAD), and its footer."""

_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?) *([kKmMgGtT]?)(i?)(bits?|Bits?|bps|B)(?:/s)?")
"""Neither 2Gb nor 2GBps: they are bits to some, and bytes to others."""

_TIME = re.compile(r"(\d+(?:\.\d+)?) *(us|ms|s)")

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Network:
    """The way to a store: the bandwidth, the time from a request until its answer begins, and the
    cache on this side of it.

    `cache_bytes` is 0 without a cache.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    cache_bytes: int = 0

    @classmethod
    def parse(
        cls, bandwidth: str | None, latency: str | None, cache_limit: int | str | None
    ) -> Network | None:
        """Return the network that is described so; None if none is.

        Raises UsageError for texts that are none of these, and for a latency or a cache of no
        network.
        """
        if bandwidth is None:
            for name, given in (("latency", latency), ("cache-limit", cache_limit)):
                if given is not None:
                    raise UsageError(f"--{name} needs --bandwidth, for instance 2Gbit")
            return None
        cache = 0 if cache_limit is None else size_of(cache_limit, "cache limit")
        return cls(_bytes_per_s(bandwidth), 0.0 if latency is None else _seconds(latency), cache)


def _matched(form: re.Pattern[str], text: str, what: str, how: str) -> re.Match[str]:
    found = form.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise UsageError(f"a {what} of {text!r} is not clear; write it {how}")
    return found


def _bytes_per_s(text: str) -> float:
    """Return the bytes per second that a text such as 2Gbit or 250MB/s means."""
    found = _matched(
        _BANDWIDTH, text, "bandwidth", "per second with its unit: 2Gbit, 250MB or 250MiB"
    )
    rate: float = float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(
        found[2].upper() or " "
    )
    rate /= 1 if found[4] == "B" else 8
    if not (math.isfinite(rate) and rate >= 1):
        raise UsageError(f"a bandwidth of {text} is impossible; give at least 1B")
    return rate


def _seconds(text: str) -> float:
    """Return the seconds that a text such as 30ms means."""
    found = _matched(_TIME, text, "latency", "with its unit: 30ms, 500us or 0.1s")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if not math.isfinite(seconds):
        raise UsageError(f"a latency of {text} is impossible; write for instance 30ms")
    return seconds


@dataclass(frozen=True)
class Amount:
    """All samples, stored in one way: their number, the bytes of one and of a whole block, both as
    they are stored."""

    samples: float
    sample_bytes: float
    block_bytes: float

    @classmethod
    def of(cls, samples: float, sample_bytes: float, block_bytes: float) -> Amount:
        """Return the amount for blocks of this size, or of one sample if that is larger, or of a
        shard if that is smaller."""
        shard = samples * sample_bytes / FEWEST_SHARDS
        return cls(samples, sample_bytes, max(sample_bytes, min(block_bytes, shard)))

    @property
    def bytes(self) -> float:
        """The bytes of all samples."""
        return self.samples * self.sample_bytes

    @property
    def blocks_per_shard(self) -> float:
        """How many blocks a shard of the default size has."""
        return max(1.0, min(SHARD_BYTES, self.bytes / FEWEST_SHARDS) / self.block_bytes)


@dataclass(frozen=True)
class Epoch:
    """One epoch over a network: the rate of the loader in samples/s, the utilisation of the
    consumer, and the verdict of bench.

    `limit` is the slowest part: network, decode (whatever the loader does with a block that is
    here), or consumer.
    """

    samples_per_s: float
    utilization: float
    limit: str
    verdict: str

    @property
    def keeps_up(self) -> bool:
        """Whether the consumer is kept busy."""
        return self.verdict == KEEPS_UP


@dataclass(frozen=True)
class OverNetwork:
    """What a network does to one way of storing samples.

    `samples_per_s` is the rate of the network alone if every block comes over it, and `waits_for`
    what bounds that: bandwidth or latency. `read_once_s` is the time of reading all samples once
    with no consumer, `cached_share` the share of them that the cache holds in `later` epochs.
    """

    samples_per_s: float
    waits_for: str
    read_once_s: float
    cached_share: float
    first: Epoch
    later: Epoch


def over_network(network: Network, amount: Amount, decode: float, consumer: float) -> OverNetwork:
    """Return how fast samples come over a network. `decode` is the rate of local data, `consumer`
    what is needed."""
    bandwidth, latency = _bounds(network, amount)
    rate = min(bandwidth, latency)
    share = min(1.0, network.cache_bytes / amount.bytes)
    later = rate / (1 - share) if share < 1 else math.inf
    return OverNetwork(
        samples_per_s=round(rate, 1),
        waits_for="bandwidth" if bandwidth <= latency else "latency",
        read_once_s=round(amount.samples / min(rate, decode), 1),
        cached_share=round(share, 4),
        first=_epoch(rate, decode, consumer),
        later=_epoch(later, decode, consumer),
    )


def requests_at_once(block_bytes: float) -> int:
    """Return how many blocks of this size a loader requests at the same time."""
    return min(AT_ONCE, math.ceil(AHEAD_BYTES / block_bytes))


def _bounds(network: Network, amount: Amount) -> tuple[float, float]:
    """Return the rate that the bandwidth allows, and the one that the latency allows, in
    samples/s."""
    block_s = amount.block_bytes / network.bytes_per_s
    waiting = network.latency_s * (1 + SHARD_REQUESTS / amount.blocks_per_shard)
    blocks_per_s = requests_at_once(amount.block_bytes) / (waiting + block_s)
    return (
        network.bytes_per_s / amount.sample_bytes,
        blocks_per_s * amount.block_bytes / amount.sample_bytes,
    )


def _epoch(network: float, decode: float, consumer: float) -> Epoch:
    rate = min(network, decode)
    limit = "consumer" if rate >= consumer else "network" if network < decode else "decode"
    utilization = min(1.0, rate / consumer)
    return Epoch(
        round(rate, 1), round(utilization, 4), limit, KEEPS_UP if utilization >= ENOUGH else STARVES
    )
