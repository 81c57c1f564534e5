"""What is found out about files of many records before there is a plan: their units, and the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from shardctl.build.shards.prefetch import Wanted, along
from shardctl.errors import Rejection
from shardctl.sources.format_table import PLAIN_TEXTS
from shardctl.sources.formats import Reading, Unit, find_format
from shardctl.sources.remote.remote_files import is_brought, local
from shardctl.sources.types import Types
from shardctl.system.files import ordinary
from shardctl.system.processes.progress_slot import Breadcrumb


class Look(Protocol):
    """Work on some things, one after the other, that is done before there is a plan. `task` is its name."""

    task: ClassVar[str]

    def __len__(self) -> int: ...

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        ...

    def reads(self, number: int) -> Sequence[Wanted]:
        """Return the objects on a store that one of them is read from."""
        ...

    def look_at(self, number: int, crumb: Breadcrumb) -> dict[str, Any]:
        """Look at one of them; `crumb`, which has its number, is told the stage where it is not `read`.

        Raises Rejection, OSError, MemoryError.
        """
        ...

    def finish(self, found: Found) -> None:
        """All have been looked at, but for those that are lost: add to what was found in them, if there is more."""


@dataclass(frozen=True)
class Stretch:
    """A part of a file: a piece to scan, or a unit whose types are wanted (`unit`). `suffix` tells its format.

    `version` is the number of that of an object on a store, 0 where it does not matter.
    """

    path: str
    suffix: str
    offset: int
    size: int
    unit: tuple[int, ...] | None = None
    version: int = 0

    @property
    def wanted(self) -> Sequence[Wanted]:
        """The object that it is read from, if it is on a store."""
        return (Wanted(self.path, self.size, self.version, False),) if is_brought(self.path) else ()


@dataclass(frozen=True)
class Survey:
    """Work on some stretches: scan them, or find the types of their fields."""

    task: ClassVar[str] = "survey"
    stretches: tuple[Stretch, ...]
    reading: Reading
    shuffled: bool

    def __len__(self) -> int:
        return len(self.stretches)

    def reads(self, number: int) -> Sequence[Wanted]:
        """Return the object that a stretch is of."""
        return self.stretches[number].wanted

    def look_at(self, number: int, crumb: Breadcrumb) -> dict[str, Any]:
        """Scan a stretch, or find the types of its fields."""
        return _look_at(self.stretches[number], self)

    def finish(self, found: Found) -> None:
        """Nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Survey:
        """Build what `to_json` gave."""
        return cls(stretches_from(record), reading_from(record), record["shuffled"])


def stretches_from(record: dict[str, Any]) -> tuple[Stretch, ...]:
    """Return the stretches of work that is plain data."""
    units = (tuple(each["unit"]) if each["unit"] else None for each in record["stretches"])
    return tuple(Stretch(**{**each, "unit": unit}) for each, unit in zip(record["stretches"], units, strict=True))


def reading_from(record: dict[str, Any]) -> Reading:
    """Return how the records of such work are read."""
    lists = {name: tuple(record["reading"][name]) for name in ("columns", "only", "null_values")}
    return Reading(**{**record["reading"], **lists})


Found = list[Any]
"""What was found in each stretch: {"scan": …}, {"types": …} or {"fault": [stage, error, message]}; of files {"hash": …}."""


def do_survey(survey: Look, crumb: Breadcrumb, lost: Mapping[int, Rejection]) -> Found:
    """Look at everything. `lost` are those that end every process that looks at them."""
    found: Found = []
    for number in along(range(len(survey)), survey.reads):
        crumb.drop(number)
        try:
            if number in lost:
                raise lost[number]
            found.append(survey.look_at(number, crumb))
        except Rejection as rejection:
            found.append({"fault": [rejection.stage, rejection.error, rejection.message]})
        except OSError as error:
            found.append({"fault": ["read", "unreadable", f"cannot be read ({error.strerror or error})"]})
        except MemoryError:
            found.append(
                {"fault": ["read", "out-of-memory", "needs more memory than there is, or than --worker-memory allows"]}
            )
        crumb.leave()
    survey.finish(found)
    return found


def _look_at(stretch: Stretch, survey: Survey) -> dict[str, Any]:
    local(stretch.path, stretch.version)
    form = find_format(stretch.suffix, survey.reading, survey.shuffled)
    if stretch.unit is None and stretch.offset == 0 and stretch.suffix in PLAIN_TEXTS:
        from shardctl.sources.formats.streams import refuse_other_content  # it imports compressions, which few files need

        with open(stretch.path, "rb", buffering=0, opener=ordinary) as file:
            refuse_other_content(file.read(16))
    if stretch.unit is None:
        return {"scan": form.scan(stretch.path, stretch.offset, stretch.size, survey.reading)}
    types: Types = form.types(stretch.path, Unit(*stretch.unit), survey.reading)
    return {"types": types.to_json()}
