"""Shard tasks on the machines of a Ray cluster.

A task of Ray builds one shard through the agent of its process, and yields the agent's
messages. So a fatal input is found and rejected on the node, as on this machine; Ray tells of
processes and nodes that are gone, and their shards are built anew. What is looked at before there
is a plan, and the probe, is small work, and are done on this machine.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shardctl.errors import (
    InstallError,
    ShardctlError,
    StorageError,
    UsageError,
    WorkerError,
    first_line,
)
from shardctl.format.names import STAGING, Json
from shardctl.making.plan.fingerprint import deciding_versions, version_changes
from shardctl.making.shards.engines.local import LocalPool, Report
from shardctl.making.shards.job import Job
from shardctl.making.shards.marker import SIGN, WorkDone, fetch_job
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.packages import needed
from shardctl.system.processes.pool import Limits, OnLine, most_workers, raise_faults
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import counted, printable
from shardctl.version import __version__

FATAL_LOSSES = 4
"""Times that a shard is lost with the process or node that builds it, after which the conversion is
given up."""

WAITING_PER_CPU = 2
"""Shards that Ray has at a time for each CPU: the next one is there when one is done."""

MESSAGES_PER_SECOND = 200
"""Messages that all nodes together may send: each takes this process about 1 ms."""

LOOK_SECONDS = 1.0
"""The longest wait for a message, after which other things are looked at."""

CLUSTER_SECONDS = 5.0
"""How often the cluster is asked for its CPUs: nodes come and go."""

NODES_SECONDS = 30.0
"""How often it is told what each node has done."""

NO_NODE_SECONDS = 300.0
"""How long a cluster may be without any CPU: as long as clouds take to start a machine."""

END_SECONDS = 3.0
"""How long tasks may take to end that are cancelled."""

ANSWER_SECONDS = 10.0
"""How long the head of a cluster may take to answer."""

OBJECT_STORE_BYTES = 100 << 20
"""For a cluster that is started on this machine: messages are small, and shards do not travel."""


def start(address: str, workers: int | str, limits: Limits, on_line: OnLine) -> RayCluster:
    """Return an engine that builds up to `workers` shards at a time ("auto": one per CPU) on the
    cluster at an address.

    "" is the cluster that RAY_ADDRESS or this machine names, or else one of this machine alone,
    started for this. `on_line` gets the lines that workers print, and what each node has done.
    Raises UsageError, InstallError.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    if "://" in address or address.startswith("//"):  # --engine ray://HOST
        raise UsageError(
            f"{printable(address)}: Ray Client cannot be used; run this in the cluster, with the "
            "address of its head (ray:HOST:6379)"
        )
    needed("ray", "ray", "the engine ray")
    return RayCluster(address, workers, limits, on_line)


class RayCluster(LocalPool):
    """Builds shards on a Ray cluster; what is small is done in processes of this machine. It
    connects to it when work is coming; a connection that is there already is used."""

    def __init__(self, address: str, workers: int | str, limits: Limits, on_line: OnLine) -> None:
        self._most = None if workers == "auto" else int(workers)
        here = most_workers()
        super().__init__(min(here, self._most or here), limits, on_line)
        self._address, self._on_line = address, on_line
        self._ours = False
        self._flights: dict[Any, _Flight] = {}

    def prepare(self) -> None:
        """Have the workers' modules imported on this machine, and connect. Raises WorkerError,
        UsageError."""
        super().prepare()
        self._connect()

    def at_once(self) -> int:
        """Return the number of CPUs of the cluster, or of shards that may be built at a time if
        they are fewer."""
        self._connect()
        cpus = max(1, _cpus())
        return min(cpus, self._most or cpus)

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build the shards: as many at a time as the cluster has use for."""
        import ray

        super().close()
        self._connect()
        self._report, self._waiting = report, deque(shards)
        self._losses: Counter[int] = Counter()
        self._nodes: dict[str, _Node] = {}
        self._cpus, self._cpus_at, self._counted_at = 0, time.monotonic(), 0.0
        order = BuildOrder(
            secrets.token_hex(8),
            str(job.folder),
            job.url,
            (job.folder / SIGN).read_text() if job.url else "",
            -1,
            deciding_versions(job.recipe),
            self._limits.memory,
            self._limits.seconds,
            max(1, _cpus()) / MESSAGES_PER_SECOND,
        )
        sent = {
            **asdict(order),
            "shardctl": __version__,
            # where this process finds modules, and users' functions: nodes look there last of all
            "path": list(dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)),
            # where Ray has its processes look first: the folder of the program, the current one
            "astray": [str(Path(sys.argv[0]).resolve().parent), str(Path.cwd())]
            if self._ours
            else [],
        }
        build = ray.remote(
            num_cpus=1, max_retries=0, scheduling_strategy="SPREAD", num_returns="streaming"
        )(_builder())
        due = time.monotonic() + NODES_SECONDS
        try:
            while self._waiting or self._flights:
                most = self._count()
                while self._waiting and len(self._flights) < most:
                    shard = self._waiting.popleft()
                    self._flights[build.remote({**sent, "shard": shard})] = _Flight(shard)
                flights = list(self._flights)
                ready, _ = ray.wait(flights, num_returns=1, timeout=LOOK_SECONDS)
                if ready:
                    ready, _ = ray.wait(flights, num_returns=len(flights), timeout=0)
                for each in ready:
                    self._attend(each)
                if time.monotonic() >= due:
                    due = time.monotonic() + NODES_SECONDS
                    self._tell_nodes()
        except BaseException:
            self.close()
            raise
        self._tell_nodes()

    def close(self) -> None:
        """Cancel what is being built, and leave the cluster if this engine has connected to it."""
        try:
            self._cancel()
        finally:
            super().close()
            if self._ours:
                import ray

                self._ours = False
                ray.shutdown()

    def _connect(self) -> None:
        """Connect to the cluster, unless this process is connected. Raises WorkerError,
        UsageError."""
        import ray

        if not ray.is_initialized():
            # before it is so: what was begun is ended, also where it is interrupted
            self._ours = True
            _connect(self._address, self._most or most_workers())
        elif self._address and not self._ours:
            there = ray.get_runtime_context().gcs_address
            if there != self._address:
                raise UsageError(
                    f"this process already uses the Ray cluster at {there}, not "
                    f"{printable(self._address)}; leave out the address"
                )

    def _cancel(self) -> None:
        """Stop all that is being built, and wait until it has ended, for END_SECONDS at most."""
        if not self._flights:
            return
        import ray

        flights, self._flights = list(self._flights), {}
        for each in flights:
            ray.cancel(each, force=True)
        due = time.monotonic() + END_SECONDS
        while flights and (left := due - time.monotonic()) > 0:
            ready, _ = ray.wait(flights, num_returns=1, timeout=left)
            for each in ready:
                try:
                    ray.get(next(each))
                except (StopIteration, ray.exceptions.RayError):
                    flights.remove(each)

    def _count(self) -> int:
        """Return how many shards Ray may have at a time. Raises WorkerError if there is nothing
        that builds them."""
        now = time.monotonic()
        if now >= self._counted_at + CLUSTER_SECONDS:
            self._counted_at, self._cpus = now, _cpus()
        if self._cpus:
            self._cpus_at = now
        elif now - self._cpus_at > NO_NODE_SECONDS:
            raise WorkerError(
                f"the Ray cluster has had no CPU for {NO_NODE_SECONDS:g} s; add a node, run this again"
            )
        most = WAITING_PER_CPU * max(1, self._cpus)
        return min(most, self._most or most)

    def _attend(self, messages: Any) -> None:
        """Take in the messages of a task that have arrived, or that it is gone. Raises what stopped
        its shard."""
        import ray

        flight = self._flights[messages]
        try:
            told = ray.get(next(messages))
        except (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError) as error:
            cause = getattr(error, "cause", None)  # without Ray's account of where
            why = printable(first_line(cause if isinstance(cause, BaseException) else error))
            raise WorkerError(
                f"a node of the Ray cluster cannot build shards ({why}); install shardctl "
                f"{__version__} on all nodes"
            ) from error
        except (StopIteration, ray.exceptions.RayError) as error:
            self._lose(messages, error)
            return
        for message in told:
            if "node" in message:
                flight.node = message["node"]
                if flight.node not in self._nodes:
                    self._nodes[flight.node] = _Node(_name(flight.node), time.monotonic())
                continue
            node = self._nodes[flight.node]
            try:
                raise_faults(message)
            except ShardctlError as error:
                raise type(error)(f"node {node.name}: {error}") from None
            if "line" in message:
                self._on_line(f"node {node.name}: {message['line']}")
            elif "progress" in message:
                progress: WorkDone = message["progress"]
                flight.told += progress
                node.records += progress.records
                self._report(progress)
            else:
                del self._flights[messages]
                node.shards += 1

    def _lose(self, messages: Any, error: BaseException) -> None:
        """Have a shard built again whose process or node is gone. Raises WorkerError if that
        happens too often."""
        flight = self._flights.pop(messages)
        self._report(-flight.told)
        if flight.node:
            self._nodes[flight.node].records -= flight.told.records
        self._losses[flight.shard] += 1
        where = f"node {self._nodes[flight.node].name}" if flight.node else "a node"
        what = f"{type(error).__name__}: {printable(first_line(error))}"
        if self._losses[flight.shard] >= FATAL_LOSSES:
            raise WorkerError(
                f"shard {flight.shard} was lost {FATAL_LOSSES} times with what built it, the last time "
                f"on {where} ({what}); nothing was committed. Try fewer --workers"
            )
        self._on_line(f"{where}: shard {flight.shard} is lost and built again ({what})")
        self._waiting.appendleft(flight.shard)

    def _tell_nodes(self) -> None:
        """Tell what each node has done."""
        for node in self._nodes.values():
            rate = node.records / max(time.monotonic() - node.since, 1e-6)
            self._on_line(
                f"node {node.name}: {counted(node.shards, 'shard')}, "
                f"{counted(node.records, 'input')}, {rate:,.0f} inputs/s"
            )


def _connect(address: str, cpus: int) -> None:
    """Connect to the cluster at an address, or to one that is found, or start one. Raises
    WorkerError."""
    import ray

    quiet: Json = {"log_to_driver": False, "logging_level": "ERROR"}
    # Ray sets a handler of SIGTERM that ends the process where the command line tidies up
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            # that something answers at HOST:PORT: Ray itself tries for minutes
            host, _, port = address.rpartition(":")
            if port.isdecimal():
                socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
            ray.init(address, **quiet)
            return
        try:
            ray.init("auto", **quiet)
        except ConnectionError:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            sizes = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE_BYTES}
            ray.init("local", include_dashboard=False, **sizes, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f" at {printable(address)}" if address else ""
        # some of Ray's take several lines
        why = printable(" ".join(str(error).split())[:300] or type(error).__name__)
        raise WorkerError(
            f"the Ray cluster{where} cannot be used ({why}); check its address and versions"
        ) from error
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


@dataclass
class _Flight:
    """A shard that Ray has, what was told of it, and the id of the node that it is on."""

    shard: int
    told: WorkDone = field(default_factory=WorkDone)
    node: str = ""


@dataclass
class _Node:
    """What a node has done since it was first heard of, at the time `since`."""

    name: str
    since: float
    shards: int = 0
    records: int = 0


def _builder() -> Any:
    """Return the function that nodes run. It is sent to them: they may have another shardctl, or
    none."""

    def build(order: Json) -> Iterator[list[Json]]:
        import sys

        import ray

        yield [{"node": ray.get_runtime_context().get_node_id()}]
        # Ray has put the folders of the command first: one may be a dataset with a file that is
        # called as a module of ours.
        astray, path, version = order.pop("astray"), order.pop("path"), order.pop("shardctl")
        sys.path[:] = [entry for entry in sys.path if entry not in astray]
        sys.path += [entry for entry in path if entry not in sys.path]
        try:
            from shardctl.version import __version__ as here
        except ImportError:
            here = "none"
        if here != version:
            said = f"it has shardctl {here}, and this machine {version}; install the same one"
            yield [{"failed": ["InstallError", said]}]
            return
        from shardctl.making.shards.engines.ray import AGENT, BuildOrder

        yield from AGENT.build(BuildOrder(**order))

    return build


def _cpus() -> int:
    """Return how many CPUs the cluster has."""
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def _name(node: str) -> str:
    """Return how a node is called: by its name, which is its address where it was given none, and
    the beginning of its id."""
    import ray

    names = {each["NodeID"]: each["NodeName"] for each in ray.nodes()}
    return f"{printable(names.get(node, 'unknown'))} ({node[:8]})"


Message = Json
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
        self._messages: list[Message] = []
        self._busy = threading.Lock()
        self._end_when_idle = threading.Timer(0, self._end)

    def build(self, order: BuildOrder) -> Iterator[list[Message]]:
        """Build a shard, and yield messages about it, those together that come within a short
        time."""
        self._end_when_idle.cancel()
        self._messages, due = [], 0.0
        try:
            with self._busy:
                for _ in self._steps(order):
                    if self._messages and time.monotonic() >= due:
                        yield self._messages
                        self._messages, due = [], time.monotonic() + order.every
            answer: Message = {"done": None}
        except ShardctlError as error:
            answer = {"failed": [type(error).__name__, str(error)]}
        except Exception:  # noqa: BLE001 - whatever it is, the engine raises it: it waits for the last message
            answer = {"bug": traceback.format_exc()}
        self._end_when_idle = threading.Timer(IDLE_SECONDS, self._end)
        self._end_when_idle.daemon = True
        self._end_when_idle.start()
        yield [*self._messages, answer]

    def _steps(self, order: BuildOrder) -> Iterator[None]:
        if self._pool is None or self._job is None or order.run != self._run:
            if self._pool is not None:
                self._pool.close()
            self._copies.close()
            self._run, self._job = order.run, _job_of(order, self._copies)
            # the pool says which of its workers printed a line, and there is one
            self._pool = LocalPool(
                1,
                Limits(order.memory, order.seconds),
                lambda line: self._messages.append({"line": line.partition(": ")[2]}),
            )
        yield from self._pool.steps(
            self._job, [order.shard], lambda done: self._messages.append({"progress": done})
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
            f"{printable(folder.parent.parent)}: this machine does not see it; write to a "
            "path that all nodes share"
        )
    job = Job.load(LocalFolder(folder))
    versions = deciding_versions(job.recipe)
    if versions != order.versions:
        changes = version_changes(order.versions, versions)
        raise InstallError(f"it has other versions ({changes}); install the same ones on all nodes")
    return job


AGENT = Agent()
"""The agent of this process: a cluster hands the next order to the same process where it can."""
