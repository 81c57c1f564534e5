"""Check that pages, help, messages and docstrings are in plain words. `make lint` calls it.

    python scripts/docs/check_words.py [--list] [PAGE ...]

Each page or group may have a few sentences that are hard to read (FEWEST, SHARE). No sentence may
have more than MOST_WORDS words, no line of code in a page more than MOST_CHARACTERS. Without pages
it looks at all pages, help, messages and docstrings.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import runpy
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

LONG = 25
"""Words: a longer sentence is hard to read."""

MOST_WORDS = 35
"""Words: no sentence may be longer."""

MOST_CHARACTERS = 90
"""Of a line in a code block. Longer ones are cut off on the pages of the site."""

SHARE = 0.08
"""Less than this share of the sentences of a page may be hard to read."""

FEWEST = 2
"""So many sentences may be hard to read on any page."""

HARD = [
    (r"\b(that|those) of\b", "repeat the noun in place of 'that of'"),
    (r"\bbut for\b", "write 'except' in place of 'but for'"),
    (r"\bof which\b", "make two sentences of one with 'of which'"),
    (
        r"(?<!\b[Tt]here )\b(is|are|was|were|be) no [a-z]+",
        "write 'is not a …' in place of 'is no …'",
    ),
    (
        r"\bwhat (is|are|was|were|it|they|has|had|have|came|comes?|goes|went|lies|lay|stands?)\b",
        "name the thing, not 'what is'",
    ),
    (
        r"\b(who|whom|whose|whoever)\b",
        "name the program, the file or the process in place of 'who'",
    ),
    (
        r"\b(is|are|was|were) (there|had|said|told|asked for|brought|left alone)\b",
        "say where it is, or what does it",
    ),
    (r"\b(is|are|was|were) to be\b", "write 'must be', or a command"),
    (
        r"\bas (it|they) (lies?|stands?|holds?|likes?|says?)\b",
        "say what happens in place of 'as it lies'",
    ),
    (r"\bsuch as (is|are|was|were)\b", "write 'for example'"),
    (r"\bby name\b", "say which name, and where it is written"),
    (r"\b(one|each) (behind|after) the (other|one before)\b", "write 'in sequence'"),
    (
        r"\b([Nn]one of|none|[Nn]obody|[Nn]othing|[Nn]either)\b.*\b(no|none|nobody|nothing|nor)\b",
        "one negation is enough",
    ),
    (
        r"\b(is|are) (kept|put|taken|made|written|read) "
        r"(as|by|where|of)\b(.*\b(as|by|where|of)\b){2}",
        "two sentences",
    ),
    (
        r"\b(anew|thereof|therein|thereby|wherein|whereof|whereby|hereby|whither|thence|lest)\b",
        "use a word of today",
    ),
    (r"\bthan (is|are|was|were)\b", "say what is compared"),
]
"""Turns of phrase that readers with basic English stumble over, and what to write."""

MESSAGE = re.compile(r"\w*Error|Rejection|at_least|more_than|_?complain|_?fail")
"""Functions that are called with a message to a user."""

FORBIDDEN = [(r"\b[Tt]okenise", "American spelling: tokenizer, tokenize")]


@dataclass
class Group:
    """A page, or the texts of one command, one file of messages or one function: its sentences and
    faults."""

    name: str
    sentences: list[tuple[str, str]] = field(default_factory=list)
    cells: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, place: str, text: str) -> None:
        """Add the sentences of a text without code, and its faults."""
        for number, kind, part in blocks(text):
            where = f"{place}:{number}" if place == self.name else place
            if kind == "code":
                if len(part) > MOST_CHARACTERS:
                    self.faults.append(
                        f"{where}: line of code with {len(part)} characters; at most "
                        f"{MOST_CHARACTERS}\n    {part}"
                    )
                continue
            for pattern, advice in FORBIDDEN:
                if re.search(pattern, without_code(part)):
                    self.faults.append(f"{where}: {advice}\n    {part}")
            if kind == "prose":
                self.sentences += [(where, each) for each in split(part)]
            elif kind == "cell":
                self.cells += [(where, each) for each in split(part)]

    def found(self) -> list[tuple[str, str, list[str]]]:
        """Return the sentences that are hard to read: place, sentence, reasons."""
        return [(place, text, reasons) for place, text in self.sentences if (reasons := hard(text))]

    def passes(self) -> bool:
        """Return whether the group keeps the limits."""
        return not list(self.complaints())

    def complaints(self) -> Iterator[str]:
        """Yield the faults as lines for the screen."""
        yield from self.faults
        for place, text in [*self.sentences, *self.cells]:
            if words(text) > MOST_WORDS:
                yield f"{place}: {words(text)} words; at most {MOST_WORDS}\n    {text}"
        found = self.found()
        if len(found) > FEWEST and len(found) >= SHARE * len(self.sentences):
            yield from (shown(*each) for each in found)
            count = f"{len(found)} of {len(self.sentences)}"
            yield f"{self.name}: {count} sentences are hard to read; fewer than {SHARE:.0%} may be"


def shown(place: str, text: str, reasons: list[str]) -> str:
    return f"{place}: {'; '.join(reasons)}\n    {text}"


def hard(sentence: str) -> list[str]:
    """Return why a sentence is hard to read."""
    reasons = [f"{words(sentence)} words"] if words(sentence) > LONG else []
    return reasons + [advice for pattern, advice in HARD if re.search(pattern, sentence)]


def words(text: str) -> int:
    return len([each for each in text.split() if re.search(r"\w", each)])


def without_code(text: str) -> str:
    """Return Markdown without what is between backticks, and without the targets of links."""
    text = re.sub(r"``.+?``|`[^`]*`", "CODE", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def split(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph. In help, a sentence may begin with a value or an option:
    `auto: …`."""
    for sentence in re.split(
        r"(?<=[.!?])[*_]*\s+(?=[*_]*[A-Z\"'(]|[\w-]+(?: or [\w:-]+)?: )", without_code(text)
    ):
        if words(sentence):
            yield sentence.strip()


ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s+")


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the parts of a Markdown page: line, kind (prose, cell, heading, code) and text. Lines
    of a paragraph are joined.

    Tabs and notes of the site (`=== "Tab"`, `!!! note`) have indented text, which is prose too.
    Other indented lines are code.
    """
    fence, start, held = "", 0, []
    inside = False  # a list, a tab or a note: indented lines belong to it
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        mark = re.match(r"(`{3,}|~{3,})", ITEM.sub("", bare))
        if fence:
            if mark and bare == fence:
                fence = ""
            else:
                yield number, "code", line
            continue
        indented = line.startswith("    ") and not inside and not held
        plain = (
            bare
            and not mark
            and not indented
            and not re.match(r"(\||#|<|\[[^\]]*\]:|!!!|\?\?\?|===|---)", bare)
        )
        if held and (not plain or ITEM.match(line)):
            yield start, "prose", " ".join(held)
            held = []
        if mark:
            fence = mark[1]
        elif plain:
            start = start if held else number
            held.append(ITEM.sub("", line).strip())
        elif bare.startswith("|"):
            cells = re.split(r"(?<!\\)\|", without_code(bare.strip("|")))
            yield from ((number, "cell", each.strip()) for each in cells if words(each))
        elif bare.startswith("#"):
            yield number, "heading", bare.lstrip("# ")
        elif bare and indented:
            yield number, "code", line
        if bare and not line.startswith(" "):
            inside = bool(ITEM.match(line)) or bare.startswith(("!!!", "???", "==="))


def pages() -> Iterator[Path]:
    """Yield the pages for users that are in English."""
    found = [
        *ROOT.glob("README*.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    for path in sorted(found):
        for_users = path.exists() and "dev" not in path.relative_to(ROOT).parts
        if for_users and not path.name.endswith(".zh.md"):
            yield path


def page_group(path: Path) -> Group:
    """Return the group of a page."""
    name = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
    group = Group(name)
    group.add(name, path.read_text(encoding="utf-8"))
    return group


def help_groups() -> Iterator[Group]:
    """Yield a group for each command: its description, and the texts of its options. A text that
    commands share counts once."""
    import click

    from shardctl.cli import cli

    seen: set[str] = set()

    def walk(name: str, command: click.Command) -> Iterator[Group]:
        group = Group(f"{name} --help")
        paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
        described = [" ".join(each.split()) for each in paragraphs if not each.startswith("\b\n")]
        texts = [*described, getattr(command, "more", ""), command.short_help or ""]
        texts += [comment for _, comment in getattr(command, "examples", ())]
        for each in command.params:
            if isinstance(each, click.Option) and not each.hidden:
                texts += [each.help or "", getattr(each, "brief", "")]
        for text in texts:
            if text not in seen:
                seen.add(text)
                group.add(f"{name} --help", text)
        yield group
        if isinstance(command, click.Group):
            context = click.Context(command)
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from walk(f"{name} {inner}", found)

    yield from walk("shardctl", cli)


def message_groups() -> Iterator[Group]:
    """Yield a group with the messages of all errors and rejects in the code."""
    code = Group("messages in shardctl/")
    for file in sorted((ROOT / "shardctl").rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and MESSAGE.fullmatch(_name(call.func)):
                for text in (_constant_text(each) for each in call.args):
                    place = f"{file.relative_to(ROOT)}:{call.lineno}"
                    code.sentences += [(place, each) for each in split(text)]
    yield code


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _constant_text(node: ast.expr) -> str:
    """Return a string of the code, with … for values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_constant_text(each) for each in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


def docstring_groups() -> Iterator[Group]:
    """Yield a group for each public function and class, with the docstrings of its methods."""
    writer = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_api_docs.py"))
    for name, definition in writer["public_definitions"]():
        group = Group(f"docstring of {name}")
        for each in ast.walk(definition):
            if isinstance(each, ast.FunctionDef | ast.ClassDef) and (
                text := ast.get_docstring(each)
            ):
                if each is definition:
                    group.add(name, text)
                elif not each.name.startswith("_"):
                    group.add(f"{name}.{each.name}", text)
        yield group


def check(groups: Iterable[Group], list_all: bool) -> int:
    """Print the faults of groups, and return how many groups have some."""
    faulty = hard_ones = sentences = 0
    for group in groups:
        found = group.found()
        sentences += len(group.sentences)
        hard_ones += len(found)
        if list_all:
            print("".join(f"{shown(*each)}\n" for each in found), end="")
        if complaints := list(group.complaints()):
            print("\n".join(complaints))
            faulty += 1
    print(
        f"plain words: {hard_ones} of {sentences:,} sentences are hard to read, {faulty} pages and "
        "groups have faults"
    )
    return faulty


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    parser.add_argument(
        "--list",
        action="store_true",
        help="print all sentences that are hard to read, also where few are",
    )
    given = parser.parse_args()
    if given.pages:
        groups = [page_group(each.resolve()) for each in given.pages]
    else:
        groups = [*map(page_group, pages()), *help_groups(), *message_groups(), *docstring_groups()]
    return min(check(groups, given.list), 1)


if __name__ == "__main__":
    sys.exit(main())
