"""A preview as a page, and as a contact sheet."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from shardctl.build.preview.facts import (
    SampleFacts,
    captions_of,
    reject_in_words,
    sample_facts,
    size_in_words,
    steps_in_words,
    storing_in_words,
)
from shardctl.build.preview.making import Preview, Tried
from shardctl.images.codecs.image import Pixels
from shardctl.images.codecs.sheet import contact_sheet, enlarge, jpeg
from shardctl.inspection.content.blocks import StoredSample
from shardctl.inspection.content.images import facts_of
from shardctl.inspection.pages.page import page, paragraph, section, tiles
from shardctl.inspection.pages.pictures import PICTURES_STYLE, Picture, caption, counted_objects, main_picture, thumbnail
from shardctl.system.html import Html, table, text
from shardctl.system.text import counted, format_bytes

SIDE = 448
"""The longer side of a picture in pixels. A stored image that is no larger is on the page with its own bytes."""

SHEET_SIDE = 256
"""The longer side of a picture on the contact sheet."""

MOST_BYTES = 256 << 10
"""The size of a stored image that is on the page with its own bytes, at most."""

SMALL = 96
"""An image whose longer side is no longer is shown enlarged, its pixels as squares."""

MOST_COLUMNS = 6
"""Pictures beside each other in a wide window, at most."""

CAPTIONS = 5
"""Captions of an image that are shown, at most."""

_TYPES = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp", "GIF": "gif"}
"""Formats that every browser shows."""

_STYLE = f"""<style>{PICTURES_STYLE}
body {{ max-width: 100rem; overflow-wrap: anywhere; }}
.input h2 {{ margin: 1.8rem 0 .5rem; overflow-wrap: anywhere; }} .input h2 span {{ font-weight: 400; font-size: .85rem; }}
.row {{ display: grid; grid-template-columns: repeat(2, minmax(0, 20rem)); gap: .6rem; align-items: start; }}
.row figure.source {{ grid-column: 1 / -1; }}
@media (min-width: 40rem) {{ .row figure.source {{ grid-column: auto; }} }}
@media (min-width: 40rem) {{ .row {{ grid-template-columns: repeat(min(4, var(--columns)), minmax(0, 20rem)); }} }}
@media (min-width: 64rem) {{ .row {{ grid-template-columns: repeat(var(--columns), minmax(0, 20rem)); }} }}
.row figure {{ padding: .4rem; }} .row figure.source {{ outline: 2px solid var(--rule); }}
.row img {{ display: block; width: 100%; max-height: 20rem; object-fit: contain; }}
.row img.small {{ image-rendering: pixelated; }}
.row figcaption {{ font-weight: 400; font-size: .8rem; overflow-wrap: anywhere; }} .row figcaption b {{ font-weight: 600; }}
.row i {{ display: inline-block; width: .7em; height: .7em; margin-right: .25em; border: 1px solid var(--rule); }}
#marks:checked ~ * .bare, #marks:not(:checked) ~ * .drawn {{ display: none; }}
#marks ~ .switch {{ position: sticky; top: 0; z-index: 1; background: var(--paper); padding: .5rem 1.25rem;
  margin: 1rem -1.25rem 0;
  border-bottom: 1px solid var(--rule); cursor: pointer; display: block; }}
#marks {{ position: absolute; opacity: 0; }} #marks:focus-visible ~ .switch {{ outline: 2px solid var(--link); }}
#marks ~ .switch::before {{ content: "☐ "; }} #marks:checked ~ .switch::before {{ content: "☑ "; }}
.depth-1 {{ padding-left: 1.2rem; }} .depth-2 {{ padding-left: 2.4rem; }} .depth-3 {{ padding-left: 3.6rem; }}
.reject {{ background: var(--panel); border-radius: .5rem; padding: .6rem .8rem; max-width: 40rem; }}
</style>"""


def preview_page(preview: Preview, sources: Sequence[str]) -> str:
    """Return a page with a row for each input: it, and the samples that the recipe makes of it."""
    records = (record for each in preview.inputs for record in (each.source, *each.samples) if record is not None)
    marked = any(picture.has_objects for record in records if (picture := main_picture(record)) is not None)
    switch = [Html('<input type="checkbox" id="marks" checked><label for="marks" class="switch">show annotations</label>')]
    return page(
        "shardctl preview",
        Html(_STYLE),
        paragraph(", ".join(sources), "soft"),
        _tiles(preview),
        _recipe(preview, marked),
        *(paragraph(f"Note: {notice}", "soft") for notice in preview.notices),
        *(switch if marked else []),
        *(_row(each) for each in preview.inputs),
    )


def _tiles(preview: Preview) -> Html:
    stored = [sample_facts(record).bytes for each in preview.inputs for record in each.samples]
    shown = [
        (f"{len(preview.inputs):,}", f"of {counted(preview.total, 'input')}"),
        (f"{preview.samples:,}", "samples made of them"),
    ]
    if stored:
        shown.append((format_bytes(sum(stored) / len(stored)), "an image as stored, on average"))
    shown.append((f"{preview.rejected:,}", "rejected"))
    if any(each.cut_off for each in preview.inputs):
        shown.append((f"{sum(each.cut_off for each in preview.inputs):,}", "objects cut off"))
    return tiles(shown)


def _recipe(preview: Preview, annotated: bool) -> Html:
    recipe = preview.recipe
    rows = [
        (
            Html(f'<span class="depth-{min(step.depth, 3)}">{text(step.name)}</span>'),
            Html(f'{text(step.settings)}<div class="soft">{text(step.meaning)}</div>'),
        )
        for step in steps_in_words(recipe.transforms)
    ]
    steps = table(rows, ("step", "settings")) if rows else paragraph("No step changes the images.")
    return section("Recipe", steps, paragraph(storing_in_words(preview, annotated), "soft"))


def _row(tried: Tried) -> Html:
    before = sample_facts(tried.source) if tried.source is not None else None
    classes = [label for record in (*tried.samples, tried.source) if record is not None for label in caption(record)[:-1]]
    said = text(", ".join(dict.fromkeys(classes)))
    figures = []
    if tried.source is not None and before is not None:
        size = f"{before.width}x{before.height}" + (f", {format_bytes(tried.bytes)}" if tried.bytes is not None else "")
        figures.append(_figure(tried.source, "source", size, before, None))
    for record in tried.samples:
        facts = sample_facts(record)
        name = f"variant {facts.variant}" if len(tried.samples) > 1 else "sample"
        figures.append(_figure(record, name, size_in_words(facts), facts, before))
    columns = min(len(figures), MOST_COLUMNS)
    row = f'<div class="row" style="--columns: {columns}">{"".join(figures)}</div>' if figures else ""
    known = next((record for record in (*tried.samples, tried.source) if record is not None), None)
    captions = "".join(paragraph(caption, "soft").text for caption in captions_of(known)[:CAPTIONS]) if known else ""
    head = f'<h2>{text(tried.key)} <span class="soft">{said}</span></h2>{captions}'
    return Html(f'<section class="input">{head}{row}{_reject(tried)}</section>')


def _reject(tried: Tried) -> str:
    if tried.reject is None:
        return ""
    return f'<p class="reject"><b class="bad">{text(reject_in_words(tried))}</b><br>{text(tried.reject.message)}</p>'


def _figure(record: StoredSample, name: str, size: str, facts: SampleFacts, before: SampleFacts | None) -> str:
    picture = main_picture(record)
    lines = [Html(f"<b>{text(name)}</b>"), Html(text(size))]
    images = ""
    if picture is not None:
        lines += counted_objects(picture)
        small = facts.width is not None and max(facts.width, facts.height or 0) <= SMALL
        images = "".join(_images(picture, f"{record.values['key']}, {name}", small, exact=name != "source"))
    fewer = before is not None and before.objects is not None and facts.objects is not None and facts.objects < before.objects
    if fewer and before is not None:
        lines.append(Html(f"{facts.objects} of {counted(before.objects or 0, 'object')} kept"))
    below = "<br>".join(line.text for line in lines)
    kind = "source" if name == "source" else "sample"
    return f'<figure class="{kind}">{images}<figcaption>{below}</figcaption></figure>'


def _images(picture: Picture, alt: str, small: bool, exact: bool) -> Iterator[str]:
    """Yield the image as it is, and where something is marked in it, with that drawn onto it."""
    plain = Picture(picture.content, picture.caption)
    encoded = _stored(picture) if exact else None
    if encoded is None:
        pixels = thumbnail(plain, SIDE)
        encoded = ("jpeg", jpeg(pixels, quality=85)) if pixels is not None else None
    if encoded is None:
        yield '<p class="bad">cannot be shown</p>'
        return
    drawn = thumbnail(picture, SIDE) if picture.has_objects else None  # None for a truncated image, which browsers show
    style = " small" if small else ""
    yield _img(*encoded, alt, f"{'bare' if drawn is not None else ''}{style}")
    if drawn is not None:
        yield _img("jpeg", jpeg(drawn, quality=75, fine_colours=True), f"{alt}, with annotations", f"drawn{style}")


def _img(kind: str, data: bytes, alt: str, style: str) -> str:
    shown = base64.b64encode(data).decode("ascii")
    return f'<img class="{style.strip()}" src="data:image/{kind};base64,{shown}" alt="{text(alt)}">'


def _stored(picture: Picture) -> tuple[str, bytes] | None:
    """Return the type and the very bytes of a stored image that a browser can show, raw pixels as PNG; None if it is large."""
    content = picture.content
    if isinstance(content, np.ndarray):
        if max(content.shape[:2]) > SIDE:
            return None
        target = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(content)).save(target, "PNG")
        return "png", target.getvalue()
    facts = facts_of(content)
    kind = _TYPES.get(str(facts["format"]))
    if kind is None or len(content) > MOST_BYTES or max(facts["width"], facts["height"]) > SIDE:
        return None
    return kind, content


def preview_sheet(preview: Preview) -> bytes:
    """Return a PNG with a row for each input: it, and the samples that the recipe makes of it. A missing one is crossed out."""
    columns = 1 + max((len(each.samples) for each in preview.inputs), default=0)
    return contact_sheet((cell for each in preview.inputs for cell in _cells(each, columns)), columns, SHEET_SIDE)


def _cells(tried: Tried, columns: int) -> Iterator[tuple[Pixels | None, Sequence[str]]]:
    """Yield the pictures of an input with the lines below each, and blank ones up to the end of the row."""
    said = tried.key if tried.reject is None else f"{tried.key}: {reject_in_words(tried)}"
    yield _cell(tried.source, said) if tried.source is not None else (None, (said,))
    for record in tried.samples:
        facts = sample_facts(record)
        yield _cell(record, f"variant {facts.variant}, {size_in_words(facts)}")
    blank = np.full((1, 1, 3), 255, np.uint8)
    yield from [(blank, ())] * (columns - 1 - len(tried.samples))


def _cell(record: StoredSample, said: str) -> tuple[Pixels | None, Sequence[str]]:
    picture = main_picture(record)
    pixels = thumbnail(picture, SHEET_SIDE) if picture is not None else None
    if picture is None or pixels is None:
        return None, (said,)
    return enlarge(pixels, SHEET_SIDE), (*picture.lines[:-1], said)
