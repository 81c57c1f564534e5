"""Names and numbers of classes that a person pins (--classes), so that datasets that are made apart
have the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.plan.listing import Listing
from shardctl.errors import InputError
from shardctl.format.dataset_location import open_location
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Mask, Objects, Role, Roles
from shardctl.sources.annotations.objects import OBJECTS
from shardctl.sources.files import is_folder, local_copy
from shardctl.sources.label_table import LABEL_COLUMN, some
from shardctl.system.files import read_named
from shardctl.system.text import composed, counted, first_repeated, printable


def read_classes(place: str) -> tuple[str, ...]:
    """Return the names in a text file, one in a line, or those of the dataset in a folder.

    Raises InputError, DatasetError.
    """
    shown = f"--classes {printable(place)}"
    if is_folder(place):
        with open_location(place) as opened:
            names = classes_of(Manifest.load(opened.whole).roles)
    else:
        try:
            names = tuple(
                map(str.strip, read_named(Path(local_copy(place))).decode("utf-8-sig").splitlines())
            )
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{shown}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})"
            ) from None
    names = tuple(map(composed, names))
    if not all(names) or first_repeated(names) is not None or not names:
        raise InputError(
            f"{shown}: it takes a text file with one class in each line, each once, or a dataset "
            "with classes"
        )
    return names


def classes_of(roles: Roles) -> tuple[str, ...]:
    """Return the classes of a dataset that pins them: of its label, else of its objects; none where
    they have no names."""
    objects = (role.names for role in roles.by_name.values() if isinstance(role, Objects))
    return roles.classes or next(filter(None, objects), ())


def pin(
    listing: Listing, found: Sequence[str] | None, fixed: bool, pinned: tuple[str, ...]
) -> npt.NDArray[np.int64]:
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
            numbers = _numbers(names, pinned)
            listing.annotations[place] = replace(
                each, numbers=numbers, roles=roles, classes=each.classes and pinned
            )
    if not found:
        raise InputError("--classes: the inputs have no names of classes")
    numbers = _numbers(found, pinned)
    if fixed and (numbers != np.arange(len(found))).any():
        raise InputError("--classes: the files number their classes themselves, in another order")
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


def refuse_other_names(roles: Mapping[str, Role], pinned: tuple[str, ...]) -> None:
    """Raise InputError for masks, and for objects of records, that have other names than those
    pinned."""
    for name, role in roles.items():
        if isinstance(role, Mask | Objects) and role.names not in (None, pinned):
            raise InputError(f"--classes: {printable(name)} has classes of its own")


def _numbers(found: Sequence[str], pinned: tuple[str, ...]) -> npt.NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(pinned)}
    found = list(map(composed, found))
    others = [name for name in found if name not in numbers]
    if others:
        raise InputError(
            f"--classes: {some(others)} not among the {counted(len(pinned), 'class', 'classes')} "
            "that it pins"
        )
    return np.array([numbers[name] for name in found], np.int64)
