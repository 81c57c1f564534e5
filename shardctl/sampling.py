"""A few inputs from all over some sources, to try things on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.conversion import convert
from shardctl.conversion.kinds import settle_kind
from shardctl.conversion.options import INPUT_TIMEOUT
from shardctl.conversion.surveying import Surveyor
from shardctl.engines import local
from shardctl.engines.pool import Limits
from shardctl.errors import InputError, Rejection, TooManyRejectsError
from shardctl.listing import LabelRule, Listing, list_files
from shardctl.recipe import Recipe
from shardctl.sources.endings import ending_of
from shardctl.sources.formats import Format, Misfit, Unit, find_format
from shardctl.sources.kinds import KINDS
from shardctl.sources.types import Types, without_nulls
from shardctl.spread import spread
from shardctl.storage import naming_the_path
from shardctl.units import Units

PLACE = "__place__"
"""The field of records that says where they come from: their key in a dataset that is made of them."""

UNITS = 16
"""The largest number of units that records are taken from, where those have enough."""

OF_TEXT = ("record", "encoding", "columns", "schema")
"""Settings of a recipe that say how text is read, which an Arrow file does not need."""


@dataclass(frozen=True)
class Inputs:
    """Some inputs in a folder. `count` is the number of all inputs, of which these are a few.

    `settings` are those of the recipe that converts the folder: `kind` may be another one than that of the sources.
    """

    count: int
    settings: dict[str, Any]


def take_inputs(roots: list[Path], settings: dict[str, Any], most: int, workers: int | str, scratch: Path) -> Inputs:
    """Put about `most` inputs from all over the sources into scratch/inputs.

    Files that are one record are linked. Records of files that have many become one Arrow file. Raises InputError.
    """
    reading = Recipe.reading_of(settings)
    in_tables = settings["kind"] == "image" and settings.get("image_field") is not None
    kind = KINDS["table" if in_tables else settings["kind"]]
    listing = list_files(roots, kind, reading, LabelRule.parse("none"), scratch / "listing.arrow", lambda _: None)
    folder = scratch / "inputs"
    folder.mkdir()
    if not listing.whole:
        placed = not settings.get("fields") and not settings.get("key_field")
        count = _take_records(listing, Recipe.from_settings(settings), most, workers, folder / "records.arrow", placed)
        kept = {name: settings[name] for name in settings if name not in OF_TEXT}
        return Inputs(
            count, {**({"key_field": PLACE} if placed else {}), **kept, "kind": settings["kind"] if in_tables else "table"}
        )
    for number, row in enumerate(listing.table.take(pa.array(spread(len(listing), most))).to_pylist()):
        if not row["error"]:
            path = Path(listing.opened(row)).resolve()
            # The number makes the name unique, and the name is for messages: 60 characters are at most 240 bytes, of 255.
            (folder / f"{number:06d}-{path.name[-60:]}").symlink_to(path)
    return Inputs(len(listing), settings)


@dataclass(frozen=True)
class _Source:
    """A unit that records are taken from. `opened` is the path of its file, `path` what the file is called below its root."""

    opened: str
    path: str
    form: Format
    unit: Unit


@dataclass(frozen=True)
class Tried:
    """The dataset at `root`: `samples` of `records` records, in `bytes` bytes on disk."""

    root: Path
    samples: int
    records: int
    bytes: int


def settled(settings: dict[str, Any], roots: list[Path], workers: int | str) -> dict[str, Any]:
    """Return the settings of a recipe with the kind that convert would find, and for images in tables their field.

    Raises InputError, UsageError.
    """
    found, engine = dict(settings), local.start(workers, Limits(seconds=INPUT_TIMEOUT))
    try:
        settle_kind(found, roots, engine)
    finally:
        engine.close()
    return {**settings, **{name: found[name] for name in ("kind", "image_field", "format") if found.get(name) is not None}}


def convert_some(path: Path, most: int, scratch: Path) -> Tried:
    """Convert about `most` records from all over the shards at a path, as convert does by itself. Raises InputError."""
    inputs = take_inputs([path], settled({}, [path], "auto"), most, "auto", scratch)
    root = scratch / "dataset"
    try:
        made = convert(scratch / "inputs", root, recipe=inputs.settings, labels="none")
    except TooManyRejectsError as error:
        why = str(error).partition("; nothing was committed")[0]  # the rest names a file in the scratch folder
        raise InputError(f"none of the records that were tried can be converted: {why}") from error
    return Tried(root, made.samples, inputs.count, made.bytes)


def _take_records(listing: Listing, recipe: Recipe, most: int, workers: int | str, path: Path, placed: bool) -> int:
    """Write some records as an Arrow file, `placed` ones with their PLACE, and return the number of all.

    Raises InputError if none can be read.
    """
    engine = local.start(workers, Limits(seconds=INPUT_TIMEOUT))
    try:
        units = Surveyor(listing, recipe.reading, False, engine).find_units()
    finally:
        engine.close()
    sources = list(_some_sources(listing, recipe, units, most))
    schema = recipe.typed_fields
    why: Exception | None = None
    if schema is None:
        types: Types | None = None
        for source in sources:
            try:
                found = source.form.types(source.opened, source.unit, recipe.reading)
                types = found if types is None else types.join(found)
            except (OSError, Rejection) as error:
                why = error
        schema = types.found() if types is not None else pa.schema([])
    share = -(-most // max(1, len(sources)))
    taken = []
    for source in sources:
        wanted = source.unit.first + np.array(spread(source.unit.records, share), np.int64)
        try:
            taken += list(_read(source, recipe, schema, wanted))
        except (OSError, Rejection, Misfit) as error:
            why = error
    if not sum(batch.num_rows for batch in taken):
        raise InputError(f"none of the records that were tried can be read{f': {why}' if why else ''}")
    written = without_nulls(schema)
    if placed:
        named = zip(_beside_place(written.names), written.types, strict=True)
        written = pa.schema([*named, (PLACE, pa.string())], written.metadata)
    with naming_the_path(path), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, written) as writer:
        for batch in taken:
            writer.write_batch(batch.rename_columns(written.names) if placed else batch.drop_columns([PLACE]))
    return int(units.records.sum())


def _beside_place(names: list[str]) -> list[str]:
    """Return what fields are called beside PLACE, which becomes the key: one that is called so is set apart, as by convert."""
    taken = {"key", PLACE}
    for place, name in enumerate(names):
        while name in taken:
            name = f"__{name}__"
        names[place] = name
        taken.add(name)
    return names


def _some_sources(listing: Listing, recipe: Recipe, units: Units, most: int) -> Iterator[_Source]:
    """Yield units from all over the files: at least UNITS, and as many as have `most` records."""
    whole = units.readable()
    of_each = max(1.0, float(units.records[whole].mean())) if len(whole) else 1.0
    chosen = whole[spread(len(whole), max(UNITS, math.ceil(most / of_each)))]
    rows = listing.table.take(pa.array(units.file[chosen])).to_pylist()
    for number, row in zip(chosen.tolist(), rows, strict=True):
        form = find_format(ending_of(row["path"], listing.opened(row)), recipe.reading)
        offset, size, first, records = (
            int(column[number]) for column in (units.offset, units.size, units.first, units.records)
        )
        yield _Source(listing.opened(row), row["path"], form, Unit(offset, size, 0, first, records))


def _read(source: _Source, recipe: Recipe, schema: pa.Schema, wanted: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Yield the wanted records of a unit; it is not read any further than they are."""
    left = len(wanted)
    choose = lambda numbers: np.isin(numbers, wanted)  # noqa: E731 - one line, used once
    for parsed in source.form.read(source.opened, source.unit, recipe.reading, schema, choose, xxhash.xxh3_64()):
        places = pa.array([f"{source.path}#{number}" for number in parsed.numbers.tolist()], pa.string())
        yield parsed.batch.append_column(PLACE, places)
        left -= parsed.batch.num_rows + len(parsed.rejects)
        if left <= 0:
            return
