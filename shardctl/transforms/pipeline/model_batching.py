"""Records that models are called with together, some at a time.

What a model returns for a sample may depend on the others in its call. So the rows that are stored
come from calls without any record that is rejected, at whatever point: whoever makes the shard
again, knowing the rejects, makes the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardctl.errors import InputError, Rejection
from shardctl.format.roles import Sample
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE
from shardctl.transforms.pipeline.functions import FailedCallError
from shardctl.transforms.pipeline.samples import Outcome, Prepared, SamplePipeline

Watch = Callable[[int | None, str], None]
"""Is told what is worked on next: the record, by the number by which it was added, and the stage
that it reaches. None: a model is called with samples of several records."""


class ModelBatcher:
    """Records whose samples models are called with together."""

    def __init__(self, pipeline: SamplePipeline, watch: Watch) -> None:
        self._pipeline, self._watch = pipeline, watch
        self._held: list[Sample] = []
        self._ready: dict[int, Prepared] = {}
        self._called: set[int] = set()
        self._current: int | None = None

    def add(self, record: Sample) -> int:
        """Prepare a record, and return its number, counted from 0. Raises Rejection: then it is not
        added."""
        number = len(self._held)
        self._ready[number] = self._pipeline.prepare(record)
        self._held.append(record)
        return number

    def finish(self, careful: bool) -> list[Outcome]:
        """Return the samples of each record that was added, or why it is rejected, and forget them.

        With `careful` each goes through the models alone first, so that one which ends the process
        does so there. Raises InputError if calls with several records fail, and none of these
        alone.
        """
        try:
            return self._finish(careful)
        finally:
            self._held, self._ready = [], {}

    def _finish(self, careful: bool) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        left = list(range(len(self._held)))
        if careful:
            self._ready = {}  # one at a time is in memory, as later all of them
            for record in left:
                self._attempt([record])
        while left:
            self._called.clear()
            try:
                made = self._attempt(left)
            except FailedCallError as failed:
                made = self._culprits(failed)
            rejected = {
                record: each.bare() for record, each in made.items() if isinstance(each, Rejection)
            }
            if not self._called & rejected.keys():
                return [each for _, each in sorted({**found, **made}.items())]
            found.update(rejected)
            left = [record for record in left if record not in rejected]
        return [each for _, each in sorted(found.items())]

    def _culprits(self, failed: FailedCallError) -> dict[int, Outcome]:
        """Return those of the records of a call that failed which fail alone too. Raises InputError
        if there are none."""
        alone = {record: self._attempt([record])[record] for record in failed.records}
        rejected = {record: each for record, each in alone.items() if isinstance(each, Rejection)}
        if not rejected:
            raise InputError(
                f"{failed.rejection.message}: in a call with {len(failed.records)} inputs, not with each "
                f"alone. Resize the images to one size, or set a lower batch for {failed.who}"
            ) from failed
        self._called.update(rejected)
        return dict(rejected)

    def _attempt(self, records: Iterable[int]) -> dict[int, Outcome]:
        """Do all to some records. Raises FailedCallError."""
        made: dict[int, Outcome] = {}
        ready: dict[int, Prepared] = {}
        try:
            for record in records:
                prepared = self._ready.pop(record, None)  # functions change what they get
                try:
                    if prepared is None:
                        self._on(record, "decode")
                        prepared = self._pipeline.prepare(self._held[record])
                    ready[record] = prepared
                except Rejection as rejection:
                    made[record] = rejection
            made |= self._pipeline.finish_together(
                ready, self._calls, lambda record: self._on(record, "encode")
            )
        except MemoryError as error:
            no_memory = Rejection("transform", "out-of-memory", OUT_OF_MEMORY_MESSAGE)
            if self._current is None:
                raise FailedCallError(list(ready), "the model", no_memory) from error
            # whatever it was in: the others are done again without it
            self._called.add(self._current)
            return {self._current: no_memory}
        return made

    def _on(self, record: int | None, stage: str) -> None:
        self._current = record
        self._watch(record, stage)

    def _calls(self, records: list[int], is_model: bool) -> None:
        """A function, or a model, is called with the samples of some records."""
        if is_model:
            self._called.update(records)
        self._on(records[0] if len(records) == 1 else None, "transform")
