"""A finished sample: the values of its row in a shard, and what is counted of it."""

from __future__ import annotations

from dataclasses import dataclass

from shardctl.format.sample import Sample
from shardctl.images.codecs.jpeg import JpegFacts
from shardctl.transforms.pipeline.functions import Given

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class MadeSample:
    """A sample after all steps of the recipe.

    `fields` are the values of the columns, in the layout's order. An image is pixels for `raw`, otherwise its bytes and path.
    `size` is about their bytes. `label` is the class, None if it has none or the dataset has no classes. `shape` is that of the
    decoded image. `jpeg` is what the image is as JPEG, where the original bytes are kept.

    `objects` are marked in the image, and `cut_off` of them the steps have cut off, or the rule for boxes has dropped. `waits`
    says that values are DeferredObjects, which `SamplePipeline.settle` replaces: until then these are in `size` as they are
    before they are moved, and not among the numbers of objects.

    Where there is no layout yet, `fields` has all fields of the sample, `given` has what each of the user's functions was
    given, and nothing is counted.
    """

    fields: Sample
    shape: Shape | None = None
    cut_off: int = 0
    jpeg: JpegFacts | None = None
    size: int = 0
    label: int | None = None
    objects: int = 0
    waits: bool = False
    given: Given = ()
