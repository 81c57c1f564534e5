"""The options of a conversion: what the command line, Python and the checks know of each. For sources and DST see paths.py.

The command line imports this module before Arrow: each check imports what it needs when it is called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.build.shards.engines import registry
from shardctl.build.shared_options import IF_RUNNING, WORKERS
from shardctl.errors import UsageError
from shardctl.loader.metrics_option import METRICS
from shardctl.sources.annotation_words import BOXES, FRAMES, TASKS
from shardctl.system.options import (
    Anything,
    ByteSize,
    FilePath,
    Flag,
    Many,
    OptionType,
    SecondsOrNone,
    Text,
    Whole,
    Word,
    at_least,
    check_options,
    declared_in,
    more_than,
    option,
    option_as,
)
from shardctl.system.text import format_bytes

if TYPE_CHECKING:
    from shardctl.system.processes.pool import Limits

INPUT_TIMEOUT = 120.0
"""The default time limit of one input, in seconds: a hundred times what an ordinary input takes."""

LEAST_MEMORY = 256 << 20
"""A worker with all its modules has 100 MB, and needs room for the largest image."""


class Labels(OptionType):
    """A word or a path, or a list of these."""

    repeats = True

    def read(self, given: tuple[str, ...]) -> str | list[str]:
        """Return a text that was given once alone, else the list."""
        return list(given) if len(given) > 1 else given[0]

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        several = [value] if isinstance(value, str | Path) else value
        if not isinstance(several, Sequence) or not all(isinstance(each, str | Path) for each in several):
            raise UsageError(f"{name} is a string or a path, or a list of these; it is {value!r}")


class Columns(OptionType):
    """Names of columns: a string with commas between them, or a list."""

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if not isinstance(value, str | Sequence) or not all(isinstance(each, str) for each in value):
            raise UsageError(f"{name} takes a list of names; it is {value!r}")


class Seed(Whole):
    """A seed, or None, which is `none` on the command line."""

    def read(self, given: str) -> int | None:
        """Return the number, or None. Raises UsageError."""
        if given != "none" and not given.isdecimal():
            raise UsageError(f"--shuffle {given!r} is neither a seed (a whole number) nor none")
        return None if given == "none" else int(given)

    def shown(self, default: int | None) -> str:
        """Return the number, or `none`."""
        return "none" if default is None else str(default)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise UsageError(f"a shuffle seed must be a whole number from 0 to 2^63-1; it is {seed}")


def _check_memory(size: int) -> None:
    if size < LEAST_MEMORY:
        raise UsageError(f"a worker needs more than {format_bytes(size)} of memory; give at least 256 MiB")


def _check_part(part: str) -> None:
    from shardctl.build.part import Part

    Part.parse(part)


def _check_max_rejects(limit: str | int) -> None:
    reject_limit(limit, 1)


@dataclass(frozen=True)
class Options:
    """The options of a conversion, beyond its recipe. `check` validates them."""

    labels: str | Path | Sequence[str | Path] = option(
        Labels(),
        "auto",
        "Where labels come from: the folder that a file is in, or a CSV or JSONL with a row per file. auto, the default, takes"
        " metadata.csv, metadata.jsonl, labels.csv or labels.jsonl beside the inputs, else the field label of JSONL lines, else"
        " the folders if there are two or more (docs/inputs.md). Annotations of images, any number of them: coco:FILE,"
        " yolo:data.yaml or yolo:DIR, voc:DIR, masks:DIR, captions: or captions:DIR, imagenet:DIR (docs/annotations.md).",
        metavar="auto|folder|FILE|none|FORMAT:PATH",
        group="labels",
    )
    boxes: str = option(
        Word(*BOXES),
        "keep",
        "Annotated boxes that reach outside of their image: keep them, clip them, or drop their objects.",
        shows_default=True,
        group="labels",
    )
    annotation_frame: str = option(
        Word(*FRAMES),
        "auto",
        "Whether annotations are of the image as it is stored, or as EXIF turns it. auto: by the size that they say.",
        shows_default=True,
        group="labels",
    )
    task: str | None = option(
        Word(*TASKS),
        None,
        "What the lines of YOLO files are. Default: as data.yaml says, else by their length.",
        group="labels",
    )
    lenient_labels: bool = option(
        Flag(),
        False,
        "Accept a labels file that does not match the inputs: rows without a file are skipped, missing values stay empty.",
        group="labels",
    )
    drop_columns: str | Sequence[str] = option(
        Columns(),
        (),
        "Columns of the labels files to leave out; fields of the inputs themselves stay.",
        metavar="A,B,…",
        group="labels",
    )
    split: str = option(
        Text("train=0.9,val=0.1"),
        "auto",
        "train=0.9,val=0.1 splits by a hash of the key; folder takes the top folders, source the names of the SRC, "
        "column the column split of the labels file; auto decides by the names (train, val, test and the like: "
        "docs/inputs.md).",
        metavar="auto|folder|source|column|none|NAME=SHARE,…",
        shows_default=True,
        group="labels",
    )
    shuffle: int | None = option(
        Seed(),
        None,
        "Store the samples of each split in a random order, drawn from SEED.",
        metavar="SEED|none",
        shows_default=True,
        group="shards",
        after="samples_per_shard",
        limit=_check_seed,
    )
    shard_size: int | None = option(
        ByteSize(),
        None,
        "Target size of a shard, for instance 64MiB. Default: 128MiB, and 16 shards or more.",
        metavar="SIZE",
        group="shards",
        limit=at_least(4096, "a shard size of {} bytes is impossible; give at least 4 KiB"),
    )
    samples_per_shard: int | None = option(
        Whole(),
        None,
        "Maximum number of samples in a shard.",
        metavar="N",
        group="shards",
        limit=at_least(1, "{} samples per shard are impossible; give at least 1"),
    )
    workers: int | str = option_as(WORKERS, "auto", group="work")
    engine: str = option(
        Anything(),
        "local",
        "What builds the shards: processes of this machine, or a Ray cluster, on which every node sees SRC and DST at the same"
        " paths (docs/cluster.md). --workers is then the number of shards that are built at a time.",
        metavar=registry.metavar(),
        shows_default=True,
        group="work",
    )
    max_rejects: str | int | None = option(
        Anything(),
        None,
        "Fail with exit code 1 if more inputs than this cannot be converted."
        " Without it, a conversion does not begin if more than half of those that are tried first fail; 100% allows all.",
        metavar="N|P%",
        group="work",
        limit=_check_max_rejects,
    )
    overwrite: bool = option(
        Flag(),
        False,
        "Replace the dataset at DST. The old one stays intact until the new one replaces it.",
        group="target",
    )
    if_running: str = option_as(IF_RUNNING, "wait", group="run")
    worker_memory: int | None = option(
        ByteSize(),
        None,
        "Memory limit of each worker process; inputs that need more are rejected. Default: no limit.",
        metavar="SIZE",
        group="limits",
        after="input_timeout",
        limit=_check_memory,
    )
    input_timeout: float | None = option(
        SecondsOrNone(),
        INPUT_TIMEOUT,
        "Reject an input that takes longer than this.",
        metavar="SECONDS|none",
        shows_default=True,
        group="limits",
        limit=more_than(0, "an input timeout of {:g} seconds is impossible; give more, or none"),
    )
    copy_rejects: str | Path | None = option(
        FilePath(),
        None,
        "Copy the inputs that could not be converted to this folder.",
        metavar="DIR",
        group="work",
    )
    dry_run: bool = option(
        Flag(),
        False,
        "Print what would be done, and write nothing. Fails where the real run would, but for --max-rejects: how many are"
        " rejected is known only in the end.",
        group="run",
    )
    update: bool = option(
        Flag(),
        False,
        "Bring the dataset at DST up to date: only shards of which inputs changed or went are built again, and new inputs fill"
        " new shards. Without a dataset at DST, make one.",
        group="update",
    )
    append: bool = option(
        Flag(),
        False,
        "Add the inputs of SRC to the dataset at DST, in new shards, without a look at those that it has: for logs, crawls and"
        " new days. What lies in a source of the dataset has its key from there. Without a dataset at DST, make one.",
        group="update",
    )
    moved_from: Sequence[str | Path] = option(
        Many(FilePath()),
        (),
        "With --update: where a source was when the dataset was made, if it has moved; once per source, in their order.",
        metavar="OLD",
        spelling="--source",
        group="update",
        after="keep",
    )
    keep: int | None = option(
        Whole(),
        None,
        "Keep the N generations before the one that --update or --append makes, in DST/generations; shards that they share are"
        " there once. Default: as the time before, at first 0.",
        metavar="N",
        group="update",
        limit=at_least(0, "{} generations cannot be kept; give 0 or more"),
    )
    explain: bool = option(
        Flag(),
        False,
        "Print what exactly differs from the dataset at DST: settings, steps, inputs, versions; and write nothing.",
        group="run",
    )
    metrics: Sequence[str | Path] = option_as(METRICS, (), group="run")
    part: str | None = option(
        Anything(),
        None,
        "Build part I of N of the shards, on any machine that sees SRC and DST; then `shardctl merge DST`. The first part"
        " plans the conversion for all. I is 1 to N, or 0 to N-1 (docs/cluster.md).",
        metavar="I/N",
        group="part",
        limit=_check_part,
    )

    def check(self) -> None:
        """Raise UsageError for impossible numbers and for options that contradict each other."""
        _refuse_two_sizes(self.shard_size, self.samples_per_shard)
        check_options(self)
        registry.check(self.engine, self.workers)
        ways = [f"--{name}" for name in ("update", "append", "overwrite") if getattr(self, name)]
        if len(ways) > 1:
            raise UsageError(f"{' and '.join(ways)} contradict each other; use one of them")
        if self.moved_from and not self.update:
            raise UsageError("--source says where sources were that --update follows; use both")
        if self.part is not None:
            self._check_with_part()
        if self.workers == 0 and self.worker_memory is not None:
            raise UsageError("a limit of worker memory needs worker processes; with 0 workers there are none")

    def _check_with_part(self) -> None:
        for name in ("dry_run", "explain"):
            if getattr(self, name):
                raise UsageError(f"--{name.replace('_', '-')} looks at the whole conversion; leave out --part")
        if self.copy_rejects is not None:
            raise UsageError("--copy-rejects needs a complete conversion; leave it out of the parts")

    def limits(self) -> Limits:
        """Return the limits of the work on one input."""
        from shardctl.system.processes.pool import Limits

        return Limits(self.worker_memory, self.input_timeout)

    def worker_count(self) -> int:
        """Return the number of worker processes."""
        from shardctl.system.processes.pool import most_workers

        return most_workers() if self.workers == "auto" else int(self.workers)


def check_shards(shard_size: int | None, samples_per_shard: int | None) -> None:
    """Raise UsageError for a size of shards (bytes, samples) that cannot be, or for two."""
    _refuse_two_sizes(shard_size, samples_per_shard)
    declared = declared_in(Options)
    declared["shard_size"].check("shard_size", shard_size)
    declared["samples_per_shard"].check("samples_per_shard", samples_per_shard)


def _refuse_two_sizes(shard_size: int | None, samples_per_shard: int | None) -> None:
    if shard_size is not None and samples_per_shard is not None:
        raise UsageError("a shard size and a number of samples per shard contradict each other; give one of them")


def check_if_running(choice: str) -> None:
    """Raise UsageError for an unknown choice of what to do while another converter runs."""
    IF_RUNNING.check("if_running", choice)


_SHARE = re.compile(r"0?\.[0-9]+|1\.0*")
"""A number that may be meant as a share: 0.9 for 90%."""


def reject_limit(given: str | int | None, inputs: int) -> float:
    """Return the largest number of rejects that is accepted, from `N` or `P%`. Raises UsageError."""
    if given is None:
        return inputs
    text = str(given)
    number = text.removesuffix("%")
    if not number.replace(".", "", 1).isdecimal() or (not text.endswith("%") and not number.isdecimal()):
        shares = f"; for that share of them write {100 * float(text):g}%" if _SHARE.fullmatch(text) else ""
        raise UsageError(f"--max-rejects {text!r} is not a number of inputs (100) or a share of them (1%){shares}")
    if text.endswith("%") and float(number) > 100:
        raise UsageError(f"--max-rejects {text}: a share is at most 100%")
    return float(number) / 100 * inputs if text.endswith("%") else float(number)
