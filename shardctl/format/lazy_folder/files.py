"""Files that are not in the folder of a dataset, and can be brought: the folder may stand for a dataset on a store.

Such a folder is a scratch folder of this machine. Its path tells, and a file beside it says which dataset it stands for: so
every process that is handed the path finds the rest. Other paths cost nothing: only where a file is not there the text of the
path is looked at.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shardctl.format.lazy_folder.mirror import Mirror, mirror_at
from shardctl.format.lazy_folder.ranged import OpenFile
from shardctl.system.files import READ_CHUNK, ordinary, replacing
from shardctl.system.remote_paths import AT, SCRATCH, SCRATCH_FILES, read_mark

_PLACE = re.compile(rf"(.*/{SCRATCH}[^/]+/{SCRATCH_FILES})/{AT}/[^/]+(?:/([^/]+))?", re.DOTALL)

Result = TypeVar("Result")


def find_mirror(path: Path) -> Mirror | None:
    """Return the mirrors.Mirror that a path lies in, or is; None for all other paths."""
    found = _PLACE.fullmatch(str(path))
    if found is None:
        return None
    files = Path(found[1])
    try:
        read_mark(files)
    except OSError:  # a scratch folder for something else
        return None
    return mirror_at(files)


def bring(path: Path) -> bool:
    """Bring a file that is not there, and return whether it is there now. Raises StoreError."""
    mirror = find_mirror(path)
    return mirror is not None and mirror.bring(path.name)


def bringing(path: Path, action: Callable[[Path], Result]) -> Result:
    """Return what `action` does with a file. If that raises FileNotFoundError and the file can be brought, do it again."""
    try:
        return action(path)
    except FileNotFoundError:
        if not bring(path):
            raise
    return action(path)


def opened(path: Path) -> OpenFile | None:
    """Return a file that is read where it is, as pyarrow.PythonFile takes it; None for one that must be brought, or is none."""
    mirror = find_mirror(path)
    return None if mirror is None else mirror.opened(path.name)


def origin_of(folder: Path) -> str | Path:
    """Return the URL that a folder stands for; the folder itself where it stands for nothing else."""
    mirror = find_mirror(folder)
    return folder if mirror is None else mirror.about.url


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, of what could be brought too. Raises OSError, StoreError."""
    mirror, names = find_mirror(folder), os.listdir(folder)
    return names if mirror is None else sorted({*names, *mirror.names()})


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes of a file, complete or absent, and on the disk when this returns."""
    with bringing(source, _opened) as file, replacing(target) as sink:
        while chunk := file.read(READ_CHUNK):
            sink.write(chunk)


def _opened(path: Path) -> io.FileIO:
    return open(path, "rb", buffering=0, opener=ordinary)


def move(source: Path, target: Path) -> None:
    """Rename a file of a dataset; whatever has the new name is replaced."""
    bringing(source, lambda path: path.rename(target))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex, reading it piece by piece."""
    digest = hashlib.sha256()
    with bringing(path, _opened) as file:
        while chunk := file.read(READ_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def exists(path: Path) -> bool:
    """Return whether there is something at `path`. Unlike Path.exists, no OSError: False if the system does not tell."""
    try:
        size_of_file(path)
    except OSError:
        return False
    return True


def size_of_file(path: Path) -> int:
    """Return the size of a file in bytes. Raises OSError."""
    return bringing(path, Path.stat).st_size


def is_file(path: Path) -> bool:
    """Return whether `path` is an ordinary file or a link to one. Unlike Path.is_file, no OSError: False as in `exists`."""
    try:
        return stat.S_ISREG(bringing(path, Path.stat).st_mode)
    except OSError:
        return False


def is_regular_file(path: Path) -> bool:
    """Return whether `path` is an ordinary file: not a link, a folder, a pipe or a device."""
    try:
        return stat.S_ISREG(bringing(path, Path.lstat).st_mode)
    except OSError:
        return False
