"""Samples that come from far away are fetched before they are needed: the order says which come
next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from shardctl.loader.blocks import Indices, Shards

if TYPE_CHECKING:
    from shardctl.loader.remote.request_threads import Ahead


class Lookahead(Protocol):
    """Brings samples before they are needed."""

    @property
    def is_short(self) -> bool:
        """Whether more samples may be said to be needed."""
        ...

    def expect(self, samples: Indices, epoch: int) -> None:
        """Say that these samples (n,) will be needed after those before, in this epoch."""
        ...

    def close(self) -> None:
        """Give up what was not used."""
        ...


class DatasetLookahead:
    """Brings the blocks of samples. `of_dataset` returns which of the dataset's samples those of an
    epoch are."""

    def __init__(
        self, shards: Shards, of_dataset: Callable[[Indices, int], Indices], coming: Ahead
    ) -> None:
        self._shards, self._of_dataset, self._coming = shards, of_dataset, coming
        self._epoch: int | None = None

    @property
    def is_short(self) -> bool:
        """Whether more samples may be said to be needed."""
        return self._coming.is_short

    def expect(self, samples: Indices, epoch: int) -> None:
        """Have the blocks of these samples fetched, in the order of their first use, each once in
        an epoch."""
        if epoch != self._epoch:
            self._coming.forget_seen()
            self._epoch = epoch
        blocks = self._shards.blocks_in_turn(self._of_dataset(samples, epoch))
        self._coming.expect(self._shards.missing(blocks, self._coming.keeps).tolist())

    def close(self) -> None:
        """Give up the blocks that were not used."""
        self._coming.close()
