"""What `shardctl inspect` prints of tokens: the text and the documents of a sample, and what was
counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import bars, print_table, shortened
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.inspection.content.blocks import Piece, StoredSample
    from shardctl.inspection.content.tokens import TokenCount, TokenStatistics

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
