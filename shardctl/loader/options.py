"""The options of a loader, and those of them that commands have. Little is imported: the command
line reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.system.arguments import contradiction, whole_number
from shardctl.system.options import AutoOrNumber, Many, Option, ValueType, Whole

BATCH_SIZE = Option(Whole(), 256, "Samples in a batch.", metavar="N", shows_default=True)
THREADS = Option(
    AutoOrNumber(1, 1024),
    "auto",
    "Threads that read and decode; auto finds the number.",
    metavar="auto|N",
    shows_default=True,
)


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

    def __post_init__(self) -> None:
        """Raise UsageError for impossible numbers."""
        for name in ("batch_size", "prefetch", "repeat", "processes", "world_size"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        rank, world_size = self.rank_and_size()
        if not 0 <= whole_number("rank", rank) < world_size:
            more = "; give world_size too" if self.world_size is None else ""
            raise UsageError(
                f"rank must be 0 to {world_size - 1} (world_size - 1); it is {rank}{more}"
            )
        THREADS.check("threads", self.threads)
        processes = self.processes or 1
        if processes > MOST_PROCESSES:
            raise UsageError(f"processes must be at most {MOST_PROCESSES}; it is {processes}")
        if self.threads != "auto" and int(self.threads) < processes:
            raise UsageError(
                f"processes={processes} and threads={self.threads}: each process needs a thread; "
                f"give threads={processes} or 'auto'"
            )
        if self.remainder not in (None, *REMAINDERS):
            raise UsageError(
                f"remainder {self.remainder!r} is not known; use {', '.join(REMAINDERS)}"
            )
        if self.drop_last and self.remainder == "pad":
            raise contradiction("drop_last", "remainder='pad'")
        for batches in self.bucket.values():
            whole_number("bucket", batches, 1)
        if len(self.bucket) > 1:
            raise UsageError(f"bucket names one column; it is {dict(self.bucket)}")

    def check_keeping(self, who: str) -> None:
        """Raise UsageError if `reuse` is set: `who` keeps batches for longer than it allows."""
        if self.reuse:
            raise UsageError(f"{who} holds batches for longer than reuse=True allows; leave it out")

    def rank_and_size(self, rank: int = 0, world_size: int = 1) -> tuple[int, int]:
        """Return the rank and the world size that were given; the arguments are the defaults."""
        given_world = world_size if self.world_size is None else self.world_size
        return (rank if self.rank is None else self.rank), given_world

    @property
    def ranks(self) -> int:
        """The world size."""
        return self.rank_and_size()[1]

    @property
    def global_batch(self) -> int:
        """Samples in one step of all ranks together."""
        return self.batch_size * self.ranks

    @property
    def rule(self) -> str:
        """The rule for the last, incomplete batch: one of REMAINDERS."""
        usual = "pad" if self.ranks > 1 else "uneven"
        return "drop" if self.drop_last else self.remainder or usual

    @property
    def drops(self) -> bool:
        """Whether the last, incomplete batch is left out."""
        return self.rule == "drop"


def _check_targets(targets: Sequence[str | Path]) -> None:
    from shardctl.loader.metrics import check_target

    for target in targets:
        check_target(target)


METRICS = Option(
    Many(ValueType("str | Path")),
    (),
    "Write figures every few seconds: FILE.jsonl, FILE.prom or http:PORT (Prometheus), or "
    "tensorboard:FOLDER. May be given several times.",
    metavar="FILE",
    limit=_check_targets,
)
