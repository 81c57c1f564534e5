"""The form of an export by its name. Its module is imported when it is chosen."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

from shardctl.errors import UsageError
from shardctl.interop.exports.base import Export
from shardctl.interop.exports.options import FormSettings
from shardctl.interop.exports.table import EXPORTS
from shardctl.system.options import declared_in
from shardctl.system.text import did_you_mean, unknown


def chosen_export(to: str, settings: dict[str, Any]) -> Export:
    """Return the export of a name with its settings. Raises UsageError for an unknown name or
    setting."""
    if to not in EXPORTS:
        raise UsageError(unknown("the form of an export", to, EXPORTS))
    class_: Any = getattr(
        importlib.import_module(f"shardctl.interop.exports.{to.replace('-', '_')}"),
        EXPORTS[to].class_,
    )
    known = [field.name for field in fields(class_)]
    odd = next((name for name in settings if name not in known), None)
    if odd is not None:
        has = f"{did_you_mean(odd, known) or ';'} it has {', '.join(known)}" if known else ""
        declared = declared_in(FormSettings)
        shown = declared[odd].spelled(odd) if odd in declared else odd
        raise UsageError(f"{shown} is not for an export to {to}{has}")
    export: Export = class_(**settings)
    return export
