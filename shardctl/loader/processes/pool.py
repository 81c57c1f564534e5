"""Worker processes that make batches in shared memory, as the loader has them. Threads of the
loader ask, and wait.

Python runs in one thread of a process at a time. What a loader does between the calls that let
other threads run adds up to a few microseconds for each sample; where there are more cores than fit
into that, processes go on. docs/loader.md.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from shardctl.errors import WorkerError
from shardctl.format.arrays import Bools, Numbers
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.processes.messages import Found, Question, receive_answer, shared_memory
from shardctl.loader.stream import Stream, sums
from shardctl.system.machine import NO_THREADS, allow_open_files
from shardctl.system.mmap import SharedPages
from shardctl.system.processes.channel import Ended, packed, raise_again, receive, send
from shardctl.system.processes.fork import environment, keep_renewed, not_started, start_python
from shardctl.system.processes.worker_state import await_end

WORKER = "shardctl.loader.processes.worker"
"""The module that makes batches in worker processes."""

_CLOSED = "the loader was closed while it was read; iterate over it again"


class Processes:
    """`count` processes that make batches of a stream, together in up to `threads` threads. Threads
    may share it.

    They are started by `begin`, and end with `close`, with this object, or with this process,
    however that ends.
    """

    def __init__(self, stream: Stream, count: int, threads: int) -> None:
        self._stream, self._count, self._threads = stream, count, threads
        self._workers: list[_Worker] = []
        self._past: dict[str, float] = {}
        self._take_locks()
        keep_renewed(self)
        _ALIVE.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Have processes of its own when it is unpickled."""
        return Processes, (self._stream, self._count, self._threads)

    def _take_locks(self) -> None:
        # not by its condition, which Ctrl-C can leave taken (prefetch.py)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def begin(self) -> None:
        """Start the processes, unless they are there. Raises what opening the dataset raises, and
        WorkerError."""
        with self._lock:
            if self._workers and not any(worker.gone for worker in self._workers):
                return
            self._end()
            workers: list[_Worker] = []
            self._ended = weakref.finalize(self, _end, os.getpid(), workers)
            self._ended.atexit = False  # _close_all does it, which also tells the threads that wait
            try:
                message = packed(self._stream)
                for number in range(self._count):
                    threads = len(range(number, self._threads, self._count))
                    workers.append(_Worker(f"{number + 1} of {self._count}", threads))
                for worker in workers:
                    worker.open(message)
                for worker in workers:
                    worker.wait_open()
            except BaseException:
                self._ended.detach()
                _end(os.getpid(), workers)
                raise
            self._workers = workers

    def gather(self, samples: Numbers, epoch: int) -> tuple[Batch, Bools]:
        """Return samples, and which of them are present, as Stream.gather does: large arrays are in
        shared memory.

        Raises WorkerError if the process ends meanwhile, and what Stream.gather raises.
        """
        worker, channel = self._take()
        try:
            return worker.ask(channel, samples, epoch)
        finally:
            with self._lock:
                worker.give(channel)
                self._changed.notify()

    def _take(self) -> tuple[_Worker, socket.socket]:
        """Return the process that is doing the least, and a channel to it."""
        with self._lock:
            while True:
                if not self._workers:
                    raise WorkerError(_CLOSED)
                worker = max(self._workers, key=lambda each: len(each.idle))
                if worker.idle:
                    return worker, worker.idle.pop()
                self._changed.wait()

    def counts(self) -> dict[str, float]:
        """Return what all processes together have done so far, those too that have ended."""
        return sums([self._past, *(worker.counts for worker in list(self._workers))])

    @property
    def ids(self) -> list[int]:
        """The process ids; none before `begin`."""
        return [worker.process.pid for worker in list(self._workers)]

    def close(self) -> None:
        """End the processes, and wait until they have."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._past = self.counts()
        workers, self._workers = self._workers, []
        if workers:
            # to call it does nothing when the program ends and weakref has done its part of that
            self._ended.detach()
            _end(os.getpid(), workers)
        self._changed.notify_all()

    def renew(self) -> None:
        """Leave the processes to the parent, in a forked child: it gets processes of its own when
        it needs some."""
        workers, self._workers = self._workers, []
        self._take_locks()
        if workers:
            self._ended.detach()
        for worker in workers:
            worker.leave()

    def see(self) -> None:
        """Note that another process sees the shared memory of now: what is in use must never be used
        again."""
        for worker in self._workers:
            worker.seen_by_others.update(worker.leases)


class _Worker:
    """One process, with a channel for each of its threads. `idle` are the channels that nobody
    waits at."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._broken = self._closed = False
        self._why: str | None = None
        self.counts: dict[str, float] = {}
        self._lock = threading.Lock()
        self._pages: dict[int, SharedPages] = {}
        self.leases: dict[int, weakref.ref[Any]] = {}
        self.seen_by_others: set[int] = set()
        self._free: deque[int] = deque()
        allow_open_files(2 * threads + 8)
        mine: list[socket.socket] = []
        with ExitStack() as theirs, ExitStack() as ours:
            try:
                numbers = []
                for _ in range(1 + threads):
                    end, other = socket.socketpair()
                    mine.append(ours.enter_context(end))
                    numbers.append(theirs.enter_context(other).fileno())
            except OSError as error:
                raise not_started(error) from error
            threadless = {**NO_THREADS, **environment()}
            self.process = start_python(
                WORKER,
                (numbers[0], numbers[1:]),
                threadless,
                subprocess.DEVNULL,
                descriptors=numbers,
            )
            ours.pop_all()
        self._lifeline, *self._channels = mine
        self.idle = list(self._channels)

    def give(self, channel: socket.socket) -> None:
        """Take a channel back at which nobody waits any more."""
        if self._closed:
            channel.close()
        else:
            self.idle.append(channel)

    @property
    def gone(self) -> bool:
        """Whether it can be asked no more."""
        return self._broken or self.process.poll() is not None

    def open(self, stream: bytes) -> None:
        """Send the stream, which is packed."""
        with suppress(OSError):  # wait_open finds that it is gone
            self._lifeline.sendall(stream)

    def wait_open(self) -> None:
        """Wait until it has opened the stream. Raises what that raises, and WorkerError."""
        try:
            error = receive(self._lifeline)
        except Ended:
            raise self._death() from None
        if error is not None:
            raise_again(error)

    def ask(self, channel: socket.socket, samples: Numbers, epoch: int) -> tuple[Batch, Bools]:
        """Have a batch made."""
        free: list[int] = []
        with suppress(IndexError):  # other threads take some of them too
            while True:
                free.append(self._free.popleft())
        given_up = [number for number in free if number in self.seen_by_others]
        try:
            question: Question = samples, epoch, [n for n in free if n not in given_up], given_up
            send(channel, question)
            found, batch, descriptors = receive_answer(channel)
            leases = self._leased(found, descriptors)
        except (Ended, OSError):
            self._broken = True
            raise self._death() from None
        except BaseException as error:
            self._broken = True  # nobody knows what comes next on this channel
            if isinstance(error, WorkerError):
                self._why = str(error)
            self._close()
            raise
        if found.there is None:
            raise_again(pickle.loads(batch))
        buffers = [leases[number][first : first + size] for number, first, size in found.arrays]
        return pickle.loads(batch or buffers.pop(), buffers=buffers), found.there

    def _leased(self, found: Found, descriptors: list[int]) -> dict[int, memoryview]:
        """Note what the process has done, map new segments, and return the bytes of those of a
        batch.

        When nothing refers to the bytes of a segment any more, it is free.
        """
        with self._lock:
            # unless a later answer came first: they only grow
            self.counts = {
                name: max(count, self.counts.get(name, 0)) for name, count in found.counts.items()
            }
            try:
                for (number, size), descriptor in zip(found.segments, descriptors, strict=True):
                    with shared_memory(size):
                        self._pages[number] = SharedPages(descriptor, size)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            for number in found.dropped:
                del self._pages[number]
                self.seen_by_others.discard(number)
            leases = {}
            for number in {number for number, _, _ in found.arrays}:
                # A new array of the pages each time: every array of the batch, and every view of
                # one, refers to it.
                whole = self._pages[number].bytes()
                self.leases[number] = weakref.ref(
                    whole, partial(_lease_ended, number, self.leases, self._free)
                )
                if _FORKING:  # perhaps after what is in use was noted
                    self.seen_by_others.add(number)
                leases[number] = whole.data
            return leases

    def _death(self) -> WorkerError:
        """Return the error for a process that is gone."""
        if self._closed:
            return WorkerError(_CLOSED)
        if self._why is not None:  # it was ended because of what another thread met
            return WorkerError(self._why)
        self._close()
        code = await_end(self.process)
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        memory = (
            ": perhaps memory ran out; use fewer processes, or smaller batches"
            if code == -signal.SIGKILL
            else ""
        )
        return WorkerError(
            f"process {self.name} of the loader (process id {self.process.pid}) {how}{memory}"
        )

    def _close(self) -> None:
        """End the connections: threads that wait at them are told, and the process ends.

        They are not closed: a thread may be about to use the number of a descriptor, which would be
        that of another file then.
        """
        for end in (self._lifeline, *self._channels):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Tell the process to end."""
        self._closed = True
        self._close()

    def wait(self) -> None:
        """Wait until the process has ended, and close what nobody waits at; `give` closes the
        rest."""
        await_end(self.process)
        self._lifeline.close()
        while self.idle:
            self.idle.pop().close()

    def leave(self) -> None:
        """Close the descriptors, in a forked child, so that the parent's end is the only one."""
        for end in (self._lifeline, *self._channels):
            end.close()
        self.process.returncode = 0  # it is the parent's to wait for


def _lease_ended(number: int, leases: dict[int, Any], free: deque[int], _: Any) -> None:
    """Note that nothing refers to a segment any more. Called wherever that happens: takes no
    lock."""
    leases.pop(number, None)
    free.append(number)


def _end(process: int, workers: Sequence[_Worker]) -> None:
    """End processes, and wait for them: first all are told."""
    if process != os.getpid():
        return
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.wait()


_ALIVE: weakref.WeakSet[Processes] = weakref.WeakSet()


_FORKING: set[int] = set()
"""Threads that fork this process at the moment. Other threads go on before and after the fork
itself, and a handler of a person's program may take batches in between."""


def _before_fork() -> None:
    _FORKING.add(threading.get_ident())
    for processes in list(_ALIVE):
        processes.see()


def _close_all() -> None:
    for processes in list(_ALIVE):
        processes.close()


atexit.register(_close_all)
os.register_at_fork(
    before=_before_fork,
    after_in_child=_FORKING.clear,
    after_in_parent=lambda: _FORKING.discard(threading.get_ident()),
)
