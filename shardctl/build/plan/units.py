"""The units of a conversion: every file that is one record, or the stretches that files of many
records are cut into."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardctl.errors import Rejection
from shardctl.sources.formats import Cut
from shardctl.transforms.duplicates.pictures import Repeats

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Units in the order of the walk. `file`, `offset`, `size`, `first` and `records` are (n,)
    int64.

    `file` counts along the listing. `first` is the number of a unit's first record in its file,
    from 1; 0 where the file is one record. `faults` has the units that are not read, with the
    reason; so are the `repeats` of others.
    """

    file: Numbers
    offset: Numbers
    size: Numbers
    first: Numbers
    records: Numbers
    faults: dict[int, Rejection]
    repeats: Repeats | None = None

    def __len__(self) -> int:
        return len(self.file)

    @classmethod
    def of_whole_files(cls, sizes: Numbers, faults: dict[int, Rejection]) -> Units:
        """Return a unit per file; what is the same in all takes no memory."""
        count = len(sizes)
        zero, one = (np.broadcast_to(np.int64(value), count) for value in (0, 1))
        return cls(np.arange(count), zero, sizes, zero, one, faults)

    def faults_at(self, numbers: Numbers) -> list[Rejection | None]:
        """Return why some units are not read; none at all if all of them are."""
        faults = [self.faults.get(number) for number in numbers.tolist()] if self.faults else []
        if self.repeats is None:
            return faults
        repeated = self.repeats.rejections(numbers)
        return (
            [fault or other for fault, other in zip(faults, repeated, strict=True)]
            if faults
            else repeated
        )

    def readable(self) -> Numbers:
        """Return the numbers of the units that have no fault, in order."""
        able = np.ones(len(self), bool)
        able[list(self.faults)] = False
        return np.flatnonzero(able)


class UnitsInMaking:
    """Takes the units of one file after the other, in any order of the files, at 40 bytes a
    unit."""

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(5))
        self._faults: dict[int, Rejection] = {}

    def add(self, file: int, cuts: list[Cut]) -> None:
        """Add all units of a file, given by its place in the listing. A fault has one record."""
        # a file that cannot be read is rejected as a whole
        number = 0 if len(cuts) == 1 and cuts[0].fault else 1
        for cut in cuts:
            if cut.fault is not None:
                self._faults[len(self._columns[0])] = cut.fault
            for column, value in zip(
                self._columns, (file, cut.offset, cut.size, number, cut.records), strict=True
            ):
                column.append(value)
            number += cut.records

    def finish(self) -> Units:
        """Return the units in the order of the files. Nothing can be added any more."""
        file, offset, size, first, records = (
            np.frombuffer(column, np.int64) for column in self._columns
        )
        if bool((file[:-1] <= file[1:]).all()):
            return Units(file, offset, size, first, records, self._faults)
        order = np.argsort(file, kind="stable")
        faults = {}
        if self._faults:
            places = np.flatnonzero(np.isin(order, list(self._faults)))
            faults = {place: self._faults[int(order[place])] for place in places.tolist()}
        return Units(file[order], offset[order], size[order], first[order], records[order], faults)
