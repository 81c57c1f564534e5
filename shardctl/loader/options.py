"""The options of a loader."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardctl.errors import UsageError
from shardctl.images.defaults import CENTRE
from shardctl.loader.blocks import GatherOptions, Transforms
from shardctl.loader.order import OrderOptions
from shardctl.loader.shared_options import THREADS
from shardctl.system.arguments import real_number, whole_number
from shardctl.system.dataclass import dataclass

if TYPE_CHECKING:
    from shardctl.transforms.image.views import Resize

REMAINDERS = ("uneven", "pad", "drop")
MOST_PROCESSES = 256


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are made. docs/loader.md says what each option costs.

    `batch_size` is per rank. `rank` and `world_size` None mean rank 0 of 1, unless shardctl.torch
    finds others. `remainder` is the rule for the last batch of an epoch if not all ranks can have a
    full one: "uneven" divides the remaining samples (some ranks may get one batch less), "pad"
    fills it up with the epoch's first samples, "drop" (or `drop_last`) leaves it out. None is "pad"
    for several ranks, so that all of them get equally many batches, and "uneven" for one.
    `prefetch` is the number of batches made ahead, `repeat` the number of epochs in one iteration,
    None for no end. `bucket` {column: batches} makes batches of samples of similar length in that
    column, by sorting the samples of each group of that many batches; `seed` shuffles those
    batches. With `reuse`, the next batch overwrites the arrays of this one. `repeated` adds the
    field `repeated` to batches: True for the samples with which "pad" fills one up. With
    `processes`, that many worker processes make the batches, together in `threads` threads; None
    uses this process.
    """

    batch_size: int
    rank: int | None = None
    world_size: int | None = None
    threads: int | str = "auto"
    drop_last: bool = False
    remainder: str | None = None
    prefetch: int | None = None
    repeat: int | None = 1
    bucket: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    reuse: bool = False
    processes: int | None = None
    repeated: bool = False

    def check(self) -> None:
        """Raise UsageError for impossible numbers."""
        if whole_number("batch_size", self.batch_size) < 1:
            raise UsageError(f"a batch size of {self.batch_size} is impossible; give at least 1")
        for name in ("rank", "world_size", "prefetch", "repeat"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        rank, world_size = self.place
        if not 0 <= rank < world_size:
            more = "; give world_size too" if self.world_size is None else ""
            raise UsageError(
                f"rank must be 0 to {world_size - 1} (world_size - 1); it is {rank}{more}"
            )
        THREADS.check("threads", self.threads)
        self._check_processes()
        if self.remainder is not None and self.remainder not in REMAINDERS:
            raise UsageError(
                f"remainder {self.remainder!r} is not known; use {', '.join(REMAINDERS)}"
            )
        if self.drop_last and self.remainder == "pad":
            raise UsageError(
                "drop_last and remainder='pad' contradict each other; give one of them"
            )
        if self.prefetch is not None and self.prefetch < 1:
            raise UsageError(f"prefetch must be at least 1; it is {self.prefetch}")
        if len(self.bucket) > 1 or any(
            whole_number("bucket", batches) < 1 for batches in self.bucket.values()
        ):
            raise UsageError(
                "bucket names one column and a number of batches to sort; it is "
                f"{dict(self.bucket)}"
            )
        if self.repeat is not None and self.repeat < 1:
            raise UsageError(f"repeat must be at least 1, or None for no end; it is {self.repeat}")

    def _check_processes(self) -> None:
        """Raise UsageError for an impossible number of processes."""
        if self.processes is None:
            return
        if not 1 <= whole_number("processes", self.processes) <= MOST_PROCESSES:
            raise UsageError(
                f"processes must be a number from 1 to {MOST_PROCESSES}, or None; it is "
                f"{self.processes}"
            )
        if self.threads != "auto" and int(self.threads) < self.processes:
            raise UsageError(
                f"processes={self.processes} and threads={self.threads}: each process needs a "
                "thread; give"
                f" threads={self.processes} or more, or 'auto'"
            )

    def check_keeping(self, who: str) -> None:
        """Raise UsageError if `reuse` is set: `who` keeps batches for longer than it allows."""
        if self.reuse:
            raise UsageError(f"{who} holds batches for longer than reuse=True allows; leave it out")

    @property
    def place(self) -> tuple[int, int]:
        """The rank and the world size; the default is rank 0 of 1."""
        return self.placed_at(0, 1)

    def placed_at(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return the rank and the world size that were given; the arguments are the defaults."""
        given_world = world_size if self.world_size is None else self.world_size
        return (rank if self.rank is None else self.rank), given_world

    @property
    def global_batch(self) -> int:
        """Samples in one step of all ranks together."""
        return self.batch_size * self.place[1]

    @property
    def rule(self) -> str:
        """The rule for the last, incomplete batch: one of REMAINDERS."""
        if self.drop_last:
            return "drop"
        return self.remainder or ("pad" if self.place[1] > 1 else "uneven")

    @property
    def drops(self) -> bool:
        """Whether the last, incomplete batch is left out."""
        return self.rule == "drop"


@dataclass(frozen=True)
class StreamOptions:
    """Which samples are read, in which order, and how they are returned."""

    order: OrderOptions
    columns: tuple[str, ...] | None = None
    transforms: Transforms = field(default_factory=Transforms)
    gather: GatherOptions = field(default_factory=GatherOptions)


def cache_bytes(cache: Any) -> int:
    """Return a number of bytes."""
    size = int(real_number("cache", cache))
    if size < 0:
        raise UsageError(f"cache must be a number of bytes, 0 or more; it is {size}")
    return size


def crop_size(crop: Any) -> tuple[int, int] | None:
    """Return (height, width) from one number, from two, or from "WIDTHxHEIGHT"."""
    if crop is None:
        return None
    size = _size("crop", crop)
    return (size, size) if isinstance(size, int) else size


def _size(option: str, value: Any) -> int | tuple[int, int]:
    """Return one number, or (height, width)."""
    if isinstance(value, str):
        from shardctl.transforms.settings import Sides

        try:
            parsed = Sides().read(value)
        except ValueError as error:
            raise UsageError(f"{option} {error}; it is {value!r}") from None
        return parsed if isinstance(parsed, int) else parsed[::-1]
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise UsageError(f"{option} takes one number or (height, width); it is {value!r}")
        height, width = (whole_number(option, side) for side in value)
        return height, width
    return whole_number(option, value)


def resize_step(resize: Any) -> Resize | None:
    """Return the same transform as in a conversion, where width comes before height."""
    if resize is None:
        return None
    from shardctl.transforms.image.views import Resize  # 20 ms, which most loaders never need

    size = _size("resize", resize)
    step: Resize = Resize.parse(size=size if isinstance(size, int) else size[::-1])
    return step


def kept_objects(keep: Any) -> float | str:
    """Return the share of an object that must be inside of a moved image, or "center"."""
    if isinstance(keep, str) and keep == CENTRE:
        return keep
    share = math.nan if isinstance(keep, str) else real_number("keep_objects", keep)
    if not 0 <= share <= 1:
        raise UsageError(
            f"keep_objects is a share of the area from 0 to 1, or 'center'; it is {keep!r}"
        )
    return share


def probability(flip: Any) -> float:
    """Return the probability of mirroring an image."""
    if isinstance(flip, bool | np.bool_):
        return 0.5 if flip else 0.0
    share = real_number("flip", flip)
    if not 0 <= share <= 1:
        raise UsageError(
            f"flip is True (for half of the images), or a probability from 0 to 1; it is {flip!r}"
        )
    return share
