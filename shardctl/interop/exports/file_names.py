"""Names of files that are safe on any file system, made of keys and of the names of classes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*~]')
"""What Windows does not allow in names; and ~, which stands before a number that tells names
apart."""

_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
MARK = "~"

LONGEST = 180
"""Bytes of a name at most, so that suffixes and numbers still fit into the 255 that file systems
allow."""

IMAGE_SUFFIXES = frozenset(
    (
        "jpg",
        "jpeg",
        "png",
        "gif",
        "bmp",
        "tif",
        "tiff",
        "webp",
        "jp2",
        "qoi",
        "avif",
        "ppm",
        "tga",
        "ico",
    )
)
TEXT_SUFFIXES = frozenset(("txt", "text"))


def safe_name(text: str) -> str:
    """Return a text as the name of a file or folder: not empty, not hidden, not reserved, of
    LONGEST bytes at most."""
    name = _UNSAFE.sub("_", text).rstrip(". ")
    if name.startswith(".") or _RESERVED.fullmatch(name) or not name:
        name = f"_{name}"
    return name.encode()[:LONGEST].decode("utf-8", "ignore")


def stem_of(key: str, folder: str | None, suffixes: frozenset[str]) -> str:
    """Return the name of the file of a sample without its suffix: what `plain_stem` returns, as a
    safe name."""
    return safe_name(plain_stem(key, folder, suffixes))


def plain_stem(key: str, folder: str | None, suffixes: frozenset[str]) -> str:
    """Return the key without the folder of its class or split, and without a suffix that is one of
    `suffixes`."""
    if folder is not None and key.startswith(f"{folder}/"):
        key = key[len(folder) + 1 :]
    stem, dot, suffix = key.rpartition(".")
    return stem if dot and suffix.lower() in suffixes and stem else key


def folded(name: str) -> str:
    """Return what is the same for names that some file systems do not tell apart: case, and forms
    of the same characters."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def class_folders(names: Sequence[str]) -> list[str]:
    """Return a folder for each class: its name, with a number where another class would have the
    same folder."""
    safe = [safe_name(name) for name in names]
    times = Counter(map(folded, safe))
    return [
        name if times[folded(name)] == 1 else f"{name}{MARK}{number}"
        for number, name in enumerate(safe)
    ]
