"""What is recorded of JPEG images whose original bytes are kept: which are plain, and how many take
longer to decode.

docs/format.md, section 2, `shards.arrow`. This is the record alone; shardctl.images.codecs.jpeg
finds what goes into it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from shardctl.system.text import counted

COUNTS = ("images", "progressive", "full_colour")
"""What is counted: JPEG images, and those of them whose decoding takes longer."""


@dataclass(frozen=True)
class JpegRecord:
    """What is recorded of the images of one field, of a shard or of a dataset.

    `plain` (samples,) tells of each sample whether its image is plain JPEG; `images` of them are
    JPEG at all, of which `progressive` are progressive, and of `full_colour` the colours have as
    many pixels as the brightness (4:4:4).
    """

    plain: npt.NDArray[np.bool_]
    images: int
    progressive: int
    full_colour: int

    def counts(self) -> dict[str, int]:
        """Return what is counted, as the manifest has it under `jpeg`."""
        return {name: getattr(self, name) for name in COUNTS}

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data: `plain` as a bit for each sample, in Base64."""
        packed = np.packbits(self.plain, bitorder="little").tobytes()
        return {
            **self.counts(),
            "plain": base64.b64encode(packed).decode("ascii"),
            "xxh3": _checksum(packed),
        }

    @classmethod
    def from_json(cls, record: Any, samples: int) -> JpegRecord:
        """Read what `to_json` returned of so many samples, untrusted. Raises ValueError or
        TypeError where it does not fit."""
        if not isinstance(record, dict) or type(record.get("plain")) is not str:
            raise TypeError("a record of JPEG images is an object")
        if not are_counts(record) or record["images"] > samples:
            raise ValueError("JPEG images are counted")
        packed = base64.b64decode(record["plain"], validate=True)
        if len(packed) != (samples + 7) // 8 or record.get("xxh3") != _checksum(packed):
            raise ValueError("the bits of plain images are damaged")
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
        if bits[samples:].any():
            raise ValueError("there are bits of images that there are not")
        return cls(bits[:samples].view(bool), *(record[name] for name in COUNTS))

    def only(self, first: int, samples: int) -> npt.NDArray[np.bool_]:
        """Return which images of some samples are plain, (samples,)."""
        return self.plain[first : first + samples]


PROGRESSIVE_COST, FULL_COLOUR_COST = 3.3, 1.3
"""How many times as long these JPEG images take to decode as baseline ones with 4:2:0 colours."""


def jpeg_costs(counts: Mapping[str, int] | None, samples: int) -> tuple[str, ...]:
    """Say how many of the images of so many samples take longer to decode than they need. `counts`
    are those of a manifest."""
    kinds = (
        ("progressive", "progressive JPEG", PROGRESSIVE_COST),
        ("full_colour", "JPEG with colors in full size (4:4:4)", FULL_COLOUR_COST),
    )
    return tuple(
        f"{counts[name]:,} of {counted(samples, 'image')} are {what}: --store jpeg:90 would make "
        f"them {cost} times as fast to"
        " decode"
        for name, what, cost in kinds
        if counts and counts[name]
    )


def joined(records: Iterable[JpegRecord]) -> JpegRecord:
    """Return one record of all the samples of several."""
    held = list(records)
    plain = np.concatenate([np.empty(0, bool), *(record.plain for record in held)])
    return JpegRecord(plain, *(sum(getattr(record, name) for record in held) for name in COUNTS))


def are_counts(counts: Any) -> bool:
    """Return whether this has a number for each of COUNTS, none of them larger than that of all
    images."""
    numbers: list[Any] = (
        [counts.get(name) for name in COUNTS] if isinstance(counts, dict) else [None]
    )
    return all(type(number) is int for number in numbers) and all(
        0 <= number <= numbers[0] for number in numbers
    )


def _checksum(packed: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(packed)
