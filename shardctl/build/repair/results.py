"""What a repair found and did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardctl.system.html import (
    BAD,
    GOOD,
    Html,
    in_notebook,
    lines_in_notebook,
    marked,
    rows_in_notebook,
    text,
)
from shardctl.system.progress import Phase, Progress
from shardctl.system.text import counted


@dataclass(frozen=True)
class Lost:
    """Samples of a damaged shard that cannot be made from their source any more: those of one
    record, or of a whole unit.

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
    """The result of a repair. `status` is whole (no damage found), repaired, dropped (lost samples
    removed), damaged (still).

    `repaired` names the repaired files, `lost` the samples that cannot be made again; `notices` are
    messages for the user.
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

    @property
    def verdict(self) -> str:
        """What the dataset is now, in words."""
        return {"repaired": "is whole again", "damaged": "is still DAMAGED"}.get(
            self.status, "is whole"
        )

    @property
    def remark(self) -> str:
        """The words after the verdict: the actions, or the reason why they failed."""
        repaired = (
            f"{counted(len(self.repaired), 'file')} repaired, shards and tables verified by SHA-256"
        )
        return {
            "whole": "; nothing was done",
            "repaired": f": {repaired}",
            "dropped": f", without {counted(self.lost_samples, 'lost sample')}; rejects.jsonl has "
            "the names",
            "damaged": f": {counted(len(self.unrepaired), 'file')} could not be repaired",
        }[self.status]

    def __repr__(self) -> str:
        """Return the verdict, for display."""
        return f"<shardctl.RepairResult: the dataset {self.verdict}{self.remark}>"

    def _repr_html_(self) -> str:
        """Return the verdict, and what was repaired, lost and not repaired, for a notebook."""
        status = marked(self.status, GOOD if self.ok else BAD)
        lost = [
            (each.key, each.samples, each.shard, each.source, each.reason) for each in self.lost
        ]
        return in_notebook(
            Html(f"{status.text} the dataset {text(self.verdict + self.remark)}"),
            lines_in_notebook(self.notices),
            rows_in_notebook(
                "not repaired",
                [(each.file, each.message) for each in self.unrepaired],
                ("file", "why"),
            ),
            rows_in_notebook("lost", lost, ("key", "samples", "shard", "source", "why")),
            rows_in_notebook("repaired", [(name,) for name in self.repaired]),
        )


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a repair: first the files checked, then the records read, each
    as (done, total).

    `reading` gets the places of the sources that the manifest names, before anything is read there.
    """

    checking: Callable[[int, int], None] = lambda done, total: None
    building: Callable[[int, int], None] = lambda done, total: None
    waiting: Callable[[str], None] = lambda owner: None
    reading: Callable[[tuple[str, ...]], None] = lambda sources: None

    @classmethod
    def showing(cls, progress: Progress) -> Listener:
        """Return callbacks that show how far a repair is."""
        return cls(
            progress.counter(Phase("checking", "files")),
            progress.counter(Phase("rebuilding", "inputs")),
        )
