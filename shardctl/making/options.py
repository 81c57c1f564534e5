"""The options of a conversion: what the command line, Python and the checks know of each. For
sources and DST see paths.py.

The command line imports this module before Arrow: each check imports what it needs when it is
called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.errors import UsageError
from shardctl.images.defaults import BOXES, FRAMES, TASKS
from shardctl.loader.options import METRICS
from shardctl.making.shards import engines
from shardctl.sources.format_table import Subject
from shardctl.system.arguments import contradiction
from shardctl.system.options import (
    AutoOrNumber,
    ByteSize,
    FilePath,
    Flag,
    Many,
    Option,
    SecondsOrNone,
    ValueType,
    Whole,
    Word,
    Written,
    at_least,
    check_options,
    declared_in,
    option,
    option_as,
    taken_arguments,
)
from shardctl.transforms.recipe_options import (
    LABELS,
    OUTPUT,
    RECIPE_OPTIONS,
    REJECTS,
    RUNNING,
    SPLITS,
    STEP_OPTIONS,
    STORAGE,
    TARGET,
)
from shardctl.transforms.settings import NAMES

MOST_PARTS = 1_000_000


@dataclass(frozen=True)
class Part:
    """Part `number` of `parts` of a conversion, counted from 0. `typed` is how the user wrote it,
    "" where nobody did."""

    number: int
    parts: int
    typed: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read I/N, where I counts from 1 to N, or from 0 to N-1: part 0 is part N. Raises
        UsageError."""
        found = re.fullmatch(r"([0-9]+)/([0-9]+)", str(text))
        if found is None:
            raise UsageError(f"a part is I/N, for instance 2/8; it is {text!r}")
        number, parts = map(int, found.groups())
        if not 1 <= parts <= MOST_PARTS or number > parts:
            raise UsageError(
                f"no part {text}: N is 1 to {MOST_PARTS:,}, and I is 1 to N or 0 to N-1"
            )
        return cls((number - 1) % parts, parts, f"{number}/{parts}")

    @property
    def name(self) -> str:
        """I/N, where I counts from 1: the same name for the same part, however it was written."""
        return f"{self.number + 1}/{self.parts}"

    def __str__(self) -> str:
        return self.typed or self.name


WORKERS = Option(
    AutoOrNumber(0, 1024),
    "auto",
    "Number of worker processes; 0 works in this process.",
    metavar="auto|N",
    shows_default=True,
)
IF_RUNNING = Option(
    Word("wait", "fail"),
    "wait",
    "What to do while another shardctl writes DST.",
    shows_default=True,
)


if TYPE_CHECKING:
    from shardctl.system.processes.pool import Limits

INPUT_TIMEOUT = 120.0
"""The default time limit of one input, in seconds: a hundred times what an ordinary input takes."""

LEAST_MEMORY = 256 << 20
"""A worker with all its modules has 100 MB, and needs room for the largest image."""


class Paths(ValueType):
    """A word or a path, or a list of these."""

    repeats = True
    python = "str | Path | Sequence[str | Path]"

    def of_text(self, given: tuple[str, ...]) -> str | list[str]:
        """Return a text that was given once alone, else the list."""
        return list(given) if len(given) > 1 else given[0]

    def read(self, value: Any) -> Any:
        """Return it."""
        several = [value] if isinstance(value, Path) else value
        if not isinstance(several, Sequence) or not all(
            isinstance(each, str | Path) for each in several
        ):
            raise ValueError(
                "must be a string or a path, or a list of these; shardctl.write takes samples"
            )
        return value


class Seed(Whole):
    """A seed, or None, which is `none` on the command line. True is the seed 0, and False is
    None."""

    python = "int | bool | None"
    bare = "0"

    def of_text(self, given: str) -> int | None:
        """Return the number, or None. Raises ValueError."""
        if given != "none" and not given.isdecimal():
            raise ValueError(
                f"{given!r} is neither a seed (a whole number) nor none; without a value the seed "
                "is 0"
            )
        return None if given == "none" else int(given)

    def take(self, name: str, value: Any) -> Any:
        """Return the seed for True and False."""
        return (0 if value else None) if isinstance(value, bool) else value

    def shown(self, default: int | None) -> str:
        """Return the number, or `none`."""
        return "none" if default is None else str(default)


def _check_max_rejects(limit: str | int) -> None:
    reject_limit(limit, 1)


@dataclass(frozen=True)
class Options:
    """The options of a conversion, beyond its recipe. `check` validates them."""

    labels: str | Path | Sequence[str | Path] = option(
        Paths(),
        "auto",
        "Where labels come from. folder: each file's folder. A CSV, JSON or JSONL file: its row for "
        "each file. none: no labels. auto, the default: metadata.csv, .jsonl or .parquet, "
        "labels.csv or .jsonl beside the inputs, else the field label of JSONL lines, else the "
        "folders if there are several (`shardctl help labels`). Annotations of images, any "
        "number: coco:FILE, yolo:data.yaml or yolo:DIR, voc:DIR, masks:DIR or "
        "masks+suffix=_mask:DIR, captions: or captions:DIR or captions:FILE, imagenet:DIR "
        "(`shardctl help annotations`).",
        metavar="WHERE",
        heading=LABELS,
        brief="coco:FILE, yolo:FILE, voc:DIR, a CSV, or folder",
    )
    boxes_outside: str = option(
        Word(*BOXES),
        "keep",
        "Boxes that reach outside of their image: keep them, clip them, or drop their objects.",
        shows_default=True,
        about=(Subject.BOXES,),
        heading=LABELS,
    )
    annotation_frame: str = option(
        Word(*FRAMES),
        "auto",
        "Which image the annotations fit: stored, as the file has it; upright, after the turn "
        "that EXIF asks for; auto, by the image size in the annotations.",
        shows_default=True,
        about=(Subject.BOXES, Subject.MASKS),
        heading=LABELS,
    )
    yolo_task: str | None = option(
        Word(*TASKS),
        None,
        "What each line of a YOLO file has: a box (detect), a polygon (segment), keypoints "
        "(pose) or a rotated box (obb). Default: the task in data.yaml, else by the length of "
        "the line.",
        heading=LABELS,
    )
    classes: str | Path | None = option(
        FilePath(),
        None,
        "Names and numbers of the classes: a text file with one in each line, or a dataset of "
        "shardctl. Others are refused.",
        metavar="FILE|DATASET",
        heading=LABELS,
    )
    lenient_labels: bool = option(
        Flag(),
        False,
        "Accept a labels file that does not match the inputs: skip rows without a file, and "
        "leave missing values empty.",
        about=(Subject.LABELS_FILES,),
        heading=LABELS,
    )
    drop_columns: str | Sequence[str] = option(
        NAMES,
        (),
        "Columns of the labels files to leave out; fields of the inputs stay.",
        about=(Subject.LABELS_FILES,),
        metavar="A,B,…",
        heading=LABELS,
    )
    split: str = option(
        Written("str | Mapping[str, float]", example="train=0.9,val=0.1"),
        "auto",
        "What makes the splits. train=0.9,val=0.1: a hash of the key. folder: the top folders. "
        "source: the names of the SRC. column: the column split of the labels file. lists: "
        "data.yaml, COCO files, train.txt and test.txt. none: one split. auto: names such as "
        "train, val and test (`shardctl help splits`).",
        metavar="HOW",
        shows_default=True,
        heading=SPLITS,
        brief="train=0.9,val=0.1, or folder, or source",
    )
    shuffle: int | None = option(
        Seed(0, 2**63 - 1),
        None,
        "Store each split in a random order; without a value, the seed is 0. Lines and rows are "
        "mixed in pieces of their files (`shardctl help inputs`). The loader's shuffle mixes "
        "all samples.",
        metavar="[SEED|none]",
        shows_default=True,
        heading=SPLITS,
        brief="in random order",
    )
    shard_size: int | None = option(
        ByteSize(),
        None,
        "Target size of a shard, for instance 64MiB. Default: 128MiB, and 16 shards or more.",
        metavar="SIZE",
        heading=STORAGE,
        limit=at_least(
            4096, "a shard size of {} bytes is impossible; give at least 4 KiB, such as 64MiB"
        ),
    )
    samples_per_shard: int | None = option(
        Whole(1),
        None,
        "Maximum number of samples in a shard.",
        metavar="N",
        heading=STORAGE,
    )
    workers: int | str = option_as(
        WORKERS,
        "auto",
        heading=RUNNING,
        brief="worker processes, one for each core by default",
    )
    engine: str = option(
        ValueType(),
        "local",
        "Where shards are built: local, in processes of this machine; ray, on a Ray cluster "
        "whose nodes all see SRC and DST at the same paths (`shardctl help cluster`), --workers "
        "shards at a time.",
        metavar=engines.metavar(),
        shows_default=True,
        heading=RUNNING,
    )
    max_rejects: str | int | None = option(
        ValueType("int | str"),
        None,
        "Fail with exit code 1 if more inputs than this cannot be converted; 100% allows all. "
        "Without it, a conversion does not start if over half of a first trial fail.",
        metavar="N|P%",
        heading=REJECTS,
        limit=_check_max_rejects,
    )
    overwrite: bool = option(
        Flag(),
        False,
        "Replace the dataset at DST, which stays intact until the new one is complete.",
        heading=TARGET,
        brief="replace the dataset at DST",
    )
    if_running: str = option_as(IF_RUNNING, "wait", heading=TARGET)
    worker_memory: int | None = option(
        ByteSize(),
        None,
        "Memory limit of each worker process; inputs that need more are rejected. Default: no "
        "limit.",
        metavar="SIZE",
        heading=RUNNING,
        limit=at_least(LEAST_MEMORY, "a worker needs 256 MiB of memory or more; it is {} bytes"),
    )
    input_timeout: float | None = option(
        SecondsOrNone(0, above=True),
        INPUT_TIMEOUT,
        "Reject an input that takes longer than this.",
        metavar="SECONDS|none",
        shows_default=True,
        heading=RUNNING,
    )
    copy_rejects: str | Path | None = option(
        FilePath(),
        None,
        "Copy the inputs that could not be converted to this folder.",
        metavar="DIR",
        heading=REJECTS,
    )
    dry_run: bool = option(
        Flag(),
        False,
        "Print what the command would do, with all errors but that of --max-rejects, and write "
        "nothing.",
        heading=OUTPUT,
        brief="print the plan, and write nothing",
    )
    update: bool = option(
        Flag(),
        False,
        "Bring the dataset at DST up to date: shards with changed or deleted inputs are built "
        "again; new inputs fill empty shards, the last one, then new ones. Alone, it takes the "
        "recipe, labels and splits of DST. Without a dataset, make one.",
        heading=TARGET,
        brief="follow changes of the source",
    )
    append: bool = option(
        Flag(),
        False,
        "Add the inputs of SRC to the dataset at DST, in new shards. Those that DST has are not "
        "checked: for logs, crawls and new days. Files inside a source of the dataset get the "
        "keys they would have there. Without a dataset, make one.",
        heading=TARGET,
    )
    moved_from: Sequence[str | Path] = option(
        Many(FilePath()),
        (),
        "With --update, if a source has moved: its place when the dataset was made, once for "
        "each source, in order.",
        metavar="OLD",
        heading=TARGET,
    )
    keep_generations: int | None = option(
        Whole(0),
        None,
        "Keep the N generations before the new one for their readers. 0: delete at once what "
        "only they have. Shared shards are stored once. Default: as last time; 1 for a new dataset.",
        metavar="N",
        heading=TARGET,
    )
    explain: bool = option(
        Flag(),
        False,
        "Print how the request differs from the dataset at DST (settings, steps, inputs, "
        "versions), and write nothing.",
        heading=TARGET,
    )
    metrics: Sequence[str | Path] = option_as(METRICS, (), heading=RUNNING)
    part: str | None = option(
        ValueType(),
        None,
        "Build part I of N of the shards, on any machine that sees SRC and DST; then `shardctl "
        "finish DST`. The first part"
        " plans the conversion for all. I is 1 to N, or 0 to N-1 (`shardctl help cluster`).",
        metavar="I/N",
        heading=RUNNING,
        limit=Part.parse,
    )

    def check(self) -> None:
        """Raise UsageError for impossible numbers and for options that contradict each other."""
        if self.shard_size is not None and self.samples_per_shard is not None:
            raise contradiction("--shard-size", "--samples-per-shard")
        check_options(self)
        engines.check(self.engine, self.workers)
        ways = [f"--{name}" for name in ("update", "append", "overwrite") if getattr(self, name)]
        if len(ways) > 1:
            raise contradiction(*ways)
        if self.moved_from and not self.update:
            raise UsageError(
                "--moved-from says where a source was when the dataset was made; it needs "
                "--update: use both"
            )
        for name in ("dry_run", "explain") if self.part is not None else ():
            if getattr(self, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} looks at the whole conversion; leave out --part"
                )
        if self.part is not None and self.copy_rejects is not None:
            raise UsageError(
                "--copy-rejects needs a complete conversion; leave it out of the parts"
            )
        if self.workers == 0 and self.worker_memory is not None:
            raise UsageError(
                "a limit of worker memory needs worker processes; with 0 workers there are none"
            )

    def limits(self) -> Limits:
        """Return the limits of the work on one input."""
        from shardctl.system.processes.pool import Limits

        return Limits(self.worker_memory, self.input_timeout)


def convert_options() -> dict[str, Option]:
    """Return all options of a conversion, by their names: the words of the command line and of
    Python."""
    return {**STEP_OPTIONS, **declared_in(Options), **RECIPE_OPTIONS}


def chosen_options(
    function: str, recipe: Mapping[str, Any] | str | Path | None, given: Mapping[str, Any]
) -> tuple[Options, dict[str, Any]]:
    """Return the options of a conversion, and the recipe with what options change in it.

    `given` are those of `convert_options`. Raises UsageError, also for a name that no option has;
    it names the `function`.
    """
    from shardctl.transforms.recipe_files.overriding import recipe_with_options

    taken = taken_arguments(function, given, convert_options())
    names = [name for name in declared_in(Options) if name in taken]
    return Options(**{name: taken[name] for name in names}), recipe_with_options(recipe, taken)


def reject_limit(given: str | int | None, inputs: int) -> float:
    """Return the largest number of rejects that is accepted, from `N` or `P%`. Raises
    UsageError."""
    if given is None:
        return inputs
    text = str(given).replace(" %", "%")
    number, is_share = text.removesuffix("%"), text.endswith("%")
    if not number.replace(".", "", is_share).isdecimal():
        raise UsageError(
            f"--max-rejects {text!r} is not a number of inputs (100) or a share of them (1%)"
        )
    if is_share and float(number) > 100:
        raise UsageError(f"--max-rejects {text}: a share is at most 100%")
    return float(number) / 100 * inputs if is_share else float(number)
