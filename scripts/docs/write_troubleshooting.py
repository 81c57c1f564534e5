"""Write docs/troubleshooting.md from the table of messages in docs/messages/.

    python scripts/docs/write_troubleshooting.py [FILE OF shardctl/ ...]

With files or folders it writes nothing, and lists the messages there that have no entry.
"""

from __future__ import annotations

import ast
import functools
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shardctl import errors
from shardctl.system.messages import ANY, PAGE, entries_of, entry_for

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "messages"

LEAST = 8
"""Characters of a message that are its own: a text with fewer says what another one has put
together."""

MORE_ERRORS = (
    "BadParameter",
    "ClickException",
    "SettingError",
    "TomlError",
    "UnfitError",
    "TemplateError",
)
"""Errors beside those of shardctl/errors.py whose texts users see."""

SENTENCES = {"lacks": "no {} …", "unknown": "{} … is not known…"}
"""What functions of system/text.py make of their first argument."""

DEEPEST = 5
"""How many functions and variables are followed to a text."""

HEAD = """# Troubleshooting

What each message means, and what to do. Search this page for words of the message, without the names and numbers in it: `…`
stands for these. `shardctl help NAME` shows one entry, for instance `shardctl help no-such-option`. Written by `make docs` from
`docs/messages/`; edit these files.
"""


class Message(NamedTuple):
    """An entry of the table: the texts that it is about, what they mean, what to do, and an example
    of that."""

    id: str
    says: list[str]
    means: str
    do: str
    example: str = ""


def read_messages(folder: Path) -> dict[str, list[Message]]:
    """Return the entries of all files in a folder, by the title of the file. Raises ValueError for
    a title of two files."""
    found: dict[str, list[Message]] = {}
    for file in sorted(folder.glob("*.toml")):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        if table["title"] in found:
            raise ValueError(f"{file}: another file has this title too; move the entries there")
        found[table["title"]] = [Message(**each) for each in table["message"]]
    return found


class Said(NamedTuple):
    """A message in the source: its text, with `…` for values, and its place."""

    text: str
    place: str


def said(paths: list[Path]) -> Iterator[Said]:
    """Yield the messages of modules, and of the modules in folders."""
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            module = Module.of(file)
            for call in module.calls():
                for text in dict.fromkeys(
                    text
                    for message in _messages(call, module)
                    for text in module.texts(message, call)
                ):
                    if has_words(text):
                        yield Said(text, f"{file.relative_to(ROOT)}:{call.lineno}")


def has_words(text: str) -> bool:
    """Return whether a text has words of its own."""
    return len(text.replace(ANY, "").strip()) >= LEAST


def _messages(call: ast.Call, module: Module) -> list[ast.expr]:
    """Return the argument of a call that is the message to a user, in a list; nothing for other
    calls."""
    name, arguments = _name(call.func), call.args
    place = {
        "Rejection": 2,
        "at_least": 1,
        "more_than": 1,
        "fail": 0,
        "complain": 0,
        "_complain": 0,
    }.get(name)
    if place is None:
        called = [
            name,
            *(_name(each) for each in module.values(call.func, call) if each is not call.func),
        ]
        place = 0 if any(map(_is_error, called)) else None
    return [] if place is None else arguments[place : place + 1]


def _is_error(name: str) -> bool:
    return name in MORE_ERRORS or (name.endswith("Error") and hasattr(errors, name))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


class Module:
    """A module of the source, and what expressions of messages in it stand for."""

    @classmethod
    @functools.cache
    def of(cls, file: Path) -> Module:
        """Return the module of a file."""
        return cls(file)

    def __init__(self, file: Path) -> None:
        self._tree = tree = ast.parse(file.read_text(encoding="utf-8"))
        self._parents = {
            child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)
        }
        self._nodes = [tree, *self._parents]
        functions = [each for each in self._nodes if isinstance(each, ast.FunctionDef)]
        self._texts = {
            each.name: each
            for each in functions
            if each.returns and "str" in ast.unparse(each.returns).split(" | ")
        }
        self._imported = {
            name.name: node.module
            for node in self._nodes
            if isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("shardctl.")
            for name in node.names
        }
        self._variables: dict[tuple[ast.AST, str], list[ast.expr]] = defaultdict(list)
        for node in self._nodes:
            if isinstance(node, ast.Assign | ast.NamedExpr):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._variables[self._scope(node), _name(target)].append(node.value)

    def calls(self) -> list[ast.Call]:
        """Return all calls in the module."""
        return [each for each in self._nodes if isinstance(each, ast.Call)]

    def values(self, node: ast.expr, at: ast.AST, deepest: int = DEEPEST) -> list[ast.expr]:
        """Return the expressions that one may stand for: both of a choice, what a variable gets,
        what a function returns."""
        name = _name(node.func if isinstance(node, ast.Call) else node)
        module = self._elsewhere(name)
        match node:
            case _ if not deepest:
                found = []
            case ast.IfExp():
                found = [node.body, node.orelse]
            case ast.BoolOp():
                found = node.values
            case ast.Name():
                found = self._assigned(name, at) or module._assigned(name, module._tree)
            case ast.Call() if name in module._texts and name not in SENTENCES:
                inner = ast.walk(module._texts[name])
                found = [
                    each.value
                    for each in inner
                    if isinstance(each, ast.Return) and each.value is not None
                ]
            case _:
                found = []
        return [value for each in found for value in module.values(each, each, deepest - 1)] or [
            node
        ]

    def _elsewhere(self, name: str) -> Module:
        """Return the module that a name is imported from, or this one."""
        if name not in self._imported:
            return self
        path = ROOT / self._imported[name].replace(".", "/")
        return Module.of(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))

    def texts(self, node: ast.expr, at: ast.AST) -> list[str]:
        """Return the texts that an expression may stand for, with `…` for values: also for texts,
        where there is no other."""
        found = []
        for each in self.values(node, at):
            if isinstance(each, ast.JoinedStr) and not has_words(_text(each)):
                pieces = [
                    self.texts(piece.value if isinstance(piece, ast.FormattedValue) else piece, at)
                    for piece in each.values
                ]
                found += ["".join(chosen) for chosen in itertools.product(*pieces)]
            else:
                found.append(_text(each))
        return found

    def _assigned(self, name: str, at: ast.AST) -> list[ast.expr]:
        """Return what a variable gets in the innermost function around a place that sets it, or in
        the module."""
        while (at, name) not in self._variables:
            if at not in self._parents:
                return []
            at = self._scope(at)
        return self._variables[at, name]

    def _scope(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the module."""
        node = self._parents[node]
        while not isinstance(node, ast.FunctionDef | ast.Module):
            node = self._parents[node]
        return node


def _text(node: ast.expr) -> str:
    """Return an expression as text, with `…` for values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("{:,}", ANY).replace("{:g}", ANY).replace("{}", ANY)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value) if isinstance(node.value, ast.Call) else ANY
    if isinstance(node, ast.Call) and (sentence := SENTENCES.get(_name(node.func))):
        return sentence.format(_text(node.args[0]))
    return ANY


def page(messages: dict[str, list[Message]]) -> str:
    """Return docs/troubleshooting.md."""
    parts = [HEAD]
    for title, entries in messages.items():
        parts.append(f"## {title}\n")
        parts += [_entry(each) for each in entries]
    return "\n".join(parts)


def _entry(message: Message) -> str:
    says = "\n".join(f"- {_quoted(text)}" for text in message.says)
    example = f"\n```sh\n{message.example.strip()}\n```\n" if message.example else ""
    return (
        f"### {message.id}\n\n{says}\n\n{message.means.strip()}\n\n**Do:** "
        f"{message.do.strip()}\n{example}"
    )


def _quoted(text: str) -> str:
    """Return a text for Markdown: as code, so that nothing in it is markup."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def without_entry(paths: list[Path], messages: dict[str, list[Message]]) -> list[Said]:
    """Return the messages of modules that no entry is about."""
    entries = entries_of(page(messages))
    return [each for each in said(paths) if entry_for(each.text, entries) is None]


def main() -> None:
    """Write the page, or list what is missing."""
    messages = read_messages(TABLE)
    if paths := [Path(each).resolve() for each in sys.argv[1:]]:
        for each in without_entry(paths, messages):
            print(f"{each.place}: {each.text}")
    else:
        (ROOT / "docs" / f"{PAGE}.md").write_text(page(messages), encoding="utf-8")


if __name__ == "__main__":
    main()
