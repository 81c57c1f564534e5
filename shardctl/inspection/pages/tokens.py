"""What is known of the tokens of a dataset, as parts of a page."""

from __future__ import annotations

from collections.abc import Iterator

from shardctl.inspection.content.token_statistics import TokenCount, TokenStatistics
from shardctl.inspection.pages import charts
from shardctl.inspection.pages.objects import whole_bins
from shardctl.inspection.pages.page import figures, paragraph, section, tiles
from shardctl.system.html import Html, table


def sections(found: dict[str, TokenStatistics]) -> Iterator[Html]:
    """Yield a section for each column of tokens."""
    for name, tokens in found.items():
        spreads = (
            (tokens.lengths, "tokens", tokens.lengths.what.rpartition(" ")[2] + "s"),
            (tokens.per_block, "documents", "blocks"),
        )
        drawn = [
            charts.columns(spread.what.capitalize(), {"": (whole_bins(spread), spread.counts)}, x, charts.counts(y))
            for spread, x, y in spreads
            if spread is not None and spread.low < spread.high
        ]
        if tokens.most_common:
            common = ([_named(each) for each in tokens.most_common], [each.count for each in tokens.most_common])
            drawn.append(charts.bars("Most common tokens", {"": common}, charts.counts("times")))
        note = f"Of {tokens.samples:,} samples in {tokens.blocks:,} blocks."
        parts = [tiles(_figures(tokens)), figures(*drawn), *_never_used(tokens)]
        parts += [paragraph(f"Tokens have no text here: {tokens.why_numbers}", "soft")] if tokens.why_numbers else []
        yield section(f"Tokens: {name}", *parts, paragraph(note, "soft"))


def _figures(found: TokenStatistics) -> Iterator[tuple[str, str]]:
    yield f"{found.tokens:,}", "tokens"
    if found.padding_share is not None:
        yield f"{found.padding_share:.2%}", f"of the blocks is padding: {found.padding:,} tokens"
    if found.cut is not None:
        yield f"{found.cut / max(1, found.documents):.1%}", f"of {found.documents:,} documents are cut: {found.cut:,}"
    if found.loss_tokens is not None:
        yield f"{found.loss_tokens / max(1, found.tokens):.1%}", "of the tokens count for the loss"
    if found.bytes_per_token is not None:
        yield f"{found.bytes_per_token:.2f}", "bytes of text for each token"
    if found.coverage is not None and found.vocabulary is not None:
        yield f"{found.coverage:.1%}", f"of {found.vocabulary:,} tokens of the vocabulary occur"


def _never_used(found: TokenStatistics) -> Iterator[Html]:
    if found.never_used and found.unused:
        names = ", ".join(map(_named, found.never_used))
        more = ", …" if found.unused > len(found.never_used) else ""
        yield table([(found.unused, f"{names}{more}")], ("never used", "the first of them"))


def _named(token: TokenCount) -> str:
    return str(token.token) if token.text is None else f"{token.text} ({token.token})"
