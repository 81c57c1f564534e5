"""Which input each image of a COCO file is."""

from __future__ import annotations

import numpy as np

from shardctl.errors import InputError
from shardctl.sources.annotations.coco.file import CocoFile
from shardctl.sources.annotations.inputs import Inputs, said_of_absent
from shardctl.sources.annotations.objects import said_of_others_in
from shardctl.sources.roots import resolved
from shardctl.system.locations import parent_of
from shardctl.system.text import printable


def find_inputs(file: CocoFile, inputs: Inputs) -> list[str]:
    """Find the input of each image of a file. Raises InputError for images of one id, and for two
    of one input."""
    ordered = file.images[file.order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        one, other = (file.names[int(file.order[again[0] + more])].as_py() for more in (0, 1))
        raise InputError(
            f"{file.shown}: the images {printable(one)} and {printable(other)} have the same id "
            f"{int(ordered[again[0]])};"
            " give each image an id of its own"
        )
    told, first = (file.opened, len(file.names)), (resolved(parent_of(file.opened)), file.names)
    file.rows = inputs.by_path.find(file.names, file.shown, [told], [first])
    return [
        *said_of_others_in(file.shown, file.others),
        *said_of_absent(file.shown, file.names, file.rows),
    ]
