"""The options of a loader, and those of them that commands have. Little is imported: the command
line reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.system.arguments import whole_number
from shardctl.system.options import AutoOrNumber, Many, Option, ValueType, Whole

BATCH_SIZE = Option(Whole(), 256, "Samples in a batch.", metavar="N", shows_default=True)
THREADS = Option(
    AutoOrNumber(1, 1024),
    "auto",
    "Threads that read and decode; auto finds the number while it reads.",
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


def _check_targets(targets: Sequence[str | Path]) -> None:
    from shardctl.loader.metrics import check_target

    for target in targets:
        check_target(target)


METRICS = Option(
    Many(ValueType("str | Path")),
    (),
    "Write figures every few seconds: FILE.jsonl (JSON lines), FILE.prom (Prometheus), http:PORT "
    "(Prometheus, on this"
    " machine) or tensorboard:FOLDER. May be given several times.",
    metavar="FILE",
    limit=_check_targets,
)
