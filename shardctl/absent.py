"""Files that are not in the folder of a dataset, and can be brought: the folder may stand for a dataset on a store.

Such a folder (shardctl/mirrors) is a scratch folder of this machine. Its path tells, and a file beside it says which dataset it
stands for: so every process that is handed the path finds the rest. Other paths cost nothing: only where a file is not there
the text of the path is looked at.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

SCRATCH = "shardctl-scratch-"
"""How the names of scratch folders begin."""

SCRATCH_FILES = "files"
"""The folder in a scratch folder that has the files."""

AT = "at"
"""In it, the folder with the one that stands for a dataset, which has the name of the dataset."""

MARK = "mirror.json"
"""In it, the file that says for which dataset it stands: a Mirrored."""

WHOLE, ENDS, BLOCKS = "whole", "ends", "blocks"
"""How shards are brought: each whole; its end alone, in a file of its size; blocks when they are read, with no file."""

TRIES = 8
"""How often a file is brought that has been deleted again, to make room for others, before it could be opened."""

_PLACE = re.compile(rf"(.*/{SCRATCH}[^/]+/{SCRATCH_FILES})/{AT}/[^/]+(?:/([^/]+))?", re.DOTALL)
_SHOWN = re.compile(rf"{SCRATCH}\w+/{SCRATCH_FILES}")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Mirrored:
    """The dataset that a folder stands for: its URL, and `base`, the folder below it that has all files but `manifest`.

    `name` is that of the local folder. `form` says how shards are brought: WHOLE, ENDS or BLOCKS. `limit` is how many bytes may
    be on the disk, without the files that are `kept`. `version` is that of the manifest, empty if there is none. `listed` says
    whether all files were listed.
    """

    url: str
    base: str
    name: str
    form: str
    limit: int
    manifest: str
    version: str
    kept: tuple[str, ...]
    listed: bool

    def write(self, files: Path) -> None:
        """Write this beside the folder."""
        (files / MARK).write_text(json.dumps(asdict(self)), encoding="utf-8")

    def url_of(self, name: str) -> str:
        """Return the URL of a file of the dataset."""
        return f"{self.url}/{'' if name == self.manifest else self.base}{name}"


@lru_cache(maxsize=64)
def read_mark(files: Path) -> Mirrored:
    """Return for which dataset the folder in `files` stands. Raises OSError if it is none of these."""
    record = json.loads((files / MARK).read_text(encoding="utf-8"))
    return Mirrored(**{**record, "kept": tuple(record["kept"])})


def find_mirror(path: Path) -> Any | None:
    """Return the mirrors.Mirror that a path lies in, or is; None for all other paths."""
    found = _PLACE.fullmatch(str(path))
    if found is None:
        return None
    files = Path(found[1])
    try:
        read_mark(files)
    except OSError:  # a scratch folder for something else
        return None
    # By its name: it is far above this module, and needed only here.
    return importlib.import_module("shardctl.mirrors.mirror").mirror_at(files)


def bring(path: Path) -> bool:
    """Bring a file that is not there, and return whether it is there now. Raises StoreError."""
    mirror = find_mirror(path)
    return mirror is not None and bool(mirror.bring(path.name))


def bringing(path: Path, action: Callable[[Path], Result]) -> Result:
    """Return what `action` does with a file. If that raises FileNotFoundError and the file can be brought, do it again."""
    for _ in range(TRIES):
        try:
            return action(path)
        except FileNotFoundError:
            if not bring(path):
                raise
    return action(path)


def opened(path: Path) -> Any | None:
    """Return a file that is read where it is, as pyarrow.PythonFile takes it; None for one that must be brought, or is none."""
    mirror = find_mirror(path)
    return None if mirror is None else mirror.opened(path.name)


def origin_of(folder: Path) -> str | Path:
    """Return the URL that a folder stands for; the folder itself where it stands for nothing else."""
    mirror = find_mirror(folder)
    return folder if mirror is None else str(mirror.about.url)


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, of what could be brought too. Raises OSError, StoreError."""
    mirror, names = find_mirror(folder), os.listdir(folder)
    return names if mirror is None else sorted({*names, *mirror.names()})


def shown(text: str) -> str:
    """Return a text for people, in which paths in such folders are the URLs that they stand for."""
    if SCRATCH not in text:
        return text
    for place in set(_SHOWN.findall(text)):
        for parent in dict.fromkeys([tempfile.gettempdir(), os.path.realpath(tempfile.gettempdir())]):
            try:
                about = read_mark(Path(parent) / place)
            except OSError:
                continue
            folder = f"{parent}/{place}/{AT}/{about.name}"
            text = text.replace(f"{folder}/{about.manifest}", about.url_of(about.manifest))
            text = text.replace(f"{folder}/", about.url_of("")).replace(folder, about.url)
    return text
