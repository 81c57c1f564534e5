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


def write_tar(path: Path, records: Mapping[str, Mapping[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for key, members in records.items():
            for ending, data in members.items():
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def write_numbered_tar(path: Path, samples: int) -> Path:
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            for field, data in (("cls", b"%d" % (number % 3)), ("txt", f"text {number}".encode())):
                info = tarfile.TarInfo(f"{number:04d}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path
