"""Writing a dataset in another form, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.arguments import truth
from shardctl.errors import StorageError, UsageError
from shardctl.exports.base import Source, Written
from shardctl.exports.table import chosen_export
from shardctl.storage import PARTIAL, naming_the_path, printable, sync_folder, write_atomically

META = "meta.json"
"""In the folder of an export: what it is, its files with their size and SHA-256, and the dataset that it was made of."""

FORMAT = "shardctl export"


@dataclass(frozen=True)
class ExportResult:
    """What `export` wrote: the number of samples that it read, and of bytes and seconds; `files` by name, with their bytes.

    `counts` has what was written of each split, by its name: for files of tokens `documents`, `tokens`, and `empty` documents
    that were left out. `notes` are sentences about what the form has no place for.
    """

    to: str
    out: str
    samples: int
    bytes: int
    seconds: float
    files: dict[str, int]
    counts: dict[str, dict[str, int]]
    notes: tuple[str, ...]


def export(
    dst: str | Path,
    out: str | Path,
    to: str,
    split: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **settings: Any,
) -> ExportResult:
    """Write the dataset at `dst`, or one of its splits, into the new folder `out` in another form.

    `to` is `megatron` (SPLIT.bin and SPLIT.idx, as megatron-core reads them) or `nanogpt` (SPLIT.bin, bare uint16). Both need
    tokens, and put the end-of-text token behind each document that lacks it, unless `eos=False`. meta.json says what was
    written. The same dataset gives the same bytes. `overwrite` replaces an earlier export; `progress` is called with the
    samples done and all. Nothing is at `out` before all of it is. Every block is checked against its checksum. Raises
    UsageError, InputError if the dataset does not have what the form needs, DatasetError if it is damaged, and StorageError.
    """
    began = time.monotonic()
    chosen = chosen_export(to, settings)
    source = Source(Path(dst), split)
    target = _destination(Path(out), source, truth("overwrite", overwrite))
    chosen.check(source)
    done = 0

    def tell(samples: int) -> None:
        nonlocal done
        done += samples
        progress(done, source.samples)

    with _appearing(target, overwrite) as folder:
        written = chosen.write(source, folder, tell)
        source.check_unchanged()
        files = {name: (folder / name).stat().st_size for name in written.files}
        write_atomically(folder / META, _meta(to, source, written, files))
    seconds = round(time.monotonic() - began, 3)
    return ExportResult(to, str(out), source.samples, sum(files.values()), seconds, files, written.counts, written.notes)


def _meta(to: str, source: Source, written: Written, files: dict[str, int]) -> bytes:
    """Return the content of meta.json. There are no times and no paths in it: the same dataset gives the same bytes."""
    record = {
        "format": FORMAT,
        "to": to,
        **written.facts,
        "splits": written.counts,
        "files": {name: {"bytes": files[name], "sha256": digest} for name, digest in written.files.items()},
        "fingerprint": source.manifest.fingerprint,
    }
    return (json.dumps(record, indent=1) + "\n").encode()


def _destination(out: Path, source: Source, overwrite: bool) -> Path:
    """Return the absolute path of the new folder. Raises UsageError or StorageError if it cannot be one."""
    shown = printable(str(out))
    try:
        target, root = out.resolve(), source.root.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to themselves
        raise StorageError(f"{shown}: cannot be a destination ({error})") from error
    if target == root or target.is_relative_to(root) or root.is_relative_to(target):
        raise UsageError(f"{shown}: is inside the dataset {source.shown}, or around it; give a folder of its own")
    with naming_the_path(out):
        if not target.exists() and not target.is_symlink():
            return target
        if not target.is_dir():
            raise StorageError(f"{shown}: is a file; the destination must be a folder that is new, or empty")
        if target.is_mount():
            raise StorageError(f"{shown}: is where a file system is mounted, and cannot be replaced; give a folder inside it")
        if others := _not_of_export(target):
            raise StorageError(
                f"{shown}: holds something that is of no export ({printable(others[0])}); give a folder that is new, or empty"
            )
        if os.listdir(target) and not overwrite:
            raise StorageError(f"{shown}: holds an export already; --overwrite replaces it (in Python overwrite=True)")
    return target


def _not_of_export(folder: Path) -> list[str]:
    """Return the names in a folder that no export has written: they would be lost with it."""
    files: set[str] = set()
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        record = json.loads((folder / META).read_bytes())
        if record["format"] == FORMAT:
            files = {META, *record["files"]}
    return sorted(name for name in os.listdir(folder) if name not in files)


@contextlib.contextmanager
def _appearing(target: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder that takes the place of `target` when the block ends without an error.

    A folder that was there lies beside for the moment between two renames, under a name that ends with .partial.
    """
    with naming_the_path(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (target.with_name(f"{target.name}.{secrets.token_hex(4)}{PARTIAL}") for _ in range(2))
    try:
        with naming_the_path(target):
            partial.mkdir()
        yield partial
        with naming_the_path(target):
            sync_folder(partial)
            if overwrite and target.exists():
                target.rename(old)
            partial.rename(target)
    except BaseException:  # Ctrl-C too
        _remove(partial)
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    finally:
        if target.exists():
            _remove(old)
    sync_folder(target.parent)


def _remove(folder: Path) -> None:
    """Delete a folder if it is there, and go on with that before a Ctrl-C that comes meanwhile is heeded."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
