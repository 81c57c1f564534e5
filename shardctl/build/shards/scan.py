"""What is found out about files of many records before there is a plan: their units, and the types
of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from shardctl.build.shards.prefetch import ReadRequest, prefetched
from shardctl.errors import Rejection
from shardctl.sources.companions import copy_to_read
from shardctl.sources.format_table import PLAIN_TEXTS
from shardctl.sources.formats import Reading, Unit, find_format
from shardctl.sources.types import Types
from shardctl.system.files import ordinary
from shardctl.system.locations import is_stored
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE, WorkerProgress


class PrePlanTask(Protocol):
    """Work on some things, one after the other, that is done before there is a plan. `name` is what
    a worker knows it by."""

    name: ClassVar[str]

    def __len__(self) -> int: ...

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        ...

    def reads(self, number: int) -> Sequence[ReadRequest]:
        """Return the objects on a store that one of them is read from."""
        ...

    def examine(self, number: int, progress: WorkerProgress) -> dict[str, Any]:
        """Look at one of them; `progress`, which has its number, is told the stage where it is not
        `read`.

        Raises Rejection, OSError, MemoryError.
        """
        ...

    def finish(self, found: Found) -> None:
        """All have been looked at, but for those that are lost: add to what was found in them, if
        there is more."""


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes of a file: a piece to scan, or a unit whose types are wanted (`unit`).
    `suffix` tells its format.

    `opened` is its path or its URL; `version` is the number of that of an object on a store, 0
    where it does not matter.
    """

    opened: str
    suffix: str
    offset: int
    size: int
    unit: tuple[int, ...] | None = None
    version: int = 0

    @property
    def requests(self) -> Sequence[ReadRequest]:
        """The object that it is read from, if it is on a store."""
        return (
            (ReadRequest(self.opened, self.size, self.version, False),)
            if is_stored(self.opened)
            else ()
        )

    def path_to_read(self) -> str:
        """Return a path at which the file can be read now. Raises as `copy_to_read` does."""
        return copy_to_read(self.opened, self.suffix, self.version)


@dataclass(frozen=True)
class ScanTask:
    """Work on some ranges: scan them, or find the types of their fields."""

    name: ClassVar[str] = "scan"
    ranges: tuple[ByteRange, ...]
    reading: Reading
    shuffled: bool

    def __len__(self) -> int:
        return len(self.ranges)

    def reads(self, number: int) -> Sequence[ReadRequest]:
        """Return the object that a part is of."""
        return self.ranges[number].requests

    def examine(self, number: int, progress: WorkerProgress) -> dict[str, Any]:
        """Scan a part, or find the types of its fields."""
        return _scan(self.ranges[number], self)

    def finish(self, found: Found) -> None:
        """Nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ScanTask:
        """Build what `to_json` gave."""
        return cls(ranges_from(record), reading_from(record), record["shuffled"])


def ranges_from(record: dict[str, Any]) -> tuple[ByteRange, ...]:
    """Return the ranges of work that is plain data."""
    units = (tuple(each["unit"]) if each["unit"] else None for each in record["ranges"])
    return tuple(
        ByteRange(**{**each, "unit": unit})
        for each, unit in zip(record["ranges"], units, strict=True)
    )


def reading_from(record: dict[str, Any]) -> Reading:
    """Return how the records of such work are read."""
    lists = {
        name: tuple(record["reading"][name])
        for name in ("columns", "only", "null_values", "looked")
    }
    return Reading(**{**record["reading"], **lists})


Found = list[Any]
"""What was found in each part: {"scan": …}, {"types": …} or {"fault": [stage, error, message]}; of
files {"hash": …}."""


def run_task(task: PrePlanTask, progress: WorkerProgress, lost: Mapping[int, Rejection]) -> Found:
    """Look at everything. `lost` are those that end every process that looks at them."""
    found: Found = []
    for number in prefetched(range(len(task)), task.reads):
        progress.begin(number)
        try:
            if number in lost:
                raise lost[number]
            found.append(task.examine(number, progress))
        except Rejection as rejection:
            found.append({"fault": [rejection.stage, rejection.error, rejection.message]})
        except OSError as error:
            found.append(
                {"fault": ["read", "unreadable", f"cannot be read ({error.strerror or error})"]}
            )
        except MemoryError:
            found.append({"fault": ["read", "out-of-memory", OUT_OF_MEMORY_MESSAGE]})
        progress.leave()
    task.finish(found)
    return found


def _scan(part: ByteRange, task: ScanTask) -> dict[str, Any]:
    path = part.path_to_read()
    form = find_format(part.suffix, task.reading, task.shuffled)
    if part.unit is None and part.offset == 0 and part.suffix in PLAIN_TEXTS:
        # it imports compressions, which few files need
        from shardctl.sources.formats.streams import refuse_other_content

        with open(path, "rb", buffering=0, opener=ordinary) as file:
            refuse_other_content(file.read(16))
    if part.unit is None:
        return {"scan": form.scan(path, part.offset, part.size, task.reading)}
    types: Types = form.types(path, Unit(*part.unit), task.reading)
    return {"types": types.packed()}
