"""The names of the exports. Nothing is imported before an export is chosen: the command line lists them."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from shardctl.errors import UsageError

if TYPE_CHECKING:
    from shardctl.exports.base import Export

EXPORTS = {
    "parquet": "Parquet",
    "webdataset": "WebDataset",
    "tfrecord": "TfRecord",
    "tfds": "Tfds",
    "mds": "Mds",
    "files": "Files",
    "coco": "Coco",
    "yolo": "Yolo",
    "megatron": "Megatron",
    "nanogpt": "NanoGpt",
}
"""The class of each export: in the module of its name."""


def chosen_export(to: str, settings: dict[str, Any]) -> Export:
    """Return the export of a name with its settings. Raises UsageError for an unknown name or setting."""
    if to not in EXPORTS:
        raise UsageError(f"cannot export to {to!r}; there are {', '.join(EXPORTS)}")
    class_: Any = getattr(importlib.import_module(f"shardctl.exports.{to}"), EXPORTS[to])
    known = [field.name for field in fields(class_)]
    odd = next((name for name in settings if name not in known), None)
    if odd is not None:
        raise UsageError(f"an export to {to} has no setting {odd!r}; it has {', '.join(known) or 'none'}")
    export: Export = class_(**settings)
    return export
