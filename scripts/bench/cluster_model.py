"""A simulation of a conversion on a large cluster, event by event: nodes fail, are slow or taken
away, and a store has limits.

The unit of work is the shard, as in shardctl. A worker (a core) builds one shard at a time; what it
has of a shard is lost with its node, and the shard is built again. `simulate` returns when the last
shard is done, and where the core time went. All times are seconds, all sizes bytes. The same
arguments give the same result.

What is left out: the commit at the end, the listing and the plan (cluster_costs.py has those), and
what the cores of a node take from each other by sharing its memory and disk. A store that is asked
for too much slows all workers by the same factor.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

MIB = 1 << 20
NONE = -1
FAILURE, PREEMPTION = "failures", "preemption"


@dataclass(frozen=True)
class Cluster:
    """Machines. `slow_share` of the nodes take `slow_factor` times as long for all they do;
    `spot_share` may be taken away.

    `failure_hours` and `spot_hours` are the mean times until a node fails or is taken away,
    exponentially distributed; another one has taken its place after `repair_seconds` or
    `spot_seconds`. A node that has come is of use after `start_seconds`. `node_rate`: bytes per
    second that a node can read, and write.
    """

    nodes: int = 1000
    cores: int = 32
    slow_share: float = 0.0
    slow_factor: float = 3.0
    failure_hours: float = math.inf
    repair_seconds: float = 600.0
    spot_share: float = 0.0
    spot_hours: float = 1.0
    spot_seconds: float = 180.0
    start_seconds: float = 15.0
    node_rate: float = 25e9 / 8

    @property
    def workers(self) -> int:
        """All cores."""
        return self.nodes * self.cores


@dataclass(frozen=True)
class Work:
    """What is converted: `data` bytes, which a core alone reads and converts at `core_rate` bytes
    per second.

    `growth`: bytes written per byte read. The times of shards of the same size have a lognormal
    spread with this sigma. `get_bytes` are read with one request (a photo, or a stretch of a large
    file), `put_bytes` written with one.
    """

    data: float
    core_rate: float
    growth: float = 1.0
    shard_bytes: int = 128 * MIB
    spread: float = 0.2
    get_bytes: float = 8 * MIB
    put_bytes: float = 8 * MIB

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return max(1, math.ceil(self.data * self.growth / self.shard_bytes))

    @property
    def gets(self) -> int:
        """GET requests for one shard."""
        return math.ceil(self.data / self.shards / self.get_bytes)

    @property
    def puts(self) -> int:
        """PUT requests for one shard and its marker: one, or its pieces and the two that begin and
        complete them."""
        pieces = math.ceil(self.data * self.growth / self.shards / self.put_bytes)
        return (1 if pieces == 1 else pieces + 2) + 1

    def seconds(self) -> float:
        """Return how long a core takes for a shard where nothing hinders it."""
        return self.data / self.shards / self.core_rate

    def seconds_on(self, cluster: Cluster) -> float:
        """Return how long it takes where all cores of its node read and write at the same time."""
        share = cluster.node_rate / cluster.cores
        return self.data / self.shards / min(self.core_rate, share, share / self.growth)


@dataclass(frozen=True)
class Store:
    """An object store: requests per second of one partition of its keys, how many partitions are
    read and written, and bytes per second in all. `refusals`: how often a request is refused, and
    sent again, while there are too many."""

    get_rate: float = 5500.0
    put_rate: float = 3500.0
    partitions: int = 1024
    total_rate: float = math.inf
    refusals: float = 1.0

    def workers_fed(self, work: Work, seconds: float) -> float:
        """Return how many workers can work at full speed, if a shard takes one of them so many
        seconds."""
        moved = work.data / work.shards * (1 + work.growth)
        return seconds * min(self.requests_limit(work), self.total_rate / moved)

    def requests_limit(self, work: Work) -> float:
        """Return how many shards per second the limits of requests let through."""
        return self.partitions * min(self.get_rate / work.gets, self.put_rate / work.puts)


@dataclass(frozen=True)
class Dynamic:
    """A free worker takes the next shard, as with Ray. The shards of a dead node are placed again
    when its death is noticed.

    The driver needs `task_seconds` for each task, and prepares as many in advance as there are
    workers.
    """

    detection_seconds: float = 30.0
    task_seconds: float = 0.0012


@dataclass(frozen=True)
class Parts:
    """A job array: shard s belongs to part s mod `parts`, and a node works on one part at a time. A
    part that dies is started again on a free node after `restart_seconds`, and builds its
    unfinished shards."""

    parts: int
    restart_seconds: float = 60.0


@dataclass(frozen=True)
class Result:
    """What became of it. `seconds`: until the last shard was done. `ideal`: all work by all cores
    at the same time.

    `core_seconds` says where the time of all cores went, and adds up to `seconds` times the number
    of cores: `useful`; `network`, `store` and `slow`: what shards took longer for the node's
    network, the store's limits and slow nodes; `failures` and `preemption`: work on shards that was
    lost; `driver`: waiting for a task; `down`: nodes that are not there, or starting; `idle`:
    nothing to do. `busy` is counted by the clock, not by the shards: it is the sum of the first
    six.
    """

    shards: int
    finished: int
    attempts: int
    lost: int
    deaths: dict[str, int]
    seconds: float
    ideal: float
    core_seconds: dict[str, float]
    busy: float
    gets: float
    puts: float
    refused: float
    peak_gets: float
    peak_puts: float

    @property
    def utilisation(self) -> float:
        """The share of all core time that was useful."""
        return self.core_seconds["useful"] / sum(self.core_seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**vars(self), "utilisation": self.utilisation}


def simulate(
    cluster: Cluster, work: Work, store: Store, placing: Dynamic | Parts, seed: int = 0
) -> Result:
    """Simulate the building of all shards. Raises ValueError where nodes die so soon that it would
    hardly ever end."""
    slowest = work.seconds_on(cluster) * (cluster.slow_factor if cluster.slow_share else 1.0)
    soonest = (
        min(cluster.failure_hours, cluster.spot_hours if cluster.spot_share else math.inf) * 3600
    )
    if slowest > soonest:
        raise ValueError(
            f"a shard takes up to {slowest:,.0f} s, and a node lives {soonest:,.0f} s: take "
            "smaller shards"
        )
    return _Simulation(cluster, work, store, placing, seed).run()


class _Placer(Protocol):
    """Which worker builds which shard."""

    task_seconds: float
    delay: float
    """Seconds from the death of a node until its shards can be built elsewhere."""

    def begin(self, node: int) -> bool:
        """Give a node that is free something to do, if there is."""
        ...

    def take(self, node: int) -> int:
        """Return the next shard for a worker of a node, NONE if there is nothing for it now."""
        ...

    def finish(self, node: int) -> bool:
        """Count a shard that a node has finished. Returns whether the node is free now: it needs a
        new beginning."""
        ...

    def die(self, node: int, shards: list[int]) -> Any:
        """Take the unfinished shards from a dead node. Returns what is to be given to `again` after
        the delay."""
        ...

    def again(self, taken: Any) -> None:
        """Put back what a dead node had."""
        ...


class _DynamicPlacer:
    def __init__(self, placing: Dynamic, shards: int) -> None:
        self.task_seconds, self.delay = placing.task_seconds, placing.detection_seconds
        self._next, self._shards = 0, shards
        self._again: deque[int] = deque()

    def begin(self, node: int) -> bool:
        return bool(self._again) or self._next < self._shards

    def take(self, node: int) -> int:
        if self._next < self._shards:
            self._next += 1
            return self._next - 1
        return self._again.popleft() if self._again else NONE

    def finish(self, node: int) -> bool:
        return False

    def die(self, node: int, shards: list[int]) -> list[int]:
        return shards

    def again(self, taken: list[int]) -> None:
        self._again.extend(taken)


@dataclass
class _Part:
    """A part: its shards that were not begun, those that were lost, and how many are unfinished."""

    rest: range
    unfinished: int
    lost: list[int] = field(default_factory=list)


class _PartsPlacer:
    task_seconds = 0.0

    def __init__(self, placing: Parts, shards: int) -> None:
        self.delay = placing.restart_seconds
        ranges = (range(part, shards, placing.parts) for part in range(placing.parts))
        self._waiting = deque(_Part(each, len(each)) for each in ranges if each)
        self._at: dict[int, _Part] = {}

    def begin(self, node: int) -> bool:
        if node not in self._at and self._waiting:
            self._at[node] = self._waiting.popleft()
            return True
        return False

    def take(self, node: int) -> int:
        part = self._at.get(node)
        if part is None:
            return NONE
        if part.lost:
            return part.lost.pop()
        if not part.rest:
            return NONE
        shard, part.rest = part.rest[0], part.rest[1:]
        return shard

    def finish(self, node: int) -> bool:
        part = self._at[node]
        part.unfinished -= 1
        if part.unfinished == 0:
            del self._at[node]
        return part.unfinished == 0

    def die(self, node: int, shards: list[int]) -> _Part | None:
        part = self._at.pop(node, None)
        if part is not None:
            part.lost += shards
        return part

    def again(self, taken: _Part | None) -> None:
        if taken is not None:
            self._waiting.append(taken)


class _Simulation:
    """The state of a simulation. Workers are numbered node by node.

    What all workers do goes on at the rate of the virtual clock, which is slower than the real one
    while the store is asked for too much. So a shard ends at a virtual time that is known when it
    begins; all else happens at real times.
    """

    def __init__(
        self, cluster: Cluster, work: Work, store: Store, placing: Dynamic | Parts, seed: int
    ) -> None:
        self.cluster, self.work, self.store = cluster, work, store
        self.random = np.random.default_rng(seed)
        self.placer: _Placer = (
            _DynamicPlacer(placing, work.shards)
            if isinstance(placing, Dynamic)
            else _PartsPlacer(placing, work.shards)
        )
        self.nominal, self.loaded = work.seconds(), work.seconds_on(cluster)
        self.fed = store.workers_fed(work, self.loaded)
        self.refusing = store.requests_limit(work) * self.loaded <= self.fed
        mean = -(work.spread**2) / 2  # of the logarithm: then the mean of the times is 1
        self.factors = array(
            "d", np.exp(self.random.normal(mean, work.spread, work.shards)).tobytes()
        )
        self.slow = [
            cluster.slow_factor if drawn else 1.0 for drawn in self._share(cluster.slow_share)
        ]
        self.spot = self._share(cluster.spot_share)
        self.time = self.virtual = self.ready = 0.0
        self.rate = 1.0
        self.busy = self.waiting = 0
        self.down = cluster.nodes
        self.up = [False] * cluster.nodes
        self.lives = [0] * cluster.nodes
        self.shard = [NONE] * cluster.workers
        self.began = [0.0] * cluster.workers
        self.ends = [math.inf] * cluster.workers
        """Virtual time at which the shard of a worker ends; inf for one that has none, or waits for
        its task."""
        self.ending: list[tuple[float, int]] = []
        self.events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self.numbered = 0
        self.finished = self.attempts = self.lost = 0
        self.deaths = {FAILURE: 0, PREEMPTION: 0}
        names = (
            "useful",
            "network",
            "store",
            "slow",
            FAILURE,
            PREEMPTION,
            "driver",
            "down",
            "idle",
        )
        self.core_seconds = dict.fromkeys(names, 0.0)
        self.busy_seconds = self.partial = self.refused = self.fastest = 0.0

    def _share(self, share: float) -> list[bool]:
        """Draw this share of the nodes."""
        drawn = np.zeros(self.cluster.nodes, bool)
        drawn[self.random.permutation(self.cluster.nodes)[: round(share * self.cluster.nodes)]] = (
            True
        )
        return drawn.tolist()

    def run(self) -> Result:
        for node in range(self.cluster.nodes):
            self._at(self.cluster.start_seconds, self._arrive, node)
        while self.finished < self.work.shards:
            at = self._next_end()
            if self.events and self.events[0][0] <= at:
                time, _, happens, given = heapq.heappop(self.events)
                self._advance(time)
                happens(*given)
            else:
                self._advance(at)
                self._finish(self.ending[0][1])
        return self._result()

    def _at(self, time: float, happens: Any, *given: Any) -> None:
        """Have something happen at a time; what happens at the same time does so in the order of
        these calls."""
        heapq.heappush(self.events, (time, self.numbered, happens, given))
        self.numbered += 1

    def _next_end(self) -> float:
        """Return the real time at which the next shard ends if nothing happens before; inf if none
        is being built."""
        ending, ends = self.ending, self.ends
        while ending and ends[ending[0][1]] != ending[0][0]:
            heapq.heappop(ending)  # of a node that has died
        return self.time + (ending[0][0] - self.virtual) / self.rate if ending else math.inf

    def _advance(self, time: float) -> None:
        passed = time - self.time
        self.busy_seconds += passed * self.busy
        self.core_seconds["driver"] += passed * self.waiting
        self.core_seconds["down"] += passed * self.down * self.cluster.cores
        if self.rate < 1 and self.refusing:
            self.refused += passed * self.busy * self.rate
        self.virtual += passed * self.rate
        self.time = time

    def _employ(self, workers: int) -> None:
        """So many more workers are busy: the store may have to share what it gives."""
        self.busy += workers
        self.rate = min(1.0, self.fed / self.busy) if self.busy else 1.0
        self.fastest = max(self.fastest, self.busy * self.rate)

    def _arrive(self, node: int) -> None:
        self.up[node] = True
        self.down -= 1
        hours = {
            FAILURE: self.cluster.failure_hours,
            PREEMPTION: self.cluster.spot_hours if self.spot[node] else math.inf,
        }
        lives = {cause: self.random.exponential() * mean * 3600 for cause, mean in hours.items()}
        cause = min(lives, key=lives.__getitem__)
        if lives[cause] < math.inf:
            self._at(self.time + lives[cause], self._die, node, cause)
        self._begin(node, self.lives[node])

    def _begin(self, node: int, life: int) -> None:
        """Let the workers of a node that have nothing to do take shards. `life`: the node may have
        been replaced by now."""
        if self.up[node] and self.lives[node] == life and self.placer.begin(node):
            first = node * self.cluster.cores
            for worker in range(first, first + self.cluster.cores):
                if self.shard[worker] == NONE and not self._take(worker, node):
                    return

    def _take(self, worker: int, node: int) -> bool:
        """Have an idle worker take a shard. Returns whether there was one."""
        shard = self.shard[worker] = self.placer.take(node)
        if shard == NONE:
            return False
        task = self.placer.task_seconds
        if task:
            self.ready = max(self.ready + task, self.time - self.cluster.workers * task)
            if self.ready > self.time:
                self.waiting += 1
                self._at(self.ready, self._get_task, worker, node, self.lives[node])
                return True
        self._employ(1)
        self._build(worker, node)
        return True

    def _get_task(self, worker: int, node: int, life: int) -> None:
        if self.lives[node] == life:
            self.waiting -= 1
            self._employ(1)
            self._build(worker, node)

    def _build(self, worker: int, node: int) -> None:
        self.attempts += 1
        self.began[worker] = self.time
        end = self.ends[worker] = (
            self.virtual + self.loaded * self.factors[self.shard[worker]] * self.slow[node]
        )
        heapq.heappush(self.ending, (end, worker))

    def _finish(self, worker: int) -> None:
        heapq.heappop(self.ending)
        node, factor = worker // self.cluster.cores, self.factors[self.shard[worker]]
        spent, slow = self.core_seconds, self.slow[node]
        spent["useful"] += self.nominal * factor
        spent["network"] += (self.loaded - self.nominal) * factor
        spent["slow"] += self.loaded * factor * (slow - 1)
        spent["store"] += self.time - self.began[worker] - self.loaded * factor * slow
        self.finished += 1
        self.shard[worker], self.ends[worker] = NONE, math.inf
        if self.placer.finish(node):
            self._at(self.time + self.cluster.start_seconds, self._begin, node, self.lives[node])
        # and one more, if it takes another: only then the store has as much to do as before
        self.busy -= 1
        if not self._take(worker, node):
            self._employ(0)

    def _die(self, node: int, cause: str) -> None:
        self.up[node] = False
        self.down += 1
        self.lives[node] += 1
        self.deaths[cause] += 1
        lost, building = [], 0
        first = node * self.cluster.cores
        for worker in range(first, first + self.cluster.cores):
            if self.shard[worker] == NONE:
                continue
            lost.append(self.shard[worker])
            if self.ends[worker] < math.inf:
                building += 1
                self.core_seconds[cause] += self.time - self.began[worker]
                whole = self.loaded * self.factors[self.shard[worker]] * self.slow[node]
                self.partial += max(0.0, 1 - (self.ends[worker] - self.virtual) / whole)
            else:
                self.waiting -= 1
            self.shard[worker], self.ends[worker] = NONE, math.inf
        self.lost += building
        self._employ(-building)
        self._at(self.time + self.placer.delay, self._again, self.placer.die(node, lost))
        gone = self.cluster.repair_seconds if cause == FAILURE else self.cluster.spot_seconds
        self._at(self.time + gone + self.cluster.start_seconds, self._arrive, node)

    def _again(self, taken: Any) -> None:
        """Shards of a dead node can be built again: nodes with nothing to do take them."""
        self.placer.again(taken)
        for node in range(self.cluster.nodes):
            self._begin(node, self.lives[node])

    def _result(self) -> Result:
        work, spent = self.work, self.core_seconds
        busy = self.busy_seconds
        spent["idle"] = self.time * self.cluster.workers - busy - spent["driver"] - spent["down"]
        requests = self.store.refusals * self.refused / self.loaded
        return Result(
            shards=work.shards,
            finished=self.finished,
            attempts=self.attempts,
            lost=self.lost,
            deaths=self.deaths,
            seconds=self.time,
            ideal=work.data / work.core_rate / self.cluster.workers,
            core_seconds=spent,
            busy=busy,
            gets=(self.finished + self.partial) * work.gets,
            puts=self.finished * work.puts,  # a shard is uploaded when it is finished
            refused=requests * (work.gets + work.puts),
            peak_gets=self.fastest / self.loaded * work.gets,
            peak_puts=self.fastest / self.loaded * work.puts,
        )
