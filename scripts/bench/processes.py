"""A command as a whole: how long it takes, and how much memory all its processes use. For
measurements and tests."""

from __future__ import annotations

import contextlib
import os
import resource as rusage
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Ran:
    """What became of a command: seconds of the wall clock, peaks of resident bytes, its exit code
    and what it printed.

    `failure` is None, or why it failed in one line. `processor`: seconds of the processors, of the
    command and of all below it that ended before it did. `together`: the largest sum over all
    processes at one moment; pages that they share count in each of them. `parent` and `worker`: the
    largest of one process, the command itself and the largest one below it.
    """

    seconds: float
    processor: float
    together: int
    parent: int
    worker: int
    code: int
    output: str
    errors: str
    failure: str | None


def descendants(pid: int) -> list[int]:
    """Return the processes below one, those that other threads than the first have started too."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                children += [
                    int(child)
                    for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                ]
    return children + [deeper for child in children for deeper in descendants(child)]


def resident(pid: int) -> int:
    """Return the resident bytes of a process, 0 for one that is gone."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0


def high_water(pid: int | str) -> int:
    """Return the peak of the resident bytes of a process so far, 0 for one that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def as_installed() -> dict[str, str]:
    """Return the environment in which modules are compiled once, as installed ones are, and not in
    every process anew."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}


def run(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    limit: float = 1800,
    pause: float = 0.03,
) -> Ran:
    """Run a command to its end, or kill it with its group after `limit` seconds. Memory is read
    every `pause` seconds."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started, used = time.perf_counter(), _processor()
        with subprocess.Popen(
            list(map(str, command)),
            stdout=out,
            stderr=err,
            env={**as_installed(), **(environment or {})},
            cwd=folder,
            start_new_session=True,
        ) as process:
            sampler = _Sampler(process.pid, pause)
            # A thread ends it when it is late: wait(timeout) looks only every 50 ms whether it is
            # over.
            timer = threading.Timer(limit, _kill, [process.pid])
            timer.start()
            try:
                process.wait()
            except BaseException:  # an interrupt too must leave no process behind
                _kill(process.pid)
                raise
            finally:
                seconds = time.perf_counter() - started
                timer.cancel()
                sampler.stop()
        out.seek(0)
        err.seek(0)
        failure, output, errors = None, out.read(), err.read()
        if process.returncode:
            said = (errors.strip() or output.strip()).splitlines()
            why = (
                f"stopped after {limit:.0f} s"
                if seconds >= limit
                else f"exit code {process.returncode}"
            )
            failure = f"{why}: {said[-1]}" if said else why
        return Ran(
            seconds,
            _processor() - used,
            max(sampler.together, sampler.parent),
            sampler.parent,
            sampler.worker,
            process.returncode,
            output,
            errors,
            failure,
        )


def _processor() -> float:
    used = rusage.getrusage(rusage.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class _Sampler:
    """Looks at the memory of a process and those below it in a thread, so that the end of the
    process is seen at once."""

    def __init__(self, pid: int, pause: float) -> None:
        self.together = self.parent = self.worker = 0
        self._pid, self._pause, self._ended = pid, pause, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(self._pause):
            below = descendants(self._pid)
            self.together = max(self.together, sum(map(resident, [self._pid, *below])))
            self.parent = max(self.parent, high_water(self._pid))
            self.worker = max([self.worker, *map(high_water, below)])
