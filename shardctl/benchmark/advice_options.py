"""The options of `advise`: what the command line, Python and the checks know of each.

The command line imports this module before Arrow: each check imports what it needs when it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.build.shared_options import WORKERS
from shardctl.errors import UsageError
from shardctl.loader.shared_options import BATCH_SIZE, THREADS
from shardctl.system.options import Anything, FilePath, Flag, Real, Text, Whole, check_options, option, option_as

if TYPE_CHECKING:
    from shardctl.benchmark.network import Network

INPUTS = 300

PROOF_SECONDS = 3.0
"""Seconds that the consumer is fed from the choice that is to be recommended."""


def _check_rate(rate: float) -> None:
    from shardctl.benchmark.options import check_rate

    check_rate(rate)


def _check_preset(name: str) -> None:
    if ":" in name:
        raise UsageError("advise takes presets only; `shardctl bench --consumer module:function` measures a function")
    from shardctl.benchmark.measure.presets import find_preset

    find_preset(name)


@dataclass(frozen=True)
class AdviceOptions:
    """Options of `advise`. Give one of `consumer_rate` (samples/s of one GPU) and `consumer` (a preset).

    `inputs` is the number of inputs to try; `workers` processes convert them. `python` is the Python that has the reader of
    inputs that are shards of another tool. `bandwidth` ("2Gbit", "250MB", per second) and `latency` ("30ms") describe the
    network to a store that the dataset will be read from, `cache_limit` ("500GB" or a number of bytes) a cache of that size on
    this side of it. `shardctl advise` has the same defaults.
    """

    consumer_rate: float | None = option(
        Real(), None, "One GPU trains on R samples per second.", metavar="R", group="consumer", limit=_check_rate
    )
    consumer: str | None = option(
        Text(),
        None,
        "One GPU is as fast as in this published run (`shardctl bench --list-consumers`).",
        metavar="PRESET",
        group="consumer",
        limit=_check_preset,
    )
    gpus: int = option(
        Whole(), 1, "Number of such GPUs, all fed by one loader.", metavar="N", shows_default=True, group="consumer"
    )
    inputs: int = option(
        Whole(),
        INPUTS,
        "Try with N inputs, evenly spaced over all of SRC.",
        metavar="N",
        shows_default=True,
        group="trial",
        after="lossless",
    )
    batch_size: int = option_as(BATCH_SIZE, 256, group="reading")
    threads: int | str = option_as(THREADS, "auto", group="reading")
    lossless: bool = option(Flag(), False, "Do not try jpeg and webp, which change pixels.", group="trial")
    workers: int | str = option_as(WORKERS, "auto", group="reading")
    python: str | None = option(
        FilePath(),
        None,
        "SRC is shards of another tool: the Python that has their reader. Default: the one that runs shardctl.",
        metavar="PATH",
        group="reading",
    )
    bandwidth: str | None = option(
        Text(),
        None,
        "The dataset will be read from a store over a network of 2Gbit or 250MB per second: compute what that allows.",
        metavar="RATE",
        group="network",
    )
    latency: str | None = option(
        Text(),
        None,
        "Time until the store begins to answer a request, for instance 30ms.",
        metavar="TIME",
        group="network",
    )
    cache_limit: int | str | None = option(
        Anything(),
        None,
        "Size of a cache of what comes from the store, for instance 500GB. Default: no cache.",
        metavar="SIZE",
        group="network",
    )

    @property
    def network(self) -> Network | None:
        """The network that is described, None if none is. Raises UsageError."""
        from shardctl.benchmark.network import Network

        return Network.parse(self.bandwidth, self.latency, self.cache_limit)

    def check(self) -> None:
        """Raise UsageError for impossible numbers."""
        if (self.consumer_rate is None) == (self.consumer is None):
            raise UsageError(
                "how fast is the consumer? Give either --consumer-rate (samples/s of one GPU) or --consumer (a preset)"
            )
        check_options(self)
        if self.gpus < 1 or self.inputs < 1:
            raise UsageError(f"{self.gpus} GPUs and {self.inputs} inputs are impossible; give at least 1 of each")
        if self.consumer_rate is not None:
            from shardctl.benchmark.measure.consumers import check_patience

            check_patience(self.consumer_rate * self.gpus, self.batch_size, PROOF_SECONDS)
        _ = self.network
