"""The check of images that are said to be plain JPEG: the loader takes them for that, and has no second look."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Mask
from shardctl.images.codecs.jpeg import jpeg_facts
from shardctl.inspection.verify.check import Block, Fault, Shard
from shardctl.inspection.verify.decoding import picture
from shardctl.inspection.verify.finding import CONVERT_AGAIN


def not_plain(shard: Shard, block: Block) -> Iterator[Fault]:
    """Yield the images of a block that the loader takes for plain JPEG, and are not.

    Of the main images those that are recorded to be plain, and all images of a field that is stored as JPEG.
    """
    roles = shard.own_roles
    for name, rows in _said_plain(shard).items():
        if not block.data.schema.field(name).type.equals(ENCODED_IMAGE):
            continue
        images = block.data.column(name).field("bytes")
        of_block = None if rows is None else rows[block.first : block.first + len(images)]
        for row in range(len(images)) if of_block is None else np.flatnonzero(of_block).tolist():
            data = images[row].as_py()
            facts = None if data is None else jpeg_facts(data)
            if facts is None or not facts.plain:
                what = f"{picture(name, roles.images[name])} is not the plain JPEG that it is said to be"
                yield block.fault(row, "not-plain", f"{what}: the loader may give other pixels; {CONVERT_AGAIN}")


def _said_plain(shard: Shard) -> dict[str, npt.NDArray[np.bool_] | None]:
    """Return the fields with plain JPEG, each with the rows (rows,) of the shard where it is plain; None for all of them."""
    roles, recorded = shard.own_roles, None if shard.record is None else shard.record.plain
    stored_so = {name: None for name, role in roles.images.items() if role.is_plain and not isinstance(role, Mask)}
    if recorded is None or roles.main_image is None:
        return dict(stored_so)
    return {roles.main_image: recorded, **stored_so}
