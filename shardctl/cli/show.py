"""What `shardctl inspect` prints of whole datasets and shards: an overview, one shard, the
differences of two datasets."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import bars, colored, note, print_table, shortened
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.format.manifest import Manifest
    from shardctl.format.roles import Objects
    from shardctl.inspection.content.blocks import Piece, StoredSample
    from shardctl.inspection.content.differences import Differences
    from shardctl.inspection.content.inspection import Inspection
    from shardctl.inspection.content.objects import MaskStatistics, ObjectStatistics
    from shardctl.inspection.content.overview import ShardOverview
    from shardctl.inspection.content.statistics import Statistics
    from shardctl.inspection.content.tokens import TokenCount, TokenStatistics
    from shardctl.interop.foreign import ForeignOverview


SHOWN_CLASSES = 12


def print_overview(found: Inspection) -> None:
    """Print what is known of a dataset or a split."""
    from shardctl.format.counts import jpeg_costs, step_lines
    from shardctl.format.tables import reason_lines
    from shardctl.inspection.content.overview import recipe_in_words

    m = found.manifest
    took = f" in {m.seconds:,.1f} s" if m.seconds is not None else ""
    of = f" from {', '.join(printable(s) for s in m.sources)}" if m.sources else ""
    of_split = f"split {found.split} of " if found.split else ""
    click.echo(f"{of_split}{found.location}: {found.size}")
    click.echo(f"  made {m.created}{took} by shardctl {m.shardctl_version}{of}")
    low, median, high = (format_bytes(size) for size in found.shard_bytes)
    click.echo(f"  shards: {low} to {high}, {median} at the median; {found.compressed}")
    click.echo(f"  recipe: {recipe_in_words(m.recipe)}")
    click.echo(f"  fingerprint: {m.fingerprint}")
    click.echo("splits:")
    print_table(
        [(s.name, s.samples, s.shards, format_bytes(s.bytes)) for s in found.splits],
        ("split", "samples", "shards", "size"),
    )
    _print_statistics(found.statistics, m)
    for cost in jpeg_costs(m.jpeg, m.samples):
        click.echo(colored(f"note: {cost}"))
    _print_classes(found)
    if lines := step_lines(m.steps or ()):
        click.echo("steps, in all splits:")
        click.echo("\n".join(f"  {printable(line)}" for line in lines))
    if m.rejected:
        everywhere = " (of all splits)" if found.split else ""
        click.echo(
            f"rejected: {m.rejected:,} of {counted(m.inputs, 'input')}{everywhere}, in "
            "rejects.jsonl"
        )
        for line in reason_lines(found.reject_reasons, found.reject_examples):
            click.echo(line)


def _print_statistics(statistics: Statistics, manifest: Manifest) -> None:
    if statistics.faults:
        click.echo(
            f"DAMAGED: {len(statistics.faults)} of the blocks looked at; run shardctl verify. "
            f"{statistics.faults[0]}"
        )
    if not statistics.columns:
        return
    click.echo(f"columns, average bytes in a sample (of {counted(statistics.samples, 'sample')}):")
    rows = [
        (
            c.name,
            f"{c.raw_bytes:,.1f}",
            f"{c.stored_bytes:,.1f}",
            manifest.type_in_words(c.name, c.type),
        )
        for c in statistics.columns
    ]
    print_table(rows, ("column", "uncompressed", "stored", "type"))
    for spread in statistics.distributions:
        if not spread.says_something:
            continue
        histogram = bars(spread.counts)
        click.echo(
            f"  {spread.what}: {spread.low:,.0f} to {spread.high:,.0f}, {spread.median:,.0f} at "
            f"the median  {histogram}"
        )
    if statistics.formats:
        formats = ", ".join(f"{name} {count:,}" for name, count in statistics.formats.items())
        click.echo(
            f"  image formats (of {counted(sum(statistics.formats.values()), 'image')}): {formats}"
        )


def _print_classes(found: Inspection) -> None:
    totals, by_split = found.classes, found.classes_by_split
    if not totals or by_split is None:
        return
    least, most = min(totals.values()), max(totals.values())
    each = counted(most, "sample") if least == most else f"{least:,} to {most:,} samples"
    click.echo(f"classes: {len(totals):,}, {each} each")
    splits = list(by_split) if len(by_split) > 1 else []
    rows = [
        (name, count, *(by_split[split].get(name, 0) for split in splits))
        for name, count in sorted(totals.items(), key=lambda item: -item[1])[:SHOWN_CLASSES]
    ]
    print_table(rows, ("class", "samples", *splits))
    if len(totals) > SHOWN_CLASSES:
        click.echo(f"  and {len(totals) - SHOWN_CLASSES:,} more (--json has all)")


def print_shard(found: ShardOverview) -> None:
    """Print what is known of one shard."""
    click.echo(f"{found.name}: {found.size}")
    click.echo("columns:")
    print_table(
        [(name, found.column_bytes.get(name, 0), type_) for name, type_ in found.columns],
        ("column", "uncompressed bytes", "type"),
    )
    click.echo("blocks:")
    rows = [(b.block, b.rows, b.raw_bytes, b.checksum, b.checked) for b in found.blocks]
    print_table(rows, ("block", "rows", "uncompressed bytes", "checksum", ""))


def print_differences(found: Differences, a: str, b: str) -> None:
    """Print what differs between two datasets, named `a` and `b`."""
    if found.settings:
        click.echo("settings:")
        print_table([(pair.name, *_apart(pair.a, pair.b)) for pair in found.settings], ("", a, b))
    if found.fields:
        click.echo("fields:")
        print_table(
            [(pair.name, pair.a or "-", pair.b or "-") for pair in found.fields], ("", a, b)
        )
    click.echo(
        f"samples: {found.samples.a:,} in {a}, {found.samples.b:,} in {b}, {found.in_both:,} in "
        "both"
    )
    only = (
        (a, found.only_in_a, found.only_in_a_examples),
        (b, found.only_in_b, found.only_in_b_examples),
    )
    for where, count, examples in only:
        if count:
            click.echo(f"  {count:,} only in {where}: {_some(examples, count)}")
    if found.changed:
        fields = ", ".join(f"{name} ({count:,})" for name, count in found.changed_fields.items())
        click.echo(
            f"  {found.changed:,} differ, in {fields}: "
            f"{_some([c.key for c in found.changed_examples], found.changed)}"
        )
    if found.same_samples:
        click.echo("the same samples, with the same values")


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
    return "-" if value is None else printable(str(value))


def _some(keys: Any, count: int) -> str:
    shown = ", ".join(printable(key) for key in keys)
    return f"{shown}, …" if count > len(keys) else shown


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


SHOWN_TEXT = 300
"""Characters of a text that are shown without -v."""

SHOWN_TOKENS = 1024
"""Tokens that are decoded for them: a token is a character or more, but for the bytes of rare
characters."""

SHOWN_DOCUMENTS = 50
SHOWN_COMMON = 12
SHOWN_NEVER = 8


def without_texts(values: dict[str, Any], record: StoredSample) -> dict[str, Any]:
    """Return the values of a sample that are shown in a table: without what `print_texts` prints
    below it."""
    from shardctl.format.token_columns import DOCUMENT_COLUMNS

    below = {f"{name}_text" for name in record.texts} - set(record.values)
    below |= set(DOCUMENT_COLUMNS) if record.documents else set()
    return {name: value for name, value in values.items() if name not in below}


def print_texts(record: StoredSample, values: dict[str, Any], key: str | None, whole: bool) -> None:
    """Print the text of tokens among the shown `values`, all of it or its beginning, and the
    documents in it.

    Those with the `key` are marked.
    """
    for name, decoded in record.texts.items():
        if f"{name}_text" in values and decoded is not None:
            click.echo(f"text of {printable(name)}:")
            shown = (
                decoded
                if whole or len(decoded) <= SHOWN_TEXT
                else decoded[:SHOWN_TEXT].rstrip("…") + "…"
            )
            click.echo("\n".join(f"  | {printable(line)}" for line in shown.split("\n")))
    if record.documents:
        _print_documents(record.documents, key)


def _print_documents(documents: tuple[Piece, ...], key: str | None) -> None:
    click.echo(
        f"{counted(len(documents), 'document')}{'; * is the one asked for' if key is not None else ''}:"
    )
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
    print_table(rows, ("", "document", "first token", "tokens", "cut", "beginning"))
    if len(documents) > len(shown):
        click.echo(f"  and {len(documents) - len(shown):,} more (--json has all)")


def _cut(piece: Piece) -> str:
    """Return where a document was cut."""
    earlier = f"goes on from token {piece.start:,}" if piece.start else ""
    later = "continues" if piece.ends is False else ""
    return ", ".join(filter(None, (earlier, later))) or "no"


def print_token_statistics(name: str, found: TokenStatistics, whole: bool) -> None:
    """Print what was counted in a column of tokens; `whole` says that it is all of the dataset or
    split."""
    rows = "block" if found.packed else "sample"
    counted_of = counted(found.samples, rows) + ("" if whole else "; --stats reads all")
    click.echo(f"{printable(name)}: {counted(found.tokens, 'token')} (of {counted_of})")
    for fault in found.faults[:1]:
        click.echo(f"  DAMAGED: {len(found.faults)} of the blocks; run shardctl verify. {fault}")
    if found.packed:
        padding = f"{found.padding:,} tokens of padding, {found.padding_share:.2%} of the blocks"
        click.echo(f"  {counted(found.documents, 'document')}{_cuts(found)}; {padding}")
    for spread in (found.lengths, found.per_block):
        if spread is not None and spread.counts:
            low, median, high = (
                f"{spread.low:,.0f}",
                f"{spread.median:,.{0 if spread.median >= 1000 else 1}f}".removesuffix(".0"),
                f"{spread.high:,.0f}",
            )
            click.echo(
                f"  {spread.what}: {low} to {high}, {median} at the median  {bars(spread.counts)}"
            )
    if found.loss_tokens is not None:
        click.echo(
            f"  loss mask: the loss of {counted(found.loss_tokens, 'token')} counts "
            f"({_share(found.loss_tokens, found)})"
        )
    if found.bytes_per_token is not None:
        of = "" if found.exact else f" (of {found.text_tokens:,} tokens that were decoded)"
        click.echo(f"  text: {found.bytes_per_token:.2f} bytes per token{of}")
    _print_vocabulary(found)
    if found.why_numbers is not None:
        click.echo(f"  tokens are shown as numbers only: {printable(found.why_numbers)}")


def _cuts(found: TokenStatistics) -> str:
    return (
        ""
        if found.cut is None
        else f", {found.cut:,} of them cut ({found.cut / max(1, found.documents):.1%})"
    )


def _print_vocabulary(found: TokenStatistics) -> None:
    if found.outside:
        click.echo(
            f"  DAMAGED: {counted(found.outside, 'token')} outside of the vocabulary; run shardctl "
            "verify --level deep"
        )
    if found.vocabulary is not None:
        click.echo(
            f"  vocabulary: {found.used:,} of {counted(found.vocabulary, 'token')} occur "
            f"({found.coverage:.1%})"
        )
    if found.never_used and found.unused:
        names = ", ".join(_named(token) for token in found.never_used[:SHOWN_NEVER])
        click.echo(
            f"  never used: {names}{', …' if found.unused > SHOWN_NEVER else ''} ({found.unused:,} "
            "in all)"
        )
    if found.most_common:
        click.echo("  most common tokens:")
        common = found.most_common[:SHOWN_COMMON]
        print_table(
            [(each.token, _named(each), each.count, _share(each.count, found)) for each in common]
        )


def _named(token: TokenCount) -> str:
    return str(token.token) if token.text is None else shortened(repr(token.text), 30)


def _share(count: int, found: TokenStatistics) -> str:
    return f"{count / max(1, found.tokens):.1%}"


SHOWN_FAULTS = 10


def print_foreign(path: str, found: ForeignOverview) -> None:
    """Print what is in them."""
    formats = ", ".join(f"{count:,} {name}" for name, count in found.formats.items())
    what = (
        f"{counted(found.records, 'record')} in {counted(found.files, 'file')} ({formats}), "
        f"{format_bytes(found.bytes)}"
    )
    click.echo(f"{printable(path)}: {what}")
    for notice in found.notices:
        note(notice)
    rows = [
        (printable(name), type_, _classes(found.classes.get(name))) for name, type_ in found.schema
    ]
    if rows:
        click.echo("fields:")
        print_table(rows, ("field", "type", ""))
    if found.first:
        click.echo("first records:")
        names = list(dict.fromkeys(name for record in found.first for name in record))
        print_table(
            [tuple(_shown(record.get(name)) for name in names) for record in found.first],
            tuple(map(printable, names)),
        )
    for place, message in list(found.faults.items())[:SHOWN_FAULTS]:
        click.echo(f"error: {printable(place)}: {printable(message)}")
    if len(found.faults) > SHOWN_FAULTS:
        click.echo(
            f"{len(found.faults) - SHOWN_FAULTS:,} more errors; `shardctl verify` names all of them"
        )


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
