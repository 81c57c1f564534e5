"""Where a dataset is written: a folder, or a place on an object store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from shardctl.build.convert.targets.base import Target
from shardctl.build.convert.targets.folder import FolderTarget
from shardctl.build.paths import check_destination
from shardctl.errors import UsageError
from shardctl.sources.roots import SourceRoot
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url


def open_target(dst: str | Path, roots: Sequence[SourceRoot]) -> AbstractContextManager[Target]:
    """Return the place of a path or of a URL, for a dataset that is made from these sources.

    Raises UsageError, StorageError, DatasetError, InstallError if it cannot be one.
    """
    if not isinstance(dst, str | Path) or not str(dst):
        raise UsageError(f"the destination is a path; it is {dst!r}")
    if is_url(dst):
        from shardctl.build.convert.targets.store import on_store  # an extra

        return on_store(str(dst))
    return nullcontext(FolderTarget(LocalFolder(check_destination(Path(dst), roots))))
