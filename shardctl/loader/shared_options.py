"""Options of the loader that several commands have. Little is imported: the command line reads
them."""

from __future__ import annotations

from shardctl.system.options import AutoOrNumber, Option, Whole

BATCH_SIZE = Option(Whole(), 256, "Samples in a batch.", metavar="N", shows_default=True)
THREADS = Option(
    AutoOrNumber(1, 1024),
    "auto",
    "Threads that read and decode; auto finds the number while it reads.",
    metavar="auto|N",
    shows_default=True,
)
