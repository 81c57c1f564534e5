"""Image files as records: a frame of an animation, or a page, is one. A file of one frame gives its own bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.images.codecs.image import frame_count, frames_of, is_image
from shardctl.sources.formats.base import Choose, Cut, Digest, Parsed, Reading, Unit
from shardctl.sources.formats.columns import BATCH_BYTES
from shardctl.sources.types import Types

IMAGE = pa.schema([("image", ENCODED_IMAGE)])

begins = is_image
"""Tells such files by their first bytes."""


class Frames:
    """Reads image files frame by frame."""

    name: ClassVar[str] = "frames"
    types_can_be_sampled: ClassVar[bool] = True

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the whole file."""
        return [(0, size)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return how many frames there are. Raises OSError, Rejection."""
        return frame_count(Path(path).read_bytes())

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return one unit: a frame may need all that come before it."""
        return [Cut(0, size, scans[0])]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return that of the image."""
        return Types.of_schema(IMAGE, reading.label)

    def read(
        self, path: str, unit: Unit, reading: Reading, schema: pa.Schema, choose: Choose | None, digest: Digest
    ) -> Iterator[Parsed]:
        """Yield the frames of a unit."""
        data = Path(path).read_bytes()
        digest.update(data)
        numbers = np.arange(unit.first, unit.first + unit.records)
        wanted = numbers if choose is None else numbers[choose(numbers)]
        found, rejects, size = dict[int, bytes](), list[tuple[int, Rejection]](), 0
        frames = frames_of(data, (wanted - unit.first + unit.skip).tolist(), reading.max_pixels)
        for number, frame in zip(wanted.tolist(), frames, strict=True):
            if isinstance(frame, Rejection):
                rejects.append((number, frame))
                continue
            found[number] = frame
            size += len(frame)
            if size >= BATCH_BYTES:
                yield _parsed(found, rejects, schema)
                found, rejects, size = {}, [], 0
        yield _parsed(found, rejects, schema)


def _parsed(found: dict[int, bytes], rejects: list[tuple[int, Rejection]], schema: pa.Schema) -> Parsed:
    rows = [{name: {"bytes": frame} for name in schema.names} for frame in found.values()]
    return Parsed(np.array(list(found), np.int64), pa.RecordBatch.from_pylist(rows, pa.schema(schema)), rejects)
