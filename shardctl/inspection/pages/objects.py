"""What is marked in the images of a dataset, for its page: objects by category, sizes and places;
masks by class."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from shardctl.inspection.content.masks import MaskStatistics
from shardctl.inspection.content.objects import ObjectStatistics
from shardctl.inspection.content.statistics import Distribution
from shardctl.inspection.pages import charts
from shardctl.inspection.pages.page import figures, paragraph, section, tiles
from shardctl.system.html import Html, table

LISTED = 500
"""Categories or classes that are listed."""


def sections(
    objects: Mapping[str, ObjectStatistics], masks: Mapping[str, MaskStatistics]
) -> Iterator[Html]:
    """Yield a part of the page for each column of objects, and for each of masks with classes."""
    for name, found in objects.items():
        title = "Objects" if name == "objects" else f"Objects: {name}"
        yield section(
            title,
            tiles(_figures(found)),
            *_faults(found),
            figures(*_object_charts(found)),
            _note(found),
        )
    for name, pixels in masks.items():
        if pixels.pixels:
            yield section(
                f"Mask: {name}",
                figures(_class_chart(pixels), _class_table(pixels)),
                _mask_note(pixels),
            )


def _figures(found: ObjectStatistics) -> list[tuple[str, str]]:
    used = sum(1 for each in found.categories if each.objects)
    tiles = [
        (f"{found.objects:,}", "objects"),
        (f"{used:,}", f"of {len(found.categories):,} categories have objects"),
        (f"{found.per_image.median:,.4g}", "objects in an image at the median"),
        (f"{found.without_objects:,}", "images without objects"),
        (f"{found.not_annotated:,}", "images not annotated"),
    ]
    flags = (
        ("crowds", found.crowds),
        ("difficult", found.difficult),
        ("truncated", found.truncated),
    )
    tiles += [(f"{count:,}", what) for what, count in flags if count is not None]
    wrong = (
        ("boxes without an area", found.degenerate),
        ("boxes reach out of their image", found.outside),
    )
    return tiles + [(f"{count:,}", what) for what, count in wrong if count]


def _faults(found: ObjectStatistics) -> Iterator[Html]:
    if found.faults:
        yield paragraph(
            f"{len(found.faults)} blocks cannot be read; run shardctl verify. {found.faults[0]}",
            "bad",
        )


def _object_charts(found: ObjectStatistics) -> Iterator[Html]:
    used = [each for each in found.categories if each.objects]
    if not used:
        return
    top = used[:LISTED]
    names = [str(each.category) if each.name is None else each.name for each in top]
    series = {
        split: (names, [each.splits[split]["objects"] for each in top]) for split in used[0].splits
    }
    yield charts.bars(
        "Objects by category", series, charts.counts("objects"), stacked=True, total=len(used)
    )
    images = {"": (names, [each.images for each in top])}
    yield charts.bars("Images with a category", images, charts.counts("images"), total=len(used))
    each_image = {"": (whole_bins(found.per_image), found.per_image.counts)}
    yield charts.columns("Objects in an image", each_image, "objects", charts.counts("images"))
    sizes = {
        "": (["small, under 32x32", "medium, under 96x96", "large"], list(found.sizes.values()))
    }
    yield charts.bars("Boxes by their area in pixels", sizes, charts.counts("boxes"))
    if found.shares.counts:
        side = charts.SHARES._replace(title="side of the box / side of the image")
        yield charts.histogram(
            "Size of a box in its image", found.shares.edges, found.shares.counts, side, "boxes"
        )
        yield charts.heat_map("Where the centres of boxes are", found.centres, "boxes")
    if found.keypoints:
        points = [each.name or str(number) for number, each in enumerate(found.keypoints)]
        states = {
            "visible": (points, [each.visible for each in found.keypoints]),
            "hidden": (points, [each.hidden for each in found.keypoints]),
            "not there": (points, [each.absent for each in found.keypoints]),
        }
        yield charts.bars("Keypoints", states, charts.counts("objects"), stacked=True)


def whole_bins(spread: Distribution) -> list[str]:
    """Return the names of bins of whole numbers: one number, or the first and the last."""
    pairs = ((round(low), round(high) - 1) for low, high in itertools.pairwise(spread.edges))
    return [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in pairs]


def _note(found: ObjectStatistics) -> Html:
    sized = (
        f"; sizes and places in the image are those of {found.sized_images:,} images"
        if found.sized_images
        else ""
    )
    return paragraph(
        f"Counted in {found.samples:,} samples of {found.blocks:,} blocks{sized}.", "soft"
    )


def _named(found: MaskStatistics) -> list[tuple[str, int, int]]:
    used = [each for each in found.classes if each.pixels][:LISTED]
    return [
        (str(each.number) if each.name is None else each.name, each.pixels, each.masks)
        for each in used
    ]


def _class_chart(found: MaskStatistics) -> Html:
    names, pixels, _ = zip(*_named(found), strict=True) if _named(found) else ((), (), ())
    shares = {"pixels": (names, [count / found.pixels for count in pixels])}
    return charts.bars(
        "Pixels by class", shares, charts.SHARES._replace(title="share of all pixels")
    )


def _class_table(found: MaskStatistics) -> Html:
    rows = [(name, f"{pixels / found.pixels:.2%}", masks) for name, pixels, masks in _named(found)]
    return Html(
        "<div "
        f'class="tall">{table(rows, ("class", "share of all pixels", "masks with it")).text}</div>'
    )


def _mask_note(found: MaskStatistics) -> Html:
    ignored = (
        f", {found.ignored / found.pixels:.1%} of their pixels of no class" if found.ignored else ""
    )
    return paragraph(
        f"Of {found.masks:,} masks{ignored}; {found.missing:,} samples without a mask, "
        f"{found.unreadable:,} not readable.",
        "soft",
    )
