"""The names of the exports. Nothing is imported before an export is chosen: the command line lists them."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from shardctl.errors import UsageError

if TYPE_CHECKING:
    from shardctl.interop.exports.base import Export

EXPORTS = {
    "parquet": "Parquet",
    "webdataset": "WebDataset",
    "tfrecord": "TfRecord",
    "tfds": "Tfds",
    "mds": "Mds",
    "array-record": "ArrayRecord",
    "files": "Files",
    "coco": "Coco",
    "yolo": "Yolo",
    "megatron": "Megatron",
    "nanogpt": "NanoGpt",
}
"""The class of each export: in the module of its name, with _ for -."""

OPTIONS = {"task": "--task", "compression": "--compression", "eos": "--no-eos"}
"""The option of the command line for each setting."""


def chosen_export(to: str, settings: dict[str, Any]) -> Export:
    """Return the export of a name with its settings. Raises UsageError for an unknown name or setting."""
    if to not in EXPORTS:
        raise UsageError(f"cannot export to {to!r}; there are {', '.join(EXPORTS)}")
    class_: Any = getattr(importlib.import_module(f"shardctl.interop.exports.{to.replace('-', '_')}"), EXPORTS[to])
    known = [field.name for field in fields(class_)]
    odd = next((name for name in settings if name not in known), None)
    if odd is not None:
        has = f"; it has {', '.join(known)}" if known else ""
        raise UsageError(f"{OPTIONS.get(odd, odd)} is not for an export to {to}{has}")
    export: Export = class_(**settings)
    return export
