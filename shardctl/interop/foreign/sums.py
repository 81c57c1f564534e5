"""`shardctl verify` of an export whose files are no shards: images, texts, annotations. Their
checksums are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.format.names import CHECKSUMS
from shardctl.inspection.verify.result import Finding, VerifyResult, error
from shardctl.sources.export_description import RESTORED, Description, loose_sums
from shardctl.system.files import sha256_of
from shardctl.system.text import printable

OF_SHARDS = (*RESTORED, "parquet", "megatron")
"""The forms of export whose files are read as shards of other tools are."""


def export_of_files(path: Path) -> Description | None:
    """Return what the export in a folder is whose files are no shards; None for anything else."""
    try:
        export = Description.load(path)
    except (OSError, ValueError):
        return None
    return None if export.to in OF_SHARDS else export


def refuse_export(path: Path) -> None:
    """Raise UsageError for such an export: its files show themselves."""
    export = export_of_files(path)
    if export is not None:
        raise UsageError(
            f"{printable(str(path))}: is an export of shardctl to {export.to}, and its files are "
            "not shards; open them"
            " directly, and check them with `shardctl verify`"
        )


def check_sums(
    folder: Path, export: Description, progress: Callable[[int, int], None]
) -> VerifyResult:
    """Compare all files of the export in a folder with the checksums that it has. `progress` is
    called with (files, all).

    `shards` of the result are files, and `samples` those that were exported.
    """
    total = len(export.files) + (0 if export.loose is None else export.loose.files)
    findings: list[Finding] = []
    done = 0
    try:
        for name, sha256 in chain(
            ((name, facts.sha256) for name, facts in export.files.items()),
            loose_sums(folder, export),
        ):
            findings += _findings(folder, name, sha256)
            done += 1
            progress(done, total)
    except (OSError, ValueError):
        message = (
            f"{CHECKSUMS} is lost or changed, so that most files cannot be checked; get it "
            "again, or export again"
        )
        findings.append(error("lost-checksums", message, CHECKSUMS))
    samples = sum(each.samples for each in export.splits.values())
    return VerifyResult(not findings, "full", total, samples, tuple(findings))


def _findings(folder: Path, name: str, sha256: str) -> Iterator[Finding]:
    try:
        found = sha256_of(folder / name)
    except FileNotFoundError:
        yield error("missing-file", "it is not there; get it again, or export again", name)
    except OSError as fault:
        yield error("unreadable-file", f"it cannot be read ({fault.strerror or fault})", name)
    else:
        if found != sha256:
            yield error(
                "wrong-checksum",
                f"its SHA-256 is not the one that {CHECKSUMS} has; get it again",
                name,
            )
