"""A few inputs from all over some sources, to try things on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection, TooManyRejectsError
from shardctl.format.names import Json
from shardctl.format.tables import new_table
from shardctl.making.convert import ConvertResult, convert
from shardctl.making.convert.discover import Discovery, settle_kind
from shardctl.making.options import INPUT_TIMEOUT
from shardctl.making.plan.list_files import list_sources
from shardctl.making.plan.listing import LabelRule, Listing
from shardctl.making.shards.engines.local import Engine, local_engine
from shardctl.making.shards.inputs import ByteRange, PrePlanTask, read_some
from shardctl.sources.files import SourceRoot, fetch_all, local_copy, resolved
from shardctl.sources.format_table import Subject
from shardctl.sources.formats import Numbers, Reading
from shardctl.sources.kinds import KINDS
from shardctl.sources.types import without_nulls
from shardctl.sources.walked import walk_sources
from shardctl.system.files import copy_file
from shardctl.system.locations import is_stored, name_of
from shardctl.system.permutation import evenly_spaced
from shardctl.system.processes.pool import Limits
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_options import RECIPE_OPTIONS

PLACE = "__place__"
"""The field of records that says where they come from: their key in a dataset that is made of
them."""

UNITS = 16
"""The largest number of units that records are taken from, where those have enough."""


def _about(*subjects: Subject) -> frozenset[str]:
    """Return the keys of a recipe that may be about one of these."""
    keys = RECIPE_OPTIONS.items()
    return frozenset(name for name, key in keys if not {*key.about}.isdisjoint(subjects))


OF_FILES = _about(Subject.CSV, Subject.TEXT) | {"schema", "frames"}
"""Keys of a recipe that say how files are read, which an Arrow file does not need."""

BESIDE_FILES = _about(Subject.LABELS_FILES, Subject.OBJECTS)
"""Keys of a recipe about what is read beside files that are one record each; here it is not."""


Taken = list[tuple[int, Numbers, pa.RecordBatch]]
"""Batches of records: the place of their unit among those given, their numbers (n,) int64, and
their columns."""

Fault = tuple[int, str]
"""Why a unit, or a record of it, cannot be read: the unit's place among those given, and a
sentence."""


def take_inputs(
    roots: Sequence[SourceRoot],
    recipe: Json,
    most: int,
    workers: int | str,
    scratch: Path,
) -> tuple[int, Json, tuple[str, ...]]:
    """Put about `most` inputs from all over the sources into scratch/inputs.

    Return the number of all inputs; the recipe that converts the folder, whose `kind` may be
    another one than that of the sources; and sentences, the first of what cannot be read. Files that are one record are linked, or copied from a store. Records of files that have many
    become one Arrow file. Raises InputError.
    """
    reading = Recipe.draft(recipe).record_reading
    in_tables = recipe["kind"] == "image" and recipe.get("image_field") is not None
    in_records = in_tables or (recipe["kind"] == "image" and reading.has_image_records)
    kind = KINDS["table" if in_tables else recipe["kind"]]
    listing = list_sources(roots, kind, reading, LabelRule.parse("none"), scratch)
    folder = scratch / "inputs"
    folder.mkdir()
    if not listing.whole:
        placed = not recipe.get("fields") and not recipe.get("key_field")
        count, faults = _take_records(
            listing, Recipe.from_json(recipe), most, workers, folder / "records.arrow", placed
        )
        kept = {name: recipe[name] for name in recipe if name not in OF_FILES}
        by_place = {"key_field": PLACE} if placed else {}
        given = {**by_place, **kept, "kind": recipe["kind"] if in_records else "table"}
        return count, given, faults
    rows = listing.table.take(pa.array(evenly_spaced(len(listing), most))).to_pylist()
    fetch_all(listing.opened(row) for row in rows)
    for number, row in enumerate(rows):
        if not row["error"]:
            file = resolved(listing.opened(row))
            # The number makes the name unique, and the name is for messages: 60 characters are at
            # most 240 bytes, of 255.
            place = folder / f"{number:06d}-{name_of(file)[-60:]}"
            if is_stored(file):
                copy_file(Path(local_copy(file)), place)  # what was fetched is not there for long
            else:
                place.symlink_to(file)
    return len(listing), {name: recipe[name] for name in recipe if name not in BESIDE_FILES}, ()


def settled(recipe: Json, roots: Sequence[SourceRoot], workers: int | str) -> Json:
    """Return a recipe with the kind that convert would find, and for images in tables their field.

    Raises InputError, UsageError.
    """
    engine = local_engine(workers, Limits(seconds=INPUT_TIMEOUT))
    try:
        with scratch_folder() as scratch:
            walked = walk_sources(roots, scratch / "walked.arrow", lambda _: None)
            found, _ = settle_kind(recipe, walked, engine, LabelRule.parse("none"))
    finally:
        engine.close()
    return {
        **recipe,
        **{
            name: found[name]
            for name in ("kind", "image_field", "format")
            if found.get(name) is not None
        },
    }


def convert_some(path: Path, most: int, scratch: Path) -> tuple[Path, int, ConvertResult]:
    """Convert about `most` records from all over the shards at a path, as convert does by itself.
    Return the folder of the dataset, the number of all records, and the result. Raises
    InputError."""
    root = SourceRoot(str(path))
    found = settled({}, [root], "auto")
    count, recipe, _ = take_inputs([root], found, most, "auto", scratch)
    out = scratch / "dataset"
    try:
        made = convert(scratch / "inputs", out, recipe=recipe, progress=False, labels="none")
    except TooManyRejectsError as error:
        # the rest names a file in the scratch folder
        why = str(error).partition("; nothing was committed")[0]
        raise InputError(f"none of the records that were tried can be converted: {why}") from error
    return out, count, made


def _take_records(
    listing: Listing, recipe: Recipe, most: int, workers: int | str, path: Path, placed: bool
) -> tuple[int, tuple[str, ...]]:
    """Write some records as an Arrow file, `placed` ones with their PLACE; return the number of
    all, and faults as `take_inputs` does.

    Raises InputError if none can be read.
    """
    folder = path.parent.with_name("taken")
    folder.mkdir()
    engine = local_engine(workers, Limits(seconds=INPUT_TIMEOUT))
    try:
        discovery = Discovery(listing, recipe.record_reading, False, engine)
        units = discovery.find_units()
        # from all over the files: at least UNITS, and as many as have `most` records
        whole = units.readable()
        of_each = max(1.0, float(units.records[whole].mean())) if len(whole) else 1.0
        chosen = whole[evenly_spaced(len(whole), max(UNITS, math.ceil(most / of_each)))]
        ranges = discovery.ranges(units, chosen)
        schema, fault = recipe.typed_fields, None
        if schema is None:
            types = discovery.types_of(units, chosen)
            schema = None if types is None else types.found()
        taken: Taken = []
        if schema is not None:
            share = -(-most // max(1, len(chosen)))
            wanted = [
                units.first[unit]
                + np.array(evenly_spaced(int(units.records[unit]), share), np.int64)
                for unit in chosen
            ]
            taken, fault = take(engine, ranges, recipe.record_reading, wanted, schema, folder)
    finally:
        engine.close()
    met = [*islice(units.faults.items(), 1), *discovery.untyped.items()]
    met += [] if fault is None else [(int(chosen[fault[0]]), Rejection("read", "", fault[1]))]
    sentences = (f"{listing.paths_at(units.file[unit : unit + 1])[0]}: {why}" for unit, why in met)
    faults = tuple(dict.fromkeys(map(printable, sentences)))
    if schema is None or not taken:
        raise InputError(
            ": ".join(("none of the records that were tried can be read", *faults[-1:]))
        )
    _write(
        path, taken, without_nulls(schema), listing.paths_at(units.file[chosen]) if placed else None
    )
    return int(units.records.sum()), faults


def _write(path: Path, taken: Taken, written: pa.Schema, paths: list[str] | None) -> None:
    """Write records as an Arrow file, with their PLACE where the `paths` of their units are
    given."""
    if paths is not None:
        named = zip(_beside_place(written.names), written.types, strict=True)
        written = pa.schema([*named, (PLACE, pa.string())], written.metadata)
    with new_table(path, written) as writer:
        for unit, numbers, batch in taken:
            if paths is not None:
                places = pa.array(
                    [f"{paths[unit]}#{number}" for number in numbers.tolist()], pa.string()
                )
                batch = batch.append_column(PLACE, places).rename_columns(written.names)
            writer.write_batch(batch)


def _beside_place(names: list[str]) -> list[str]:
    """Return what fields are called beside PLACE, which becomes the key: one that is called so is
    set apart, as by convert."""
    taken = {"key", PLACE}
    for place, name in enumerate(names):
        while name in taken:
            name = f"__{name}__"
        names[place] = name
        taken.add(name)
    return names


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
        PrePlanTask(
            [byte_range],
            partial(read_some, reading=reading, wanted=numbers.tolist(), out=out, schema=schema),
        )
        for byte_range, numbers, out in zip(ranges, wanted, outs, strict=True)
    ]
    found: dict[int, Json] = {}
    engine.examine(looks, lambda place, answers: found.update({place: answers[0]}))
    taken: Taken = []
    for place, out in enumerate(outs):
        if found[place].get("rows"):
            batches = pa.ipc.open_file(pa.memory_map(out)).read_all().to_batches()
            last = len(batches[0].schema) - 1
            taken += [
                (place, batch.column(last).to_numpy(), batch.remove_column(last))
                for batch in batches
            ]
    answers = sorted(found.items())
    faults = [(place, str(each["fault"][2])) for place, each in answers if "fault" in each]
    rejects = [(place, str(each["reject"])) for place, each in answers if each.get("reject")]
    return taken, next(iter(faults + rejects), None)
