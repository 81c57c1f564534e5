"""The errors of shardctl, with the exit codes of the command line.

ShardctlError                 3  cannot do it
├── UsageError                2  wrong usage: options that contradict each other, impossible sizes
├── InputError                3  the sources do not exist, or do not fit the options
├── StorageError              3  the file system refuses: full, read-only, not permitted
│   └── StoreError            3  an object store refuses
│       └── UnansweredError   3  it does not answer, or cannot at the moment
├── DatasetError              3  not a dataset, or a damaged one
│   └── DamageError           3  bytes of samples are damaged: what on_error="skip" leaves out
├── ConsumerError             3  a consumer named for a measurement raised, or did not return
├── WorkerError               3  a worker process ended without finishing its shard, or could not be started
├── BusyError                 3  another converter is writing the same dataset
├── InstallError              3  a package is missing, or two that exclude each other are installed
├── UnfinishedError           1  parts of a conversion are still to be built before the conversion can be finished
├── TypesDifferError          -  a record does not fit the types that were found in others; convert finds them again
└── TooManyRejectsError       1  more inputs were rejected than --max-rejects allows
Rejection                     -  one input could not be converted; it becomes a line of rejects.jsonl
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class ShardctlError(Exception):
    """Base class of shardctl's errors. The message is one sentence: what, where, what to do."""

    exit_code = 3


class UsageError(ShardctlError):
    """Wrong usage: options that contradict each other, impossible sizes."""

    exit_code = 2


class InputError(ShardctlError):
    """The sources do not exist, or do not fit the options."""


class SourceGoneError(InputError):
    """A whole source disappeared while it was read (unmounted, unplugged), or does not respond."""


class StorageError(ShardctlError):
    """The file system refused: no space, no permission, read-only."""


class DiskFullError(StorageError):
    """The disk is full, or the quota is used up."""


class StoreError(StorageError):
    """An object store refused (no such bucket, no permission, credentials that have expired), or
    did not answer."""


class NoSuchKeyError(StoreError):
    """There is no object with this key."""


class ObjectChangedError(StoreError):
    """An object was written again while it was in use."""


class WrongAnswerError(StoreError):
    """An object store, or what is between, sent something else than what was asked for: too few
    bytes, a page of HTML."""


ShortAnswerError = WrongAnswerError
"""Its name in 1.0.0rc1."""


class NotPermittedError(StoreError):
    """An object store does not permit a request: for this object, or for all."""


class UnansweredError(StoreError):
    """An object store did not answer, or cannot answer at the moment. The request may have been
    carried out, or not."""


class BrokenAnswerError(UnansweredError):
    """The connection to an object store broke while it answered, so that its client did not ask
    again."""


class StandstillError(BrokenAnswerError):
    """One request to an object store took all the time for retries: this process may have stood
    still."""


class DatasetError(ShardctlError):
    """Not a shardctl dataset, or one that is damaged."""


class DamageError(DatasetError):
    """The bytes of samples are not as they were written, or no decoder takes them. The machine and
    the store work.

    `places` has the indices of the damaged samples among the requested samples. It is empty if none
    were requested.
    """

    def __init__(self, message: str, places: Any = ()) -> None:
        super().__init__(message)
        self.places = places


class ConsumerError(ShardctlError):
    """A consumer that was named for a measurement raised, or did not return in time."""


class WorkerError(ShardctlError):
    """Worker processes keep dying while they work on no input, so that no input can be rejected as
    the cause.

    Or they cannot be started, because this process may not open enough files; or one that makes
    batches for a loader died.
    """


class BusyError(ShardctlError):
    """Another process is writing the same dataset: `owner`, if it is known."""

    def __init__(self, message: str, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class PerhapsBusyError(BusyError):
    """Another process may be writing the same dataset, or may have ended: shardctl cannot know
    yet."""


class UnfinishedError(ShardctlError):
    """Some parts of a conversion are not built yet, so that the conversion cannot be finished."""

    exit_code = 1


class InstallError(ShardctlError):
    """A needed package is missing, or two that exclude each other are installed."""


class TypesDifferError(ShardctlError):
    """A record has a field, or a value, that does not fit the types that were found in some other
    records.

    Never reaches a user: the types are then found in all records.
    """


class TooManyRejectsError(ShardctlError):
    """More inputs were rejected than the caller allows."""

    exit_code = 1


class Rejection(Exception):
    """One input could not be converted. You never see this exception: it becomes a line of
    rejects.jsonl.

    `stage` is one of plan, read, decode, filter, transform, encode. `error` is a short stable name
    for the reason (a class of fault, to count by). `message` is the sentence for a person.
    """

    def __init__(self, stage: str, error: str, message: str) -> None:
        message = _ADDRESS.sub("", message)  # the same fault must give the same bytes in every run
        # it is written to files that are UTF-8
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.stage = stage
        self.error = error
        self.message = message

    def __reduce__(self) -> tuple[type[Rejection], tuple[str, str, str]]:
        return type(self), (self.stage, self.error, self.message)

    def bare(self) -> Rejection:
        """Return the same without the stack that it was raised in: that holds on to samples."""
        return self.saying(self.message)

    def saying(self, message: str) -> Rejection:
        """Return the same with another sentence."""
        return Rejection(self.stage, self.error, message)


@contextmanager
def explaining_interrupts(otherwise: str | Callable[[], str]) -> Iterator[None]:
    """Raise the KeyboardInterrupt of Ctrl-C again, with the message that it has, or else with
    `otherwise`.

    The traceback ends here: the stack of the interrupted code would bury the message. The class is
    KeyboardInterrupt itself. Only for that class does Python end a script with the exit status of
    Ctrl-C, which also ends a loop of the shell.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(
            str(stop) or (otherwise if isinstance(otherwise, str) else otherwise())
        ) from None


CONTINUES = "interrupted; run the same command again to continue"
NOTHING_WRITTEN = "interrupted; nothing was written"
"""What Ctrl-C says of work that is kept, and of work that is not."""


def is_of_bytes(error: BaseException) -> bool:
    """Return whether what a library raised is about the bytes that it was given, and not about
    memory or files."""
    return not isinstance(error, MemoryError) and getattr(error, "errno", None) is None


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of another package says, 300 characters at most: some
    go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
