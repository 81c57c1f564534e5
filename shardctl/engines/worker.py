"""A worker process: `python -m shardctl.engines.worker`. It is told numbers of shards and builds them.

In, a line each: {"job": folder} once, then {"shard": number}; the end of the input means that no more will come.
Out, a line each: {"progress": [inputs, rejected, bytes]}, {"done": number}, {"failed": [class, message]}.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from shardctl import errors
from shardctl.engines.job import Job
from shardctl.engines.task import Progress, run_shard
from shardctl.startup import keep_pandas_out_of_arrow


def main() -> None:
    """Work until the input ends."""
    keep_pandas_out_of_arrow()
    out = _private_stdout()
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    idle = threading.Event()
    threading.Thread(target=_listen, args=(orders, idle), daemon=True).start()
    job: Job | None = None
    while True:
        idle.set()
        order = orders.get()
        idle.clear()
        if order is None:
            return
        try:
            if job is None:
                job = Job.load(Path(order["job"]))
                job.plan  # noqa: B018 - mapped now, so that the first shard starts at once
            else:
                run_shard(job, order["shard"], lambda progress: _say(out, progress=_plain(progress)))
                _say(out, done=order["shard"])
        except errors.ShardctlError as error:
            _say(out, failed=[type(error).__name__, str(error)])
            return


def _listen(orders: queue.SimpleQueue[dict[str, Any] | None], idle: threading.Event) -> None:
    """Pass orders on. If the parent goes away in the middle of a shard, stop at once: nobody waits for it any more."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    if not idle.is_set():
        os._exit(1)
    orders.put(None)


def _private_stdout() -> TextIO:
    """Keep stdout for the protocol alone: what a user's function prints goes to stderr instead."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


def _say(out: TextIO, **message: Any) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _plain(progress: Progress) -> list[int]:
    return [progress.inputs, progress.rejected, progress.bytes]


if __name__ == "__main__":
    main()
