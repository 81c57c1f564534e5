"""Some records of files, taken out of them: in a process of its own, which a damaged file may
end."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.build.shards.engines.base import Engine
from shardctl.build.shards.prefetch import ReadRequest
from shardctl.build.shards.scan import ByteRange, Found, ranges_from, reading_from
from shardctl.errors import Rejection
from shardctl.sources.formats import Misfit, Numbers, Parsed, Reading, Unit, find_format
from shardctl.system.files import naming_the_path
from shardctl.system.processes.worker_state import WorkerProgress

Taken = list[tuple[int, Numbers, pa.RecordBatch]]
"""Batches of records: the place of their unit among those given, their numbers (n,) int64, and
their columns."""


@dataclass(frozen=True)
class RecordSampleTask:
    """Work on a unit: its wanted records, as the new Arrow file `out`.

    `wanted` are their numbers, increasing, `schema` their columns, as `Types.found` gives them. The
    file has one column more, with the numbers of the records (int64). Found is {"rows": …,
    "reject": …}, the first reject being a sentence or None.
    """

    name: ClassVar[str] = "take"
    byte_range: ByteRange
    reading: Reading
    wanted: tuple[int, ...]
    out: str
    schema: pa.Schema

    def __len__(self) -> int:
        return 1

    def finish(self, found: Found) -> None:
        """Nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        schema = base64.b64encode(self.schema.serialize()).decode()
        record = {
            "ranges": [asdict(self.byte_range)],
            "reading": asdict(self.reading),
            "schema": schema,
        }
        return {**record, "wanted": self.wanted, "out": self.out}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> RecordSampleTask:
        """Build what `to_json` gave."""
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(record["schema"])))
        [byte_range] = ranges_from(record)
        return cls(byte_range, reading_from(record), tuple(record["wanted"]), record["out"], schema)

    def reads(self, number: int) -> Sequence[ReadRequest]:
        """Return the object that the unit is of."""
        return self.byte_range.requests

    def examine(self, number: int, progress: WorkerProgress) -> dict[str, Any]:
        """Take the records. Raises Rejection, OSError, StorageError."""
        assert self.byte_range.unit is not None, "units are read, and not pieces"
        path = self.byte_range.path_to_read()
        form, wanted = (
            find_format(self.byte_range.suffix, self.reading),
            np.array(self.wanted, np.int64),
        )
        unit, digest = Unit(*self.byte_range.unit), xxhash.xxh3_64()
        parts = form.read(
            path, unit, self.reading, self.schema, lambda numbers: np.isin(numbers, wanted), digest
        )
        rows, reject = 0, None
        with _Writer(Path(self.out)) as writer:
            try:
                for parsed in _until(parts, len(wanted)):
                    writer.write(parsed.batch.append_column("number", pa.array(parsed.numbers)))
                    rows += parsed.batch.num_rows
                    reject = reject or next(
                        (str(rejection) for _, rejection in parsed.rejects), None
                    )
            except Misfit as misfit:
                raise Rejection("read", "other-type", str(misfit)) from misfit
        return {"rows": rows, "reject": reject}


class _Writer:
    """Writes batches into an Arrow file. Its own faults are StorageErrors: those of the file that
    is read are others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch. Raises StorageError."""
        with naming_the_path(self._path):
            self._writer = self._writer or pa.ipc.new_file(str(self._path), batch.schema)
            self._writer.write(batch)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            with naming_the_path(self._path):
                self._writer.close()


def _until(parts: Iterator[Parsed], wanted: int) -> Iterator[Parsed]:
    """Yield what is read of a unit, no further than the wanted records are."""
    for parsed in parts:
        yield parsed
        wanted -= len(parsed.numbers) + len(parsed.rejects)
        if wanted <= 0:
            return


Fault = tuple[int, str]
"""Why a unit, or a record of it, cannot be read: the unit's place among those given, and a
sentence."""


def take(
    engine: Engine,
    ranges: Sequence[ByteRange],
    reading: Reading,
    wanted: Sequence[Numbers],
    schema: pa.Schema,
    folder: Path,
) -> tuple[Taken, Fault | None]:
    """Return the wanted records of units, and the first fault. `folder` is one for scratch, which
    keeps the records."""
    outs = [str(folder / f"{place}.arrow") for place in range(len(ranges))]
    looks = [
        RecordSampleTask(byte_range, reading, tuple(numbers.tolist()), out, schema)
        for byte_range, numbers, out in zip(ranges, wanted, outs, strict=True)
    ]
    found: dict[int, dict[str, Any]] = {}

    def on_found(place: int, answers: Found) -> None:
        [found[place]] = answers

    engine.examine(looks, on_found)
    taken: Taken = []
    for place, out in enumerate(outs):
        if found[place].get("rows"):
            reader = pa.ipc.open_file(pa.memory_map(out))
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            last = len(batches[0].schema) - 1
            taken += [
                (place, batch.column(last).to_numpy(), batch.remove_column(last))
                for batch in batches
            ]
    faults = [
        (place, str(answer["fault"][2]))
        for place, answer in sorted(found.items())
        if "fault" in answer
    ]
    rejects = [
        (place, str(answer["reject"]))
        for place, answer in sorted(found.items())
        if answer.get("reject")
    ]
    return taken, next(iter(faults + rejects), None)
