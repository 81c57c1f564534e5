"""A dataset as a page to browse: what `shardctl inspect` knows of it, and some of its samples."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy.typing as npt

from shardctl.codecs.image import Pixels
from shardctl.codecs.sheet import contact_sheet, jpeg, shrink
from shardctl.errors import Rejection
from shardctl.inspection.blocks import Record, some_records
from shardctl.inspection.images import is_encoded_image
from shardctl.inspection.overview import Overview, overview
from shardctl.inspection.records import describe_value
from shardctl.inspection.statistics import Statistics, statistics_of
from shardctl.report import charts
from shardctl.report.page import Html, data, figures, page, paragraph, section, table, text, tiles
from shardctl.storage import format_bytes
from shardctl.tables import REJECTS, read_rejects

PICTURES = 60
TEXTS = 24
ROWS = 500
REJECTED = 200
CLASSES = 60
"""How much of what is shown: the page of ten million samples is as large as that of ten thousand."""

SIDE = 160
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
.pictures figcaption { font-weight: 400; font-size: .75rem; overflow-wrap: anywhere; }
.texts blockquote { margin: 0 0 .6rem; padding: .5rem .8rem; background: var(--panel); border-radius: .4rem;
  overflow-wrap: anywhere; }
#samples .scroll { max-height: 36rem; overflow: auto; } #samples td:first-child { white-space: nowrap; }
input { font: inherit; padding: .35rem .6rem; width: min(24rem, 100%); color: var(--ink); background: var(--panel);
  border: 1px solid var(--rule); border-radius: .4rem; }</style>"""


def dataset_page(root: Path, split: str | None = None) -> str:
    """Return a dataset, or one of its splits, as a page. Raises DatasetError, InstallError, UsageError for an unknown split."""
    charts.require_plotly()
    found, statistics = overview(root, split), statistics_of(root, blocks=32, split=split)
    records = list(some_records(root, split, ROWS))
    parts = [Html(_STYLE), _headline(found), _tiles(found), _splits(found), figures(*_charts(found, statistics))]
    parts += [*_pictures(records), *_texts(records), _rejects(root, found), _samples(records)]
    parts += [
        _making(found, statistics),
        data("overview", found.record()),
        charts.drawing(),
        Html(f"<script>{_SEARCH}</script>"),
    ]
    return page(f"shardctl inspect: {root}" + (f", split {split}" if split else ""), *parts)


def picture_sheet(pictures: Iterable[Picture], columns: int = 8) -> bytes:
    """Return images as one PNG, each with its class and key. Those that do not decode are crossed out."""
    return contact_sheet(((_thumbnail(picture), picture.caption) for picture in pictures), columns, SIDE)


@dataclass(frozen=True)
class Picture:
    """An image or a mask of a record, encoded or as an array, and the lines below it."""

    content: bytes | npt.NDArray[Any]
    caption: tuple[str, ...]


def pictures_of(record: Record) -> list[Picture]:
    """Return the images and masks of a record; with several fields of them, the name of the field is below each."""
    found = []
    for name in record.images:
        value = record.values[name]
        content = value["bytes"] if is_encoded_image(value) else value
        if content is not None:
            found.append(Picture(content, (*([name] if len(record.images) > 1 else []), *caption(record))))
    return found


def caption(record: Record) -> tuple[str, ...]:
    """Return the caption of an image: its class or label if it has one, and its key."""
    labels = [(record.class_names[name], record.values[name]) for name in record.class_names]
    said = [str(label if class_name is None else class_name) for class_name, label in labels if label is not None]
    return (", ".join(said), str(record.values["key"])) if said else (str(record.values["key"]),)


def _thumbnail(picture: Picture) -> Pixels | None:
    try:
        return shrink(picture.content, SIDE)
    except Rejection:
        return None


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


def _pictures(records: list[Record]) -> Iterator[Html]:
    with_images = [record for record in records if pictures_of(record)]
    if not with_images:
        return
    made = []
    chosen = with_images[:: max(1, len(with_images) // PICTURES)][:PICTURES]
    for picture in (picture for record in chosen for picture in pictures_of(record)):
        pixels, below = _thumbnail(picture), "<br>".join(map(text, picture.caption))
        if pixels is None:
            made.append(f'<figure><p class="bad">does not decode</p><figcaption>{below}</figcaption></figure>')
            continue
        encoded = base64.b64encode(jpeg(pixels)).decode("ascii")
        drawn = f'<img src="data:image/jpeg;base64,{encoded}" alt="{text(picture.caption[-1])}">'
        made.append(f"<figure>{drawn}<figcaption>{below}</figcaption></figure>")
    yield section("Some images", Html(f'<div class="pictures">{"".join(made)}</div>'))


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
