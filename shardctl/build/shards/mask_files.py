"""The masks of images that are a file each."""

from __future__ import annotations

from typing import Any

from shardctl.build.shards.inputs import digest_of, read_beside
from shardctl.build.shards.job import Job
from shardctl.build.shards.planned import PlannedUnit
from shardctl.sources.annotations.masks import MASK_FILE
from shardctl.system.locations import follow


def mask_path(job: Job, planned: PlannedUnit) -> str | None:
    """Return the path or the URL of the mask file of an image, None if it has none."""
    where = (planned.file.columns or {}).get(MASK_FILE)
    return where and follow(job.roots[planned.file.root].path, where["path"])


def read_mask(job: Job, planned: PlannedUnit) -> dict[str, Any] | None:
    """Return the mask file of an image as the column `mask` has it, None if it has none. Raises
    Rejection, SourceGoneError."""
    path = mask_path(job, planned)
    if path is None:
        return None
    where = (planned.file.columns or {})[MASK_FILE]
    return {"bytes": read_beside(job, planned, path, where["name"], "mask"), "path": where["name"]}


def digest_with(data: bytes, mask: dict[str, Any]) -> int:
    """Return the digest of a unit that is an image and its mask."""
    return digest_of(
        digest_of(data).to_bytes(8, "little") + digest_of(mask["bytes"]).to_bytes(8, "little")
    )
