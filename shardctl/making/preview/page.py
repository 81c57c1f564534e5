"""A preview as a page, and as a contact sheet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.images.codecs.drawing import contact_sheet, enlarge, small_file
from shardctl.images.codecs.image import Pixels
from shardctl.images.defaults import CENTRE
from shardctl.inspection.content.blocks import StoredSample, is_encoded_image
from shardctl.inspection.pages.page import (
    STATIC,
    absolute,
    bars,
    command_here,
    figures,
    page,
    paragraph,
    section,
    tiles,
)
from shardctl.inspection.pages.pictures import (
    Picture,
    caption,
    counted_objects,
    main_picture,
    marks,
    thumbnail,
)
from shardctl.loader.blocks.pictures import facts_of
from shardctl.making.preview import Preview, Tried, count_objects
from shardctl.system.messages import entry_for
from shardctl.system.options import declared_in
from shardctl.system.report import Html, image, table, text
from shardctl.system.text import counted, format_bytes
from shardctl.transforms.base import Transform
from shardctl.transforms.settings import Span, first_line


@dataclass(frozen=True)
class SampleFacts:
    """What is known of the image of a sample: width and height in pixels, its bytes as stored, its
    format.

    `format` is raw for pixels. `objects` is the number of objects that are marked in it, None where
    it was not annotated.
    """

    variant: int
    width: int | None
    height: int | None
    bytes: int
    format: str
    objects: int | None


def sample_facts(record: StoredSample) -> SampleFacts:
    """Return what is known of a sample."""
    variant, objects = int(record.values.get("variant") or 0), count_objects(record)
    value = record.values["image"]
    if isinstance(value, np.ndarray):
        return SampleFacts(variant, value.shape[1], value.shape[0], value.nbytes, "raw", objects)
    facts = facts_of(value["bytes"] if is_encoded_image(value) else None)
    sizes = facts["width"], facts["height"], facts["image_bytes"] or 0
    return SampleFacts(variant, *sizes, str(facts["format"] or "").lower(), objects)


def size_in_words(facts: SampleFacts) -> str:
    """Return the size of an image: `224x224, 12.3 KiB`."""
    size = f"{facts.width}x{facts.height}, " if facts.width is not None else ""
    return f"{size}{format_bytes(facts.bytes)}"


def reject_in_words(tried: Tried) -> str:
    """Return what was rejected, at which stage and for which reason, in a few words."""
    assert tried.reject is not None, "asked of rejects alone"
    what = "further variants rejected" if tried.samples else "rejected"
    return f"{what}, {tried.reject.stage}: {tried.reject.error}"


def captions_of(record: StoredSample) -> list[str]:
    """Return the captions of a sample."""
    several = record.values.get("captions")
    values = (record.values.get("caption"), *(several if isinstance(several, list) else ()))
    return [value for value in values if isinstance(value, str)]


def record_of(preview: Preview) -> dict[str, Any]:
    """Return a preview as plain data (docs/json.schema.json)."""
    inputs = []
    for each in preview.inputs:
        before = vars(sample_facts(each.source)) if each.source is not None else {}
        reject = each.reject
        inputs.append(
            {
                "key": each.key,
                "bytes": each.bytes,
                **{name: before.get(name) for name in ("width", "height", "objects")},
                "cut_off": each.cut_off,
                "samples": [vars(sample_facts(record)) for record in each.samples],
                "reject": reject
                and {name: getattr(reject, name) for name in ("stage", "error", "message")},
            }
        )
    return {
        "total": preview.total,
        "samples": preview.samples,
        "rejected": preview.rejected,
        "inputs": inputs,
        "recipe": preview.recipe.to_json(),
        "notices": list(preview.notices),
    }


def steps_in_words(
    steps: Sequence[Transform], depth: int = 0
) -> Iterator[tuple[int, str, str, str]]:
    """Yield the depth, name, settings and meaning of steps, and after each the steps that it is
    made of: `depth` is 1 for these."""
    for step in steps:
        settings, inner = [], list[Sequence[Transform]]()
        for name, field in declared_in(type(step)).items():
            value = getattr(step, name)
            if isinstance(value, tuple) and value and isinstance(value[0], Transform):
                inner.append(value)
            elif value is not None:
                settings.append(f"{name} {_in_words(field.write(value), field.type)}")
        yield depth, step.name, ", ".join(settings), first_line(type(step)).replace("`", "")
        for each in inner:
            yield from steps_in_words(each, depth + 1)


def _in_words(value: Any, type_: object) -> str:
    if isinstance(type_, Span):
        low, high = (f"{number:.4g}" for number in value)
        return low if low == high else f"{low} to {high}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and all(isinstance(part, int | float) for part in value):
        return f"[{', '.join(f'{part:.4g}' for part in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


SIDE = 448
"""The longer side of a sample in pixels, at most."""

SHOWN = 320
"""How wide pictures are shown at most, and the longer side of an input, and of what is marked in a
picture."""

SHEET_SIDE = 256
"""The longer side of a picture on the contact sheet."""

MOST_BYTES = 32 << 10
"""The size of a stored image that is on the page with its own bytes, at most; larger ones are
compressed again."""

MARKS_EFFORT = 60
"""How hard WebP tries, 0 to 100, to make small what is marked: it stays exact."""

QUALITY, SOURCE_QUALITY = 90, 75
"""Quality of samples that are compressed again, and of inputs."""

SMALL = 96
"""An image whose longer side is no longer is shown enlarged, its pixels as squares."""

MOST_COLUMNS = 6
"""Pictures beside each other in a wide window, at most."""

ANEW = "compressed again for this page"
"""What is said of a sample that is not on the page as it is stored."""

_NAMES = ("none", "to 25%", "to 50%", "to 75%", "more", "all")
"""What shares of objects are called that are counted together."""

CAPTIONS = 5
"""Captions of an image that are shown, at most."""

_TYPES = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp", "GIF": "gif"}
"""Formats that every browser shows."""

_OWN_STYLE = Path(__file__).with_name("page.css").read_text("utf-8")
_STYLE = f"<style>{STATIC['pictures.css']}\n{_OWN_STYLE}</style>"


def preview_page(preview: Preview, sources: Sequence[str], convert: str = "") -> str:
    """Return a page with a row for each input: it, and the samples that the recipe makes of it.

    `convert` is the command line that converts with the same settings.
    """
    pictures = [main_picture(record) for each in preview.inputs for record in each.records]
    marked = any(picture is not None and picture.has_objects for picture in pictures)
    switch = (
        '<input type="checkbox" id="marks" checked><label for="marks" class="switch">show '
        "annotations</label>"
    )
    rows = [_row(each) for each in preview.inputs]
    notes = [f"Note: {notice}" for notice in preview.notices]
    if any(ANEW in row for row in rows):
        notes.append(f"All samples have the bytes that are stored, but those {ANEW}.")
    return page(
        f"shardctl preview: {', '.join(map(absolute, sources))}",
        Html(_STYLE),
        _tiles(preview),
        _recipe(preview, marked),
        *([section("Convert with these settings", command_here(convert))] if convert else []),
        *(paragraph(note, "soft") for note in notes),
        *_kept(preview),
        *([Html(switch)] if marked else []),
        *rows,
    )


def _kept(preview: Preview) -> Iterator[Html]:
    """Yield a chart of how many of the objects of an image are kept in its samples, where they may
    fall away."""
    shares = [
        after / before
        for each in preview.inputs
        if each.source is not None and (before := count_objects(each.source))
        for record in each.samples
        if (after := count_objects(record)) is not None
    ]
    if shares and min(shares) < 1:
        places = [len(_NAMES) - 1 if share >= 1 else math.ceil(4 * share) for share in shares]
        counts = list(map(places.count, range(len(_NAMES))))
        yield figures(bars("Objects of an image that are kept", _NAMES, {"": counts}, "samples"))


def _tiles(preview: Preview) -> Html:
    stored = [sample_facts(record).bytes for each in preview.inputs for record in each.samples]
    cut_off = sum(each.cut_off for each in preview.inputs)
    shown = [
        (f"{len(preview.inputs):,}", f"of {counted(preview.total, 'input')}"),
        (f"{preview.samples:,}", "samples made of them"),
    ]
    if stored:
        shown.append((format_bytes(sum(stored) / len(stored)), "an image as stored, on average"))
    shown.append((f"{preview.rejected:,}", "rejected"))
    return tiles(shown + [(f"{cut_off:,}", "objects cut off")] * bool(cut_off))


def _recipe(preview: Preview, annotated: bool) -> Html:
    """Return the steps; how samples are stored, how many there are of each input, and which objects
    are kept."""
    recipe = preview.recipe
    rows = [
        (
            Html(f'<span class="depth-{min(depth, 3)}">{text(name)}</span>'),
            Html(f'{text(settings)}<div class="soft">{text(meaning)}</div>'),
        )
        for depth, name, settings, meaning in steps_in_words(recipe.transform)
    ]
    steps = table(rows, ("step", "settings")) if rows else paragraph("No step changes the images.")
    stored = f"Stored as {recipe.store}" if recipe.store else "While reading"
    said = f"{stored}, seed {recipe.seed}, {counted(preview.variants, 'variant')} of each input"
    if recipe.store and preview.variants > recipe.variants:
        said += ", the first of which is stored without --variants"
    if annotated and recipe.image_transforms:
        rule = recipe.keep_objects
        share = "its centre" if rule == CENTRE else f"{float(rule):.0%} of it"
        said += f", an object is kept where {share} can be seen"
    return section("Recipe", steps, paragraph(f"{said}.", "soft"))


def _row(tried: Tried) -> Html:
    """Return an input, with its samples beside it."""
    classes = dict.fromkeys(label for record in tried.records for label in caption(record)[:-1])
    pictures, before = list[str](), None
    if tried.source is not None:
        before = sample_facts(tried.source)
        size = f"{before.width}x{before.height}"
        if tried.bytes is not None:
            size += f", {format_bytes(tried.bytes)}"
        pictures.append(_figure(tried.source, "source", size, before, None))
    for record in tried.samples:
        facts = sample_facts(record)
        name = f"variant {facts.variant}" if len(tried.samples) > 1 else "sample"
        pictures.append(_figure(record, name, size_in_words(facts), facts, before))
    captions = captions_of(tried.records[0])[:CAPTIONS] if tried.records else []
    parts = [
        f'<h2>{text(tried.key)} <span class="soft">{text(", ".join(classes))}</span></h2>',
        *(paragraph(Html(text(caption)), "soft") for caption in captions),
    ]
    if pictures:
        columns = min(len(pictures), MOST_COLUMNS)
        parts.append(f'<div class="row" style="--columns: {columns}">{"".join(pictures)}</div>')
    if tried.reject is not None:
        entry = entry_for(tried.reject.message)
        what = f"<br>What to do: {text(entry.do)}" if entry else ""
        said = f'<b class="bad">{text(reject_in_words(tried))}</b><br>{text(tried.reject.message)}'
        parts.append(f'<p class="reject">{said}{what}</p>')
    return Html(f'<section class="input">{"".join(parts)}</section>')


def _figure(
    record: StoredSample, name: str, size: str, facts: SampleFacts, before: SampleFacts | None
) -> str:
    picture = main_picture(record)
    lines, images = [f"<b>{text(name)}</b>", text(size)], ""
    if picture is not None:
        small = facts.width is not None and max(facts.width, facts.height or 0) <= SMALL
        alt, exact = f"{record.values['key']}, {name}", name != "source"
        images, anew = _images(picture, alt, small, exact)
        lines[1] = text(f"{size}, {ANEW}" if anew else size)
        lines += counted_objects(picture)
    kept, there = facts.objects, before.objects if before is not None else None
    if kept is not None and there is not None and kept < there:
        lines.append(f"{kept} of {counted(there, 'object')} kept")
    below = "<br>".join(lines)
    kind = "source" if name == "source" else "sample"
    return f'<figure class="{kind}">{images}<figcaption>{below}</figcaption></figure>'


def _images(picture: Picture, alt: str, small: bool, exact: bool) -> tuple[str, bool]:
    """Return the image, with what is marked in it as a layer above it, and whether a sample is not
    there as it is stored."""
    side = SIDE if exact else SHOWN
    encoded = _stored(picture) if exact else None
    anew = exact and encoded is None
    if encoded is None:
        pixels = thumbnail(Picture(picture.content, picture.caption), side)
        encoded = (
            None if pixels is None else small_file(pixels, QUALITY if exact else SOURCE_QUALITY)
        )
    if encoded is None:
        return '<p class="bad">cannot be shown</p>', False
    kind, data = encoded
    style = "small" if small else ""
    shown: str = image(data, alt, kind, style)
    drawn = marks(picture, SHOWN) if picture.has_objects else None
    if drawn is not None:
        kind, data = small_file(drawn, MARKS_EFFORT)
        above = image(data, f"annotations of {alt}", kind, "drawn")
        shown = f'<div class="stack">{shown}{above}</div>'
    return shown, anew


def _stored(picture: Picture) -> tuple[str, bytes] | None:
    """Return the type and the very bytes of a stored image that a browser can show, pixels without
    a loss; None if large."""
    content = picture.content
    if isinstance(content, np.ndarray):
        if max(content.shape[:2]) > SIDE:
            return None
        encoded = small_file(content, 100, exact=True)
        return encoded if len(encoded[1]) <= MOST_BYTES else None
    facts = facts_of(content)
    kind = _TYPES.get(str(facts["format"]))
    if kind is None or len(content) > MOST_BYTES or max(facts["width"], facts["height"]) > SIDE:
        return None
    return kind, content


def preview_sheet(preview: Preview) -> bytes:
    """Return a PNG with a row for each input: it, and the samples that the recipe makes of it. A
    missing one is crossed out."""
    columns = 1 + max((len(each.samples) for each in preview.inputs), default=0)
    return contact_sheet(
        (cell for each in preview.inputs for cell in _cells(each, columns)), columns, SHEET_SIDE
    )


def _cells(tried: Tried, columns: int) -> Iterator[tuple[Pixels | None, Sequence[str]]]:
    """Yield the pictures of an input with the lines below each, and blank ones up to the end of the
    row."""
    said = tried.key if tried.reject is None else f"{tried.key}: {reject_in_words(tried)}"
    yield _cell(tried.source, said)
    for record in tried.samples:
        facts = sample_facts(record)
        yield _cell(record, f"variant {facts.variant}, {size_in_words(facts)}")
    blank = np.full((1, 1, 3), 255, np.uint8)
    yield from [(blank, ())] * (columns - 1 - len(tried.samples))


def _cell(record: StoredSample | None, said: str) -> tuple[Pixels | None, Sequence[str]]:
    picture = main_picture(record) if record is not None else None
    pixels = thumbnail(picture, SHEET_SIDE) if picture is not None else None
    if picture is None or pixels is None:
        return None, (said,)
    return enlarge(pixels, SHEET_SIDE), (*picture.lines[:-1], said)
