"""Tar files, as WebDataset has them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def tar(
    members: list[tuple[str, bytes]], format_: int = tarfile.USTAR_FORMAT, end: bool = True
) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format_) as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
        size = file.offset
    return sink.getvalue() if end else sink.getvalue()[:size]


def members_of(path: Path) -> dict[str, bytes]:
    """Return the files of a tar by their names."""
    with tarfile.open(path) as file:
        return {member.name: file.extractfile(member).read() for member in file}  # type: ignore[union-attr]  # all are files


def write_tar(path: Path, records: Mapping[str, Mapping[str, bytes]]) -> Path:
    members = [
        (f"{key}.{ending}", data)
        for key, members in records.items()
        for ending, data in members.items()
    ]
    path.write_bytes(tar(members, tarfile.PAX_FORMAT))
    return path


def write_numbered_tar(path: Path, samples: int) -> Path:
    numbers = range(samples)
    return write_tar(
        path, {f"{n:04d}": {"cls": b"%d" % (n % 3), "txt": b"text %d" % n} for n in numbers}
    )
