"""Figures for TensorBoard: event files in a folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from shardctl.errors import InstallError
from shardctl.loader.metrics.base import Family
from shardctl.system.files import naming_the_path
from shardctl.system.packages import to_install


class TensorBoard:
    """Writes scalars, such as shardctl/loader/samples_per_s. Not by tensorboardX's SummaryWriter, whose thread and queue stand
    still for good where its disk is full."""

    def __init__(self, folder: Path) -> None:
        """Open an event file in the folder. Raises InstallError, StorageError."""
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ImportError:
            raise InstallError(f"metrics for TensorBoard need tensorboardX: pip install {to_install('tensorboard')}") from None
        self._folder = folder
        with naming_the_path(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"))

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Write the scalars. Raises StorageError."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=f"shardctl/{family.name}/{name}", simple_value=value) for name, value in values.items()]
        with naming_the_path(self._folder):
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
