"""The output of `shardctl --version`."""

from __future__ import annotations

import platform

import shardctl
from shardctl.errors import InstallError
from shardctl.system.packages import installed_version


def version_text() -> str:
    """Return the versions, the imaging backend and the formats that it can read."""
    lines = [f"shardctl {shardctl.__version__}"]
    packages = ", ".join(
        f"{name} {installed_version(name)}" for name in ("pyarrow", "numpy", "click")
    )
    lines.append(f"Python {platform.python_version()}, {packages}")
    try:
        from shardctl.images.codecs import backend

        name = backend.require_one()
    except InstallError as error:
        return "\n".join([*lines, f"imaging: {error}"])
    lines.append(f"imaging: {name} ({', '.join(backend.libraries())})")
    readable, missing = backend.readable_formats()
    lines.append(f"reads: {', '.join(readable)}")
    if missing:
        lines.append(
            f"cannot read in this build: {', '.join(missing)} (`shardctl help install` says how to "
            "add them)"
        )
    return "\n".join(lines)
