"""How far long work is, on stderr: a bar at a terminal and in a notebook; elsewhere a line now and
then, for logs of jobs.

The commands and the functions of Python show progress by this module alone. Short work shows
nothing in a log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, TextIO

from shardctl.system.arguments import truth
from shardctl.system.text import format_duration

LINE_SECONDS = 30.0
"""Seconds between lines, and before the first one."""

LATE_SECONDS = 1.0
"""Seconds before the bar of a part of the work that is mostly short."""

Report = Callable[[int, int], None]
"""What is called with how much is done, and how much there is to do."""


@dataclass
class Phase:
    """A part of the work: `done` of `total` units (None: unknown), of which `first` were done when
    it began.

    Without a `unit` nothing is counted. What it is `doing` stands before the numbers. The bar of
    one that `stays` is not wiped out in the end, and that of one that is mostly `short` comes late.
    """

    doing: str = ""
    unit: str = ""
    total: int | None = None
    first: int = 0
    stays: bool = False
    short: bool = False
    began: float = 0.0
    done: int = 0


class Progress:
    """The phases of some work, one after another. This class counts, and shows nothing; those below
    show it."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = sys.stderr if stream is None else stream, clock
        self._phase, self._started = Phase(), clock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, phase: Phase) -> None:
        """Begin the next phase. One that counts is shown when it reports."""
        self.close()
        self._phase = replace(phase, began=self._clock(), done=phase.first)
        if not phase.unit:
            self._show("", "")

    def report(self, done: int, total: int | None = None, note: str = "", speed: str = "") -> None:
        """So much of the phase is done. `note` is shown behind the numbers, `speed` beside a bar
        only."""
        self._phase.done, self._phase.total = done, self._phase.total if total is None else total
        self._show(note, speed)

    def counter(self, phase: Phase) -> Callable[..., None]:
        """Return a `report` of a phase. It begins with the first call, and rates are those of what
        is done after that."""

        def report(done: int, total: int | None = None) -> None:
            if (self._phase.doing, self._phase.unit) != (phase.doing, phase.unit):
                self.begin(replace(phase, first=done))
            self.report(done, total)

        return report

    def write(self, line: str) -> None:
        """Write a line, above the bar where there is one."""
        if self._stream is not None:  # a program without a console has none
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def close(self) -> None:
        """End the phase."""

    def _show(self, note: str, speed: str) -> None:
        """Show the phase as it is now."""


class Lines(Progress):
    """Writes a line when some seconds have passed since the last one. `prefix` stands before each
    line."""

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        every: float | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__(stream, clock)
        self._every, self._prefix = LINE_SECONDS if every is None else every, prefix
        self.postpone()

    def postpone(self, every: float | None = None) -> None:
        """Begin the seconds before the next line anew."""
        self._next = self._clock() + (self._every if every is None else every)

    def is_due(self, every: float | None = None) -> bool:
        """Return whether it is time for a line. If so, the next one comes `every` seconds later."""
        if self._clock() < self._next:
            return False
        self.postpone(every)
        return True

    def write(self, line: str) -> None:
        """Write a line."""
        super().write(f"{self._prefix}{line}")

    def _show(self, note: str, speed: str) -> None:
        if self.is_due():
            with suppress(OSError, ValueError):  # a log that cannot be written stops no work
                self.write(line_of(self._phase, self._clock(), note))


class Bars(Progress):
    """Draws a bar of tqdm for each phase."""

    _bar: Any = None

    def write(self, line: str) -> None:
        """Write a line above the bar."""
        if self._bar is None:
            super().write(line)
        else:
            self._bar.write(line, file=self._stream)

    def close(self) -> None:
        """End the line of the bar, or wipe it out."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, note: str, speed: str) -> None:
        phase, now = self._phase, self._clock()
        # a notebook's bar keeps the total that it begins with
        if self._bar is not None and self._bar.total != phase.total:
            self.close()
        if self._bar is None:
            if phase.short and now < self._started + LATE_SECONDS:
                return
            self._bar = _bar_class()(**_settings_of(phase), file=self._stream)
            self._bar.initial = phase.first  # as if it had been there from the beginning
            self._bar.start_t -= now - phase.began
            self._bar.last_print_t -= now - phase.began
        self._bar.set_postfix_str(", ".join(filter(None, (speed, note))), refresh=False)
        self._bar.update(phase.done - self._bar.n)


def progress_of(wanted: bool, instead: object = None) -> Progress:
    """Return what shows progress where stderr goes.

    What shows nothing if it is not `wanted`, or if the caller has callbacks `instead`. Raises
    UsageError.
    """
    if not truth("progress", wanted) or instead is not None or sys.stderr is None:
        return Progress()
    return Bars() if _in_notebook() or _is_terminal(sys.stderr) else Lines()


@contextmanager
def counting(progress: bool | Report, unit: str, doing: str) -> Iterator[Report]:
    """Yield what is to be called with (done, total): what shows it, or the caller's own function.
    Raises UsageError."""
    if callable(progress):
        yield progress
        return
    with progress_of(progress) as shown:
        shown.begin(Phase(doing, unit))
        shown.report(0)
        yield shown.report


def line_of(phase: Phase, now: float, note: str = "") -> str:
    """Return how far a phase is: "12 %, 1,200 of 10,000 inputs, 132/s, about 1 min left, 0
    rejected"."""
    if not phase.unit:
        return phase.doing
    done, total, seconds = phase.done, phase.total, now - phase.began
    said = [f"{done:,} {phase.unit}"]
    if total:
        said = [f"{min(100, 100 * done // total)} %", f"{done:,} of {total:,} {phase.unit}"]
    if done > phase.first and seconds > 0:
        rate = (done - phase.first) / seconds
        said.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
        if total and done < total:
            said.append(f"about {format_duration((total - done) / rate)} left")
    line = ", ".join(filter(None, (*said, note)))
    return f"{phase.doing}: {line}" if phase.doing else line


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        # an object of another library in its place, or one that is closed
        return False


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def _bar_class() -> Any:
    """Return the bar of tqdm for a terminal or a notebook. It costs 20 ms, which short work does
    not pay."""
    if _in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm
    # no thread, which would stay in a process that forks
    return type("Bar", (tqdm,), {"monitor_interval": 0})


def _settings_of(phase: Phase) -> dict[str, Any]:
    """Return the arguments of a bar."""
    if not phase.unit:
        return {"desc": phase.doing, "bar_format": "{desc}…", "leave": False}
    return {
        "desc": phase.doing or None,
        "total": phase.total,
        "initial": phase.done,
        "unit": f" {phase.unit}",
        "leave": phase.stays,
        "dynamic_ncols": True,
        "smoothing": 0.1,
        "miniters": 1,
    }
