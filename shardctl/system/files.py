"""Files that are complete or absent, and what the file system can tell."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from shardctl.errors import DiskFullError, StorageError
from shardctl.system.text import format_bytes, printable, similar

READ_CHUNK = 1 << 20
"""Bytes read at a time when a whole file is hashed."""

STREAM_BUFFER = 1 << 20
"""Bytes that StreamedFile hands to the disk at a time."""


@dataclass(frozen=True)
class FileFacts:
    """The size in bytes and the SHA-256 (hex) of a file."""

    bytes: int
    sha256: str


class HashingFile(io.RawIOBase):
    """A file opened for writing that hashes every byte on its way out, so that the file is not read
    again."""

    _descriptor = -1
    """None is open yet: `close` is called where the file cannot be opened, too."""

    def __init__(self, path: Path) -> None:
        self._descriptor = self._open(path)
        self._sha256 = hashlib.sha256()
        self._written = 0

    def _open(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def writable(self) -> bool:
        """Return True: Arrow asks before it writes."""
        return True

    def write(self, data: Any) -> int:
        """Write all of `data` (any buffer) and return its length in bytes. Once it is closed nothing
        is written: Arrow hands over what it has left of a file that was given up."""
        if self.closed:
            return 0
        view = memoryview(data).cast("B")
        self._put(view)
        self._written += len(view)
        return len(view)

    def _put(self, view: memoryview) -> None:
        self._sha256.update(view)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._written

    def sync(self) -> None:
        """Wait until the bytes are on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. The digest stays available."""
        if not self.closed and self._descriptor >= 0:
            os.close(self._descriptor)
        super().close()

    @property
    def sha256(self) -> str:
        """The SHA-256 of everything written so far, in hex. Complete after `sync`."""
        return self._sha256.hexdigest()

    @property
    def facts(self) -> FileFacts:
        """What the file is so far: complete after `sync`."""
        return FileFacts(self._written, self.sha256)


class StreamedFile(HashingFile):
    """A HashingFile for large output: it goes to the disk past the page cache, where the file
    system can do that.

    A dataset is larger than memory more often than not, and its pages would only push out inputs
    that are still to be read. On virtual machines that give idle memory back to their host, each
    fresh page also costs a fault there: 775 MB took 2.1 s through the cache and 0.24 s past it
    (docs/dev/measurements.md).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._buffer = mmap.mmap(-1, STREAM_BUFFER)  # page-aligned, as direct output must be
        self._filled = 0

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return os.open(path, flags, 0o666)  # a file system without it, such as tmpfs

    def _put(self, view: memoryview) -> None:
        while view:
            count = min(len(view), STREAM_BUFFER - self._filled)
            self._buffer[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]
            if self._filled == STREAM_BUFFER:
                self._flush()

    def _flush(self) -> None:
        with memoryview(self._buffer) as whole, whole[: self._filled] as part:
            super()._put(part)
        self._filled = 0

    def sync(self) -> None:
        """Write what is left, which may end anywhere in a page, through the cache; then wait for
        the disk."""
        if self._filled % mmap.PAGESIZE and hasattr(os, "O_DIRECT"):
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self._flush()
        super().sync()


PARTIAL = ".partial"
"""How the name of a file ends that is still being written."""


@contextlib.contextmanager
def replacing(
    path: Path,
    opener: Callable[[Path], HashingFile] = HashingFile,
    named: Callable[[str], Path] | None = None,
) -> Iterator[HashingFile]:
    """Yield a file that appears at `path` only when the block ends without an error, synced and by
    rename; or at the path that `named` returns for its SHA-256.

    Every writer has a temporary name of its own: two that were told to write the same file cannot
    mix their bytes.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    with naming_the_path(path):
        sink = opener(partial)
        try:
            yield sink
            sink.sync()
            sink.close()
            partial.replace(path if named is None else named(sink.sha256))
        except BaseException:
            sink.close()
            with contextlib.suppress(OSError):  # the fault above is the one to tell of
                partial.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def naming_the_path(path: Path) -> Iterator[None]:
    """Turn whatever the operating system refuses into a StorageError that names `path`."""
    try:
        yield
    except OSError as error:
        shown = printable(path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            quota = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
            raise DiskFullError(
                f"{shown}: {quota} ({format_bytes(free_bytes(path))} free)"
            ) from error
        raise StorageError(f"{shown}: cannot write here ({error.strerror or error})") from error


def refuse_link(path: Path) -> None:
    """Raise StorageError if there is a link at `path`: shardctl writes and deletes nothing behind a
    link in a dataset."""
    if path.is_symlink():
        raise StorageError(
            f"{printable(path)}: a link to {printable(path.readlink())}, behind which nothing is written; remove it, then run the same command again"
        )


def refuse_links(folder: Path) -> None:
    """Raise StorageError if a folder in which shardctl works is a link, or has a link, a pipe or a
    device at any depth.

    shardctl makes none of these there. Who reads or writes in the folder afterwards would follow
    them.
    """
    refuse_link(folder)
    left = [folder]
    while left:
        # others may be working there
        with contextlib.suppress(FileNotFoundError), os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    refuse_link(Path(entry.path))
                    raise StorageError(
                        f"{printable(entry.path)}: neither a file nor a folder; remove it, then run the same command again"
                    )


_MOST_NAMES = 10_000
"""Names in a folder that are compared with a wrong one."""


def near_path(path: Path) -> str:
    """Return the end of a message about a path that does not exist: "; did you mean photos?", or ""
    without a similar name."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no such user, a path with \0
        # as on Windows, and what a shell expands
        for other in (Path(str(path).replace("\\", "/")), path.expanduser()):
            if other.exists():
                return f"; did you mean {printable(other)}?"
        names = (entry.name for entry in islice(os.scandir(path.parent), _MOST_NAMES))
        stems = [
            name.removesuffix(path.suffix)
            for name in names
            # of its own name is a link that leads nowhere
            if name.endswith(path.suffix) and name != path.name
        ]
        if near := similar(path.stem, stems):
            return f"; did you mean {printable(path.with_name(near[0] + path.suffix))}?"
    return ""


def gone(path: Path | str) -> FileNotFoundError:
    """Return the error for what is no longer there."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def exists(path: Path) -> bool:
    """Return whether there is something at `path`. Unlike Path.exists, no OSError: False if the
    system does not tell."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def is_file(path: Path) -> bool:
    """Return whether `path` is an ordinary file or a link to one. Unlike Path.is_file, no OSError:
    False as in `exists`."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder, and no link to one. No OSError: False if the system does
    not tell."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def make_folder(path: Path, below: Path) -> None:
    """Make a folder, and those above it up to `below`, which is there. Raises StorageError if one
    of them is a link."""
    for part in _places(path, below):
        refuse_link(part)
        part.mkdir(exist_ok=True)


def _places(path: Path, below: Path) -> list[Path]:
    """Return the folders on the way from `below` to `path`, and `path` itself."""
    return [path, *path.parents][: len(path.relative_to(below).parts)][::-1]


def remove_tree(path: Path, below: Path) -> None:
    """Delete a folder with all in it. No link is followed: not one in it, nor one at `path` or
    between `below` and `path`.

    Links in it are deleted themselves. Every folder is opened from the one above it, so that a link
    that comes meanwhile is not followed either. Raises StorageError for a link, OSError.
    """
    for part in _places(path, below):
        refuse_link(part)
    descriptor = os.open(below, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in path.parent.relative_to(below).parts:
            outer, descriptor = (
                descriptor,
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor),
            )
            os.close(outer)
        for _, folders, files, here in os.fwalk(path.name, topdown=False, dir_fd=descriptor):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=here)
            for name in folders:
                try:
                    os.rmdir(name, dir_fd=here)
                except NotADirectoryError:  # a link to a folder
                    os.unlink(name, dir_fd=here)
        os.rmdir(path.name, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> str:
    """Write `data` to `path`, complete or absent, and return its SHA-256 in hex."""
    with replacing(path) as sink:
        sink.write(data)
    return sink.sha256


def ordinary(path: str, flags: int) -> int:
    """Open an ordinary file, or a link to one: an opener for `open`. Raises OSError for all else.

    To open a pipe would wait for a writer, perhaps for ever, and some devices have no end.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_special(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_ordinary(path: Path | str) -> io.FileIO:
    """Open an ordinary file, or a link to one, without a buffer. Raises OSError for all else."""
    return open(path, "rb", buffering=0, opener=ordinary)


def check_ordinary(path: Path | str) -> None:
    """Raise OSError if `path` is no ordinary file, for libraries that open it themselves: see
    `ordinary`."""
    _refuse_special(os.stat(path), os.fspath(path))  # noqa: PTH116 - a path of text, too


def _refuse_special(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not an ordinary file", path)


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes of an ordinary file, complete or absent, and on the disk when this returns."""
    with open_ordinary(source) as file, replacing(target) as sink:
        while chunk := file.read(READ_CHUNK):
            sink.write(chunk)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of an ordinary file in hex, reading it piece by piece."""
    digest = hashlib.sha256()
    with open_ordinary(path) as file:
        while chunk := file.read(READ_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_bytes(path: Path) -> bytes:
    """Return the bytes of an ordinary file. Raises OSError: also for a pipe or a device, which it
    never waits for."""
    with open_ordinary(path) as file:
        return file.read()


def read_named(path: Path) -> bytes:
    """Return the bytes of a file that a person names, as `read_bytes` does, or of one that is open
    in this process already.

    What the shell gives for <(command) or /dev/stdin is a pipe of which somebody writes the end.
    """
    return (
        path.read_bytes() if str(path).startswith(("/dev/fd/", "/dev/stdin")) else read_bytes(path)
    )


def sync_folder(folder: Path) -> None:
    """Make the renames inside `folder` durable."""
    with naming_the_path(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class HashingReader(io.RawIOBase):
    """Hashes every byte of an open file on its way in: the digest is of what was read, whatever
    comes later.

    Give it to io.BufferedReader. The file is the caller's to close.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()

    def readable(self) -> bool:
        """Return True: a buffered reader asks before it reads."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as one read of the file does, and return the number of bytes; 0 at
        the end."""
        count = self._file.readinto(buffer)
        self._sha256.update(memoryview(buffer)[:count])
        return count

    @property
    def sha256(self) -> str:
        """The SHA-256 of everything read so far, in hex."""
        return self._sha256.hexdigest()


def free_bytes(path: Path) -> int:
    """Return the free bytes of the file system that holds `path`, or would hold it once made."""
    while path != path.parent:
        with contextlib.suppress(OSError):
            return shutil.disk_usage(path).free
        path = path.parent
    return shutil.disk_usage(path).free


_LOOKED_AT = 1 << 20
"""Bytes of a file that tell whether it was written here."""


@dataclass(frozen=True)
class OutputFileType:
    """A kind of file, such as "page", and what knows one of it by its first bytes, up to 1 MiB."""

    name: str
    is_one: Callable[[bytes], bool]

    def check(self, path: Path) -> None:
        """Raise StorageError if there is a file at `path` of another form: it would be lost. One
        without a byte may go.

        It is also raised for a folder, and for a path in a folder that does not exist: to make the
        file may take long.
        """
        if not is_file(path):
            code = errno.EISDIR if path.is_dir() else 0 if path.parent.is_dir() else errno.ENOENT
            if code:
                raise StorageError(f"{printable(path)}: cannot be written ({os.strerror(code)})")
            return
        try:
            with open(path, "rb") as file:
                begin = file.read(_LOOKED_AT)
        except OSError as error:
            raise StorageError(f"{printable(path)}: cannot be read ({error.strerror})") from error
        if begin and not self.is_one(begin):
            raise StorageError(
                f"{printable(path)}: exists, and is not a {self.name} of shardctl; move it "
                "away, or give another name"
            )

    def write(self, path: Path, content: bytes) -> None:
        """Write a file, complete or not at all. Raises StorageError, as `check` does too.

        The file gets a new place on the disk: what was there may be a hard link to something else.
        A link stays one.
        """
        self.check(path)
        try:
            if path.exists() and not is_file(path):
                path.write_bytes(content)  # a pipe, a terminal
            else:
                write_atomically(path.resolve(), content)
        except OSError as error:
            raise StorageError(
                f"{printable(path)}: cannot be written ({error.strerror})"
            ) from error
