"""Figures of a loader, a measurement or a conversion that runs, for the tools that watch training jobs. docs/metrics.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shardctl.errors import StorageError, UsageError
from shardctl.loader.metrics.base import CONVERSION, LOADER, Family, Metric, Sink
from shardctl.loader.metrics.json_lines import JsonLines
from shardctl.loader.metrics.prometheus import PrometheusEndpoint, PrometheusFile
from shardctl.loader.metrics.tensorboard import TensorBoard
from shardctl.system.text import printable
from shardctl.transforms.values import describe

__all__ = ["CONVERSION", "EVERY_SECONDS", "LOADER", "Family", "Metric", "Sink", "check_target", "open_sink", "sinks_at", "tell"]

EVERY_SECONDS = 10.0
"""How often figures are told, where nothing else is said."""

BY_ENDING: Mapping[str, Callable[[Path], Sink]] = {".jsonl": JsonLines, ".prom": PrometheusFile}
"""Sinks that are a file, by the end of its name."""

BY_WORD: Mapping[str, Callable[[str], Sink]] = {
    "http": PrometheusEndpoint,
    "tensorboard": lambda folder: TensorBoard(Path(folder)),
}
"""Sinks that are named by a word before a colon."""


def open_sink(target: str | Path) -> Sink:
    """Open FILE.jsonl, FILE.prom, http:PORT or tensorboard:FOLDER. Raises UsageError, InstallError, StorageError."""
    check_target(target)
    word, _, rest = str(target).partition(":")
    if word in BY_WORD and rest:
        return BY_WORD[word](rest)
    return BY_ENDING[Path(target).suffix.lower()](Path(target))


def tell(sinks: list[Sink], family: Family, values: Mapping[str, float], step: int) -> None:
    """Give figures to all sinks. One that fails (a full disk) is left out from then on: it must not end what it is to watch."""
    for sink in list(sinks):
        try:
            sink.write(family, values, step)
        except Exception as error:  # noqa: BLE001 - a person's own sink may raise anything
            sinks.remove(sink)
            _print_failure(error)


def _print_failure(error: Exception) -> None:
    name = "" if isinstance(error, StorageError) else f"{type(error).__name__}: "
    sys.stderr.write(f"shardctl: no more metrics here: {name}{error}\n")


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except Exception as error:  # noqa: BLE001 - as above; what was watched has ended well
        _print_failure(error)


def check_target(target: Any) -> None:
    """Raise UsageError for what is no place for figures, and no sink."""
    if isinstance(target, str | Path):
        word, colon, rest = str(target).partition(":")
        if not (colon and word in BY_WORD and rest) and Path(target).suffix.lower() not in BY_ENDING:
            raise UsageError(
                f"metrics {printable(str(target))!r} is not known; use FILE.jsonl, FILE.prom or http:PORT (Prometheus), or"
                " tensorboard:FOLDER"
            )
    elif not callable(getattr(target, "write", None)) or not callable(getattr(target, "close", None)):
        raise UsageError(f"metrics go to a file, an address or an object with write and close; it is {describe(target)}")


@contextmanager
def sinks_at(targets: Sequence[str | Path]) -> Iterator[list[Sink]]:
    """Open several sinks, and close them in the end."""
    with ExitStack() as stack:
        sinks = []
        for target in targets:
            sinks.append(open_sink(target))
            stack.callback(_close, sinks[-1])
        yield sinks
