"""Where labels come from, and the names of the classes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Numbers, column_of, one_chunk, rows_at
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Objects, Roles
from shardctl.format.tables import FILE_FIELDS, new_table
from shardctl.making.notices import notice
from shardctl.making.plan.listing import Listing
from shardctl.making.plan.splits import PlanRules, Splitting, counted_inputs, export_of
from shardctl.sources.annotations.objects import OBJECTS
from shardctl.sources.export_description import name_in_records
from shardctl.sources.files import is_folder, local_copy
from shardctl.sources.formats.base import FOLDER
from shardctl.sources.label_table import LABEL_COLUMN, LabelTable
from shardctl.sources.splits import named_as_splits
from shardctl.sources.types import Types, disputed, in_order
from shardctl.sources.walked import CHUNK_ROWS
from shardctl.system.files import read_named
from shardctl.system.text import composed, counted, first_repeated, printable, some
from shardctl.transforms.recipe import Recipe

LABEL = "label"

ANNOTATED_ROWS = 8192
"""Images with annotations that are in memory at a time: they may have thousands of numbers each."""


@dataclass(frozen=True)
class Labelling:
    """Where `label` comes from, and the names of the classes.

    `of_group` has the class of every group of files, -1 for none; None where labels do not come
    from folders. `by_field` says that a field of the records has their names. `declared` are the
    names of the classes of fields that have their numbers, as the files say them; the label may be
    one of these.
    """

    classes: tuple[str, ...] | None = None
    of_group: Numbers | None = None
    by_field: bool = False
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def label_files(
    listing: Listing, rules: PlanRules, splitting: Splitting, recipe: Recipe, types: Types | None
) -> Labelling:
    """Decide where the labels come from, and the names of the classes. `splitting` is how the files
    were divided before.

    `types` are the types of the records' fields. They are None where a file is one record, where no
    field has labels, and where `schema` gives them. Samples that are joined of several records have
    no labels. Raises InputError (see `_main_label`).
    """
    by_folder, field = splitting.by in ("folder", "declared"), recipe.record_reading.label
    if recipe.chosen_fields and field not in recipe.chosen_fields:
        field = ""  # it is left out
    if not recipe.joins:
        return _all_labels(listing, rules, by_folder, types, field)
    # a sample is of several records: a notice says what is left out
    names, before = list[str](), list(listing.notices)
    # else it is named with the other fields of the records
    if types is None or field not in types.schema().names:
        with contextlib.suppress(InputError):  # classes that not all of the files have
            names.append(LABEL)
            if _all_labels(listing, rules, by_folder, types, field).classes is None:
                names.clear()
    listing.notices[:] = before
    names += [f.name for f in side_fields(listing.side)]
    for name in [] if listing.side is None else listing.side.columns.column_names:
        listing.side = listing.side and listing.side.without(name)
    listing.notices += left_out_by(recipe.batch_transforms[-1].name, names)
    return Labelling()


def _all_labels(
    listing: Listing, rules: PlanRules, by_folder: bool, types: Types | None, field: str
) -> Labelling:
    """Decide the labels, as `_main_label` does, and which other fields of the records have numbers
    of classes with names."""
    if types is not None and rules.labels.mode == "auto" and (names := disputed(types.named)):
        raise InputError(notice("names-differ", names=some(names)))
    labelling = _main_label(listing, rules, by_folder, types, field)
    if (pinned := rules.labels.classes) is not None:
        numbers = pin(listing, labelling.classes, LABEL in labelling.declared, pinned)
        of_group, declared = labelling.of_group, dict(labelling.declared)
        if of_group is not None:
            of_group = np.append(numbers, -1)[of_group]
        if LABEL in declared:
            declared[LABEL] = pinned
        classes = labelling.classes and pinned
        labelling = replace(labelling, classes=classes, of_group=of_group, declared=declared)
    if types is None or rules.labels.mode != "auto":
        return labelling
    others = {name: names for name, names in types.classes.items() if name != field}
    return replace(labelling, declared={**others, **labelling.declared})


def _main_label(
    listing: Listing, rules: PlanRules, by_folder: bool, types: Types | None, field: str
) -> Labelling:
    """Decide the labels: from the labels file, from the records themselves, or from the names of
    their folders.

    `by_folder` says that the top folders are splits, which are no classes. `types` are those of the
    records' fields, None where a file is one record; `field` is the one that may name classes.
    Raises InputError if folder labels were asked for and no file lies in a folder, and where only
    some files lie in class folders.
    """
    mode = rules.labels.mode
    named = next((each.classes for each in listing.annotations if each.classes is not None), None)
    if named is not None:
        return Labelling(named)
    if listing.side is not None:
        return Labelling(listing.side.classes)
    if mode == "none":
        return Labelling()
    if field == FOLDER and types is not None and mode in ("auto", "folder"):
        # the folders of the members of tars
        folders = ["" if folder == "." else folder for folder in types.labels() or []]
        of_folders, classes = _class_names(listing, mode, folders)
        if classes and "" in of_folders:
            _tell_of_stray(listing, mode, "members of the tars", classes)
        return Labelling(tuple(classes), by_field=True) if classes else Labelling()
    if mode == "auto" and types is not None and field in types.schema().names:
        if field in types.classes:
            return Labelling(types.classes[field], declared={LABEL: types.classes[field]})
        # that of an export has no names of classes, as shardctl.json would have them
        export = export_of(listing)
        of_export = [] if export is None else [each for each in export.fields if each.name == LABEL]
        if export is not None and field in (name_in_records(each, export) for each in of_export):
            return Labelling()
        names = types.labels()
        if names is None and pa.types.is_string(types.schema().field(field).type):
            listing.note("label-not-a-class")
        return Labelling(tuple(names), by_field=True) if names else Labelling()
    return _label_by_folder(listing, mode, by_folder)


def left_out_by(who: str, names: Sequence[str]) -> list[str]:
    """Return what is said of fields that a step leaves out which joins records."""
    return [notice("joined-left-out", names=some(names, MOST_NAMED), step=who)] if names else []


MOST_NAMED = 100
"""Fields that a notice names."""


def _label_by_folder(listing: Listing, mode: str, by_folder: bool) -> Labelling:
    """Take the name of a file's folder as its class."""
    below = [
        group.folder.partition("/")[2] if by_folder else group.folder for group in listing.groups
    ]
    names, classes = _class_names(listing, mode, below)
    if not classes:
        return Labelling()
    if "" in names:
        without = [row for row, name in enumerate(names) if not name]
        inputs = counted_inputs(listing, np.flatnonzero(np.isin(listing.group, without)))
        _tell_of_stray(listing, mode, inputs, classes)
    numbers = {name: number for number, name in enumerate(classes)}
    of_group = np.array([numbers.get(name, -1) for name in names], np.int64)
    return Labelling(tuple(classes), of_group)


def _class_names(listing: Listing, mode: str, below: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the class that each folder names, "" for none, and those of all; no classes where the
    folders are none."""
    names = [composed(name.rpartition("/")[2]) for name in below]
    classes = in_order(set(names) - {""})
    if mode == "folder" and not classes:
        raise InputError(notice("no-class-folders"))
    if mode == "auto" and len(classes) < 2:
        if classes:
            listing.note("one-folder", name=printable(classes[0]))
        return names, []
    if mode == "auto" and len(named_as_splits(classes)) == len(classes):
        listing.note("folders-of-splits", names=some(classes))
        return names, []
    places = Counter(name for name, _ in set(zip(names, below, strict=True)))
    twice = sorted(name for name, count in places.items() if count > 1 and name)
    if twice:
        listing.note("same-folders", names=some(twice))
    return names, classes


def _tell_of_stray(listing: Listing, mode: str, inputs: str, classes: list[str]) -> None:
    """Add a notice on inputs outside of class folders. Raises InputError unless --labels folder was
    given."""
    values = {"inputs": inputs, "count": len(classes), "names": some(classes)}
    if mode == "auto":
        raise InputError(notice("beside-class-folders", **values))
    listing.note("no-class-folder", **values)


def side_fields(side: LabelTable | None) -> list[pa.Field]:
    """Return the columns that the labels files add to every sample, `label` apart."""
    return [f for f in side.columns.schema if f.name != LABEL] if side else []


def _own_columns(listing: Listing) -> list[pa.Field]:
    """Return the fields of `columns`: those of the labels files and those of annotations, some of
    which only workers need."""
    return side_fields(listing.side) + [
        f for each in listing.annotations for f in each.columns.schema if f.name != LABEL
    ]


def job_files_schema(listing: Listing) -> pa.Schema:
    """Return the columns of files.arrow in a job: those of a dataset's, and what is left out
    there."""
    fields = [pa.field(*column) for column in FILE_FIELDS]
    fields.append(pa.field(LABEL, pa.int64()))
    if columns := _own_columns(listing):
        fields.append(pa.field("columns", pa.struct(columns)))
    return pa.schema([*fields, *(pa.field(name, type_) for name, type_ in JOB_ONLY)])


JOB_ONLY = (
    ("mtime_ns", pa.int64()),
    ("beside", pa.uint64()),
    ("error", pa.string()),
    ("message", pa.string()),
)
"""What files.arrow of a dataset does not have of a file: copies of the same files must give the
same bytes. `beside` stands for the file that belongs to it, such as its mask, as it was listed; 0
where there is none."""


def write_files_table(
    path: Path, listing: Listing, labelling: Labelling, rows: Numbers | None = None
) -> None:
    """Write files.arrow: the listed files, or some rows of them, with their labels and the columns
    of the labels files."""
    schema = job_files_schema(listing)
    with new_table(path, schema) as writer:
        # of several faults of a file, the first one
        annotations = reversed(listing.annotations)
        wrong = {row: fault for each in annotations for row, fault in each.faults.items()}
        first = 0
        for batch in listing.table.to_batches(
            max_chunksize=ANNOTATED_ROWS if listing.annotations else CHUNK_ROWS
        ):
            wanted = None
            if rows is not None:
                wanted = rows[(rows >= first) & (rows < first + batch.num_rows)] - first
            if wanted is None or len(wanted):
                labels = {
                    **_labels(listing, labelling, batch, first),
                    **_faults(wrong, batch, first),
                }
                stamps = np.zeros(batch.num_rows, np.uint64)
                for each in listing.annotations:
                    if each.stamps is not None:
                        of = each.rows[first : first + batch.num_rows]
                        stamps[of >= 0] ^= each.stamps[of[of >= 0]]
                labels["beside"] = column_of(stamps)
                columns = [
                    labels[f.name] if f.name in labels else batch.column(f.name) for f in schema
                ]
                made = pa.record_batch(columns, schema=schema)
                writer.write_batch(made if wanted is None else rows_at(made, wanted))
            first += batch.num_rows


def _labels(
    listing: Listing, labelling: Labelling, batch: pa.RecordBatch, first: int
) -> dict[str, pa.Array]:
    """Return `label`, and `columns` where a labels file has any, of some files, the first of which
    is `first`."""
    side, count = listing.side, batch.num_rows
    found: dict[str, pa.Array] = {}
    if side is not None and listing.side_rows is not None:
        rows = listing.side_rows[first : first + count]
        taken = side.columns.take(pa.array(rows, mask=rows < 0)).combine_chunks()
        found = {name: one_chunk(taken[name]) for name in taken.column_names}
    elif labelling.of_group is not None:
        label = labelling.of_group[listing.group[first : first + count]]
        found[LABEL] = (
            pa.array(label, pa.int64(), mask=label < 0) if (label < 0).any() else column_of(label)
        )
    for each in listing.annotations:
        found |= each.taken(first, count)
    columns = {LABEL: found.get(LABEL, pa.nulls(count, pa.int64()))}
    if fields := _own_columns(listing):
        columns["columns"] = pa.StructArray.from_arrays(
            [found[f.name] for f in fields], fields=fields
        )
    return columns


def _faults(wrong: dict[int, Rejection], batch: pa.RecordBatch, first: int) -> dict[str, pa.Array]:
    """Return `error` and `message` of some files where annotations of one are wrong; a fault of the
    file itself comes first."""
    here = [row for row in range(first, first + batch.num_rows) if row in wrong] if wrong else []
    if not here:
        return {}
    errors, messages = batch["error"].to_pylist(), batch["message"].to_pylist()
    for row in here:
        if errors[row - first] is None:
            errors[row - first], messages[row - first] = wrong[row].error, wrong[row].message
    return {"error": pa.array(errors, pa.string()), "message": pa.array(messages, pa.string())}


def read_classes(place: str) -> tuple[str, ...]:
    """Return the names in a text file, one in a line, or those of the dataset in a folder.

    Raises InputError, DatasetError.
    """
    shown = printable(place)
    if is_folder(place):
        from shardctl.format.dataset_location import open_location  # three modules

        with open_location(place) as opened:
            names = classes_of(Manifest.load(opened.whole).roles)
    else:
        try:
            names = tuple(
                map(str.strip, read_named(Path(local_copy(place))).decode("utf-8-sig").splitlines())
            )
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError(notice("classes-unread", file=shown, why=why)) from None
    names = tuple(map(composed, names))
    if not all(names) or first_repeated(names) is not None or not names:
        raise InputError(notice("no-list-of-classes", file=shown))
    return names


def classes_of(roles: Roles) -> tuple[str, ...]:
    """Return the classes of a dataset that pins them: of its label, else of its objects; none where
    they have no names."""
    objects = (role.names for role in roles.by_name.values() if isinstance(role, Objects))
    return roles.classes or next(filter(None, objects), ())


def pin(
    listing: Listing, found: Sequence[str] | None, fixed: bool, pinned: tuple[str, ...]
) -> Numbers:
    """Give the annotations and the labels file of a listing the pinned numbers; return those of the
    classes that were `found`.

    `fixed` says that the records have numbers of their own, which cannot become others. Raises
    InputError for classes that are not pinned, and where nothing has names.
    """
    listing.annotations = list(listing.annotations)
    for place, each in enumerate(listing.annotations):
        names, roles = each.classes, each.roles
        if isinstance(role := roles.get(OBJECTS), Objects) and role.names is not None:
            names, roles = role.names, {**roles, OBJECTS: _pinned(role, pinned)}
        found = found or names
        if names is not None and names != pinned:
            numbers, before = _numbers(names, pinned), each.numbers
            numbers = numbers if before is None else numbers[before]
            listing.annotations[place] = replace(
                each, numbers=numbers, roles=roles, classes=each.classes and pinned
            )
    if not found:
        raise InputError(notice("no-names-of-classes"))
    numbers = _numbers(found, pinned)
    if fixed and (numbers != np.arange(len(found))).any():
        raise InputError(notice("classes-in-another-order"))
    side = listing.side
    if side is not None and side.classes is not None:
        column = pa.array(numbers).take(side.columns[LABEL_COLUMN].combine_chunks())
        columns = side.columns.set_column(
            side.columns.column_names.index(LABEL_COLUMN), LABEL_COLUMN, column
        )
        listing.side = replace(side, columns=columns, classes=pinned)
    return numbers


def _pinned(role: Objects, pinned: tuple[str, ...]) -> Objects:
    """Return what is known of objects with the pinned names. Ids and supercategories follow them; a
    new name gets a new id."""
    ids = dict(zip(role.names or (), role.ids or (), strict=False))
    above = dict(zip(role.names or (), role.supercategories or (), strict=False))
    new = count(max(ids.values(), default=0) + 1)
    return replace(
        role,
        names=pinned,
        ids=tuple(ids[name] if name in ids else next(new) for name in pinned) if ids else None,
        supercategories=tuple(above.get(name, "") for name in pinned) if above else None,
    )


def _numbers(found: Sequence[str], pinned: tuple[str, ...]) -> Numbers:
    numbers = {name: number for number, name in enumerate(pinned)}
    found = list(map(composed, found))
    others = [name for name in found if name not in numbers]
    if others:
        classes = counted(len(pinned), "class", "classes")
        raise InputError(notice("classes-not-pinned", names=some(others), classes=classes))
    return np.array([numbers[name] for name in found], np.int64)
