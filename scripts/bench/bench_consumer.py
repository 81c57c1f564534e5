"""Is what `bench` says of a consumer true? Rates around what a dataset's loader can do, estimated
and measured.

    python scripts/bench/bench_consumer.py DST... [--runs 3]

For each dataset: the loader's own rate L, then consumers of rates R from 0.5 to 2 L, as many times
as asked for, in turn. Utilisation should be min(1, L / R).
"""

from __future__ import annotations

import argparse
import statistics

import shardctl

SHARES = (0.5, 0.8, 0.95, 1.1, 1.5, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    for dataset in arguments.datasets:
        print(f"{dataset}")
        limit = shardctl.bench(dataset, shuffle=True, runs=5).samples_per_s
        print(f"  the loader's own rate: {limit:,.0f} samples/s")
        found: dict[float, list[float]] = {share: [] for share in SHARES}
        limits: list[float] = []
        for _ in range(arguments.runs):
            for share in SHARES:
                result = shardctl.bench(dataset, shuffle=True, runs=1, consumer_rate=share * limit)
                assert result.consumer is not None
                found[share].append(result.consumer.accelerator_utilization)
                limits.append(result.samples_per_s)
        now = statistics.median(limits)
        print(
            f"  the same over all runs below: {now:,.0f} samples/s, {min(limits):,.0f} to "
            f"{max(limits):,.0f}"
        )
        for share, utilizations in found.items():
            rate = share * limit
            print(
                f"  consumer of {rate:>10,.0f}/s: expected {min(1.0, now / rate):6.1%}, measured"
                f" {statistics.median(utilizations):6.1%} ({min(utilizations):.1%} to "
                f"{max(utilizations):.1%})"
            )


if __name__ == "__main__":
    main()
