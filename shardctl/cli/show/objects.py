"""What `shardctl inspect` prints of what is marked in images: the objects of a sample, counts of
objects and of masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import bars, print_table
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.format.roles import Objects
    from shardctl.inspection.content.objects import MaskStatistics, ObjectStatistics

SHOWN_OBJECTS = 50
SHOWN_CATEGORIES = 12
SHOWN_POINTS = 30


def print_objects(name: str, objects: Any, role: Objects) -> None:
    """Print the objects of a sample, one in a row."""
    from shardctl.inspection.content.images import is_objects, object_rows

    if not is_objects(objects) or not objects["bbox"]:
        return
    header, rows = object_rows(objects, role)
    click.echo(
        f"{printable(name)}: {counted(len(rows), 'object')}; places are pixels of the upright image"
    )
    print_table(rows[:SHOWN_OBJECTS], header)
    if len(rows) > SHOWN_OBJECTS:
        click.echo(f"  and {len(rows) - SHOWN_OBJECTS:,} more (--json has all)")


def print_object_statistics(name: str, found: ObjectStatistics, whole: bool) -> None:
    """Print what was counted in a column of objects; `whole` says that it is all of the dataset or
    split."""
    counted_of = (
        f"{found.samples:,} samples" if whole else f"{found.samples:,} samples; --stats reads all"
    )
    click.echo(f"{printable(name)}: {counted(found.objects, 'object')} (of {counted_of})")
    for fault in found.faults[:1]:
        click.echo(f"  DAMAGED: {len(found.faults)} of the blocks; run shardctl verify. {fault}")
    click.echo(
        f"  not annotated: {counted(found.not_annotated, 'image')}; annotated and empty: "
        f"{found.without_objects:,}"
    )
    flags = (
        ("crowds", found.crowds),
        ("difficult", found.difficult),
        ("truncated", found.truncated),
    )
    if said := [f"{what}: {count:,}" for what, count in flags if count is not None]:
        click.echo(f"  {', '.join(said)}")
    each = found.per_image
    if each.counts:
        click.echo(
            f"  {each.what}: {each.low:,.0f} to {each.high:,.0f}, {each.median:,.4g} at the median "
            f" {bars(each.counts)}"
        )
    if not found.objects:
        return
    sizes = (
        f"{found.sizes['small']:,} small (under 32x32 pixels)",
        f"{found.sizes['medium']:,} medium (under 96x96)",
    )
    click.echo(
        f"  boxes: {', '.join(sizes)}, {found.sizes['large']:,} large; {found.degenerate:,} "
        "without an area"
    )
    share = found.shares
    if share.counts:
        click.echo(
            f"  {share.what}: {share.low:.1%} to {share.high:.1%}, {share.median:.1%} at the "
            f"median  {bars(share.counts)}"
            f" (of {counted(found.sized_images, 'image')}); {found.outside:,} reach out of their "
            "image"
        )
    _print_categories(found)
    if found.keypoints:
        points = [
            (number, each.name or "", each.visible, each.hidden, each.absent)
            for number, each in enumerate(found.keypoints)
        ]
        print_table(points[:SHOWN_POINTS], ("point", "name", "visible", "hidden", "not there"))


def _print_categories(found: ObjectStatistics) -> None:
    used = [each for each in found.categories if each.objects]
    splits = list(used[0].splits) if used and len(used[0].splits) > 1 else []
    click.echo(f"  categories: {len(used):,} of {len(found.categories):,} have objects")
    rows = [
        (each.name if each.name is not None else str(each.category), each.objects, each.images)
        + tuple(each.splits[split]["objects"] for split in splits)
        for each in used[:SHOWN_CATEGORIES]
    ]
    print_table(rows, ("category", "objects", "images", *splits))
    if len(used) > SHOWN_CATEGORIES:
        click.echo(f"  and {len(used) - SHOWN_CATEGORIES:,} more (--json has all)")


def print_mask_statistics(name: str, found: MaskStatistics) -> None:
    """Print the pixels of each class of some masks."""
    click.echo(
        f"{printable(name)}: pixels of each class, of {counted(found.masks, 'mask')}; "
        f"{found.ignored:,} pixels of no class"
    )
    if found.missing or found.unreadable:
        click.echo(
            f"  {found.missing:,} samples have no mask; {found.unreadable:,} masks cannot be read"
        )
    used = [each for each in found.classes if each.pixels]
    rows = [
        (
            str(each.number) if each.name is None else each.name,
            each.pixels,
            f"{each.pixels / found.pixels:.1%}",
            each.masks,
        )
        for each in used[:SHOWN_CATEGORIES]
    ]
    print_table(rows, ("class", "pixels", "share", "masks with it"))
    if len(used) > SHOWN_CATEGORIES:
        click.echo(f"  and {len(used) - SHOWN_CATEGORIES:,} more (--json has all)")
