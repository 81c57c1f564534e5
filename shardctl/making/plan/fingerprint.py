"""What makes two conversions the same: a digest of the inputs, the recipe, the settings, the code
and its versions."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.names import Json
from shardctl.format.shard import SHARD_VERSION
from shardctl.images.codecs import backend
from shardctl.making.plan.listing import Listing
from shardctl.sources.formats import DETECT
from shardctl.sources.splits import named_as_splits
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe
from shardctl.version import __version__

VERSIONS = "versions"
"""The part of a fingerprint that names what decides values and bytes beside shardctl's own recipe:
"pyarrow 26.0.1, …"."""

WRITTEN_PART = "samples"
"""The only part of the fingerprint of a dataset that was not made from files: the digest of its
shards."""


def parts_without_sources(recipe: Recipe, settings: Json) -> dict[str, str]:
    """Return one digest for each thing that can differ, except the files of the sources. So a
    difference can be named. `versions` are readable as they are."""
    custom = {step.settings()["target"]: step.code_digest() for step in recipe.sample_transforms}
    return {
        "recipe": _digest(recipe.to_json()),
        "settings": _digest(without_folders(settings)),
        "code": _digest({"custom": custom, "format_version": SHARD_VERSION}),
        VERSIONS: ", ".join(_versions(recipe)),
    }


def without_folders(settings: Json) -> Json:
    """Return settings in which labels files and annotations have no folder: what is in the files
    counts, wherever they lie."""
    return {
        name: _names_alone(value) if name == "labels" else value for name, value in settings.items()
    }


def _names_alone(labels: str | list[str]) -> str | list[str]:
    if isinstance(labels, str):
        return re.sub(r"(\w+://)?[^:]*/", "", labels)  # coco:a/b.json is coco:b.json
    return [str(_names_alone(each)) for each in labels]


def labels_digest(files: Iterable[str]) -> str:
    """Return what stands for labels files and annotations, given the digests of the bytes that were
    read of each, in hex; of masks these are of their sizes and times of change."""
    return _digest(sorted(files))


def fingerprint(parts: dict[str, str]) -> str:
    """Return the digest of all parts together, 32 hex digits."""
    return _digest(parts)


def differing_parts(parts: Mapping[str, str], others: Mapping[str, str]) -> tuple[str, ...]:
    """Return the parts in which two conversions differ; also those that only one of them has."""
    return tuple(name for name in {**others, **parts} if parts.get(name) != others.get(name))


def difference(parts: dict[str, str], others: dict[str, str]) -> str:
    """Name the parts in which two fingerprints differ: "inputs and recipe", or else "versions
    (pyarrow 25.0.0 → 26.0.1)"."""
    names = [name for name in differing_parts(parts, others) if name != VERSIONS and name in others]
    if names:
        return " and ".join(names)
    return f"{VERSIONS} ({version_changes(parts.get(VERSIONS, ''), others.get(VERSIONS, ''))})"


def version_changes(before: str, now: str) -> str:
    """Say which versions differ: "libjpeg-turbo 2.1.5 → 3.0.1, numpy 1.26.4 → none"."""
    if not before:
        return f"not recorded → {now}"
    old, new = (
        dict(part.partition(" ")[::2] for part in text.split(", ")) for text in (before, now)
    )
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return printable(
        ", ".join(f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}" for name in names)
    )


def deciding_versions(recipe: Recipe) -> str:
    """Name all that decides the bytes of shards beside their inputs and recipe: two machines that
    build shards of one dataset must have the same. "python 3.11, pyarrow 26.0.1, …", with a digest
    of each function of the user.
    """
    names = [
        f"python {sys.version_info.major}.{sys.version_info.minor}",
        *_versions(recipe),
        f"numpy {np.__version__}",
    ]
    code = [
        f"{step.settings()['target']} {(step.code_digest() or 'none')[:12]}"
        for step in recipe.sample_transforms
    ]
    return ", ".join(dict.fromkeys(names + code))


def _versions(recipe: Recipe) -> list[str]:
    """Name what decides values and bytes: what writes the shards, detects encodings, handles the
    images, and draws."""
    names = [f"shardctl {__version__}", f"format {SHARD_VERSION}", f"pyarrow {pa.__version__}"]
    if recipe.random:
        names.append(f"numpy {np.__version__}")
    if recipe.record_reading.encoding == DETECT:
        names.append(f"charset-normalizer {_detector_version()}")
    if recipe.kind == "image":
        import simplejpeg  # loaded by the decoders anyway

        names += [
            backend.require_one(),
            *backend.libraries(),
            f"simplejpeg {simplejpeg.__version__}",
        ]
    return names + [version for step in recipe.transform for version in step.versions()]


def _detector_version() -> str:
    """Return the version of the package that detects encodings, "none" if it is missing."""
    from importlib import metadata  # 20 ms to import, and most recipes name an encoding

    try:
        return metadata.version("charset-normalizer")
    except metadata.PackageNotFoundError:
        return "none"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def inputs_digest(listing: Listing, settings: Json) -> str:
    """Return what stands for the files of a list: their paths, sizes and times of change, in
    batches of CHUNK_ROWS rows. Their content is not read."""
    digest, split = hashlib.sha256(), str(settings.get("split"))
    names = listing.root_names
    if split == "source" or (split == "auto" and len(names) > 1 and named_as_splits(names)):
        # else the same sources under other names are the same inputs
        digest.update(json.dumps(names).encode())
    for batch in listing.table.select(["path", "root", "size", "mtime_ns"]).to_batches():
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None:
                    digest.update(buffer)
    if listing.beside:
        digest.update(json.dumps(listing.beside_states).encode())
    return digest.hexdigest()[:32]
