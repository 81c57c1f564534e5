"""Rates of published training runs: consumers to test a loader against without their GPU."""

from __future__ import annotations

from dataclasses import dataclass

from shardctl.errors import UsageError
from shardctl.system.text import did_you_mean


@dataclass(frozen=True)
class Preset:
    """The rate of one GPU in a published run: `rate` per second of `unit` (images or tokens), and
    its source.

    `date` is that of the measurement if the source gives it, else the day on which the source was
    read.
    """

    name: str
    rate: float
    unit: str
    what: str
    source: str
    date: str


_NVIDIA = "NVIDIA DeepLearningExamples, PyTorch ResNet50 v1.5 README (container 21.03)"
_MXNET = "NVIDIA DeepLearningExamples, MXNet RN50v1.5 README"
_MLPERF = "mlcommons/storage configs, 400 images / computation_time"
_TIMM = "timm results, benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"
_CLIP = "NVIDIA NeMo framework, CLIP performance page: 8 GPUs / 8"
_MPT = "llm-foundry scripts/train/benchmarking README: sequences of 2,048, bf16, 8 GPUs"

PRESETS = tuple(
    Preset(*row)
    for row in (
        (
            "resnet50-v100",
            1_200,
            "images",
            "ResNet-50 training, mixed precision, V100 16 GB",
            _NVIDIA,
            "2021-03",
        ),
        (
            "resnet50-a100",
            2_470,
            "images",
            "ResNet-50 training, mixed precision, A100 80 GB",
            _NVIDIA,
            "2021-03",
        ),
        (
            "resnet50-a100-mxnet",
            3_411,
            "images",
            "ResNet-50 training, MXNet and DALI, A100 80 GB",
            _MXNET,
            "read 2026-09",
        ),
        (
            "resnet50-rtx3090",
            1_218,
            "images",
            "ResNet-50 training, mixed precision, RTX 3090",
            _TIMM,
            "read 2026-09",
        ),
        (
            "mlperf-resnet50-a100",
            920,
            "images",
            "ResNet-50 on A100 as MLPerf Storage has it",
            _MLPERF,
            "read 2026-11",
        ),
        (
            "mlperf-resnet50-h100",
            1_786,
            "images",
            "ResNet-50 on H100 as MLPerf Storage has it",
            _MLPERF,
            "read 2026-11",
        ),
        (
            "vit-b16-rtx3090",
            393,
            "images",
            "ViT-B/16 training, mixed precision, RTX 3090",
            _TIMM,
            "read 2026-09",
        ),
        (
            "vit-l16-rtx3090",
            117,
            "images",
            "ViT-L/16 training, mixed precision, RTX 3090",
            _TIMM,
            "read 2026-09",
        ),
        (
            "clip-g14-a100",
            70,
            "images",
            "CLIP ViT-g/14 training, A100 80 GB",
            _CLIP,
            "read 2026-09",
        ),
        ("clip-g14-h100", 117, "images", "CLIP ViT-g/14 training, H100", _CLIP, "read 2026-09"),
        ("mpt-1b-h100", 45_455, "tokens", "MPT 1B training, H100", _MPT, "read 2026-11"),
        ("mpt-7b-h100", 10_643, "tokens", "MPT 7B training, H100", _MPT, "read 2026-11"),
        ("mpt-13b-h100", 4_792, "tokens", "MPT 13B training, H100", _MPT, "read 2026-11"),
        ("mpt-13b-a100", 2_262, "tokens", "MPT 13B training, A100 80 GB", _MPT, "read 2026-11"),
    )
)


def find_preset(name: str) -> Preset:
    """Return the preset of this name. Raises UsageError, with similar names, if there is none."""
    named = {preset.name: preset for preset in PRESETS}
    if name in named:
        return named[name]
    raise UsageError(
        f"consumer {name!r} is not known{did_you_mean(name, named, 3) or ';'} `shardctl bench "
        "--list-consumers` lists all"
        f" {len(named)}; name your own function as module:function"
    )
