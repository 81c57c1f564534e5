"""Figures for Prometheus: a file for the textfile collector of its node exporter, or an endpoint on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardctl.errors import InstallError, StorageError, UsageError
from shardctl.loader.metrics.base import Family
from shardctl.system.files import naming_the_path
from shardctl.system.output_files import OutputFileType
from shardctl.system.packages import to_install
from shardctl.system.text import printable

LOOPBACK = "127.0.0.1"

_FIGURES = OutputFileType("file of metrics", lambda begin: begin.startswith(b"# HELP shardctl_"))


class _Registry:
    """The last figures of each family, as prometheus_client collects them: shardctl_loader_samples_total and so on."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise InstallError(
                f"metrics for Prometheus need prometheus_client: pip install {to_install('prometheus')}"
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
                    yield kind(f"shardctl_{family.name}_{metric.name}", metric.meaning, value=values[metric.name])


class PrometheusFile:
    """Replaces a file as a whole each time: a reader never finds half of one."""

    def __init__(self, path: Path) -> None:
        """Make the folder of the file. Raises InstallError, StorageError, also for a file that has anything but figures."""
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
        """Open the port. Raises UsageError for what is no port, StorageError where it is in use, InstallError."""
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"metrics http:{printable(port)} needs a port from 1 to 65535, such as http:9400")
        self._figures = _Registry()
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(int(port), LOOPBACK, self._figures.registry)
        except OSError as error:
            raise StorageError(
                f"metrics: port {port} of {LOOPBACK} cannot be opened ({error.strerror}); give another"
            ) from error

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Answer with these figures from now on."""
        self._figures.last[family.name] = (family, dict(values))

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
