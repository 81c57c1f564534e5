"""`shardctl repair`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from shardctl.cli.command import DST, PATH, command, option
from shardctl.cli.options import option_of
from shardctl.cli.output import (
    Output,
    bad,
    colored,
    good,
    progress_options,
    waiting_teller,
)
from shardctl.making.options import WORKERS
from shardctl.system.machine import quick_imports
from shardctl.system.packages import look_in_current_folder
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.making.repair import RepairResult

STILL_DAMAGED = 1
SHOWN = 10
"""Lost samples that are printed; --json has them all."""


@command(
    examples=(
        "shardctl repair out",
        "shardctl repair out --source /mnt/photos  # the photos have moved",
        "shardctl repair out --drop-lost  # leave out what cannot be rebuilt",
    ),
)
@DST
@option(
    "--source",
    "The new place of a source: once for each, in order.",
    name="sources",
    multiple=True,
    metavar="SRC",
    type=PATH,
)
@option(
    "--transform",
    "A function of yours that made the dataset: only those named here are run.",
    name="transforms",
    multiple=True,
    metavar="MODULE:NAME",
)
@option(
    "--drop-lost",
    "If sources changed or are gone, remove the lost samples, and list them in rejects.jsonl.",
)
@option_of("workers", WORKERS)
@progress_options
def repair(
    dst: str,
    sources: tuple[str, ...],
    transforms: tuple[str, ...],
    drop_lost: bool,
    workers: int | str,
    output: Output,
) -> int:
    """Rebuild damaged or missing files from the sources.

    Only damaged files are rebuilt. A rebuilt file is used only if its SHA-256 is the recorded one.
    If the source of samples changed or is gone, they cannot be rebuilt: they are listed, and the
    exit code is 1.

    The sources are read from the places in manifest.json, if that file is undamaged; a line on
    stderr names these places first. Otherwise, give --source.

    DST may be on a store (s3://bucket/out): all of it is read, and the rebuilt files are put back.
    """
    with quick_imports():
        from shardctl.making.repair import Listener
        from shardctl.making.repair import repair as repair_dataset
        from shardctl.system.progress import progress_of

    if transforms:
        look_in_current_folder()

    def reading(places: tuple[str, ...]) -> None:
        if not output.quiet:
            shown.write(
                "the manifest names these sources, which are read: "
                f"{', '.join(map(printable, places))}"
            )

    with progress_of(output.shows_progress) as shown:
        listener = replace(
            Listener.showing(shown), waiting=waiting_teller(dst, output), reading=reading
        )
        result = repair_dataset(dst, sources, transforms, drop_lost, workers, listener)
    output.show({**asdict(result), "ok": result.ok}, _lines(result, dst))
    return 0 if result.ok else STILL_DAMAGED


def _lines(result: RepairResult, dst: str) -> Iterator[str]:
    for name in result.repaired:
        yield f"repaired: {printable(name)}"
    for notice in result.notices:
        yield colored(f"note: {notice}")
    for lost in result.lost[:SHOWN]:
        what = f"key {printable(lost.key)}"
        what += f" and {counted(lost.samples - 1, 'sample')} after it" if lost.samples > 1 else ""
        yield f"lost: {what}, in {printable(lost.shard)}: {printable(lost.reason)}"
    more = sum(lost.samples for lost in result.lost[SHOWN:])
    if more:
        yield f"lost: {counted(more, 'sample')} more; --json names them all"
    for entry in result.unrepaired:
        yield f"not repaired: {printable(entry.file)}: {printable(entry.message)}"
    yield f"{printable(dst)} {(good if result.ok else bad)(result.verdict)}{result.remark}"
