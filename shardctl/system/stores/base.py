"""What shardctl needs of an object store: a few calls, with conditions where two processes may
write the same object."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from shardctl.errors import WrongAnswerError

if TYPE_CHECKING:
    import pyarrow as pa  # is_url is asked where nothing else needs Arrow


Answer = TypeVar("Answer")

Kind = Literal["file", "link", "folder", "other"]


class Entry(NamedTuple):
    """A file of a folder: its `name` there, its size in bytes, its `version`, and what `kind` of
    file it is.

    Of an object, the name is its key below the URL that was opened. The version is what the store
    itself calls it (an ETag): it differs when the content does. It is "" for files of this machine,
    and where it is not known. A link is one to an ordinary file; `other` is a pipe, a device, a
    socket, or a link to anything else.
    """

    name: str
    size: int
    version: str = ""
    kind: Kind = "file"


PIECE = 8 << 20
"""Bytes of a large object that come with one request."""

PIECES_AT_ONCE = 8
"""Requests for one object that are under way at the same time, or whose bytes are in memory: 64
MiB. 30 ms away, 512 MiB came at 900 MiB/s, and with 4 of them at 650."""


WRONG_ADVICE = "the store, or a proxy before it, sends something else: check both, then try again"
"""What to do where a store does not send what was asked for."""


def asked_again(ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` does. What is not what was asked for is asked for once more: a proxy may
    have sent it."""
    try:
        return ask()
    except WrongAnswerError:
        return ask()


class Store(Protocol):
    """Objects below one prefix of one bucket. Threads may share it; a forked process may not.

    Keys are relative to `url`, with / between their parts. All calls raise StoreError, a sentence
    that names the action and the key; NoSuchKeyError where the object is not there; UnansweredError
    where the store does not answer, or cannot at the moment.
    """

    url: str
    """Where this is, without a / at its end: s3://bucket/prefix."""

    seeks: bool
    """Whether a listing begins right after a key. Else the store lists what comes before it too,
    which takes as long."""

    def get(
        self, key: str, start: int = 0, length: int | None = None, version: str | None = None
    ) -> pa.Buffer:
        """Return the bytes of an object, or `length` of them from `start` on; fewer where it ends
        before.

        Raises ObjectChangedError if `version` is given, and it is another one by now.
        """
        ...

    def exactly(self, found: Entry, start: int, length: int) -> pa.Buffer:
        """Return `length` bytes of an object that was found. Raises as `pieces` does."""
        ...

    def pieces(
        self, found: Entry, start: int = 0, at_once: int = PIECES_AT_ONCE
    ) -> Iterator[pa.Buffer]:
        """Yield the bytes of an object from `start` on, in order, PIECE at a time.

        `at_once` of the pieces are requested, or in memory. Raises ObjectChangedError if the object
        has another version than `found` (where that is "", none is asked for), WrongAnswerError if
        it ends before the size of `found`.
        """
        ...

    def fetch(self, key: str, length: int) -> tuple[pa.Buffer, Entry]:
        """Return the first `length` bytes of an object, fewer where it ends before, and what it is
        that they are of."""
        ...

    def stat(self, key: str) -> Entry | None:
        """Return what is known of an object, None if there is none."""
        ...

    def put(self, key: str, data: bytes | Path) -> str:
        """Write an object, whole or not at all, from memory or from a file, and return its
        version."""
        ...

    def create(self, key: str, data: bytes) -> str | None:
        """Write an object if there is none, and return its version; None if there is one.

        One with exactly these bytes counts as written by this call: the answer to it may have been
        lost. Where it matters who wrote an object, the bytes must tell.
        """
        ...

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        """Write an object if it still has this version, and return the new one; None if it has
        another one, or is gone.

        One with exactly these bytes counts as written by this call, as with `create`.
        """
        ...

    def pages(self, prefix: str = "", after: str = "") -> Iterator[list[Entry]]:
        """Yield the objects whose keys begin with `prefix` and come after `after`, page by page, in
        the order of their keys."""
        ...

    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        """Return what is directly in a folder: the names of folders, relative to it, and the
        objects."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are left out."""
        ...


PART = 8 << 20
"""Bytes of a part of an upload. S3 takes 10,000 parts: objects of up to 78 GiB."""

ENDING_SECONDS = 3.0
"""How long to wait for uploads that are ended: the client asks for the next part when one of those
on their way has arrived."""


class UploadEndedError(Exception):
    """This process ends its uploads."""


class Upload:
    """The parts of a file, as bytes, for one try to upload it: an iterable that raises
    UploadEndedError after `end_uploads`."""

    def __init__(self, path: Path) -> None:
        self._path, self._ended = path, False

    def __enter__(self) -> Upload:
        with _changed:
            _running.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _changed:
            _running.discard(self)
            _changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        with open(self._path, "rb") as file:
            while data := file.read(PART):
                yield data
                if self._ended:
                    raise UploadEndedError

    def end(self) -> None:
        """Have the upload end at the next part."""
        self._ended = True


_running: set[Upload] = set()
_changed = threading.Condition()


def end_uploads() -> None:
    """End the uploads of this process, and wait until their parts are gone, up to
    ENDING_SECONDS."""
    with _changed:
        ending = set(_running)
        for upload in ending:
            upload.end()
        _changed.wait_for(lambda: not ending & _running, ENDING_SECONDS)
