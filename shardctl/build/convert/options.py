"""The options of a conversion and their checks: numbers, contradictions, sources, destination."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardctl.build.shards.engines import registry
from shardctl.errors import DatasetError, InputError, NotPermittedError, StorageError, UsageError
from shardctl.format.names import BESIDE_SHARDS, GENERATIONS, MANIFEST, REPLACED, STAGING, is_shard_name
from shardctl.loader.metrics import check_target
from shardctl.sources.remote import remote_files
from shardctl.sources.walk import recorded
from shardctl.system.arguments import whole_number
from shardctl.system.files import naming_the_path, refuse_links
from shardctl.system.processes.pool import Limits, most_workers
from shardctl.system.remote_paths import path_of
from shardctl.system.schemes import SCHEMES
from shardctl.system.stores import is_url, parts_of
from shardctl.system.text import format_bytes, printable

IF_RUNNING = ("wait", "fail")
INPUT_TIMEOUT = 120.0
"""The default time limit of one input, in seconds: a hundred times what an ordinary input takes."""

MOST_PARTS = 1_000_000

LEAST_MEMORY = 256 << 20
"""A worker with all its modules has 100 MB, and needs room for the largest image."""


@dataclass(frozen=True)
class Part:
    """Part `number` of `parts` of a conversion, counted from 0."""

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read I/N, where I counts from 1 to N, or from 0 to N-1: part 0 is part N. Raises UsageError."""
        number, slash, parts = str(text).partition("/")
        if not (slash and number.isascii() and number.isdecimal() and parts.isascii() and parts.isdecimal()):
            raise UsageError(f"a part is I/N, for instance 2/8; it is {text!r}")
        if not 1 <= int(parts) <= MOST_PARTS or int(number) > int(parts):
            raise UsageError(f"there is no part {text}: N is 1 to {MOST_PARTS:,}, and I from 1 to N or from 0 to N-1")
        return cls((int(number) - 1) % int(parts), int(parts))

    @property
    def ordinal(self) -> int:
        """The number of the part, counted from 1."""
        return self.number + 1

    def __str__(self) -> str:
        return f"{self.ordinal} of {self.parts}"


@dataclass(frozen=True)
class Options:
    """The options of a conversion, beyond its recipe. `check` validates them."""

    labels: str | Path | Sequence[str | Path] = "auto"
    boxes: str = "keep"
    annotation_frame: str = "auto"
    task: str | None = None
    lenient_labels: bool = False
    drop_columns: str | Sequence[str] = ()
    split: str = "auto"
    shuffle: int | None = None
    shard_size: int | None = None
    samples_per_shard: int | None = None
    workers: int | str = "auto"
    engine: str = registry.LOCAL
    max_rejects: str | int | None = None
    overwrite: bool = False
    if_running: str = "wait"
    worker_memory: int | None = None
    input_timeout: float | None = INPUT_TIMEOUT
    copy_rejects: str | Path | None = None
    dry_run: bool = False
    update: bool = False
    append: bool = False
    moved_from: Sequence[str | Path] = ()
    keep: int | None = None
    explain: bool = False
    metrics: Sequence[str | Path] = ()
    part: str | None = None

    def check(self) -> None:
        """Raise UsageError for impossible numbers and for options that contradict each other."""
        check_shards(self.shard_size, self.samples_per_shard)
        self._check_types()
        if self.workers != "auto" and not (isinstance(self.workers, int) and 0 <= self.workers <= 1024):
            raise UsageError(f"workers must be auto or a number from 0 to 1024; it is {self.workers!r}")
        registry.check(self.engine, self.workers)
        if self.shuffle is not None and not 0 <= self.shuffle < 2**63:
            raise UsageError(f"a shuffle seed must be a whole number from 0 to 2^63-1; it is {self.shuffle}")
        ways = [f"--{name}" for name in ("update", "append", "overwrite") if getattr(self, name)]
        if len(ways) > 1:
            raise UsageError(f"{' and '.join(ways)} contradict each other; use one of them")
        if self.moved_from and not self.update:
            raise UsageError("--source says where sources were that --update follows; use both")
        if self.keep is not None and self.keep < 0:
            raise UsageError(f"{self.keep} generations cannot be kept; give 0 or more")
        if self.part is not None:
            self._check_part(self.part)
        reject_limit(self.max_rejects, 1)
        check_if_running(self.if_running)
        if self.worker_memory is not None and self.worker_memory < LEAST_MEMORY:
            raise UsageError(f"a worker needs more than {format_bytes(self.worker_memory)} of memory; give at least 256 MiB")
        if self.input_timeout is not None and not self.input_timeout > 0:
            raise UsageError(f"an input timeout of {self.input_timeout:g} seconds is impossible; give more, or none")
        if self.workers == 0 and self.worker_memory is not None:
            raise UsageError("a limit of worker memory needs worker processes; with 0 workers there are none")

    def _check_part(self, part: str) -> None:
        Part.parse(part)
        for name in ("dry_run", "explain"):
            if getattr(self, name):
                raise UsageError(f"--{name.replace('_', '-')} looks at the whole conversion; leave out --part")
        if self.copy_rejects is not None:
            raise UsageError("--copy-rejects needs a complete conversion; leave it out of the parts")

    def _check_types(self) -> None:
        """Raise UsageError for values of another type than they have."""
        if not isinstance(self.split, str):
            raise UsageError(f"split is a string such as 'train=0.9,val=0.1'; it is {self.split!r}")
        for name in ("keep", "shuffle"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        labels = [self.labels] if isinstance(self.labels, str | Path) else self.labels
        if not isinstance(labels, Sequence) or not all(isinstance(each, str | Path) for each in labels):
            raise UsageError(f"labels is a string or a path, or a list of these; it is {self.labels!r}")
        if isinstance(self.moved_from, str | Path):
            raise UsageError(f"moved_from takes a list; write moved_from=[{str(self.moved_from)!r}]")
        if isinstance(self.metrics, str | Path):
            raise UsageError(f"metrics takes a list; write metrics=[{str(self.metrics)!r}]")
        for target in self.metrics:
            check_target(target)

    def limits(self) -> Limits:
        """Return the limits of the work on one input."""
        return Limits(self.worker_memory, self.input_timeout)

    def worker_count(self) -> int:
        """Return the number of worker processes."""
        return most_workers() if self.workers == "auto" else int(self.workers)


def check_shards(shard_size: int | None, samples_per_shard: int | None) -> None:
    """Raise UsageError for a size of shards (bytes, samples) that cannot be, or for two."""
    if shard_size is not None and samples_per_shard is not None:
        raise UsageError("a shard size and a number of samples per shard contradict each other; give one of them")
    for name, value in (("shard_size", shard_size), ("samples_per_shard", samples_per_shard)):
        if value is not None:
            whole_number(name, value)
    if shard_size is not None and shard_size < 4096:
        raise UsageError(f"a shard size of {shard_size} bytes is impossible; give at least 4 KiB")
    if samples_per_shard is not None and samples_per_shard < 1:
        raise UsageError(f"{samples_per_shard} samples per shard are impossible; give at least 1")


def check_if_running(choice: str) -> None:
    """Raise UsageError for an unknown choice of what to do while another converter runs."""
    if choice not in IF_RUNNING:
        raise UsageError(f"if running must be {' or '.join(IF_RUNNING)}; it is {choice!r}")


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


def source_path(source: str | Path) -> Path:
    """Return the path of a source, or what stands for one on a store. Raises UsageError for what is no URL of a store."""
    if is_url(source):
        parts_of(str(source))
    return path_of(source)


def check_sources(src: Iterable[str | Path]) -> list[Path]:
    """Return the sources as paths; those on stores will be listed anew. Raises InputError for one that does not exist."""
    remote_files.forget_lists()
    roots = [source_path(source) for source in src]
    if not roots:
        raise UsageError("no source was given")
    for root in roots:
        shown = printable(str(root))
        try:
            if remote_files.is_brought(root):
                _check_on_store(root)
                continue
            if not root.exists():
                raise InputError(f"{shown}: no such file or folder")
            if not root.is_dir() and not root.is_file():
                raise InputError(f"{shown}: neither a file nor a folder")
        except OSError as error:  # a name that is too long, or a parent folder without permission
            raise InputError(f"{shown}: cannot be read ({error.strerror})") from error
    return roots


def _check_on_store(root: Path) -> None:
    """Raise InputError if there is nothing at a path that stands for an object, or for a folder of them."""
    try:
        if remote_files.is_folder(root):
            return
    except NotPermittedError:  # one object can be read without the permission to list the others
        if remote_files.is_one_object(root):
            return
        raise
    if not remote_files.is_one_object(root):
        raise InputError(f"{printable(str(root))}: there is no such object, and none whose key begins so")


def check_quarantine(folder: Path, target: Path, roots: list[Path]) -> None:
    """Raise UsageError if copies of rejected inputs would become inputs, replace inputs, or lie in a dataset.

    A source that is a file has its folder as its base: a copy there would replace the file itself.
    """
    resolved, shown = folder.resolve(), printable(str(folder))
    local = [root.resolve() for root in roots if not remote_files.is_brought(root)]
    bases = [root if root.is_dir() else root.parent for root in local]
    inside = next((other for other in (target, *local) if resolved.is_relative_to(other)), None)
    around = next((other for other in (target, *bases) if other.is_absolute() and other.is_relative_to(resolved)), None)
    if inside is not None or (folder.exists() and not folder.is_dir()):
        raise UsageError(
            f"{shown}: rejects can be copied to a folder of their own, not into {printable(str(inside or folder))}"
        )
    if around is not None:
        raise UsageError(
            f"{shown}: rejects can be copied to a folder of their own, and {printable(str(around))} is this folder or in it"
        )
    if any(os.path.lexists(resolved / name) for name in (MANIFEST, STAGING)):
        raise UsageError(f"{shown}: a dataset; rejects can be copied to a folder of their own")


def refuse_generation(target: Path) -> None:
    """Raise DatasetError for a generation of a dataset that is kept: it stays what it was."""
    if target.parent.name == GENERATIONS and (target.parent.parent / MANIFEST).exists():
        dataset = printable(str(target.parent.parent))
        raise DatasetError(
            f"{printable(str(target))}: a kept generation of {dataset}, which stays as it was; give that dataset, or another"
            " destination"
        )


def check_destination(target: Path, roots: list[Path]) -> Path:
    """Return the absolute path of the destination. Raises UsageError or StorageError if it cannot be one."""
    shown = printable(str(target))
    scheme, colon, rest = str(target).partition(":")
    if colon and scheme in SCHEMES:
        raise UsageError(f"{shown}: is no URL, and would be a folder here; write {scheme}://{printable(rest.lstrip('/'))}")
    try:
        resolved = target.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to themselves
        raise StorageError(f"{shown}: cannot be a destination ({error})") from error
    for root in roots:
        source = root.resolve()
        if resolved == source or resolved.is_relative_to(source):
            raise UsageError(f"{shown}: is inside the source {printable(str(root))}, and would become its own input")
        if source.is_relative_to(resolved):
            raise UsageError(f"{printable(str(root))}: is inside the destination {shown}; keep them apart")
    with naming_the_path(target):
        if resolved.is_symlink():  # Python 3.13 resolves a link that leads to itself to that link
            raise StorageError(f"{shown}: cannot be a destination (a link that leads to itself)")
        _refuse_what_is_there(target, shown)
    refuse_generation(resolved)
    return resolved


def check_place_on_store(url: str, roots: list[Path], options: Options) -> None:
    """Raise UsageError if a dataset at this URL would become its own input, or cannot be as it is wanted there."""
    shown = printable(url)
    if options.keep:
        raise UsageError(f"{shown}: kept generations are not supported on a store; leave out --keep")
    place = f"{url.rstrip('/')}/"
    for source in (f"{recorded(root)}/" for root in roots):
        if place.startswith(source):
            raise UsageError(f"{shown}: is inside the source {printable(source[:-1])}, and would become its own input")
        if source.startswith(place):
            raise UsageError(f"{printable(source[:-1])}: is inside the destination {shown}; keep them apart")


def _refuse_what_is_there(target: Path, shown: str) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise StorageError(f"{shown}: is a file; the destination must be a folder that is new, empty or a dataset")
    names = set(os.listdir(target))
    if names and MANIFEST not in names and STAGING not in names:
        listed = ", ".join(printable(name) for name in sorted(names)[:3])
        raise StorageError(f"{shown}: holds something else ({listed}); give a folder that is new, empty or a dataset")
    of_dataset = sorted(name for name in names if name in BESIDE_SHARDS or is_shard_name(name))
    if of_dataset and MANIFEST not in names and not any((target / STAGING).glob(f"*/{REPLACED}")):
        raise StorageError(
            f"{shown}: has files of a dataset ({printable(of_dataset[0])}), but no {MANIFEST}; bring that back, move the files"
            " away, or give another destination"
        )


def check_writable(target: Path) -> None:
    """Raise StorageError if the destination cannot be made or written. Writes nothing."""
    place = next(folder for folder in (target, *target.parents) if os.path.lexists(folder))
    if not place.is_dir():
        raise StorageError(f"{printable(str(target))}: cannot be created, {printable(str(place))} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        why = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        raise StorageError(f"{printable(str(target))}: cannot write here ({os.strerror(why)})")
    with naming_the_path(target):
        refuse_links(target / STAGING)
