"""The rejected inputs of a dataset as a part of its page: each reason with its number, an example,
and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from shardctl.format.tables import Reject, read_rejects
from shardctl.inspection.content.overview import Overview
from shardctl.inspection.pages.page import folded, paragraph, section
from shardctl.system.html import Html, table, text
from shardctl.system.locations.folder import FolderHere
from shardctl.system.messages import entry_for
from shardctl.system.text import counted

MOST = 200
"""Rejected inputs that are listed one by one."""


def rejects(folder: FolderHere, found: Overview) -> Iterator[Html]:
    """Yield the part of the page, if there are rejects. Raises DatasetError."""
    if not found.manifest.rejected:
        return
    reasons = [
        _reason(reason, count, example)
        for (reason, count), example in zip(
            found.reject_reasons.items(), found.reject_examples, strict=True
        )
    ]
    rows = [
        (each.key, f"{each.stage}: {each.error}", each.message)
        for each in islice(read_rejects(folder), MOST)
    ]
    more = (
        f"the first {len(rows)} of them" if found.manifest.rejected > len(rows) else "all of them"
    )
    where = ", of all splits" if found.split else ""
    yield section(
        "Rejected inputs",
        *reasons,
        folded(more, table(rows, ("key", "reason", "message"))),
        paragraph(f"rejects.jsonl in the dataset lists them all{where}.", "soft"),
    )


def _reason(reason: str, count: int, example: Reject) -> Html:
    entry = entry_for(example.message)
    what = f"<p>What to do: {text(entry.do)}</p>" if entry else ""
    said = f"<p>for instance {text(example.key)}: {text(example.message)}</p>"
    return Html(
        f'<div class="tile reason"><b>{counted(count, "input")}, '
        f"{text(reason)}</b>{said}{what}</div>"
    )
