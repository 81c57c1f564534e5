"""What is said of a preview in numbers and words: its steps, and the size and the objects of each
sample."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardctl.build.preview.making import Preview, Tried
from shardctl.images.defaults import CENTRE
from shardctl.inspection.content.blocks import StoredSample
from shardctl.inspection.content.images import facts_of, is_encoded_image, is_objects
from shardctl.system.options import declared_in
from shardctl.system.text import counted, format_bytes
from shardctl.transforms.base import Transform
from shardctl.transforms.settings import Span, first_line


@dataclass(frozen=True)
class SampleFacts:
    """What is known of the image of a sample: width and height in pixels, its bytes as stored, its
    format.

    `format` is raw for pixels. `objects` is the number of objects that are marked in it, None where
    it was not annotated.
    """

    variant: int
    width: int | None
    height: int | None
    bytes: int
    format: str
    objects: int | None


def sample_facts(record: StoredSample) -> SampleFacts:
    """Return what is known of a sample."""
    variant, objects = int(record.values.get("variant") or 0), count_objects(record)
    value = record.values["image"]
    if isinstance(value, np.ndarray):
        return SampleFacts(variant, value.shape[1], value.shape[0], value.nbytes, "raw", objects)
    facts = facts_of(value["bytes"] if is_encoded_image(value) else None)
    return SampleFacts(
        variant,
        facts["width"],
        facts["height"],
        facts["image_bytes"] or 0,
        str(facts["format"] or "").lower(),
        objects,
    )


def count_objects(record: StoredSample) -> int | None:
    """Return how many objects are marked in a sample; None where it has none of the columns, or was
    not annotated."""
    values = [record.values.get(name) for name in record.roles.objects]
    counts = [len(value["bbox"]) for value in values if value is not None and is_objects(value)]
    return sum(counts) if counts else None


def size_in_words(facts: SampleFacts) -> str:
    """Return the size of an image: `224x224, 12.3 KiB`."""
    size = f"{facts.width}x{facts.height}, " if facts.width is not None else ""
    return f"{size}{format_bytes(facts.bytes)}"


def reject_in_words(tried: Tried) -> str:
    """Return what was rejected, at which stage and for which reason, in a few words."""
    assert tried.reject is not None, "asked of rejects alone"
    what = "further variants rejected" if tried.samples else "rejected"
    return f"{what}, {tried.reject.stage}: {tried.reject.error}"


def captions_of(record: StoredSample) -> list[str]:
    """Return the captions of a sample."""
    several = record.values.get("captions")
    values = (record.values.get("caption"), *(several if isinstance(several, list) else ()))
    return [value for value in values if isinstance(value, str)]


def record_of(preview: Preview) -> dict[str, Any]:
    """Return a preview as plain data (docs/json.schema.json)."""
    return {
        "total": preview.total,
        "samples": preview.samples,
        "rejected": preview.rejected,
        "inputs": [_input_record(each) for each in preview.inputs],
        "recipe": preview.recipe.to_json(),
        "notices": list(preview.notices),
    }


def _input_record(tried: Tried) -> dict[str, Any]:
    before = sample_facts(tried.source) if tried.source is not None else None
    reject = tried.reject
    return {
        "key": tried.key,
        "bytes": tried.bytes,
        "width": before.width if before else None,
        "height": before.height if before else None,
        "objects": before.objects if before else None,
        "cut_off": tried.cut_off,
        "samples": [vars(sample_facts(record)) for record in tried.samples],
        "reject": None
        if reject is None
        else {name: getattr(reject, name) for name in ("stage", "error", "message")},
    }


@dataclass(frozen=True)
class Step:
    """A step of a recipe in words; `depth` is 1 for the steps of a step, and so on."""

    depth: int
    name: str
    settings: str
    meaning: str


def steps_in_words(steps: Sequence[Transform], depth: int = 0) -> Iterator[Step]:
    """Yield steps with all of their settings, and after each the steps that it is made of."""
    for step in steps:
        settings, inner = [], list[Sequence[Transform]]()
        for name, field in declared_in(type(step)).items():
            value = getattr(step, name)
            if (
                isinstance(value, tuple)
                and value
                and all(isinstance(part, Transform) for part in value)
            ):
                inner.append(value)
            elif value is not None:
                settings.append(
                    f"{name} {_in_words(field.write(value), isinstance(field.type, Span))}"
                )
        yield Step(depth, step.name, ", ".join(settings), first_line(type(step)).replace("`", ""))
        for each in inner:
            yield from steps_in_words(each, depth + 1)


def _in_words(value: Any, is_span: bool) -> str:
    if is_span:
        low, high = (f"{number:.4g}" for number in value)
        return low if low == high else f"{low} to {high}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and all(isinstance(part, int | float) for part in value):
        return f"[{', '.join(f'{part:.4g}' for part in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


def storing_in_words(preview: Preview, annotated: bool) -> str:
    """Return how samples are stored, how many there are of each input, and which objects are
    kept."""
    recipe = preview.recipe
    said = [
        f"Stored as {recipe.store}",
        f"seed {recipe.seed}",
        f"{counted(preview.variants, 'variant')} of each input",
    ]
    if preview.variants > recipe.variants:
        said[-1] += ", the first of which is stored without --variants"
    if annotated and recipe.image_transforms:
        rule = recipe.keep_objects
        share = "its centre" if rule == CENTRE else f"{float(rule):.0%} of it"
        said.append(f"an object is kept where {share} can be seen")
    return ", ".join(said) + "."
