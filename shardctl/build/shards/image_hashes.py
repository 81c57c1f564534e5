"""What is found out about image files before there is a plan, so that duplicates are known: hashes
of bytes, or of pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

from shardctl.build.shards.inputs import NO_ANSWER, read_file
from shardctl.build.shards.prefetch import ReadRequest, take
from shardctl.build.shards.scan import Found
from shardctl.errors import Rejection
from shardctl.images.codecs.deep_gray import GrayRange
from shardctl.images.codecs.image import Opened, check, open_image, upright
from shardctl.images.codecs.measures import HASH_SIDE, phash
from shardctl.sources.formats import ranges
from shardctl.system.locations import is_stored
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.transforms.base import settings_of
from shardctl.transforms.filter import Filter, judge
from shardctl.transforms.table import parse_step

DIGEST_BYTES = 16
"""Bytes of a SHA-256 that are compared. It is no hash for speed: files could be made that have the
same one of those."""

SILENT = "no-answer"
"""The error of a file whose disk or server does not answer."""


class ListedFile(NamedTuple):
    """A file as it was listed: the path or the URL by which it is opened, its size in bytes, when
    it was changed last in ns."""

    opened: str
    size: int
    mtime_ns: int

    @property
    def requests(self) -> Sequence[ReadRequest]:
        """The object that it is, if it is on a store."""
        return (
            (ReadRequest(self.opened, self.size, self.mtime_ns, True),)
            if is_stored(self.opened)
            else ()
        )


@dataclass(frozen=True)
class ImageHashTask:
    """Work on some files: `what` is `bytes` (a hash of them), `decodes` (whether the image does) or
    `picture` (a hash of it).

    Images that a filter of the recipe rejects are not compared: what is kept for them would be
    rejected in the end.

    Found is {"hash": number} for each, {"hash": None} for one that cannot be compared, {"fault": …}
    as in scan.py.
    """

    name: ClassVar[str] = "hash"
    files: tuple[ListedFile, ...]
    what: str
    max_pixels: int
    keep_truncated: bool
    filters: tuple[Filter, ...] = ()
    gray16: GrayRange | None = None

    def __len__(self) -> int:
        return len(self.files)

    def finish(self, found: Found) -> None:
        """Nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **asdict(self),
            "filters": list(map(settings_of, self.filters)),
            "gray16": self.gray16 and str(self.gray16),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ImageHashTask:
        """Build what `to_json` gave."""
        files, filters = (
            tuple(ListedFile(*file) for file in record["files"]),
            tuple(map(parse_step, record["filters"])),
        )
        gray16 = record["gray16"] and GrayRange.parse(record["gray16"])
        return cls(**{**record, "files": files, "filters": filters, "gray16": gray16})

    def reads(self, number: int) -> Sequence[ReadRequest]:
        """Return the object that a file is."""
        return self.files[number].requests

    def examine(self, number: int, progress: WorkerProgress) -> dict[str, Any]:
        """Read a file and hash it. Raises Rejection, OSError."""
        data = _bytes_of(self.files[number])
        if self.what == "bytes":
            return {"hash": int.from_bytes(hashlib.sha256(data).digest()[:DIGEST_BYTES], "big")}
        progress.enter("decode")
        opened = open_image(data, self.max_pixels, self.keep_truncated, gray16=self.gray16)
        judge(self.filters, opened)
        return {"hash": _HASHES[self.what](opened)}


def _decodes(opened: Opened) -> int:
    check(opened)
    return 1


def _of_picture(opened: Opened) -> int | None:
    return phash(upright(opened, (HASH_SIDE, HASH_SIDE)))


_HASHES: dict[str, Callable[[Opened], int | None]] = {"decodes": _decodes, "picture": _of_picture}


def _bytes_of(file: ListedFile) -> bytes:
    """Return the bytes of a file. Raises Rejection if it is not what was listed, OSError."""
    try:
        if is_stored(file.opened):
            return take(file.opened, file.size, file.mtime_ns)
        data, status = read_file(file.opened, file.size)
    except OSError as error:
        if error.errno in NO_ANSWER:
            raise Rejection("read", SILENT, f"cannot be read ({error.strerror})") from error
        raise
    if status.st_mtime_ns != file.mtime_ns or len(data) != file.size:
        raise ranges.changed()
    return data
