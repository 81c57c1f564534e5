"""Where datasets of tests are."""

from pathlib import Path

from shardctl.format.dataset_folder import DatasetFolder, dataset_in
from shardctl.format.dataset_location import DatasetLocation
from shardctl.system.folders import LocalFolder


def place_of(path: Path) -> DatasetLocation:
    """Return where a dataset is, or a shard."""
    return (
        DatasetLocation(DatasetFolder(path.parent), path.name)
        if path.is_file()
        else DatasetLocation(dataset_in(path))
    )


def file_at(path: Path) -> tuple[LocalFolder, str]:
    """Return the folder of a file, and its name there."""
    return LocalFolder(path.parent), path.name
