"""`shardctl recipe`: check, show and describe recipe files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.command import Group, option, path_argument
from shardctl.cli.output import Output, output_options, print_json, warn
from shardctl.errors import InputError, UsageError
from shardctl.format.names import Json
from shardctl.system.files import exists
from shardctl.system.machine import quick_imports
from shardctl.system.options import declared_in
from shardctl.system.packages import look_in_current_folder
from shardctl.system.report import table_lines
from shardctl.system.text import counted, did_you_mean, printable
from shardctl.transforms.recipe_files.ready import MARK, ready_recipes, ready_text

if TYPE_CHECKING:
    from shardctl.transforms.recipe import Recipe
    from shardctl.transforms.recipe_files.reading import Check, StepSummary

PROBLEMS_FOUND = 1


@click.group(
    cls=Group,
    examples=(
        "shardctl recipe check recipe.toml  # find its problems, or list its steps",
        "shardctl convert photos out --recipe recipe.toml",
        "shardctl recipe steps  # all steps of recipes",
        "shardctl recipe show out  # the recipe of a dataset",
        "shardctl recipe list  # recipes that are ready, such as @imagenet",
        "shardctl recipe show @imagenet > recipe.toml",
        "shardctl recipe schema > recipe.schema.json  # for editors",
    ),
)
def recipe() -> None:
    """Write, check and reuse recipes. A recipe is a TOML file with the steps for every input.

    \b
    A recipe.toml:
      store = "jpeg:90"              # options about inputs and samples are keys
      [[transform]]                  # the steps, in order
      name = "random_resized_crop"
      size = 224
      [[transform]]
      name = "hflip"

    `shardctl help recipes` has all keys and steps, with pictures.
    """


@recipe.command(
    short_help="find the problems of a recipe file, or list its steps",
    examples=("shardctl recipe check recipe.toml",),
)
@path_argument("file", "FILE.toml|@NAME")
@option("--import", "Also import its functions: this runs their modules.", name="imports")
@output_options
def check(file: str, output: Output, imports: bool) -> int:
    """Find all problems of a recipe file, or list its steps.

    Each problem is a line with its place: recipe.toml:12: step 2 (crop): size must be …. If there
    are no problems, the command prints the steps with all their settings. It also prints the size
    of the output images, and the annotations that can move with them.

    Exit codes: 0 no problems, 1 problems, 3 no such file.
    """
    with quick_imports():
        from shardctl.transforms.recipe_files.reading import check_recipe

    look_in_current_folder()
    found = check_recipe(Path(file), imports)
    if found.recipe is None:
        many = f"{counted(len(found.problems), 'problem')} in {found.file}"
        lines = [*map(str, found.problems), many]
    else:
        lines = [f"{found.file}: no problems found"]
        if not output.quiet:
            lines += _description(found, found.recipe)
            settings = [step.settings() for step in found.recipe.sample_transforms]
            own = [str(each["target"]) for each in settings if "target" in each]
            if own and not imports:
                lines.append(printable(f"  not looked at: {', '.join(own)} (--import does)"))
    output.show(_record(found), lines)
    return 0 if found.ok else PROBLEMS_FOUND


@recipe.command(
    short_help="print the recipe that made a dataset, or a ready one",
    examples=(
        "shardctl recipe show out > recipe.toml",
        "shardctl recipe show @imagenet",
    ),
)
@path_argument("dst", "DST|@NAME")
@output_options
def show(dst: str, output: Output) -> None:
    """Print the recipe that made the dataset DST, or a ready recipe, as a recipe file.

    The recipe of a dataset has every key and every setting, also the defaults, so that it means the
    same in later versions. Sources, labels, splits and the order are not part of a recipe; they are
    in the comment at its top.
    """
    if dst.startswith(MARK):
        text = ready_text(dst)
        if output.as_json:
            from shardctl.transforms.recipe_files.reading import load_recipe

            print_json({"recipe": load_recipe(Path(dst)), "toml": text})
        else:
            click.echo(text, nl=False)
        return
    with quick_imports():
        from shardctl.transforms.recipe_files.reading import show_recipe

    if not exists(Path(dst)) and (meant := did_you_mean(dst, ready_recipes())):
        raise InputError(f"{printable(dst)}: no such dataset{meant}")
    found = show_recipe(Path(dst))
    if output.as_json:
        print_json(found)
        return
    click.echo(found["toml"], nl=False)
    for misfit in found["misfits"]:
        warn(f"this version of shardctl would refuse it: {printable(misfit)}")


@recipe.command(
    short_help="list the steps that a recipe may have",
    examples=(
        "shardctl recipe steps  # all steps",
        "shardctl recipe steps color_jitter  # the settings of one",
    ),
)
@click.argument("name", required=False, metavar="[NAME]")
@output_options
def steps(name: str | None, output: Output) -> None:
    """List all steps of recipes, or the settings of the step NAME with their defaults.

    `shardctl help recipes` says more about them.
    """
    from shardctl.transforms.settings import first_line
    from shardctl.transforms.table import TRANSFORMS, unknown_step

    record: Json
    rows: list[tuple[str, ...]]
    if name is None:
        rows = [(each, first_line(step)) for each, step in TRANSFORMS.items()]
        record = {"steps": [{"name": each, "does": does} for each, does in rows]}
    elif name not in TRANSFORMS:
        raise UsageError(unknown_step(name))
    else:
        settings = [
            {"name": key, "default": field.written_default, "does": field.help}
            for key, field in declared_in(TRANSFORMS[name]).items()
        ]
        rows = [
            (key, "" if default is None else _value(default), does)
            for key, default, does in map(dict.values, settings)
        ]
        record = {"name": name, "does": first_line(TRANSFORMS[name]), "settings": settings}
    title = [] if name is None else [f"{name}: {record['does']}"]
    output.show(record, [*title, *table_lines(rows)])


@recipe.command("list", short_help="list the recipes that are ready")
@output_options
def list_ready(output: Output) -> None:
    """List the recipes that are ready: `--recipe @NAME` uses one, `shardctl recipe show @NAME`
    prints it."""
    lines = click.HelpFormatter()
    lines.write_dl(list(ready_recipes().items()))
    output.show({"recipes": ready_recipes()}, lines.getvalue().splitlines())


@recipe.command(short_help="print the JSON schema of recipe files, for editors")
@output_options
def schema(output: Output) -> None:
    """Print the JSON schema of recipe files. Editors complete and check the files with it.

    Write it beside your recipes, and name it in their first line; editors with Taplo (Even Better
    TOML in VS Code) read that:

    \b
      shardctl recipe schema > recipe.schema.json
      #:schema ./recipe.schema.json        <- the first line of recipe.toml
    """
    with quick_imports():
        from shardctl.transforms.recipe_files.reading import recipe_schema

    click.echo(json.dumps(recipe_schema(), indent=None if output.as_json else 2))


def _record(found: Check) -> Json:
    record: Json = {
        "ok": found.ok,
        "file": found.file,
        "problems": [asdict(problem) for problem in found.problems],
    }
    if found.recipe is not None:
        record |= {
            "recipe": found.recipe.to_json(),
            "steps": [asdict(step) for step in found.steps],
            "random": found.recipe.random,
            "samples_per_input": found.recipe.samples_per_record,
            "size": found.recipe.output_size,
            "moves": found.moves,
        }
    return record


def _description(found: Check, made: Recipe) -> Iterator[str]:
    """Yield what a recipe does, in lines."""
    kinds = {
        "image": "images",
        "text": "texts",
        "table": "rows of tables",
        "auto": "whatever the sources hold",
    }
    images = made.store is not None
    stored = f", images stored as {made.store}" if images else ""
    undecided = images and made.kind == "auto" and not made.transform
    compression = "none for images, zstd:3 for others" if undecided else str(made.compression)
    inputs = "texts or tables" if made.kind == "auto" and not images else kinds[made.kind]
    yield f"  for {inputs}{stored}, compression {compression}"
    said = ("kind", "store", "compression", "seed", "variants", "transform", "reading")
    others = {key: value for key, value in made.given().items() if key not in said}
    if others:
        yield printable(f"  {', '.join(f'{key} {_value(value)}' for key, value in others.items())}")
    yield from _steps_in_words(found.steps)
    if images and found.steps:
        size = (
            f"{made.output_size[0]}x{made.output_size[1]} pixels"
            if made.output_size
            else "of different sizes"
        )
        yield f"  images that come out: {size}"
    each = counted(made.samples_per_record, "sample")
    variants = f" ({made.variants} variants)" if made.variants > 1 else ""
    functions = ", unless your own functions make more or fewer" if made.sample_transforms else ""
    yield f"  from each input: {each}{variants}{functions}"
    yield f"  random: {'yes, seed ' + str(made.seed) if made.random else 'no'}"
    if found.reading:
        yield '  while reading, in each epoch, with recipe="dataset":'
        yield from _steps_in_words(found.reading)
    if images and made.image_transforms:
        still = []
        for what in ("boxes", "polygons", "keypoints", "masks"):
            steps = {
                step.name: None
                for step in found.steps
                if step.moves is not None and what not in step.moves
            }
            if what not in found.moves:
                still.append(f"{what} ({', '.join(steps)})")
        moved = ", ".join(found.moves) or "none"
        yield f"  annotations that move with the images: {moved}"
        if still:
            yield f"  refused if the inputs have them: {', '.join(still)}"


def _steps_in_words(steps: Sequence[StepSummary]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        set_to = ", ".join(f"{key} {_value(value)}" for key, value in step.settings.items())
        random = "; random" if step.random else ""
        yield f"  {number}. {step.name}: {step.does}"
        yield printable(f"     {set_to or 'no settings'}{random}")


def _value(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        parts = []
        for item in value:
            rest = [f"{name} {_value(inner)}" for name, inner in item.items() if name != "name"]
            parts.append(f"{item.get('name')} ({', '.join(rest)})")
        return "; ".join(parts)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
