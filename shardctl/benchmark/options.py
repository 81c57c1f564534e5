"""The options of a measurement: what the command line, Python and the checks know of each; and the
rates of published training runs, consumers to test a loader against without their GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import UsageError
from shardctl.loader.options import BATCH_SIZE, THREADS
from shardctl.system.arguments import contradiction
from shardctl.system.options import (
    FilePath,
    Flag,
    Many,
    Number,
    Text,
    ValueType,
    Whole,
    check_options,
    option,
    option_as,
)
from shardctl.system.text import did_you_mean

READING = "Reading"
RUN = "Runs"
CONSUMER = "A GPU that consumes the samples"
COMPARED = "Comparisons"
OUTPUT = "What is printed"
HEADINGS = (READING, RUN, CONSUMER, COMPARED, OUTPUT)
"""The headings of the options in `--help`."""

RUNS = 5
"""Default number of runs: with five, the spread covers chance differences between measurements of
one dataset."""

RUN_SECONDS = 2.0
"""Default seconds of a run: in a shorter one, the start of the threads counts too much."""

COLD_SECONDS = 20.0
"""Default limit of a cold run, in seconds; it ends earlier with its epoch."""

CONSUMER_SECONDS = 5.0
CONSUMER_PATIENCE = 300.0
"""Default seconds that a function may take for one batch: the first step may compile a model."""


RATE = Number(0, above=True)
"""Samples per second that a GPU takes."""


class Shuffle(Flag):
    """Whether the order is random; in Python also the name of an order, which the loader checks."""

    python = "bool | str"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if not isinstance(value, str):
            super().check(name, value)


class CacheFolder(FilePath):
    """The folder of a cache; in Python also True and False, for the usual one and none."""

    python = "str | Path | bool"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if not isinstance(value, bool):
            super().check(name, value)


@dataclass(frozen=True)
class BenchOptions:
    """Options of `bench`. `check` validates them. `shardctl bench` has the same defaults.

    The dataset is read in `runs` runs. Each run takes `seconds` seconds or `epochs` epochs.
    `shuffle` is True (a random order), False or the name of an order. `decode=False` returns the
    stored bytes of images. `cold` drops the dataset from the page cache before every epoch.
    `consumer_rate` is in samples per second of one GPU, `consumer` is a preset or module:function.
    Such a function is called with batches on `device` (numpy arrays for None), with a limit of
    `consumer_timeout` seconds for each. If `processes` is given, so many worker processes make the
    batches, together in `threads` threads. `baseline` also runs the recipe on the raw inputs;
    `transforms` names the user's functions in it that may be called. `sweep` tries other threads,
    batch sizes and orders. `cache` and `cache_limit` are as in `shardctl.open`, for a dataset on a
    store.
    """

    split: str | None = option(
        Text(),
        None,
        "Read only this split, for instance val. Default: all.",
        metavar="NAME",
        heading=READING,
    )
    batch_size: int = option_as(BATCH_SIZE, 256, heading=READING, brief="samples in a batch")
    threads: int | str = option_as(
        THREADS,
        "auto",
        heading=READING,
        brief="threads that read and decode",
    )
    processes: int | None = option(
        Whole(),
        None,
        "Make the batches in N worker processes, which have the threads: for machines with many "
        "cores (`shardctl help loader`).",
        metavar="N",
        heading=READING,
    )
    shuffle: bool | str = option(
        Shuffle(),
        True,
        "Read in a random order, or in the order of the shards.",
        spelling="--shuffle/--no-shuffle",
        shows_default=True,
        heading=READING,
    )
    decode: bool = option(
        Flag(),
        True,
        "Decode images to pixels, or hand over the stored bytes.",
        spelling="--decode/--no-decode",
        shows_default=True,
        heading=READING,
    )
    epochs: int | None = option(
        Whole(1),
        None,
        "Each run reads DST N times, instead of for a number of seconds.",
        metavar="N",
        heading=RUN,
    )
    seconds: float | None = option(
        Number(0, above=True),
        None,
        "Each run, also with a consumer, takes S seconds.  [default: 2; consumers: 5]",
        metavar="S",
        heading=RUN,
        brief="seconds of each run",
    )
    runs: int = option(
        Whole(1),
        RUNS,
        "Measure N times and report the median.",
        metavar="N",
        shows_default=True,
        heading=RUN,
    )
    cold: bool = option(
        Flag(),
        False,
        "Measure reading from the disk: drop DST from the page cache before every epoch. Each "
        "run reads one epoch (20 seconds at most), unless --epochs or --seconds is given.",
        heading=RUN,
        brief="read from the disk, not from memory",
    )
    consumer_rate: float | None = option(
        RATE,
        None,
        "Simulate a GPU that trains on R samples per second, and report how busy it is.",
        metavar="R",
        heading=CONSUMER,
        brief="samples/s of the GPU that trains",
    )
    consumer: str | None = option(
        Text(),
        None,
        "Simulate the GPU of a published training run (--list-consumers), or call your own "
        "training step, a function, with every batch.",
        metavar="PRESET|MODULE:FUNCTION",
        heading=CONSUMER,
        brief="a published run, or your own step",
    )
    gpus: int = option(
        Whole(1),
        1,
        "Simulate N such GPUs, all fed by this loader.",
        metavar="N",
        shows_default=True,
        heading=CONSUMER,
    )
    device: str | None = option(
        Text(),
        None,
        "Call your function with PyTorch tensors on this device. Default: numpy arrays.",
        metavar="cpu|cuda",
        heading=CONSUMER,
    )
    consumer_timeout: float = option(
        Number(0, above=True),
        CONSUMER_PATIENCE,
        "Stop with an error when your function needs longer than this for one batch.",
        metavar="SECONDS",
        shows_default=True,
        heading=CONSUMER,
    )
    baseline: bool = option(
        Flag(),
        False,
        "Also measure training without shards: read, decode and transform the raw inputs.",
        heading=COMPARED,
        brief="compare with training from raw files",
    )
    recipe: str | Path | None = option(
        FilePath(),
        None,
        "Do the steps of this recipe while reading; dataset: those under [[reading]] in that of DST.",
        metavar="FILE.toml|@NAME",
        heading=READING,
        brief="steps that are done in each epoch",
    )
    steps: tuple[str, ...] = option(
        Many(Text("hflip p=0.5")),
        (),
        "Do this step while reading, after those of the recipe. May be given several times.",
        metavar="'NAME KEY=VALUE…'",
        spelling="--step",
        heading=READING,
    )
    transforms: tuple[str, ...] = option(
        Many(Text()),
        (),
        "Call this function of yours while reading. With --baseline: allow bench to call it there, "
        "as it made DST.",
        metavar="MODULE:FUNCTION",
        spelling="--transform",
        heading=COMPARED,
    )
    sweep: bool = option(
        Flag(),
        False,
        "Also measure other numbers of threads, orders and batch sizes, and name the best.",
        heading=COMPARED,
        brief="try other threads, batches and orders",
    )
    cache: str | Path | bool | None = option(
        CacheFolder(),
        None,
        "If DST is on a store: keep what was read in this folder (`shardctl help cache.md`). "
        "Default: $SHARDCTL_CACHE.",
        metavar="DIR",
        heading=READING,
    )
    cache_limit: int | str | None = option(
        ValueType("int | str"),
        None,
        "Bytes of all datasets in the cache, for instance 500GB.",
        metavar="SIZE",
        heading=READING,
    )

    def check(self) -> None:
        """Raise UsageError for impossible numbers and for options that contradict each other."""
        check_options(self)
        if self.epochs is not None and self.seconds is not None:
            raise contradiction("--epochs", "--seconds")
        if self.consumer is not None and self.consumer_rate is not None:
            raise contradiction("--consumer", "--consumer-rate")
        no_function = "is for your own function; name one: --consumer module:function"
        no_rate = self.consumer is None and self.consumer_rate is None
        wrong = (
            (self.device is not None and not self.calls_function, f"a device {no_function}"),
            (
                self.calls_function and self.gpus > 1,
                "a function stands for one GPU; leave out --gpus",
            ),
            (
                self.gpus > 1 and no_rate,
                "how fast is one of the GPUs? Give --consumer or --consumer-rate too",
            ),
            (
                self.consumer_timeout != CONSUMER_PATIENCE and not self.calls_function,
                f"a consumer timeout {no_function}",
            ),
            (
                self.baseline and not self.decode,
                "a baseline decodes its images, and cannot be compared with stored bytes; leave "
                "out --no-decode",
            ),
        )
        for applies, message in wrong:
            if applies:
                raise UsageError(message)

    @property
    def calls_function(self) -> bool:
        """Whether the consumer is a function."""
        return self.consumer is not None and ":" in self.consumer

    @property
    def run_epochs(self) -> int | None:
        """Number of epochs of a run, None for a run limited by time. The default of a cold run is
        one."""
        return self.epochs or (1 if self.cold and self.seconds is None else None)

    @property
    def run_seconds(self) -> float | None:
        """Maximum seconds of a run, None for no limit."""
        if self.seconds is not None or self.epochs is not None:
            return self.seconds
        return COLD_SECONDS if self.cold else RUN_SECONDS

    @property
    def consumer_seconds(self) -> float:
        """Seconds that a consumer is fed."""
        return self.seconds or CONSUMER_SECONDS


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
