"""The request for a conversion; and a conversion whose kind of samples is settled: what was
requested, who does it, where, since when; the dataset that is there already, and the inputs, found
and named before any is read."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import Numbers, column_of, numbers_of
from shardctl.format.dataset_folder import dataset_of
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, MANIFEST, STAGING, Json
from shardctl.format.tables import open_checked_table
from shardctl.format.update_state import UpdateState
from shardctl.images.codecs import backend
from shardctl.images.defaults import KNOWN_SUFFIXES
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.convert.discover import settle_kind
from shardctl.making.convert.listener import Listener
from shardctl.making.convert.previous import (
    DatasetReplacedError,
    PreviousDataset,
    refuse_written,
    verdict_on,
)
from shardctl.making.options import Labels, Options, chosen_options
from shardctl.making.paths import check_copies_folder, check_sources, destination_of
from shardctl.making.plan.fingerprint import (
    differing_parts,
    fingerprint_parts,
    inputs_digest,
    labels_digest,
    parts_without_sources,
)
from shardctl.making.plan.labels import read_classes
from shardctl.making.plan.list_files import (
    Appending,
    Others,
    list_files,
    tell_of_unused,
    wanted_files,
)
from shardctl.making.plan.listing import CHUNK_ROWS, LISTING_SCHEMA, Group, LabelRule, Listing
from shardctl.making.plan.splits import PlanRules, SplitRule
from shardctl.making.shards import engines
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.job import SourceBase
from shardctl.sources.annotations import AnnotationRule
from shardctl.sources.export_description import may_be_of_export
from shardctl.sources.files import SourceRoot, folder_of, list_all
from shardctl.sources.kinds import KINDS, Form
from shardctl.sources.rechecking import Changed, ChangedError, Listed, Seen, unlisted_files
from shardctl.sources.sidecars import depends_on_others, inputs_among
from shardctl.sources.walk import FoundFile, suffix_of
from shardctl.system.files import sha256_of
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_stored, is_url
from shardctl.system.stores import refuse_half_url
from shardctl.system.text import printable
from shardctl.transforms.base import GroupTransform
from shardctl.transforms.recipe import Recipe


@dataclass(frozen=True)
class ConvertRequest:
    """The arguments of a conversion, checked: nothing of the sources is read, and they need not be
    there. `recipe` is as it was given: it may leave to the sources what
    they hold.

    The dataset goes to `destination`, a URL or an absolute path.
    """

    roots: tuple[SourceRoot, ...]
    destination: str | Path
    recipe: Mapping[str, Any]
    options: Options
    split: SplitRule

    @classmethod
    def of(
        cls,
        src: str | Path | Sequence[str | Path],
        dst: str | Path,
        recipe: Json | str | Path | None,
        options: Mapping[str, Any],
    ) -> ConvertRequest:
        """Check the arguments of `convert`. Raises UsageError, InputError, StorageError."""
        Labels().check("the source", src)
        several = [src] if isinstance(src, str | Path) else src
        if not all(map(str, several)):
            raise UsageError("the source is a path; it is ''")
        if recipe is not None and not isinstance(recipe, dict | str | Path):
            raise UsageError(
                f"the recipe is a dict such as {{'transform': [{{'name': 'hflip'}}]}}, or a "
                f"path; it is {recipe!r}"
            )
        for source in several:
            if not is_url(source):
                refuse_half_url(str(source))  # before it is a path, which has one / for //
        chosen, given = chosen_options("convert", recipe, options)
        chosen.check()
        split = SplitRule.parse(chosen.split)
        roots = [SourceRoot.of(source) for source in several]
        destination = destination_of(dst, roots)
        if chosen.copy_rejects is not None:
            if is_url(chosen.copy_rejects):
                raise UsageError(
                    f"{printable(chosen.copy_rejects)}: rejects can be copied to a folder of "
                    "this machine only"
                )
            check_copies_folder(Path(chosen.copy_rejects), destination, roots)
        return cls(tuple(roots), destination, given, chosen, split)

    def changed(self, **options: Any) -> ConvertRequest:
        """Return the same with other options."""
        return replace(self, options=replace(self.options, **options))

    @cached_property
    def labels(self) -> LabelRule:
        """Where labels come from. Raises UsageError."""
        options = self.options
        annotations = AnnotationRule(
            options.boxes_outside, options.annotation_frame, options.yolo_task
        )
        rule = LabelRule.parse(
            options.labels, options.lenient_labels, options.drop_columns, annotations
        )
        return (
            rule
            if options.classes is None
            else replace(rule, classes=read_classes(str(options.classes)))
        )

    def rules(self, recipe: Recipe) -> PlanRules:
        """Return how the inputs are divided. Raises UsageError."""
        if recipe.group is not None and not self.split.shares:
            raise UsageError(
                f"--group {recipe.group} needs a split by shares; add --split train=0.9,val=0.1"
            )
        by_key = recipe.key_source is not None
        return PlanRules(
            self.split, self.labels, self.options.shuffle, recipe.seed, by_key, recipe.undivided
        )

    def recorded_settings(self, recipe: Recipe) -> Json:
        """Return what the manifest records as settings."""
        sizes = {
            "shard_size": self.options.shard_size,
            "samples_per_shard": self.options.samples_per_shard,
        }
        return {**self.rules(recipe).record(), **sizes}


class Conversion:
    """One call of `convert`. `folder` is that of the dataset; of one on a store, a folder of this
    machine with the work on it. `staging` has the jobs. `notices` say how the kind of the samples
    was found; `held` is the lease of the target where the caller has it. `unwalked` is what
    `listed_without_walk` has told. `asks_cost`: the plan says what it will all cost.

    Another process may replace the dataset that is at the target at any time that this one holds no
    lease.
    """

    asks_cost = True

    def __init__(
        self,
        request: ConvertRequest,
        listener: Listener,
        engine: Engine,
        target: Target,
        held: WriteLease | None = None,
    ) -> None:
        """Settle the kind of the samples by a look at the sources. Raises InputError, UsageError,
        StoreError, InstallError."""
        self.request, self.listener, self.engine, self.target = request, listener, engine, target
        self.held, self.started = held, time.monotonic()
        self.options, self.folder = request.options, target.folder
        self.staging = self.folder.below(STAGING)
        self._before: PreviousDataset | None = None
        self.notices = list[str]()
        check_sources(request.roots, target.folder.shown())
        list_all((root.text for root in request.roots), listener.listing)
        self.unwalked = listed_without_walk(request, self.folder) if held is None else None
        if self.unwalked is not None:
            self.recipe = self.unwalked.recipe
            listener.listing(len(self.unwalked.listing))
        else:
            given, self.notices = settle_kind(request.recipe, request.roots, engine, request.labels)
            self.recipe = Recipe.from_json(given)
            for step in self.recipe.reading:  # a conversion does none, and only sees that it can be
                if isinstance(step.loaded(), GroupTransform):
                    target = step.settings()["target"]
                    raise UsageError(f"{target} is a class: put it under [[transform]]")
        if self.recipe.kind == "image":
            backend.require_one()

    @cached_property
    def rules(self) -> PlanRules:
        """How the inputs are divided."""
        return self.request.rules(self.recipe)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.started

    def leased(self) -> contextlib.AbstractContextManager[WriteLease]:
        """Return the lease of the target, once it is held. No workers are kept while this process
        waits for it."""
        if self.held is not None:
            return contextlib.nullcontext(self.held)

        def wait(owner: str) -> None:
            self.engine.close()
            self.listener.waiting(owner)

        return self.target.lease(wait if self.options.if_running == "wait" else None)

    @property
    def is_there(self) -> bool:
        """Whether there is a dataset now."""
        return self.folder.path(MANIFEST).exists()

    def before(self, manifest: Manifest) -> PreviousDataset:
        """Return the dataset of a manifest with its tables, which are hashed once: they may be
        large.

        Raises DatasetReplacedError if another one has taken its place, DatasetError if a table is
        damaged.
        """
        if self._before is None or self._before.manifest != manifest:
            try:
                self._before = PreviousDataset(self.folder, manifest)
            except DatasetError:
                self.refuse_replaced(manifest)
                raise
        return self._before

    def refuse_replaced(self, manifest: Manifest) -> None:
        """Raise DatasetReplacedError if another dataset has taken the place of that of a
        manifest."""
        if self.target.manifest() != manifest:
            raise DatasetReplacedError


def listed_without_walk(request: ConvertRequest, folder: LocalFolder) -> UnwalkedInputs | None:
    """Return the inputs if they are surely those of the dataset that is there, told in the time of
    a bare walk.

    None where they must be listed anew. Those of an update are as they are now: some may have come,
    gone or changed.
    """
    options = request.options
    others = (
        options.overwrite
        or options.append
        or options.explain
        or options.moved_from
        or options.part is not None
        or options.copy_rejects is not None
    )
    if others or folder.url or not folder.path(MANIFEST).exists():
        return None
    with contextlib.suppress(DatasetError, ChangedError):  # what is wrong with it is said later
        manifest = Manifest.load(folder)
        if manifest.records is None:  # only inputs that are one record each are told so
            found = find_unwalked(request, folder, manifest, Changed() if options.update else None)
            _ = found and found.listing  # made now, or ChangedError is raised
            return found
    return None


@dataclass(frozen=True)
class Inputs:
    """The inputs as they were listed. `sources` are the absolute paths of the sources, or their
    URLs, `bases` the folders that paths are relative to.

    `parts` are those of the fingerprint. `existing` is the digest of the dataset that was at the
    target when the inputs were listed, "" if there was none. `scratch` is a folder for what a plan
    needs.
    """

    listing: Listing
    sources: list[str]
    bases: tuple[SourceBase, ...]
    parts: dict[str, str]
    existing: str
    scratch: Path


def list_inputs(conversion: Conversion, scratch: Path) -> Inputs:
    """List the inputs. `scratch` is a folder for the list.

    Raises DatasetReplacedError if another dataset has taken the place of the one that inputs are
    appended to, InputError, UsageError, StoreError.
    """
    options, recipe, request = conversion.options, conversion.recipe, conversion.request
    if options.update or options.append or options.explain or options.copy_rejects is not None:
        conversion.target.fetch_dataset()
    if options.overwrite or not conversion.is_there:
        # a second process imports the modules of the workers while the inputs are listed; the
        # command line has started it, where it saw early that there is work
        conversion.engine.prepare()
    manifest, roots, known = conversion.target.manifest(), request.roots, None
    existing = "" if manifest is None else manifest.samples_digest
    # their devices count where the workers are on this machine
    base_of = SourceBase.of if engines.is_here(options.engine) else SourceBase.anywhere
    bases = tuple(base_of(root.base) for root in roots)
    if options.append and manifest is not None:
        refuse_written(conversion.folder.text, manifest)
        before = conversion.before(manifest)
        form = Form.ONE if manifest.records is None else Form.MANY
        known = Appending(
            before.files,
            before.state.mtime_ns,
            form,
            manifest.sources,
            roots,
            conversion.rules.labels,
        )
        # some sources may be gone: nothing is read of those that were not given
        roots = tuple(map(SourceRoot, known.sources))
        bases = tuple(map(SourceBase.anywhere, map(folder_of, known.sources)))
    sources = [root.recorded for root in roots]
    found = conversion.unwalked
    if found is not None and manifest is not None and found.dataset == existing:
        settings = request.recorded_settings(recipe)
        parts = {**manifest.fingerprint_parts, **parts_without_sources(recipe, settings)}
        if found.listed.changed:
            parts["inputs"] = inputs_digest(found.listing, settings)
        return Inputs(found.listing.fresh(), sources, bases, parts, existing, scratch)
    listing = list_files(
        roots,
        KINDS[recipe.kind],
        recipe.record_reading,
        conversion.rules.labels,
        scratch / "listing.arrow",
        conversion.listener.listing,
        known,
    )
    listing.notices[:0] = conversion.notices
    parts = fingerprint_parts(listing, recipe, request.recorded_settings(recipe))
    return Inputs(listing, sources, bases, parts, existing, scratch)


# --- whether a dataset is what a conversion would make, told by names, sizes and times of change, in the
# time of a bare walk: both `convert` and `snapshot` look at this first, and an update looks in the same
# way for inputs that came, went or changed ---


MOST_ADDED = 100_000
"""Files that came, at most: each is an object in memory, and with so many of them a new list is
hardly slower."""

SETTLED = ("format", "image_field", "key_field", "label_field", "fields")
"""Keys of a recipe beside the kind that a conversion may take from its sources."""


def recipe_if_same(request: ConvertRequest, manifest: Manifest) -> Recipe | None:
    """Return the recipe, with what it leaves to the sources as it is recorded; None if it, settings
    or code are others.

    Versions do not count.
    """
    left = (name for name in ("kind", *SETTLED) if request.recipe.get(name) in (None, "auto"))
    recorded = {name: manifest.recipe[name] for name in left if name in manifest.recipe}
    try:
        recipe = Recipe.from_json({**request.recipe, **recorded})
    except UsageError:  # it does not go with the kind that is recorded
        return None
    before = manifest.fingerprint_parts
    parts = parts_without_sources(recipe, request.recorded_settings(recipe))
    same = verdict_on(differing_parts(before, {**before, **parts})) == "up-to-date"
    return recipe if same else None


@dataclass(frozen=True)
class UnwalkedInputs:
    """The inputs of a dataset: the files that were `listed` when it was made, and what has changed
    in them since.

    `dataset` is the digest of the dataset. `recipe` is complete, as the dataset records it, with
    what the sources decided. `seen` has the folders, and what was left out; `others` the files that
    are no inputs.
    """

    request: ConvertRequest
    dataset: str
    recipe: Recipe
    listed: Listed
    seen: Seen = field(default_factory=Seen)
    others: Others = field(default_factory=Others)

    def are_as_in_a_walk(self) -> bool:
        """Return whether the names of the changed files alone say what these are, the files of each
        folder are in order, and the table has the batches of a list."""
        files, first, column = self.listed, 0, self.listed.table["path"]
        if any(len(chunk) != CHUNK_ROWS for chunk in column.chunks[:-1]):
            return False
        if files.changed and not all(_says_it(column[row].as_py()) for row in files.changed.rows):
            return False
        for _, count in self.seen.folders:
            last = ""
            for start in range(first, first + count, CHUNK_ROWS):
                paths = [last, *files.paths(start, min(CHUNK_ROWS, first + count - start))]
                if paths != sorted(paths):
                    return False
                last = paths[-1]
            first += count
        return True

    def labels_if_same(self) -> str:
        """Return what stands for the labels files. Raises ChangedError if the inputs are not
        certainly the same."""
        request, rule = self.request, self.request.labels
        if any(may_be_of_export(root.folder) for root in request.roots):
            raise ChangedError
        beside: list[FoundFile] = []
        said: list[str] = []
        unlisted = unlisted_files(request.roots, self.listed, depends_on_others, self.seen)
        names = [self.recipe.kind]
        # a file of a kind that is looked for before would be the kind of all
        if request.recipe.get("kind") in (None, "auto"):
            names = list(KINDS)[: list(KINDS).index(self.recipe.kind) + 1]
        for file in inputs_among(unlisted, said.append, beside):
            for name in names:
                others = self.others if name == self.recipe.kind else Others()
                inputs = wanted_files(
                    iter([file]), KINDS[name], self.recipe.record_reading, rule, others
                )
                for form, each in inputs:
                    if form is not Form.NOTHING:
                        self._add(each, form)
        # It is not known where labels files were, from which their names begin. What is said, of a
        # series of which some are missing for instance, a list says in its place among other
        # notices.
        if beside or self.others.side_files or self.others.lists or said:
            raise ChangedError
        return labels_digest([sha256_of(Path(file)) for file in rule.files])

    def _add(self, file: FoundFile, form: Form) -> None:
        """Note a file that is not listed. Raises ChangedError unless its name alone says that it is
        one more input.

        With several sources two files may have the same path, which a list refuses.
        """
        changed = self.listed.changed
        if (
            changed is None
            or form is not Form.ONE
            or not _says_it(file.path)
            or len(self.request.roots) > 1
            or len(changed.added) == MOST_ADDED
        ):
            raise ChangedError
        changed.added.append(file)

    @cached_property
    def listing(self) -> Listing:
        """The list of the inputs, with all that a walk would give notice of. Raises ChangedError
        where only a new walk can tell that.

        Only lists of images can be told without it: names of other files may be those of parts of
        something.
        """
        recipe, labels = self.recipe, self.request.labels
        if recipe.kind != "image" or recipe.record_reading.has_image_records or labels.files:
            raise ChangedError
        files, rows, *numbers, there = inputs_now(self.listed, self.seen.folders)
        # names of a series may say how many files there are
        if not len(rows) or _have(files, b"-of-"):
            raise ChangedError
        groups = {folder: n for n, folder in enumerate(dict.fromkeys(name for name, _ in there))}
        of_folder = np.array([groups[folder] for folder, _ in there], np.int32)
        numbers.append(np.repeat(of_folder, [count for _, count in there]))
        schema = pa.schema([f for f in LISTING_SCHEMA if f.name != "hash"])
        batches, first = [], 0
        for batch in files.to_batches():
            here, nothing = slice(first, first + len(batch)), pa.nulls(len(batch), pa.string())
            columns = (column_of(column[here]) for column in numbers)
            batches.append(
                pa.record_batch([*batch.columns, *columns, nothing, nothing], schema=schema)
            )
            first += len(batch)
        listing = Listing(
            pa.Table.from_batches(batches, schema),
            KINDS[recipe.kind],
            self.request.roots,
            whole=True,
            groups=[Group(folder, "") for folder in groups],
            ignored=self.others.ignored,
            notices=list(self.seen.notices),
            rows_before=(self.dataset, rows),
        )
        if self.others.unused.places or _have(files, b".png"):  # which may be masks
            tell_of_unused(listing, labels, self.others.unused)
        return listing


def _have(files: pa.Table, part: bytes) -> bool:
    """Return whether a path has these bytes, in capital or small letters."""
    chunks = (chunk for chunk in files["path"].chunks if len(chunk))
    return any(part in chunk.buffers()[2].to_pybytes().lower() for chunk in chunks)


def find_unwalked(
    request: ConvertRequest,
    folder: LocalFolder,
    manifest: Manifest,
    changed: Changed | None = None,
) -> UnwalkedInputs | None:
    """Return the inputs of the dataset in a folder, by its manifest, if it is certain, without a new list, that it
    is what would be made.

    With `changed`, which gets what came, went or changed, they are the inputs as they are now,
    where a new list would certainly have the same in the same order, so that their digest can be
    told. None says nothing: it may depend on what is in a file, or on annotations.
    """
    rule, recorded = request.labels, manifest.recipe
    others = (
        any(root.is_stored for root in request.roots)
        or any(map(is_stored, rule.files))
        or rule.annotations
        # the sources decide more than the kind of the samples
        or any(recorded.get(name) not in (None, request.recipe.get(name)) for name in SETTLED)
        or [root.name for root in request.roots] != [Path(each).name for each in manifest.sources]
        # UnwalkedInputs.listing could not tell their list
        or (changed is not None and (recorded.get("kind") != "image" or rule.files))
    )
    recipe = None if others else recipe_if_same(request, manifest)
    if recipe is None:
        return None
    folder = dataset_of(manifest, folder)
    try:
        state = UpdateState(folder, manifest.update)
        files = open_checked_table(folder, FILES)
        if state.digest_beside or len(state.mtime_ns) != files.num_rows:
            return None
        found = UnwalkedInputs(
            request,
            manifest.samples_digest,
            recipe,
            Listed(files, state.mtime_ns, changed),
        )
        same = found.labels_if_same() == manifest.fingerprint_parts.get("labels")
        return found if same and (changed is None or found.are_as_in_a_walk()) else None
    except (DatasetError, ChangedError, OSError):
        return None


def _says_it(path: str) -> bool:
    """Return whether the name of a file alone says that it is an image: no content and no other
    file decides it."""
    name = path.rpartition("/")[2]
    return suffix_of(name) in KNOWN_SUFFIXES and not depends_on_others(name)


# --- the inputs of a dataset as they are now: those that were listed and are still there, and the
# ones that came ---


def inputs_now(
    listed: Listed, folders: Sequence[tuple[str, int]]
) -> tuple[pa.Table, Numbers, Numbers, Numbers, list[tuple[str, int]]]:
    """Return the inputs as they are now, in the order of a walk. `folders` were walked, and so many
    of the listed files are in each.

    These are: a table with the `path` and the `root` of each, in batches of CHUNK_ROWS rows; its
    row in the dataset's table, -1 for one that came, its size, and its time of change: (n,) each;
    and the folders that have some, so many one after the other in each.
    """
    sizes = np.from_dlpack(listed.table["size"].combine_chunks()).astype(np.int64, copy=False)
    times = listed.mtime_ns
    changed = listed.changed or Changed()
    if changed.rows:
        sizes, times = sizes.copy(), times.copy()
        sizes[changed.rows], times[changed.rows] = changed.sizes, changed.mtimes_ns
    if not changed.are_others:
        there = [(folder, count) for folder, count in folders if count]
        return listed.table.select(["path", "root"]), np.arange(len(listed)), sizes, times, there
    order, there = _merged(listed, folders, changed)
    came = order < 0
    rows = np.where(came, -1, order)
    files = [changed.added[-1 - each] for each in order[came].tolist()]
    sizes, times = sizes[rows], times[rows]
    sizes[came], times[came] = [file.size for file in files], [file.mtime_ns for file in files]
    return _table(listed, order, changed.added), rows, sizes, times, there


def _merged(
    listed: Listed, folders: Sequence[tuple[str, int]], changed: Changed
) -> tuple[Numbers, list[tuple[str, int]]]:
    """Return the rows of all inputs in the order of a walk, and the folders that have some.

    A row of -1 stands for the first file that came, -2 for the second.
    """
    stays = np.ones(len(listed), bool)
    stays[changed.gone] = False
    added: dict[str, list[int]] = defaultdict(list)
    for number, file in enumerate(changed.added):
        added[file.folder].append(number)
    parts, there, first = [np.empty(0, np.int64)], list[tuple[str, int]](), 0
    paths = listed.table["path"]
    for folder, count in folders:
        rows = first + np.flatnonzero(stays[first : first + count])
        if new := sorted(added.get(folder, ()), key=lambda number: changed.added[number].path):
            places = [
                bisect_left(rows, changed.added[each].path, key=lambda row: paths[int(row)].as_py())
                for each in new
            ]
            rows = np.insert(rows, places, [-1 - each for each in new])
        parts.append(rows)
        if len(rows):
            there.append((folder, len(rows)))
        first += count
    return np.concatenate(parts), there


def _table(listed: Listed, order: Numbers, added: Sequence[FoundFile]) -> pa.Table:
    schema, batches = pa.schema([("path", pa.string()), ("root", pa.int32())]), []
    # those that came are below the first source
    roots = np.append(numbers_of(listed.table["root"]), np.int32(0))
    for start in range(0, len(order), CHUNK_ROWS):
        rows = order[start : start + CHUNK_ROWS]
        # few of many may be wanted, and not all are read at once
        there = rows[rows >= 0]
        low = int(there.min()) if len(there) else 0
        known = listed.paths(low, int(there.max()) + 1 - low) if len(there) else []
        paths = [known[row - low] if row >= 0 else added[-1 - row].path for row in rows.tolist()]
        batches.append(
            pa.record_batch(
                [pa.array(paths, pa.string()), column_of(roots[np.maximum(rows, -1)])],
                schema=schema,
            )
        )
    return pa.Table.from_batches(batches, schema)
