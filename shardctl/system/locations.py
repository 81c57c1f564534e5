"""The text of a location: a path, or the URL of an object or of a folder of objects. Both have /
between their parts.

Nothing is looked at: these functions say where something would be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.system.text import printable

SCHEMES = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""The module of stores/ that opens the URLs of a scheme: connect(url, bucket, prefix). The extra with
its packages has its name."""

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)

_STORED = re.compile(rf"({'|'.join(SCHEMES)})://([^/]+)(?:/(.*))?", re.DOTALL)


def is_url(text: str | Path) -> bool:
    """Return whether what a person gave is a URL, of any scheme, and not a path: of these, a store
    is opened by those in SCHEMES. Raises UsageError for a URL
    that was made a Path."""
    if isinstance(text, Path):
        scheme = text.parts[0] if text.parts else ""
        if scheme.endswith(":") and scheme[:-1] in SCHEMES:
            raise UsageError(
                f"{printable(text)}: a Path drops one / of a URL; give the URL as a string"
            )
        return False
    return URL.fullmatch(text) is not None


def is_stored(text: str) -> bool:
    """Return whether this is the URL of a bucket of an object store, or of what is in it. No path
    that Path writes is one."""
    return "://" in text and _STORED.match(text) is not None


def split_bucket(text: str) -> tuple[str, str] | None:
    """Return the URL of the bucket that something is in, and its key there, "" for the bucket
    itself; None for a path."""
    found = _STORED.fullmatch(text)
    return None if found is None else (f"{found[1]}://{found[2]}", found[3] or "")


def normal(text: str) -> str:
    """Return the same location as datasets and messages have it: without empty parts, without . and
    without / at the end."""
    found = split_bucket(text)
    if found is None:
        return str(Path(text))
    return "/".join((found[0], *(part for part in found[1].split("/") if part not in ("", "."))))


def within(folder: str) -> str:
    """Return how the locations of what is in a folder begin."""
    return "" if folder == "." else folder if folder.endswith("/") else f"{folder}/"


def join(folder: str, path: str) -> str:
    """Return the location of a path in a folder; `..` stays in it. A path from the root on, and a
    URL, are themselves."""
    return normal(path if path.startswith("/") or is_stored(path) else f"{within(folder)}{path}")


def parent_of(text: str) -> str:
    """Return the folder that has it. That of a bucket is the bucket."""
    if not is_stored(text):
        return os.path.dirname(text) or "."  # noqa: PTH120 - see pyproject.toml on Path in what is done per unit
    folder = text.rpartition("/")[0]
    return folder if is_stored(folder) else text


def name_of(text: str) -> str:
    """Return the last part."""
    return text.rpartition("/")[2]


def beside(text: str, other: str) -> str:
    """Return the location of another file of the same folder."""
    return f"{text[: text.rfind('/') + 1]}{other}"


def folders_above(text: str) -> list[str]:
    """Return the folders that have it, the nearest first. The last one of a URL is its bucket."""
    found = [text]
    while (folder := parent_of(found[-1])) != found[-1]:
        found.append(folder)
    return found[1:]


def path_below(text: str, folder: str) -> str | None:
    """Return the path of a location from a folder on, "" for the folder itself; None if it is not
    in it.

    Links are not followed, and both are written in one way.
    """
    if text == folder:
        return ""
    begin = within(folder)
    return text[len(begin) :] if text.startswith(begin) else None


def follow(folder: str, path: str) -> str:
    """Return the location that a path leads to from a folder; `..` leads upwards, and on a store as
    far as another bucket.

    A path from the root on, and a URL, are themselves.
    """
    if is_stored(path) or not is_stored(folder) or path.startswith("/"):
        return path if is_stored(path) else os.path.normpath(os.path.join(folder, path))
    found = _url(os.path.normpath(f"{_plain(folder)}/{path}"))
    return found if is_stored(found) else join(folder, path)


def relative(text: str, folder: str) -> str:
    """Return the path that leads to a location from a folder, with `..` where it must; the location
    where one of them only is on a store. `follow` takes it back."""
    if is_stored(text) != is_stored(folder):
        return text
    return (
        os.path.relpath(_plain(text), _plain(folder))
        if is_stored(text)
        else os.path.relpath(text, folder)
    )


def common(texts: Sequence[str]) -> str:
    """Return the folder that has all of these, or is all of these; "" if there is none: paths and
    URLs, two schemes."""
    stored = set(map(is_stored, texts))
    if len(stored) > 1:
        return ""
    if stored == {False}:
        return os.path.commonpath(texts)
    found = _url(os.path.commonpath(list(map(_plain, texts))))
    return found if is_stored(found) else ""


def _plain(url: str) -> str:
    """Return a URL as a path: /s3/bucket/key."""
    return f"/{url.replace('://', '/', 1)}"


def _url(path: str) -> str:
    """Return the URL of such a path."""
    return path[1:].replace("/", "://", 1)


def here_only(place: str | Path, command: str) -> Path:
    """Return the path of a folder, for a command that works on file systems alone. Raises
    UsageError for a URL."""
    if is_url(place):
        raise UsageError(
            f"{printable(place)}: {command} works on no store; copy the dataset to a local folder, do it"
            " there, and copy it back"
        )
    return Path(place)
