"""The generations of a dataset: each committed state of it, as its manifest remembers them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError
from shardctl.format.names import GENERATIONS, MANIFEST, STAGING
from shardctl.system.text import printable


@dataclass(frozen=True)
class Generation:
    """One committed state of a dataset: its number, from 1; when it was committed (RFC 3339), and
    by which command.

    `added`, `removed` and `changed` count the inputs in which it differs from the one before:
    files, and for commands that take samples away, samples. `digest` is the SHA-256 of its
    SHA256SUMS, and so stands for every byte of its samples.
    """

    number: int
    created: str
    command: str
    added: int
    removed: int
    changed: int
    samples: int
    shards: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def generations_of(record: Any) -> tuple[Generation, ...]:
    """Read what a manifest has under `history`. Raises ValueError or TypeError where it does not
    fit."""
    if not isinstance(record, list):
        raise TypeError("the history is a list")
    history = tuple(Generation(**each) for each in record)
    for place, each in enumerate(history):
        counts = (each.added, each.removed, each.changed, each.samples, each.shards)
        if any(type(count) is not int or count < 0 for count in (each.number, *counts)):
            raise ValueError("generations have counts")
        if place and each.number <= history[place - 1].number:
            raise ValueError("generations are in order")
        if any(type(text) is not str for text in (each.created, each.command, each.digest)):
            raise ValueError("generations have dates and digests")
    return history


def folder_of(root: Path, number: int) -> Path:
    """Return where a generation of a dataset is that was kept: the folder of a dataset of its
    own."""
    return root / GENERATIONS / f"{number:05d}"


def kept_generations(root: Path) -> list[int]:
    """Return the numbers of the generations before the present one that were kept, in order. Raises
    OSError."""
    names = os.listdir(root / GENERATIONS) if (root / GENERATIONS).is_dir() else []
    return sorted(
        int(name)
        for name in names
        if name.isdecimal() and (root / GENERATIONS / name / MANIFEST).exists()
    )


def beside(root: Path) -> Path:
    """Return where the dataset before lies while it gives way to the one at `root`: in
    build/commit/publish.py."""
    return root.parent / f".{root.name}{STAGING}"


def root_of(root: Path, number: int, present: int) -> Path:
    """Return the folder of a generation of a dataset, whose present one has the number `present`.

    Raises DatasetError if it was not kept.
    """
    if number == present:
        return root
    kept = kept_generations(root)
    if number not in kept:
        there = ", ".join(map(str, [*kept, present]))
        raise DatasetError(
            f"{printable(str(root))}: generation {number} is not there, only {there};"
            " `shardctl convert --update --keep-generations N` keeps the N before the present one"
        )
    return folder_of(root, number)
