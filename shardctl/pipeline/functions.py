"""The functions of a person that a recipe names, called one after the other on samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardctl.errors import Rejection
from shardctl.recipe import Recipe
from shardctl.sample import Sample
from shardctl.transforms.values import DEEPEST, describe

Given = tuple[Sample, ...]
"""The fields of a sample as each of the functions was given them, in order; nothing where that is not kept."""


@dataclass
class Applied:
    """What functions made of records: samples, each with the number of its record and what was given to each function, and
    rejects by record.

    `left_out` names, by record, the function that returned no sample. Lists side by side: an object for each sample would cost
    more than calling the function.
    """

    records: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    rejects: dict[int, Rejection] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

    def extend(self, other: Applied) -> None:
        """Add what was made of other records, or of other variants of the same."""
        self.records += other.records
        self.samples += other.samples
        self.given += other.given
        self.rejects.update(other.rejects)
        self.left_out.update(other.left_out)

    def drop_rejected(self) -> None:
        """Drop the samples of records that are rejected: one of them costs all of its record."""
        if self.rejects:
            kept = [place for place, record in enumerate(self.records) if record not in self.rejects]
            self.records = [self.records[place] for place in kept]
            self.samples = [self.samples[place] for place in kept]
            self.given = [self.given[place] for place in kept]


class Functions:
    """Calls the functions of a recipe. `numbered` says whether a record may become several samples of one variant.

    `traced` asks for what each function was given. Of several that is kept in any case: a message names the one to blame.
    """

    def __init__(self, recipe: Recipe, numbered: bool, traced: bool) -> None:
        self._recipe, self._numbered = recipe, numbered
        self._steps = [
            (number, step, str(step.settings().get("target", step.name)), step.draws)
            for number, step in enumerate(recipe.sample_transforms, 1)
        ]
        self._traced = traced or len(self._steps) > 1

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def last(self) -> str:
        """The name of the last function."""
        return self._steps[-1][2]

    def setters(self, given: Given, final: Sample) -> dict[str, str]:
        """Return the function that set a field last, for each field of a sample that one of them set."""
        if not given:
            return {}
        absent = object()
        return {
            name: who
            for (_, _, who, _), before, after in zip(self._steps, given, (*given[1:], final), strict=True)
            for name in before.keys() | after.keys()
            if after.get(name, absent) is not before.get(name, absent)
        }

    def apply(self, records: list[int], samples: list[Sample], begin: Callable[[int], None]) -> Applied:
        """Return what the functions make of samples, each given with the number of its record.

        Several functions are called in turn on each sample: one may leave something for the next. `begin` is called with the
        record's number before every call. `settle` must follow once all samples of the records are there.
        """
        if len(self._steps) < 2:
            return self._in_turn(records, samples, begin)
        applied = Applied()
        for record, sample in zip(records, samples, strict=True):
            if record not in applied.rejects:
                applied.extend(self._in_turn([record], [sample], begin))
        return applied

    def _in_turn(self, records: list[int], samples: list[Sample], begin: Callable[[int], None]) -> Applied:
        """Call the first function on all samples, then the second on what it made, and so on."""
        applied = Applied(records, samples, [()] * len(samples))
        for number, step, who, draws in self._steps:
            made = Applied(rejects=applied.rejects, left_out=applied.left_out)
            for record, sample, given in zip(applied.records, applied.samples, applied.given, strict=True):
                if record in made.rejects:
                    continue
                begin(record)
                key, variant = sample["key"], sample["variant"]
                # Its own stream per function, so that one that draws more or less does not disturb the next.
                rng = self._recipe.rng(f"{key}\0{number}", variant) if draws else None
                so_far = (*given, sample.copy()) if self._traced else given
                try:
                    results = step.apply(sample, rng)
                    for changed in results:
                        if changed.get("key") is not key or changed.get("variant") is not variant:
                            _check(changed, key, variant, who)
                        if not _UNCHANGEABLE.issuperset(map(type, changed.values())):
                            changed = unshared(changed)
                        made.records.append(record)
                        made.samples.append(changed)
                        made.given.append(so_far)
                except Rejection as rejection:
                    made.rejects.setdefault(record, rejection)
                else:
                    if not results:
                        made.left_out[record] = who
            applied = made
        return applied

    def settle(self, applied: Applied) -> None:
        """Number the samples of records of which functions made several, and reject those of which they made none."""
        for record in applied.left_out.keys() - set(applied.records):
            applied.rejects.setdefault(record, Rejection("transform", "left-out", f"{applied.left_out[record]} left it out"))
        if len(set(applied.records)) == len(applied.records):
            return
        groups: defaultdict[int, list[Sample]] = defaultdict(list)
        for record, sample in zip(applied.records, applied.samples, strict=True):
            groups[record].append(sample)
        for record, group in groups.items():
            if len({sample["variant"] for sample in group}) == len(group):
                continue
            if not self._numbered:
                several = "returned several samples, which it did of none of the inputs that were tried beforehand"
                applied.rejects.setdefault(record, Rejection("transform", "several-samples", f"{self.last} {several}"))
            for number, sample in enumerate(group):
                sample["variant"] = number


_UNCHANGEABLE = frozenset((str, int, float, bool, bytes, type(None)))
_MUTABLE = frozenset((list, dict, bytearray, np.ndarray))


def unshared(fields: Sample) -> Sample:
    """Return a copy in which nothing is shared with `fields`.

    Samples are stored later than they are made. A function may return the same buffer at every call, and change what it has.
    """
    return {name: _copied(value, DEEPEST) if type(value) in _MUTABLE else value for name, value in fields.items()}


def _copied(value: Any, levels: int) -> Any:
    if not levels or isinstance(value, np.ndarray | bytearray):
        return value.copy()
    if _MUTABLE.isdisjoint(map(type, value.values() if isinstance(value, dict) else value)):
        return value.copy()
    if isinstance(value, list):
        return [_copied(part, levels - 1) if type(part) in _MUTABLE else part for part in value]
    return {name: _copied(part, levels - 1) if type(part) in _MUTABLE else part for name, part in value.items()}


def _check(changed: Sample, key: str, variant: int, who: str) -> None:
    """Make sure that a sample still names the input that it was made of. Raises Rejection."""
    if not _is_same(changed.get("key"), key):
        message = f"{who} changed the key to {describe(changed.get('key'))}; it names the input and must stay"
        raise Rejection("transform", "key-changed", message)
    if not _is_same(changed.get("variant", variant), variant):
        message = f"{who} changed variant to {describe(changed['variant'])}; it counts the samples of an input"
        raise Rejection("transform", "variant-changed", message)
    changed["variant"] = variant


def _is_same(value: Any, wanted: str | int) -> bool:
    """Return whether a function has left a value as it was; what it may have put there need not even be comparable."""
    return isinstance(value, type(wanted)) and not isinstance(value, bool) and value == wanted
