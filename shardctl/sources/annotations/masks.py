"""Masks: a PNG for each image, with a number for every pixel."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import UsageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Mask
from shardctl.sources.annotations.base import (
    MASK_FILE,
    AnnotationRule,
    Annotations,
    Source,
    rows_of,
)
from shardctl.sources.annotations.inputs import PathTable, stem
from shardctl.sources.annotations.per_image import (
    Digest,
    match_all,
    match_files,
    names_of_classes,
    said_of_others,
    walked,
)
from shardctl.sources.files import begin_of, resolved, version_of
from shardctl.system.locations import name_of, relative
from shardctl.system.permutation import evenly_spaced

MASK = "mask"
MASK_FILE_TYPE = pa.struct(
    {"path": pa.string(), "name": pa.string(), "frame": pa.string(), "bits": pa.int8()}
)

IGNORE = "ignore"
LOOKED_AT = 64
"""Masks that are looked at for how many bits their numbers have."""

SUFFIX, IMAGE_SUFFIX = "suffix", "image-suffix"
"""What the names of masks have at their end, and those of their images: 1_mask.png beside 1.jpg."""


def read(
    sources: Sequence[Source], inputs: PathTable, rule: AnnotationRule, _scratch: Path
) -> Annotations:
    """Find the mask of each image. Their bytes are not read here."""
    folder, options, digest = sources[0].path, dict(sources[0].options), Digest()
    end, image_end = options.get(SUFFIX, ""), options.get(IMAGE_SUFFIX, "")
    files = walked(folder, (".png", ".txt", ".names"), "masks")
    found = [file for file in files if is_mask(file.path, end)]

    def of_image(path: str) -> str:
        return f"{stem(path).removesuffix(end)}{image_end}.png"

    match = partial(
        match_files,
        called=lambda file: of_image(file.path),
        beside=lambda file: of_image(file.opened),
    )
    matched, lost = match_all(found, inputs, folder, "masks", f"{end}.png", match)
    opened = list(matched.values())
    bits = max((_bits(opened[place]) for place in evenly_spaced(len(opened), LOOKED_AT)), default=8)
    places, stamps = [], array("Q")
    roots = inputs.table["root"].take(pa.array(list(matched), pa.int64())).to_pylist()
    for file, root in zip(opened, roots, strict=True):
        # From the source on, so that a dataset says the same wherever the two lie together.
        path = relative(resolved(file), inputs.bases[root])
        places.append({"path": path, "name": name_of(file), "frame": rule.frame, "bits": bits})
        stamp = "{} {}".format(*version_of(file)).encode()
        digest.add(path, stamp)
        stamps.append(xxhash.xxh3_64_intdigest(stamp))
    rows = rows_of(list(matched), len(inputs))
    table = pa.table({MASK_FILE: pa.array(places, MASK_FILE_TYPE)})
    ignore = int(options[IGNORE]) if IGNORE in options else None
    if bits == 8 and ignore is not None and ignore > 255:
        raise UsageError(f"--labels {sources[0]}: the masks have 8 bits, numbers up to 255")
    role = Mask("source", None, names_of_classes(files, [folder], digest, {}), ignore, bits)
    said = said_of_others(lost, matched, inputs, "mask", "it is null there")
    return Annotations(
        table,
        rows,
        (pa.field(MASK, ENCODED_IMAGE),),
        (digest.hex(),),
        {MASK: role},
        notices=said,
        stamps=np.frombuffer(stamps, np.uint64),
    )


def is_mask(path: str, end: str) -> bool:
    """Return whether this is the name of a mask, whose names have this at their end."""
    return path.lower().endswith(".png") and stem(path).endswith(end)


def _bits(file: str) -> int:
    """Return 16 for a PNG with as many bits in a channel, else 8."""
    try:
        head = begin_of(file, _PNG_BITS + 1)
    except OSError:  # the worker says so when it reads it
        return 8
    return 16 if len(head) > _PNG_BITS and head[_PNG_BITS] == 16 else 8


_PNG_BITS = 24
"""Where a PNG says how many bits a number of it has."""
