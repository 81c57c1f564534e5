"""A finished sample: the values of its row in a shard, and what is counted of it."""

from __future__ import annotations

from dataclasses import dataclass

from shardctl.format.roles import Sample
from shardctl.images.codecs.jpeg import JpegFacts
from shardctl.transforms.pipeline.functions import Given

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class MadeSample:
    """A sample after all steps of the recipe. If there is no layout yet, nothing of it is
    counted."""

    fields: Sample
    """The values of the columns, in the order of the layout; all fields of the sample if there is
    no layout yet. An image is pixels with `raw`, otherwise its bytes and its path."""

    shape: Shape | None = None
    """The shape of the decoded image; None without an image."""

    cut_off: int = 0
    """The number of objects that steps or the rule for boxes have removed."""

    jpeg: JpegFacts | None = None
    """What the image is as JPEG, if its original bytes are kept."""

    size: int = 0
    """The bytes of the values, about. Objects that wait count as they are before they are moved."""

    label: int | None = None
    """The class; None if the sample has no class, or the dataset has none."""

    objects: int = 0
    """The number of objects in the image. Objects that wait do not count yet."""

    waits: bool = False
    """Whether values are DeferredObjects, which `SamplePipeline.settle` replaces."""

    given: Given = ()
    """What each of the user's functions was given, if there is no layout yet."""
