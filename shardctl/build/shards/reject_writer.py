"""The rejects of a shard on their way into its file: in the order of the records, and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.build.shards.shard_totals import ShardTotals, UnitOutcome
from shardctl.errors import Rejection
from shardctl.format.tables import PRUNED, Reject
from shardctl.system.processes.worker_state import KEYS

RejectedRecord = tuple[int, Rejection]
"""The number of a record, and why it is rejected."""


class RejectWriter:
    """Tells of the records of a shard that are rejected, in order.

    Within a unit of many records, some may wait for a model. Rejects of records behind the first of
    these are written later, so that the order stays. Records that are lost are not read, and are
    written in their turn.
    """

    def __init__(
        self, write: Callable[[Reject], None], hints: RetryHints, totals: ShardTotals
    ) -> None:
        self._write, self._hints, self._totals = write, hints, totals
        self._lost: Sequence[int] = ()
        self._late: list[RejectedRecord] = []
        self.pruned = False
        """Whether a record of the unit was taken out by a person."""

    def begin(self, lost: Sequence[int]) -> None:
        """Begin with a unit of many records. These of them are lost, and sorted."""
        self._lost, self._late, self.pruned = lost, [], False

    def hold(self, record: int, rejection: Rejection) -> None:
        """Take a record that has waited, to be told of when those before it are."""
        self._late.append((record, rejection))

    def tell(
        self,
        planned: PlannedUnit,
        outcome: UnitOutcome,
        rejects: Sequence[RejectedRecord],
        last: int | None,
        waiting: int | None,
    ) -> None:
        """Reject some records of a unit, and those up to `last` (None: to the end of the unit) that
        are lost.

        What comes after the record that is `waiting`, the first one that is, is told later; None:
        no record waits.
        """
        ahead = [record for record in self._lost if last is None or record <= last]
        self._lost = self._lost[len(ahead) :]
        known = [(record, self._hints.lost[planned.number, record]) for record in ahead]
        ordered = sorted([*self._late, *rejects, *known], key=itemgetter(0))
        self._late = [] if waiting is None else [each for each in ordered if each[0] > waiting]
        for record, rejection in ordered[: len(ordered) - len(self._late)]:
            self.reject(planned, outcome, record, rejection)

    def reject(
        self,
        planned: PlannedUnit,
        outcome: UnitOutcome,
        record: int,
        rejection: Rejection,
        records: int = 1,
    ) -> None:
        """Reject so many records of a unit, of which `record` is the first."""
        self.pruned |= rejection.error == PRUNED
        message = rejection.message + of_several(records)
        stage = "read" if rejection.stage == KEYS else rejection.stage
        self._write(
            Reject(planned.file.path, planned.key(record), stage, rejection.error, message, records)
        )
        self._totals.count_rejects(outcome, records)


def of_several(records: int) -> str:
    """Return what is added to the message of a reject that stands for several records."""
    return f" (and {records - 1} records after it)" if records > 1 else ""
