"""Figures of a loader, a measurement or a conversion that runs, for the tools that watch training jobs. docs/metrics.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from shardctl.errors import StorageError, UsageError
from shardctl.metrics.base import CONVERSION, LOADER, Family, Metric, Sink
from shardctl.metrics.json_lines import JsonLines
from shardctl.metrics.prometheus import PrometheusEndpoint, PrometheusFile
from shardctl.metrics.tensorboard import TensorBoard
from shardctl.storage import printable

__all__ = ["CONVERSION", "EVERY_SECONDS", "LOADER", "Family", "Metric", "Sink", "open_sink", "sinks_at", "tell"]

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
    word, colon, rest = str(target).partition(":")
    if colon and word in BY_WORD:
        return BY_WORD[word](rest)
    if (ending := Path(target).suffix.lower()) in BY_ENDING:
        return BY_ENDING[ending](Path(target))
    raise UsageError(
        f"metrics {printable(str(target))!r} is not known; use FILE.jsonl, FILE.prom (Prometheus), http:PORT (Prometheus) or"
        " tensorboard:FOLDER"
    )


def tell(sinks: list[Sink], family: Family, values: Mapping[str, float], step: int) -> None:
    """Give figures to all sinks. One that fails (a full disk) is left out from then on: it must not end what it is to watch."""
    for sink in list(sinks):
        try:
            sink.write(family, values, step)
        except StorageError as error:
            sinks.remove(sink)
            sys.stderr.write(f"shardctl: no more metrics here: {error}\n")


@contextmanager
def sinks_at(targets: Sequence[str | Path]) -> Iterator[list[Sink]]:
    """Open several sinks, and close them in the end."""
    with ExitStack() as stack:
        sinks = []
        for target in targets:
            sinks.append(open_sink(target))
            stack.callback(sinks[-1].close)
        yield sinks
