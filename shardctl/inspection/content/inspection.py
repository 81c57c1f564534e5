"""What `shardctl inspect` shows: a dataset or one of its splits, or a shard, in Python and on the
command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import DatasetError, UsageError
from shardctl.format.counts import jpeg_costs, step_lines
from shardctl.format.dataset_location import DatasetLocation, open_location, refuse_part_of_dataset
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Sample
from shardctl.format.tables import reason_lines
from shardctl.inspection.content.blocks import ALL
from shardctl.inspection.content.overview import (
    Overview,
    ShardOverview,
    column_bytes,
    describe_shard,
    overview,
    recipe_in_words,
)
from shardctl.inspection.content.statistics import (
    BLOCKS,
    IMAGES,
    MaskStatistics,
    ObjectStatistics,
    Recorded,
    Statistics,
    mask_statistics,
    object_statistics,
    statistics_of,
)
from shardctl.inspection.content.tokens import TokenCount, TokenStatistics, token_statistics
from shardctl.loader.dataset import open_dataset
from shardctl.system.arguments import truth
from shardctl.system.folders import Folder
from shardctl.system.permutation import evenly_spaced
from shardctl.system.report import Section, Table, in_a_notebook
from shardctl.system.text import counted, format_bytes, printable

INPUTS = 32
"""Inputs, from all over the dataset, whose variants are compared."""

MOST = 16
"""Samples that are read to find the variants of an input."""


@dataclass(frozen=True)
class VariantStatistics(Recorded):
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


def variant_statistics(folder: Folder, split: str | None) -> VariantStatistics | None:
    """Compare the variants of some inputs; None if the dataset has none. Raises DatasetError."""
    dataset = open_dataset(folder.text, split)
    if not len(dataset):
        return None
    image = dataset.roles.main_image
    content = [name for name in dataset.schema.names if name not in ("key", "variant", "label")]
    counts, alike, differences = [], 0, []
    for place in evenly_spaced(len(dataset), INPUTS):
        first = max(0, min(place - MOST // 2, len(dataset) - MOST))
        batch = dataset.take(range(first, min(first + MOST, len(dataset))), ["key", *content])
        keys = batch["key"]
        of_input = [row for row, key in enumerate(keys) if key == keys[place - first]]
        contents = {repr([_plain(batch[name][row]) for name in content]) for row in of_input}
        counts.append(len(of_input))
        alike += len(contents) < len(of_input)
        if image is not None:
            differences += _differences([batch[image][row] for row in of_input])
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
        found = self.classes
        classes = "" if found is None else f"; {counted(len(found), 'class', 'classes')}"
        return (
            f"<shardctl.Inspection {self.location!r}: {self.size}; splits {splits}{classes}; "
            f"columns {', '.join(self.schema)}>"
        )

    def _repr_html_(self) -> str:
        """Return what `shardctl inspect` prints, for a notebook."""
        return in_a_notebook(dataset_report(self))

    def record(self) -> dict[str, Any]:
        """Return everything as plain data, as `shardctl inspect --json` prints it:
        docs/json.schema.json has the keys."""
        record = {**super().record(), "statistics": self.statistics.record()}
        for name in ("objects", "tokens", "masks"):
            if (found := getattr(self, name)) is not None:
                record[name] = records_of(found)
        if self.column_bytes:
            record["column_bytes"] = self.column_bytes
        if self.variants is not None:
            record["variants"] = self.variants.record()
        return record


def records_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was found of some fields as plain data, with their names."""
    return [{"field": field, **each.record()} for field, each in found.items()]


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


def inspect_dataset(
    place: DatasetLocation, split: str | None, stats: bool = False, blocks: int = BLOCKS
) -> Inspection:
    """Return what is in a dataset that is open, or in one of its splits, from so many blocks, or
    with `stats` from all. Raises DatasetError, UsageError."""
    found = overview(place.folder, split)
    roles, some = found.manifest.roles, ALL if stats else blocks
    has_masks = any(role.name == "mask" for role in roles.images.values())
    masks: dict[str, MaskStatistics] | None = None
    if stats or blocks > BLOCKS:
        masks = mask_statistics(place, MASKS if stats else blocks, split) if has_masks else {}
    images = ALL if stats else blocks * IMAGES // BLOCKS
    try:
        variants = variant_statistics(place.folder, split) if "variant" in found.schema else None
    except DatasetError:
        variants = None  # a shard is damaged, and all the rest can be shown
    return Inspection(
        **vars(found),
        location=place.shown,
        statistics=statistics_of(place, ALL_BLOCKS if stats else blocks, split),
        objects=object_statistics(place, some, images, split) if roles.objects else {},
        tokens=token_statistics(place, some, split) if roles.tokens else {},
        masks=masks,
        column_bytes=column_bytes(place.folder, split) if stats else None,
        variants=variants,
    )


SHOWN = 12
"""Classes, categories and tokens that a terminal shows."""

POINTS = 30


def dataset_report(found: Inspection) -> Iterator[Section]:
    """Yield what is known of a dataset or a split."""
    m = found.manifest
    took = f" in {m.seconds:,.1f} s" if m.seconds is not None else ""
    of = f" from {', '.join(printable(s) for s in m.sources)}" if m.sources else ""
    of_split = f"split {found.split} of " if found.split else ""
    low, median, high = (format_bytes(size) for size in found.shard_bytes)
    yield Section(
        f"{of_split}{found.location}: {found.size}",
        (
            f"made {m.created}{took} by shardctl {m.shardctl_version}{of}",
            f"shards: {low} to {high}, {median} at the median; {found.compressed}",
            f"recipe: {recipe_in_words(m.recipe)}",
            f"fingerprint: {m.fingerprint}",
        ),
    )
    splits = [(s.name, s.samples, s.shards, format_bytes(s.bytes)) for s in found.splits]
    yield Section("splits:", (Table(splits, ("split", "samples", "shards", "size")),))
    yield from _statistics(found.statistics, m)
    for cost in jpeg_costs(m.jpeg, m.samples):
        yield Section(f"note: {cost}")
    yield from _classes(found)
    if lines := step_lines(m.steps or ()):
        yield Section("steps, in all splits:", list(map(printable, lines)))
    if m.rejected:
        everywhere = " (of all splits)" if found.split else ""
        yield Section(
            f"rejected: {m.rejected:,} of {counted(m.inputs, 'input')}{everywhere}, in "
            "rejects.jsonl",
            [
                line.removeprefix("  ")
                for line in reason_lines(found.reject_reasons, found.reject_examples)
            ],
        )
    for name, objects in found.objects.items():
        what, of = counted(objects.objects, "object"), counted(objects.samples, "sample")
        yield Section(_title(name, what, of, found), list(_object_parts(objects)))
    for name, masks in (found.masks or {}).items():
        yield _mask_section(name, masks)
    for name, tokens in found.tokens.items():
        of = counted(tokens.samples, "block" if tokens.packed else "sample")
        what = counted(tokens.tokens, "token")
        yield Section(_title(name, what, of, found), list(_token_parts(tokens)))
    if (variants := found.variants) is not None:
        differ = ""
        if variants.difference is not None:
            differ = f"their pixels differ by {variants.difference:.1f} of 255 on average; "
        yield Section(
            f"variants: {variants.each:.1f} of each of {counted(variants.compared, 'input')} "
            f"compared: {differ}{variants.alike:,} have two that are the same"
        )
    if found.column_bytes:
        yield Section(
            "bytes of each column in all shards, uncompressed:",
            (Table(list(found.column_bytes.items())),),
        )


def _statistics(statistics: Statistics, manifest: Manifest) -> Iterator[Section]:
    if statistics.faults:
        yield Section(f"DAMAGED: {_damage(statistics.faults, 'the blocks looked at')}")
    if not statistics.columns:
        return
    rows = []
    for each in statistics.columns:
        sizes = (f"{each.raw_bytes:,.1f}", f"{each.stored_bytes:,.1f}")
        rows.append((each.name, *sizes, manifest.type_in_words(each.name, each.type)))
    parts: list[str | Table] = [Table(rows, ("column", "uncompressed", "stored", "type"))]
    parts += [each.table("samples") for each in statistics.distributions if each.says_something]
    if statistics.formats:
        formats = ", ".join(f"{name} {count:,}" for name, count in statistics.formats.items())
        images = counted(sum(statistics.formats.values()), "image")
        parts.append(f"image formats (of {images}): {formats}")
    of = counted(statistics.samples, "sample")
    yield Section(f"columns, average bytes in a sample (of {of}):", parts)


def _damage(faults: tuple[str, ...], of: str = "the blocks") -> str:
    return f"{len(faults)} of {of}; run shardctl verify. {faults[0]}"


def _classes(found: Inspection) -> Iterator[Section]:
    totals, by_split = found.classes, found.classes_by_split
    if not totals or by_split is None:
        return
    least, most = min(totals.values()), max(totals.values())
    each = counted(most, "sample") if least == most else f"{least:,} to {most:,} samples"
    splits = list(by_split) if len(by_split) > 1 else []
    rows = [
        (name, count, *(by_split[split].get(name, 0) for split in splits))
        for name, count in sorted(totals.items(), key=lambda item: -item[1])
    ]
    drawn = range(2, 2 + len(splits)) if splits else (1,)
    table = Table(rows, ("class", "samples", *splits), SHOWN, drawn)
    yield Section(f"classes: {len(totals):,}, {each} each", (table,))


def _title(name: str, what: str, of: str, found: Inspection) -> str:
    """Return the title of what was counted in a column, in all of it or in some blocks."""
    whole = "" if found.column_bytes is not None else "; --stats reads all"
    return f"{printable(name)}: {what} (of {of}{whole})"


def _object_parts(found: ObjectStatistics) -> Iterator[str | Table]:
    if found.faults:
        yield f"DAMAGED: {_damage(found.faults)}"
    yield (
        f"not annotated: {counted(found.not_annotated, 'image')}; annotated and empty: "
        f"{found.without_objects:,}"
    )
    flags = [(what, getattr(found, what)) for what in ("crowds", "difficult", "truncated")]
    if said := [f"{what}: {count:,}" for what, count in flags if count is not None]:
        yield ", ".join(said)
    if found.per_image.counts:
        yield found.per_image.table("images")
    if not found.objects:
        return
    sizes = found.sizes
    yield (
        f"boxes: {sizes['small']:,} small (under 32x32 pixels), {sizes['medium']:,} medium (under "
        f"96x96), {sizes['large']:,} large; {found.degenerate:,} without an area"
    )
    if found.shares.counts:
        yield found.shares.table("boxes")
        images = counted(found.sized_images, "image")
        yield f"boxes that reach out of their image: {found.outside:,} (of {images})"
    used = [each for each in found.categories if each.objects]
    splits = list(used[0].splits) if used and len(used[0].splits) > 1 else []
    yield f"categories: {len(used):,} of {len(found.categories):,} have objects"
    rows = [
        (
            str(each.category) if each.name is None else each.name,
            each.objects,
            each.images,
            *(each.splits[split]["objects"] for split in splits),
        )
        for each in used
    ]
    drawn = range(3, 3 + len(splits)) if splits else (1,)
    yield Table(rows, ("category", "objects", "images", *splits), SHOWN, drawn)
    if found.keypoints:
        points = [
            (number, each.name or "", each.visible, each.hidden, each.absent)
            for number, each in enumerate(found.keypoints)
        ]
        yield Table(points, ("point", "name", "visible", "hidden", "not there"), POINTS, (2, 3, 4))


def _mask_section(name: str, found: MaskStatistics) -> Section:
    rows = [
        (
            each.name or str(each.number),
            each.pixels,
            f"{each.pixels / found.pixels:.1%}",
            each.masks,
        )
        for each in found.classes
        if each.pixels
    ]
    table = Table(rows, ("class", "pixels", "share", "masks with it"), SHOWN, (1,))
    lacking = f"{found.missing:,} samples have no mask; {found.unreadable:,} masks cannot be read"
    return Section(
        f"{printable(name)}: pixels of each class, of {counted(found.masks, 'mask')}; "
        f"{found.ignored:,} pixels of no class",
        (lacking, table) if found.missing or found.unreadable else (table,),
    )


def _token_parts(found: TokenStatistics) -> Iterator[str | Table]:
    if found.faults:
        yield f"DAMAGED: {_damage(found.faults)}"
    if found.packed:
        share = (found.cut or 0) / max(1, found.documents)
        cut = f", {found.cut:,} of them cut ({share:.1%})"
        padding = f"{found.padding:,} tokens of padding, {found.padding_share:.2%} of the blocks"
        yield f"{counted(found.documents, 'document')}{cut}; {padding}"
    for spread, unit in ((found.lengths, "documents"), (found.per_block, "blocks")):
        if spread is not None and spread.counts:
            yield spread.table(unit)
    if found.loss_tokens is not None:
        yield (
            f"loss mask: the loss of {counted(found.loss_tokens, 'token')} counts "
            f"({_share(found.loss_tokens, found)})"
        )
    if found.bytes_per_token is not None:
        of = "" if found.exact else f" (of {found.text_tokens:,} tokens that were decoded)"
        yield f"text: {found.bytes_per_token:.2f} bytes per token{of}"
    if found.outside:
        yield (
            f"DAMAGED: {counted(found.outside, 'token')} outside of the vocabulary; run shardctl "
            "verify --level deep"
        )
    if found.vocabulary is not None:
        yield (
            f"vocabulary: {found.used:,} of {counted(found.vocabulary, 'token')} occur "
            f"({found.coverage:.1%})"
        )
    if found.never_used and found.unused:
        names = ", ".join(_named(token) for token in found.never_used[:8])
        yield f"never used: {names}{', …' if found.unused > 8 else ''} ({found.unused:,} in all)"
    if found.most_common:
        yield "most common tokens:"
        common = found.most_common[:SHOWN]
        yield Table(
            [(each.token, _named(each), each.count, _share(each.count, found)) for each in common],
            bars=(2,),
        )
    if found.why_numbers is not None:
        yield f"tokens are shown as numbers only: {printable(found.why_numbers)}"


def _named(token: TokenCount) -> str:
    if token.text is None:
        return str(token.token)
    name = printable(repr(token.text))
    return name if len(name) <= 30 else f"{name[:29]}…"


def _share(count: int, found: TokenStatistics) -> str:
    return f"{count / max(1, found.tokens):.1%}"
