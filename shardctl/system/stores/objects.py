"""The protocol of object stores, answered by obstore."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from shardctl.errors import (
    BrokenAnswerError,
    NoSuchKeyError,
    StandstillError,
    StorageError,
    StoreError,
    UnansweredError,
    WrongAnswerError,
)
from shardctl.system.stores.base import (
    PART,
    PIECE,
    PIECES_AT_ONCE,
    WRONG_ADVICE,
    Entry,
    Upload,
    asked_again,
    end_uploads,
)
from shardctl.system.stores.client import Action, Cloud, client_options, switched_on
from shardctl.system.stores.faults import described, is_past_the_end
from shardctl.system.text import printable

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult
    from obstore.store import ObjectStore

PARTS_AT_ONCE = 4
"""Parts that are on their way at the same time, and in memory: 32 MiB."""

REQUESTS_AT_ONCE = 32
"""Pieces that are requested at the same time for all callers of `pieces` together: of 1 MiB each,
30 ms away, 8 at a time came at 202 MiB/s and 32 at 631."""

SMALL = 256 << 10
"""Bytes up to which a write is expected to be answered as soon as a read: the heartbeat of a lease
may not hang for long."""

PAGE = 1000
"""Objects on a page of a listing, and in one request to delete: what the stores allow."""

BROKEN_TRIES = 6
"""How often a request is made whose answer breaks off: obstore makes one again only before there is
an answer."""

CONDITION_TRIES = 5
"""How often a conditional write is made again while nothing shows why it was refused, or what
became of it."""

_RAISED = (BaseError, OSError, ValueError)


class Clients(NamedTuple):
    """obstore's store twice, with time-outs for most requests, and for uploads, listings and
    copies."""

    quick: ObjectStore
    patient: ObjectStore

    @classmethod
    def of(
        cls,
        kind: Callable[..., Any],
        bucket: str,
        cloud: Cloud,
        provider: Callable[[], Any] | None,
        allow_http: bool = False,
    ) -> Clients:
        """Return the clients of a bucket in a kind of store, whose credentials a `provider` gives
        where obstore is given none (None: they need none). Raises UsageError."""
        quick, patient, retries = client_options(allow_http or switched_on(cloud.allow_http))
        credentials = {}
        if provider is not None and not cloud.has_credentials:
            credentials["credential_provider"] = provider()
        return cls(
            *(
                kind(bucket, client_options=it, retry_config=retries, **credentials)
                for it in (quick, patient)
            )
        )


@dataclass(eq=False)
class Objects:
    """The objects below one prefix. Stores differ in what they call a version: two methods that
    siblings override."""

    url: str
    _clients: Clients
    _cloud: Cloud
    _prefix: str = ""
    _known = False
    """Whether the bucket has been seen to be there."""

    seeks = True

    def get(
        self, key: str, start: int = 0, length: int | None = None, version: str | None = None
    ) -> pa.Buffer:
        """Return the bytes of an object, or `length` of them from `start` on, without a copy of
        them."""
        if length == 0:
            return pa.py_buffer(b"")
        options: dict[str, Any] = {}
        if length is not None:
            options["range"] = (start, start + length)
        elif start:
            options["range"] = {"offset": start}
        if version is not None:
            options["if_match"] = version

        def read() -> object:
            try:
                return obstore.get(self._clients.quick, self._path(key), options=options).bytes()  # type: ignore[arg-type]
            except _RAISED as error:
                if not is_past_the_end(error):
                    raise
                return b""

        return pa.py_buffer(self._ask("read", key, read))

    def pieces(
        self, found: Entry, start: int = 0, at_once: int = PIECES_AT_ONCE
    ) -> Iterator[pa.Buffer]:
        """Yield the bytes of an object from `start` on, in order. The next one is requested as soon
        as one was taken: to wait for all that are under way, and then ask for as many again, took
        an eighth longer."""
        starts = iter(range(start, found.size, PIECE))
        if found.size - start <= PIECE:
            yield from (self._piece(found, begin) for begin in starts)
            return
        note_use()
        coming: deque[Future[pa.Buffer]] = deque()
        try:
            while True:
                for begin in itertools.islice(starts, at_once - len(coming)):
                    coming.append(self._threads.submit(self._piece, found, begin))
                if not coming:
                    return
                yield coming.popleft().result()
        finally:
            for each in coming:
                each.cancel()

    def _piece(self, found: Entry, start: int) -> pa.Buffer:
        return self.exactly(found, start, min(PIECE, found.size - start))

    def exactly(self, found: Entry, start: int, length: int) -> pa.Buffer:
        """Return `length` bytes of an object that was found, from `start` on. Where others come, it
        is asked once more."""

        def read() -> pa.Buffer:
            data = self.get(found.name, start, length, found.version or None)
            if data.size != length:
                raise WrongAnswerError(
                    f"{self._where(found.name)}: the store sent {data.size} bytes in place of "
                    f"{length}, twice; {WRONG_ADVICE}"
                )
            return data

        return asked_again(read)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="shardctl-pieces")

    def fetch(self, key: str, length: int) -> tuple[pa.Buffer, Entry]:
        """Return the first `length` bytes of an object, fewer where it ends before, and what it is
        that they are of."""

        def read() -> tuple[object, ObjectMeta]:
            try:
                found = obstore.get(
                    self._clients.quick, self._path(key), options={"range": (0, max(1, length))}
                )
                return found.bytes(), found.meta
            except _RAISED as error:
                if not is_past_the_end(error):
                    raise
            found = obstore.get(self._clients.quick, self._path(key))  # it is empty
            return found.bytes(), found.meta

        data, meta = self._ask("read", key, read)
        return pa.py_buffer(data)[:length], self._stored(meta, key)

    def stat(self, key: str) -> Entry | None:
        """Return what is known of an object, None if there is none."""
        try:
            return self._head(key)
        except NoSuchKeyError:
            if self._known:
                return None
        except UnansweredError:
            raise
        except StoreError:
            pass
        # The answer to HEAD has a number and no reason: that of GET says if the bucket is missing,
        # or what is not allowed.
        try:
            self.get(key, 0, 1)
            return self._head(key)
        except NoSuchKeyError:
            return None

    def _head(self, key: str) -> Entry:
        return self._stored(
            self._ask("read", key, lambda: obstore.head(self._clients.quick, self._path(key))), key
        )

    def put(self, key: str, data: bytes | Path) -> str:
        """Write an object, whole or not at all, and return its version. A large one is sent in
        parts.

        Where the main thread is interrupted, uploads in parts are ended, and their parts are taken
        away if that does not take long.
        """
        client = self._clients.patient if isinstance(data, Path) else self._writer(data)
        if isinstance(data, Path):
            _check_readable(data)

        def write() -> PutResult:
            if isinstance(data, bytes) or data.stat().st_size <= PART:
                return obstore.put(client, self._path(key), data)
            with Upload(data) as upload:
                return obstore.put(
                    client, self._path(key), upload, chunk_size=PART, max_concurrency=PARTS_AT_ONCE
                )

        try:
            return self._version(self._ask("write", key, write))
        except KeyboardInterrupt:
            end_uploads()
            raise

    def _writer(self, data: bytes) -> ObjectStore:
        return self._clients.quick if len(data) <= SMALL else self._clients.patient

    def create(self, key: str, data: bytes) -> str | None:
        """Write an object if there is none, and return its version; None if there is one with other
        bytes."""
        return self._write_if(key, data, None)

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        """Write an object if it still has this version, and return the new one; None if it has
        another one, or is gone."""
        return self._write_if(key, data, version)

    def _write_if(self, key: str, data: bytes, version: str | None) -> str | None:
        """Write an object if its version is this one (None: if it is not there).

        A refusal proves nothing: the client may have sent it twice, since the first answer was
        lost, and S3 refuses one of two at the same time (409) even if neither is done. What is
        there decides: these bytes, others, or still what was there.
        """

        def write() -> str | None:
            try:
                mode = "create" if version is None else self._condition(key, version)
                client, path = self._writer(data), self._path(key)
                return self._version(
                    obstore.put(client, path, data, mode=mode, use_multipart=False)
                )
            except (AlreadyExistsError, PreconditionError):
                return None

        fault: StoreError | None = None
        for attempt in range(CONDITION_TRIES):
            try:
                written = self._ask("write", key, write)
            except UnansweredError as error:
                fault, written = error, None
            if written is not None:
                return written
            try:
                there, found = self.fetch(key, len(data) + 1)
            except NoSuchKeyError:
                if version is not None:
                    return None
            except UnansweredError as error:
                raise fault or error from None
            else:
                if there.to_pybytes() == data:
                    return found.version
                if found.version != version:
                    return None
            time.sleep(random.uniform(0, 0.05 * 2**attempt))
        raise fault or UnansweredError(
            f"{self._where(key)}: writing was refused {CONDITION_TRIES} times; try again later"
        )

    def pages(self, prefix: str = "", after: str = "") -> Iterator[list[Entry]]:
        """Yield the objects whose keys begin with `prefix` and come after `after`, page by page, in
        the order of their keys."""
        folder, _, _ = prefix.rpartition("/")
        last = ""
        for page in self._listed(folder, after):
            objects = [self._stored(meta) for meta in page]
            kept = []
            for entry, following in itertools.zip_longest(objects, objects[1:]):
                # one that consoles write for a folder: its name ends with /, which obstore drops
                if entry.size == 0 and (
                    entry.name == folder
                    or entry.name <= last
                    or (following is not None and following.name.startswith(f"{entry.name}/"))
                    or self.stat(entry.name) is None
                ):
                    continue
                if entry.name <= last:
                    raise StoreError(
                        f"{self._where(folder)}: this store does not list objects in order; use "
                        "another"
                    )
                last = entry.name
                if entry.name.startswith(prefix) and entry.name > after:
                    kept.append(entry)
            if kept:
                yield kept
            if prefix and last > prefix and not last.startswith(prefix):
                return

    def _listed(self, folder: str, after: str) -> Iterator[Sequence[ObjectMeta]]:
        """Yield what is below a folder and comes after a key. A listing that breaks off goes on
        after what it has given."""
        below, last, broken = self._path(folder) or None, self._path(after) if after else None, 0
        while True:
            offset = last
            listed = iter(
                self._ask(
                    "list",
                    folder,
                    lambda: obstore.list(
                        self._clients.patient,
                        below,
                        offset=offset,  # noqa: B023 - called at once
                        chunk_size=PAGE,
                    ),
                )
            )
            try:
                while (
                    page := self._ask_once("list", folder, lambda: next(listed, None))  # noqa: B023 - called at once
                ) is not None:
                    yield page
                    last, broken = page[-1]["path"] if page else last, 0
                return
            except BrokenAnswerError:
                broken += 1
                if broken == BROKEN_TRIES:
                    raise

    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        """Return what is directly in a folder: the names of folders, relative to it, and the
        objects."""
        folder = folder.rstrip("/")
        found = self._ask(
            "list",
            folder,
            lambda: obstore.list_with_delimiter(self._clients.patient, self._path(folder) or None),
        )
        start = len(self._path(folder)) + 1 if self._path(folder) else 0
        names = sorted(path[start:].rstrip("/") for path in found["common_prefixes"])
        objects = sorted(self._stored(meta) for meta in found["objects"])
        return names, [entry for entry in objects if entry.name != folder]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, up to 1,000 with one request; those that are not there are left out."""
        remaining = iter(keys)
        while some := list(itertools.islice(remaining, PAGE)):
            try:
                self._delete(some)
            except NoSuchKeyError:  # of Google, which takes one key at a time
                for key in some:
                    with contextlib.suppress(NoSuchKeyError):
                        self._delete([key])

    def _delete(self, keys: list[str]) -> None:
        paths = [self._path(key) for key in keys]
        self._ask("delete", keys[0], lambda: obstore.delete(self._clients.patient, paths))

    def _ask(self, action: Action, key: str, call: Callable[[], Answer]) -> Answer:
        """Return what a call of obstore returns, made again where its answer breaks off. What it
        raises becomes a StoreError.

        It is made once more where this process may have stood still (Ctrl-Z) for as long as
        requests are made again, and where the answer makes no sense: a proxy may have given it. To
        write, to delete or to copy the same twice does no harm; `_write_if` looks at what a refusal
        means.
        """
        again = False
        for attempt in range(BROKEN_TRIES - 1):
            try:
                return self._ask_once(action, key, call)
            except (StandstillError, WrongAnswerError):
                if again:
                    raise
                again = True
            except BrokenAnswerError:
                pass
            time.sleep(random.uniform(0, 0.05 * 2**attempt))
        return self._ask_once(action, key, call)

    def _ask_once(self, action: Action, key: str, call: Callable[[], Answer]) -> Answer:
        note_use()
        try:
            answer = interruptibly(call)
        except _RAISED as error:
            raise described(error, self._cloud, action, self._where(key)) from error
        self._known = True
        return answer

    def _where(self, key: str) -> str:
        return printable(f"{self.url}/{key}" if key else self.url)

    def _path(self, key: str) -> str:
        """Return the key in its bucket. Raises StoreError for one that cannot be addressed: the
        client would change it."""
        if key.startswith("/") or key.endswith("/") or "//" in key:
            raise StoreError(
                f"{self._where(key)}: has an empty part between two /; rename the object"
            )
        return "/".join(filter(None, (self._prefix, key)))

    def _stored(self, meta: ObjectMeta, key: str | None = None) -> Entry:
        path = meta["path"]
        if key is None:
            key = path[len(self._prefix) + 1 :] if self._prefix else path
        return Entry(key, meta["size"], self._version(meta))

    def _version(self, written: ObjectMeta | PutResult) -> str:
        """Return what names the content of an object."""
        return written["e_tag"] or ""

    def _condition(self, key: str, version: str) -> PutMode:
        """Return what makes obstore write an object only if it has this version."""
        return {"e_tag": version}


def _check_readable(path: Path) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise StorageError(
            f"{printable(path)}: cannot be read ({error.strerror or error})"
        ) from error


# --- calls that Ctrl-C ends at once ---

Answer = TypeVar("Answer")


def interruptibly(call: Callable[[], Answer]) -> Answer:
    """Return what `call` returns. Where the main thread makes it, Ctrl-C ends the wait, and not
    only what comes after it.

    Python hands signals to its main thread, and obstore gives none back to Python while a request
    is on its way: for a store that does not answer, that was a minute. So another thread makes the
    call (0.1 ms), and is left to itself after Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    future: Future[Answer] = Future()
    threading.Thread(target=_fulfil, args=(future, call), daemon=True).start()
    return future.result()


def _fulfil(future: Future[Answer], call: Callable[[], Answer]) -> None:
    try:
        answer = call()
    except BaseException as error:  # noqa: BLE001 (it is raised where the future is waited for)
        future.set_exception(error)
    else:
        future.set_result(answer)


# --- a forked process cannot use the client of its parent: the threads that do the work are not in
# it, and it would wait ---


_users: set[int] = set()
"""The processes that have used a client: this one, and those that it was forked from."""


def note_use() -> None:
    """Note that this process uses a store. Raises StoreError in a process whose parent had used one
    before the fork."""
    _users.add(os.getpid())
    if len(_users) > 1:
        raise StoreError(
            "this process was forked from one that had used an object store; use spawn or "
            "forkserver, or fork before"
        )
