"""What makes two conversions the same: a digest of the inputs, the recipe, the settings and the code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from shardctl.listing import Listing
from shardctl.recipe import Recipe
from shardctl.shard import FORMAT_VERSION
from shardctl.sources.splits import named_as_splits
from shardctl.storage import sha256_of


def fingerprint_parts(listing: Listing, recipe: Recipe, settings: dict[str, Any]) -> dict[str, str]:
    """Return one digest per thing that can differ, so that a difference can be named.

    An input counts by its key, offset, size and time of change; its content is not read.
    """
    custom = {step.settings()["target"]: step.code_digest() for step in recipe.sample_transforms}
    side = listing.side.paths if listing.side else ()
    return {
        "inputs": _inputs_digest(listing, str(settings.get("split"))),
        "labels": _digest(sorted(sha256_of(path) for path in side)),
        "recipe": _digest(recipe.settings()),
        "settings": _digest(settings),
        "code": _digest({"custom": custom, "format_version": FORMAT_VERSION}),
    }


def fingerprint(parts: dict[str, str]) -> str:
    """Return the digest of all parts together, 32 hex digits."""
    return _digest(parts)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _inputs_digest(listing: Listing, split: str) -> str:
    digest = hashlib.sha256()
    names = listing.root_names
    if split == "source" or (split == "auto" and len(names) > 1 and named_as_splits(names)):
        digest.update(json.dumps(names).encode())  # else the same sources under other names are the same inputs
    for batch in listing.table.select(["key", "root", "offset", "size", "mtime_ns"]).to_batches():
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None:
                    digest.update(buffer)
    return digest.hexdigest()[:32]
