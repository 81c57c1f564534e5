"""Figures of a loader, a measurement or a conversion that runs, for the tools that watch training jobs. docs/metrics.md."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from shardctl.errors import StorageError, UsageError
from shardctl.system.files import OutputFileType, naming_the_path
from shardctl.system.packages import needed
from shardctl.system.text import printable
from shardctl.transforms.values import describe

Figures = Mapping[str, float]
"""Figures by their names."""


@dataclass(frozen=True)
class Family:
    """Figures that are told together, under one name. `counters` are those that only grow, `meanings`
    has all of them."""

    name: str
    counters: tuple[str, ...]
    meanings: Mapping[str, str]


LOADER = Family(
    "loader",
    ("samples", "batches"),
    {
        "samples": "samples that the training loop took",
        "batches": "batches that the training loop took",
        "epoch": "the epoch that is being read",
        "samples_per_s": "samples per second that the training loop took",
        "stall_share": "share of the time that the training loop waited for batches",
        "utilization": "share of the time that the training loop did not wait",
        "room_share": "share of the time of the loader's threads that they waited for the training "
        "loop",
        "cache_hit_share": "share of the blocks and images found in the loader's memory",
        "skipped": "samples left out, as they could not be read",
        "threads": "threads that make batches",
    },
)

CONVERSION = Family(
    "conversion",
    ("records", "samples", "rejected", "bytes"),
    {
        "records": "records of the plan that are done",
        "all_records": "records of the plan",
        "samples": "samples that were made",
        "rejected": "records that were rejected",
        "bytes": "bytes of the inputs that were read",
        "records_per_s": "records that are done in a second",
        "left_s": "seconds that are left at this speed",
    },
)


class Sink(Protocol):
    """Something that takes figures: a file, an endpoint, another program."""

    def write(self, family: Family, values: Figures, step: int) -> None:
        """Take the figures of a family; those that are not known are left out. `step` grows. Raises
        StorageError."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


def _begins_with_figures(begin: bytes) -> bool:
    try:
        first = json.loads(begin.partition(b"\n")[0])
    except ValueError:
        return False
    return isinstance(first, dict) and {"time", "of", "step"} <= first.keys()


_FIGURES_OF_A_LINE = OutputFileType("file of metrics", _begins_with_figures)


@dataclass(frozen=True)
class _Output:
    """A sink of ours."""

    write: Callable[[Family, Figures, int], None]
    close: Callable[[], None]


def _json_lines(path: Path) -> Sink:
    """Append to a file, one write for each line: several processes may append to it. Raises
    StorageError, also for one that has anything but figures."""
    _FIGURES_OF_A_LINE.check(path)
    with naming_the_path(path):
        file = open(path, "ab", buffering=0)  # noqa: SIM115 - the sink closes it

    def write(family: Family, values: Figures, step: int) -> None:
        line = {"time": round(time.time(), 3), "of": family.name, "step": step, **values}
        data = json.dumps(line).encode() + b"\n"
        with naming_the_path(path):
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return _Output(write, file.close)


def _tensorboard(target: str) -> Sink:
    """Write scalars, such as shardctl/loader/samples_per_s, to an event file in a folder. Not by
    tensorboardX's SummaryWriter, whose thread and queue stand still for good where its disk is full.

    Raises InstallError, StorageError.
    """
    needed("tensorboardX", "tensorboard", f"metrics {target}")
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    folder = Path(target)
    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
        writer = EventsWriter(str(folder / "events"))

    def write(family: Family, values: Figures, step: int) -> None:
        scalars = [
            Summary.Value(tag=f"shardctl/{family.name}/{name}", simple_value=value)
            for name, value in values.items()
        ]
        with naming_the_path(folder):
            writer.write_event(
                Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
            )
            writer.flush()

    return _Output(write, writer.close)


LOOPBACK = "127.0.0.1"

_FIGURES = OutputFileType("file of metrics", lambda begin: begin.startswith(b"# HELP shardctl_"))


class _LastFigures:
    """The last figures of each family, as prometheus_client collects them:
    shardctl_loader_samples_total and so on."""

    def __init__(self) -> None:
        """Raises InstallError."""
        client = needed("prometheus_client", "prometheus", "a port or FILE.prom")
        self.registry = client.CollectorRegistry()
        self.registry.register(self)
        self._last: dict[str, tuple[Family, Figures]] = {}

    def write(self, family: Family, values: Figures, step: int) -> None:
        """Have these figures collected from now on."""
        self._last[family.name] = (family, dict(values))

    def collect(self) -> Iterator[Any]:
        """Yield the figures."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family, values in list(self._last.values()):
            for name, meaning in family.meanings.items():
                if name in values:
                    kind = CounterMetricFamily if name in family.counters else GaugeMetricFamily
                    yield kind(f"shardctl_{family.name}_{name}", meaning, value=values[name])


def _prometheus_file(path: Path) -> Sink:
    """Replace a file as a whole each time: a reader never finds half of one. Raises InstallError,
    StorageError, also for a file that has anything but figures."""
    figures = _LastFigures()
    with naming_the_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _FIGURES.check(path)

    def write(family: Family, values: Figures, step: int) -> None:
        from prometheus_client import write_to_textfile

        figures.write(family, values, step)
        with naming_the_path(path):
            write_to_textfile(os.fspath(path), figures.registry)

    return _Output(write, lambda: None)


def _prometheus_endpoint(port: str) -> Sink:
    """Answer requests for /metrics on a port of this machine, for programs on this machine. Raises
    UsageError for what is no port, StorageError where it is in use, InstallError."""
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"metrics http:{printable(port)} needs a port from 1 to 65535, such as http:9400"
        )
    figures = _LastFigures()
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(int(port), LOOPBACK, figures.registry)
    except OSError as error:
        raise StorageError(
            f"metrics: port {port} of {LOOPBACK} cannot be opened ({error.strerror}); give another"
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return _Output(figures.write, close)


EVERY_SECONDS = 10.0
"""How often figures are told, where nothing else is said."""

BY_ENDING: Mapping[str, Callable[[Path], Sink]] = {".jsonl": _json_lines, ".prom": _prometheus_file}
"""Sinks that are a file, by the end of its name."""

BY_WORD: Mapping[str, Callable[[str], Sink]] = {
    "http": _prometheus_endpoint,
    "tensorboard": _tensorboard,
}
"""Sinks that are named by a word before a colon."""


@contextmanager
def _telling_failures() -> Iterator[None]:
    """Print what a sink raises: it must not end what it is to watch, nor what has ended well."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a person's own sink may raise anything
        name = "" if isinstance(error, StorageError) else f"{type(error).__name__}: "
        sys.stderr.write(f"shardctl: no more metrics here: {name}{error}\n")


def tell(sinks: list[Sink], family: Family, values: Figures, step: int) -> None:
    """Give figures to all sinks. One that fails (a full disk) is left out from then on."""
    for sink in list(sinks):
        sinks.remove(sink)
        with _telling_failures():
            sink.write(family, values, step)
            sinks.append(sink)


def _opener_of(target: str | Path) -> Callable[[], Sink]:
    """Return what opens a place for figures. Raises UsageError for what is none."""
    word, _, rest = str(target).partition(":")
    if word in BY_WORD and rest:
        return partial(BY_WORD[word], rest)
    path = Path(target)
    if path.suffix.lower() not in BY_ENDING:
        raise UsageError(
            f"metrics {printable(target)!r} is not known; use FILE.jsonl, FILE.prom or "
            "http:PORT (Prometheus), or tensorboard:FOLDER"
        )
    return partial(BY_ENDING[path.suffix.lower()], path)


def check_target(target: Any) -> None:
    """Raise UsageError for what is no place for figures, and no sink."""
    if isinstance(target, str | Path):
        _opener_of(target)
    elif not all(callable(getattr(target, name, None)) for name in ("write", "close")):
        raise UsageError(
            "metrics go to a file, an address or an object with write and close, not "
            f"{describe(target)}"
        )


@contextmanager
def sinks_at(targets: Sequence[str | Path | Sink]) -> Iterator[list[Sink]]:
    """Open FILE.jsonl, FILE.prom, http:PORT or tensorboard:FOLDER each, and close them in the end;
    sinks of a person are given as they are. Raises UsageError, InstallError, StorageError."""
    with ExitStack() as stack:
        sinks: list[Sink] = []
        for target in targets:
            check_target(target)
            if not isinstance(target, str | Path):
                sinks.append(target)
                continue
            sinks.append(_opener_of(target)())
            stack.callback(_telling_failures()(sinks[-1].close))
        yield sinks
