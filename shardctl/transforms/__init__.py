"""What is done to a sample between its source and its shard: small, pure, and handed its randomness.

The steps of images work on a `Picture` (picture.py). Those that only say which part is wanted, and how large, compose: the
pixels are resampled once (geometry.py, codecs/resampling.py). A *filter* rejects images and changes none. A *sample* transform
is a person's own function, called on the decoded sample. A *batch* transform works on Arrow batches of records of text and
tables.

Names and settings are those of torchvision's transforms.v2, in lower case. What can be certain or random has a `p`.
"""

from __future__ import annotations

from shardctl.transforms.automatic import AugMix, AutoAugment, RandAugment, TrivialAugment
from shardctl.transforms.base import (
    BatchRun,
    BatchTransform,
    ImageTransform,
    PixelTransform,
    SampleTransform,
    Transform,
    ViewTransform,
)
from shardctl.transforms.blur import AdjustSharpness, GaussianBlur
from shardctl.transforms.colour import (
    AdjustBrightness,
    AdjustContrast,
    AdjustHue,
    AdjustSaturation,
    ChannelDropout,
    ChannelPermutation,
    ColorJitter,
    Grayscale,
    PhotometricDistort,
)
from shardctl.transforms.composite import Choice, InOrder, Maybe
from shardctl.transforms.crop import Crop, FiveCrop, RandomCrop, RandomResizedCrop, TenCrop
from shardctl.transforms.custom import Custom
from shardctl.transforms.elastic import Elastic
from shardctl.transforms.erasing import Erase, RandomErasing
from shardctl.transforms.filters import (
    Filter,
    FilterArea,
    FilterAspect,
    FilterBlur,
    FilterDate,
    FilterSize,
    FilterUniform,
)
from shardctl.transforms.flip import HorizontalFlip, VerticalFlip
from shardctl.transforms.noise import GaussianNoise, Jpeg, SaltAndPepper
from shardctl.transforms.resize import Letterbox, Padding, Resize
from shardctl.transforms.table import TRANSFORMS, parse_step
from shardctl.transforms.tones import Autocontrast, Equalize, Invert, Posterize, Solarize
from shardctl.transforms.warp import Affine, Perspective, RandomAffine, RandomPerspective, RandomRotation, Rotate, Shear

_STEPS: tuple[type[Transform], ...] = (
    *(Resize, Letterbox, Padding),
    *(Crop, RandomCrop, RandomResizedCrop, FiveCrop, TenCrop),
    *(HorizontalFlip, VerticalFlip),
    *(Rotate, RandomRotation, Affine, RandomAffine, Shear, Perspective, RandomPerspective, Elastic),
    *(AdjustBrightness, AdjustContrast, AdjustSaturation, AdjustHue, ColorJitter, PhotometricDistort),
    *(Grayscale, ChannelPermutation, ChannelDropout),
    *(Autocontrast, Equalize, Posterize, Solarize, Invert),
    *(GaussianBlur, AdjustSharpness, GaussianNoise, SaltAndPepper, Jpeg),
    *(Erase, RandomErasing),
    *(RandAugment, TrivialAugment, AutoAugment, AugMix),
    *(Choice, Maybe, InOrder),
    *(FilterSize, FilterAspect, FilterArea, FilterBlur, FilterUniform, FilterDate),
    Custom,
)
TRANSFORMS.update({step.name: step for step in _STEPS})

__all__ = [
    "TRANSFORMS",
    "BatchRun",
    "BatchTransform",
    "Crop",
    "Custom",
    "Filter",
    "HorizontalFlip",
    "ImageTransform",
    "PixelTransform",
    "RandomResizedCrop",
    "Resize",
    "SampleTransform",
    "Transform",
    "ViewTransform",
    "parse_step",
]
