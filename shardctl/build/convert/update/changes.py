"""What an update changes, as jobs record it and results tell it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Changes:
    """What an update does: files `added`, `removed` and `changed`; shards `rebuilt`, `new` and
    `kept`.

    `anew` says why all shards are built again, "" if they are not.
    """

    added: int
    removed: int
    changed: int
    rebuilt: int
    new: int
    kept: int
    anew: str = ""
