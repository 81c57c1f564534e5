"""The process that workers are forked from: it has their modules loaded, and only forks, kills and
waits.

Modules take 0.3 s to import and a fork takes 5 ms, so they are imported once. This process never
does any work and never starts a thread, so that forking it is safe. Its children die with it.

Orders come in on a socket, each ORDER long; START brings three descriptors along: the worker's
channel, its output and its progress slot. WAIT is answered with the worker's exit code, an ANSWER.
The end of the input ends everything.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import socket
import struct
import sys
from functools import partial

from shardctl.system.processes.fork import ForkedProcess, end_with_parent, redirect
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.processes.worker_loop import Handler, serve
from shardctl.system.startup import one_thread_each, quick_imports, reuse_memory

ORDER = struct.Struct("<cI")
"""What to do, and the number of the worker."""

ANSWER = struct.Struct("<i")
START, KILL, WAIT = b"s", b"k", b"w"


def main(module: str, memory: int) -> None:
    """Fork workers in a process of its own, whose stdin brings the orders: `run`, after the
    imports."""
    run(socket.socket(fileno=os.dup(0)), module, memory)


def run(control: socket.socket, module: str, memory: int) -> None:
    """Fork workers that run `handle` of a module, each with at most `memory` bytes (0: no limit),
    until `control` ends."""
    # whoever started the command may have it ignored: no exit codes then
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reuse_memory()
    one_thread_each()
    with quick_imports():
        handle = importlib.import_module(module).handle
    # what is loaded now stays shared: the collector of a worker would write to every page of it
    gc.freeze()
    processes: dict[int, ForkedProcess] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 3)
        if not data:
            break
        order, number = ORDER.unpack(data)
        if order == START:
            processes[number] = ForkedProcess(
                partial(_serve, os.getpid(), control, handle, descriptors, memory)
            )
            for descriptor in descriptors:
                os.close(descriptor)
        elif order == KILL:
            processes[number].kill()
        else:
            control.sendall(ANSWER.pack(processes.pop(number).wait()))
    for process in processes.values():
        process.kill()


def _serve(
    parent: int, control: socket.socket, handle: Handler, descriptors: list[int], memory: int
) -> None:
    """Do the work of a worker, in the process that was forked for it."""
    try:
        control.close()
        end_with_parent(parent)
        channel, output, progress = descriptors
        # a command that a user function starts must not keep the channel open
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        redirect(output)
        os.close(output)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # what a function prints is shown at once
        # every worker would draw the same numbers where a function draws its own
        if "numpy.random" in sys.modules:
            sys.modules["numpy"].random.seed()
        serve(handle, socket.socket(fileno=channel), WorkerProgress.shared(progress), memory)
    finally:
        # As multiprocessing ends its children. Taking the interpreter down would take 25 ms more.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
