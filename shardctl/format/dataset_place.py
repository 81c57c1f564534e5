"""Where a dataset is that a command reads: in a folder of this machine, or on a store behind a
cache of the command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shardctl.errors import DatasetError
from shardctl.format.footer import MAGIC
from shardctl.format.names import BESIDE_SHARDS, TABLES
from shardctl.system.files import is_file, naming_the_path, ordinary
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url
from shardctl.system.scratch import scratch_folder
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.text import printable, size_of

if TYPE_CHECKING:
    from shardctl.format.on_store.dataset import DatasetOnStore, Form

LIMIT = "SHARDCTL_SCRATCH_LIMIT"
"""Variable: how many bytes of a dataset on a store a command may have on the local disk at a
time."""

LIMIT_BYTES = "4GiB"
"""A few dozen shards. A command needs those that it reads at the moment, and some that come
next."""


DatasetFolder: TypeAlias = "LocalFolder | DatasetOnStore"
"""The folder of a dataset that a command reads, and perhaps changes."""


class DatasetPlace(NamedTuple):
    """The folder of a dataset; or that of one shard, by its name, which is read without the
    dataset."""

    folder: DatasetFolder
    lone: str = ""

    @property
    def shown(self) -> str:
        """The location of the dataset or the shard, as it is printed."""
        return self.folder.shown(self.lone)

    @property
    def whole(self) -> DatasetFolder:
        """The folder of the dataset. Raises DatasetError if it is one shard."""
        if self.lone:
            raise DatasetError(
                f"{self.shown}: a file, not the folder of a dataset; give the folder, "
                f"{self.folder.shown()}"
            )
        return self.folder


@contextlib.contextmanager
def open_place(
    place: str | Path, form: Form = "whole", listed: bool = False
) -> Iterator[DatasetPlace]:
    """Yield where a dataset is, or a shard. What is on a store can be read while the block runs.

    `form` says how shards of a store are fetched (DatasetOnStore). `listed` asks for the list of
    all files, as checks need it. Raises DatasetError if there is no dataset, StoreError,
    InstallError, UsageError.
    """
    if not is_url(place):
        path = Path(place)
        _refuse_other_file(path)
        yield (
            DatasetPlace(LocalFolder(path.parent), path.name)
            if is_file(path)
            else DatasetPlace(LocalFolder(path))
        )
        return
    # local datasets need not wait for it
    from shardctl.format.on_store.opening import open_on_store, open_shard_on_store

    url = str(place).rstrip("/")
    above, _, name = url.rpartition("/")
    limit = size_of(os.environ.get(LIMIT) or LIMIT_BYTES, LIMIT)
    with scratch_folder() as scratch, contextlib.ExitStack() as stack:
        stack.callback(forget_clients)
        lone = name.endswith(".arrow") or name in BESIDE_SHARDS
        with naming_the_path(scratch.parents[1]):
            if lone:
                dataset = open_shard_on_store(client_of(above), scratch, limit, name)
            else:
                dataset = open_on_store(client_of(url), scratch, form, limit, listed)
        stack.callback(dataset.close)
        yield DatasetPlace(dataset, name if lone else "")


def _refuse_other_file(path: Path) -> None:
    """Raise DatasetError for a file that is neither a shard nor another file of a dataset."""
    if path.suffix == ".arrow" or path.name in BESIDE_SHARDS or not is_file(path):
        return
    try:
        with open(path, "rb", opener=ordinary) as file:
            begin = file.read(len(MAGIC))
    except OSError:  # who reads the shard says why it cannot be read
        return
    if begin == MAGIC:
        return
    makes = (
        f"`shardctl convert {printable(str(path))} out` makes one if it is an input that "
        "shardctl reads"
    )
    raise DatasetError(f"{printable(str(path))}: not a dataset, and not a shard of one; {makes}")


def refuse_part_of_dataset(place: DatasetPlace) -> None:
    """Raise DatasetError if what should be a shard is another file of a dataset."""
    folder, name = place
    if name in BESIDE_SHARDS:
        what = "a table of a dataset" if name in TABLES else "a file about a dataset"
        raise DatasetError(
            f"{folder.shown(name)}: {what}, not a shard; give the folder of the dataset, "
            f"{folder.shown()}"
        )


def check_unchanged(folder: DatasetFolder) -> None:
    """Raise DatasetError if the dataset is on a store, and another one is there by now."""
    if not isinstance(folder, LocalFolder):
        folder.check_unchanged()


def to_json(folder: DatasetFolder) -> dict[str, Any]:
    """Return what another process of the same command makes the same folder of."""
    if isinstance(folder, LocalFolder):
        return {"local": str(folder.root)}
    return {"on_store": asdict(folder)}


def from_json(record: dict[str, Any]) -> DatasetFolder:
    """Return the folder that `to_json` was given."""
    if "local" in record:
        return LocalFolder(Path(record["local"]))
    from shardctl.format.on_store.dataset import DatasetOnStore

    return DatasetOnStore(**{**record["on_store"], "kept": tuple(record["on_store"]["kept"])})
