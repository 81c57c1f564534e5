"""Raw inputs to a committed dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardctl.build.convert import converting, parts
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.request import Asked
from shardctl.build.convert.result import ConvertResult
from shardctl.build.convert.targets import destination
from shardctl.system.importing import refuse_while_importing

__all__ = ["ConvertResult", "Listener", "convert"]


def convert(
    src: str | Path | Sequence[str | Path],
    dst: str | Path,
    recipe: dict[str, Any] | str | Path | None = None,
    listener: Listener | None = None,
    **options: Any,
) -> ConvertResult:
    """Convert the inputs under `src` into a dataset at `dst`.

    `recipe` is the path of a TOML file or the same settings as a dict (docs/recipes.md); `options` are those of Options.
    Raises errors of shardctl.errors: UsageError, InputError, StorageError, DatasetError, BusyError, WorkerError,
    TooManyRejectsError. With `part="I/N"` it builds a part of the shards, and `merge` makes them the dataset (docs/cluster.md).
    """
    refuse_while_importing("convert")
    asked, told = Asked.of(src, dst, recipe, options), listener or Listener()
    with destination(dst, list(asked.roots)) as place:
        asked = replace(asked, target=place.target)
        if asked.options.part is not None:
            return parts.run_part(asked, told, place)
        return converting.run(asked, told, place)
