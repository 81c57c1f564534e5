"""The folders of the generations of a dataset; and what a folder is that has no manifest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from shardctl.format.names import (
    BESIDE_SHARDS,
    DATA,
    GENERATIONS,
    MANIFEST,
    STAGING,
    job_of_generation,
)
from shardctl.system.files import exists, is_folder, near_path
from shardctl.system.folders import Folder
from shardctl.system.job_folder import JOB, JobFolder
from shardctl.system.stores import refuse_half_url
from shardctl.system.text import printable

WAS_REPLACED = "was replaced while it was read; run the same command again"
"""What is wrong with a dataset that is another one by now."""


def generation_folders(root: Path) -> list[str]:
    """Return the folders of all generations of a dataset, also of those that are not whole: in the
    order of their numbers, with a / at their ends."""
    return in_order(os.listdir(root / GENERATIONS) if is_folder(root / GENERATIONS) else [])


def in_order(names: Iterable[str]) -> list[str]:
    """Return those of these names that generations have, as folders of the dataset, by their
    numbers."""
    folders = (f"{GENERATIONS}/{name}/" for name in names)
    return sorted(filter(job_of_generation, folders), key=lambda folder: (len(folder), folder))


def unfinished_commit(root: Path) -> str:
    """Return what to do where 1.0.0rc1 was stopped while a dataset took its place, "" if it was
    not."""
    root = root.absolute()
    aside = f".{root.name}{STAGING}"
    for folder in (root, root.parent / aside, root.parent / f"{aside}.old"):
        with contextlib.suppress(OSError):  # a name may be too long
            for mark in (folder / STAGING).glob("*/replaced.json"):
                return (
                    "shardctl 1.0.0rc1 was stopped while a dataset took its place here "
                    f"({printable(mark)}); complete it with that version (`shardctl repair`)"
                )
    return ""


def instead_of_manifest(tables: str) -> str:
    """Return what to do where a manifest is lost or damaged, and no whole copy of it lies beside the
    tables, in the folder `tables`."""
    if job_of_generation(tables):
        return (
            f"its copy in {tables} cannot be used either; convert the sources again, into another "
            "folder"
        )
    return (
        "the dataset is of format 2; shardctl 1.0.0rc1 can rebuild its manifest (`shardctl repair`)"
    )


def is_part(path: Path) -> bool:
    """Return whether a path is that of a folder in a dataset."""
    return path.name in (DATA, GENERATIONS) and exists(path.parent / MANIFEST)


def why_no_manifest(folder: Folder) -> str:
    """Return why a folder is no dataset, and what to do."""
    shown, here = folder.shown(), folder.local
    nothing = f"{shown}: not a dataset (it has no {MANIFEST})"
    if here is None:
        return nothing
    if not exists(here):
        refuse_half_url(str(here))
    if is_part(here) or (not exists(here) and exists(here.parent / MANIFEST)):
        return f"{shown}: no such dataset or shard; {printable(here.parent)} is a dataset"
    if not exists(here):
        return f"{shown}: no such dataset{near_path(here)}"
    if exists(here / MANIFEST):  # of another generation than the one that is read
        return f"{shown}: {WAS_REPLACED}"
    if why := unfinished_commit(here):
        return f"{shown}: {why}"
    if (here / STAGING).exists():
        begun = (JobFolder(record.parent) for record in sorted((here / STAGING).glob(f"*/{JOB}")))
        typed = next(filter(None, (job.command for job in begun)), "")
        return f"{shown}: an unfinished conversion; run the same command or script again{typed}"
    tables = next(reversed(generation_folders(here)), "")
    is_export = exists(here / "shardctl.json")
    if not is_export and any(exists(here / tables / name) for name in BESIDE_SHARDS):
        copied = exists(here / tables / MANIFEST)
        cure = f"`shardctl repair {shown}` rebuilds it" if copied else instead_of_manifest(tables)
        return f"{shown}: lacks {MANIFEST}; {cure}"
    with contextlib.suppress(OSError):
        for inside in sorted(path.parent for path in here.glob(f"*/{MANIFEST}")):
            return f"{nothing}; did you mean {printable(inside)}?"
    return f"{nothing}; `shardctl convert {shown} out` makes one"
