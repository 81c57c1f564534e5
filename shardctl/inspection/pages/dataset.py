"""A dataset as a page to browse: what `shardctl inspect` knows of it, and some of its samples."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from shardctl.format.counts import step_lines
from shardctl.format.dataset_location import DatasetLocation
from shardctl.images.codecs.drawing import objects_line
from shardctl.inspection.content.blocks import StoredSample, some_samples
from shardctl.inspection.content.images import is_objects
from shardctl.inspection.content.objects import (
    MaskStatistics,
    ObjectStatistics,
    mask_statistics,
    object_statistics,
)
from shardctl.inspection.content.overview import (
    Overview,
    overview,
    recipe_in_words,
    settings_in_words,
)
from shardctl.inspection.content.samples import describe_value
from shardctl.inspection.content.statistics import Distribution, Statistics, statistics_of
from shardctl.inspection.content.tokens import (
    Decoder,
    TokenCount,
    TokenStatistics,
    token_statistics,
)
from shardctl.inspection.pages.page import (
    absolute,
    bars,
    command,
    data,
    figures,
    heat_map,
    histogram,
    number,
    page,
    paragraph,
    percent,
    rejects,
    section,
    tiles,
)
from shardctl.inspection.pages.pictures import (
    MARKED_SIDE,
    PICTURES_STYLE,
    SIDE,
    figure,
    pictures_of,
)
from shardctl.system.html import Html, table, text
from shardctl.system.text import counted, format_bytes

LISTED = 500
"""Categories or classes that are listed."""


def object_sections(
    objects: Mapping[str, ObjectStatistics], masks: Mapping[str, MaskStatistics]
) -> Iterator[Html]:
    """Yield a part of the page for each column of objects, and for each of masks with classes."""
    for name, found in objects.items():
        title = "Objects" if name == "objects" else f"Objects: {name}"
        yield section(
            title,
            tiles(_object_figures(found)),
            *_faults(found),
            figures(*_object_charts(found)),
            _note(found),
        )
    for name, pixels in masks.items():
        if pixels.pixels:
            yield section(
                f"Mask: {name}",
                figures(_class_chart(pixels)),
                _mask_note(pixels),
            )


def _object_figures(found: ObjectStatistics) -> list[tuple[str, str]]:
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
    by_split = {split: [each.splits[split]["objects"] for each in top] for split in used[0].splits}
    total = len(used)
    yield bars("Objects by category", names, by_split, "objects", stacked=True, total=total)
    images = {"": [each.images for each in top]}
    yield bars("Images with a category", names, images, "images", total=total)
    each_image = {"": found.per_image.counts}
    yield bars("Objects in an image", whole_bins(found.per_image), each_image, "images")
    areas = ["small, under 32x32", "medium, under 96x96", "large"]
    yield bars("Boxes by their area in pixels", areas, {"": list(found.sizes.values())}, "boxes")
    if found.shares.counts:
        title = "Side of a box / side of the image"
        yield histogram(title, found.shares.edges, found.shares.counts, "boxes", percent)
        yield heat_map("Where the centres of boxes are", found.centres, "boxes")
    if found.keypoints:
        points = [each.name or str(number) for number, each in enumerate(found.keypoints)]
        states = {
            "visible": [each.visible for each in found.keypoints],
            "hidden": [each.hidden for each in found.keypoints],
            "not there": [each.absent for each in found.keypoints],
        }
        yield bars("Keypoints", points, states, "objects", stacked=True)


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


def _used_classes(found: MaskStatistics) -> list[tuple[str, int, int]]:
    used = [each for each in found.classes if each.pixels][:LISTED]
    return [
        (str(each.number) if each.name is None else each.name, each.pixels, each.masks)
        for each in used
    ]


def _class_chart(found: MaskStatistics) -> Html:
    rows = _used_classes(found)
    shares = {
        "share of all pixels": [pixels / found.pixels for _, pixels, _ in rows],
        "share of the masks": [masks / found.masks for _, _, masks in rows],
    }
    return bars("Pixels by class", [name for name, _, _ in rows], shares, written=percent)


def _mask_note(found: MaskStatistics) -> Html:
    ignored = (
        f", {found.ignored / found.pixels:.1%} of their pixels of no class" if found.ignored else ""
    )
    return paragraph(
        f"Of {found.masks:,} masks{ignored}; {found.missing:,} samples without a mask, "
        f"{found.unreadable:,} not readable.",
        "soft",
    )


PICTURES = 60
TEXTS = 24
ROWS = 500
OBJECT_BLOCKS, OBJECT_IMAGES, MASKS, TOKEN_BLOCKS = 256, 2048, 128, 256
"""How much of what is read and shown: the page of ten million samples is as large as that of ten
thousand."""

TEXT_LENGTH = 400
TEXT_TOKENS = 512
"""Tokens that are decoded for a text of this length."""

_SEARCH = """
const box = document.querySelector("#search");
const samples = document.querySelectorAll("[data-samples] .one, [data-samples] tbody tr");
const rows = document.querySelectorAll("#samples tbody tr"), command = document.querySelector("#one");
const quoted = word => /^[\\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\\\''") + "'";
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
  for (const sample of samples) sample.hidden = !words.every(word => sample.textContent.toLowerCase().includes(word));
  const shown = [...rows].filter(row => !row.hidden).length;
  document.querySelector("#found").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
  if (command) command.textContent = `${command.dataset.begin} ${box.value.trim() ? quoted(box.value.trim()) : "KEY"}`;
});
"""

_STYLE = (
    f"<style>{PICTURES_STYLE}"
    + """.texts blockquote { margin: 0 0 .6rem; padding: .5rem .8rem; background: var(--panel); border-radius: .4rem;
  overflow-wrap: anywhere; }
#samples .scroll { max-height: 36rem; overflow: auto; } #samples td:first-child { white-space: nowrap; }
h3 { font-size: 1rem; margin: 1.4rem 0 .5rem; } [hidden] { display: none !important; }
input { font: inherit; padding: .35rem .6rem; width: min(24rem, 100%); color: var(--ink); background: var(--panel);
  border: 1px solid var(--rule); border-radius: .4rem; }</style>"""
)


def dataset_page(
    place: DatasetLocation,
    split: str | None = None,
    annotated: bool = True,
    origin: str | None = None,
) -> str:
    """Return a dataset, or one of its splits, as a page; `annotated` images have what is marked in
    them drawn onto them.

    `origin` says what the dataset was made of, if it was made for this page only. Raises
    DatasetError, UsageError for an unknown split.
    """
    found, statistics = overview(place.folder, split), statistics_of(place, blocks=32, split=split)
    decoder = Decoder(place.folder, TEXT_TOKENS)
    records = list(decoder.decoded(some_samples(place, split, ROWS)))
    objects = object_statistics(place, OBJECT_BLOCKS, OBJECT_IMAGES, split)
    masks = mask_statistics(place, MASKS, split)
    tokens = token_statistics(place, TOKEN_BLOCKS, split)
    headline = (
        _headline(found)
        if origin is None
        else paragraph(f"{origin}, as shardctl converts them", "soft")
    )
    name = origin or absolute(place.shown)
    parts = [
        Html(_STYLE),
        headline,
        _tiles(found),
        *_classes(found),
        _splits(found),
        figures(*_charts(statistics)),
    ]
    parts += [*rejects(place.folder, found), *_steps(found)]
    parts += [*object_sections(objects, masks), *token_sections(tokens)]
    parts += [_samples(records, found.samples, annotated, None if origin else name)]
    parts += [
        _making(found, statistics),
        data(
            "overview", {**found.record(), **({"sources": [origin]} if origin is not None else {})}
        ),
        data("tokens", [{"field": name, **each.record()} for name, each in tokens.items()]),
        data("objects", [{"field": name, **each.record()} for name, each in objects.items()]),
    ]
    return page(
        f"shardctl inspect: {name}" + (f", split {split}" if split else ""), *parts, script=_SEARCH
    )


def _headline(found: Overview) -> Html:
    m = found.manifest
    took = f" in {m.seconds:,.1f} s" if m.seconds is not None else ""
    of = f" from {', '.join(m.sources)}" if m.sources else ""
    return paragraph(f"made {m.created}{took} by shardctl {m.shardctl_version}{of}", "soft")


def _tiles(found: Overview) -> Html:
    m = found.manifest
    low, median, high = (format_bytes(size) for size in found.shard_bytes)
    return tiles(
        [
            (f"{found.samples:,}", f"{m.kind} samples"),
            (f"{found.shards:,}", f"shards, {low} to {high}, {median} at the median"),
            (format_bytes(found.bytes), found.compressed),
            (
                f"{m.rejected:,}",
                f"of {m.inputs:,} inputs rejected{', in all splits' if found.split else ''}",
            ),
        ]
    )


def _splits(found: Overview) -> Html:
    rows = [
        (split.name, split.samples, split.shards, format_bytes(split.bytes))
        for split in found.splits
    ]
    return section("Splits", table(rows, ("split", "samples", "shards", "size")))


def _classes(found: Overview) -> Iterator[Html]:
    """Yield the classes with their samples, and a chart of them where that shows more than their
    number."""
    totals, by_split = found.classes, found.classes_by_split
    if not totals or by_split is None:
        return
    names = sorted(totals, key=lambda name: -totals[name])
    least, most = totals[names[-1]], totals[names[0]]
    each = (
        f"{counted(most, 'sample')} each"
        if least == most
        else f"{least:,} to {most:,} samples each"
    )
    yield section(
        counted(len(names), "class", "classes"),
        paragraph(each, "soft"),
        figures(
            bars(
                "Samples by class",
                names[:LISTED],
                {
                    split: [counts.get(name, 0) for name in names[:LISTED]]
                    for split, counts in by_split.items()
                },
                stacked=True,
                total=len(names),
            )
        ),
    )


def _charts(statistics: Statistics) -> Iterator[Html]:
    for spread in statistics.distributions:
        if spread.says_something:
            written = format_bytes if spread.what.endswith(", bytes") else number
            title = spread.what.capitalize()
            yield histogram(title, spread.edges, spread.counts, "samples", written)
    stored = {column.name: column.stored_bytes for column in statistics.columns}
    if stored:
        raw = [column.raw_bytes for column in statistics.columns]
        before = {} if raw == list(stored.values()) else {"before compression": raw}
        both = {**before, "as stored": list(stored.values())}
        yield bars("Bytes of a sample by column", list(stored), both, written=format_bytes)


def _pictures(records: list[StoredSample], annotated: bool) -> Iterator[Html]:
    with_images = [record for record in records if pictures_of(record)]
    if not with_images:
        return
    chosen = with_images[:: max(1, len(with_images) // PICTURES)][:PICTURES]
    large = any(picture.has_objects for picture in pictures_of(chosen[0], annotated))
    side = MARKED_SIDE if large else SIDE
    made = [
        figure(picture, side) for record in chosen for picture in pictures_of(record, annotated)
    ]
    style = "pictures marked" if large else "pictures"
    yield _under(
        "Some images", Html(f'<div class="{style}">{"".join(part.text for part in made)}</div>')
    )


def _texts(records: list[StoredSample]) -> Iterator[Html]:
    texts = [(record, _text_of(record)) for record in records]
    there = [(record, whole, length) for record, (whole, length) in texts if whole is not None]
    if not there:
        return
    made = (
        "<blockquote "
        f"class=one>{text(whole[:TEXT_LENGTH])}{'…' if len(whole) > TEXT_LENGTH else ''}"
        f'<div class="soft">{text(record.values["key"])}, {length}</div></blockquote>'
        for record, whole, length in there[:: max(1, len(there) // TEXTS)][:TEXTS]
    )
    yield _under("Some texts", Html(f'<div class="texts">{"".join(made)}</div>'))


def _text_of(record: StoredSample) -> tuple[str | None, str]:
    """Return the text of a sample, or of its tokens, and how long it is."""
    whole = record.values.get("text")
    if isinstance(whole, str):
        return whole, f"{len(whole):,} characters"
    name, decoded = next(
        ((name, decoded) for name, decoded in record.texts.items() if decoded is not None),
        ("", None),
    )
    if decoded is None:
        return None, ""
    documents = f", {counted(len(record.documents), 'document')}" if record.documents else ""
    return decoded, f"{len(record.values[name]):,} tokens{documents}"


def _steps(found: Overview) -> Iterator[Html]:
    lines = step_lines(found.manifest.steps or ())
    if lines:
        rows = [line.split(": ", 1) for line in lines]
        yield section(
            "What the steps kept", table(rows, ("step", "records, and share of the bytes of text"))
        )


def _samples(records: list[StoredSample], total: int, annotated: bool, name: str | None) -> Html:
    """Return what is searched in: pictures and texts, and the table of all samples that are on the
    page."""
    columns = list(records[0].values) if records else []
    texts = list(records[0].texts) if records else []
    rows = [
        [
            record.shard,
            record.row,
            *(_shown(record, name) for name in columns),
            *(_start_of_text(record, name) for name in texts),
        ]
        for record in records
    ]
    found = f'<span id="found" class="soft">{len(rows):,} shown</span>'
    label = "part of a key, class or text"
    search = Html(
        f'<p><input id="search" type="search" placeholder="{label}" aria-label="{label}"> '
        f"{found}</p>"
    )
    parts = [paragraph(_how_many(len(rows), total), "soft"), search]
    if name is not None:
        begin = f"shardctl inspect {shlex.quote(name)} --key"
        parts.append(
            Html(
                '<div class="soft">Any other '
                f"sample:</div>{command(f'{begin} KEY', 'one', begin).text}"
            )
        )
    header = ("shard", "row", *columns, *(f"{name}, text" for name in texts))
    whole = Html(f'<div id="samples">{table(rows, header).text}</div>')
    inside = "".join(
        part.text
        for part in (*_pictures(records, annotated), *_texts(records), _under("All of them", whole))
    )
    return section("Samples", *parts, Html(f"<div data-samples>{inside}</div>"))


def _how_many(shown: int, total: int) -> str:
    there = counted(total, "sample")
    return (
        f"This page has {shown:,} of {there}, from everywhere."
        if shown < total
        else f"This page has all of {there}."
    )


def _under(title: str, part: Html) -> Html:
    return Html(f"<h3>{text(title)}</h3>{part.text}")


def _start_of_text(record: StoredSample, name: str) -> str:
    return (record.texts.get(name) or "")[: TEXT_LENGTH // 4]


def _shown(record: StoredSample, name: str) -> Any:
    value, class_name = record.values[name], record.class_names.get(name)
    if class_name is not None:
        return f"{value} {class_name}"
    if name in record.roles.objects and (value is None or is_objects(value)):
        return objects_line(value, record.roles.objects[name])
    plain = describe_value(value)
    if isinstance(plain, dict):
        plain = " ".join(str(part) for part in plain.values())
    return (
        plain
        if isinstance(plain, int | float) and not isinstance(plain, bool)
        else str(plain)[: TEXT_LENGTH // 4]
    )


def _making(found: Overview, statistics: Statistics) -> Html:
    m = found.manifest
    rows = [("fingerprint", m.fingerprint), ("recipe", recipe_in_words(m.recipe))]
    rows += [("settings", settings_in_words({**m.recipe, **m.settings}))]
    rows += [(f"column {name}", type_) for name, type_ in m.schema]
    if statistics.formats:
        rows.append(
            (
                "formats",
                ", ".join(f"{name} {count:,}" for name, count in statistics.formats.items()),
            )
        )
    note = f"Histograms and bytes by column are those of {_seen(statistics)}."
    return section("How it was made", table(rows), paragraph(note, "soft"))


def _seen(statistics: Statistics) -> str:
    return f"{counted(statistics.samples, 'sample')} in {counted(statistics.blocks, 'block')}"


# --- what is known of the tokens of a dataset, as parts of a page ---


def token_sections(found: dict[str, TokenStatistics]) -> Iterator[Html]:
    """Yield a section for each column of tokens."""
    for name, tokens in found.items():
        spreads = (
            (tokens.lengths, f"{tokens.lengths.what.rpartition(' ')[2]}s"),
            (tokens.per_block, "blocks"),
        )
        drawn = [
            bars(spread.what.capitalize(), whole_bins(spread), {"": spread.counts}, unit)
            for spread, unit in spreads
            if spread is not None and spread.low < spread.high
        ]
        if tokens.most_common:
            names = [_named(each) for each in tokens.most_common]
            times = [each.count for each in tokens.most_common]
            drawn.append(bars("Most common tokens", names, {"": times}, "times"))
        note = f"Of {tokens.samples:,} samples in {tokens.blocks:,} blocks."
        parts = [tiles(_token_figures(tokens)), figures(*drawn), *_never_used(tokens)]
        parts += (
            [paragraph(f"Tokens have no text here: {tokens.why_numbers}", "soft")]
            if tokens.why_numbers
            else []
        )
        yield section(f"Tokens: {name}", *parts, paragraph(note, "soft"))


def _token_figures(found: TokenStatistics) -> Iterator[tuple[str, str]]:
    yield f"{found.tokens:,}", "tokens"
    if found.padding_share is not None:
        yield f"{found.padding_share:.2%}", f"of the blocks is padding: {found.padding:,} tokens"
    if found.cut is not None:
        yield (
            f"{found.cut / max(1, found.documents):.1%}",
            f"of {found.documents:,} documents are cut: {found.cut:,}",
        )
    if found.loss_tokens is not None:
        yield f"{found.loss_tokens / max(1, found.tokens):.1%}", "of the tokens count for the loss"
    if found.bytes_per_token is not None:
        yield f"{found.bytes_per_token:.2f}", "bytes of text for each token"
    if found.coverage is not None and found.vocabulary is not None:
        yield f"{found.coverage:.1%}", f"of {found.vocabulary:,} tokens of the vocabulary occur"


def _never_used(found: TokenStatistics) -> Iterator[Html]:
    if found.never_used and found.unused:
        names = ", ".join(map(_named, found.never_used))
        more = ", …" if found.unused > len(found.never_used) else ""
        yield table([(found.unused, f"{names}{more}")], ("never used", "the first of them"))


def _named(token: TokenCount) -> str:
    return str(token.token) if token.text is None else f"{token.text} ({token.token})"
