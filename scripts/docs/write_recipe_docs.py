"""Write the tables of docs/recipes.md, and docs/recipe.schema.json, from what recipes say of their
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


def steps() -> str:
    """Return a row for each step, and one for each of its settings. What an earlier step has said of
    the same setting is left out."""
    said = set()
    lines = ["| step | settings | default | |", "| --- | --- | --- | --- |"]
    for name, step in TRANSFORMS.items():
        picture = (
            f"<br>![{name}](images/{name}.webp)"
            if (DOCS / "images" / f"{name}.webp").exists()
            else ""
        )
        lines.append(f"| `{name}` | | | {first_line(step)}{picture} |")
        for key, field in declared_in(step).items():
            text = "" if (key, field.help) in said else field.help
            said.add((key, field.help))
            lines.append(f"| | `{key}` | {_default(field)} | {text} |")
    return "\n".join(lines)


def _default(field: Any) -> str:
    default = field.written_default
    return "" if default is None or default == [] else f"`{json.dumps(default)}`"


def page(before: str) -> str:
    """Return the page with the tables of now."""
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
