"""Options of what makes datasets that several commands have. Little is imported: the command line
reads them."""

from __future__ import annotations

from shardctl.system.options import AutoOrNumber, Option, Word

WORKERS = Option(
    AutoOrNumber(0, 1024),
    "auto",
    "Number of worker processes; 0 does the work in this process.",
    metavar="auto|N",
    shows_default=True,
)
IF_RUNNING = Option(
    Word("wait", "fail"),
    "wait",
    "What to do while another shardctl is writing DST.",
    shows_default=True,
)
