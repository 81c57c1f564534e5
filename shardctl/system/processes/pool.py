"""Child processes that do tasks, and notice of every one that dies or does not return. Knows
nothing of what tasks are.

Workers are forked from a process of their own that has their modules loaded (forkserver.py), each
with a socket for its tasks and answers, which are pickled, and a pipe for what it prints. They
share no lock, and a worker that dies is seen at once as the end of its socket. The worker's side
is `serve` in forkserver.py.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl import errors
from shardctl.errors import WorkerError
from shardctl.system.files import naming_the_path
from shardctl.system.machine import allow_open_files, open_files_left, usable_cores
from shardctl.system.processes import worker_state
from shardctl.system.processes.channel import send, take_whole
from shardctl.system.processes.forkserver import ForkServer, start_server, take_early
from shardctl.system.processes.worker_state import TAIL_BYTES, Death, WorkerProgress
from shardctl.system.stores.base import ENDING_SECONDS
from shardctl.system.text import counted

Task = Any
OnLine = Callable[[str], None]
"""Callback for a line that a worker has printed."""

OnMessage = Callable[[Task, dict[str, Any]], None]
"""Callback for a message of a worker that does a task: {"progress": ...}, {"done": ...}."""

Died = Callable[[Task, Death], Task | None]
"""Is asked what to do instead of a task whose worker died; None: nothing."""

LOOKS_PER_LIMIT = 8
"""How often a worker is looked at within its time limit."""

FILES_PER_WORKER = 3
"""Descriptors that this process keeps open for each worker: its channel, its output and its
progress slot."""

SPARE_FILES = 16
"""Descriptors that are left for the rest: three while a worker is started, and the files that the
command opens later."""

LEAVING_SECONDS = ENDING_SECONDS + 0.5
"""How long workers that deliver what they have made may take to end that."""


@dataclass(frozen=True)
class Limits:
    """What the work on one input may take: `memory` in bytes, of its worker; `seconds` by the
    clock. None: no limit."""

    memory: int | None = None
    seconds: float | None = None


def most_workers() -> int:
    """Return how many workers are worth having: one per usable core, fewer where this process may
    open few files."""
    return max(1, min(usable_cores(), (open_files_left() - SPARE_FILES) // FILES_PER_WORKER))


class Pool:
    """Child processes that run a module, each one task at a time, the next one handed out when it
    is done.

    A process starts when there is a task for it. "auto" workers are as many as are worth having;
    where this process may not open enough files for a number that was given, `run` raises
    WorkerError instead of working with fewer. `on_line` gets every line that they print. `remedy`
    is told how many workers are possible then, and returns the beginning of the advice in the
    message ("use --workers 3, or "): the commands have different options.
    """

    def __init__(
        self,
        module: str,
        workers: int | str,
        limits: Limits,
        on_line: OnLine = lambda line: None,
        remedy: Callable[[int], str] = lambda possible: "",
    ) -> None:
        self._module, self._limits, self._on_line, self._remedy = module, limits, on_line, remedy
        self._places = most_workers() if workers == "auto" else int(workers)
        self._fewest = 1 if workers == "auto" else self._places
        self._workers: dict[int, _Worker] = {}
        self._leaving: list[_Worker] = []
        self._server: ForkServer | None = None

    def run(self, tasks: Sequence[Task], on_message: OnMessage, died: Died) -> None:
        """Do all tasks, in any order. Raises the error of shardctl.errors that a task failed with.

        A task is taken from `tasks` when a worker is free for it: it may be made then
        (LazySequence).
        """
        for _ in self.steps(tasks, on_message, died):
            pass

    def steps(self, tasks: Sequence[Task], on_message: OnMessage, died: Died) -> Iterator[None]:
        """Do the same step by step, for a caller that has other things to do between them: each
        waits for what workers say, and takes it in."""
        try:
            waiting = _Waiting(tasks)
            with selectors.DefaultSelector() as selector:
                for place in range(self._places):
                    self._start_next(place, waiting, selector)
                while any(worker.task is not None for worker in self._workers.values()):
                    look = self._limits.seconds / LOOKS_PER_LIMIT if self._limits.seconds else None
                    for key, _ in selector.select(look):
                        worker: _Worker = key.data
                        if worker.gone:
                            continue  # it ended a moment ago, and its descriptors are closed
                        if key.fileobj is worker.channel:
                            self._attend(worker, waiting, selector, on_message, died)
                        elif not worker.listen():
                            selector.unregister(worker.output)
                    if self._limits.seconds:
                        for worker in self._workers.values():
                            worker.end_overtime(self._limits.seconds)
                    yield
            for worker in self._workers.values():
                worker.listen()
        except BaseException:
            # other workers are busy: what they answer is not for the next run, nor what they know
            # of its job
            self.close()
            raise

    def _start_next(self, place: int, waiting: _Waiting, selector: selectors.BaseSelector) -> None:
        task = waiting.take(place)
        if task is None:
            return
        if place not in self._workers:
            if not allow_open_files(FILES_PER_WORKER + SPARE_FILES):
                self._refuse_too_few_workers()
                waiting.put_first(task)  # for a worker that is busy now
                return
            self._workers[place] = _Worker(
                self.prepare(), place, lambda line: self._on_line(f"worker {place + 1}: {line}")
            )
        worker = self._workers[place]
        worker.order(task)
        for stream in (worker.channel, worker.output):
            if stream not in selector.get_map():
                selector.register(stream, selectors.EVENT_READ, worker)

    def _refuse_too_few_workers(self) -> None:
        """Raise WorkerError if fewer workers are busy than there must be, now that no more can be
        started."""
        busy = sum(worker.task is not None for worker in self._workers.values())
        if busy < self._fewest:
            possible = len(self._workers)
            wanted = counted(self._fewest, "worker process", "worker processes")
            raise WorkerError(
                f"this process may not open enough files for {wanted} ({FILES_PER_WORKER} each), "
                f"but for {possible}; {self._remedy(possible)}raise the hard limit (ulimit -Hn "
                "shows it)"
            )

    def _attend(
        self,
        worker: _Worker,
        waiting: _Waiting,
        selector: selectors.BaseSelector,
        on_message: OnMessage,
        died: Died,
    ) -> None:
        """Take in what a worker has said, or that it is gone; hand out the next task when it is
        free."""
        assert worker.task is not None, "only busy workers are listened to"
        task = worker.task
        for message in worker.messages():
            raise_faults(message)
            on_message(task, message)
            if "done" in message:
                worker.task = None
        if worker.gone:
            if worker.output in selector.get_map():
                selector.unregister(worker.output)
            selector.unregister(worker.channel)
            del self._workers[worker.place]
            instead = died(task, worker.death()) if worker.task is not None else None
            if instead is not None:
                waiting.put_first(instead)
            self._start_next(worker.place, waiting, selector)
        elif worker.task is None:
            selector.unregister(worker.channel)
            self._start_next(worker.place, waiting, selector)

    def prepare(self) -> ForkServer:
        """Have the modules of the workers imported, in a process beside this one, and return it:
        workers are forked from it. None starts yet."""
        if self._server is None or self._server.gone:
            if self._server is not None:
                self._server.close()
            memory = self._limits.memory or 0
            self._server = take_early(self._module, memory) or start_server(self._module, memory)
        return self._server

    def let_go(self) -> None:
        """Have the workers end as `close` does, and do not wait for them: that takes them 7 ms,
        which the caller can use."""
        for place, worker in list(self._workers.items()):
            worker.dismiss()  # once more by `close`, if a Ctrl-C comes here
            if worker not in self._leaving:
                self._leaving.append(worker)
            del self._workers[place]

    def close(self) -> None:
        """End the workers: the idle ones see that no more orders come, and so do those that put a
        shard on a store, which may take a moment; the others are killed. `run` starts new ones."""
        self.let_go()
        until = time.monotonic() + LEAVING_SECONDS
        for worker in self._leaving:
            worker.await_end(until)
        self._leaving.clear()
        if self._server is not None:
            self._server.close()
            self._server = None


class _Waiting:
    """The tasks that are still to be handed out, those to be done again first.

    A worker gets tasks that follow each other, as far as possible: it may go on from what it has
    open of a file that is read from its beginning. One that has none left takes the second half of
    what is left for another one.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._again: deque[Task] = deque()
        self._tasks = tasks
        self._left: dict[int | None, range] = {None: range(len(self._tasks))}

    def take(self, place: int) -> Task | None:
        """Return the next task for the worker in a place, None if there is none."""
        if self._again:
            return self._again.popleft()
        own = self._left.get(place, range(0))
        if not own:
            owner, most = max(self._left.items(), key=lambda item: len(item[1]))
            middle = most.start if owner is None else most.stop - (len(most) + 1) // 2
            own, self._left[owner] = range(middle, most.stop), range(most.start, middle)
        self._left[place] = own[1:]
        return self._tasks[own[0]] if own else None

    def put_first(self, task: Task) -> None:
        """Have a task done by the next worker that is free."""
        self._again.append(task)


def raise_faults(message: dict[str, Any]) -> None:
    """Raise the error of shardctl.errors, or the RuntimeError, that the message of a worker names,
    if it does."""
    if "failed" in message:
        name, text = message["failed"]
        raise getattr(errors, name)(text)
    if "bug" in message:
        raise RuntimeError(
            f"a worker process failed because of a bug in shardctl:\n{message['bug']}"
        )


_CLOSED = -1
"""The number of a pipe that is closed."""


class _Worker:
    """One child process: its socket `channel`, the pipe `output` of what it prints, and its
    progress slot."""

    def __init__(self, server: ForkServer, place: int, on_line: OnLine) -> None:
        self._server, self.place, self._on_line = server, place, on_line
        with tempfile.TemporaryFile() as progress:
            with naming_the_path(Path(tempfile.gettempdir())):
                # a hole in a full file system would end in a SIGBUS
                os.pwrite(progress.fileno(), bytes(worker_state.SIZE), 0)
            self._progress = WorkerProgress.shared(progress.fileno())
            self.channel, theirs = socket.socketpair()
            self.output, printing = os.pipe()
            self._number = server.start([theirs.fileno(), printing, progress.fileno()])
            theirs.close()
            os.close(printing)
        os.set_blocking(self.output, False)
        self._arrived, self._line, self._last_line = bytearray(), b"", ""
        self._overtime = self._delivers = False
        self._seen = ((worker_state.NOWHERE, worker_state.WHOLE), 0.0)
        self.task: Task | None = None
        self.gone = False

    def order(self, task: Task) -> None:
        """Send a task. If the process is gone, the end of its socket will tell."""
        self.task = task
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self.channel, task)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have arrived; `gone` is set at the end of the socket. A worker that
        stands still in the middle of one holds up no other."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.gone = not data
        self._arrived += data
        yield from take_whole(self._arrived)

    def listen(self) -> bool:
        """Pass on the lines that were printed; False where no more will come. One read empties the
        pipe."""
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return True
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-TAIL_BYTES:]
        for line in lines:
            text = line[-TAIL_BYTES:].decode("utf-8", "replace")
            self._last_line = text.strip() or self._last_line
            self._on_line(text)
        return bool(data)

    def end_overtime(self, seconds: float) -> None:
        """Kill the process if it has been on one place for longer than this."""
        place, now = self._progress.timed_place, time.monotonic()
        if self.task is None or place != self._seen[0]:
            self._seen = (place, now)
        elif (
            place[0] != worker_state.NOWHERE
            and now - self._seen[1] > seconds
            and not self._overtime
        ):
            self._overtime = True
            self._server.kill(self._number)

    def death(self) -> Death:
        """Return how the process ended, which it has."""
        code = self._server.wait(self._number)
        self.listen()
        words = self._line.decode("utf-8", "replace").strip() or self._last_line
        (at, number), record = self._progress.at, None
        place = at if at != worker_state.NOWHERE else None
        # it never began, or ended with the process that it was forked from: no input did that
        if code is None:
            code, said = self._server.death()
            words, place = words or said, None
        self._close()
        if place is not None and number != worker_state.WHOLE:
            record = number
        return Death(code, self._overtime, place, self._progress.stage, words, record)

    def dismiss(self) -> None:
        """Let an idle worker end, and one that delivers what it has made. Kill one that is busy
        otherwise."""
        self._delivers = self.task is not None and self._progress.stage == "deliver"
        if self._delivers:
            with contextlib.suppress(OSError):  # it is gone
                self.channel.shutdown(socket.SHUT_WR)
            return
        if self.task is not None:
            self._server.kill(self._number)
        self._close()

    def await_end(self, until: float) -> None:
        """Wait until the process is gone. One that delivers is killed if it is still there at
        `until`, of `time.monotonic`."""
        if self._delivers:
            with contextlib.suppress(OSError):  # a time-out, or it is gone
                self.channel.settimeout(max(0.001, until - time.monotonic()))
                while self.channel.recv(1 << 16):
                    self.channel.settimeout(max(0.001, until - time.monotonic()))
            self._server.kill(self._number)
            self._close()
        self._server.wait(self._number)

    def _close(self) -> None:
        self.channel.close()
        output, self.output = self.output, _CLOSED
        if output != _CLOSED:  # its number may be that of another file
            os.close(output)
