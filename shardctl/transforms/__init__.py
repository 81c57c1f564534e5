"""What is done to a sample between its source and its shard: small, pure, and handed its randomness.

The steps of images work on a `Picture` (picture.py). Those that only say which part is wanted, and how large, compose: the
pixels are resampled once (geometry.py, codecs/resampling.py). A *filter* rejects images and changes none. A *sample* transform
is a person's own function, called on the decoded sample; a *group* transform, a model, is called on many of them. A *batch*
transform works on Arrow batches of records of text and tables.

Names and settings are those of torchvision's transforms.v2, in lower case. What can be certain or random has a `p`.
"""

from __future__ import annotations

from shardctl.transforms.base import (
    BatchTransform,
    GroupTransform,
    ImageTransform,
    PixelTransform,
    SampleTransform,
    Transform,
    ViewTransform,
)
from shardctl.transforms.custom import Custom
from shardctl.transforms.filter import Filter
from shardctl.transforms.records import BatchRun, Records, RejectRow
from shardctl.transforms.table import TRANSFORMS, parse_step

__all__ = [
    "TRANSFORMS",
    "BatchRun",
    "BatchTransform",
    "Custom",
    "Filter",
    "GroupTransform",
    "ImageTransform",
    "PixelTransform",
    "Records",
    "RejectRow",
    "SampleTransform",
    "Transform",
    "ViewTransform",
    "parse_step",
]
