"""What `shardctl inspect` does with samples: it prints them, writes them as files, draws them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from shardctl.cli.output import (
    Output,
    bad,
    check_outputs,
    note,
    open_page,
    report_lines,
    shortened,
    write_page,
)
from shardctl.errors import UsageError
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.token_columns import DOCUMENT_COLUMNS
from shardctl.inspection.content.blocks import (
    Piece,
    Shard,
    StoredSample,
    Values,
    is_objects,
    some_samples,
)
from shardctl.inspection.content.overview import find_shard
from shardctl.inspection.content.samples import (
    MOST_BLOCKS,
    head,
    in_words,
    matching,
    object_rows,
    plain_values,
    sample_at,
    samples_of_key,
    save,
)
from shardctl.inspection.content.tokens import Decoder
from shardctl.system.report import Section, Table, table_lines
from shardctl.system.text import counted, printable

Given = dict[str, Any]
"""The options that were given, by their names."""


def show_samples(place: DatasetLocation, given: Given, output: Output) -> None:
    """Write the samples that the options choose, or print them."""
    if {"save", "images", "html", "open"} & given.keys():
        _write_files(place, given, output)
    elif {"key", "row"} & given.keys():
        _print_records(place, given, output)
    else:
        _print_samples(place, given, output)


SHOWN_MATCHES = 20
SHOWN_FIRST = 10

SHOWN_BLOCKS = 20
"""Blocks of tokens of one document that are printed."""

PICTURES = 64


def _write_files(place: DatasetLocation, given: Given, output: Output) -> None:
    """Write the requested outputs: samples as files, a contact sheet, a page. Samples are read one
    at a time."""
    written: dict[str, Any] = {}
    said = []
    check_outputs(given.get("html"), given.get("images"))
    if "save" in given:
        decoder = _decoder(place, given, whole=True)
        records = decoder.decoded(_records(place, given))
        files = save(records, Path(given["save"]), given.get("columns"))
        written["files"] = [str(path) for path in files]
        what = f"{counted(len(files), 'file')} written to {printable(given['save'])}"
        said.append(what if files else _no_match(given))
        _say_why_numbers(decoder)
    if "images" in given:
        count = _draw(place, _records(place, given), given)
        written |= {"file": given["images"], "sheet": given["images"], "images": count}
        said.append(f"{counted(count, 'image')} drawn to {printable(given['images'])}")
    if {"html", "open"} & given.keys():
        from shardctl.inspection.pages.dataset import dataset_page

        marked = "no_annotations" not in given
        content = dataset_page(place, given.get("split"), marked, given.get("origin"))
        page = write_page(content, given.get("html"), "inspect")
        written |= {"file": page, "page": page}
        said.append(f"page written to {printable(page)}")
    output.show(written, said)
    if "open" in given:
        open_page(written["page"])


def _records(place: DatasetLocation, given: Given) -> Iterator[StoredSample]:
    if "key" in given:
        return iter(samples_of_key(place.folder, given["key"]))
    if "row" in given:
        return iter([sample_at(_chosen_shard(place, given), given.get("block"), given["row"])])
    within, split = place, given.get("split")
    if "shard" in given:
        within = place._replace(lone=_chosen_shard(place, given).name)
    if "where" in given:
        return islice(matching(within, split, given["where"]), given.get("head"))
    if {"head", "columns"} & given.keys():
        return head(within, split, given.get("head", SHOWN_FIRST))
    return some_samples(within, split, PICTURES)


def _chosen_shard(place: DatasetLocation, given: Given) -> Shard:
    """Return the chosen shard of a dataset, or the one on its own."""
    if place.lone:
        return Shard(place.folder, place.lone, None)
    entry = find_shard(place.folder, given["shard"])
    return Shard(place.folder, entry.path, entry)


def _no_match(given: Given) -> str:
    """Return the message for the case that there is no sample."""
    where = given.get("where")
    return "there is no sample" if where is None else f"no sample matches {printable(where)}"


def _draw(place: DatasetLocation, records: Iterator[StoredSample], given: Given) -> int:
    """Draw records into a picture, and return how many images these are."""
    from shardctl.images.codecs.drawing import SHEET
    from shardctl.inspection.pages.pictures import picture_sheet, pictures_of

    shown, marked = list(islice(records, PICTURES)), "no_annotations" not in given
    if not shown:
        raise UsageError(f"{_no_match(given)}, and there is nothing to draw")
    if not shown[0].images:
        raise UsageError(
            f"{printable(given.get('origin') or place.shown)}: there are no images to draw"
        )
    pictures = [picture for record in shown for picture in pictures_of(record, marked)]
    SHEET.write(Path(given["images"]), picture_sheet(pictures))
    return len(pictures)


def _decoder(place: DatasetLocation, given: Given, whole: bool) -> Decoder:
    """Return what turns the tokens of the shown columns into text: all of it, or as much as is
    shown."""
    return Decoder(place.folder, None if whole else SHOWN_TOKENS, given.get("columns"))


def _say_why_numbers(decoder: Decoder) -> None:
    if decoder.why_not is not None:
        note(f"tokens are shown as numbers only: {printable(decoder.why_not)}")


def _print_records(place: DatasetLocation, given: Given, output: Output) -> None:
    decoder = _decoder(place, given, output.as_json or output.verbose)
    records = list(decoder.decoded(_records(place, given)))
    shown = [_plain_record(record, given.get("columns")) for record in records]
    _say_why_numbers(decoder)
    sections: list[Section] = []
    for record, plain in islice(zip(records, shown, strict=True), SHOWN_BLOCKS):
        sections += sample_report(record, plain["values"], given.get("key"), output.verbose)
    if len(records) > SHOWN_BLOCKS:
        most = "at least " if len(records) >= MOST_BLOCKS else ""
        left_out = f"{most}{len(records) - SHOWN_BLOCKS:,}"
        sections.append(Section(f"and {left_out} more (--json has {len(records):,})"))
    output.show({**shown[0], "records": shown}, report_lines(sections))


def _plain_record(record: StoredSample, columns: list[str] | None) -> Values:
    """Return a record as plain data; the roles of its fields are those of the dataset, and say
    nothing of it."""
    known = {name: value for name, value in vars(record).items() if name not in ("roles", "texts")}
    documents = [{**asdict(piece), "cut": piece.cut} for piece in record.documents]
    return {
        **known,
        "documents": documents,
        "images": record.images,
        "class_names": record.class_names,
        "label_name": record.label_name,
        "values": plain_values(record, columns),
    }


def _print_samples(place: DatasetLocation, given: Given, output: Output) -> None:
    """Print the first of some samples; with a condition, also how many match it, if all were
    checked."""
    records = _records(place, given)
    decoder = _decoder(place, given, output.as_json or output.verbose)
    limit, conditional = given.get("head"), "where" in given
    most = limit or (SHOWN_MATCHES if conditional else SHOWN_FIRST)
    first = list(decoder.decoded(islice(records, most)))
    _say_why_numbers(decoder)
    shown = [plain_values(record, given.get("columns")) for record in first]
    complete = limit is None or len(shown) < limit
    count = len(shown) + sum(1 for _ in records)
    plain: dict[str, Any] = {"matches": count if complete else None} if conditional else {}

    def lines() -> Iterator[str]:
        if not shown:
            yield _no_match(given)
            return
        rows = [in_words(sample, record) for sample, record in zip(shown, first, strict=True)]
        cells = [[shortened(value, 40) for value in row.values()] for row in rows]
        yield from table_lines(cells, list(rows[0]))
        for record, sample in zip(first if output.verbose else (), shown, strict=False):
            if record.texts or record.documents:
                yield f"{printable(record.values.get('key'))}:"
                yield from report_lines(texts_report(record, sample, None, whole=True))
        if conditional and limit is None:
            matching = f"{counted(count, 'sample')} {'matches' if count == 1 else 'match'}"
            yield f"{matching}{f'; the first {most} are shown' if count > most else ''}"

    output.show({**plain, "samples": shown}, lines())


SHOWN_OBJECTS = 50


def sample_report(
    record: StoredSample, values: Values, key: str | None, whole: bool
) -> Iterator[Section]:
    """Yield what is told of a sample with these `values`: its place, itself, and what it has below;
    `key` and `whole` are those of `texts_report`."""
    within = "" if record.index is None else f", sample {record.index} of the dataset"
    checked = "holds" if record.intact else bad("DIFFERS")
    lines = [f"checksum of the block: {record.checksum} {checked}"]
    if record.source:
        lines.append(f"source: {printable(record.source)}")
    shown = in_words(_without_texts(values, record), record)
    table = Table([(name, shortened(value)) for name, value in shown.items()])
    yield Section(
        f"{record.shard}, block {record.block}, row {record.row}{within}", (*lines, table)
    )
    for name, role in record.roles.objects.items():
        objects: Any = record.values.get(name)
        if name in shown and is_objects(objects) and objects["bbox"]:
            header, rows = object_rows(objects, role)
            many = f"{printable(name)}: {counted(len(rows), 'object')}"
            title = f"{many}; places are pixels of the upright image"
            yield Section(title, (Table(rows, header, SHOWN_OBJECTS),))
    yield from texts_report(record, values, key, whole)


SHOWN_TEXT = 300
"""Characters of a text that are shown without -v."""

SHOWN_TOKENS = 1024
"""Tokens that are decoded for them: a token is a character or more, but for the bytes of rare
characters."""

SHOWN_DOCUMENTS = 50


def _without_texts(values: Values, record: StoredSample) -> Values:
    """Return the values of a sample that are shown in a table: without what `texts_report` tells
    below it."""
    below = {f"{name}_text" for name in record.texts} - set(record.values)
    below |= set(DOCUMENT_COLUMNS) if record.documents else set()
    return {name: value for name, value in values.items() if name not in below}


def texts_report(
    record: StoredSample, values: Values, key: str | None, whole: bool
) -> Iterator[Section]:
    """Yield the text of tokens among the shown `values`, all of it or its beginning, and the
    documents in it.

    Those with the `key` are marked.
    """
    for name, decoded in record.texts.items():
        if f"{name}_text" in values and decoded is not None:
            if not whole and len(decoded) > SHOWN_TEXT:
                decoded = decoded[:SHOWN_TEXT].rstrip("…") + "…"
            lines = [f"| {printable(line)}" for line in decoded.split("\n")]
            yield Section(f"text of {printable(name)}:", lines)
    if record.documents:
        yield _documents(record.documents, key)


def _documents(documents: tuple[Piece, ...], key: str | None) -> Section:
    chosen = [piece for piece in documents if key is not None and piece.key == key]
    shown = (
        documents[:SHOWN_DOCUMENTS] if chosen in ([], list(documents)) else (*chosen, *documents)
    )
    shown = tuple(sorted(dict.fromkeys(shown[:SHOWN_DOCUMENTS]), key=lambda piece: piece.first))
    rows = [
        (
            "*" if piece in chosen else "",
            piece.key if piece.key is not None else "-",
            piece.first,
            piece.length,
            _cut(piece),
            shortened(piece.text, 60) if piece.text is not None else "-",
        )
        for piece in shown
    ]
    table = Table(rows, ("", "document", "first token", "tokens", "cut", "beginning"))
    left_out = len(documents) - len(shown)
    more = [f"and {left_out:,} more (--json has all)"] if left_out else []
    marked = "; * is the one asked for" if key is not None else ""
    return Section(f"{counted(len(documents), 'document')}{marked}:", (table, *more))


def _cut(piece: Piece) -> str:
    """Return where a document was cut."""
    earlier = f"goes on from token {piece.start:,}" if piece.start else ""
    later = "continues" if piece.ends is False else ""
    return ", ".join(filter(None, (earlier, later))) or "no"
