"""The process that workers are forked from: it has their modules loaded, and only forks, kills and waits.

Modules take 0.3 s to import and a fork takes 5 ms, so they are imported once. This process never does any work and never
starts a thread, so that forking it is safe. Its children die with it.

Orders come in on a socket, each ORDER long; START brings three descriptors along: the worker's channel, its output and
its progress slot. WAIT is answered with the worker's exit code, an ANSWER. The end of the input ends everything.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import signal
import socket
import struct
import sys
from typing import Any

from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.processes.worker_loop import serve
from shardctl.system.startup import import_without_threads, keep_pandas_out_of_arrow, one_thread_each, reuse_memory

ORDER = struct.Struct("<cI")
"""What to do, and the number of the worker."""

ANSWER = struct.Struct("<i")
START, KILL, WAIT = b"s", b"k", b"w"

_PR_SET_PDEATHSIG = 1


def main(module: str, memory: int) -> None:
    """Fork workers in a process of its own, whose stdin brings the orders: `run`, after the imports."""
    import_without_threads()
    run(socket.socket(fileno=os.dup(0)), module, memory)


def run(control: socket.socket, module: str, memory: int) -> None:
    """Fork workers that run `handle` of a module, each with at most `memory` bytes (0: no limit), until `control` ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started the command may have it ignored: no exit codes then
    keep_pandas_out_of_arrow()
    reuse_memory()
    one_thread_each()
    handle = importlib.import_module(module).handle
    gc.freeze()  # what is loaded now stays shared: the collector of a worker would write to every page of it
    processes: dict[int, int] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 3)
        if not data:
            break
        order, number = ORDER.unpack(data)
        if order == START:
            processes[number] = _fork(control, handle, descriptors, memory)
            for descriptor in descriptors:
                os.close(descriptor)
        elif order == KILL:
            os.kill(processes[number], signal.SIGKILL)
        else:
            _, status = os.waitpid(processes.pop(number), 0)
            control.sendall(ANSWER.pack(os.waitstatus_to_exitcode(status)))
    for process in processes.values():
        os.kill(process, signal.SIGKILL)  # none of them has been waited for, so that its number is still its own


def _fork(control: socket.socket, handle: Any, descriptors: list[int], memory: int) -> int:
    """Return the number of a new process that serves; in the new process, do not return."""
    parent = os.getpid()
    if process := os.fork():
        return process
    code = 1
    try:
        control.close()
        _die_with(parent)
        channel, output, progress = descriptors
        for descriptor in descriptors:  # a command that a user function starts must not keep the channel open
            os.set_inheritable(descriptor, False)
        redirect(output)
        os.close(output)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # what a function prints is shown at once
        if "numpy.random" in sys.modules:  # every worker would draw the same numbers where a function draws its own
            sys.modules["numpy"].random.seed()
        serve(handle, socket.socket(fileno=channel), WorkerProgress.shared(progress), memory)
        code = 0
    except BaseException:  # noqa: BLE001 - a forked process must never return into the code of its parent
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            # As multiprocessing ends its children. Taking the interpreter down would take 25 ms more.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def redirect(output: int) -> None:
    """Let this process print to a descriptor, and find nothing on its stdin."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for stream in (1, 2):
        os.dup2(output, stream)


def _die_with(parent: int) -> None:
    """Let Linux kill this process when its parent ends; elsewhere the end of the channel tells it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
