"""ArrayRecord, the files that Grain and TFDS read by number. A record is a tf.train.Example;
Google's package reads the files.

The package compares the checksums of what it reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from array_record.python import array_record_module

from shardctl.errors import Rejection, first_line
from shardctl.sources.files import changed
from shardctl.sources.formats.base import UNIT_BYTES, Digest, check_magic
from shardctl.sources.formats.columns import damaged
from shardctl.sources.formats.found_values import Entries, Entry
from shardctl.sources.formats.tfrecord import example_parser

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
"""No threads, and nothing is read before it is asked for."""


@contextmanager
def opened(path: str) -> Iterator[Entries]:
    """Open a file for the block, cut into units of about 1 MiB. Raises OSError, Rejection;
    InstallError if what reads an Example is missing."""
    check_magic(path, ".array_record")
    try:
        reader = array_record_module.ArrayRecordReader(path, _OPTIONS)
        if not reader.ok():
            reader.close()  # which says why
    except (RuntimeError, ValueError) as error:
        raise _damaged("the file", error) from None
    parse, count = example_parser(), int(reader.num_records())
    size = os.stat(path).st_size  # noqa: PTH116 - see pyproject.toml
    each = max(1, min(count, UNIT_BYTES * count // max(1, size)))

    def records(first: int, digest: Digest) -> Iterator[Entry]:
        for number in range(first, count + 1):
            try:
                data: bytes = reader.read([number - 1])[0]
            except (RuntimeError, ValueError, IndexError) as error:
                raise _damaged(f"record {number}", error) from None
            digest.update(data)
            yield len(data), partial(parse, data)
        raise changed()

    try:
        yield Entries([*range(0, count, each), count], records)
    finally:
        with suppress(RuntimeError):  # what was wrong has been said
            reader.close()


def _damaged(what: str, error: Exception) -> Rejection:
    return damaged(what, first_line(error).partition(";")[0])
