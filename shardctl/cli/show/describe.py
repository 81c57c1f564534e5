"""What `shardctl inspect` prints of whole datasets and shards: an overview, one shard, the
differences of two datasets."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.lines import colored
from shardctl.cli.output import bars, print_table, shortened
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.format.manifest import Manifest
    from shardctl.inspection.content.differences import Differences
    from shardctl.inspection.content.inspection import Inspection
    from shardctl.inspection.content.shards import ShardOverview
    from shardctl.inspection.content.statistics import Statistics

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
