"""Processes that workers are forked from, used again by the next test: each takes 0.4 s to start,
and most tests need one."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from warm import WARM

from shardctl.system.processes import pool
from shardctl.system.processes.forkserver import ForkServer, start_server

MOST = 2
"""Processes that wait for the next pool, for instance one that converts and one that verifies."""


class KeptServer:
    """A fork server that goes back to the others when a pool closes it, unless it has ended."""

    def __init__(self, server: ForkServer, circumstances: Hashable, idle: list[KeptServer]) -> None:
        self._server, self.circumstances, self._idle = server, circumstances, idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def close(self) -> None:
        if self._server.gone:
            self._server.close()
        elif self not in self._idle:
            self._idle.append(self)
            if len(self._idle) > MOST:
                self._idle.pop(0).end()

    def end(self) -> None:
        self._server.close()


def circumstances(module: str, memory: int) -> Hashable:
    """Return all that a new process would have from this one, beside the name of the test."""
    variables = frozenset(item for item in os.environ.items() if item[0] != "PYTEST_CURRENT_TEST")
    limits = tuple(
        resource.getrlimit(kind)
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE)
    )
    return (
        module,
        memory,
        variables,
        limits,
        tuple(sys.path),
        sys.executable,
        Path.cwd(),
        os.getpid(),
    )


class KeptServers:
    """What starts servers in the place of `start_server`."""

    def __init__(self) -> None:
        self.idle: list[KeptServer] = []

    def start(self, module: str, memory: int) -> KeptServer:
        now = circumstances(module, memory)
        for server in self.idle:
            if server.circumstances == now and not server.gone:
                self.idle.remove(server)
                return server
        return KeptServer(start_server(WARM.get(module, module), memory), now, self.idle)

    def end(self) -> None:
        while self.idle:
            self.idle.pop().end()

    @contextmanager
    def used(self) -> Iterator[None]:
        with patch.object(pool, "start_server", self.start):
            yield
        self.end()

    @contextmanager
    def unused(self) -> Iterator[None]:
        """For tests that count processes."""
        self.end()
        with patch.object(pool, "start_server", start_server):
            yield
