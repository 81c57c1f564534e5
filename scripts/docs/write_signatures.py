"""Write shardctl/__init__.pyi: the public functions as editors and type checkers read them, each
option as a keyword argument.

tests/test_public.py fails where it is not up to date.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import shardctl

ROOT = Path(__file__).parents[2]

HEAD = '''"""The public functions, for editors and type checkers. Written by `make docs`; edit the options, not this file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

'''


def stub() -> str:
    """Return the text of the stub."""
    plain, imports, functions = [], [], []
    for name, (module, attribute) in shardctl._PUBLIC.items():
        source = ast.parse(
            Path(inspect.getsourcefile(inspect.unwrap(getattr(shardctl, name))) or "").read_text(
                "utf-8"
            )
        )
        found = [
            each
            for each in source.body
            if isinstance(each, ast.FunctionDef) and each.name == attribute
        ]
        options = _options(name)
        if not options:
            plain.append(f"from {module} import {attribute} as {name}")
            continue
        overloads = [
            each
            for each in found
            if any(ast.unparse(mark) == "overload" for mark in each.decorator_list)
        ]
        for each in overloads or found:
            text = _signature(each, name, options)
            for used, origin in _classes(source, module):
                private = f"_{name}_{used}"
                if re.search(rf"\b{used}\b", text):
                    text = re.sub(rf"\b{used}\b", private, text)
                    imports.append(f"from {origin} import {used} as {private}")
            functions.append(("@overload\n" if overloads else "") + text)
    lines = sorted({*plain, *imports, "from shardctl.version import __version__ as __version__"})
    listed = ", ".join(f'"{name}"' for name in shardctl.__all__)
    return HEAD + "\n".join(lines) + f"\n\n__all__ = [{listed}]\n\n" + "\n".join(functions)


def _options(name: str) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments of a function that takes options; of another one, which is as
    its source says, none."""
    function = inspect.unwrap(
        getattr(shardctl, name), stop=lambda each: hasattr(each, "__signature__")
    )
    if not hasattr(function, "__signature__"):
        return {}
    declared = inspect.signature(function).parameters.values()
    return {each.name: each for each in declared if each.kind is inspect.Parameter.KEYWORD_ONLY}


def _signature(function: ast.FunctionDef, name: str, options: dict[str, inspect.Parameter]) -> str:
    """Return a function of a stub, an argument on each line."""
    arguments = function.args
    given = list(_arguments(arguments.args, arguments.defaults))
    of_keywords = list(_arguments(arguments.kwonlyargs, arguments.kw_defaults))
    written = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
    more = [
        f"{each}: {option.annotation} = {_default(option.default)}"
        for each, option in options.items()
        if each not in written
    ]
    lines = "".join(f"    {each},\n" for each in (*given, "*", *of_keywords, *more))
    returned = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    return f"def {name}(\n{lines}){returned}: ...\n"


def _default(value: object) -> str:
    """Return a default as source; that of an argument that must be given in another way is left
    out."""
    return repr(value) if isinstance(value, str | int | float | tuple | None) else "..."


def _arguments(
    arguments: list[ast.arg], defaults: list[ast.expr] | list[ast.expr | None]
) -> Iterator[str]:
    missing: list[ast.expr | None] = [None] * (len(arguments) - len(defaults))
    for argument, default in zip(arguments, [*missing, *defaults], strict=True):
        value = (
            ""
            if default is None
            else " = ..."
            if isinstance(default, ast.Lambda)
            else f" = {ast.unparse(default)}"
        )
        yield (
            f"{argument.arg}: "
            f"{'Any' if argument.annotation is None else ast.unparse(argument.annotation)}{value}"
        )


def _classes(source: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yield the classes that a module imports from shardctl, or has itself, and where each is."""
    for each in ast.walk(source):
        if (
            isinstance(each, ast.ImportFrom)
            and each.module is not None
            and each.module.startswith("shardctl")
        ):
            yield from (
                (alias.name, each.module) for alias in each.names if alias.name[0].isupper()
            )
        elif isinstance(each, ast.ClassDef):
            yield each.name, module


if __name__ == "__main__":
    (ROOT / "shardctl" / "__init__.pyi").write_text(stub(), encoding="utf-8")
