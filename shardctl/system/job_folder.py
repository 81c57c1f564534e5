"""The folder of a job that can be killed at any moment, and gone on with afterwards.

job.json     the record: what the job is. Workers read it, and so does the run that goes on
done/        the markers: a file for each part of the job that is done. It is written after all other files of that part

What the job makes lies in a folder beside these two. This module does not know what that is. Every
file appears whole, by rename. A file that a killed process has begun has a name that ends with
.partial.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.system.files import (
    PARTIAL,
    make_folder,
    naming_the_path,
    read_bytes,
    refuse_link,
    remove_tree,
    write_atomically,
)
from shardctl.system.text import printable

JOB = "job.json"
"""The file of the record. Whoever finds it can go on with the job."""

DONE_FOLDER = "done"
"""The folder of the markers."""


def typed_command() -> dict[str, Any]:
    """Return what a record says as `typed` of the command line that began a job: its words, and the
    folder where it was typed. Nothing if that is not shardctl's."""
    program = Path(*sys.argv[:1])
    as_module = (program.parent.name, program.name) == ("shardctl", "__main__.py")
    if program.name != "shardctl" and not as_module:
        return {}
    with contextlib.suppress(OSError):  # the current folder may be gone
        return {"words": sys.argv[1:], "folder": str(Path.cwd())}
    return {}


@dataclass(frozen=True)
class JobFolder:
    """The folder of a job."""

    path: Path

    @property
    def record_path(self) -> Path:
        """The path of the record."""
        return self.path / JOB

    def is_begun(self) -> bool:
        """Return whether the job has a record: one without is none to go on with."""
        return self.record_path.exists()

    @property
    def id(self) -> str:
        """What the record says that stands for the job, "" for nothing."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(self.record()["id"])
        return ""

    def record(self) -> Any:
        """Return what the record says, unchecked. Raises OSError, ValueError."""
        return json.loads(read_bytes(self.record_path))

    @property
    def command(self) -> str:
        """The command line that began the job, as it can be typed anywhere, behind a colon; "" if it
        is not known."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            typed = self.record()["typed"]
            words, folder = ["shardctl", *map(str, typed["words"])], str(typed["folder"])
            return printable(f": cd {shlex.quote(folder)} && {shlex.join(words)}")
        return ""

    def save(self, record: Any) -> None:
        """Write the record. Raises StorageError."""
        write_atomically(self.record_path, json.dumps(record).encode())

    def make_folders(self, made: str) -> None:
        """Make the folder of the job, and in it the folder `made` and the folder of the markers.
        Some may be there already.

        Raises StorageError, also where one of the three is a link.
        """
        with naming_the_path(self.path):
            for name in (made, DONE_FOLDER):
                make_folder(self.path / name, self.path.parent)

    def marker(self, part: str, ending: str = ".json") -> Path:
        """Return the path of the marker of a part."""
        return self.path / DONE_FOLDER / f"{part}{ending}"

    def mark_done(self, part: str, record: Any) -> None:
        """Write the marker of a part: all else of it is on the disk. Raises StorageError."""
        write_atomically(self.marker(part), json.dumps(record).encode())

    def read_marker(self, part: str) -> Any:
        """Return what the marker of a part says, unchecked. Raises OSError if the part is not done,
        ValueError."""
        return json.loads(read_bytes(self.marker(part)))

    def markers(self) -> list[str]:
        """Return the names of the files in the folder of the markers. Raises OSError, also if the
        folder is not there.

        They are not read: where the power failed, one may be torn.
        """
        return [name for name in os.listdir(self.path / DONE_FOLDER) if not name.endswith(PARTIAL)]

    def delete_partial_files(self, folder: Path, is_wanted: Callable[[str], bool]) -> None:
        """Delete the incomplete files of killed processes in a folder that the job writes to.

        Only those go that were to get a wanted name. Raises StorageError.
        """
        with naming_the_path(self.path):
            for left in folder.glob(f"*{PARTIAL}"):
                if is_wanted(left.name.rsplit(".", 2)[0]):
                    left.unlink(missing_ok=True)

    def discard(self, below: Path) -> None:
        """Take the folder away. The record goes first: half of a folder is none to go on from.

        It is renamed before it is deleted: a worker whose parent was killed may still write files
        by the old path. Raises OSError, and StorageError if the folder is a link, or one between it
        and the folder `below`.
        """
        refuse_link(self.path.parent)
        refuse_link(self.path)
        self.record_path.unlink(missing_ok=True)
        discarded = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            self.path.rename(discarded)
        except OSError:  # not every file system renames folders
            discarded = self.path
        remove_tree(discarded, below)
