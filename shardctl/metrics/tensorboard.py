"""Figures for TensorBoard: event files in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardctl.errors import InstallError
from shardctl.metrics.base import Family
from shardctl.storage import naming_the_path


class TensorBoard:
    """Writes scalars, such as shardctl/loader/samples_per_s."""

    def __init__(self, folder: Path) -> None:
        """Open an event file in the folder. Raises InstallError, StorageError."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise InstallError("metrics for TensorBoard need tensorboardX: pip install 'shardctl[tensorboard]'") from None
        self._folder = folder
        with naming_the_path(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = SummaryWriter(str(folder), write_to_disk=True)

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Write the scalars. Raises StorageError."""
        with naming_the_path(self._folder):
            for name, value in values.items():
                self._writer.add_scalar(f"shardctl/{family.name}/{name}", value, step)
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
