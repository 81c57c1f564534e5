"""Opening a dataset on a store as a folder of this machine that stands for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from shardctl.errors import DatasetError, ShardctlError, UsageError
from shardctl.format.lazy_folder.ahead import bringing_ahead
from shardctl.format.lazy_folder.files import bring, find_mirror
from shardctl.format.lazy_folder.mirror import BLOCKS, ENDS, WHOLE
from shardctl.format.names import BESIDE_SHARDS
from shardctl.system.files import naming_the_path
from shardctl.system.remote_paths import shown
from shardctl.system.scratch import scratch_folder
from shardctl.system.stores import client_of, forget_clients, is_url
from shardctl.system.text import printable

__all__ = [
    "BLOCKS",
    "ENDS",
    "WHOLE",
    "bringing_ahead",
    "check_unchanged",
    "local_folder",
    "refuse_url",
]

LIMIT = "SHARDCTL_SCRATCH_LIMIT"
"""Variable: how many bytes of a dataset on a store a command may have on the local disk at a time."""

LIMIT_BYTES = "4GiB"
"""A few dozen shards. A command needs those that it reads at the moment, and some that come next."""


@contextlib.contextmanager
def local_folder(place: str | Path, form: str = WHOLE, listed: bool = False) -> Iterator[Path]:
    """Yield the path of a dataset or of a shard: for a URL a folder of this machine that stands for it while the block runs.

    `form` says how shards are brought: WHOLE, their ENDS alone, or their BLOCKS when they are read. `listed` asks for the list
    of all files, as checks need it. Raises DatasetError if there is no dataset, StoreError, InstallError, UsageError.
    """
    if not is_url(place):
        yield Path(place)
        return
    from shardctl.format.lazy_folder.making import make_mirror  # takes a moment that local datasets need not wait for
    from shardctl.format.lazy_folder.mirror import mirror_at, mirror_of
    from shardctl.system.text import size_of

    url = str(place).rstrip("/")
    above, _, name = url.rpartition("/")
    lone = name.endswith(".arrow") or name in BESIDE_SHARDS
    limit = size_of(os.environ.get(LIMIT) or LIMIT_BYTES, LIMIT)
    with scratch_folder() as files, contextlib.ExitStack() as stack:
        try:
            with naming_the_path(files.parents[1]):
                root = (
                    make_mirror(client_of(above), files, WHOLE, limit, listed, name)
                    if lone
                    else make_mirror(client_of(url), files, form, limit, listed)
                )
            stack.callback(mirror_of(root).close)
            if lone:
                _bring_shard(root / name)
            yield root / name if lone else root
        except ShardctlError as error:
            error.args = tuple(shown(each) if isinstance(each, str) else each for each in error.args)
            raise
        finally:
            mirror_at.cache_clear()
            forget_clients()


def _bring_shard(path: Path) -> None:
    if not bring(path):
        raise DatasetError(f"{printable(str(path))}: there is no such object; give the URL of a dataset, or of a shard")


def check_unchanged(root: Path) -> None:
    """Raise DatasetError if a folder stands for a dataset on a store, and another one is there by now."""
    mirror = find_mirror(root)
    if mirror is not None:
        mirror.check_unchanged()


def refuse_url(place: str | Path, command: str) -> None:
    """Raise UsageError for a URL: the command works on file systems alone."""
    if is_url(place):
        raise UsageError(
            f"{printable(str(place))}: {command} is not supported on a store; copy the dataset to a local folder, {command}"
            " it there, and copy it back"
        )
