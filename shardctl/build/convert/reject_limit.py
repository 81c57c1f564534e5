"""The work that is done so far, and its limit of rejects."""

from __future__ import annotations

from collections.abc import Callable

from shardctl.build.convert.result import count_rejects
from shardctl.build.options import reject_limit
from shardctl.build.shards.work_done import WorkDone
from shardctl.errors import TooManyRejectsError


class Tally:
    """Counts the work that the workers report, and stops the conversion if too much is rejected."""

    def __init__(self, limit: str | int | None, inputs: int, listen: Callable[[WorkDone], None]) -> None:
        self._limit = reject_limit(limit, inputs)
        self._inputs, self._listen = inputs, listen
        self.rejected = self.samples = 0

    def add(self, progress: WorkDone) -> None:
        """Add finished work. Raises TooManyRejectsError."""
        self.rejected += progress.rejected
        self.samples += progress.samples
        self._listen(progress)
        if self.rejected > self._limit:
            raise TooManyRejectsError(
                f"{count_rejects(self.rejected, self._inputs)} so far, more than --max-rejects allows;"
                " nothing was committed. Fix or remove them, or run the same command with a higher limit to continue"
            )
