"""What reading from a store has done: requests, bytes, blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Counts:
    """What has been done since the dataset was opened. Blocks count at their first use, and again
    when they are read anew."""

    requests: int = 0
    network_bytes: int = 0
    network_blocks: int = 0
    cached_blocks: int = 0


NAMES = tuple(each.name for each in fields(Counts))
