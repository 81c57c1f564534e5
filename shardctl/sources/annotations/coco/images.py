"""Which input each image of a COCO file is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardctl.errors import InputError
from shardctl.sources.annotations.coco.file import CocoFile
from shardctl.sources.annotations.inputs import Inputs
from shardctl.sources.label_table import some
from shardctl.system.text import counted, printable


def find_inputs(file: CocoFile, inputs: Inputs) -> list[str]:
    """Find the input of each image of a file. Raises InputError for images of one id, and for two of one input."""
    ordered = file.images[file.order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        one, other = (file.names[int(file.order[again[0] + more])].as_py() for more in (0, 1))
        raise InputError(
            f"{file.shown}: the images {printable(one)} and {printable(other)} have the same id {int(ordered[again[0]])};"
            " give each image an id of its own"
        )
    rows, exact = [], []
    for chunk in file.names.chunks:
        names = [_normal(name, inputs) for name in chunk.to_pylist()]
        found = np.full(len(names), -1, np.int64)
        if file.folder:
            found = inputs.by_path.exact([f"{file.folder}/{name}" for name in names])
        sure = found >= 0
        left = np.flatnonzero(~sure)
        match = inputs.by_path.find([names[place] for place in left.tolist()])
        found[left], sure[left] = match
        rows.append(found)
        exact.append(sure)
    if rows:
        file.rows = np.concatenate(rows)
        _refuse_two_of_one(file, np.concatenate(exact), inputs)
    absent = int((file.rows < 0).sum())
    if not absent:
        return []
    example = some([file.names[int(place)].as_py() for place in np.flatnonzero(file.rows < 0)[:3]])
    return [f"{file.shown}: {absent:,} of {counted(len(file.rows), 'image')} are not among the inputs ({example}); skipped"]


def _normal(name: str, inputs: Inputs) -> str:
    """Return a file name as paths of inputs are written."""
    if name.startswith("/"):
        return inputs.below(name) or name
    return "/".join(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def _refuse_two_of_one(file: CocoFile, exact: npt.NDArray[np.bool_], inputs: Inputs) -> None:
    """Raise InputError if two images are one input. One that only its last part fits steps back for one of the whole path."""
    meant = np.unique(file.rows[exact & (file.rows >= 0)])
    file.rows[~exact & np.isin(file.rows, meant)] = -1
    order = np.argsort(file.rows, kind="stable")
    ordered = file.rows[order]
    again = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0))
    if len(again):
        ids = [int(file.images[order[again[0] + more]]) for more in (0, 1)]
        names = [printable(file.names[int(order[again[0] + more])].as_py()) for more in (0, 1)]
        of = printable(inputs.paths_at([int(ordered[again[0]])])[0])
        raise InputError(
            f"{file.shown}: two images are the input {of}: {names[0]} (id {ids[0]}) and {names[1]} (id {ids[1]}); remove one"
        )
