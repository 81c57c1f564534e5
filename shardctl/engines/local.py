"""Shard tasks on this machine: in this process, or in a pool of worker processes.

Workers are plain child processes with a pipe in and a pipe out. They share no memory and no lock, nothing is pickled, and
a worker that dies is seen at once as the end of its pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from shardctl import errors
from shardctl.engines.job import Job
from shardctl.engines.task import Progress, run_shard
from shardctl.errors import WorkerError

Report = Callable[[Progress], None]


class Engine(Protocol):
    """Something that builds shards."""

    def run(self, job: Job, shards: Iterable[int], report: Report) -> None:
        """Build these shards of the job, in any order. Raises WorkerError, or what stopped a shard."""
        ...

    def close(self) -> None:
        """Stop, at once if shards are still being built."""
        ...


def start(workers: int) -> Engine:
    """Return an engine of so many worker processes, already starting up; 0 works in this process."""
    return LocalPool(workers) if workers else InProcess()


class InProcess:
    """Builds one shard after the other in this process: the easiest to debug."""

    def run(self, job: Job, shards: Iterable[int], report: Report) -> None:
        """Build the shards."""
        for shard in shards:
            run_shard(job, shard, report)

    def close(self) -> None:
        """Nothing to stop."""


class LocalPool:
    """Builds shards in child processes, each one shard at a time, the next one handed out when it is done."""

    def __init__(self, workers: int) -> None:
        self._closing = ExitStack()
        self._workers = [_Worker(self._closing) for _ in range(workers)]

    def run(self, job: Job, shards: Iterable[int], report: Report) -> None:
        """Build the shards."""
        waiting = iter(shards)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                worker.order(job=str(job.staging))
                if worker.next_shard(waiting):
                    selector.register(worker.out, selectors.EVENT_READ, worker)
            while selector.get_map():
                for key, _ in selector.select():
                    busy: _Worker = key.data
                    for message in busy.messages():
                        self._handle(message, report)
                        if "done" in message and not busy.next_shard(waiting):
                            selector.unregister(busy.out)

    @staticmethod
    def _handle(message: dict[str, Any], report: Report) -> None:
        if "progress" in message:
            report(Progress(*message["progress"]))
        elif "failed" in message:
            name, text = message["failed"]
            raise getattr(errors, name)(text)

    def close(self) -> None:
        """End the workers: the idle ones see that no more orders come, the others are killed."""
        for worker in self._workers:
            worker.close()
        self._closing.close()

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Worker:
    """One child process, and the pipe on which it answers."""

    def __init__(self, closing: ExitStack) -> None:
        self._log: IO[bytes] = closing.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shardctl.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is the parent's to handle: it stops its workers itself
        )
        assert self._process.stdin
        assert self._process.stdout
        self._in: IO[bytes] = closing.enter_context(self._process.stdin)
        self.out: IO[bytes] = closing.enter_context(self._process.stdout)
        self._rest = b""
        self._shard: int | None = None

    def order(self, **message: Any) -> None:
        """Send one line."""
        try:
            self._in.write(json.dumps(message).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            raise self._death() from None

    def next_shard(self, waiting: Iterator[int]) -> bool:
        """Hand out the next shard, and tell whether there was one."""
        self._shard = next(waiting, None)
        if self._shard is not None:
            self.order(shard=self._shard)
        return self._shard is not None

    def messages(self) -> Iterator[dict[str, Any]]:
        """Give the lines that have arrived. Raises WorkerError at the end of the pipe: the process is gone."""
        data = os.read(self.out.fileno(), 1 << 16)
        if not data:
            raise self._death()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        """Let an idle worker end, kill a busy one, and wait until it is gone."""
        if self._shard is not None:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):  # it may be gone already
            self._in.close()
        self._process.wait()

    def _death(self) -> WorkerError:
        code = self._process.wait()
        self._log.seek(0)
        last = self._log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerError(
            f"a worker process {how} while it built shard {self._shard}{': ' + last[0] if last else ''};"
            " nothing was committed; run the same command again"
        )


def _environment() -> dict[str, str]:
    """Return the environment of a worker: it must find the same modules as this process, a user's transforms too."""
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
