"""Callbacks for the progress of a conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardctl.build.convert.estimate import Estimate
from shardctl.build.shards.work_done import WorkDone


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a conversion; the default of each does nothing.

    `listing` gets the number of inputs found so far; `waiting` the owner of the lease for which the
    conversion waits; `announce` the estimate, before the work starts; `resuming` the number of
    finished shards and of all shards; `progress` the work done since the last call; `on_line` each
    line that a worker prints; `comparing` the number of inputs that have been looked at for
    duplicates so far; `part` the name of the part of a conversion that begins, the number of its
    shards and of their records. `building` is called where the work of this run begins: `progress`
    had what was there before. `scanning` gets how many pieces of files were read to find their
    records, or the types of their fields, and how many will be.
    """

    listing: Callable[[int], None] = lambda inputs: None
    waiting: Callable[[str], None] = lambda owner: None
    announce: Callable[[Estimate], None] = lambda estimate: None
    resuming: Callable[[int, int], None] = lambda done, shards: None
    progress: Callable[[WorkDone], None] = lambda progress: None
    on_line: Callable[[str], None] = lambda line: None
    comparing: Callable[[int], None] = lambda inputs: None
    part: Callable[[str, int, int], None] = lambda name, shards, records: None
    building: Callable[[], None] = lambda: None
    scanning: Callable[[int, int], None] = lambda done, total: None
