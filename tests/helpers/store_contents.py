"""What lies on an object store while a dataset is made there, and after it."""

from __future__ import annotations

from shardctl.system.stores import open_store
from shardctl.system.stores.base import Store


def keys(url: str) -> list[str]:
    return [entry.name for page in open_store(url).pages() for entry in page]


def nothing_is_left(url: str) -> None:
    """Make sure that there is nothing but one dataset, or one and the one that it replaced."""
    assert not [key for key in keys(url) if key.startswith(".shardctl/")]
    assert len({key.split("/")[0] for key in keys(url) if "/" in key}) <= 2


def done_on(store: Store) -> int:
    return sum(
        "/done/" in entry.name and entry.name.endswith(".arrow")
        for page in store.pages(".shardctl/")
        for entry in page
    )
