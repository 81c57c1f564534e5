"""The options of `advise`: what the command line, Python and the checks know of each.

The command line imports this module before Arrow: each check imports what it needs when it is
called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.benchmark.options import RATE, find_preset
from shardctl.errors import UsageError
from shardctl.loader.options import BATCH_SIZE, THREADS
from shardctl.making.options import WORKERS
from shardctl.system.options import (
    FilePath,
    Flag,
    Option,
    Text,
    ValueType,
    Whole,
    check_options,
    declared_in,
    option,
    option_as,
)
from shardctl.transforms.recipe_options import FIELDS, READING, RECIPE_OPTIONS, STEP_OPTIONS

if TYPE_CHECKING:
    from shardctl.benchmark.network import Network

CONSUMER = "The GPU that trains"
TRIAL = "The trial"
NETWORK = "A dataset that is read over a network"
OUTPUT = "What is printed"
HEADINGS = (CONSUMER, TRIAL, NETWORK, OUTPUT)
"""The headings of the options in `--help`."""


BORROWED = {
    name: each
    for name, each in {**RECIPE_OPTIONS, **STEP_OPTIONS}.items()
    if each.heading in (READING, FIELDS) or name in STEP_OPTIONS
}
"""The options of convert that are options of advise too: how inputs are read, and what is done to
them."""

INPUTS = 300

PROOF_SECONDS = 3.0
"""Seconds that the consumer is fed from the choice that is to be recommended."""


def _check_preset(name: str) -> None:
    if ":" in name:
        raise UsageError("advise takes presets; `shardctl bench` measures a function")
    find_preset(name)


def advise_options() -> dict[str, Option]:
    """Return all options of `advise`, by their names."""
    return {**BORROWED, **declared_in(AdviceOptions)}


@dataclass(frozen=True)
class AdviceOptions:
    """Options of `advise`. Give one of `consumer_rate` (samples/s of one GPU) and `consumer` (a
    preset).

    `inputs` is the number of inputs to try; `workers` processes convert them. If the inputs are
    shards of another tool, `python` is the Python that has their reader. `bandwidth` ("2Gbit",
    "250MB", per second) and `latency` ("30ms") describe the network to the store of the dataset.
    `cache_limit` ("500GB" or a number of bytes) is the size of a local cache. `shardctl advise` has
    the same defaults.
    """

    consumer_rate: float | None = option(
        RATE,
        None,
        "One GPU trains on R samples per second.",
        metavar="R",
        heading=CONSUMER,
        brief="samples/s of one GPU",
    )
    consumer: str | None = option(
        Text(),
        None,
        "One GPU is as fast as in this published run (`shardctl bench --list-consumers`).",
        metavar="PRESET",
        heading=CONSUMER,
        brief="a published run instead of a rate",
        limit=_check_preset,
    )
    gpus: int = option(
        Whole(1),
        1,
        "Number of such GPUs, all fed by one loader.",
        metavar="N",
        shows_default=True,
        heading=CONSUMER,
        brief="number of such GPUs",
    )
    inputs: int = option(
        Whole(1),
        INPUTS,
        "Try with N inputs from all over SRC.",
        metavar="N",
        shows_default=True,
        heading=TRIAL,
    )
    batch_size: int = option_as(BATCH_SIZE, 256, heading=TRIAL)
    threads: int | str = option_as(THREADS, "auto", heading=TRIAL)
    lossless: bool = option(
        Flag(), False, "Do not try jpeg and webp, which change pixels.", heading=TRIAL
    )
    workers: int | str = option_as(WORKERS, "auto", heading=TRIAL)
    python: str | None = option(
        FilePath(),
        None,
        "If SRC is another tool's shards: the Python with their reader. Default: this one.",
        metavar="PATH",
        heading=TRIAL,
    )
    bandwidth: str | None = option(
        Text(),
        None,
        "If the dataset will be on a store: the network's speed per second, 2Gbit or 250MB, to "
        "compute how fast it can be read.",
        metavar="RATE",
        heading=NETWORK,
    )
    latency: str | None = option(
        Text(),
        None,
        "Time until the store begins to answer, for instance 30ms.",
        metavar="TIME",
        heading=NETWORK,
    )
    cache_limit: int | str | None = option(
        ValueType("int | str"),
        None,
        "Size of the local cache of the store, for instance 500GB. Default: none.",
        metavar="SIZE",
        heading=NETWORK,
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
                "how fast is the consumer? Give --consumer-rate (samples/s of one GPU) or "
                "--consumer (a preset)"
            )
        check_options(self)
        if self.consumer_rate is not None:
            from shardctl.benchmark.measure.consumers import check_patience

            check_patience(self.consumer_rate * self.gpus, self.batch_size, PROOF_SECONDS)
        _ = self.network
