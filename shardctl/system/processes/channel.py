"""Objects, and errors with their tracebacks, that two processes of this package send to each other
over a Unix socket: the bytes of a pickle, and the pickle.

Nobody else has the socket. If a process dies, the other one finds at once that the socket has
ended.
"""

from __future__ import annotations

import pickle
import socket
import struct
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

_SIZE = struct.Struct("<Q")


class Ended(Exception):
    """The other end of a socket is gone."""


def packed(message: Any) -> bytes:
    """Return the bytes in which an object is sent. Raises what pickling raises."""
    data = pickle.dumps(message, protocol=5)
    return _SIZE.pack(len(data)) + data


def send(channel: socket.socket, message: Any) -> None:
    """Send an object. Raises OSError, and what pickling raises before anything is sent."""
    channel.sendall(packed(message))


def receive(channel: socket.socket) -> Any:
    """Return what was sent. Raises Ended, and what unpickling raises."""
    return pickle.loads(receive_pickle(channel))


def receive_pickle(channel: socket.socket) -> bytearray:
    """Return the pickle of what was sent. Raises Ended."""
    (size,) = _SIZE.unpack(_receive_bytes(channel, _SIZE.size))
    return _receive_bytes(channel, size)


def take_whole(data: bytearray) -> Iterator[Any]:
    """Yield the objects that are there whole, and take them out of the bytes that have arrived: for
    who cannot wait for the rest of one. Raises what unpickling raises."""
    while len(data) >= _SIZE.size and len(data) >= (end := _SIZE.size + _SIZE.unpack_from(data)[0]):
        message = pickle.loads(data[_SIZE.size : end])
        del data[:end]
        yield message


def _receive_bytes(channel: socket.socket, size: int) -> bytearray:
    """Return exactly so many bytes. Raises Ended."""
    data = bytearray(size)
    left = memoryview(data)
    while left:
        try:
            count = channel.recv_into(left)
        except OSError as error:
            raise Ended from error
        if not count:
            raise Ended
        left = left[count:]
    return data


class RemoteError(Exception):
    """The cause of an error that was raised in another process: its traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled and raised by another process: the same, with its
    traceback as `remote`."""
    remote = "".join(traceback.format_exception(error))
    try:
        error.__dict__["remote"] = remote
        pickle.loads(pickle.dumps(error, protocol=5))
    except Exception:  # noqa: BLE001 - whatever a class of errors needs, or does
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.__dict__["remote"] = remote
    return error


def raise_again(error: BaseException) -> NoReturn:
    """Raise an error of another process, with its traceback there if it brings that."""
    remote = error.__dict__.pop("remote", None)
    if remote is None:
        raise error
    raise error from RemoteError(remote)
