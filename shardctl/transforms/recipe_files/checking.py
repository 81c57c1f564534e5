"""What is wrong with a recipe file, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import InstallError, UsageError
from shardctl.images.geometry import Size
from shardctl.transforms.base import EVERYTHING, ImageTransform, SampleTransform, Transform
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.reading import Problem, RecipeFile
from shardctl.transforms.settings import SettingError, each_of, first_line
from shardctl.transforms.table import definitions


@dataclass(frozen=True)
class StepSummary:
    """A step of a recipe. `settings` has all of them, defaults too; `does` is a sentence.

    `moves` are the annotations that stay right beside an image that it has changed, None for what
    is not a step of images. `size` is the (width, height) of every image after it, where the recipe
    fixes it.
    """

    name: str
    settings: dict[str, Any]
    does: str
    random: bool
    samples: int
    moves: tuple[str, ...] | None
    size: Size | None


@dataclass(frozen=True)
class Check:
    """A recipe file that was checked. `recipe` is None if there are problems."""

    file: str
    problems: tuple[Problem, ...]
    recipe: Recipe | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def steps(self) -> tuple[StepSummary, ...]:
        """What the recipe does, step by step."""
        return summaries(self.recipe.transform) if self.recipe else ()

    @property
    def moves(self) -> tuple[str, ...]:
        """The annotations that all steps of images can move."""
        moved = [step.moves for step in self.steps if step.moves is not None]
        return tuple(sorted(EVERYTHING.intersection(*moved)))


def check_recipe(path: Path, imports: bool = False) -> Check:
    """Find everything that is wrong with a recipe file. `imports` says whether to import the
    functions that it names.

    Raises InputError if there is no such file, or it cannot be read.
    """
    file = RecipeFile.read(path)
    if isinstance(file, Problem):
        return Check(file.file, (file,), None)
    recipe, errors = Recipe.examined(file.recipe)
    if recipe is not None and imports:
        for place, step in enumerate(recipe.transform):
            try:
                step.loaded()
            except InstallError as error:
                errors.append(SettingError(str(error), "transform", place))
            except UsageError as error:
                errors += [each.within("transform", place) for each in each_of(error)]
    problems = sorted(
        (file.problem(error) for error in errors),
        key=lambda problem: (problem.line or 0, problem.column or 0),
    )
    return Check(file.shown, tuple(problems), recipe if not problems else None)


def summaries(steps: tuple[Transform, ...]) -> tuple[StepSummary, ...]:
    """Return what each step does."""
    found: list[StepSummary] = []
    size: Size | None = None
    for step in steps:
        samples, moves = 1, None
        if isinstance(step, ImageTransform):
            size, samples, moves = step.output_size(size), step.samples, tuple(sorted(step.moves))
        elif isinstance(step, SampleTransform):
            size = None  # a person's function may change it
        found.append(
            StepSummary(
                step.name,
                step.settings(),
                first_line(type(step)),
                step.random,
                samples,
                moves,
                size,
            )
        )
    return tuple(found)


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema: draft 7, which the TOML plugins of editors know."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "shardctl recipe",
        "description": "What is done to every input of a dataset, and how the result is stored.",
        "type": "object",
        "properties": Recipe.properties(),
        "additionalProperties": False,
        "definitions": definitions(),
    }
