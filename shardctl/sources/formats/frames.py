"""Image files as records: a frame of an animation, or a page, is one. A file of one frame gives its
own bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.images.codecs.backend import is_image
from shardctl.images.codecs.image import frame_count, frames_of
from shardctl.sources.formats.base import Choose, Digest, Format, Parsed, Reading, Unit
from shardctl.sources.formats.found_values import parsed_records
from shardctl.sources.types import Types

begins = is_image
"""Tells whether a file that begins like this is an image."""


class Frames(Format):
    """Reads image files frame by frame."""

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return one unit: a frame may need all that come before it. Raises OSError, Rejection."""
        return {"cuts": [[0, size, frame_count(Path(path).read_bytes())]]}

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return that of the image."""
        return Types.of_schema(pa.schema([("image", ENCODED_IMAGE)]), reading.label)

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the frames of a unit."""
        data = Path(path).read_bytes()
        digest.update(data)
        numbers = np.arange(unit.first, unit.first + unit.records)
        wanted = numbers if choose is None else numbers[choose(numbers)]
        frames = frames_of(data, (wanted - unit.first + unit.skip).tolist(), reading.max_pixels)
        for number, frame in zip(wanted.tolist(), frames, strict=True):
            if isinstance(frame, Rejection):
                yield parsed_records([], [(number, frame)], schema)
            else:
                yield parsed_records([(number, {"image": {"bytes": frame}})], [], schema)
