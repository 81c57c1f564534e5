"""What a repair found and did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardctl.system.progress import Phase, Progress


@dataclass(frozen=True)
class Lost:
    """Samples of a damaged shard that cannot be made from their source any more: those of one record, or of a whole unit.

    `key` is that of the first of them, `samples` how many they are.
    """

    key: str
    source: str
    shard: str
    reason: str
    samples: int = 1


@dataclass(frozen=True)
class Unrepaired:
    """A file that could not be repaired, and why."""

    file: str
    message: str


@dataclass(frozen=True)
class RepairResult:
    """The result of a repair. `status` is whole (no damage found), repaired, dropped (lost samples removed), damaged (still).

    `repaired` names the repaired files, `lost` the samples that cannot be made again; `notices` are messages for the user.
    """

    status: str
    repaired: tuple[str, ...]
    unrepaired: tuple[Unrepaired, ...]
    lost: tuple[Lost, ...]
    notices: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the dataset is undamaged now."""
        return not self.unrepaired

    @property
    def lost_samples(self) -> int:
        """How many samples cannot be made again."""
        return sum(lost.samples for lost in self.lost)


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a repair: first the files checked, then the records read, each as (done, total).

    `reading` gets the places of the sources that the manifest names, before anything is read there.
    """

    checking: Callable[[int, int], None] = lambda done, total: None
    building: Callable[[int, int], None] = lambda done, total: None
    waiting: Callable[[str], None] = lambda owner: None
    reading: Callable[[tuple[str, ...]], None] = lambda sources: None

    @classmethod
    def showing(cls, progress: Progress) -> Listener:
        """Return callbacks that show how far a repair is."""
        return cls(progress.counter(Phase("checking", "files")), progress.counter(Phase("rebuilding", "inputs")))
