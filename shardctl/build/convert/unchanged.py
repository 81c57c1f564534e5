"""Whether a dataset is what a conversion would make, told by names, sizes and times of change, in
the time of a bare walk.

Both `convert` and `snapshot` look at this first. An update looks in the same way for inputs that
came, went or changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.convert.decision import verdict_on
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.plan.fingerprint import differing_parts, labels_digest, parts_without_sources
from shardctl.build.plan.listing import CHUNK_ROWS, Group, KnownListing, wanted_files
from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import column_of
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, FILES
from shardctl.format.tables import open_checked_table
from shardctl.format.update_state import UpdateState
from shardctl.sources.annotations.nested_records import refuse_nested_records
from shardctl.sources.annotations.unused import Images, Unused, warnings_of_unused
from shardctl.sources.export_description import may_be_of_export
from shardctl.sources.kinds import KINDS, KNOWN_SUFFIXES, Form
from shardctl.sources.rechecking import Changed, ChangedError, Listed, Seen, unlisted_files
from shardctl.sources.sidecars import depends_on_others, inputs_among
from shardctl.sources.walk import FoundFile, LeftOut, suffix_of
from shardctl.system.files import sha256_of
from shardctl.system.locations import is_stored
from shardctl.transforms.recipe import Recipe

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
    try:
        recipe = Recipe.from_json(
            {
                **request.recipe,
                **{name: manifest.recipe[name] for name in left if name in manifest.recipe},
            }
        )
    except UsageError:  # it does not go with the kind that is recorded
        return None
    parts = {
        **manifest.fingerprint_parts,
        **parts_without_sources(recipe, request.recorded_settings(recipe)),
    }
    return (
        recipe
        if verdict_on(differing_parts(manifest.fingerprint_parts, parts)) == "up-to-date"
        else None
    )


@dataclass(frozen=True)
class KnownInputs:
    """The inputs of a dataset: the files that were `listed` when it was made, and what has changed
    in them since.

    `dataset` is the digest of the dataset. `recipe` is complete, as the dataset records it, with
    what the sources decided. `seen` has the folders, and what was left out. `unused` and `ignored`
    are about files that are no inputs.
    """

    dataset: str
    recipe: Recipe
    listed: Listed
    seen: Seen
    unused: Unused
    ignored: Counter[str]

    def listing(self, request: ConvertRequest) -> KnownListing | None:
        """Return the list of the inputs, with all that a walk would give notice of; None where only
        a new walk can tell that.

        Only lists of images can be told without it: names of other files may be those of parts of
        something.
        """
        if (
            self.recipe.kind != "image"
            or self.recipe.reading.has_image_records
            or request.labels.files
        ):
            return None
        if not len(self._now) or self._are_in_series or self._may_differ_by_case:
            return None
        folders, counts = zip(*self._now.folders, strict=True)
        listing = KnownListing(
            path=Path(),
            kind=KINDS[self.recipe.kind],
            roots=request.roots,
            whole=True,
            groups=[Group(folder, "") for folder in dict.fromkeys(folders)],
            ignored=self.ignored,
            notices=list(self.seen.notices),
            dataset=self.dataset,
            files=self._now.table,
            before=self._now.rows,
            sizes=self._now.sizes,
            mtime_ns=self._now.mtime_ns,
            folders=folders,
            counts=counts,
        )
        if request.labels.mode == "auto" and (self.unused.places or self._have_pngs):
            images = Images(
                request.roots,
                [group.folder for group in listing.groups],
                listing.table,
                listing.hashes,
            )
            refuse_nested_records(chain.from_iterable(self.unused.places.values()), images)
            listing.warnings += warnings_of_unused(self.unused, images)
        return listing

    @cached_property
    def _now(self) -> Now:
        return inputs_now(self.listed, self.seen.folders)

    def _have(self, part: bytes) -> bool:
        """Return whether a path has these bytes, in capital or small letters."""
        return any(part in data.lower() for data in self._path_data())

    def _path_data(self) -> Iterator[bytes]:
        """Yield the bytes of the paths, one behind the other, some MB at a time."""
        for chunk in self._now.table["path"].chunks:
            yield chunk.buffers()[2].to_pybytes() if len(chunk) else b""

    @property
    def _have_pngs(self) -> bool:
        """Whether there may be masks among the images: these are PNGs."""
        return self._have(b".png")

    @property
    def _are_in_series(self) -> bool:
        """Whether names may say how many files there are."""
        return self._have(b"-of-")

    @property
    def _may_differ_by_case(self) -> bool:
        """Whether a path may differ from another one only by case: in two folders alike, or in a
        folder."""
        if all(data.isascii() and data == data.lower() for data in self._path_data()):
            return False
        folders = [folder.lower() for folder, _ in self._now.folders]
        if len(set(folders)) < len(folders):
            return True
        first = 0
        for _, count in self._now.folders:
            paths = self._now.paths(first, count)
            if len(set("\0".join(paths).lower().split("\0"))) < count:
                return True
            first += count
        return False


def find_unchanged(request: ConvertRequest, manifest: Manifest) -> KnownInputs | None:
    """Return the inputs of the dataset of a manifest if it is certain, without a new list, that it
    is what would be made.

    None says nothing: it may depend on what is in a file, or on annotations.
    """
    return _known_inputs(request, manifest, None)


def find_changed(request: ConvertRequest, manifest: Manifest) -> KnownInputs | None:
    """Return the inputs of the dataset of a manifest as they are now, where it is certain that a
    new list would have the same.

    It would have them in the same order, so that the digest of the inputs can be told. None: as
    `find_unchanged`.
    """
    if manifest.recipe.get("kind") != "image" or request.labels.files:
        return None  # KnownInputs.listing could not tell their list
    found = _known_inputs(request, manifest, Changed())
    return found if found is not None and _are_as_in_a_walk(found) and _can_be_told(found) else None


def _known_inputs(
    request: ConvertRequest, manifest: Manifest, changed: Changed | None
) -> KnownInputs | None:
    if (
        any(root.is_stored for root in request.roots)
        or any(map(is_stored, request.labels.files))
        or request.labels.annotations
        or _takes_more_from_sources(request.recipe, manifest.recipe)
    ):
        return None
    if tuple(root.name for root in request.roots) != tuple(
        Path(source).name for source in manifest.sources
    ):
        return None
    recipe = recipe_if_same(request, manifest)
    if recipe is None:
        return None
    try:
        state = UpdateState(request.folder, manifest.update)
        files = open_checked_table(request.folder, FILES)
        if state.digest_beside or len(state.mtime_ns) != files.num_rows:
            return None
        listed, digest = Listed(files, state.mtime_ns, changed), manifest.files[CHECKSUMS].sha256
        found = KnownInputs(digest, recipe, listed, Seen(), Unused(), Counter())
        return (
            found
            if _labels_if_same(request, found) == manifest.fingerprint_parts.get("labels")
            else None
        )
    except (DatasetError, ChangedError, OSError):
        return None


def _are_as_in_a_walk(found: KnownInputs) -> bool:
    """Return whether the files of each folder are in order, and the table has the batches of a
    list."""
    files, first = found.listed, 0
    if any(len(chunk) != CHUNK_ROWS for chunk in files.table["path"].chunks[:-1]):
        return False
    for _, count in found.seen.folders:
        last = ""
        for start in range(first, first + count, CHUNK_ROWS):
            paths = [last, *files.paths(start, min(CHUNK_ROWS, first + count - start))]
            if paths != sorted(paths):
                return False
            last = paths[-1]
        first += count
    return True


def _can_be_told(found: KnownInputs) -> bool:
    """Return whether the names of the changed files alone say what these are."""
    paths, changed = found.listed.table["path"], found.listed.changed
    return changed is None or all(_says_it(paths[row].as_py()) for row in changed.rows)


def _takes_more_from_sources(recipe: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Return whether the sources have decided, or may decide, more than the kind of the samples."""
    return any(
        recipe.get(name) != recorded.get(name) for name in SETTLED if recorded.get(name) is not None
    )


def _is_added(file: FoundFile, form: Form, request: ConvertRequest, found: KnownInputs) -> bool:
    """Return whether a file that is not listed is one more input, as its name alone says, and note
    it.

    With several sources two files may have the same path, which a list refuses.
    """
    changed = found.listed.changed
    if changed is None or form is not Form.ONE or not _says_it(file.path):
        return False
    if len(request.roots) > 1 or len(changed.added) == MOST_ADDED:
        return False
    changed.added.append(file)
    return True


def _says_it(path: str) -> bool:
    """Return whether the name of a file alone says that it is an image: no content and no other
    file decides it."""
    name = path.rpartition("/")[2]
    return suffix_of(name) in KNOWN_SUFFIXES and not depends_on_others(name)


def _labels_if_same(request: ConvertRequest, found: KnownInputs) -> str:
    """Return what stands for the labels files. Raises ChangedError if the inputs are not certainly
    the same."""
    if any(may_be_of_export(root.folder) for root in request.roots):
        raise ChangedError
    beside: list[FoundFile] = []
    side_files: list[tuple[str, str]] = []
    lists: list[FoundFile] = []
    said: list[str] = []
    others = inputs_among(
        unlisted_files(request.roots, found.listed, depends_on_others, found.seen),
        said.append,
        beside,
    )
    rule, recipe = request.labels, found.recipe
    names = [recipe.kind]
    # a file of a kind that is looked for before would be the kind of all
    if request.recipe.get("kind") in (None, "auto"):
        names = list(KINDS)[: list(KINDS).index(recipe.kind) + 1]
    for file in others:
        for name in names:
            given = side_files, lists, found.ignored, LeftOut(), found.unused
            if name != recipe.kind:
                given = [], [], Counter[str](), LeftOut(), Unused()
            inputs = wanted_files(iter([file]), KINDS[name], recipe.reading, rule, *given)
            if any(
                form is not Form.NOTHING and not _is_added(each, form, request, found)
                for form, each in inputs
            ):
                raise ChangedError
    # it is not known where labels files were, from which their names begin
    if beside or side_files or lists:
        raise ChangedError
    # of a series of which some are missing, for instance: a list says it in its place among other
    # notices
    if said:
        raise ChangedError
    return labels_digest([sha256_of(Path(file)) for file in rule.files])


# --- the inputs of a dataset as they are now: those that were listed and are still there, and the
# ones that came ---

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Now:
    """Inputs in the order of a walk. `table` has the `path` and the `root` of each, in batches of
    CHUNK_ROWS rows.

    `rows` has the row of each in the dataset's table, -1 for one that came: (n,), as `sizes` and
    `mtime_ns`. They lie in these `folders`, so many one after the other in each.
    """

    table: pa.Table
    rows: Numbers
    sizes: Numbers
    mtime_ns: Numbers
    folders: list[tuple[str, int]]

    def __len__(self) -> int:
        return len(self.rows)

    def paths(self, first: int, count: int) -> list[str]:
        """Return the paths of `count` files."""
        return list(self.table["path"].slice(first, count).to_pylist())


def inputs_now(listed: Listed, folders: Sequence[tuple[str, int]]) -> Now:
    """Return the inputs as they are now. `folders` were walked, and so many of the listed files are
    in each."""
    sizes, times = (
        np.from_dlpack(listed.table["size"].combine_chunks()).astype(np.int64, copy=False),
        listed.mtime_ns,
    )
    changed = listed.changed or Changed()
    if changed.rows:
        sizes, times = sizes.copy(), times.copy()
        sizes[changed.rows], times[changed.rows] = changed.sizes, changed.mtimes_ns
    if not changed.are_others:
        there = [(folder, count) for folder, count in folders if count]
        return Now(
            listed.table.select(["path", "root"]), np.arange(len(listed)), sizes, times, there
        )
    order, there = _merged(listed, folders, changed)
    came = order < 0
    rows, files = (
        np.where(came, -1, order),
        [changed.added[-1 - each] for each in order[came].tolist()],
    )
    sizes, times = sizes[rows], times[rows]
    sizes[came], times[came] = [file.size for file in files], [file.mtime_ns for file in files]
    return Now(_table(listed, order, changed.added), rows, sizes, times, there)


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


def _paths_at(listed: Listed, rows: Numbers) -> Iterator[str]:
    """Yield the paths of listed files, given their rows in order: few of many may be wanted, and
    not all are read at once."""
    for some in np.split(rows, np.flatnonzero(np.diff(rows // CHUNK_ROWS)) + 1):
        if len(some):
            first = int(some[0])
            paths = listed.paths(first, int(some[-1]) + 1 - first)
            yield from (paths[row - first] for row in some.tolist())


def _table(listed: Listed, order: Numbers, added: Sequence[FoundFile]) -> pa.Table:
    schema, batches = pa.schema([("path", pa.string()), ("root", pa.int32())]), []
    # those that came are below the first source
    roots = np.append(listed.table["root"].to_numpy(), np.int32(0))
    for start in range(0, len(order), CHUNK_ROWS):
        rows = order[start : start + CHUNK_ROWS]
        known = _paths_at(listed, rows[rows >= 0])
        paths = [next(known) if row >= 0 else added[-1 - row].path for row in rows.tolist()]
        batches.append(
            pa.record_batch(
                [pa.array(paths, pa.string()), column_of(roots[np.maximum(rows, -1)])],
                schema=schema,
            )
        )
    return pa.Table.from_batches(batches, schema)
