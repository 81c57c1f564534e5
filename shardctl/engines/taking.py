"""Some records of files, taken out of them: in a process of its own, which a damaged file may end."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.engines.base import Engine
from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.survey import Found, Stretch, Survey, reading_from, stretches_from
from shardctl.errors import Rejection
from shardctl.sources.formats import Misfit, Numbers, Parsed, Reading, Unit, find_format
from shardctl.sources.types import Types
from shardctl.storage import naming_the_path

Taken = list[tuple[int, Numbers, pa.RecordBatch]]
"""Batches of records: the place of their unit among those given, their numbers (n,) int64, and their columns."""


@dataclass(frozen=True)
class Taking:
    """Work on some units: their wanted records, each unit's as an Arrow file.

    `wanted` are the numbers of the records of each unit, increasing, `outs` the paths of the new files, `schema` the columns,
    as `Types.found` gives them. Such a file has one column more, with the numbers of the records (int64).
    """

    task: ClassVar[str] = "take"
    stretches: tuple[Stretch, ...]
    reading: Reading
    wanted: tuple[tuple[int, ...], ...]
    outs: tuple[str, ...]
    schema: pa.Schema

    def __len__(self) -> int:
        return len(self.stretches)

    def finish(self, found: Found) -> None:
        """Nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        schema = base64.b64encode(self.schema.serialize()).decode()
        stretches, reading = [asdict(each) for each in self.stretches], asdict(self.reading)
        return {"stretches": stretches, "reading": reading, "wanted": self.wanted, "outs": self.outs, "schema": schema}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Taking:
        """Build what `to_json` gave."""
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(record["schema"])))
        wanted = tuple(map(tuple, record["wanted"]))
        return cls(stretches_from(record), reading_from(record), wanted, tuple(record["outs"]), schema)

    def look_at(self, number: int, crumb: Breadcrumb) -> dict[str, Any]:
        """Take the records of a unit. Raises Rejection, OSError, StorageError."""
        stretch, wanted = self.stretches[number], np.array(self.wanted[number], np.int64)
        assert stretch.unit is not None, "units are read, and not pieces"
        form, rows, reject = find_format(stretch.suffix, self.reading), 0, None
        unit, digest = Unit(*stretch.unit), xxhash.xxh3_64()
        parts = form.read(stretch.path, unit, self.reading, self.schema, lambda numbers: np.isin(numbers, wanted), digest)
        with _Writer(Path(self.outs[number])) as writer:
            try:
                for parsed in _until(parts, len(wanted)):
                    writer.write(parsed.batch.append_column("number", pa.array(parsed.numbers)))
                    rows += parsed.batch.num_rows
                    reject = reject or next((str(rejection) for _, rejection in parsed.rejects), None)
            except Misfit as misfit:
                raise Rejection("read", "other-type", str(misfit)) from misfit
        return {"rows": rows, "reject": reject}


class _Writer:
    """Writes batches into an Arrow file. Its own faults are StorageErrors: those of the file that is read are others."""

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
"""Why a unit cannot be read: its place among those given, and a sentence."""


def types_in(engine: Engine, stretches: Sequence[Stretch], reading: Reading) -> tuple[Types | None, Fault | None]:
    """Return the types of the records of units, None if no unit can be read; and the first fault."""
    found = _looked_at(engine, [Survey((stretch,), reading, False) for stretch in stretches])
    types: Types | None = None
    for answer in found:
        if "types" in answer:
            these = Types.from_json(answer["types"])
            types = these if types is None else types.join(these)
    return types, _fault_among(found)


def take(
    engine: Engine, stretches: Sequence[Stretch], reading: Reading, wanted: Sequence[Numbers], schema: pa.Schema, folder: Path
) -> tuple[Taken, Fault | None]:
    """Return the wanted records of units, and the first fault. `folder` is one for scratch, which keeps the records."""
    outs = [str(folder / f"{place}.arrow") for place in range(len(stretches))]
    looks = [
        Taking((stretch,), reading, (tuple(numbers.tolist()),), (out,), schema)
        for stretch, numbers, out in zip(stretches, wanted, outs, strict=True)
    ]
    found = _looked_at(engine, looks)
    taken: Taken = []
    for place, (answer, out) in enumerate(zip(found, outs, strict=True)):
        if not answer.get("rows"):
            continue
        reader = pa.ipc.open_file(pa.memory_map(out))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        last = len(batches[0].schema) - 1
        taken += [(place, batch.column(last).to_numpy(), batch.remove_column(last)) for batch in batches]
    return taken, _fault_among(found)


def _looked_at(engine: Engine, looks: Sequence[Survey | Taking]) -> list[dict[str, Any]]:
    """Have units looked at, each by itself, and return what was found in each."""
    found: dict[int, dict[str, Any]] = {}

    def on_found(number: int, answers: Found) -> None:
        found[number] = answers[0]

    engine.survey(looks, on_found)
    return [found[number] for number in range(len(looks))]


def _fault_among(found: Sequence[dict[str, Any]]) -> Fault | None:
    """Return why the first unit that cannot be read cannot be, or else the first record of one."""
    faults = [(place, str(answer["fault"][2])) for place, answer in enumerate(found) if "fault" in answer]
    rejects = [(place, str(answer["reject"])) for place, answer in enumerate(found) if answer.get("reject")]
    return next(iter(faults + rejects), None)
