"""How a finished dataset takes its place: where it is written, its job, its commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardctl.making.commit.target import Target
from shardctl.system.folders import LocalFolder


@contextmanager
def open_target(destination: str | Path) -> Iterator[Target]:
    """Yield the place of a path or of a URL. Raises StoreError, InstallError."""
    if isinstance(destination, str):
        from shardctl.making.commit.store_target import place_on_store  # an extra

        with place_on_store(destination) as place:
            place.look_at_jobs()
            yield place
    else:
        yield Target(LocalFolder(destination))
