"""What `shardctl inspect` prints of samples, of two datasets, and of the shards of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from shardctl.cli.output import bad, note, shortened
from shardctl.system.report import Section, Table, table_lines
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.inspection.content.blocks import Piece, StoredSample
    from shardctl.inspection.content.differences import Differences
    from shardctl.interop.foreign_shards import ForeignOverview


def differences_lines(found: Differences, a: str, b: str) -> Iterator[str]:
    """Yield what differs between two datasets, named `a` and `b`."""
    names = ("", a, b)
    if found.settings:
        yield "settings:"
        rows = ((pair.name, *_apart(pair.a, pair.b)) for pair in found.settings)
        yield from table_lines(rows, names)
    if found.fields:
        yield "fields:"
        rows = ((pair.name, pair.a or "-", pair.b or "-") for pair in found.fields)
        yield from table_lines(rows, names)
    of_each = f"{found.samples.a:,} in {a}, {found.samples.b:,} in {b}"
    yield f"samples: {of_each}, {found.in_both:,} in both"
    for where, count, examples in (
        (a, found.only_in_a, found.only_in_a_examples),
        (b, found.only_in_b, found.only_in_b_examples),
    ):
        if count:
            yield f"  {count:,} only in {where}: {_some(examples, count)}"
    if found.changed:
        fields = ", ".join(f"{name} ({count:,})" for name, count in found.changed_fields.items())
        some = _some([c.key for c in found.changed_examples], found.changed)
        yield f"  {found.changed:,} differ, in {fields}: {some}"
    if found.same_samples:
        yield "the same samples, with the same values"


_WIDTH = 40
"""Characters that a value may have in a table of differences."""


def _apart(a: Any, b: Any) -> tuple[str, str]:
    """Return two different values; long ones are cut to the part that starts shortly before the
    first difference."""
    texts = _setting(a), _setting(b)
    if max(map(len, texts)) <= _WIDTH:
        return texts
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    start = max(0, same - _WIDTH // 4)
    first, second = ("…" * (start > 0) + shortened(text[start:], _WIDTH) for text in texts)
    return first, second


def _setting(value: Any) -> str:
    """Return a setting as text: a list as its names one after the other, "-" for a missing one."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return printable(", ".join(value))
    return "-" if value is None else printable(value)


def _some(keys: Any, count: int) -> str:
    shown = ", ".join(printable(key) for key in keys)
    return f"{shown}, …" if count > len(keys) else shown


SHOWN_OBJECTS = 50


def sample_report(
    record: StoredSample, values: dict[str, Any], key: str | None, whole: bool
) -> Iterator[Section]:
    """Yield what is told of a sample with these `values`: its place, itself, and what it has below;
    `key` and `whole` are those of `texts_report`."""
    from shardctl.inspection.content.images import is_objects, object_rows
    from shardctl.inspection.content.samples import in_words

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


def _without_texts(values: dict[str, Any], record: StoredSample) -> dict[str, Any]:
    """Return the values of a sample that are shown in a table: without what `texts_report` tells
    below it."""
    from shardctl.format.token_columns import DOCUMENT_COLUMNS

    below = {f"{name}_text" for name in record.texts} - set(record.values)
    below |= set(DOCUMENT_COLUMNS) if record.documents else set()
    return {name: value for name, value in values.items() if name not in below}


def texts_report(
    record: StoredSample, values: dict[str, Any], key: str | None, whole: bool
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


SHOWN_FAULTS = 10


def foreign_lines(path: str, found: ForeignOverview) -> Iterator[str]:
    """Yield what is in them."""
    formats = ", ".join(f"{count:,} {name}" for name, count in found.formats.items())
    records = f"{counted(found.records, 'record')} in {counted(found.files, 'file')} ({formats})"
    yield f"{printable(path)}: {records}, {format_bytes(found.bytes)}"
    for notice in found.notices:
        note(notice)
    rows = [
        (printable(name), type_, _classes(found.classes.get(name))) for name, type_ in found.schema
    ]
    if rows:
        yield "fields:"
        yield from table_lines(rows, ("field", "type", ""))
    if found.first:
        yield "first records:"
        names = list(dict.fromkeys(name for record in found.first for name in record))
        cells = ([_shown(record.get(name)) for name in names] for record in found.first)
        yield from table_lines(cells, list(map(printable, names)))
    for place, message in list(found.faults.items())[:SHOWN_FAULTS]:
        yield f"error: {printable(place)}: {printable(message)}"
    if len(found.faults) > SHOWN_FAULTS:
        more = f"{len(found.faults) - SHOWN_FAULTS:,} more errors"
        yield f"{more}; `shardctl verify` names all of them"


def without_bytes(value: Any) -> Any:
    """Return a value for JSON: how many bytes there are, in the place of bytes."""
    if isinstance(value, dict):
        return {name: without_bytes(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_bytes(part) for part in value]
    return {"bytes": len(value)} if isinstance(value, bytes) else value


def _classes(names: list[str] | None) -> str:
    return (
        f"{counted(len(names), 'class', 'classes')}: {shortened(', '.join(names))}" if names else ""
    )


def _shown(value: Any) -> str:
    return (
        f"{format_bytes(len(value))} of bytes"
        if isinstance(value, bytes)
        else shortened(str(value))
    )
