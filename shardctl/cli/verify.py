"""`shardctl verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.cli.command import command, option, path_argument
from shardctl.cli.options import OneOf
from shardctl.cli.output import Output, bad, colored, good, progress_options
from shardctl.format.names import MANIFEST
from shardctl.system.machine import quick_imports
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.inspection.verify.result import VerifyResult
    from shardctl.system.processes.pool import Pool

FOUND_SOMETHING = 1


@command(
    examples=(
        "shardctl verify out  # every byte and every checksum",
        "shardctl verify out --level deep  # decode every image too",
        "shardctl verify s3://bucket/out --level quick  # names, sizes and footers",
    ),
)
@path_argument("target", "DST|SHARD")
@option(
    "--level",
    "quick: manifest, tables, sizes, footers. full: every byte and checksum. deep: decode "
    "images too.",
    type=OneOf(["quick", "full", "deep"]),
    default="full",
)
@progress_options
def verify(target: str, level: str, output: Output) -> int:
    """Check that a dataset, or one shard on its own, is undamaged.

    Prints every finding with its shard and block. An error means that the dataset is damaged: exit
    code 1. A warning, for instance about a file that does not belong to the dataset, does not
    change the exit code. A dataset can also be checked without shardctl: cd DST && sha256sum -c
    SHA256SUMS.

    DST may be on a store (s3://bucket/out): quick lists the files and reads the end of each shard,
    the other levels read everything.

    Shards of other tools are checked too, at every level in the same way. Every record of .tar,
    .tfrecord, .mds, .parquet and others is read, and the checksums of the format are compared. Each
    finding names the file and the number of the record. For an export to files, coco or yolo, the
    checksums of all files are compared.
    """
    from shardctl.inspection.verify.verification import checks_ahead
    from shardctl.system.files import exists

    with checks_ahead(exists(Path(target, MANIFEST))) as processes:
        result, noun = _checked(target, level, output, processes)
    lines = [
        colored(f"{each.severity}: {each.where}: {each.kind}: {printable(each.message)}")
        for each in result.findings
    ]
    verdict = (good if result.ok else bad)(f"is {result.verdict}")
    what = f"{counted(result.shards, noun)}, {counted(result.samples, 'sample')}"
    lines.append(f"{printable(target)} {verdict} (level {level}): {what}; {result.total}")
    output.show(result, lines)
    return 0 if result.ok else FOUND_SOMETHING


def _checked(
    target: str, level: str, output: Output, processes: Pool | None
) -> tuple[VerifyResult, str]:
    """Return what was found, and what its units are called."""
    with quick_imports():
        from shardctl.interop.foreign import check_sums, export_of_files, is_foreign, refuse_text
        from shardctl.system.progress import counting

    path = Path(target)
    refuse_text(path)
    if (export := export_of_files(path)) is not None:
        with counting(output.shows_progress, "files", "verifying") as report:
            return check_sums(path, export, report), "file"
    if is_foreign(path):
        from shardctl.interop.foreign_shards import check

        with counting(output.shows_progress, "records", "verifying") as report:
            return check(path, progress=report), "shard"
    from shardctl.inspection.verify.verification import verify_with

    return verify_with(processes, target, level, output.shows_progress), "shard"
