"""What a network allows, against cases that were computed by hand."""

from __future__ import annotations

import pytest

from shardctl.benchmark.network import Amount, Network, over_network, requests_at_once
from shardctl.errors import UsageError

MIB = 1 << 20


def test_a_bandwidth_is_in_bits_or_bytes():
    given = {
        **dict.fromkeys(("2Gbit", "2 Gbit/s", "2Gbps", "250MB", "0.25GB/s"), 250e6),
        "100mbit": 12.5e6,
        "250MiB": 250 * MIB,
        "800bit": 100,
        "100B": 100,
        "1.5kB": 1500,
    }
    for text, rate in given.items():
        assert Network.parse(text, None, None) == Network(pytest.approx(rate), 0.0, 0)


def test_a_latency_has_a_unit():
    for text, seconds in {"30ms": 0.03, "500us": 0.0005, "0.1s": 0.1, "0ms": 0.0}.items():
        found = Network.parse("2Gbit", text, "500GB")
        assert found == Network(250e6, pytest.approx(seconds), 500 * 10**9)


def test_what_is_no_network_is_wrong_usage():
    unclear = ("2Gb", "2GBps", "fast", "2000000", 2e9, "-2Gbit", "")
    huge = "9" * 400
    for given, said in (
        *(((bandwidth, None, None), "is not clear") for bandwidth in unclear),
        (("0Gbit", None, None), "impossible; give at least 1B"),
        ((f"{huge}Gbit", None, None), "is impossible"),
        *((("2Gbit", latency, None), "is not clear") for latency in ("30", 0.03, "-30ms")),
        (("2Gbit", f"{huge}s", None), "is impossible"),
        (("2Gbit", None, "much"), "'much' is not a size"),
        (("2Gbit", None, -1), "-1 bytes are impossible"),
        ((None, "30ms", None), "--latency needs --bandwidth"),
        ((None, None, "1GB"), "--cache-limit needs --bandwidth"),
    ):
        with pytest.raises(UsageError, match=said):
            Network.parse(*given)
    assert Network.parse(None, None, None) is None


LARGE = Amount.of(10_000_000, 100_000, 4 * MIB)
"""1 TB of samples of 100 kB: shards of 128 MiB with 32 blocks."""


def test_the_bandwidth_is_shared_by_all_blocks():
    found = over_network(Network(200e6), LARGE, decode=5_000, consumer=2_500)
    assert (found.samples_per_s, found.waits_for) == (2_000, "bandwidth")
    assert found.read_once_s == 5_000
    assert (found.first.samples_per_s, found.first.utilization) == (2_000, 0.8)
    assert (found.first.limit, found.first.verdict) == ("network", "starves")
    assert (found.later, found.cached_share) == (found.first, 0.0)


def test_the_latency_bounds_what_is_requested_at_a_time():
    """64 blocks of 4 MiB, which is all that may be under way, in each 10 s of latency, 2 / 32 more
    for footers, and 4.2 ms."""
    found = over_network(Network(1e9, 10.0), LARGE, decode=5_000, consumer=200)
    seconds = 10 * (1 + 2 / 32) + 4 * MIB / 1e9
    assert found.samples_per_s == pytest.approx(64 * 4 * MIB / seconds / 100_000, abs=0.1)
    assert found.waits_for == "latency"
    assert (found.first.limit, found.first.verdict) == ("consumer", "keeps-up")


def test_large_blocks_fill_the_memory_before_there_are_64():
    sizes = {1: 64, 4: 64, 64: 4, 1024: 1}
    assert {size: requests_at_once(size * MIB) for size in sizes} == sizes
    samples_of_64_mib = Amount.of(10_000, 64 * MIB, 4 * MIB)
    assert samples_of_64_mib.block_bytes == 64 * MIB
    found = over_network(Network(1e9, 0.0), samples_of_64_mib, decode=1e6, consumer=1.0)
    assert found.samples_per_s == pytest.approx(1e9 / (64 * MIB), abs=0.1)


@pytest.mark.parametrize(
    ("cached", "share", "later", "limit", "verdict"),
    [
        (0, 0.0, 1_000, "network", "starves"),
        (500, 0.5, 2_000, "network", "starves"),
        (750, 0.75, 4_000, "consumer", "keeps-up"),
        (2_000, 1.0, 5_000, "consumer", "keeps-up"),
    ],
)
def test_a_cache_takes_its_share_from_the_network(cached, share, later, limit, verdict):
    found = over_network(Network(100e6, 0.0, cached * 10**9), LARGE, decode=5_000, consumer=2_500)
    assert found.cached_share == share
    assert (found.first.samples_per_s, found.first.verdict) == (1_000, "starves")
    rest = found.later
    assert (rest.samples_per_s, rest.limit, rest.verdict) == (later, limit, verdict)


@pytest.mark.parametrize(
    ("bandwidth", "decode", "limit", "utilization", "verdict"),
    [
        (1e9, 1_000, "decode", 0.4, "starves"),
        (225e6, 5_000, "network", 0.9, "keeps-up"),  # a little below the rate is enough
    ],
)
def test_what_is_slowest_is_named(bandwidth, decode, limit, utilization, verdict):
    first = over_network(Network(bandwidth), LARGE, decode=decode, consumer=2_500).first
    assert (first.limit, first.utilization, first.verdict) == (limit, utilization, verdict)


def test_a_small_dataset_has_16_shards_that_bound_its_blocks():
    small = Amount.of(1_600, 10_000, 4 * MIB)
    assert small.block_bytes == 1_000_000
    assert small.blocks_per_shard == 1
