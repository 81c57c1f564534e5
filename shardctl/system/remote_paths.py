"""Paths that stand for objects on a store: s3://bucket/a/b is known in a process by a path in a folder of this machine.

So a source on a store has names, folders and files beside each other as one on a disk has, and the same code finds its way in
it. Nothing need be at such a path: sources/remote/remote_files.py brings what is opened. The folder has the same name for all
processes of a user on a machine, and its paths say which objects they stand for: nothing has to be passed on from one process
to another.
"""

from __future__ import annotations

import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from shardctl.system.schemes import SCHEMES

FOLDER = "shardctl-sources-"
"""How the name of the folder begins."""

_SCHEME = "|".join(SCHEMES)

_URL = re.compile(rf"({_SCHEME})://([^/]+)(?:/(.*))?", re.DOTALL)


class Object(NamedTuple):
    """Where an object is, or would be: the URL of its bucket, and its key there, "" for the bucket itself."""

    bucket: str
    key: str

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket


def folder_of_all() -> str:
    """Return the folder in which all such paths are: that of this user, where temporary files are."""
    return _folder(tempfile.gettempdir(), os.geteuid() if hasattr(os, "geteuid") else 0)


@lru_cache(8)
def _folder(temporary: str, user: int) -> str:
    return os.path.join(os.path.realpath(temporary), f"{FOLDER}{user}")


def stand_in(url: str) -> str:
    """Return the path that stands for a URL. Raises ValueError for what is none of a store."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url!r} is no URL of a store")
    scheme, bucket, key = match.groups()
    return "/".join(filter(None, (folder_of_all(), scheme, bucket, (key or "").rstrip("/"))))


def object_of(path: str | os.PathLike[str]) -> Object | None:
    """Return the object, or the folder of objects, that a path stands for; None for a path that stands for nothing."""
    text = os.fspath(path)
    if FOLDER not in text:
        return None
    base = folder_of_all()
    if not text.startswith(f"{base}/"):
        return None
    scheme, _, rest = text[len(base) + 1 :].partition("/")
    bucket, _, key = rest.partition("/")
    return Object(f"{scheme}://{bucket}", key) if bucket and _URL.match(f"{scheme}://{bucket}") else None


def source_of(path: str | Path) -> str:
    """Return what a person calls a path: the URL that it stands for, or the path itself."""
    found = object_of(path)
    return str(path) if found is None else found.url


def path_of(source: str | Path) -> Path:
    """Return the path of a source: what stands for a URL, or the path itself."""
    return Path(stand_in(source)) if isinstance(source, str) and _URL.fullmatch(source) else Path(source)


def shown(text: str) -> str:
    """Return a text for people, in which URLs are in the places of paths that stand for them."""
    if FOLDER not in text:
        return text
    return re.sub(rf"{re.escape(folder_of_all())}/({_SCHEME})/", r"\1://", text)
