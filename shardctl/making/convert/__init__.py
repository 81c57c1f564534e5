"""Raw inputs to a committed dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardctl.errors import CONTINUES, explaining_interrupts
from shardctl.making.commit import open_target
from shardctl.making.convert.conversion import ConvertRequest
from shardctl.making.convert.listener import ConversionProgress, Listener
from shardctl.making.convert.result import ConvertResult
from shardctl.making.convert.run import run as run_conversion
from shardctl.making.options import convert_options
from shardctl.system.arguments import instance
from shardctl.system.packages import refuse_while_importing
from shardctl.system.progress import progress_of
from shardctl.system.python_names import with_options

__all__ = ["ConvertResult", "Listener", "convert"]


@with_options(convert_options())
@explaining_interrupts(CONTINUES)
def convert(
    src: str | Path | Sequence[str | Path],
    dst: str | Path,
    recipe: dict[str, Any] | str | Path | None = None,
    listener: Listener | None = None,
    *,
    progress: bool = True,
    **options: Any,
) -> ConvertResult:
    """Convert the inputs under `src` into a dataset at `dst`.

    `recipe` is the path of a TOML file or the same as a dict (docs/recipes.md). `options` are the
    options of the command line, such as resize=256, store="raw" or split={"train": 0.9, "val":
    0.1}. An option wins over the same key in `recipe`. With `part="I/N"` it builds a part of the
    shards, and `finish` makes them the dataset (docs/cluster.md). `progress` False shows no
    progress on stderr; a `listener` has callbacks instead. Raises errors of shardctl.errors:
    UsageError, InputError, StorageError, DatasetError, BusyError, WorkerError, TooManyRejectsError.
    """
    refuse_while_importing("convert")
    instance("listener", listener, Listener)
    request = ConvertRequest.of(src, dst, recipe, options)
    with progress_of(progress, listener) as shown, open_target(request.destination) as target:
        told = listener or ConversionProgress(shown, stays=True).listener()
        if request.options.part is not None:
            from shardctl.making.convert.parts import run_part  # which most conversions never need

            return run_part(request, told, target)
        return run_conversion(request, told, target)
