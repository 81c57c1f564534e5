"""Sources and destinations of what makes a dataset: the checks of their paths and URLs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardctl.errors import DatasetError, InputError, StorageError, UsageError
from shardctl.format.generations import generation_folders, unfinished_commit
from shardctl.format.names import (
    BESIDE_SHARDS,
    GENERATIONS,
    MANIFEST,
    STAGING,
    job_of_generation,
)
from shardctl.sources.files import SourceRoot, forget_lists, is_on_store
from shardctl.system.files import naming_the_path, near_path, refuse_links
from shardctl.system.job_folder import JobFolder
from shardctl.system.locations import is_url, normal, path_below
from shardctl.system.stores import refuse_half_url
from shardctl.system.text import printable


def check_sources(
    src: Iterable[str | Path | SourceRoot], dst: str | None = None
) -> list[SourceRoot]:
    """Return the sources; those on stores will be listed anew. Raises InputError for one that does
    not exist.

    `dst` is the destination, which the message names where it may be the value of an option.
    """
    forget_lists()
    roots = [source if isinstance(source, SourceRoot) else SourceRoot.of(source) for source in src]
    if not roots:
        raise UsageError("no source was given")
    before = set()
    for root in roots:
        shown = printable(root.text)
        place = root.text if root.is_stored else os.path.realpath(root.text)
        if place in before:
            raise UsageError(f"{shown}: the source is given twice; leave one out")
        before.add(place)
        try:
            if root.is_stored:
                if not is_on_store(root.text):
                    raise InputError(f"{shown}: no object has this key, or one that begins with it")
                continue
            path = Path(root.text)
            if not path.exists():
                refuse_half_url(root.text)
                why = near_path(path)
                if dst and len(roots) > 1:
                    why = f"; the last argument, {printable(dst)}, is taken as the destination, and an option has one value"
                if root.text == "-":
                    why = "; stdin is not read: save it to a file"
                if any(map(os.path.exists, root.text.split(",")[:-1])):
                    why = "; write several sources with spaces between them"
                if not {"*", "?", "[", "{"}.isdisjoint(root.text):
                    why = "; shardctl expands no patterns: give a folder, or leave out the quotes"
                raise InputError(f"{shown}: no such file or folder{why}")
            if not path.is_dir() and not path.is_file():
                raise InputError(f"{shown}: neither a file nor a folder")
        except OSError as error:  # a name that is too long, or a parent folder without permission
            raise InputError(f"{shown}: cannot be read ({error.strerror})") from error
    return roots


def check_copies_folder(folder: Path, destination: str | Path, roots: Sequence[SourceRoot]) -> None:
    """Raise UsageError if copies of rejected inputs would become inputs, replace inputs, or lie in
    a dataset.

    A source that is a file has its folder as its base: a copy there would replace the file itself.
    """
    resolved = _real(folder)
    local = [_real(root.text) for root in roots if not root.is_stored]
    bases = [root if root.is_dir() else root.parent for root in local]
    target = [] if isinstance(destination, str) else [destination]
    others = [each for each in (*target, *local) if resolved.is_relative_to(each)]
    others += [each for each in (*target, *bases) if each.is_relative_to(resolved)]
    if folder.exists() and not folder.is_dir():
        others.append(folder)
    others += [resolved for name in (MANIFEST, STAGING) if os.path.lexists(resolved / name)]
    if others:
        raise UsageError(
            f"{printable(folder)}: copies of rejects need another folder than "
            f"{printable(others[0])}"
        )


def refuse_generation(place: str | Path) -> None:
    """Raise DatasetError for a generation of a dataset: it stays what it is. A path is absolute."""
    if isinstance(place, Path):
        dataset: str | Path = place.parent.parent
        is_one = place.parent.name == GENERATIONS and (place.parent.parent / MANIFEST).exists()
    else:
        from shardctl.format.dataset_location import generation_of  # four modules, for stores

        dataset, folder = generation_of(place.rstrip("/"))
        is_one = folder != ""
    if is_one:
        raise DatasetError(
            f"{printable(place)}: a kept generation never changes; give {printable(dataset)}, or "
            "another destination"
        )


def destination_of(dst: str | Path, roots: Sequence[SourceRoot]) -> str | Path:
    """Return where a dataset goes: its URL, or its absolute path. Raises UsageError or StorageError
    if it cannot go there, or would become its own input."""
    if not isinstance(dst, str | Path) or not str(dst):
        raise UsageError(f"the destination is a path; it is {dst!r}")
    if not is_url(dst):
        return check_destination(dst, roots)
    refuse_generation(str(dst))
    place, shown = normal(str(dst)), printable(dst)
    for source in (root.text for root in roots if root.is_stored):
        if path_below(place, source) is not None:
            raise UsageError(f"{shown}: is inside the source {printable(source)}; keep them apart")
        if path_below(source, place) is not None:
            raise UsageError(
                f"{printable(source)}: is inside the destination {shown}; keep them apart"
            )
    return str(dst)


def check_destination(dst: str | Path, roots: Sequence[SourceRoot]) -> Path:
    """Return the absolute path of the destination. Raises UsageError or StorageError if it cannot
    be one."""
    refuse_half_url(str(dst))  # before it is a path, which has one / for //
    target, shown = Path(dst), printable(dst)
    resolved = _real(target)
    for root in roots:
        if root.is_stored:
            continue
        source = _real(root.text)
        if resolved == source or resolved.is_relative_to(source):
            raise UsageError(
                f"{shown}: is inside the source {printable(root.text)}; keep them apart"
            )
        if source.is_relative_to(resolved):
            raise UsageError(
                f"{printable(root.text)}: is inside the destination {shown}; keep them apart"
            )
    with naming_the_path(target):
        if resolved.is_symlink():
            raise StorageError(f"{shown}: cannot be a destination (a link that leads to itself)")
        if why := unfinished_commit(resolved):
            raise StorageError(f"{shown}: {why}")
        _refuse_what_is_there(target, shown)
    refuse_generation(resolved)
    return resolved


def _real(path: str | Path) -> Path:
    """Return where a path leads. A link that leads to itself leads to itself: Path.resolve raises an
    error of its own for it, before Python 3.13."""
    return Path(os.path.realpath(path))


def _refuse_what_is_there(target: Path, shown: str) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise StorageError(
            f"{shown}: is a file; the destination must be a new or empty folder or a dataset"
        )
    names = set(os.listdir(target))
    if names and MANIFEST not in names and STAGING not in names:
        listed = ", ".join(printable(name) for name in sorted(names)[:3])
        raise StorageError(
            f"{shown}: holds something else ({listed}); as the destination it must be new, "
            "empty or a dataset"
        )
    jobs = {JobFolder(job).id for job in (target / STAGING).glob("*")}
    folders = (each for each in generation_folders(target) if job_of_generation(each) not in jobs)
    lost = next(folders, next((name for name in sorted(names) if name in BESIDE_SHARDS), None))
    if lost and MANIFEST not in names:
        raise StorageError(
            f"{shown}: has files of a dataset ({printable(lost)}), but no {MANIFEST}; "
            "bring it back, move them away, or give another destination"
        )


def check_writable(target: Path) -> None:
    """Raise StorageError if the destination cannot be made or written. Writes nothing."""
    place = next(folder for folder in (target, *target.parents) if os.path.lexists(folder))
    if not place.is_dir():
        raise StorageError(
            f"{printable(target)}: cannot be created, {printable(place)} is not a folder"
        )
    if not os.access(place, os.W_OK | os.X_OK):
        why = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        raise StorageError(f"{printable(target)}: cannot write here ({os.strerror(why)})")
    with naming_the_path(target):
        refuse_links(target / STAGING)
