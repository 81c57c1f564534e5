"""The units of a conversion: every file that is one record, or the stretches that files of many records are cut into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardctl.errors import Rejection
from shardctl.sources.formats import Cut

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Units in the order of the walk. `file`, `offset`, `size`, `first` and `records` are (n,) int64.

    `file` counts along the listing. `first` is the number of a unit's first record in its file, from 1; 0 where the file is
    one record. `faults` has the units that are not read, with the reason.
    """

    file: Numbers
    offset: Numbers
    size: Numbers
    first: Numbers
    records: Numbers
    faults: dict[int, Rejection]

    def __len__(self) -> int:
        return len(self.file)

    @classmethod
    def of_whole_files(cls, sizes: Numbers, faults: dict[int, Rejection]) -> Units:
        """Return a unit per file; what is the same in all takes no memory."""
        count = len(sizes)
        zero, one = (np.broadcast_to(np.int64(value), count) for value in (0, 1))
        return cls(np.arange(count), zero, sizes, zero, one, faults)

    @classmethod
    def of_cuts(cls, cuts: Iterable[tuple[int, list[Cut]]]) -> Units:
        """Return the units of some files, each given with its place in the listing. A fault has one record."""
        rows: list[tuple[int, int, int, int, int]] = []
        faults: dict[int, Rejection] = {}
        for file, of_file in cuts:
            number = 0 if len(of_file) == 1 and of_file[0].fault else 1  # a file that cannot be read is rejected as a whole
            for cut in of_file:
                if cut.fault is not None:
                    faults[len(rows)] = cut.fault
                rows.append((file, cut.offset, cut.size, number, cut.records))
                number += cut.records
        columns = np.array(rows, np.int64).reshape(-1, 5).T
        of_unit, offset, size, first, records = (np.ascontiguousarray(column) for column in columns)
        return cls(of_unit, offset, size, first, records, faults)
