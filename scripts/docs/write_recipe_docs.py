"""Write the keys and the steps of docs/recipes.md, and docs/recipe.schema.json, from what recipes say of their
settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardctl.system.options import declared_in
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.reading import recipe_schema
from shardctl.transforms.settings import first_line
from shardctl.transforms.table import TRANSFORMS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "recipes.md"


def keys() -> str:
    """Return a row for each key of a recipe."""
    rows = [
        f"| `{key}` | {_default(field)} | {field.help} |"
        for key, field in declared_in(Recipe).items()
    ]
    return "\n".join(["| key | default | |", "| --- | --- | --- |", *rows])


GROUPS = {
    "resize": "Size, part and side",
    "rotate": "Turn and warp",
    "adjust_brightness": "Colours, noise and holes",
    "rand_augment": "Policies",
    "choice": "Steps of steps",
    "filter_size": "Filters of images",
    "normalize": "Clean and filter texts",
    "tokenize": "Tokens",
    "custom": "Your own functions as steps",
}
"""The headings over steps, by the first step below each."""


def steps() -> str:
    """Return a section for each step, with a line for each of its settings."""
    lines = []
    for name, step in TRANSFORMS.items():
        if name in GROUPS:
            lines += [f"### {GROUPS[name]}", ""]
        picture = f"images/{name}.webp"
        lines += [f"#### {name}", "", first_line(step), ""]
        if (DOCS / picture).exists():
            lines += [f"![{name}]({picture})", ""]
        for key, field in declared_in(step).items():
            default = _default(field)
            lines.append(f"- `{key}`{default and f' ({default})'}: {field.help}")
        lines += [""] if declared_in(step) else []
    return "\n".join(["", *lines]).rstrip()


def _default(field: Any) -> str:
    default = field.written_default
    return "" if default is None or default == [] else f"`{json.dumps(default)}`"


def page(before: str) -> str:
    """Return the page with the keys and steps of now."""
    for name, table in (("keys", keys()), ("steps", steps())):
        begin, end = (
            f"<!-- {name}: written by scripts/docs/write_recipe_docs.py -->",
            f"<!-- end of {name} -->",
        )
        head, _, rest = before.partition(begin)
        before = f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return before


def schema() -> str:
    """Return the JSON schema of recipe files, as `shardctl recipe schema` prints it."""
    return json.dumps(recipe_schema(), indent=2) + "\n"


if __name__ == "__main__":
    (DOCS / "recipe.schema.json").write_text(schema(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
