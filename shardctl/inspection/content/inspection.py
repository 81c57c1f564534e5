"""What `shardctl inspect` shows: a dataset or one of its splits, or a shard, in Python and on the
command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardctl.errors import DatasetError, UsageError
from shardctl.format.dataset_location import DatasetLocation, open_location, refuse_part_of_dataset
from shardctl.format.roles import Roles, Sample
from shardctl.inspection.content.objects import mask_statistics, object_statistics
from shardctl.inspection.content.overview import (
    Overview,
    ShardOverview,
    column_bytes,
    describe_shard,
    overview,
)
from shardctl.inspection.content.statistics import BLOCKS, IMAGES, Statistics, statistics_of
from shardctl.inspection.content.tokens import token_statistics
from shardctl.loader.dataset import open_dataset
from shardctl.loader.notebook import columns_in_notebook, splits_in_notebook
from shardctl.system.arguments import truth
from shardctl.system.folders import Folder
from shardctl.system.html import BAD, in_notebook, lines_in_notebook, marked, rows_in_notebook
from shardctl.system.sequences import evenly_spaced
from shardctl.system.text import counted, format_bytes

if TYPE_CHECKING:
    from shardctl.inspection.content.objects import MaskStatistics, ObjectStatistics
    from shardctl.inspection.content.tokens import TokenStatistics


INPUTS = 32
"""Inputs, from all over the dataset, whose variants are compared."""

MOST = 16
"""Samples that are read to find the variants of an input."""


@dataclass(frozen=True)
class VariantStatistics:
    """Comparison of the variants of some inputs: `compared` of them, with `each` variants on
    average.

    `alike` have two variants with the same content. `difference` is the mean absolute difference
    between the pixels of the first variant and of the others, from 0 to 255, over those of the same
    size; None where there are no such images.
    """

    compared: int
    each: float
    alike: int
    difference: float | None

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def variant_statistics(folder: Folder, split: str | None = None) -> VariantStatistics | None:
    """Compare the variants of some inputs; None if the dataset has none. Raises DatasetError."""
    dataset = open_dataset(folder.text, split)
    if "variant" not in dataset.schema.names or not len(dataset):
        return None
    image = dataset.roles.main_image
    content = [name for name in dataset.schema.names if name not in ("key", "variant", "label")]
    counts, alike, differences = [], 0, []
    for place in evenly_spaced(len(dataset), INPUTS):
        first = max(0, min(place - MOST // 2, len(dataset) - MOST))
        batch = dataset.take(
            range(first, min(first + MOST, len(dataset))), ["key", "variant", *content]
        )
        rows = [
            {name: values[row] for name, values in batch.items()}
            for row in range(len(batch["key"]))
        ]
        of_input = [
            row for row in rows if row["key"] == batch["key"][min(place - first, len(rows) - 1)]
        ]
        contents = {repr([_plain(row[name]) for name in content]) for row in of_input}
        counts.append(len(of_input))
        alike += len(contents) < len(of_input)
        if image is not None:
            differences += _differences([row[image] for row in of_input])
    mean = float(np.mean(differences)) if differences else None
    return VariantStatistics(len(counts), float(np.mean(counts)), alike, mean)


def _plain(value: Sample | Any) -> Any:
    """Return a value that is written the same only if it is the same."""
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def _differences(images: list[Any]) -> list[float]:
    """Return how much each image differs from the first one, where it has the same size."""
    first, *others = images
    if first is None:
        return []
    same = (other for other in others if other is not None and other.shape == first.shape)
    return [float(np.abs(other.astype(np.int16) - first.astype(np.int16)).mean()) for other in same]


ALL_BLOCKS = 1024
"""Blocks from which `stats` takes lengths and sizes."""

MASKS = 512
"""Masks of each column whose pixels `stats` counts: 3 milliseconds each."""


@dataclass(frozen=True)
class Inspection(Overview):
    """A dataset, or one of its splits: an Overview, and more numbers from some of its blocks, or
    with `stats` from all.

    `statistics` has sizes and lengths by column, `objects` and `tokens` have counts by column.
    `masks` and `column_bytes` (uncompressed) are None without `stats`. `variants` compares variants
    of some inputs, None if there are no variants.
    """

    location: str
    statistics: Statistics
    objects: dict[str, ObjectStatistics]
    tokens: dict[str, TokenStatistics]
    masks: dict[str, MaskStatistics] | None
    column_bytes: dict[str, int] | None
    variants: VariantStatistics | None

    @property
    def size(self) -> str:
        """How much there is, in words."""
        samples = counted(self.samples, f"{self.manifest.kind} sample")
        return f"{samples} in {counted(self.shards, 'shard')}, {format_bytes(self.bytes)}"

    def __repr__(self) -> str:
        """Return how much there is, the splits, the number of classes and the columns, for
        display."""
        splits = ", ".join(f"{each.name} {each.samples:,}" for each in self.splits)
        classes = (
            f"; {counted(len(self.classes), 'class', 'classes')}"
            if self.classes is not None
            else ""
        )
        columns = ", ".join(self.schema)
        return (
            f"<shardctl.Inspection {self.location!r}: {self.size}; splits {splits}{classes}; "
            f"columns {columns}>"
        )

    def _repr_html_(self) -> str:
        """Return the splits, columns, classes and rejects, for a notebook."""
        m, classes = self.manifest, self.classes or {}
        faults = [
            f"{len(self.statistics.faults)} of the blocks looked at",
            *self.statistics.faults[:1],
        ]
        sizes = {
            each.name: (round(each.raw_bytes), round(each.stored_bytes))
            for each in self.statistics.columns
        }
        rejects = [
            (count, reason, each.key, each.message)
            for (reason, count), each in zip(
                self.reject_reasons.items(), self.reject_examples, strict=True
            )
        ]
        return in_notebook(
            f"{self.location}: {self.size}",
            lines_in_notebook(
                [f"made {m.created} by shardctl {m.shardctl_version}; fingerprint {m.fingerprint}"]
            ),
            lines_in_notebook(faults if self.statistics.faults else (), marked("DAMAGED", BAD)),
            splits_in_notebook(self.splits),
            columns_in_notebook(m, sizes, ("bytes in a sample", "as stored")),
            rows_in_notebook(
                "classes", sorted(classes.items(), key=lambda each: -each[1]), ("class", "samples")
            ),
            rows_in_notebook(
                f"{counted(m.rejected, 'input')} rejected",
                rejects,
                ("inputs", "reason", "for instance", ""),
            ),
        )

    def record(self) -> dict[str, Any]:
        """Return everything as plain data, as `shardctl inspect --json` prints it:
        docs/json.schema.json has the keys."""
        record = {**super().record(), "statistics": self.statistics.record()}
        for name, found in (
            ("objects", self.objects),
            ("tokens", self.tokens),
            ("masks", self.masks),
        ):
            if found is not None:
                record[name] = [{"field": field, **each.record()} for field, each in found.items()]
        if self.column_bytes:
            record["column_bytes"] = self.column_bytes
        if self.variants is not None:
            record["variants"] = self.variants.record()
        return record


def inspect(
    dst: str | Path, *, split: str | None = None, stats: bool = False
) -> Inspection | ShardOverview:
    """Return the content of a dataset, of one `split`, or of the file of a shard, like `shardctl
    inspect`.

    A few blocks are read for sizes and lengths. With `stats`, all shards are read for exact
    numbers. For a single shard, the checksums of its blocks are checked too. For samples use
    `shardctl.open`, as in `ds[7]`, `ds.filter("width > 500")` and `ds.limit(5)`: the options --key,
    --where and --head have no arguments here. `dst` may be on a store. Raises DatasetError,
    StoreError, InstallError, and UsageError for an unknown split, or one of a shard.
    """
    truth("stats", stats)
    with open_location(dst, "blocks") as place:
        refuse_part_of_dataset(place)
        if not place.lone:
            return inspect_dataset(place, split, stats)
        if split is not None:
            raise UsageError(f"{place.shown}: is one shard; a split is of a whole dataset")
        return describe_shard(place.folder, place.lone, check=stats)


def inspect_dataset(place: DatasetLocation, split: str | None, stats: bool) -> Inspection:
    """Return what is in a dataset that is open, or in one of its splits. Raises DatasetError,
    UsageError."""
    found = overview(place.folder, split)
    roles = found.manifest.roles
    return Inspection(
        **vars(found),
        location=place.shown,
        statistics=statistics_of(place, ALL_BLOCKS if stats else BLOCKS, split),
        objects=_objects(place, roles, split, stats),
        tokens=_tokens(place, roles, split, stats),
        masks=_masks(place, roles, split) if stats else None,
        column_bytes=column_bytes(place.folder, split) if stats else None,
        variants=_variants(place, found, split),
    )


# Most datasets have none of what follows, and need not wait for the imports.


def _objects(
    place: DatasetLocation, roles: Roles, split: str | None, stats: bool
) -> dict[str, ObjectStatistics]:
    if not roles.objects:
        return {}

    return object_statistics(place, None if stats else BLOCKS, None if stats else IMAGES, split)


def _masks(place: DatasetLocation, roles: Roles, split: str | None) -> dict[str, MaskStatistics]:
    if all(role.name != "mask" for role in roles.images.values()):
        return {}

    return mask_statistics(place, MASKS, split)


def _tokens(
    place: DatasetLocation, roles: Roles, split: str | None, stats: bool
) -> dict[str, TokenStatistics]:
    if not roles.tokens:
        return {}

    return token_statistics(place, None if stats else BLOCKS, split)


def _variants(
    place: DatasetLocation, found: Overview, split: str | None
) -> VariantStatistics | None:
    if "variant" not in found.schema:
        return None

    try:
        return variant_statistics(place.folder, split)
    except DatasetError:
        return None  # a shard is damaged, and all the rest can be shown
