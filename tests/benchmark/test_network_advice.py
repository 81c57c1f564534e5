"""What a network allows, against cases that were computed by hand."""

from __future__ import annotations

import pytest

from shardctl.benchmark.network import Amount, Network, over_network, requests_at_once
from shardctl.errors import UsageError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("2Gbit", 250e6),
        ("2 Gbit/s", 250e6),
        ("2Gbps", 250e6),
        ("100mbit", 12.5e6),
        ("250MB", 250e6),
        ("0.25GB/s", 250e6),
        ("250MiB", 250 * MIB),
        ("800bit", 100),
        ("100B", 100),
        ("1.5kB", 1500),
    ],
)
def test_a_bandwidth_is_in_bits_or_bytes(text, bytes_per_s):
    assert Network.parse(text, None, None) == Network(pytest.approx(bytes_per_s), 0.0, 0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30ms", 0.03), ("500us", 0.0005), ("0.1s", 0.1), ("0ms", 0.0)]
)
def test_a_latency_has_a_unit(text, seconds):
    found = Network.parse("2Gbit", text, "500GB")
    assert found == Network(250e6, pytest.approx(seconds), 500 * 10**9)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "limit", "said"),
    [
        (
            "2Gb",
            None,
            None,
            "a bandwidth of '2Gb' is not clear; write it per second with its unit",
        ),
        ("2GBps", None, None, "is not clear"),
        ("fast", None, None, "is not clear"),
        ("2000000", None, None, "is not clear"),
        (2e9, None, None, "is not clear"),
        ("-2Gbit", None, None, "is not clear"),
        ("", None, None, "is not clear"),
        ("0Gbit", None, None, "a bandwidth of 0Gbit is impossible; give at least 1B"),
        ("9" * 400 + "Gbit", None, None, "is impossible"),
        ("2Gbit", "30", None, "a latency of '30' is not clear; write it with its unit: 30ms"),
        ("2Gbit", 0.03, None, "is not clear"),
        ("2Gbit", "-30ms", None, "is not clear"),
        ("2Gbit", "9" * 400 + "s", None, "is impossible"),
        ("2Gbit", None, "much", "'much' is not a size"),
        ("2Gbit", None, -1, "cache limit: -1 bytes are impossible"),
        (None, "30ms", None, "--latency needs --bandwidth"),
        (None, None, "1GB", "--cache-limit needs --bandwidth"),
    ],
)
def test_what_is_no_network_is_wrong_usage(bandwidth, latency, limit, said):
    with pytest.raises(UsageError, match=said):
        Network.parse(bandwidth, latency, limit)


def test_without_a_bandwidth_there_is_none():
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
    assert requests_at_once(4 * MIB) == 64
    assert requests_at_once(1 * MIB) == 64
    assert requests_at_once(64 * MIB) == 4
    assert requests_at_once(1024 * MIB) == 1
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
        (900, 0.9, 5_000, "consumer", "keeps-up"),
        (2_000, 1.0, 5_000, "consumer", "keeps-up"),
    ],
)
def test_a_cache_takes_its_share_from_the_network(cached, share, later, limit, verdict):
    found = over_network(Network(100e6, 0.0, cached * 10**9), LARGE, decode=5_000, consumer=2_500)
    assert found.cached_share == share
    assert (found.first.samples_per_s, found.first.verdict) == (1_000, "starves")
    assert (found.later.samples_per_s, found.later.limit, found.later.verdict) == (
        later,
        limit,
        verdict,
    )


def test_a_slow_decoder_is_named_and_not_the_network():
    found = over_network(Network(1e9), LARGE, decode=1_000, consumer=2_500)
    assert (found.first.limit, found.first.utilization) == ("decode", 0.4)
    assert found.read_once_s == 10_000


def test_a_rate_a_little_below_that_of_the_consumer_is_enough():
    found = over_network(Network(225e6), LARGE, decode=5_000, consumer=2_500)
    assert (found.first.utilization, found.first.verdict, found.first.limit) == (
        0.9,
        "keeps-up",
        "network",
    )


def test_a_small_dataset_has_16_shards_that_bound_its_blocks():
    small = Amount.of(1_600, 10_000, 4 * MIB)
    assert small.block_bytes == 1_000_000
    assert small.blocks_per_shard == 1
