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
from pathlib import Path
from typing import Any, Protocol

from shardctl.errors import InstallError, StorageError, UsageError
from shardctl.system.files import OutputFileType, naming_the_path
from shardctl.system.packages import to_install
from shardctl.system.text import printable
from shardctl.transforms.values import describe


@dataclass(frozen=True)
class Metric:
    """A figure: its name, what it means, and whether it only grows (a counter of Prometheus)."""

    name: str
    meaning: str
    grows: bool = False


@dataclass(frozen=True)
class Family:
    """Figures that are told together, under one name."""

    name: str
    metrics: tuple[Metric, ...]


LOADER = Family(
    "loader",
    (
        Metric("samples", "samples that the training loop took", grows=True),
        Metric("batches", "batches that the training loop took", grows=True),
        Metric("epoch", "the epoch that is being read"),
        Metric("samples_per_s", "samples that the training loop took in a second"),
        Metric("stall_share", "share of the time that the training loop waited for batches"),
        Metric(
            "utilization",
            "share of the time that the training loop did not wait: accelerator utilisation",
        ),
        Metric(
            "room_share",
            "share of the time of the loader's threads that they waited until batches were taken",
        ),
        Metric(
            "cache_hit_share",
            "share of the blocks and images that were in the loader's memory already",
        ),
        Metric("skipped", "samples that were left out since they could not be read"),
        Metric("threads", "threads that make batches"),
    ),
)

CONVERSION = Family(
    "conversion",
    (
        Metric("records", "records of the plan that are done", grows=True),
        Metric("all_records", "records of the plan"),
        Metric("samples", "samples that were made", grows=True),
        Metric("rejected", "records that were rejected", grows=True),
        Metric("bytes", "bytes of the inputs that were read", grows=True),
        Metric("records_per_s", "records that are done in a second"),
        Metric("left_s", "seconds that are left at this speed"),
    ),
)


class Sink(Protocol):
    """Something that takes figures: a file, an endpoint, another program."""

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
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


class JsonLines:
    """Appends to a file, one write for each line: several processes may append to it."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises StorageError, also for one that has anything but figures."""
        self._path = path
        _FIGURES_OF_A_LINE.check(path)
        with naming_the_path(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Append a line. Raises StorageError."""
        line = {"time": round(time.time(), 3), "of": family.name, "step": step, **values}
        with naming_the_path(self._path):
            data = json.dumps(line).encode() + b"\n"
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Writes scalars, such as shardctl/loader/samples_per_s. Not by tensorboardX's SummaryWriter,
    whose thread and queue stand still for good where its disk is full."""

    def __init__(self, folder: Path) -> None:
        """Open an event file in the folder. Raises InstallError, StorageError."""
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ImportError:
            raise InstallError(
                "metrics for TensorBoard need tensorboardX: pip install "
                f"{to_install('tensorboard')}"
            ) from None
        self._folder = folder
        with naming_the_path(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"))

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Write the scalars. Raises StorageError."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=f"shardctl/{family.name}/{name}", simple_value=value)
            for name, value in values.items()
        ]
        with naming_the_path(self._folder):
            self._writer.write_event(
                Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
            )
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


LOOPBACK = "127.0.0.1"

_FIGURES = OutputFileType("file of metrics", lambda begin: begin.startswith(b"# HELP shardctl_"))


class _Registry:
    """The last figures of each family, as prometheus_client collects them:
    shardctl_loader_samples_total and so on."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise InstallError(
                "metrics for Prometheus need prometheus_client: pip install "
                f"{to_install('prometheus')}"
            ) from None
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.last: dict[str, tuple[Family, Mapping[str, float]]] = {}

    def collect(self) -> Iterator[Any]:
        """Yield the figures."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family, values in list(self.last.values()):
            for metric in family.metrics:
                if metric.name in values:
                    kind = CounterMetricFamily if metric.grows else GaugeMetricFamily
                    yield kind(
                        f"shardctl_{family.name}_{metric.name}",
                        metric.meaning,
                        value=values[metric.name],
                    )


class PrometheusFile:
    """Replaces a file as a whole each time: a reader never finds half of one."""

    def __init__(self, path: Path) -> None:
        """Make the folder of the file. Raises InstallError, StorageError, also for a file that has
        anything but figures."""
        self._path, self._figures = path, _Registry()
        with naming_the_path(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        _FIGURES.check(path)

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Replace the file. Raises StorageError."""
        from prometheus_client import write_to_textfile

        self._figures.last[family.name] = (family, dict(values))
        with naming_the_path(self._path):
            write_to_textfile(os.fspath(self._path), self._figures.registry)

    def close(self) -> None:
        """Leave the file as it is."""


class PrometheusEndpoint:
    """Answers requests for /metrics on a port of this machine, for programs on this machine."""

    def __init__(self, port: str) -> None:
        """Open the port. Raises UsageError for what is no port, StorageError where it is in use,
        InstallError."""
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(
                f"metrics http:{printable(port)} needs a port from 1 to 65535, such as http:9400"
            )
        self._figures = _Registry()
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(
                int(port), LOOPBACK, self._figures.registry
            )
        except OSError as error:
            raise StorageError(
                f"metrics: port {port} of {LOOPBACK} cannot be opened ({error.strerror}); give "
                "another"
            ) from error

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Answer with these figures from now on."""
        self._figures.last[family.name] = (family, dict(values))

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
    """Open FILE.jsonl, FILE.prom, http:PORT or tensorboard:FOLDER. Raises UsageError, InstallError,
    StorageError."""
    check_target(target)
    word, _, rest = str(target).partition(":")
    if word in BY_WORD and rest:
        return BY_WORD[word](rest)
    return BY_ENDING[Path(target).suffix.lower()](Path(target))


def tell(sinks: list[Sink], family: Family, values: Mapping[str, float], step: int) -> None:
    """Give figures to all sinks. One that fails (a full disk) is left out from then on: it must not
    end what it is to watch."""
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
        if (
            not (colon and word in BY_WORD and rest)
            and Path(target).suffix.lower() not in BY_ENDING
        ):
            raise UsageError(
                f"metrics {printable(str(target))!r} is not known; use FILE.jsonl, FILE.prom or "
                "http:PORT (Prometheus), or"
                " tensorboard:FOLDER"
            )
    elif not callable(getattr(target, "write", None)) or not callable(
        getattr(target, "close", None)
    ):
        raise UsageError(
            "metrics go to a file, an address or an object with write and close; it is "
            f"{describe(target)}"
        )


@contextmanager
def sinks_at(targets: Sequence[str | Path]) -> Iterator[list[Sink]]:
    """Open several sinks, and close them in the end."""
    with ExitStack() as stack:
        sinks = []
        for target in targets:
            sinks.append(open_sink(target))
            stack.callback(_close, sinks[-1])
        yield sinks
