"""A dataset as a page to browse: what `shardctl inspect` knows of it, and some of its samples."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardctl.format.dataset_location import DatasetLocation
from shardctl.inspection.content.blocks import StoredSample, some_samples
from shardctl.inspection.content.inspection import dataset_report, inspect_dataset, records_of
from shardctl.inspection.content.overview import Overview, settings_in_words
from shardctl.inspection.content.samples import in_words, plain_values
from shardctl.inspection.content.tokens import Decoder
from shardctl.inspection.pages.page import (
    STATIC,
    absolute,
    command,
    data,
    figures,
    heat_map,
    page,
    paragraph,
    rejects,
    section,
    told,
)
from shardctl.inspection.pages.pictures import MARKED_SIDE, SIDE, figure, pictures_of
from shardctl.system.report import Html, table, text
from shardctl.system.text import counted

PICTURES = 60
TEXTS = 24
ROWS = 500
BLOCKS = 64
"""How much of what is read and shown: the page of ten million samples is as large as that of ten
thousand."""

TEXT_LENGTH = 400
TEXT_TOKENS = 512
"""Tokens that are decoded for a text of this length."""

_STYLE = f"<style>{STATIC['pictures.css']}{STATIC['dataset.css'].rstrip()}</style>"


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
    found = inspect_dataset(place, split, blocks=BLOCKS)
    decoder = Decoder(place.folder, TEXT_TOKENS)
    records = list(decoder.decoded(some_samples(place, split, ROWS)))
    name = origin or absolute(place.shown)
    parts = [Html(_STYLE)]
    if origin is not None:
        parts.append(paragraph(f"{origin}, as shardctl converts them", "soft"))
    manifest = found.manifest if origin is None else replace(found.manifest, sources=())
    report = dataset_report(replace(found, location=name, manifest=manifest))
    overview, *others = map(told, report)
    samples = _samples(records, found.samples, annotated, None if origin else name)
    parts += [overview, samples, *others]
    for field, objects in found.objects.items():
        drawn = heat_map(f"Where the centres of the boxes of {field} are", objects.centres)
        parts.append(figures(drawn))
    m = found.manifest
    settings = settings_in_words({**m.recipe, **m.settings})
    parts += [
        *rejects(place.folder, found),
        paragraph(f"settings: {settings}", "soft"),
        data(
            "overview",
            {**Overview.record(found), **({} if origin is None else {"sources": [origin]})},
        ),
        data("tokens", records_of(found.tokens)),
        data("objects", records_of(found.objects)),
    ]
    return page(
        f"shardctl inspect: {name}" + (f", split {split}" if split else ""),
        *parts,
        script=f"\n{STATIC['search.js']}",
    )


def _pictures(records: list[StoredSample], annotated: bool) -> Iterator[Html]:
    there = [found for record in records if (found := pictures_of(record, annotated))]
    if not there:
        return
    chosen = there[:: max(1, len(there) // PICTURES)][:PICTURES]
    large = any(picture.has_objects for picture in chosen[0])
    side, style = (MARKED_SIDE, "pictures marked") if large else (SIDE, "pictures")
    made = "".join(figure(picture, side) for of_record in chosen for picture in of_record)
    yield _under("Some images", Html(f'<div class="{style}">{made}</div>'))


def _texts(records: list[StoredSample]) -> Iterator[Html]:
    there = [(record, *found) for record in records if (found := _text_of(record)) is not None]
    if not there:
        return
    made = (
        f"<blockquote class=one>{text(whole[:TEXT_LENGTH])}{'…' * (len(whole) > TEXT_LENGTH)}"
        f'<div class="soft">{text(record.values["key"])}, {length}</div></blockquote>'
        for record, whole, length in there[:: max(1, len(there) // TEXTS)][:TEXTS]
    )
    yield _under("Some texts", Html(f'<div class="texts">{"".join(made)}</div>'))


def _text_of(record: StoredSample) -> tuple[str, str] | None:
    """Return the text of a sample, or of its tokens, and how long it is; None if it has none."""
    whole = record.values.get("text")
    if isinstance(whole, str):
        return whole, f"{len(whole):,} characters"
    documents = f", {counted(len(record.documents), 'document')}" if record.documents else ""
    for name, decoded in record.texts.items():
        if decoded is not None:
            return decoded, f"{len(record.values[name]):,} tokens{documents}"
    return None


def _samples(records: list[StoredSample], total: int, annotated: bool, name: str | None) -> Html:
    """Return what is searched in: pictures and texts, and the table of all samples that are on the
    page."""
    shown = [in_words(plain_values(record), record) for record in records]
    rows = [
        [record.shard, record.row, *map(_cell, values.values())]
        for record, values in zip(records, shown, strict=True)
    ]
    found = f'<span id="found" class="soft">{len(rows):,} shown</span>'
    label = "part of a key, class or text"
    search = Html(
        f'<p><input id="search" type="search" placeholder="{label}" aria-label="{label}"> '
        f"{found}</p>"
    )
    some = f"This page has {len(rows):,} of {counted(total, 'sample')}, evenly spaced."
    parts = [paragraph(some, "soft"), search]
    if name is not None:
        begin = f"shardctl inspect {shlex.quote(name)} --key"
        parts.append(
            Html(
                f'<div class="soft">Any other sample:</div>{command(f"{begin} KEY", "one", begin)}'
            )
        )
    header = ("shard", "row", *(shown[0] if shown else ()))
    whole = Html(f'<div id="samples">{table(rows, header)}</div>')
    inside = "".join(
        [*_pictures(records, annotated), *_texts(records), _under("All of them", whole)]
    )
    return section("Samples", *parts, Html(f"<div data-samples>{inside}</div>"))


def _under(title: str, part: Html) -> Html:
    return Html(f"<h3>{text(title)}</h3>{part}")


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        value = " ".join(map(str, value.values()))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number or value is None else str(value)[: TEXT_LENGTH // 4]
