"""What the sources hold: the kind of the samples, and whether images are in tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from shardctl.errors import InputError, UsageError
from shardctl.format.names import Json
from shardctl.format.roles import Mask
from shardctl.making.plan.labels import LABEL
from shardctl.making.plan.list_files import is_labels_file, walked, why_nothing
from shardctl.making.plan.listing import LabelRule
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.inputs import ByteRange, PrePlanTask, scan
from shardctl.sources.export_description import (
    RESTORED,
    described,
    may_be_of_export,
    name_in_records,
)
from shardctl.sources.files import SourceRoot
from shardctl.sources.format_table import BINARY_SUFFIXES, FORMAT_NAMES, UNDECLARED_SUFFIXES
from shardctl.sources.formats import Reading, ending_of, without_compression
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.image_columns import AUTO, NO_IMAGES, without_doubt
from shardctl.sources.kinds import KINDS, Form, SampleKind
from shardctl.sources.label_table import DELIMITED_SUFFIXES
from shardctl.sources.sidecars import inputs_among
from shardctl.sources.types import Types
from shardctl.sources.walk import FoundFile, LeftOut
from shardctl.system.text import printable, some
from shardctl.transforms.recipe import Recipe

LOOKED_AT = 64
"""Records of the first table that are looked at where it does not say the types of its columns."""


def settle_kind(
    given: Mapping[str, Any], roots: Sequence[SourceRoot], engine: Engine, labels: LabelRule
) -> tuple[Json, list[str]]:
    """Return the recipe as given, with what the sources decide, and notices. Raises InputError,
    UsageError.

    That is the kind where it is not given, and for images that come from tables `image_field`.
    Tables are sources of images where no file is an image, or where a field of them is named.
    Options that only tables have choose tables, but for labels files of images. Of tars it is also
    where keys and labels are.
    """
    recipe = dict(given)
    if recipe.get("kind") in FORMAT_NAMES:
        recipe |= {"kind": "auto", "format": recipe["kind"]}
    notices = _settle_export(recipe, roots)
    is_open = recipe.get("kind") in (None, "auto")
    are_members = (
        not notices
        and recipe.get("kind") != "table"
        and not recipe.get("fields")
        and not recipe.get("schema")
    )
    reading = Recipe.draft(recipe).record_reading
    field = recipe.get("image_field")
    if is_open:
        recipe["kind"] = _kind_of(roots, reading, field, labels)
    elif (
        recipe["kind"] == "image"
        and field is None
        and (reading.format or _has_only_tables(roots, reading))
    ):
        recipe["image_field"] = Recipe.draft(recipe).image_source or AUTO
    if not (is_open or are_members) or (
        recipe["kind"] != "table" and recipe.get("image_field") is None
    ):
        return recipe, notices
    types = _first_types(roots, reading, engine)
    if is_open and recipe["kind"] == "table" and field is None:
        chosen = Recipe.draft(recipe).image_source
        column = chosen or (None if types is None else without_doubt(types.found()))
        if column is not None:
            recipe |= {"kind": "image", "image_field": column}
        if column is not None and chosen is None:
            notices.append(
                f"the images are in the column {printable(column)}; --kind table keeps its values"
            )
    if are_members and types is not None:
        _settle_members(recipe, labels.mode, types)
    return recipe, notices


def _settle_members(recipe: Json, labels: str, types: Types) -> None:
    """Have the keys and the labels of tars be those that WebDataset names, or the folders of
    images, as on a disk."""
    from shardctl.sources.formats.webdataset import KEY  # only tars need it

    names = types.found().names
    if FOLDER not in names:
        return
    recipe |= {"key_field": KEY} if recipe.get("key_field") is None else {}
    if recipe.get("label_field") is not None or LABEL in names:
        return
    if labels == "auto" and "cls" in names:
        recipe["label_field"] = "cls"
    elif labels == "folder" or (labels == "auto" and {*(types.labels() or ())} - {"."}):
        recipe["label_field"] = FOLDER


def _settle_export(recipe: Json, roots: Sequence[SourceRoot]) -> list[str]:
    """Have the keys, the kind and the image of an export be those of its dataset, where nothing
    else is wanted."""
    if not any(may_be_of_export(root.folder) for root in roots):
        return []  # to look for a table may take as long as all files
    file = first_file(roots, Recipe.draft(recipe).record_reading)
    export = None if file is None else described(file.opened)
    if (
        export is None
        or export.to not in (*RESTORED, "parquet")
        or recipe.get("key_field")
        or recipe.get("fields")
    ):
        return []
    if export.to in RESTORED:
        recipe["key_field"] = "key"
    elif any(field.written != field.name for field in export.fields):
        recipe["fields"] = ",".join(f"{field.name}={field.written}" for field in export.fields)
    else:
        recipe["key_field"] = export.key
    if recipe.get("kind") in (None, "auto"):
        roles = export.layout.roles
        # a mask without its image
        main = None if isinstance(roles.get(roles.main_image or ""), Mask) else roles.main_image
        recipe["kind"] = (
            "table" if export.layout.kind == "image" and main is None else export.layout.kind
        )
        if recipe["kind"] == "image" and recipe.get("image_field") is None:
            recipe["image_field"] = next(
                name_in_records(f, export) for f in export.fields if f.name == main
            )
    return [
        "the sources are an export of shardctl: keys, classes and splits are those of its "
        "dataset (shardctl.json)"
    ]


def _kind_of(
    roots: Sequence[SourceRoot], reading: Reading, image_field: str | None, labels: LabelRule
) -> str:
    if image_field not in (None, NO_IMAGES):
        return "image"
    if reading.format:
        return "table"
    table = None
    of_tables = bool(reading.columns) or (
        reading.delimiter is not None and _has_only_tables(roots, reading)
    )
    if of_tables or (reading.delimiter is not None and not labels.files):
        table = first_file(roots, reading, of_labels=of_tables)
    if table is not None:
        if (
            reading.columns
            and without_compression(ending_of(table.path, table.opened)) not in DELIMITED_SUFFIXES
        ):
            raise UsageError(
                f"--columns is for CSV files without a header, and {printable(table.path)} is "
                "none; --fields A,B keeps some fields"
            )
        return "table"
    return detect_kind(roots, KINDS.values(), reading)


def _has_only_tables(roots: Sequence[SourceRoot], reading: Reading) -> bool:
    """Return whether there are tables, and no file that may be an image."""
    if first_file(roots, reading, "image", (Form.ONE, Form.MANY, Form.UNKNOWN)) is not None:
        return False
    return first_file(roots, reading) is not None


def _first_types(roots: Sequence[SourceRoot], reading: Reading, engine: Engine) -> Types | None:
    """Return the types of the first table, and the folders of the first members of a tar; None for
    a table of text."""
    file = first_file(roots, reading)
    if file is None or file.fault is not None:
        return None
    ending = ending_of(file.path, file.opened)
    if without_compression(ending) not in BINARY_SUFFIXES:
        return None
    # Its types are looked at where all files are: one of them may end the process. Of labels, only
    # folders need be read.
    unit = (
        0,
        file.size,
        0,
        1,
        LOOKED_AT if without_compression(ending) in UNDECLARED_SUFFIXES else 0,
    )
    look = partial(scan, reading=Reading(label=FOLDER, image=AUTO), shuffled=False)
    task = PrePlanTask([ByteRange(file.opened, ending, 0, file.size, unit)], look)
    answers: list[Any] = []
    engine.examine([task], lambda _, found: answers.extend(found))
    return Types.unpacked(answers[0]["types"]) if "types" in answers[0] else None


def detect_kind(roots: Sequence[SourceRoot], kinds: Iterable[SampleKind], reading: Reading) -> str:
    """Return the name of the first of the kinds of which there is an input. Raises InputError if
    there is none of any."""
    candidates = list(kinds)
    present: set[str] = set()
    # of files that cannot be read: they decide only where no other file does
    possible: set[str] = set()
    ignored: Counter[str] = Counter()
    sidecars = LeftOut()
    for file in inputs_among(walked(roots, lambda _: None), None, []):
        forms = {candidate.name: candidate.form(file, reading) for candidate in candidates}
        taker = next((name for name, form in forms.items() if form in (Form.ONE, Form.MANY)), None)
        if taker == candidates[0].name:
            return taker
        if taker is None:
            ignored[file.suffix or "no suffix"] += 1
            possible |= {name for name, form in forms.items() if form is Form.UNKNOWN}
        elif is_labels_file(file) or file.path.rpartition("/")[2].lower() == "readme.md":
            sidecars.add(file.path)
        else:
            present.add(taker)
    for candidate in candidates:
        if candidate.name in (present or possible):
            return candidate.name
    if sidecars.count and not ignored:
        found = sidecars.counted("labels file", "labels files")
        raise InputError(
            f"{some([root.text for root in roots])}: holds only {found}; --kind table converts "
            "such files"
        )
    raise InputError(
        why_nothing(roots, " and no ".join(candidate.name for candidate in candidates), ignored)
    )


def first_file(
    roots: Sequence[SourceRoot],
    reading: Reading,
    kind: str = "table",
    wanted: Collection[Form] = (Form.MANY,),
    of_labels: bool = True,
) -> FoundFile | None:
    """Return the first file that is one of `wanted` to a kind, or None. Without `of_labels`, no
    labels file is."""
    files = inputs_among(walked(roots, lambda _: None), None, [])
    return next(
        (
            each
            for each in files
            if KINDS[kind].form(each, reading) in wanted and (of_labels or not is_labels_file(each))
        ),
        None,
    )
