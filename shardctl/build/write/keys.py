"""The keys of samples that are written: none may come twice."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from shardctl.errors import InputError
from shardctl.format.shard import ShardReader
from shardctl.system.locations.local import LocalFolder
from shardctl.system.text import printable

_FEW = 1000
"""Hashes of several samples whose keys are compared at a time."""


class Keys:
    """The keys of all samples, 8 bytes each: ten million are 80 MB. `variant` is the place of that column in a row, or -1.

    Samples that are variants of one record have the same key.
    """

    def __init__(self, variant: int) -> None:
        self._variant = variant
        self._hashes = array("Q")

    def add(self, values: tuple[Any, ...]) -> None:
        """Take the key of the next sample, whose row is `values`."""
        self._hashes.append(xxhash.xxh3_64_intdigest(self._name(values[0], values[self._variant])))

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """A hash of every key, (samples,) uint64."""
        return np.frombuffer(self._hashes, np.uint64)

    def extend(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Take keys that come after these, given what `hashes` gave of them."""
        self._hashes.frombytes(hashes.tobytes())

    def _name(self, key: str, variant: Any) -> bytes:
        name = key if self._variant < 0 else f"{variant!r} {key}"
        return name.encode("utf-8", "surrogatepass")

    def refuse_repeated(self, shards: Sequence[Path]) -> None:
        """Raise InputError if two samples have the same key.

        Equal hashes prove nothing: such keys are read from the shards and compared.
        """
        ordered = np.sort(self.hashes)
        again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        for start in range(0, len(again), _FEW):
            self._compare(shards, again[start : start + _FEW])

    def _compare(self, shards: Sequence[Path], wanted: npt.NDArray[np.uint64]) -> None:
        """Compare the keys that have some hashes; the rows of the shards are in the order of the samples."""
        hashes, first = self.hashes, 0
        seen: dict[bytes, int] = {}
        for block in chain.from_iterable(ShardReader(LocalFolder(path.parent), path.name).blocks() for path in shards):
            for row in np.flatnonzero(np.isin(hashes[first : first + block.num_rows], wanted)).tolist():
                key = block.column("key")[row].as_py()
                name = self._name(key, None if self._variant < 0 else block.column("variant")[row].as_py())
                if name in seen:
                    raise InputError(
                        f"sample {first + row:,} has the key {printable(key)}, and sample {seen[name]:,} has it too; give every"
                        " sample a key of its own (those without one have their number)"
                    )
                seen[name] = first + row
            first += block.num_rows
