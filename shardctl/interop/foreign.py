"""What belongs to other tools: whether a path is shards of one, and the files of an export that are
no shards, which are compared with its checksums. Little is imported: each `verify` and `inspect`
asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.generations import is_part
from shardctl.format.names import CHECKSUMS, FILES, MANIFEST, PLAN, SHARDS, STAGING
from shardctl.format.shard import INFO_KEY
from shardctl.inspection.verify.result import Finding, VerifyResult, error, result_of
from shardctl.sources.export_description import RESTORED, Description, loose_sums
from shardctl.sources.files import SourceRoot
from shardctl.sources.format_table import CONTAINER_SUFFIXES, FORMAT_NAMES, PLAIN_TEXTS
from shardctl.sources.formats import Reading, ending_of, without_compression
from shardctl.sources.walk import suffix_of
from shardctl.system.files import is_file, sha256_of
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable

_ARROW = frozenset(FORMAT_NAMES["arrow"])
_OTHERS = {
    *CONTAINER_SUFFIXES,
    *(ending for endings in FORMAT_NAMES.values() for ending in endings),
} - _ARROW
"""The endings of files that cannot be shards of shardctl."""


def is_foreign(path: Path) -> bool:
    """Return whether a path is that of shards of another tool: a file, or a folder without a
    manifest that has some.

    Shards of shardctl whose manifest is lost are its own.
    """
    try:
        if path.is_file():
            return not (path.parent / MANIFEST).exists() and _is_of_others(path.name, str(path))
        if (
            not path.is_dir()
            or is_part(path)
            or any((path / name).exists() for name in (MANIFEST, FILES, PLAN, SHARDS, STAGING))
        ):
            return False
        # 100 ms, for what is no dataset
        from shardctl.making.convert.discover import first_table
        from shardctl.sources.walked import walk_sources

        with scratch_folder() as scratch:
            walked = walk_sources([SourceRoot(str(path))], scratch / "walked", lambda _: None)
            found = first_table(walked, Reading())
        return found is not None and _is_of_others(found.path, found.opened)
    except InputError:  # an index that lists what is not there
        return True
    except OSError:
        return False


def refuse_text(path: Path) -> None:
    """Raise UsageError for a file of text, which is neither a shard nor checked as one. Those of a
    dataset are others."""
    ending = without_compression(suffix_of(path.name))
    if ending in PLAIN_TEXTS and is_file(path) and not (path.parent / MANIFEST).exists():
        shown = printable(path)
        raise UsageError(
            f"{shown}: is text ({ending}) and no shard; `shardctl convert {shown} out` makes a "
            "dataset of it"
        )


def _is_of_others(name: str, opened: str) -> bool:
    ending = without_compression(ending_of(name, opened))
    return ending in _OTHERS or (ending in _ARROW and not _is_own(opened))


def _is_own(path: str) -> bool:
    """Return whether an Arrow file is a shard of shardctl, or is too damaged to tell."""
    from shardctl.sources.formats.arrow import opened  # few folders have such files

    try:
        return INFO_KEY in (opened(path).schema.metadata or {})
    except (Rejection, OSError):
        return True


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
            f"{printable(path)}: is an export of shardctl to {export.to}; open its files "
            "directly, and check them with `shardctl verify`"
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
            findings += _file_findings(folder, name, sha256)
            done += 1
            progress(done, total)
    except (OSError, ValueError):
        message = (
            f"{CHECKSUMS} is lost or changed, and checks most files; get it again, or export again"
        )
        findings.append(error("lost-checksums", message, CHECKSUMS))
    samples = sum(each.samples for each in export.splits.values())
    return result_of("full", total, samples, findings)


def _file_findings(folder: Path, name: str, sha256: str) -> Iterator[Finding]:
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
