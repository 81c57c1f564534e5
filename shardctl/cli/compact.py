"""`shardctl compact`."""

from __future__ import annotations

from shardctl.cli.command import DST, command, option
from shardctl.cli.options import option_of
from shardctl.cli.output import Output, progress_options
from shardctl.making.options import IF_RUNNING
from shardctl.system.machine import quick_imports
from shardctl.system.text import counted, format_bytes, printable


@command(examples=("shardctl compact out",))
@DST
@option("--dry-run", "Print how many shards there would be, and change nothing.")
@option_of("if_running", IF_RUNNING)
@progress_options
def compact(dst: str, dry_run: bool, if_running: str, output: Output) -> None:
    """Put the shards of a dataset in order after many updates.

    The new shards are full and have no gaps, and the samples are in the order of a fresh
    conversion. Rows are copied without decoding. The sources are not needed. Until the command is
    done, readers see the old dataset.
    """
    with quick_imports():
        from shardctl.making.rewrite.compact import compact as compact_dataset

    result = compact_dataset(
        dst, dry_run=dry_run, if_running=if_running, progress=output.shows_progress
    )
    line = f"{printable(dst)} is in order: {counted(result.shards, 'shard')}"
    if result.status != "up-to-date":
        did = "would compact" if dry_run else "compacted"
        what = f"{counted(result.shards_before, 'shard')} into {result.shards:,}"
        size = format_bytes(result.bytes)
        line = f"{did} {printable(dst)}: {what}, {size}; {result.kept:,} stay as they are"
    output.show(result, [line])
