"""The check of labels: where classes have names, a label is the number of one.

Such a shard is what was written: an older shardctl did not look at the labels that a function set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from shardctl.inspection.verify.check import Block, Fault, Shard
from shardctl.inspection.verify.finding import CONVERT_AGAIN

NO_SUCH_CLASS = "no-such-class"


class LabelCheck:
    """The labels of one shard. They are kept up to the last block, since faults come field by field."""

    def __init__(self, shard: Shard) -> None:
        self._names = shard.roles.names
        self._blocks: list[Block] = []

    def look(self, block: Block) -> None:
        """Keep the labels of a block."""
        if self._names:
            self._blocks.append(block.with_columns({"key", *self._names}))

    def faults(self) -> Iterator[Fault]:
        """Yield every label that is not the number of a class."""
        for name, classes in self._names.items():
            if self._blocks and name in self._blocks[0].data.schema.names:
                yield from _unnamed(name, classes, self._blocks)


def _unnamed(name: str, classes: Sequence[str], blocks: list[Block]) -> Iterator[Fault]:
    for block in blocks:
        labels = block.data.column(name)
        if not pa.types.is_integer(labels.type):
            what = f"{name} is of type {labels.type}, where classes have numbers"
            yield block.fault(0, NO_SUCH_CLASS, f"{what}; {CONVERT_AGAIN}")
            return
        values = np.from_dlpack(labels.fill_null(0))
        for row in np.flatnonzero((values < 0) | (values >= len(classes))).tolist():
            what = f"its {name} is {values[row]}, and the classes have the numbers 0 to {len(classes) - 1}"
            yield block.fault(row, NO_SUCH_CLASS, f"{what}; {CONVERT_AGAIN}")
