"""What `shardctl inspect` prints of tokens: the text and the documents of a sample, and what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import counted, print_table, shortened
from shardctl.storage import printable
from shardctl.token_columns import DOCUMENT_COLUMNS

if TYPE_CHECKING:
    from shardctl.inspection.blocks import Piece, Record

SHOWN_TEXT = 300
"""Characters of a text that are shown without -v."""

SHOWN_TOKENS = 1024
"""Tokens that are decoded for them: a token is a character or more, but for the bytes of rare characters."""

SHOWN_DOCUMENTS = 50


def without_texts(values: dict[str, Any], record: Record) -> dict[str, Any]:
    """Return the values of a sample that are shown in a table: without what `print_texts` prints below it."""
    below = {f"{name}_text" for name in record.texts} - set(record.values)
    below |= set(DOCUMENT_COLUMNS) if record.documents else set()
    return {name: value for name, value in values.items() if name not in below}


def print_texts(record: Record, values: dict[str, Any], key: str | None, whole: bool) -> None:
    """Print the text of tokens among the shown `values`, all of it or its beginning, and the documents in it.

    Those with the `key` are marked.
    """
    for name, decoded in record.texts.items():
        if f"{name}_text" in values and decoded is not None:
            click.echo(f"text of {printable(name)}:")
            shown = decoded if whole or len(decoded) <= SHOWN_TEXT else decoded[:SHOWN_TEXT].rstrip("…") + "…"
            click.echo("\n".join(f"  | {printable(line)}" for line in shown.split("\n")))
    if record.documents:
        _print_documents(record.documents, key)


def _print_documents(documents: tuple[Piece, ...], key: str | None) -> None:
    click.echo(f"{counted(len(documents), 'document')}{'; * is the one asked for' if key is not None else ''}:")
    chosen = [piece for piece in documents if key is not None and piece.key == key]
    shown = documents[:SHOWN_DOCUMENTS] if chosen in ([], list(documents)) else (*chosen, *documents)
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
