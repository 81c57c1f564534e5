"""The names in `shardctl` itself: one table says where each is, and the imports that type checkers read agree with it."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import shardctl


def imports_for_type_checkers() -> dict[str, tuple[str, str]]:
    body = ast.parse(Path(shardctl.__file__).read_text(encoding="utf-8")).body
    (block,) = (each for each in body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    found = {}
    for each in block.body:
        assert isinstance(each, ast.ImportFrom)
        for alias in each.names:
            assert alias.asname is not None, f"type checkers take {alias.name} for private without `as {alias.name}`"
            found[alias.asname] = (str(each.module), alias.name)
    return found


def test_type_checkers_see_the_public_names() -> None:
    assert imports_for_type_checkers() == shardctl._PUBLIC


def test_all_public_names_are_there_and_sorted() -> None:
    assert shardctl.__all__ == ["__version__", *shardctl._PUBLIC] == ["__version__", *sorted(shardctl._PUBLIC)]
    for name, (module, attribute) in shardctl._PUBLIC.items():
        assert getattr(shardctl, name) is getattr(importlib.import_module(module), attribute)
    assert set(shardctl.__all__) <= set(dir(shardctl))
