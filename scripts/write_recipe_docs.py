"""Write the table of steps into docs/recipes.md, from what the steps say of their settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from shardctl.transforms import TRANSFORMS

BEGIN, END = "<!-- steps: written by scripts/write_recipe_docs.py -->", "<!-- end of steps -->"
PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"


def table() -> str:
    """Return a row for each step, and one for each of its settings."""
    lines = ["| step | settings | default | |", "| --- | --- | --- | --- |"]
    for name, step in TRANSFORMS.items():
        lines.append(f"| `{name}` | | | {(step.__doc__ or '').strip().splitlines()[0]} |")
        for field in dataclasses.fields(step):  # type: ignore[arg-type]  # each step is a dataclass
            kind, given = field.metadata["kind"], field.default
            default = "" if given is dataclasses.MISSING or given is None else f"`{json.dumps(kind.write(given))}`"
            lines.append(f"| | `{field.name}` | {default} | {field.metadata['doc']} |")
    return "\n".join(lines)


def page(before: str) -> str:
    """Return the page with the table of now."""
    head, _, rest = before.partition(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
