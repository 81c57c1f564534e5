"""A loader that is watched: every few seconds its figures go to where they are wanted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

from shardctl.errors import UsageError
from shardctl.loader.loader import LoaderStats
from shardctl.loader.metrics import EVERY_SECONDS, LOADER, Sink, check_target, sinks_at, tell
from shardctl.system.arguments import real_number
from shardctl.transforms.values import describe

Item = TypeVar("Item")


@runtime_checkable
class Counting(Protocol):
    """A loader of shardctl, of a dataset that is complete or still being made."""

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""

    def stats(self) -> LoaderStats | None:
        """Return its figures since the last iteration began, None before the first batch."""


@dataclass(eq=False, repr=False)
class Watched(Generic[Item]):
    """Batches, and what is told of them. One iteration is one of the batches; it has the same
    length."""

    _batches: Iterable[Item]
    _targets: tuple[str | Path | Sink, ...]
    _every: float
    _loader: Counting
    _samples = _seen = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)  # type: ignore[arg-type]  # has one, or the caller did not ask

    def __iter__(self) -> Iterator[Item]:
        """Yield the batches of an epoch."""
        with sinks_at(self._targets) as sinks:
            # the loader's figures begin at 0
            self._last: LoaderStats | None = None
            self._at = time.monotonic()
            due = self._at + self._every
            try:
                for batch in self._batches:
                    yield batch
                    if time.monotonic() >= due:
                        self._tell(sinks)
                        due = time.monotonic() + self._every
            finally:
                self._tell(sinks)

    def _tell(self, sinks: list[Sink]) -> None:
        """Tell the figures since the last time; nothing where no batch was taken since."""
        now, last = self._loader.stats(), self._last
        since = {
            name: getattr(now, name, 0) - getattr(last, name, 0)
            for name in ("samples", "batches", "wait_get_s", "wait_put_s", "making_s")
        }
        if now is None or not since["batches"]:
            return
        seconds = max(time.monotonic() - self._at, 1e-9)
        self._last, self._at = now, time.monotonic()
        self._samples += int(since["samples"])
        self._seen += int(since["batches"])
        stalled = min(1.0, since["wait_get_s"] / seconds)
        values = {
            "samples": self._samples,
            "batches": self._seen,
            "samples_per_s": round(since["samples"] / seconds, 3),
            "stall_share": round(stalled, 4),
            "utilization": round(1 - stalled, 4),
            "skipped": now.skipped,
            "threads": now.threads,
        }
        hits, misses = now.block_hits + now.image_hits, now.block_misses + now.image_misses
        for name, part, rest in (
            ("room_share", since["wait_put_s"], since["making_s"]),
            ("cache_hit_share", hits, misses),
        ):
            if part + rest > 0:
                values[name] = round(part / (part + rest), 4)
        values["epoch"] = self._loader.next_epoch - 1
        tell(sinks, LOADER, values, self._seen)


def watch(
    batches: Iterable[Item],
    *targets: str | Path | Sink,
    every: float = EVERY_SECONDS,
    loader: Counting | None = None,
) -> Watched[Item]:
    """Return the same batches, while the figures of their loader go to `targets` every few seconds
    and at its end.

        for batch in shardctl.watch(ds.loader(256), "metrics.jsonl", "http:9400"):

    A target is FILE.jsonl (JSON lines), FILE.prom (the textfile collector of Prometheus), http:PORT
    (Prometheus, on this machine), or tensorboard:FOLDER. It can also be an object with `write` and
    `close` (docs/metrics.md). If other code makes your batches from the batches of a loader, like
    shardctl.torch.Loader, give this loader as `loader`.

    Raises UsageError, InstallError and StorageError.
    """
    of = loader if loader is not None else batches
    if not isinstance(of, Counting):
        raise UsageError(
            f"watch needs a loader of shardctl; it is {describe(of)}; give it as loader="
        )
    seconds = real_number("every", every)
    if seconds <= 0:
        raise UsageError(f"every is a number of seconds over 0; it is {every}")
    for target in targets:
        check_target(target)
    if not targets:
        raise UsageError(
            "watch needs a place for the figures: 'metrics.jsonl', 'http:9400' or "
            "'tensorboard:runs/1'"
        )
    return Watched(batches, targets, seconds, of)
