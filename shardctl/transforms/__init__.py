"""What is done to a sample between its source and its shard: small, pure, and handed its randomness.

A *view* transform says which part of an image is wanted, and how large; views compose, and the pixels are resampled once
(geometry.py). A *sample* transform is a user's own function, called on the decoded sample. A *batch* transform works on Arrow
batches of records of text and tables.
"""

from __future__ import annotations

from collections.abc import Callable

from shardctl.transforms.base import BatchRun, BatchTransform, SampleTransform, Transform, ViewTransform
from shardctl.transforms.crop import Crop, RandomResizedCrop
from shardctl.transforms.custom import Custom
from shardctl.transforms.flip import HorizontalFlip
from shardctl.transforms.resize import Resize

TRANSFORMS: dict[str, Callable[..., Transform]] = {
    kind.name: kind.parse for kind in (Resize, Crop, RandomResizedCrop, HorizontalFlip, Custom)
}
"""The names that a recipe may use."""

__all__ = [
    "TRANSFORMS",
    "BatchRun",
    "BatchTransform",
    "Crop",
    "Custom",
    "HorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "SampleTransform",
    "Transform",
    "ViewTransform",
]
