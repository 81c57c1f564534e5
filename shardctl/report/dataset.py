"""A dataset as a page to browse: what `shardctl inspect` knows of it, and some of its samples."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy.typing as npt

from shardctl.codecs.drawing import Annotations, colour_of, counted_categories, draw, draw_classes, name_of, objects_line
from shardctl.codecs.image import Pixels, decode_mask
from shardctl.codecs.sheet import contact_sheet, enlarge, jpeg, shrink, size_of, within
from shardctl.errors import Rejection
from shardctl.inspection.blocks import Record, some_records
from shardctl.inspection.images import is_encoded_image, is_objects
from shardctl.inspection.objects import mask_statistics, object_statistics
from shardctl.inspection.overview import Overview, overview
from shardctl.inspection.records import describe_value
from shardctl.inspection.statistics import Statistics, statistics_of
from shardctl.report import charts, marks
from shardctl.report.page import Html, data, figures, page, paragraph, section, table, text, tiles
from shardctl.roles import Mask, Objects
from shardctl.storage import format_bytes
from shardctl.tables import REJECTS, read_rejects

PICTURES = 60
TEXTS = 24
ROWS = 500
REJECTED = 200
CLASSES = marks.CLASSES
OBJECT_BLOCKS, OBJECT_IMAGES, MASKS = 256, 2048, 128
"""How much of what is read and shown: the page of ten million samples is as large as that of ten thousand."""

SIDE, MARKED_SIDE = 160, 256
"""The longer side of a picture, and of one in which something is marked, in pixels."""

TEXT_LENGTH = 400

_SEARCH = """
const box = document.querySelector("#search"), rows = [...document.querySelectorAll("#samples tbody tr")];
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const hit = words.every(word => row.textContent.toLowerCase().includes(word));
    row.hidden = !hit; shown += hit;
  }
  document.querySelector("#found").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
});
"""

_STYLE = """<style>.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; }
.pictures figure { padding: .3rem; } .pictures img { display: block; width: 100%; height: 8rem; object-fit: contain; }
.pictures.marked { grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); }
.pictures.marked img { height: auto; max-height: 20rem; }
.pictures i { display: inline-block; width: .7em; height: .7em; margin-right: .25em; border: 1px solid var(--rule); }
.tall .scroll { max-height: 19rem; overflow: auto; }
.pictures figcaption { font-weight: 400; font-size: .75rem; overflow-wrap: anywhere; }
.texts blockquote { margin: 0 0 .6rem; padding: .5rem .8rem; background: var(--panel); border-radius: .4rem;
  overflow-wrap: anywhere; }
#samples .scroll { max-height: 36rem; overflow: auto; } #samples td:first-child { white-space: nowrap; }
input { font: inherit; padding: .35rem .6rem; width: min(24rem, 100%); color: var(--ink); background: var(--panel);
  border: 1px solid var(--rule); border-radius: .4rem; }</style>"""


def dataset_page(root: Path, split: str | None = None, annotated: bool = True) -> str:
    """Return a dataset, or one of its splits, as a page; `annotated` images have what is marked in them drawn onto them.

    Raises DatasetError, InstallError, UsageError for an unknown split.
    """
    charts.require_plotly()
    found, statistics = overview(root, split), statistics_of(root, blocks=32, split=split)
    records = list(some_records(root, split, ROWS))
    objects = object_statistics(root, OBJECT_BLOCKS, OBJECT_IMAGES, split)
    masks = mask_statistics(root, MASKS, split)
    parts = [Html(_STYLE), _headline(found), _tiles(found), _splits(found), figures(*_charts(found, statistics))]
    parts += marks.sections(objects, masks)
    parts += [*_pictures(records, annotated), *_texts(records), _rejects(root, found), _samples(records)]
    parts += [
        _making(found, statistics),
        data("overview", found.record()),
        data("objects", [{"field": name, **each.record()} for name, each in objects.items()]),
        charts.drawing(),
        Html(f"<script>{_SEARCH}</script>"),
    ]
    return page(f"shardctl inspect: {root}" + (f", split {split}" if split else ""), *parts)


def picture_sheet(pictures: Iterable[Picture], columns: int | None = None) -> bytes:
    """Return images as one PNG, each with its class and key. Those that do not decode are crossed out.

    There are 8 in a row, or 5 larger ones where something is marked in them.
    """
    listed = list(pictures)
    large = any(picture.has_marks for picture in listed)
    side = MARKED_SIDE if large else SIDE
    return contact_sheet(
        ((_thumbnail(picture, side), picture.lines) for picture in listed), columns or (5 if large else 8), side
    )


@dataclass(frozen=True)
class Picture:
    """An image or a mask of a record, encoded or as an array, with what is marked in it and the lines below it.

    `objects` has the values of the columns of objects with their roles; `masks` the masks as they are stored. `classes` is the
    role of a mask that is shown by itself, in the colours of its classes.
    """

    content: bytes | npt.NDArray[Any]
    caption: tuple[str, ...]
    objects: tuple[tuple[dict[str, Any] | None, Objects], ...] = ()
    masks: tuple[tuple[bytes | npt.NDArray[Any], Mask], ...] = ()
    classes: Mask | None = None

    @property
    def has_marks(self) -> bool:
        """Whether there may be something to draw onto it."""
        return bool(self.objects or self.masks)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines below it: how many objects of each category, and the caption, whose last line is the key."""
        return (*self.caption[:-1], *(objects_line(value, role) for value, role in self.objects), self.caption[-1])

    def annotations(self) -> Annotations:
        """Return what is marked in the image; masks that do not decode are left out. Raises Rejection for the image."""
        masks = ((_numbers(content), role) for content, role in self.masks)
        return Annotations(size_of(self.content), self.objects, tuple((m, role) for m, role in masks if m is not None))


def _numbers(content: bytes | npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    try:
        return decode_mask(content) if isinstance(content, bytes) else content
    except Rejection:
        return None


def pictures_of(record: Record, annotated: bool = True) -> list[Picture]:
    """Return the images and masks of a record; with several fields of them, the name of the field is below each.

    The main image has the objects and masks of the sample with it, if it is to be `annotated`.
    """
    found = []
    main = record.roles.main_image if annotated else None
    for name in record.images:
        content = _content(record.values[name])
        if content is None:
            continue
        lines = (*([name] if len(record.images) > 1 else []), *caption(record))
        role = record.roles.get(name)
        if annotated and isinstance(role, Mask):
            found.append(Picture(content, lines, classes=role))
        elif name == main:
            found.append(Picture(content, lines, _objects_of(record), _masks_of(record)))
        else:
            found.append(Picture(content, lines))
    return found


def _content(value: Any) -> bytes | npt.NDArray[Any] | None:
    content: bytes | npt.NDArray[Any] | None = value["bytes"] if is_encoded_image(value) else value
    return content


def _objects_of(record: Record) -> tuple[tuple[dict[str, Any] | None, Objects], ...]:
    values = ((record.values.get(name), role) for name, role in record.roles.objects.items())
    return tuple((value, role) for value, role in values if value is None or is_objects(value))


def _masks_of(record: Record) -> tuple[tuple[bytes | npt.NDArray[Any], Mask], ...]:
    masks = ((_content(record.values[name]), role) for name, role in record.roles.images.items() if isinstance(role, Mask))
    return tuple((content, role) for content, role in masks if content is not None)


def caption(record: Record) -> tuple[str, ...]:
    """Return the caption of an image: its class or label if it has one, and its key."""
    labels = [(record.class_names[name], record.values[name]) for name in record.class_names]
    said = [str(label if class_name is None else class_name) for class_name, label in labels if label is not None]
    return (", ".join(said), str(record.values["key"])) if said else (str(record.values["key"]),)


def _thumbnail(picture: Picture, side: int) -> Pixels | None:
    """Return a small picture with what is marked in it; None where it does not decode."""
    try:
        if picture.classes is not None:
            return _coloured(picture.content, picture.classes, side)
        pixels = shrink(picture.content, side)
        return draw(enlarge(pixels, side), picture.annotations()) if picture.has_marks else pixels
    except Rejection:
        return None


def _coloured(content: bytes | npt.NDArray[Any], role: Mask, side: int) -> Pixels | None:
    """Return a small picture of a mask in the colours of its classes, in grey or in its own where it has none."""
    numbers = _numbers(content)
    if numbers is None:
        return shrink(content, side)
    size = within((numbers.shape[1], numbers.shape[0]), side)
    coloured = draw_classes(numbers, role, size)
    return shrink(content, side) if coloured is None else enlarge(coloured, side)


def _headline(found: Overview) -> Html:
    m = found.manifest
    took = f" in {m.seconds:,.1f} s" if m.seconds is not None else ""
    return paragraph(f"made {m.created}{took} by shardctl {m.shardctl_version} from {', '.join(m.sources)}", "soft")


def _tiles(found: Overview) -> Html:
    m = found.manifest
    low, median, high = (format_bytes(size) for size in found.shard_bytes)
    return tiles(
        [
            (f"{found.samples:,}", f"{m.kind} samples"),
            (f"{found.shards:,}", f"shards, {low} to {high}, {median} at the median"),
            (format_bytes(found.bytes), found.compressed),
            (f"{m.rejected:,}", f"of {m.inputs:,} inputs rejected{', in all splits' if found.split else ''}"),
        ]
    )


def _splits(found: Overview) -> Html:
    rows = [(split.name, split.samples, split.shards, format_bytes(split.bytes)) for split in found.splits]
    return section("Splits", table(rows, ("split", "samples", "shards", "size")))


def _charts(found: Overview, statistics: Statistics) -> Iterator[Html]:
    totals = found.class_totals
    if totals and found.classes is not None:
        top = sorted(totals, key=lambda name: -totals[name])[:CLASSES]
        series = {split: (top, [counts.get(name, 0) for name in top]) for split, counts in found.classes.items()}
        more = f" (the largest {CLASSES} of {len(totals):,})" if len(totals) > CLASSES else ""
        yield charts.bars(f"Samples by class{more}", series, "", "samples", barmode="stack", xaxis_type="category")
    for spread in statistics.distributions:
        if spread.low < spread.high:
            yield charts.histogram(spread.what.capitalize(), spread.edges, spread.counts, spread.what)
    stored = {column.name: column.stored_bytes for column in statistics.columns}
    raw = {column.name: column.raw_bytes for column in statistics.columns}
    both = {"before compression": (list(raw), list(raw.values())), "as stored": (list(stored), list(stored.values()))}
    yield charts.bars("Bytes of a sample by column", both, "", "bytes", xaxis_type="category")


def _pictures(records: list[Record], annotated: bool) -> Iterator[Html]:
    with_images = [record for record in records if pictures_of(record)]
    if not with_images:
        return
    made = []
    chosen = with_images[:: max(1, len(with_images) // PICTURES)][:PICTURES]
    large = any(picture.has_marks for picture in pictures_of(chosen[0], annotated))
    for picture in (picture for record in chosen for picture in pictures_of(record, annotated)):
        pixels, below = _thumbnail(picture, MARKED_SIDE if large else SIDE), _below(picture)
        if pixels is None:
            made.append(f'<figure><p class="bad">does not decode</p><figcaption>{below}</figcaption></figure>')
            continue
        encoded = base64.b64encode(jpeg(pixels)).decode("ascii")
        drawn = f'<img src="data:image/jpeg;base64,{encoded}" alt="{text(picture.caption[-1])}">'
        made.append(f"<figure>{drawn}<figcaption>{below}</figcaption></figure>")
    style = "pictures marked" if large else "pictures"
    yield section("Some images", Html(f'<div class="{style}">{"".join(made)}</div>'))


def _below(picture: Picture) -> str:
    """Return the lines below a picture as HTML, each category behind its colour in the picture."""
    counted = ("&ensp;".join(_category(*each, role) for each in counted_categories(value)) for value, role in picture.objects)
    said = (objects_line(value, role) for value, role in picture.objects)
    lines = [colours or text(line) for colours, line in zip(counted, said, strict=True)]
    return "<br>".join([*map(text, picture.caption[:-1]), *lines, text(picture.caption[-1])])


def _category(category: int, count: int, role: Objects) -> str:
    red, green, blue = colour_of(category)
    return f'<i style="background: rgb({red},{green},{blue})"></i>{count:,} {text(name_of(category, role.names))}'


def _texts(records: list[Record]) -> Iterator[Html]:
    texts = [(record, str(record.values["text"])) for record in records if isinstance(record.values.get("text"), str)]
    if not texts:
        return
    made = (
        f"<blockquote>{text(whole[:TEXT_LENGTH])}{'…' if len(whole) > TEXT_LENGTH else ''}"
        f'<div class="soft">{text(record.values["key"])}, {len(whole):,} characters</div></blockquote>'
        for record, whole in texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    )
    yield section("Some texts", Html(f'<div class="texts">{"".join(made)}</div>'))


def _rejects(root: Path, found: Overview) -> Html:
    if not found.manifest.rejected:
        return section("Rejected inputs", paragraph("None."))
    rows = [(r.key, f"{r.stage}: {r.error}", r.message) for r in islice(read_rejects(root / REJECTS), REJECTED)]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in found.reasons.items())
    shown = f"{reasons}. " + (f"The first {REJECTED}:" if found.manifest.rejected > REJECTED else "")
    return section("Rejected inputs", paragraph(shown), table(rows, ("key", "reason", "message")))


def _samples(records: list[Record]) -> Html:
    """Return the table to search in."""
    columns = list(records[0].values) if records else []
    rows = [[record.shard, record.row, *(_shown(record, name) for name in columns)] for record in records]
    found = f'<span id="found" class="soft">{len(rows):,} shown</span>'
    search = Html(f'<p><input id="search" type="search" placeholder="search" aria-label="search"> {found}</p>')
    whole = Html(f'<div id="samples">{table(rows, ("shard", "row", *columns)).text}</div>')
    return section(f"{len(rows):,} samples from everywhere", search, whole)


def _shown(record: Record, name: str) -> Any:
    value, class_name = record.values[name], record.class_names.get(name)
    if class_name is not None:
        return f"{value} {class_name}"
    if name in record.roles.objects and (value is None or is_objects(value)):
        return objects_line(value, record.roles.objects[name])
    told = describe_value(value)
    if isinstance(told, dict):
        told = " ".join(str(part) for part in told.values())
    return told if isinstance(told, int | float) and not isinstance(told, bool) else str(told)[: TEXT_LENGTH // 4]


def _making(found: Overview, statistics: Statistics) -> Html:
    m = found.manifest
    rows = [("fingerprint", m.fingerprint), ("recipe", str(m.recipe)), ("settings", str(m.settings))]
    rows += [(f"column {name}", type_) for name, type_ in m.schema]
    if statistics.formats:
        rows.append(("formats", ", ".join(f"{name} {count:,}" for name, count in statistics.formats.items())))
    seen = f"Histograms and bytes by column are those of {statistics.samples:,} samples in {statistics.blocks:,} blocks."
    return section("How it was made", table(rows), paragraph(seen, "soft"))
