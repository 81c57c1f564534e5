"""Errors of one process that are raised in another one, with the traceback that they had in the
first."""

from __future__ import annotations

import pickle
import traceback


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


def raise_again(error: BaseException) -> None:
    """Raise an error of another process, with its traceback there if it brings that."""
    remote = error.__dict__.pop("remote", None)
    if remote is None:
        raise error
    raise error from RemoteError(remote)
