"""Builds shards on a node of a cluster, for an engine elsewhere: in a worker process of its own,
which an input may end.

Orders and messages are plain data; how they travel is the engine's to know.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import InstallError, ShardctlError, StorageError
from shardctl.format.names import STAGING
from shardctl.making.plan.fingerprint import deciding_versions, version_changes
from shardctl.making.shards.engines.local import LocalPool
from shardctl.making.shards.job import Job
from shardctl.making.shards.upload import SIGN, fetch_job
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.processes.pool import Limits
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable

Message = dict[str, Any]
"""{"progress": [...]} or {"line": text} any number of times; then {"done": None}, or {"failed":
[class, message]} for a fault that has a name, or {"bug": traceback} for one that has none."""

IDLE_SECONDS = 10.0
"""How long the worker process of an agent waits for the next shard: where it stays, it holds 100
MB."""


@dataclass(frozen=True)
class BuildOrder:
    """A shard to build, of the job in `folder`; where the dataset is on an object store, at `url`,
    of a copy of that, with `sign` for who has the right to write.

    All orders of one run of an engine have the same text as `run`: what an agent knows of the job
    of another run may not be so any more. `versions` are those of the machine that gives the order.
    `memory` and `seconds` are limits (pool.py). `every` is the shortest time between two messages
    in seconds.
    """

    run: str
    folder: str
    url: str
    sign: str
    shard: int
    versions: str
    memory: int | None
    seconds: float | None
    every: float


class Agent:
    """Builds one shard at a time. It keeps its worker process for the next order, for
    IDLE_SECONDS."""

    def __init__(self) -> None:
        self._run = ""
        self._job: Job | None = None
        self._copies = ExitStack()
        atexit.register(self._copies.close)
        self._pool: LocalPool | None = None
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._busy = threading.Lock()
        self._end_when_idle = threading.Timer(0, self._end)

    def build(self, order: BuildOrder) -> Iterator[list[Message]]:
        """Build a shard, and yield messages about it, those together that come within a short
        time."""
        messages = self._messages = queue.SimpleQueue[Message]()
        threading.Thread(target=self._answer, args=(order, messages), daemon=True).start()
        is_last = False
        while not is_last:
            together, due = [messages.get()], time.monotonic() + order.every
            with suppress(queue.Empty):
                while not (is_last := not together[-1].keys() & {"progress", "line"}):
                    together.append(messages.get(timeout=max(0.0, due - time.monotonic())))
            yield together

    def _answer(self, order: BuildOrder, messages: queue.SimpleQueue[Message]) -> None:
        """Build a shard, and say how it ended."""
        self._end_when_idle.cancel()
        try:
            with self._busy:
                self._build(order, messages)
            answer: Message = {"done": None}
        except ShardctlError as error:
            answer = {"failed": [type(error).__name__, str(error)]}
        except BaseException:  # noqa: BLE001 - whatever it is, the engine raises it: it waits for the last message
            answer = {"bug": traceback.format_exc()}
        self._end_when_idle = threading.Timer(IDLE_SECONDS, self._end)
        self._end_when_idle.daemon = True
        self._end_when_idle.start()
        messages.put(answer)

    def _build(self, order: BuildOrder, messages: queue.SimpleQueue[Message]) -> None:
        if self._pool is None or self._job is None or order.run != self._run:
            if self._pool is not None:
                self._pool.close()
            self._copies.close()
            self._run, self._job = order.run, _job_of(order, self._copies)
            # the pool says which of its workers printed a line, and there is one
            self._pool = LocalPool(
                1,
                Limits(order.memory, order.seconds),
                lambda line: self._messages.put({"line": line.partition(": ")[2]}),
            )
        self._pool.run(
            self._job, [order.shard], lambda progress: messages.put({"progress": progress})
        )

    def _end(self) -> None:
        """End the worker process; the next order starts another one."""
        with self._busy:
            if self._pool is not None:
                self._pool.close()


def _job_of(order: BuildOrder, copies: ExitStack) -> Job:
    """Read the job, if this machine may build shards of it. Raises StorageError, DatasetError,
    UsageError, InstallError.

    A copy of it is there until `copies` are closed.
    """
    folder = Path(order.folder)
    if order.url:
        folder = copies.enter_context(scratch_folder()) / "out" / STAGING / folder.name
        fetch_job(order.url, folder)
        (folder / SIGN).write_text(order.sign)
    if not JobFolder(folder).is_begun():
        raise StorageError(
            f"{printable(str(folder.parent.parent))}: this machine does not see the folder of the "
            "dataset; write to a path that all nodes share"
        )
    job = Job.load(LocalFolder(folder))
    versions = deciding_versions(job.recipe)
    if versions != order.versions:
        changes = version_changes(order.versions, versions)
        raise InstallError(f"it has other versions ({changes}); install the same ones on all nodes")
    return job


AGENT = Agent()
"""The agent of this process: a cluster hands the next order to the same process where it can."""
