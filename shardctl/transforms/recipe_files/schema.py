"""The JSON schema of recipe files, for editors."""

from __future__ import annotations

from typing import Any

from shardctl.transforms.recipe import Recipe
from shardctl.transforms.table import definitions


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
