"""Uploads in parts that can be ended: the client takes the parts away again only if it is told so
before it ends itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

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
