"""`shardctl cache`: what this machine keeps of datasets on stores."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.command import Group, path_argument
from shardctl.cli.output import Output, output_options
from shardctl.errors import InputError, UsageError
from shardctl.system.files import near_path
from shardctl.system.report import table_lines
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.loader.remote.cache import Cache, Entry


@click.group(
    cls=Group,
    examples=(
        "shardctl cache ls /nvme/cache",
        "shardctl cache clear /nvme/cache s3://bucket/out",
    ),
)
def cache() -> None:
    """Show and remove what this machine keeps of datasets on object stores.

    If you open a dataset with cache=DIR, the data that you read is kept in DIR (`shardctl help
    cache.md`). By default, DIR is the folder in the environment variable SHARDCTL_CACHE.
    """


@cache.command("ls", short_help="list the datasets in a cache")
@path_argument("folder", "[DIR]", required=False)
@output_options
def list_datasets(folder: str | None, output: Output) -> None:
    """List the datasets in DIR: how much of each is cached, when it was last opened, and whether a
    process uses it."""
    opened = _opened(folder)
    entries = opened.entries()
    record = {
        "folder": str(opened.folder),
        "bytes": _bytes(entries),
        "datasets": [_record(entry) for entry in entries],
    }
    rows = [
        (
            entry.url,
            format_bytes(entry.bytes),
            f"{entry.blocks / entry.of_blocks:.1%}" if entry.of_blocks else "-",
            datetime.fromtimestamp(entry.opened).strftime("%Y-%m-%d %H:%M"),
            "in use" if entry.in_use else "",
        )
        for entry in entries
    ]
    header = ("dataset", "size", "of its blocks", "opened last", "")
    what = f"{counted(len(entries), 'dataset')}, {format_bytes(_bytes(entries))}"
    lines = [*table_lines(rows, header if rows else ()), f"{printable(opened.folder)}: {what}"]
    output.show(record, lines)


@cache.command(short_help="remove datasets from a cache")
@path_argument("places", "[DIR] [URL]", nargs=-1)
@output_options
def clear(places: tuple[str, ...], output: Output) -> None:
    """Remove the datasets in DIR, or only the dataset at URL. Datasets that a process uses stay,
    and the command names them."""
    from shardctl.system.locations import is_url

    urls = [place.rstrip("/") for place in places if is_url(place)]
    folders = [place for place in places if not is_url(place)]
    if len(urls) > 1 or len(folders) > 1:
        raise UsageError("cache clear takes one folder and one URL; call it again for others")
    opened = _opened(folders[0] if folders else None)
    removed, kept = opened.clear(urls[0] if urls else None)
    record = {
        "folder": str(opened.folder),
        "freed_bytes": _bytes(removed),
        "removed": [entry.url for entry in removed],
        "in_use": [entry.url for entry in kept],
    }
    lines = [f"{printable(entry.url)} stays: a process uses it" for entry in kept]
    lines += [
        f"{printable(entry.folder)}: has files that are of no cache; these stay"
        for entry in removed
        if Path(entry.folder).exists()
    ]
    what = f"{counted(len(removed), 'dataset')}, {format_bytes(_bytes(removed))}"
    output.show(record, [*lines, f"removed {what}"])


def _opened(folder: str | None) -> Cache:
    """Return the cache in a folder. Raises UsageError if none is named, or it is not there."""
    from shardctl.loader.remote.cache import Cache
    from shardctl.loader.remote.open import CACHE_VARIABLE

    named = folder or os.environ.get(CACHE_VARIABLE)
    if not named:
        raise UsageError(f"which cache? Give its folder, or set {CACHE_VARIABLE}")
    if not Path(named).is_dir():
        raise InputError(
            f"{printable(named)}: no such folder{near_path(Path(named)) or ';'} give the folder of "
            "a cache"
        )
    return Cache(Path(named))


def _record(entry: Entry) -> dict[str, Any]:
    return {
        **asdict(entry),
        "opened": datetime.fromtimestamp(entry.opened).astimezone().isoformat(timespec="seconds"),
    }


def _bytes(entries: list[Entry]) -> int:
    return sum(entry.bytes for entry in entries)
