"""Write docs/troubleshooting.md from the table of messages in docs/messages/. tests/test_messages.py checks that it is up to date.

    python scripts/docs/write_troubleshooting.py [FILE OF shardctl/ ...]

With files or folders it writes nothing, and lists the messages there that have no entry.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shardctl import errors
from shardctl.cli.show.message_table import ANY, Message, entry_for, read_messages

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "messages"

LEAST = 8
"""Characters of a message that are its own: a text with fewer says what another one has put together."""

HEAD = """# Troubleshooting

What each message means, and what to do. Search this page for words of the message, without the names and numbers in it: `…`
stands for these. `shardctl help NAME` shows one entry, for instance `shardctl help no-such-option`. Written by `make docs` from
`docs/messages/`; edit these files.
"""


class Said(NamedTuple):
    """A message in the source: its text, with `…` for values, and its place."""

    text: str
    place: str


def said(paths: list[Path]) -> Iterator[Said]:
    """Yield the messages of modules, and of the modules in folders."""
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and (message := _message(node)) is not None:
                    text = _text(message)
                    if len(text.replace(ANY, "").strip()) >= LEAST:
                        yield Said(text, f"{file.relative_to(ROOT)}:{node.lineno}")


def _message(call: ast.Call) -> ast.expr | None:
    """Return the argument of a call that is the message to a user."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    arguments = call.args
    if name == "Rejection":
        return arguments[2] if len(arguments) > 2 else None
    if name in ("at_least", "more_than"):
        return arguments[1] if len(arguments) > 1 else None
    is_error = name == "BadParameter" or (name.endswith("Error") and (hasattr(errors, name) or name == "SettingError"))
    return arguments[0] if is_error and arguments else None


def _text(node: ast.expr) -> str:
    """Return an expression as text, with `…` for values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("{:,}", ANY).replace("{:g}", ANY).replace("{}", ANY)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return ANY


def page(messages: dict[str, list[Message]]) -> str:
    """Return docs/troubleshooting.md."""
    parts = [HEAD]
    for title, entries in messages.items():
        parts.append(f"## {title}\n")
        parts += [_entry(each) for each in entries]
    return "\n".join(parts)


def _entry(message: Message) -> str:
    says = "\n".join(f"> {_quoted(text)}  " for text in message.says)
    example = f"\n```sh\n{message.example.strip()}\n```\n" if message.example else ""
    return f"### {message.id}\n\n{says}\n\n{message.means.strip()}\n\n**Do:** {message.do.strip()}\n{example}"


def _quoted(text: str) -> str:
    """Return a text for Markdown: as code, so that nothing in it is markup."""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def without_entry(paths: list[Path], messages: dict[str, list[Message]]) -> list[Said]:
    """Return the messages of modules that no entry is about."""
    entries = [each for table in messages.values() for each in table]
    return [each for each in said(paths) if entry_for(each.text, entries) is None]


def main() -> None:
    """Write the page, or list what is missing."""
    messages = read_messages(TABLE)
    if paths := [Path(each).resolve() for each in sys.argv[1:]]:
        for each in without_entry(paths, messages):
            print(f"{each.place}: {each.text}")
    else:
        (ROOT / "docs" / "troubleshooting.md").write_text(page(messages), encoding="utf-8")


if __name__ == "__main__":
    main()
