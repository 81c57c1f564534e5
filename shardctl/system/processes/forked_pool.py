"""Processes that are forked from the caller's, for functions that no other process can import:
those of a person's script.

multiprocessing forks them, because other libraries may have asked it to call them after a fork
(register_after_fork).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from shardctl.system.processes.channel import Ended, packed, portable, raise_again, receive, send
from shardctl.system.processes.fork import CLOSED_IN_FORKS, end_with_parent

Handle = Callable[[Any], Any]


class ForkedPool:
    """`count` processes that call `handle`, which is not pickled, each with one task at a time.
    `close` ends them."""

    def __init__(self, handle: Handle, count: int) -> None:
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(_Worker(handle, [worker.channel for worker in self._workers]))
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        """Return what `handle` returns for each task, in the order of the tasks. Tasks and results
        are pickled.

        Raises Ended if a process ends in the middle of a task, and what `handle` raises. The other
        processes go on then.
        """
        results: list[Any] = [None] * len(tasks)
        waiting = deque(enumerate(tasks))
        with selectors.DefaultSelector() as selector:
            for worker in self._workers[: len(tasks)]:
                worker.order(*waiting.popleft())
                selector.register(worker.channel, selectors.EVENT_READ, worker)
            while selector.get_map():
                for key, _ in selector.select():
                    worker = key.data
                    results[worker.place] = worker.answer()
                    if waiting:
                        worker.order(*waiting.popleft())
                    else:
                        selector.unregister(worker.channel)
        return results

    def close(self) -> None:
        """End the processes, and wait until they have ended. What they still make is lost."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.channel.close()
        self._workers.clear()


class _Worker:
    """One process, and the socket to it. `place` is that of the task that it does."""

    def __init__(self, handle: Handle, others: list[socket.socket]) -> None:
        self.place = -1
        self.channel, theirs = socket.socketpair()
        with theirs:
            arguments = (os.getpid(), theirs, [self.channel, *others], handle)
            self.process = multiprocessing.get_context("fork").Process(
                target=_serve, args=arguments
            )
            try:
                self.process.start()
            except BaseException:
                self.channel.close()
                raise

    def order(self, place: int, task: Any) -> None:
        """Send a task. If the process is gone, `answer` tells."""
        self.place = place
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self.channel, task)

    def answer(self) -> Any:
        """Return what a task returned. Raises Ended, and what the task raised."""
        result, error = receive(self.channel)
        if error is not None:
            raise_again(error)
        return result


def _serve(
    parent: int, channel: socket.socket, inherited: list[socket.socket], handle: Handle
) -> None:
    """Do tasks in a forked process until the channel ends. `inherited` are the parent's ends, which
    only it may have open."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    for other in inherited:
        other.close()
    CLOSED_IN_FORKS.add(channel.fileno())
    with contextlib.suppress(Ended, BrokenPipeError):
        while True:
            channel.sendall(_answer(handle, receive(channel)))


def _answer(handle: Handle, task: Any) -> bytes:
    try:
        return packed((handle(task), None))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        return packed((None, portable(error)))
