"""Write the table of steps into docs/recipes.md, and docs/recipe.schema.json, from what recipes say of their settings."""

from __future__ import annotations

import json
from pathlib import Path

from shardctl.recipe_files.schema import recipe_schema
from shardctl.transforms import TRANSFORMS
from shardctl.transforms.settings import default_of, first_line, settings_in

BEGIN, END = "<!-- steps: written by scripts/write_recipe_docs.py -->", "<!-- end of steps -->"
DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "recipes.md"


def table() -> str:
    """Return a row for each step, and one for each of its settings."""
    lines = ["| step | settings | default | |", "| --- | --- | --- | --- |"]
    for name, step in TRANSFORMS.items():
        picture = f"<br>![{name}](images/{name}.webp)" if (DOCS / "images" / f"{name}.webp").exists() else ""
        lines.append(f"| `{name}` | | | {first_line(step)}{picture} |")
        for key, field in settings_in(step).items():
            default = default_of(field)
            shown = "" if default is None else f"`{json.dumps(default)}`"
            lines.append(f"| | `{key}` | {shown} | {field.metadata['doc']} |")
    return "\n".join(lines)


def page(before: str) -> str:
    """Return the page with the table of now."""
    head, _, rest = before.partition(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def schema() -> str:
    """Return the JSON schema of recipe files, as `shardctl recipe schema` prints it."""
    return json.dumps(recipe_schema(), indent=2) + "\n"


if __name__ == "__main__":
    (DOCS / "recipe.schema.json").write_text(schema(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
