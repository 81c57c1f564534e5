"""Write docs/api.md from signatures and docstrings. tests/test_docs.py fails where it is not up to
date.

The source is parsed and not imported: PyTorch, TensorFlow and JAX need not be there.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import shardctl

ROOT = Path(__file__).parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef

CLASSES = {
    "What `open` and `mix` return": [("loader.dataset", "Dataset"), ("loader.mix", "Mix")],
    "The tokenizer of a dataset": [("transforms.tokenizers.base", "Tokenizer")],
    "What `loader` returns": [("loader.loader", "Loader"), ("loader.loader", "LoaderStats")],
    "What the other functions return": [
        ("making.convert.result", "ConvertResult"),
        ("inspection.verify.result", "VerifyResult"),
        ("inspection.content.inspection", "Inspection"),
        ("inspection.content.overview", "Overview"),
        ("inspection.content.overview", "ShardOverview"),
        ("making.repair.outcomes", "RepairResult"),
        ("making.write", "WriteResult"),
        ("interop.exports.exporting", "ExportResult"),
        ("making.train_tokenizer", "TrainedTokenizer"),
        ("benchmark.measure.result", "BenchResult"),
        ("benchmark.advice", "Advice"),
    ],
}
"""Classes that are not imported by name, but met."""

ADAPTORS = ("torch", "tensorflow", "jax")
"""Modules of which all is public."""

FEW = 10
"""Options that two functions share are listed in both, up to so many."""

SPECIAL = {"__len__": "len({0})", "__iter__": "for … in {0}", "__getitem__": "{0}[index]"}
"""Special methods, as they are called."""


MOST_CHARACTERS = 90
"""Of a line of code."""


@dataclass(frozen=True)
class Module:
    """The definitions of a module."""

    body: list[ast.stmt]

    @classmethod
    def of(cls, name: str) -> Module:
        """Parse a module of shardctl, or the package of that name."""
        path = ROOT / "shardctl" / name.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return cls(ast.parse(file.read_text(encoding="utf-8")).body)

    def definition(self, name: str) -> ast.stmt:
        """Return a function or class."""
        return [each for each in self.body if getattr(each, "name", None) == name][-1]

    def public(self) -> Iterator[ast.stmt]:
        """Yield the functions and classes without an underscore."""
        yield from (each for each in self.body if not getattr(each, "name", "_").startswith("_"))


def api_docs() -> str:
    parts = [
        "# The Python functions and classes",
        "<!-- written by scripts/docs/write_api_docs.py from the docstrings -->",
        "[The loader](loader.md), [bench](commands/bench.md) and [convert](commands/convert.md) "
        "explain the options.",
        "Long functions show their progress on stderr: a bar at a terminal and in a notebook, "
        "elsewhere a line every"
        " 30 seconds. `progress=False` hides it.",
        "## shardctl",
    ]
    stub = ast.parse((ROOT / "shardctl" / "__init__.pyi").read_text(encoding="utf-8"))
    with_options = {
        each.name: each.args for each in reversed(stub.body) if isinstance(each, Function)
    }
    of_convert = _arguments(with_options["convert"])
    for name, definition in _public_functions():
        if name in with_options:
            definition.args = with_options[name]
        known = of_convert if name != "convert" else []
        parts += _described(definition, f"shardctl.{name}", known)
    for title, classes in CLASSES.items():
        parts.append(f"### {title}")
        for module, name in classes:
            parts += _described(Module.of(module).definition(name), name)
    for module in ADAPTORS:
        parts += [f"## shardctl.{module}"]
        for definition in Module.of(module).public():
            parts += _described(definition, f"shardctl.{module}.{definition.name}")  # type: ignore[attr-defined]
    parts += ["## shardctl.errors", "\n".join(_errors())]
    return "\n\n".join(parts) + "\n"


def public_definitions() -> Iterator[tuple[str, ast.stmt]]:
    """Yield the functions and classes of the page, each with its name. scripts/docs/check_words.py
    reads their docstrings."""
    yield from _public_functions()
    for classes in CLASSES.values():
        yield from ((name, Module.of(module).definition(name)) for module, name in classes)
    for module in (*ADAPTORS, "errors"):
        yield from ((f"{module}.{each.name}", each) for each in Module.of(module).public())  # type: ignore[attr-defined]


def _public_functions() -> Iterator[tuple[str, Function]]:
    for name in shardctl.__all__:
        if name in shardctl._PUBLIC:
            module, attribute = shardctl._PUBLIC[name]
            definition = Module.of(module.removeprefix("shardctl.")).definition(attribute)
            if isinstance(definition, Function):  # the classes are below
                yield name, definition


def _described(definition: ast.stmt, shown: str, known: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is to be said of a function, or of a class and what it has. Of options that
    another function has, more than a few are only named."""
    if isinstance(definition, Function):
        yield f"```python\n{_signature(definition, shown, known)}\n```"
        yield _meaning(definition)
    elif isinstance(definition, ast.ClassDef):
        yield f"#### {shown}"
        yield _prose(definition)
        fields = [each for each in definition.body if isinstance(each, ast.AnnAssign)]
        if fields:
            yield "```python\n" + "\n".join(_wrapped(_field(each)) for each in fields) + "\n```"
        yield from _methods(definition)


def _field(field: ast.AnnAssign) -> str:
    """Return a field of a class as source. Of a declared option (system/options.py) only the
    default, the second argument."""
    value = field.value
    if isinstance(value, ast.Call) and _source(value.func) in ("option", "option_as"):
        value = value.args[1]
    shown = f"{_source(field.target)}: {_source(field.annotation)}"
    return shown if value is None else f"{shown} = {_source(value)}"


def _methods(definition: ast.ClassDef) -> Iterator[str]:
    for each in definition.body:
        if not isinstance(each, Function) or ast.get_docstring(each) is None:
            continue
        is_value = any("property" in _source(decorator) for decorator in each.decorator_list)
        if each.name in SPECIAL:
            yield f"- `{SPECIAL[each.name].format(definition.name.lower())}`: {_meaning(each)}"
        elif each.name == "__init__" or not each.name.startswith("_"):
            name = definition.name if each.name == "__init__" else each.name
            call = name if is_value else _signature(each, name)
            shown = (
                f"\n\n  ```python\n{indent(call, '  ')}\n  ```\n\n  "
                if "\n" in call
                else f"`{call}`: "
            )
            yield f"- {shown.lstrip()}{_meaning(each)}"


def _signature(function: Function, shown: str, known: Sequence[str] = ()) -> str:
    """Return a call of a function, its arguments one to a line where they are many."""
    arguments = _arguments(function.args)
    options = arguments[arguments.index("*") + 1 :] if "*" in arguments else []
    shared = [each for each in options if each in known]
    if len(shared) > FEW:
        names = ", ".join(re.split(r"[:=]", each)[0].strip() for each in shared)
        arguments = [each for each in arguments if each not in shared]
        comment = indent(textwrap.fill(f"as in convert: {names}", MOST_CHARACTERS - 6), "    # ")
    else:
        comment = ""
    returned = (
        f" -> {_source(function.returns)}"
        if function.returns is not None and function.name != "__init__"
        else ""
    )
    call = f"{shown}({', '.join(arguments)}){returned}"
    if len(call) <= MOST_CHARACTERS:
        return call
    return (
        f"{shown}(\n"
        + "".join(f"{_wrapped(f'    {argument},')}\n" for argument in arguments)
        + (f"{comment}\n" if comment else "")
        + f"){returned}"
    )


def _wrapped(line: str) -> str:
    """Return a line of code in lines that are not too long, broken after commas and indented
    further."""
    within = " " * (len(line) - len(line.lstrip()) + 4)
    lines = [line]
    while (
        len(lines[-1]) > MOST_CHARACTERS - 2
        and (at := lines[-1].rfind(", ", len(within), MOST_CHARACTERS - 2)) > 0
    ):
        lines[-1:] = [lines[-1][: at + 1], within + lines[-1][at + 2 :]]
    return "\n".join(lines)


def _arguments(given: ast.arguments) -> list[str]:
    """Return the arguments of a function without `self`."""
    positional = given.posonlyargs + given.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(
        given.defaults
    )
    shown = [
        _argument(*each)
        for each in zip(positional, defaults, strict=True)
        if each[0].arg not in ("self", "cls")
    ]
    if given.vararg is not None:
        shown.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_argument(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return shown + ([f"**{_argument(given.kwarg, None)}"] if given.kwarg is not None else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    type_ = f": {_source(argument.annotation)}" if argument.annotation is not None else ""
    return f"{argument.arg}{type_}" + (f" = {_source(default)}" if default is not None else "")


def _source(node: ast.AST) -> str:
    """Return a node as source, with the quotes that ruff gives strings: it looks at the code in
    pages too."""
    # the stub's own names of classes: _bench_Listener
    text = re.sub(r"\b_[a-z_]+_(?=[A-Z])", "", ast.unparse(node))
    return text if '"' in text else text.replace("'", '"')


def _meaning(definition: ast.AST) -> str:
    """Return the first sentences of a docstring, up to the first empty line."""
    return _prose(definition).split("\n\n")[0]


def _prose(definition: ast.AST) -> str:
    """Return a docstring, each paragraph in one line; examples that are indented stay as they
    are."""
    paragraphs = (ast.get_docstring(definition) or "").split("\n\n")  # type: ignore[arg-type]
    return "\n\n".join(
        each if each.startswith("    ") else " ".join(each.split()) for each in paragraphs
    )


def _errors() -> Iterator[str]:
    yield "| | |"
    yield "| --- | --- |"
    for definition in Module.of("errors").public():
        if isinstance(definition, ast.ClassDef):
            yield (
                f"| `{definition.name}({_source(definition.bases[0])})` | {_meaning(definition)} |"
            )


if __name__ == "__main__":
    (ROOT / "docs" / "api.md").write_text(api_docs(), encoding="utf-8")
