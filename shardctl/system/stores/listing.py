"""All keys below a prefix, listed by many requests at the same time, and kept in order in files of
a folder for scratch."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.system.files import naming_the_path
from shardctl.system.permutation import evenly_spaced
from shardctl.system.stores.base import Entry, Store

THREADS = 16
"""Lists that are asked for at the same time. Each page takes one request of 30 to 100 ms, and 1 ms
of this process."""

UNSPLIT_PAGES = 4
"""Pages of a stretch of keys that are read before the rest of it is split: few keys are not worth
it."""

BATCH_ROWS = 4096
"""Keys that are Python objects at a time, for each thread."""

MOST_STRETCHES = 2 * THREADS
"""Into how many stretches the rest of one is split at once: some are empty, and others are split
again."""

SPLIT_PLACES = 40
"""Characters of a key, from the last one that neighbours have in common back, at which the keys
after it are split."""

KEYS_SCHEMA = pa.schema([("key", pa.string()), ("size", pa.int64()), ("version", pa.string())])

_HEX, _LOWER, _UPPER = (
    "0123456789abcdef",
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
)


class Keys:
    """The keys below a prefix in the order of their bytes, each with its size and version; in
    files, and mapped into memory."""

    def __init__(self, parts: Iterable[Path]) -> None:
        """`parts` are the files, in any order."""
        readers = (pa.ipc.open_file(pa.memory_map(os.fspath(part))) for part in parts)
        batches = (
            reader.get_batch(number)
            for reader in readers
            for number in range(reader.num_record_batches)
        )
        self._batches = sorted(batches, key=_first_key)
        self._firsts = list(map(_first_key, self._batches))
        self._starts = [0]
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)
        self._read = lru_cache(8)(self._rows_of)

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[str]:
        """Yield all keys."""
        for batch in self._batches:
            yield from batch.column(0).to_pylist()

    @property
    def mean_size(self) -> int:
        """The bytes of an object, on average; 1 at least."""
        total = sum(int(np.from_dlpack(batch.column(1)).sum()) for batch in self._batches)
        return max(1, total // max(1, len(self)))

    def find(self, key: str) -> int:
        """Return how many keys come before this one."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return 0
        keys = self._batches[number].column(0)
        return self._starts[number] + bisect_left(keys, key, key=methodcaller("as_py"))

    def get(self, key: str) -> Entry | None:
        """Return what was listed of an object, None if it was not."""
        row = self.find(key)
        if row == len(self):
            return None
        number = bisect_right(self._starts, row) - 1
        found = Entry(
            *(
                column[row - self._starts[number]].as_py()
                for column in self._batches[number].columns
            )
        )
        return found if found.name == key else None

    def rows(self, first: int, end: int) -> tuple[list[str], list[int], list[str]]:
        """Return keys, sizes and versions from row `first` on: at least one, and at most up to
        `end`."""
        number = bisect_right(self._starts, first) - 1
        columns, start = self._read(number), self._starts[number]
        if first == start and end >= self._starts[number + 1]:
            return columns
        keys, sizes, versions = (column[first - start : end - start] for column in columns)
        return keys, sizes, versions  # type: ignore[return-value]

    def _rows_of(self, number: int) -> tuple[list[str], list[int], list[str]]:
        keys, sizes, versions = (column.to_pylist() for column in self._batches[number].columns)
        return keys, sizes, versions


def _first_key(batch: pa.RecordBatch) -> str:
    return str(batch.column(0)[0].as_py())


class _Stretch(NamedTuple):
    """The keys after `after`, up to `end` and with it; None: all that follow."""

    after: str
    end: str | None


def list_keys(
    store: Store, prefix: str, folder: Path, found: Callable[[int], None] = lambda _: None
) -> Keys:
    """List the objects whose keys begin with `prefix`, into files of a folder. `found` is told how
    many there are so far.

    Raises StoreError.
    """
    with naming_the_path(folder):
        return _Lister(store, prefix, folder, found).run()


@dataclass
class _Lister:
    """Lists one stretch of keys, and splits what is left of it for the threads that have nothing to
    do.

    Which keys there are is not known before, so that bounds are guessed from those that were seen:
    after img_00999 may come img_01, img_02, … img_1, img_2. A guess where nothing is costs one
    request.
    """

    _store: Store
    _prefix: str
    _folder: Path
    _found: Callable[[int], None]
    _busy = _count = _files = 0
    _stopped = False

    def run(self) -> Keys:
        """Return all keys."""
        parts: list[Path] = []
        self._lock, self._new = threading.Lock(), [_Stretch("", None)]
        running: set[Future[Path]] = set()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="shardctl-list") as pool:
            try:
                while running or self._new:
                    with self._lock:
                        new, self._new = self._new, []
                        self._busy += len(new)
                    running |= {pool.submit(self._list, stretch) for stretch in new}
                    done, running = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
                    parts += [each.result() for each in done]
                    with self._lock:
                        self._busy -= len(done)
                    self._found(self._count)
            finally:
                self._stopped = True
                for each in running:
                    each.cancel()
        return Keys(parts)

    def _list(self, stretch: _Stretch) -> Path:
        """Return an Arrow file of the keys of a stretch."""
        after, end = stretch
        rows: list[Entry] = []
        with self._lock:
            self._files += 1
            path = self._folder / f"{self._files:06d}.arrow"
        with (
            pa.OSFile(os.fspath(path), "wb") as sink,
            pa.ipc.new_file(sink, KEYS_SCHEMA) as writer,
        ):
            for number, page in enumerate(self._store.pages(self._prefix, after), 1):
                past = end is not None and page[-1].name > end
                kept = page[: bisect_right([entry.name for entry in page], end)] if past else page  # type: ignore[type-var]
                rows += kept
                if len(rows) >= BATCH_ROWS:
                    _write(writer, rows)
                    rows = []
                with self._lock:
                    self._count += len(kept)
                if past or self._stopped:
                    break
                with self._lock:
                    idle = (
                        self._store.seeks
                        and number >= UNSPLIT_PAGES
                        and self._busy + len(self._new) < THREADS
                    )
                    if idle and (
                        bounds := bounds_after(page[0].name, page[-1].name, end, len(self._prefix))
                    ):
                        self._new += [
                            _Stretch(*pair) for pair in zip(bounds, [*bounds[1:], end], strict=True)
                        ]
                        end = bounds[0]
            _write(writer, rows)
        return path


def _write(writer: pa.RecordBatchFileWriter, rows: list[Entry]) -> None:
    for first in range(0, len(rows), BATCH_ROWS):
        columns = zip(
            *(found[: len(KEYS_SCHEMA)] for found in rows[first : first + BATCH_ROWS]),
            strict=True,
        )
        arrays = [pa.array(values, f.type) for values, f in zip(columns, KEYS_SCHEMA, strict=True)]
        writer.write_batch(pa.record_batch(arrays, schema=KEYS_SCHEMA))


def bounds_after(first: str, last: str, end: str | None, fixed: int) -> list[str]:
    """Return guesses of where the keys that follow `last`, up to `end`, can be split, in order.

    `first` and `last` are neighbours by some hundred keys, and the first `fixed` characters are
    those of all keys.
    """
    alike = next(
        (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]),
        len(first),
    )
    bounds = []
    for place in range(min(alike, len(last) - 1), max(fixed, alike - SPLIT_PLACES) - 1, -1):
        here = last[place]
        alphabet = next((each for each in (_HEX, _LOWER, _UPPER) if here in each), "")
        following = [last[:place] + other for other in alphabet[bisect_left(alphabet, here) + 1 :]]
        bounds += [bound for bound in following if bound > last and (end is None or bound < end)]
    return [bounds[place] for place in evenly_spaced(len(bounds), MOST_STRETCHES)]


def under(keys: Keys, prefix: str) -> tuple[int, int]:
    """Return the first row of the keys that begin with a prefix ending in /, or with "", and the
    row after the last one."""
    return (keys.find(prefix), keys.find(f"{prefix[:-1]}0")) if prefix else (0, len(keys))
