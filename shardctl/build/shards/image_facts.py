"""What is found out about images that are stored as they were: their shapes, and what they are as
JPEG."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from shardctl.format.counts import JpegRecord
from shardctl.images.codecs.image import open_image
from shardctl.images.codecs.jpeg import JpegFacts, jpeg_facts
from shardctl.transforms.pipeline.made_sample import Shape


def record_of_jpegs(jpegs: Sequence[JpegFacts | None]) -> JpegRecord:
    """Return the record of images that follow each other; None is one that is no JPEG."""
    found = [facts for facts in jpegs if facts is not None]
    plain = np.fromiter((facts is not None and facts.plain for facts in jpegs), bool, len(jpegs))
    return JpegRecord(
        plain,
        len(found),
        sum(each.progressive for each in found),
        sum(each.full_colour for each in found),
    )


def jpegs_of_column(batch: pa.RecordBatch, column: str) -> list[JpegFacts | None]:
    """Return what each image of a column is as JPEG."""
    return [jpeg_facts(data) for data in _images(batch, column)]


def shapes_of_column(batch: pa.RecordBatch, column: str) -> set[Shape]:
    """Return the first two shapes of images of a column that differ: its only one, if they are all
    the same."""
    shapes: set[Shape] = set()
    for data in _images(batch, column):
        width, height = open_image(data, max_pixels=sys.maxsize, keep_truncated=True).size
        shapes.add((height, width, 3))
        if len(shapes) == 2:
            break
    return shapes


def _images(batch: pa.RecordBatch, column: str) -> Iterator[bytes]:
    """Yield the bytes of encoded images. `flatten` gives those of the rows of a slice, `field`
    would give all."""
    return (data.as_py() for data in batch.column(column).flatten()[0])
