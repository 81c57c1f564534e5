"""Raw inputs to a committed dataset: list, estimate, plan, build the shards, commit."""

from __future__ import annotations

import datetime
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardctl import lease
from shardctl.codecs import backend
from shardctl.conversion.commit import Commit, Committed
from shardctl.conversion.options import Options, check_destination, check_sources, reject_limit, usable_cores
from shardctl.conversion.probe import Estimate, Probe, probe_inputs
from shardctl.engines import local
from shardctl.engines.job import DONE_FOLDER, SHARDS_FOLDER, Job
from shardctl.engines.task import Progress
from shardctl.errors import DatasetError, StorageError, TooManyRejectsError
from shardctl.fingerprint import fingerprint, fingerprint_parts
from shardctl.listing import LabelRule, Listing, detect_kind, list_inputs
from shardctl.manifest import MANIFEST, PLAN, REJECTS, STAGING, Manifest, Reject, read_rejects
from shardctl.plan import (
    Labelling,
    Planner,
    PlanSettings,
    SplitPlan,
    SplitRule,
    label_inputs,
    order_inputs,
    split_inputs,
)
from shardctl.recipe import Recipe, load_recipe
from shardctl.sources import SOURCES
from shardctl.storage import format_bytes, free_bytes, printable
from shardctl.version import __version__

SHARD_BYTES = 128 << 20
"""Size that a shard is aimed at where nothing else is said. Peers' defaults and advice: 50 to 150 MB."""

FEWEST_SHARDS = 16
"""A small dataset is still cut into so many shards (of SMALLEST_SHARD_ROWS or more), so that workers have work to share."""

SMALLEST_SHARD_ROWS = 8

SHOWN_REJECTS = 3
"""Rejects that the result holds as examples."""

SPARE_DISK = 1.05
"""Disk that is asked for, per byte that the probe foretells."""


@dataclass(frozen=True)
class ConvertResult:
    """What a conversion did. `status` is created, updated, up-to-date or planned (a dry run)."""

    status: str
    samples: int
    shards: int
    bytes: int
    rejected: int
    seconds: float
    samples_per_s: float
    fingerprint: str
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()
    estimate: Estimate | None = None


@dataclass(frozen=True)
class Listener:
    """Whom to tell how far a conversion is."""

    listing: Callable[[int], None] = lambda inputs: None
    announce: Callable[[Estimate], None] = lambda estimate: None
    progress: Callable[[Progress], None] = lambda progress: None


def convert(
    src: str | Path | Sequence[str | Path],
    dst: str | Path,
    recipe: dict[str, Any] | str | Path | None = None,
    listener: Listener | None = None,
    **options: Any,
) -> ConvertResult:
    """Convert the inputs under `src` into a dataset at `dst`.

    `recipe` is the path of a TOML file or the same settings as a dict (docs/recipes.md); `options` are those of Options.
    Raises the errors of shardctl.errors: UsageError, InputError, StorageError, DatasetError, BusyError, WorkerError,
    TooManyRejectsError.
    """
    started = time.monotonic()
    chosen = Options(**options)
    chosen.check()
    split = SplitRule.parse(chosen.split)
    settings = dict(recipe) if isinstance(recipe, dict) else load_recipe(Path(recipe)) if recipe else {}
    roots = check_sources([src] if isinstance(src, str | Path) else src)
    target = check_destination(Path(dst), roots)
    if settings.get("kind") in (None, "auto"):
        settings["kind"] = detect_kind(roots, [make() for make in SOURCES.values()])
    checked = Recipe.from_settings(settings)
    if checked.kind == "image":
        backend.require_one()
    plan_settings = PlanSettings(split, LabelRule.parse(chosen.labels, chosen.lenient_labels), chosen.shuffle, checked.seed)
    conversion = _Conversion(roots, target, checked, plan_settings, chosen, listener or Listener(), started)
    return conversion.run()


class _Conversion:
    """One call of `convert`: what its steps share."""

    def __init__(
        self,
        roots: list[Path],
        target: Path,
        recipe: Recipe,
        settings: PlanSettings,
        options: Options,
        listener: Listener,
        started: float,
    ) -> None:
        self.roots, self.target, self.recipe = roots, target, recipe
        self.settings, self.options, self.listener, self.started = settings, options, listener, started
        self.staging = target / STAGING
        self.bases = tuple(str((root if root.is_dir() else root.parent).resolve()) for root in roots)

    def run(self) -> ConvertResult:
        """List the inputs, and convert them unless the same dataset is there already."""
        with tempfile.TemporaryDirectory(prefix="shardctl-") as folder, self._engine() as engine:
            path = Path(folder) / "listing.arrow"
            source = SOURCES[self.recipe.kind]()
            listing = list_inputs(self.roots, source, self.settings.labels, path, self.listener.listing)
            parts = fingerprint_parts(listing, self.recipe, self._recorded_settings())
            existing = self._existing(parts)
            return self._up_to_date(existing) if existing else self._build(listing, parts, engine)

    def _recorded_settings(self) -> dict[str, Any]:
        sizes = {"shard_size": self.options.shard_size, "samples_per_shard": self.options.samples_per_shard}
        return {**self.settings.record(), **sizes}

    def _existing(self, parts: dict[str, str]) -> Manifest | None:
        """Return the manifest if the same dataset is already there. Raises DatasetError if another one is."""
        if not (self.target / MANIFEST).exists():
            return None
        if self.options.overwrite:
            return None
        manifest = Manifest.load(self.target)
        if manifest.fingerprint == fingerprint(parts):
            return manifest
        differ = [name for name, digest in parts.items() if manifest.fingerprint_parts.get(name) != digest]
        raise DatasetError(
            f"{printable(str(self.target))}: holds a dataset made from other {' and '.join(differ)};"
            " use --overwrite to replace it, or another destination"
        )

    def _up_to_date(self, manifest: Manifest) -> ConvertResult:
        seconds = time.monotonic() - self.started
        facts = (manifest.samples, manifest.shards, manifest.bytes, manifest.rejected)
        return ConvertResult("up-to-date", *facts, seconds, 0.0, manifest.fingerprint)

    @contextmanager
    def _engine(self) -> Iterator[local.Engine]:
        """Start the workers first of all: they import their modules while the inputs are listed and the plan is made."""
        complete = (self.target / MANIFEST).exists() and not self.options.overwrite
        engine = local.start(0 if complete or self.options.dry_run else self.options.worker_count())
        try:
            yield engine
        finally:
            engine.close()

    def _build(self, listing: Listing, parts: dict[str, str], engine: local.Engine) -> ConvertResult:
        splitting = split_inputs(listing, self.settings)
        labelling = label_inputs(listing, self.settings, splitting.by_folder)
        order = order_inputs(splitting, self.settings.shuffle)
        planner = Planner(listing, order, labelling, self.recipe.variants)
        probe = probe_inputs(planner, self.recipe, self.bases, labelling, listing)
        splits = tuple(
            SplitPlan(name, rows := count * self.recipe.variants, self._shards_of(rows, probe.bytes_per_sample))
            for name, count in zip(splitting.names, order.counts, strict=True)
        )
        estimate = self._estimate(listing, labelling, splits, probe)
        self.listener.announce(estimate)
        if estimate.bytes * SPARE_DISK > estimate.free_bytes:
            raise StorageError(
                f"{printable(str(self.target))}: the dataset needs about {format_bytes(estimate.bytes * SPARE_DISK)} and"
                f" {format_bytes(estimate.free_bytes)} are free; free some space, or store less (--store, --compression)"
            )
        if self.options.dry_run:
            return self._planned(estimate, parts)
        with lease.hold(self.staging):
            existing = self._existing(parts)  # once more: another converter may have finished while this one planned
            if existing is not None:
                shutil.rmtree(self.staging)
                return self._up_to_date(existing)
            _clear_staging(self.staging)
            job = Job(self.staging, self.bases, self.recipe.kind, self.recipe, probe.layout, splits)
            planner.write(self.staging / PLAN)
            job.save()
            tally = Tally(self.options.max_rejects, len(planner), self.listener.progress)
            engine.run(job, range(job.shards), tally.add)
            status = "updated" if (self.target / MANIFEST).exists() else "created"
            commit = Commit(job, self.target)
            manifest = commit.run(lambda facts: self._manifest(job, parts, facts))
        return self._finished(status, manifest)

    def _shards_of(self, rows: int, bytes_per_sample: float) -> int:
        """Return how many shards a split of so many rows gets."""
        if self.options.samples_per_shard:
            return max(1, -(-rows // self.options.samples_per_shard))
        if self.options.shard_size:
            return max(1, min(rows, round(rows * bytes_per_sample / self.options.shard_size)))
        by_size = -(-int(rows * bytes_per_sample) // SHARD_BYTES)
        return max(1, by_size, min(FEWEST_SHARDS, rows // SMALLEST_SHARD_ROWS))

    def _estimate(self, listing: Listing, labelling: Labelling, splits: tuple[SplitPlan, ...], probe: Probe) -> Estimate:
        rows = sum(split.rows for split in splits)
        workers = max(1, min(self.options.worker_count(), usable_cores()))
        by = "labels file" if listing.side else "folder" if labelling.of_folder is not None else "nothing"
        return Estimate(
            kind=self.recipe.kind,
            inputs=len(listing),
            input_bytes=listing.total_bytes,
            splits=splits,
            classes=len(labelling.classes) if labelling.classes is not None else None,
            labelled_by=by,
            bytes=int(rows * probe.bytes_per_sample),
            free_bytes=free_bytes(self.target),
            seconds=rows * probe.seconds_per_sample / workers,
            probe_rejects=probe.rejected,
            ignored=dict(listing.ignored),
            notices=tuple(listing.notices),
        )

    def _planned(self, estimate: Estimate, parts: dict[str, str]) -> ConvertResult:
        seconds = time.monotonic() - self.started
        samples = sum(split.rows for split in estimate.splits)
        digest = fingerprint(parts)
        return ConvertResult("planned", samples, estimate.shards, estimate.bytes, 0, seconds, 0.0, digest, estimate=estimate)

    def _manifest(self, job: Job, parts: dict[str, str], facts: Committed) -> Manifest:
        layout = job.layout.with_shape(facts.shape) if job.layout.store else job.layout
        return Manifest(
            kind=self.recipe.kind,
            samples=facts.samples,
            shards=job.shards,
            bytes=facts.bytes,
            inputs=facts.inputs,
            rejected=facts.rejected,
            splits=facts.splits,
            schema=tuple((f.name, str(f.type)) for f in layout.columns),
            fields=layout.fields(),
            recipe=self.recipe.settings(),
            settings=self._recorded_settings(),
            fingerprint=fingerprint(parts),
            fingerprint_parts=parts,
            sources=tuple(str(root.resolve()) for root in self.roots),
            files=facts.files,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            shardctl_version=__version__,
        )

    def _finished(self, status: str, manifest: Manifest) -> ConvertResult:
        seconds = time.monotonic() - self.started
        reasons: Counter[str] = Counter()
        examples: list[Reject] = []
        for reject in read_rejects(self.target / REJECTS):
            reasons[f"{reject.stage}: {reject.error}"] += 1
            if len(examples) < SHOWN_REJECTS:
                examples.append(reject)
        return ConvertResult(
            status=status,
            samples=manifest.samples,
            shards=manifest.shards,
            bytes=manifest.bytes,
            rejected=manifest.rejected,
            seconds=seconds,
            samples_per_s=manifest.samples / seconds,
            fingerprint=manifest.fingerprint,
            reasons=dict(reasons.most_common()),
            examples=tuple(examples),
        )


def _clear_staging(staging: Path) -> None:
    for entry in staging.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != lease.LEASE:
            entry.unlink()
    for name in (SHARDS_FOLDER, DONE_FOLDER):
        (staging / name).mkdir()


class Tally:
    """Counts what the workers report, and stops the conversion when too much is rejected."""

    def __init__(self, limit: str | None, inputs: int, listen: Callable[[Progress], None]) -> None:
        self._limit = reject_limit(limit, inputs)
        self._inputs, self._listen = inputs, listen
        self.rejected = 0

    def add(self, progress: Progress) -> None:
        """Count work that was done. Raises TooManyRejectsError."""
        self.rejected += progress.rejected
        self._listen(progress)
        if self.rejected > self._limit:
            raise TooManyRejectsError(
                f"{self.rejected} of {self._inputs} inputs were rejected so far, more than --max-rejects allows;"
                " nothing was committed"
            )
