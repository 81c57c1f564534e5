"""Child processes that do tasks, and notice of every one that dies or does not return. Knows nothing of what tasks are.

Workers are plain child processes with a pipe in and a pipe out. They share no lock, nothing is pickled, and a worker
that dies is seen at once as the end of its pipe. The child's side is serve.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shardctl import errors
from shardctl.engines import breadcrumb
from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.serve import OUT_OF_MEMORY

Task = dict[str, Any]
START = "import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module({!r}, run_name='__main__')"
"""Like `python -m module`, which would look for modules in the current folder first: it may be a dataset of somebody else."""

PATIENCE_SECONDS = 5.0
"""How long an idle worker may take to end. One that is still starting up has to come to its first order before it sees."""

LOOKS_PER_LIMIT = 8
"""How often a worker is looked at within its time limit."""


@dataclass(frozen=True)
class Limits:
    """What the work on one input may take: `memory` in bytes, of its worker; `seconds` by the clock. None: no limit."""

    memory: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Death:
    """How a worker ended in the middle of a task, and where it was: `place` is None if it was on no input.

    `code` is its exit code, negative for the signal that killed it; `overtime` says that the pool killed it for that.
    """

    code: int
    overtime: bool
    place: int | None
    stage: str
    last_words: str

    @property
    def out_of_memory(self) -> bool:
        """Whether it could get no more memory."""
        return self.code == OUT_OF_MEMORY

    def __str__(self) -> str:
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"was ended by signal {-self.code}"


class Pool:
    """Child processes that run a module, each one task at a time, the next one handed out when it is done."""

    def __init__(self, module: str, workers: int, limits: Limits) -> None:
        self._module, self._limits = module, limits
        self._workers = [_Worker(module, limits) for _ in range(workers)]

    def run(
        self,
        tasks: Iterable[Task],
        hear: Callable[[Task, dict[str, Any]], None],
        died: Callable[[Task, Death], Task | None],
    ) -> None:
        """Do all tasks, in any order. `hear` gets what workers say of a task: {"progress": ...}, {"done": ...}.

        `died` is asked what to do instead of a task whose worker died; None: nothing. Raises the error of
        shardctl.errors that a task failed with.
        """
        waiting = _Waiting(tasks)
        with selectors.DefaultSelector() as selector:
            for place in range(len(self._workers)):
                self._start_next(place, waiting, selector)
            while selector.get_map():
                look = self._limits.seconds / LOOKS_PER_LIMIT if self._limits.seconds else None
                for key, _ in selector.select(look):
                    self._attend(key.data, waiting, selector, hear, died)
                if self._limits.seconds:
                    for worker in self._workers:
                        worker.end_overtime(self._limits.seconds)

    def _start_next(self, place: int, waiting: _Waiting, selector: selectors.BaseSelector) -> None:
        task = waiting.take()
        if task is None:
            return
        worker = self._workers[place]
        if worker.gone:
            worker.close()
            worker = self._workers[place] = _Worker(self._module, self._limits)
        worker.order(task)
        selector.register(worker.out, selectors.EVENT_READ, place)

    def _attend(
        self,
        place: int,
        waiting: _Waiting,
        selector: selectors.BaseSelector,
        hear: Callable[[Task, dict[str, Any]], None],
        died: Callable[[Task, Death], Task | None],
    ) -> None:
        """Take in what a worker has said, or that it is gone; hand out the next task when it is free."""
        worker = self._workers[place]
        assert worker.task is not None, "only busy workers are listened to"
        task = worker.task
        for message in worker.messages():
            _raise_faults(message)
            hear(task, message)
            if "done" in message:
                worker.task = None
        if worker.gone and worker.task is not None:
            instead = died(task, worker.death())
            if instead is not None:
                waiting.put_first(instead)
            worker.task = None
        if worker.task is None:
            selector.unregister(worker.out)
            self._start_next(place, waiting, selector)

    def close(self) -> None:
        """End the workers: the idle ones see that no more orders come, the others are killed."""
        for worker in self._workers:
            worker.close()


class _Waiting:
    """The tasks that are still to be handed out, those to be done again first."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._again: deque[Task] = deque()
        self._tasks = iter(tasks)

    def take(self) -> Task | None:
        return self._again.popleft() if self._again else next(self._tasks, None)

    def put_first(self, task: Task) -> None:
        self._again.append(task)


def _raise_faults(message: dict[str, Any]) -> None:
    if "failed" in message:
        name, text = message["failed"]
        raise getattr(errors, name)(text)
    if "bug" in message:
        raise RuntimeError(f"a worker process failed in a way that it should not:\n{message['bug']}")


class _Worker:
    """One child process, the pipe on which it answers, and its breadcrumb."""

    def __init__(self, module: str, limits: Limits) -> None:
        self._closing = ExitStack()
        self._log: IO[bytes] = self._closing.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        crumb: IO[bytes] = self._closing.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        crumb.truncate(breadcrumb.SIZE)
        self._crumb = Breadcrumb.shared(crumb.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-c", START.format(module), str(crumb.fileno()), str(limits.memory or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(limits),
            pass_fds=[crumb.fileno()],
            start_new_session=True,  # Ctrl-C is the parent's to handle: it stops its workers itself
        )
        assert self._process.stdin
        assert self._process.stdout
        self._in: IO[bytes] = self._closing.enter_context(self._process.stdin)
        self.out: IO[bytes] = self._closing.enter_context(self._process.stdout)
        self._rest = b""
        self._overtime = False
        self._seen = (breadcrumb.NOWHERE, 0.0)
        self.task: Task | None = None
        self.gone = False

    def order(self, task: Task) -> None:
        """Send a task. If the process is gone, the end of its pipe will tell."""
        self.task = task
        with contextlib.suppress(BrokenPipeError):
            self._in.write(json.dumps(task).encode() + b"\n")
            self._in.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Give the lines that have arrived; `gone` is set at the end of the pipe."""
        data = os.read(self.out.fileno(), 1 << 16)
        self.gone = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def end_overtime(self, seconds: float) -> None:
        """Kill the process if it has been on one place for longer than this."""
        place, now = self._crumb.place, time.monotonic()
        if self.task is None or place != self._seen[0]:
            self._seen = (place, now)
        elif place != breadcrumb.NOWHERE and now - self._seen[1] > seconds and not self._overtime:
            self._overtime = True
            self._process.kill()

    def death(self) -> Death:
        """Return how the process ended."""
        code = self._process.wait()
        self._log.seek(0)
        last = self._log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        place = self._crumb.place if self._crumb.place != breadcrumb.NOWHERE else None
        return Death(code, self._overtime, place, self._crumb.stage, last[0] if last else "")

    def close(self) -> None:
        """Let an idle worker end, kill a busy one, and wait until it is gone."""
        if self.task is not None:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):  # it may be gone already
            self._in.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._closing.close()


def _environment(limits: Limits) -> dict[str, str]:
    """Return the environment of a worker: it must find the same modules as this process, a user's transforms too."""
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    # Arrow's own allocator takes a gigabyte of addresses at once, which would count towards a limit.
    pool = {"ARROW_DEFAULT_MEMORY_POOL": "system"} if limits.memory else {}
    return {**os.environ, "PYTHONPATH": path, **pool}
