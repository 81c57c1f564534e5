"""The check that every stored image, mask and RLE decodes. An image that ends the process that decodes it is a fault too."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.layout import ENCODED_IMAGE, image_lists
from shardctl.format.roles import Image, Mask
from shardctl.inspection.verify.check import Block, Fault, Shard
from shardctl.inspection.verify.finding import CONVERT_AGAIN

OTHER_BUILD = "another build may read it (`shardctl --version` names this one), else convert without it"
MOST_PIXELS = 2**40
"""Largest stored image that is decoded: the conversion has had its own limit."""

UNDECODABLE = "does-not-decode"


def undecodable(shard: Shard, block: Block) -> Iterator[Fault]:
    """Yield every encoded image and every RLE of a block that does not decode.

    Raw pixels and text have no form that could be wrong. Without its dataset nothing says that a shard may have truncated
    images: there they are faults.
    """
    roles, schema = shard.own_roles, block.data.schema
    keep_truncated = shard.record is not None and shard.record.manifest.recipe.get("truncated") == "keep"
    encoded = [name for name in roles.images if schema.field(name).type.equals(ENCODED_IMAGE)]
    lists = image_lists(schema)
    for place, name in enumerate((*encoded, *lists)):
        role, column = roles.images.get(name, Image("source")), block.data.column(name)
        for row, value in enumerate(column if name in lists else column.field("bytes")):
            number = (block.first + row) * (len(encoded) + len(lists)) + place  # that of a list stands for all its images
            images = _images_of(value) if name in lists else [("", value.as_py())]
            for which, data in images:
                if fault := _fault_of(data, role, keep_truncated, shard, number):
                    what = f"{picture(name, role)}{which} has not changed since it was written, and does not decode"
                    yield block.fault(row, UNDECODABLE, f"{what}: {fault}; {OTHER_BUILD}")
    if roles.objects:
        from shardctl.inspection.verify import object_faults  # brings the modules of the loader along, for 70 ms

        for row, what in object_faults.undecodable_objects(block.data, roles):
            yield block.fault(row, UNDECODABLE, f"{what}; {CONVERT_AGAIN}")


def _images_of(value: pa.ListScalar) -> Iterator[tuple[str, bytes]]:
    """Yield the images of a list that have bytes, with their places: others may be elsewhere."""
    for number, image in enumerate(value.values or ()):
        if image.is_valid and (data := image["bytes"].as_py()) is not None:
            yield f"[{number}]", data


def picture(name: str, role: Image) -> str:
    """Return what messages call the image or mask in a field."""
    return f"the {role.name}" if name == role.name else f"the {role.name} {name}"


def _fault_of(data: bytes | None, role: Image, keep_truncated: bool, shard: Shard, number: int) -> str | None:
    """Return why an image or a mask does not decode, None if it does. `number` is its number among those of the shard."""
    if number in shard.fatal:
        return shard.fatal[number]
    shard.progress.begin(number, stage="decode")
    fault = _decode_fault(data, role, keep_truncated)
    shard.progress.leave()
    return fault


def _decode_fault(data: bytes | None, role: Image, keep_truncated: bool) -> str | None:
    if data is None:
        return None if isinstance(role, Mask) else "it is missing"  # not every image need have a mask
    from shardctl.images.codecs import image  # brings the decoders along, for 25 ms

    try:
        decode = image.decode_mask if isinstance(role, Mask) else image.decode
        decode(data, MOST_PIXELS, keep_truncated)
    except Rejection as rejection:
        return rejection.message
    return None
