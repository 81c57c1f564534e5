"""How far a conversion is: callbacks for it, what these are told, the rate, the bar, and the
figures for tools that watch jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardctl.making.plan.plan import Changes, SplitPlan
from shardctl.making.shards.marker import WorkDone
from shardctl.system.progress import Phase, Progress

SPARE_DISK = 1.05
"""Free disk space that is required, per byte of the estimate."""


@dataclass(frozen=True)
class Estimate:
    """What a conversion will do, measured on a few records before anything is written. Sizes in
    bytes.

    `inputs` are the records; `records` counts those of a unit that several splits share once for
    each. `rows` are the samples if none is rejected; where steps of text judge them, if as many are
    rejected as of those that were tried: `probe_rejects` of `probed`. `bytes` is the size of all
    shards, also of those that an earlier run finished, where as many records are rejected as of
    those that were tried. `seconds` is the time for all of it, `classes` the number of classes,
    None without names. `annotated` are the columns that mark images. `ignored` counts files that
    are no inputs by the ending of their name; `notices` say what was decided, `warnings` what
    should be looked at first. Where a dataset is brought up to date, `changes` say what changes,
    and `bytes` and `seconds` are those of the shards that are built.
    """

    kind: str
    inputs: int
    input_bytes: int
    splits: tuple[SplitPlan, ...]
    records: int
    rows: int
    shards: int
    classes: int | None
    labelled_by: str
    annotated: tuple[str, ...]
    bytes: int
    free_bytes: int | None
    seconds: float
    probed: int
    probe_rejects: int
    ignored: dict[str, int]
    notices: tuple[str, ...]
    warnings: tuple[str, ...]
    changes: Changes | None = None


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a conversion; the default of each does nothing.

    `listing` gets the number of inputs found so far; `waiting` the owner of the lease for which the
    conversion waits; `announce` the estimate, before the work starts; `resuming` the number of
    finished shards and of all shards; `progress` the work done since the last call; `on_line` each
    line that a worker prints; `comparing` the number of inputs that have been looked at for
    duplicates so far; `part` the name of the part of a conversion that begins, the number of its
    shards and of their records. `building` is called where the work of this run begins: `progress`
    had what was there before. `scanning` gets how many pieces of files were read to find their
    records, or the types of their fields, and how many will be.
    """

    listing: Callable[[int], None] = lambda inputs: None
    waiting: Callable[[str], None] = lambda owner: None
    announce: Callable[[Estimate], None] = lambda estimate: None
    resuming: Callable[[int, int], None] = lambda done, shards: None
    progress: Callable[[WorkDone], None] = lambda progress: None
    on_line: Callable[[str], None] = lambda line: None
    comparing: Callable[[int], None] = lambda inputs: None
    part: Callable[[str, int, int], None] = lambda name, shards, records: None
    building: Callable[[], None] = lambda: None
    scanning: Callable[[int, int], None] = lambda done, total: None


SHORTEST_SECONDS = 1e-6
"""The time that a rate divides by is at least this: the first report may come at once."""


class Pace:
    """Adds up the work that is done, and knows the rates and the time that is left. Its clock
    starts with `begin`."""

    def __init__(self) -> None:
        self.done = WorkDone()
        self.records = 0
        self._before = WorkDone()
        self._began = time.monotonic()

    def begin(self, records: int) -> None:
        """The work on so many records begins now."""
        self.records, self._began = records, time.monotonic()

    def resume(self) -> None:
        """Take what was added until now as work of before. The rates count only the work from now
        on."""
        self._before, self._began = self.done, time.monotonic()

    def add(self, progress: WorkDone) -> None:
        """Some more is done."""
        self.done += progress

    @property
    def records_per_s(self) -> float:
        """Records of the plan that are done in a second."""
        return (self.done.records - self._before.records) / self._seconds

    @property
    def bytes_per_s(self) -> float:
        """Bytes that are read in a second."""
        return (self.done.bytes - self._before.bytes) / self._seconds

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the remaining records take at this rate. None while no record is done."""
        rate = self.records_per_s
        return max(0, self.records - self.done.records) / rate if rate > 0 else None

    @property
    def _seconds(self) -> float:
        return max(time.monotonic() - self._began, SHORTEST_SECONDS)


class ConversionProgress:
    """Shows how far a conversion is, by what its listener is told. `stays`: the bar of the work
    stays in the end."""

    def __init__(self, shown: Progress, stays: bool = False) -> None:
        self._shown, self._stays = shown, stays
        self._pace, self._has_begun = Pace(), False
        self._listed = shown.counter(Phase("listing", "inputs", short=True))
        self._scanned = shown.counter(Phase("scanning", "pieces of files", short=True))
        self._compared = shown.counter(Phase("comparing", "inputs", short=True))

    def listener(self) -> Listener:
        """Return the callbacks that show it, and do nothing else."""
        return Listener(
            listing=self.listing,
            announce=self.announce,
            progress=self.progress,
            comparing=self._compared,
            part=self.part,
            building=self.building,
            scanning=self._scanned,
        )

    def listing(self, inputs: int) -> None:
        """So many inputs are found."""
        self._listed(inputs)

    def announce(self, estimate: Estimate) -> None:
        """The work is planned, perhaps for the second time."""
        self._shown.close()
        self._pace, self._has_begun = Pace(), False
        self._pace.begin(estimate.records)

    def part(self, _name: str, _shards: int, records: int) -> None:
        """Only a part of it is to be done."""
        self._pace.begin(records)

    def building(self) -> None:
        """The work of this run begins."""
        self._pace.resume()
        self._has_begun = True
        self._shown.begin(
            Phase(
                unit="inputs",
                total=self._pace.records,
                first=self._pace.done.records,
                stays=self._stays,
            )
        )

    def progress(self, progress: WorkDone) -> None:
        """Some more is done, or was done before this run."""
        self._pace.add(progress)
        if self._has_begun:
            done = self._pace.done
            speed = f"{self._pace.bytes_per_s / 1e6:.1f} MB/s read"
            self._shown.report(done.records, note=f"{done.rejected:,} rejected", speed=speed)


@contextlib.contextmanager
def metered(listener: Listener, targets: Sequence[str | Path]) -> Iterator[Listener]:
    """Yield a listener that also writes figures to `targets` every few seconds, and in the end."""
    if not targets:
        yield listener
        return
    from shardctl.loader.metrics import CONVERSION, EVERY_SECONDS, sinks_at, tell  # for --metrics

    pace, due, steps, has_begun = Pace(), time.monotonic(), 0, False

    def write() -> None:
        nonlocal due, steps
        due, steps, done = time.monotonic() + EVERY_SECONDS, steps + 1, pace.done
        values = {
            "records": done.records,
            "all_records": pace.records,
            "samples": done.samples,
            "rejected": done.rejected,
            "bytes": done.bytes,
            "records_per_s": round(pace.records_per_s, 3),
        }
        if (left := pace.seconds_left) is not None:
            values["left_s"] = round(left, 1)
        tell(sinks, CONVERSION, values, steps)

    def announce(estimate: Estimate) -> None:
        nonlocal due, has_begun
        listener.announce(estimate)
        pace.begin(estimate.records)
        due, has_begun = time.monotonic() + EVERY_SECONDS, True

    def building() -> None:
        listener.building()
        pace.resume()

    def progress(work: WorkDone) -> None:
        listener.progress(work)
        pace.add(work)
        if time.monotonic() >= due:
            write()

    with sinks_at(targets) as sinks:
        try:
            yield replace(listener, announce=announce, building=building, progress=progress)
        finally:
            if has_begun:
                write()
