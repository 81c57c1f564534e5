"""The dataset that is at the target of a conversion already."""

from __future__ import annotations

from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, MANIFEST
from shardctl.system.locations.local import LocalFolder


class ExistingDataset:
    """The dataset in a folder, if there is one. Another process may replace it at any time that this one holds no lease."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder
        self._before: PreviousDataset | None = None

    def manifest(self) -> Manifest | None:
        """Return the manifest as it is now, None if there is no dataset. Raises DatasetError."""
        return Manifest.load(self._folder) if self.is_there() else None

    def is_there(self) -> bool:
        """Return whether there is a dataset now."""
        return self._folder.path(MANIFEST).exists()

    def digest(self) -> str:
        """Return what stands for the dataset as it is now, "" if there is none."""
        manifest = self.manifest()
        return "" if manifest is None else manifest.files[CHECKSUMS].sha256

    def is_replaced(self, manifest: Manifest) -> bool:
        """Return whether the dataset is not the one of this manifest any more."""
        return self.manifest() != manifest

    def before(self, manifest: Manifest) -> PreviousDataset | None:
        """Return the dataset of a manifest with its tables, None if another one has taken its place.

        The tables are hashed once: they may be large. Raises DatasetError if one is damaged.
        """
        if self._before is None or self._before.manifest != manifest:
            try:
                self._before = PreviousDataset(self._folder, manifest)
            except DatasetError:
                if (now := self.manifest()) is not None and now != manifest:
                    return None  # the tables are those of the dataset that has taken its place
                raise
        return self._before
