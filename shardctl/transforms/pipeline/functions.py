"""The functions and models of a person that a recipe names, called one after the other on
samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import numpy as np

from shardctl.errors import Rejection
from shardctl.format.roles import Sample
from shardctl.images.codecs.jpeg import JpegFacts
from shardctl.transforms.base import GroupTransform, SampleTransform
from shardctl.transforms.picture import Shape
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.values import DEEPEST, describe

Given = tuple[Sample, ...]
"""The fields of a sample as each of the functions was given them, in order; nothing where that is
not kept."""


Made = tuple[int, Sample, Given]
"""A sample that functions made: the number of its record, itself, and what was given to each
function. An object of a class would cost more than calling the function."""


@dataclass
class Applied:
    """What functions made of records: samples, and rejects by record.

    `left_out` names, by record, the function that returned no sample.
    """

    made: list[Made] = field(default_factory=list)
    rejects: dict[int, Rejection] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

    def drop_rejected(self) -> None:
        """Drop the samples of records that are rejected: one of them costs all of its record."""
        self.made[:] = [each for each in self.made if each[0] not in self.rejects]


class FailedCallError(Exception):
    """A call of a model with the samples of several records failed: any of them may be why."""

    def __init__(self, records: list[int], who: str, rejection: Rejection) -> None:
        super().__init__(str(rejection))
        self.records, self.who, self.rejection = records, who, rejection


Called = Callable[[list[int], bool], None]
"""Is told of every call before it is made: the records whose samples a function or a model gets,
which are different ones in order, and whether it is a model."""


_Step = tuple[int, SampleTransform, str]
"""A function or a model: its place among them, counted from 1; the step; its name in messages."""


class Functions:
    """Calls the functions and the models of a recipe. `numbered` says whether a record may become
    several samples of one variant.

    `traced` asks for what each function was given. Of several that is kept in any case: a message
    names the one to blame.
    """

    def __init__(self, recipe: Recipe, numbered: bool, traced: bool) -> None:
        self._recipe, self._numbered = recipe, numbered
        self._steps = [
            (number, step, str(step.settings().get("target", step.name)))
            for number, step in enumerate(recipe.sample_transforms, 1)
        ]
        self._stretches = [
            list(steps)
            for _, steps in groupby(
                self._steps,
                lambda each: each[0] if isinstance(each[1], GroupTransform) else 0,
            )
        ]
        self._traced = traced or len(self._steps) > 1
        for model in recipe.models:
            model.begin()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def setter(self, name: str, given: Given, final: Sample) -> str:
        """Return the function that set a field last; the last of all where it changed the value in
        place."""
        return self.setters(given, final).get(name) or self._steps[-1][2]

    def setters(self, given: Given, final: Sample) -> dict[str, str]:
        """Return the function that set a field last, for each field of a sample that one of them
        set."""
        if not given:
            return {}
        absent = object()
        return {
            name: who
            for (_, _, who), before, after in zip(
                self._steps, given, (*given[1:], final), strict=True
            )
            for name in before.keys() | after.keys()
            if after.get(name, absent) is not before.get(name, absent)
        }

    def apply(self, asked: list[Made], called: Called) -> Applied:
        """Return what the functions make of samples, which are used up.

        Several functions are called in turn on each sample: one may leave something for the next. A
        model is called with the samples of all records, some at a time. `settle` must follow once
        all samples of the records are there.

        Raises FailedCallError.
        """
        applied = Applied(asked)
        for steps in self._stretches:
            _, step, who = steps[0]
            if isinstance(step, GroupTransform):
                applied.made = self._together(applied, step, who, called)
            else:
                in_turn = (self._in_turn(applied, each, steps, called) for each in applied.made)
                applied.made = list(chain.from_iterable(in_turn))
        return applied

    def _in_turn(
        self, applied: Applied, each: Made, steps: list[_Step], called: Called
    ) -> list[Made]:
        """Return what functions make of a sample: the second is called on what the first made of
        it, and so on."""
        made = [each]
        for number, step, who in steps:
            before, made = made, []
            for record, sample, given in before:
                if record in applied.rejects:
                    continue
                called([record], False)
                key, variant = sample["key"], sample["variant"]
                # Its own stream per function, so that one that draws more or less does not disturb
                # the next.
                rng = self._recipe.rng(f"{key}\0{number}", variant, step.draws)
                so_far = (*given, sample.copy()) if self._traced else given
                try:
                    results: Sequence[Sample] | Rejection = step.apply(sample, rng)
                except Rejection as rejection:
                    results = rejection
                made += _taken(applied, record, results, key, variant, who, so_far)
        return made

    def _together(
        self, applied: Applied, model: GroupTransform, who: str, called: Called
    ) -> list[Made]:
        """Return what a model makes of all samples, some at a time. Raises FailedCallError."""
        applied.drop_rejected()
        made: list[Made] = []
        while applied.made:
            some = applied.made[: model.batch]
            del applied.made[: model.batch]  # what the model lets go of is not held here
            asked = [
                (
                    record,
                    sample["key"],
                    sample["variant"],
                    (*given, sample.copy()) if self._traced else given,
                )
                for record, sample, given in some
            ]
            samples = [sample for _, sample, _ in some]
            some.clear()
            different = list(dict.fromkeys(record for record, *_ in asked))
            called(different, True)
            try:
                results = model.apply_together(samples)
            except Rejection as rejection:
                if len(different) > 1:
                    raise FailedCallError(different, who, rejection) from rejection
                applied.rejects.setdefault(different[0], rejection)
                continue
            for result, (record, key, variant, given) in zip(results, asked, strict=True):
                made += _taken(applied, record, result, key, variant, who, given)
        return made

    def settle(self, applied: Applied) -> None:
        """Number the samples of records of which functions made several, and reject those of which
        they made none."""
        groups: defaultdict[int, list[Sample]] = defaultdict(list)
        for record, sample, _ in applied.made:
            groups[record].append(sample)
        for record in applied.left_out.keys() - groups.keys():
            why = f"{applied.left_out[record]} left it out"
            applied.rejects.setdefault(record, Rejection("transform", "left-out", why))
        for record, group in groups.items():
            if len({sample["variant"] for sample in group}) == len(group):
                continue
            if not self._numbered:
                why = (
                    f"{self._steps[-1][2]} returned several samples, which it did of none of the "
                    "inputs that were tried beforehand"
                )
                rejection = Rejection("transform", "several-samples", why)
                applied.rejects.setdefault(record, rejection)
            for number, sample in enumerate(group):
                sample["variant"] = number


def _taken(
    applied: Applied,
    record: int,
    results: Sequence[Sample] | Rejection,
    key: str,
    variant: int,
    who: str,
    given: Given,
) -> list[Made]:
    """Return what a function made of a sample; that it rejected it, or left it out, is noted."""
    made: list[Made] = []
    if isinstance(results, Rejection):
        applied.rejects.setdefault(record, results)
        return made
    for changed in results:
        if changed.get("key") is not key or changed.get("variant") is not variant:
            fault = _fault(changed, key, variant, who)
            if fault is not None:
                applied.rejects.setdefault(record, fault)
                return made
            changed["variant"] = variant
        if not _UNCHANGEABLE.issuperset(map(type, changed.values())):
            changed = unshared(changed)
        made.append((record, changed, given))
    if not results:
        applied.left_out[record] = who
    return made


_UNCHANGEABLE = frozenset((str, int, float, bool, bytes, type(None)))
_MUTABLE = frozenset((list, dict, bytearray, np.ndarray))


def unshared(fields: Sample) -> Sample:
    """Return a copy in which nothing is shared with `fields`.

    Samples are stored later than they are made. A function may return the same buffer at every
    call, and change what it has.
    """
    return {name: _copied(value) for name, value in fields.items()}


def _copied(value: Any, levels: int = DEEPEST) -> Any:
    if type(value) not in _MUTABLE:
        return value
    copied = value.copy()
    if levels and isinstance(value, list | dict):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for place, part in parts:
            if type(part) in _MUTABLE:
                copied[place] = _copied(part, levels - 1)
    return copied


def _fault(changed: Sample, key: str, variant: int, who: str) -> Rejection | None:
    """Return what is wrong with a sample that does not name the input any more that it was made
    of."""
    if not _is_same(changed.get("key"), key):
        new = f"changed the key to {describe(changed['key'])}" if "key" in changed else ""
        message = f"{who} {new or 'removed the key'}; it names the input and must stay"
        return Rejection("transform", "key-changed", message)
    if _is_same(changed.get("variant", variant), variant):
        return None
    message = f"{who} changed variant to {describe(changed['variant'])}; it counts the samples of"
    return Rejection("transform", "variant-changed", f"{message} an input")


def _is_same(value: Any, wanted: str | int) -> bool:
    """Return whether a function has left a value as it was; what it may have put there need not
    even be comparable."""
    return isinstance(value, type(wanted)) and not isinstance(value, bool) and value == wanted


@dataclass(frozen=True)
class MadeSample:
    """A sample after all steps of the recipe. If there is no layout yet, nothing of it is
    counted."""

    fields: Sample
    """The values of the columns, in the order of the layout; all fields of the sample if there is
    no layout yet. An image is pixels with `raw`, otherwise its bytes and its path."""

    shape: Shape | None = None
    """The shape of the decoded image; None without an image."""

    cut_off: int = 0
    """The number of objects that steps or the rule for boxes have removed."""

    jpeg: JpegFacts | None = None
    """What the image is as JPEG, if its original bytes are kept."""

    size: int = 0
    """The bytes of the values, about. Objects that wait count as they are before they are moved."""

    label: int | None = None
    """The class; None if the sample has no class, or the dataset has none."""

    objects: int = 0
    """The number of objects in the image. Objects that wait do not count yet."""

    waits: bool = False
    """Whether values are DeferredObjects, which `SamplePipeline.settle` replaces."""

    given: Given = ()
    """What each of the user's functions was given, if there is no layout yet."""
