"""What became of the records of a dataset in each step of its recipe: counts of shards, added up.

The counts of a step are plain data: its `name`, numbers, and tables of numbers or of lists of
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardctl.system.text import counted

Counts = dict[str, Any]


def add_counts(some: Sequence[Counts], others: Sequence[Counts]) -> list[Counts]:
    """Return the counts of the same steps in two shards together."""
    if not some:
        return list(others)
    return [_sum(one, other) for one, other in zip(some, others, strict=True)]


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict):
        return {name: _sum(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one if isinstance(one, str) else one + other


def are_counts(steps: Any) -> bool:
    """Return whether this has the counts of steps."""
    return isinstance(steps, list) and all(
        isinstance(step, dict) and _is_step(step) for step in steps
    )


def _is_step(step: Counts) -> bool:
    numbers = [value for name, value in step.items() if name != "name"]
    return isinstance(step.get("name"), str) and all(map(_is_count, numbers))


def _is_count(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_count(part) for name, part in value.items())
    if isinstance(value, list):
        return all(map(_is_count, value))
    return type(value) is int and value >= 0


def step_lines(steps: Sequence[Counts]) -> list[str]:
    """Say what each step that rejected records has kept, and what each of its rules rejected:
    records, and share of bytes.

    Of blocks of tokens: how well documents fill them.
    """
    lines = []
    for step in steps:
        rejected: dict[str, list[int]] = step.get("rejected", {})
        if pieces := step.get("pieces_dropped"):
            share = step["bytes_dropped"] / max(1, step["bytes"])
            lines.append(
                f"{step['name']}: dropped {counted(pieces, 'part')} of texts ({share:.1%} of the "
                "bytes)"
            )
        if "blocks" in step:
            lines.append(f"{step['name']}: {_filling(step)}")
        if unwritten := step.get("unwritten"):
            what = ", ".join(
                f"{name} ({counted(chats, 'chat')})" for name, chats in unwritten.items()
            )
            lines.append(f"{step['name']}: the chat template does not write {what}")
        if not rejected:
            continue
        lines.append(f"{step['name']}: {_keeping(step['records'], step['bytes'], rejected)}")
    return lines


def _keeping(records: int, size: int, rejected: dict[str, list[int]]) -> str:
    """Say what rules have kept of records, and rejected; with the share of the bytes where the
    records have a text."""
    dropped, dropped_bytes = (sum(counts) for counts in zip(*rejected.values(), strict=True))
    kept = f"kept {records - dropped:,} of {records:,}"
    if not size:
        return (
            f"{kept}; rejected: "
            f"{', '.join(f'{rule} {count:,}' for rule, (count, _) in sorted(rejected.items()))}"
        )
    rules = ", ".join(
        f"{rule} {count:,} ({of_bytes / size:.1%})"
        for rule, (count, of_bytes) in sorted(rejected.items())
    )
    return f"{kept} ({1 - dropped_bytes / size:.1%} of the bytes); rejected: {rules}"


def _filling(step: Counts) -> str:
    """Say how documents fill the blocks of a dataset."""
    padding, least = (
        step[name] / max(1, step["tokens"] + step[name]) for name in ("padding", "least_padding")
    )
    blocks, pieces = step["blocks"], step["pieces"]
    inside = (
        f"{counted(step['documents'], 'document')} in {counted(blocks, 'block')}, "
        f"{pieces / max(1, blocks):.1f} in each"
    )
    cut = f"{step['longer']:,} longer than a block, {step['cut']:,} others cut"
    return f"{inside}; padding {padding:.2%}, {least:.2%} at least; {cut}"
