"""What a dataset counts beside its samples: what became of records in each step of the recipe, and JPEG images.

The counts of a step are plain data: its `name`, numbers, and tables of numbers or of lists of
numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from shardctl.format.arrays import Bools
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


def are_step_counts(steps: Any) -> bool:
    """Return whether this has the counts of steps."""
    return isinstance(steps, list) and all(
        isinstance(step, dict)
        and isinstance(step.get("name"), str)
        and all(_is_count(value) for name, value in step.items() if name != "name")
        for step in steps
    )


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
    kept, of_the_bytes = f"kept {records - dropped:,} of {records:,}", ""
    if size:
        of_the_bytes = f" ({1 - dropped_bytes / size:.1%} of the bytes)"
    rules = ", ".join(
        f"{rule} {count:,}{f' ({of_bytes / size:.1%})' if size else ''}"
        for rule, (count, of_bytes) in sorted(rejected.items())
    )
    return f"{kept}{of_the_bytes}; rejected: {rules}"


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


COUNTS = ("images", "progressive", "full_colour")
"""What is counted: JPEG images, and those of them whose decoding takes longer."""


@dataclass(frozen=True)
class JpegRecord:
    """What is recorded of the images of one field, of a shard or of a dataset.

    `plain` (samples,) tells of each sample whether its image is plain JPEG; `images` of them are
    JPEG at all, of which `progressive` are progressive, and of `full_colour` the colours have as
    many pixels as the brightness (4:4:4).
    """

    plain: Bools
    images: int
    progressive: int
    full_colour: int

    def counts(self) -> dict[str, int]:
        """Return what is counted, as the manifest has it under `jpeg`."""
        return {name: getattr(self, name) for name in COUNTS}

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data: `plain` as a bit for each sample, in Base64."""
        packed = np.packbits(self.plain, bitorder="little").tobytes()
        return {
            **self.counts(),
            "plain": base64.b64encode(packed).decode("ascii"),
            "xxh3": xxhash.xxh3_64_hexdigest(packed),
        }

    @classmethod
    def from_json(cls, record: Any, samples: int) -> JpegRecord:
        """Read what `to_json` returned of so many samples, untrusted. Raises ValueError or
        TypeError where it does not fit."""
        if not isinstance(record, dict) or type(record.get("plain")) is not str:
            raise TypeError("a record of JPEG images is an object")
        if not are_jpeg_counts(record) or record["images"] > samples:
            raise ValueError("JPEG images are counted")
        packed = base64.b64decode(record["plain"], validate=True)
        if len(packed) != (samples + 7) // 8 or record.get("xxh3") != xxhash.xxh3_64_hexdigest(
            packed
        ):
            raise ValueError("the bits of plain images are damaged")
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
        if bits[samples:].any():
            raise ValueError("there are bits of images that there are not")
        return cls(bits[:samples].view(bool), *(record[name] for name in COUNTS))

    def only(self, first: int, samples: int) -> Bools:
        """Return which images of some samples are plain, (samples,)."""
        return self.plain[first : first + samples]


PROGRESSIVE_COST, FULL_COLOUR_COST = 3.3, 1.3
"""How many times as long these JPEG images take to decode as baseline ones with 4:2:0 colours."""


def jpeg_costs(counts: Mapping[str, int] | None, samples: int) -> tuple[str, ...]:
    """Say how many of the images of so many samples take longer to decode than they need. `counts`
    are those of a manifest."""
    kinds = (
        ("progressive", "progressive JPEG", PROGRESSIVE_COST),
        ("full_colour", "JPEG with colors in full size (4:4:4)", FULL_COLOUR_COST),
    )
    return tuple(
        f"{counts[name]:,} of {counted(samples, 'image')} are {what}: --store jpeg:90 would make "
        f"them {cost} times as fast to"
        " decode"
        for name, what, cost in kinds
        if counts and counts[name]
    )


def joined(records: Iterable[JpegRecord]) -> JpegRecord:
    """Return one record of all the samples of several."""
    held = list(records)
    plain = np.concatenate([np.empty(0, bool), *(record.plain for record in held)])
    return JpegRecord(plain, *(sum(getattr(record, name) for record in held) for name in COUNTS))


def are_jpeg_counts(counts: Any) -> bool:
    """Return whether this has a number for each of COUNTS, none of them larger than that of all
    images."""
    is_known = isinstance(counts, dict)
    numbers: list[Any] = [counts.get(name) for name in COUNTS] if is_known else [None]
    return all(type(each) is int and 0 <= each <= numbers[0] for each in numbers)
