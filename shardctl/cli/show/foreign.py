"""What `inspect` prints of the shards of other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.lines import note
from shardctl.cli.output import print_table, shortened
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.interop.foreign import ForeignOverview

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
